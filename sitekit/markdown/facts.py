"""Sentences about the code: `{{refuses(KVCache(0), "max_len")}}`.

Beside what a page says of classes, counts, refusals and defaults stands, in
double braces, the expression that makes it so. One that is true leaves nothing
on the page, a count leaves its digits, and anything else stops the build at its
line. Both languages hold the same ones, section by section.

An expression is a small part of Python, without `eval`: names that attnref
makes public, its modules, `torch`, and the functions of this file.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any

import torch

import attnref
from attnref.judge.catalogue import catalogue
from attnref.judge.exercises import EXERCISES
from attnref.released.expression import OPERATORS
from attnref.released.record import families
from attnref.released.specs import models
from sitekit import ROOT

FACT = re.compile(r"\{\{([^{}]*\([^{}]*)\}\}")
HEADING = re.compile(r"(?m)^#+ .*\{ #([\w-]+) \}$")


def inherits(kind: type, *bases: type) -> bool:
    """Whether a class takes its methods from all of these."""
    return all(issubclass(kind, base) for base in bases)


def default(call: Callable[..., Any], argument: str) -> Any:
    """What an argument is if nobody passes it."""
    return inspect.signature(call).parameters[argument].default


def takes(call: Callable[..., Any], *arguments: str) -> bool:
    """Whether a function, or a constructor, has these arguments."""
    return {*arguments} <= {*inspect.signature(call).parameters}


def has(owner: Any, *names: str) -> bool:
    """Whether a class or an object has these methods."""
    return all(hasattr(owner, name) for name in names)


def imports(path: str, *modules: str) -> bool:
    """Whether a file imports these packages, and no other."""
    tree = ast.walk(ast.parse((ROOT / path).read_text("utf-8")))
    found = set()
    for node in tree:
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found == {*modules}


def filled(cache: Any, length: int, *, heads: int = 1, width: int = 4) -> Any:
    """A cache after so many tokens, each with a key and a value."""
    cache.append(*torch.zeros(2, 1, heads, length, width))
    return cache


def count(subject: str) -> int:
    """How many mistakes, exercises, families or models there are."""
    match subject:
        case "mistakes":
            return len(catalogue())
        case "exercises":
            return len(EXERCISES)
        case "families":
            return len(families())
        case "models":
            return len(models())
    raise ValueError(f"nobody counts {subject!r}")


def lines(path: str) -> int:
    return len((ROOT / path).read_text("utf-8").splitlines())


def result(fact: str) -> str:
    """What the page shows of a fact: nothing if it is true, or its digits."""
    with torch.no_grad():
        value = _read(_tree(fact))
    if isinstance(value, int) and value is not False:
        return "" if value is True else f"{value:,}"
    raise ValueError(f"this is not so, but {value!r}")


def facts(text: str) -> list[tuple[str, str]]:
    """The facts of a page, each with the id of the heading above it, sorted."""
    ids = [(match.start(), match[1]) for match in HEADING.finditer(text)]

    def find() -> Iterator[tuple[str, str]]:
        for match in FACT.finditer(text):
            sections = [id for start, id in ids if start < match.start()]
            yield (sections or ["the top"])[-1], match[1]

    return sorted(find())


NAMES = {"attnref": attnref, "torch": torch, "dict": dict, "len": len}
FUNCTIONS = (inherits, default, takes, has, imports, filled, count, lines)
NAMES |= {function.__name__: function for function in FUNCTIONS}


@cache
def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError("this is no expression") from None


def _read(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name) if name in NAMES:
            return NAMES[name]
        case ast.Name(name) if name in attnref.__all__:
            return getattr(attnref, name)
        case ast.Attribute(inner, name) if name[0] != "_":
            return _part(_read(inner), name)
        case ast.Call(ast.Name("refuses"), [call, words], []):
            return _raises(call, str(_read(words)))
        case ast.Call(function, args, keywords):
            arguments = {str(k.arg): _read(k.value) for k in keywords}
            return _read(function)(*map(_read, args), **arguments)
        case ast.Compare(left, [kind], [right]):
            return OPERATORS[type(kind)](_read(left), _read(right))
        case ast.BoolOp(ast.And(), parts):
            return all(map(_read, parts))
        case ast.BinOp(left, kind, right):
            return OPERATORS[type(kind)](_read(left), _read(right))
        case ast.UnaryOp(kind, part):
            return OPERATORS[type(kind)](_read(part))
        case ast.Tuple(parts):
            return tuple(map(_read, parts))
        case ast.List(parts):
            return list(map(_read, parts))
    raise LookupError(f"{ast.unparse(node)!r} is nothing that a fact may name")


def _part(owner: Any, name: str) -> Any:
    if hasattr(owner, "__path__") and not hasattr(owner, name):
        return import_module(f"{owner.__name__}.{name}")
    return getattr(owner, name)


def _raises(call: ast.expr, words: str) -> bool | str:
    """Whether a call raises an error that says so."""
    try:
        value = _read(call)
    except (ValueError, TypeError, RuntimeError) as error:
        return words in str(error) or f"{type(error).__name__}: {error}"
    return f"no error, but a {type(value).__name__}"
