"""Usual faults of a layer, and the test that notices each.

    python -m tests.check.kills LAYER

plants them one by one in `attnref/layers/LAYER.py`: a step that is left out, a
branch that is never taken, a factor, a term or a sign that is missing, a
conversion of the dtype that does not happen. A fault that no test notices makes
no difference, or nobody has tested what it breaks.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

# `F.silu(x)` and `self.norm(x)` without the call are `x`; so is `x.exp()`.
MODULES = {"F", "self", "torch"}


class Fault(NamedTuple):
    """A source with one change."""

    line: int
    right: str
    wrong: str
    source: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.right} -> {self.wrong or 'left out'}"


def replacements(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """Parts of a node, and what a faulty source has there; None: nothing."""
    match node:
        case ast.If(test=test, body=[first, *_]):
            if not isinstance(first, ast.Raise):
                yield test, ast.Constant(False)
        case ast.Assign(targets=targets, value=value):
            if names(value) & {x for target in targets for x in names(target)}:
                yield node, None
        case ast.Expr(value=ast.Call()):
            yield node, None
        case ast.BinOp(left=left, op=ast.Mult() | ast.Add(), right=right):
            yield from ((node, left), (node, right))
        case ast.BinOp(left=left, op=ast.Div() | ast.Sub()):
            yield node, left
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            if not isinstance(operand, ast.Constant):
                yield node, operand
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name)), args=args):
            if name not in MODULES:
                yield node, node.func.value
            elif args and name != "torch":
                yield node, args[0]
        case ast.Call(func=ast.Attribute(value=owner)):
            yield node, owner


def names(node: ast.AST) -> set[str]:
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs when a layer is called, without the words of its errors."""
    for node in ast.iter_child_nodes(tree):
        is_init = isinstance(node, ast.FunctionDef) and node.name == "__init__"
        if not is_init and not isinstance(node, ast.Raise):
            yield node
            yield from nodes(node)


def faults(source: str) -> list[Fault]:
    """The faults of the functions of a module, by line."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    text = source.encode()
    found: dict[tuple[int, str, str], Fault] = {}
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in nodes(ast.Module([function], [])):
            for part, other in replacements(node):
                begin = starts[part.lineno - 1] + part.col_offset
                end = starts[part.end_lineno - 1] + part.end_col_offset
                wrong = "" if other is None else ast.unparse(other)
                new = f"({wrong})" if wrong else "pass"
                faulty = (text[:begin] + new.encode() + text[end:]).decode()
                right = " ".join(text[begin:end].decode().split())
                fault = Fault(part.lineno, right, wrong, faulty)
                found[part.lineno, right, wrong] = fault
    return sorted(found.values())
