"""Expressions of families.toml: a small part of Python, without `eval`.

An entry that is a number or a boolean stands for itself; a text is an
expression. The page that reads a config.json does not run this file: sitekit
makes a function of JavaScript of each expression.
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
    """The value of an entry of the table, for a config with these fields.

    Examples:
        >>> value_of("d_model // n_heads", {"d_model": 64, "n_heads": 4})
        16
        >>> value_of("__import__('os')", {})
        Traceback (most recent call last):
        ValueError: no expression of a family: __import__('os')
    """
    return _parsed(value)[0](fields) if isinstance(value, str) else value


def names_in(value: Any) -> list[str]:
    """The fields that an entry reads, in the order of its text."""
    return _parsed(value)[1] if isinstance(value, str) else []


def quotes(value: Any, text: str) -> bool:
    """Whether an entry has this text in quotes: it may be the name of a field
    within a field.

    Examples:
        >>> quotes('attn_config["clip_qkv"]', "clip_qkv")
        True
    """
    return isinstance(value, str) and f'"{text}"' in value


@cache
def _parsed(text: str) -> tuple[Read, list[str]]:
    names: dict[str, None] = {}
    tree = ast.parse(f"({text})", mode="eval")
    return _reader(tree.body, names), [*names]


def _reader(node: ast.expr, names: dict[str, None]) -> Read:
    """A function that computes a node. The fields that it reads are added to
    `names`."""

    def readers(*nodes: ast.expr) -> list[Read]:
        return [_reader(part, names) for part in nodes]

    match node:
        case ast.Constant(value):
            return lambda fields: value
        case ast.Name(name):
            names[name] = None
            return lambda fields: fields[name]
        case ast.Tuple(parts):
            items = readers(*parts)
            return lambda fields: tuple(read(fields) for read in items)
        case ast.Dict(keys, parts):
            pairs = [
                *zip(readers(*filter(None, keys)), readers(*parts), strict=True)
            ]
            return lambda fields: {k(fields): v(fields) for k, v in pairs}
        case ast.BoolOp(kind, parts):
            return _bool_op(isinstance(kind, ast.Or), readers(*parts))
        case ast.IfExp(test, yes, no):
            condition, then, other = readers(test, yes, no)
            return lambda f: then(f) if condition(f) else other(f)
        case ast.UnaryOp(kind, part):
            return _call(OPERATORS[type(kind)], readers(part))
        case ast.BinOp(left, kind, right):
            return _call(OPERATORS[type(kind)], readers(left, right))
        case ast.Compare(left, [kind], [right]):
            return _call(OPERATORS[type(kind)], readers(left, right))
        case ast.Subscript(container, index):
            return _call(operator.getitem, readers(container, index))
        case ast.Call(ast.Name(name), [part], []) if name in FUNCTIONS:
            return _call(FUNCTIONS[name], readers(part))
        case ast.Call(ast.Attribute(table, "get"), parts, []):
            return _call(
                lambda table, *args: table.get(*args), readers(table, *parts)
            )
    raise ValueError(f"no expression of a family: {ast.unparse(node)}")


def _call(function: Callable[..., Any], arguments: list[Read]) -> Read:
    return lambda fields: function(*[read(fields) for read in arguments])


def _bool_op(is_or: bool, operands: list[Read]) -> Read:
    """`and`, `or`: operands after the one that decides are not computed."""
    *head, last = operands

    def decide(fields: Mapping[str, Any]) -> Any:
        for read in head:
            value = read(fields)
            if bool(value) is is_or:
                return value
        return last(fields)

    return decide
