"""Expressions of families.toml: a small part of Python, without `eval`.

A number or a boolean is itself, and a text an expression. In the page that
reads a config.json, what sitekit makes of each expression stands in for this.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

Read = Callable[[Mapping[str, Any]], Any]
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "bool": bool,
    "int": int,
    "sqrt": math.sqrt,
    "tuple": tuple,
}


def value_of(value: Any, fields: Mapping[str, Any]) -> Any:
    """What an entry of the table is for a config with these fields.

    Examples:
        >>> value_of("d_model // n_heads", {"d_model": 64, "n_heads": 4})
        16
        >>> value_of("__import__('os')", {})
        Traceback (most recent call last):
        ValueError: no expression of a family: __import__('os')
    """
    return _parsed(value)[0](fields) if isinstance(value, str) else value


def names_in(value: Any) -> list[str]:
    """The fields that an entry reads, in the order in which it does."""
    return _parsed(value)[1] if isinstance(value, str) else []


@cache
def _parsed(text: str) -> tuple[Read, list[str]]:
    names: dict[str, None] = {}
    tree = ast.parse(f"({text})", mode="eval")
    return _reader(tree.body, names), [*names]


def _reader(node: ast.expr, names: dict[str, None]) -> Read:
    """A function that computes a node; `names` takes the fields it reads."""

    def readers(*nodes: ast.expr) -> list[Read]:
        return [_reader(each, names) for each in nodes]

    match node:
        case ast.Constant(value):
            return lambda fields: value
        case ast.Name(name):
            names[name] = None
            return lambda fields: fields[name]
        case ast.Tuple(parts):
            each = readers(*parts)
            return lambda fields: tuple(read(fields) for read in each)
        case ast.Dict(keys, parts):
            at, values = readers(*filter(None, keys)), readers(*parts)
            pairs = [*zip(at, values, strict=True)]
            return lambda fields: {k(fields): v(fields) for k, v in pairs}
        case ast.BoolOp(kind, parts):
            *first, last = readers(*parts)
            return _first(isinstance(kind, ast.Or), first, last)
        case ast.IfExp(test, yes, no):
            holds, then, other = readers(test, yes, no)
            return lambda f: then(f) if holds(f) else other(f)
        case ast.UnaryOp(kind, part):
            return _applied(OPERATORS[type(kind)], readers(part))
        case ast.BinOp(left, kind, right):
            return _applied(OPERATORS[type(kind)], readers(left, right))
        case ast.Compare(left, [kind], [right]):
            return _applied(OPERATORS[type(kind)], readers(left, right))
        case ast.Subscript(inner, at):
            return _applied(operator.getitem, readers(inner, at))
        case ast.Call(ast.Name(name), [part], []) if name in FUNCTIONS:
            return _applied(FUNCTIONS[name], readers(part))
        case ast.Call(ast.Attribute(inner, "get"), parts, []):
            return _applied(
                lambda of, *args: of.get(*args), readers(inner, *parts)
            )
    raise ValueError(f"no expression of a family: {ast.unparse(node)}")


def _applied(function: Callable[..., Any], parts: list[Read]) -> Read:
    return lambda fields: function(*[read(fields) for read in parts])


def _first(until: bool, first: list[Read], last: Read) -> Read:
    """The first that is true, or that is not; else the last."""

    def chosen(fields: Mapping[str, Any]) -> Any:
        for read in first:
            value = read(fields)
            if bool(value) is until:
                return value
        return last(fields)

    return chosen
