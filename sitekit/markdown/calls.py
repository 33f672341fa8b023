"""What a fence names: calls with literals for arguments, and nothing else.

A name is looked for in the file of its page, sitekit/drawn/<page>.py, and then
among the public names of attnref; `mla.caches` stands in the file of another
page. Lists become tensors, and masks are joined by `&`.
"""

import ast
import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import attnref

DRAWN = Path(__file__).parent.parent / "drawn"


def near(name: object, names: Iterable[str]) -> str:
    """What may have been meant, or else what there is, if that is short."""
    names = sorted(names)
    close = get_close_matches(str(name), names, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    return f"; there are {', '.join(names)}" if 0 < len(names) < 20 else ""


def checked(what: str, spec: Any, *functions: Callable[..., Any]) -> None:
    """The keys of a fence are the keyword-only arguments of functions."""
    known = {
        key.name: key.default
        for function in functions
        for key in inspect.signature(function).parameters.values()
        if key.kind == key.KEYWORD_ONLY
    }
    if not isinstance(spec, dict):
        raise ValueError(f"{what} is no mapping of {', '.join(known)}")
    for key in spec:
        if key not in known:
            raise ValueError(f"{what} has no key {key!r}{near(key, known)}")
    for key, default in known.items():
        if default is inspect.Parameter.empty and key not in spec:
            why = f"{what} has {', '.join(known)}"
            raise ValueError(f"the key {key!r} is missing; {why}")


def only(what: str, keys: Iterable[str], spec: Any) -> str:
    """That one of some keys which is there."""
    present = [key for key in keys if key in (spec or ())]
    if len(present) != 1:
        raise ValueError(f"{what} has one of the keys {', '.join(keys)}")
    return present[0]


def pages() -> list[str]:
    """The names of those that draw."""
    return [p.stem.replace("_", "-") for p in sorted(DRAWN.glob("[!_]*.py"))]


@cache
def drawn(page: str) -> dict[str, Callable[..., Any]]:
    """The public functions that the file of a page defines."""
    if page not in pages():
        return {}
    module = import_module(f"sitekit.drawn.{page.replace('-', '_')}")
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and not name.startswith("_")
        and value.__module__ == module.__name__
    }


def find(name: str, page: str) -> Callable[..., Any]:
    where, _, own = name.rpartition(".")
    page = (where or page).replace("_", "-")
    names, file = drawn(page), f"sitekit/drawn/{page.replace('-', '_')}.py"
    if where and not names:
        raise ValueError(f"there is no {file}{near(page, pages())}")
    if not where:
        public = {name: getattr(attnref, name) for name in attnref.__all__}
        if both := names.keys() & public.keys():
            why = f"{file} defines {sorted(both)}, as attnref does"
            raise ValueError(f"{why}; give it a name of its own")
        names, file = names | public, f"{file} or attnref"
    if own not in names:
        raise ValueError(f"there is no {name!r} in {file}{near(own, names)}")
    return names[own]


def _literal(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)!r} is no literal") from None
    return torch.tensor(value) if isinstance(value, list) else value


def _tree(text: object) -> ast.expr:
    try:
        return ast.parse(str(text), mode="eval").body
    except SyntaxError:
        raise ValueError(f"{text!r} is no call such as f(3)") from None


@cache
def _once(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Both languages get what was computed for one; a generator as a list."""
    value = function(*args, **named)
    return list(value) if inspect.isgenerator(value) else value


def value(text: object, page: str) -> Any:
    """What `causal_mask(4)`, or a bare name for its call, gives."""

    def give(node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
            return give(node.left) & give(node.right)
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        function = find(ast.unparse(call.func), page)
        args = [_literal(arg) for arg in call.args]
        named = {str(k.arg): _literal(k.value) for k in call.keywords}
        if function.__module__.startswith("attnref"):
            return function(*args, **named)
        return _once(function, *args, **named)

    return give(_tree(text))


def arguments(text: object) -> dict[str, Any]:
    """The named ones of a call, for captions."""
    call = _tree(text)
    named = call.keywords if isinstance(call, ast.Call) else []
    return {str(k.arg): ast.literal_eval(k.value) for k in named}
