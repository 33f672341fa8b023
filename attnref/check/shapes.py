"""Runs code and compares its shape comments with the values.

A comment `# (B, H, T, D)` at the end of a statement gives the shape of what
that statement assigns or returns; text after `;` is free. Letters are given
with the run, or bound once a call by a local variable of that name or by the
first shape that uses them; `# (..., T, D)` leaves the first axes open. Where
two letters have one size, a swap would go unseen: such a run does not count.
"""
# pyright: reportAttributeAccessIssue=false

import ast
import io
import re
import sys
import tokenize
from typing import Any, NamedTuple, Self

SHAPE = re.compile(r"# (\((?:[^()]|\([^()]*\))*\))(?:;.*)?$")
# What looks like one but is not would pass unchecked.
ALMOST = re.compile(r"#\s*[(\[]\s*(?:[A-Z][a-z]?|\d+)\s*[,)\]]")
Statement = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return


class Comment(NamedTuple):
    line: int
    first: int  # lines of the statement
    last: int
    dims: list[ast.expr]
    targets: list[str]  # empty: what is returned
    text: str

    @property
    def letters(self) -> list[str]:
        nodes = ast.walk(ast.Tuple(self.dims))
        return [node.id for node in nodes if isinstance(node, ast.Name)]


def comments(source: str) -> dict[int, Comment]:
    """Shape comments by the line they stand on."""
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, Statement)]
    result = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        trailing = token.line.split("#")[0].strip()
        if token.type != tokenize.COMMENT or not trailing:
            continue
        line, match = token.start[0], SHAPE.match(token.string)
        if not match and ALMOST.match(token.string):
            raise ValueError(f"line {line}: {token.string} is no shape comment")
        if not match:
            continue
        around = [n for n in nodes if n.lineno <= line <= _last(n)]
        if not around:
            raise ValueError(f"line {line}: {token.string} belongs to nothing")
        node = min(around, key=lambda n: _last(n) - n.lineno)
        shape = ast.parse(match[1], mode="eval").body
        dims = shape.elts if isinstance(shape, ast.Tuple) else [shape]
        result[line] = Comment(
            line, node.lineno, _last(node), dims, _targets(node), match[1]
        )
    return result


def _last(node: Statement) -> int:
    return node.end_lineno or node.lineno


def _targets(node: Statement) -> list[str]:
    if isinstance(node, ast.Return):
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    flat = [e for t in targets for e in (t.elts if hasattr(t, "elts") else [t])]
    return [ast.unparse(t) for t in flat]


class Watch:
    """Sees the values with comments in some files while `with watch:` runs
    code: each is `done` behind its statement."""

    def __init__(
        self, sources: dict[str, str], letters: dict[str, int] | None = None
    ):
        self.letters = letters or {}  # known before any call
        self.comments = {name: comments(s) for name, s in sources.items()}

    def __enter__(self) -> Self:
        self.previous = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.previous)

    def done(
        self, c: Comment, target: str, value: Any, frame: Any, letters: Any
    ) -> None:
        """`letters` are those of this call, and may be added to."""
        raise NotImplementedError

    def _call(self, frame: Any, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        own = self.comments.get(name)
        if not own:
            return None
        letters = dict(self.letters)
        pending: list[Comment] = []

        def local(frame: Any, event: str, arg: Any) -> Any:
            line = frame.f_lineno
            if event == "exception":  # the statement was not done
                pending[:] = [c for c in pending if not c.first <= line]
            # Having moved on from a statement says that it is done.
            for c in pending[:]:
                if event == "return" or not c.first <= line <= c.last:
                    pending.remove(c)
                    scope = (frame.f_globals, frame.f_locals)
                    values = [(t, eval(t, *scope)) for t in c.targets]
                    if not c.targets and event == "return":
                        values = [("return", arg)]
                    for value in values:
                        self.done(c, *value, frame, letters)
            if event == "line":
                here = (c for c in own.values() if c.first <= line <= c.last)
                pending.extend(c for c in here if c not in pending)
            return local

        return local


class Tracer(Watch):
    """Checks the comments."""

    def __init__(
        self, sources: dict[str, str], letters: dict[str, int] | None = None
    ):
        super().__init__(sources, letters)
        # By file and line: the shape that came, with the size of each letter.
        self.seen: dict[tuple[str, int], tuple[Any, dict[str, int]]] = {}
        self.unclear: dict[tuple[str, int], str] = {}
        self.faults: list[str] = []

    def unreached(self) -> list[tuple[str, int, str]]:
        return [
            (name, c.line, c.text)
            for name, comments in self.comments.items()
            for c in comments.values()
            if (name, c.line) not in self.seen
        ]

    def done(
        self, c: Comment, target: str, value: Any, frame: Any, letters: Any
    ) -> None:
        name = frame.f_code.co_filename
        if fault := _fault(c, value, letters, frame.f_locals):
            self.faults.append(f"{name}:{c.line}: {fault}")
        elif alike := _alike(letters):
            self.unclear[name, c.line] = alike
        else:
            self.seen[name, c.line] = tuple(value.shape), dict(letters)


def _fault(
    c: Comment, value: Any, letters: dict[str, int], variables: dict[str, Any]
) -> str:
    if not hasattr(value, "shape"):  # one of several targets, say
        return f"{c.text}, but a {type(value).__name__} has no shape"
    return _compared(c, value.shape, letters, variables)


def _compared(
    c: Comment, shape: Any, letters: dict[str, int], variables: dict[str, Any]
) -> str:
    """What is wrong, if anything. A letter that is new gets its size."""
    dims, sizes, wrong = (
        c.dims,
        shape,
        f"{c.text}, but the shape is {(*shape,)}",
    )
    if dims and ast.unparse(dims[0]) == "...":  # any axes before these
        dims = dims[1:]
        sizes = shape[max(0, len(shape) - len(dims)) :]
    if len(sizes) != len(dims):
        return wrong
    for name in c.letters:
        if isinstance(variables.get(name), int):
            letters[name] = variables[name]
    for dim, size in zip(dims, sizes, strict=True):
        if isinstance(dim, ast.Name):
            letters.setdefault(dim.id, size)
        try:
            if eval(ast.unparse(dim), {}, letters) != size:
                return wrong
        except NameError as error:
            return f"{c.text}: {error}"
    return ""


def _alike(letters: dict[str, int]) -> str:
    """Letters of one size, of which a swap would go unseen."""
    sizes = {k: v for k, v in letters.items() if v != 1 and k[0].isupper()}
    all_ = [*sizes.values()]
    return ", ".join(
        f"{k} = {v}" for k, v in sizes.items() if all_.count(v) > 1
    )
