"""Runs code and compares its shape comments with the values.

A comment `# (B, H, T, D)` at the end of a statement gives the shape of what
that statement assigns or returns; text after `;` is free, and `# fmt: skip` may
follow. Letters are given with the run, or bound once a call by a local variable
of that name or by the first shape that uses them; `# (..., T, D)` leaves the
first axes open. Where two letters have one size, a swap would go unseen: such a
run does not count. A comment within a generator, a comprehension or a lambda is
refused.
"""
# pyright: reportAttributeAccessIssue=false

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from typing import Any, NamedTuple, Self

SHAPE = re.compile(r"# (\((?:[^()]|\([^()]*\))*\))(?:;.*|  # fmt: skip)?$")
# What looks like one but is not would pass unchecked.
ALMOST = re.compile(r"#\s*[(\[]\s*(?:[A-Z][a-z]?|\d+)\s*[,)\]]")
Statement = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return
# Expressions that run in a frame of their own, where no target is assigned.
Inner = (
    ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp | ast.Lambda
)


class Comment(NamedTuple):
    line: int
    first: int  # line of the statement
    last: int  # line of the statement
    dims: list[ast.expr]
    targets: list[str]  # empty where the statement returns
    text: str

    @property
    def letters(self) -> list[str]:
        nodes = ast.walk(ast.Tuple(self.dims))
        return [node.id for node in nodes if isinstance(node, ast.Name)]


def comments(source: str, file: str = "") -> dict[int, Comment]:
    """Shape comments by the line they stand on; errors name the `file`."""
    nodes = [*ast.walk(ast.parse(source))]
    statements = [n for n in nodes if isinstance(n, Statement)]
    expressions = [n for n in nodes if isinstance(n, Inner)]
    result = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        code = token.line.split("#")[0].strip()
        if token.type != tokenize.COMMENT or not code:
            continue
        line, match = token.start[0], SHAPE.match(token.string)
        place = f"{file}:{line}" if file else f"line {line}"
        if not match and ALMOST.match(token.string):
            raise ValueError(f"{place}: {token.string} is no shape comment")
        if not match:
            continue
        around = [n for n in statements if n.lineno <= line <= _last(n)]
        if not around:
            raise ValueError(f"{place}: {token.string} belongs to nothing")
        node = min(around, key=lambda n: _last(n) - n.lineno)
        if line < _last(node) and any(
            n.lineno <= line <= _last(n) for n in expressions
        ):
            raise ValueError(
                f"{place}: {token.string} is within a generator, comprehension "
                "or lambda; write it at the end of the statement, for what "
                f"this assigns or returns (line {_last(node)})"
            )
        shape = ast.parse(match[1], mode="eval").body
        dims = shape.elts if isinstance(shape, ast.Tuple) else [shape]
        result[line] = Comment(
            line, node.lineno, _last(node), dims, _targets(node), match[1]
        )
    return result


def _last(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno


def _targets(node: Statement) -> list[str]:
    if isinstance(node, ast.Return):
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    flat = [e for t in targets for e in (t.elts if hasattr(t, "elts") else [t])]
    return [ast.unparse(t) for t in flat]


class Watch:
    """Calls `done` with each value that has a shape comment, once its statement
    has run; `sources` are the watched files, and code runs in `with watch:`."""

    def __init__(
        self, sources: dict[str, str], letters: dict[str, int] | None = None
    ):
        self.letters = letters or {}  # known before any call
        self.comments = {
            name: comments(source, name) for name, source in sources.items()
        }

    def __enter__(self) -> Self:
        self.previous = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.previous)

    def done(
        self, c: Comment, target: str, value: Any, frame: Any, letters: Any
    ) -> None:
        """A value is there. `letters` are the sizes known in this call; new
        ones may be added."""
        raise NotImplementedError

    def _call(self, frame: Any, event: str, arg: Any) -> Any:
        comments = self.comments.get(frame.f_code.co_filename)
        # A generator or lambda is a frame of its own and assigns no target.
        name = frame.f_code.co_name
        if not comments or (name.startswith("<") and name != "<module>"):
            return None
        letters = dict(self.letters)
        pending: list[Comment] = []

        def local(frame: Any, event: str, arg: Any) -> Any:
            line = frame.f_lineno
            if event == "exception":  # the statement failed
                pending[:] = [c for c in pending if not c.first <= line]
            # A statement has run when the frame moves on to another line.
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
                for c in comments.values():
                    if c.first <= line <= c.last and c not in pending:
                        pending.append(c)
            return local

        return local


class Tracer(Watch):
    """Compares each shape comment with its value."""

    def __init__(
        self, sources: dict[str, str], letters: dict[str, int] | None = None
    ):
        super().__init__(sources, letters)
        # By file and line: the value's shape, and the size of each letter.
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
        elif pairs := _equal_letters(letters):
            self.unclear[name, c.line] = pairs
        else:
            self.seen[name, c.line] = _shape(value), dict(letters)


def _fault(
    c: Comment, value: Any, letters: dict[str, int], variables: dict[str, Any]
) -> str:
    if not hasattr(value, "shape"):  # one of several targets, say
        return f"{c.text}, but a {type(value).__name__} has no shape"
    return _compare(c, _shape(value), letters, variables)


def _shape(value: Any) -> tuple[int, ...]:
    """In Triton's interpreter a size is a constexpr; its number counts."""
    return tuple(getattr(size, "value", size) for size in value.shape)


def _compare(
    c: Comment, shape: Any, letters: dict[str, int], variables: dict[str, Any]
) -> str:
    """Say how the shape differs, "" if it does not. A new letter is bound."""
    wrong = f"{c.text}, but the shape is {(*shape,)}"
    dims, sizes = c.dims, shape
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


def _equal_letters(letters: dict[str, int]) -> str:
    """The letters of one size: a swap of two of them would go unseen."""
    sizes = {k: v for k, v in letters.items() if v != 1 and k[0].isupper()}
    counts = Counter(sizes.values())
    return ", ".join(f"{k} = {v}" for k, v in sizes.items() if counts[v] > 1)
