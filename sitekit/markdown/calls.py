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

FOLDER = Path(__file__).parent.parent / "drawn"


def near(name: object, names: Iterable[str]) -> str:
    """End an error message with the names that may have been meant; if none is
    close, with all names, unless they are many."""
    names = sorted(names)
    close = get_close_matches(str(name), names, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    return f"; there are {', '.join(names)}" if 0 < len(names) < 20 else ""


def check_keys(owner: str, spec: Any, *functions: Callable[..., Any]) -> None:
    """Refuse keys of a fence that are no keyword-only argument of one of these
    functions, and a fence without one that has no default."""
    known = {
        key.name: key.default
        for function in functions
        for key in inspect.signature(function).parameters.values()
        if key.kind == key.KEYWORD_ONLY
    }
    if not isinstance(spec, dict):
        raise ValueError(f"{owner} is no mapping of {', '.join(known)}")
    for key in spec:
        if key not in known:
            raise ValueError(f"{owner} has no key {key!r}{near(key, known)}")
    for key, default in known.items():
        if default is inspect.Parameter.empty and key not in spec:
            why = f"{owner} has {', '.join(known)}"
            raise ValueError(f"the key {key!r} is missing; {why}")


def single_key(owner: str, keys: Iterable[str], spec: Any) -> str:
    """The one key of several that a fence has."""
    present = [key for key in keys if key in (spec or ())]
    if len(present) != 1:
        raise ValueError(f"{owner} has one of the keys {', '.join(keys)}")
    return present[0]


def pages() -> list[str]:
    """The pages that have a file of drawings, by name."""
    return [p.stem.replace("_", "-") for p in sorted(FOLDER.glob("[!_]*.py"))]


@cache
def functions_of(page: str) -> dict[str, Callable[..., Any]]:
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
    other_page, _, member = name.rpartition(".")
    page = (other_page or page).replace("_", "-")
    functions = functions_of(page)
    file = f"sitekit/drawn/{page.replace('-', '_')}.py"
    if other_page and not functions:
        raise ValueError(f"there is no {file}{near(page, pages())}")
    if not other_page:
        public = {name: getattr(attnref, name) for name in attnref.__all__}
        if shared := functions.keys() & public.keys():
            why = f"{file} defines {sorted(shared)}, as attnref does"
            raise ValueError(f"{why}; give it a name of its own")
        functions, file = functions | public, f"{file} or attnref"
    if member not in functions:
        hint = near(member, functions)
        raise ValueError(f"there is no {name!r} in {file}{hint}")
    return functions[member]


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
def _once(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Compute a value once for both languages; a generator becomes a list."""
    value = function(*args, **options)
    return list(value) if inspect.isgenerator(value) else value


def value(text: object, page: str) -> Any:
    """The value of a call such as `causal_mask(4)`. A name alone is called."""

    def read(node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
            return read(node.left) & read(node.right)
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        function = find(ast.unparse(call.func), page)
        args = [_literal(arg) for arg in call.args]
        options = {str(k.arg): _literal(k.value) for k in call.keywords}
        if function.__module__.startswith("attnref"):
            return function(*args, **options)
        return _once(function, *args, **options)

    return read(_tree(text))


def arguments(text: object) -> dict[str, Any]:
    """The keyword arguments of a call, for captions."""
    call = _tree(text)
    keywords = call.keywords if isinstance(call, ast.Call) else []
    return {str(k.arg): ast.literal_eval(k.value) for k in keywords}
