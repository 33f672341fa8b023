"""One file for one model: `attention.py` without what its records decide."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from attnref.models.record import Record, families, records_of

SOURCE = Path(__file__).with_name("attention.py")
UNKNOWN = object()


class Fold:
    """Source text, without the branches that constant fields of `r` decide."""

    def __init__(
        self, source: str, constant: Mapping[str, Any], true: Sequence[str] = ()
    ) -> None:
        self.lines = source.splitlines()
        self.constant = constant
        self.true = true  # fields that differ, and are true in all layers

    def test(self, node: ast.expr) -> Any:
        """Whether an expression is true, or UNKNOWN."""
        if isinstance(node, ast.Attribute) and node.attr in self.true:
            return True
        return self.value(node)

    def value(self, node: ast.expr) -> Any:
        """What an expression is, if it is decided; else UNKNOWN."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Attribute(ast.Name("r"), name):
                return self.constant.get(name, UNKNOWN)
            case ast.BoolOp(op, values):
                found = [self.test(v) for v in values]
                stop = isinstance(op, ast.Or)
                for v in found:
                    if v is not UNKNOWN and bool(v) == stop:
                        return v
                return UNKNOWN if UNKNOWN in found else found[-1]
            case ast.UnaryOp(ast.Not(), inner):
                v = self.test(inner)
                return UNKNOWN if v is UNKNOWN else not v
            case ast.Tuple(items):
                found = [self.value(v) for v in items]
                return UNKNOWN if UNKNOWN in found else tuple(found)
            case ast.Compare(left, [op], [right]):
                a, b = self.value(left), self.value(right)
                if a is UNKNOWN or b is UNKNOWN:
                    return UNKNOWN
                return {
                    ast.Eq: lambda: a == b,
                    ast.NotEq: lambda: a != b,
                    ast.Lt: lambda: a < b,
                    ast.Is: lambda: a is b,
                    ast.IsNot: lambda: a is not b,
                    ast.In: lambda: a in b,
                    ast.NotIn: lambda: a not in b,
                }[type(op)]()
        return UNKNOWN

    def text(self, node: ast.AST, indent: int) -> list[str]:
        """The lines of a statement, its fields of `r` replaced."""
        first, last = node.lineno - 1, node.end_lineno
        lines = self.lines[first:last]
        for at, end, new in sorted(self.changes(node), reverse=True):
            (row, col), (end_row, end_col) = at, end
            row, end_row = row - 1 - first, end_row - 1 - first
            tail = lines[end_row].encode()[end_col:].decode()
            lines[row : end_row + 1] = [lines[row][:col] + new + tail]
        return [line[indent:] if line.strip() else "" for line in lines]

    def changes(self, node: ast.AST) -> Iterator[tuple[Any, Any, str]]:
        at = node.lineno, node.col_offset
        end = node.end_lineno, node.end_col_offset
        if isinstance(node, ast.IfExp):
            v = self.test(node.test)
            if v is not UNKNOWN:
                taken = node.body if v else node.orelse
                yield at, end, self.expression(taken)
                return
        if isinstance(node, ast.Attribute):
            v = self.value(node)
            if v is not UNKNOWN:
                yield at, end, literal(v)
                return
        if isinstance(node, ast.BoolOp):
            neutral = isinstance(node.op, ast.And)
            left = [
                v
                for v in node.values
                if self.test(v) is UNKNOWN or bool(self.test(v)) != neutral
            ]
            if 0 < len(left) < len(node.values):
                word = " or " if isinstance(node.op, ast.Or) else " and "
                yield at, end, word.join(map(self.expression, left))
                return
        for child in ast.iter_child_nodes(node):
            if hasattr(child, "lineno"):
                yield from self.changes(child)
            elif isinstance(child, (ast.arguments, ast.keyword)):
                yield from self.changes(child)

    def expression(self, node: ast.expr) -> str:
        lines = self.text(node, 0)
        last = node.end_col_offset - len(self.lines[node.end_lineno - 1])
        lines[-1] = lines[-1][:last] if last else lines[-1]
        return "\n".join(lines)[node.col_offset :]

    def body(self, nodes: Sequence[ast.stmt], start: int, indent: int) -> list[str]:
        """The lines of statements, with the comments and blanks before each."""
        out: list[str] = []
        for node in nodes:
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            before = self.lines[start : first - 1]
            start = node.end_lineno
            new = self.statement(node, indent)
            if new:
                out += [line[indent:] if line.strip() else "" for line in before]
                out += new
                if self.leaves(node):
                    break
        return out

    def leaves(self, node: ast.stmt) -> bool:
        """Whether nothing after a folded statement is reached."""
        if isinstance(node, ast.If):
            v = self.test(node.test)
            branch = node.body if v else node.orelse
            return v is not UNKNOWN and bool(branch) and self.leaves(branch[-1])
        return isinstance(node, (ast.Return, ast.Raise))

    def statement(self, node: ast.stmt, indent: int) -> list[str]:
        if isinstance(node, ast.If):
            return self.branches(node, indent)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.For)):
            head = self.lines[node.lineno - 1 : node.body[0].lineno - 1]
            decorators = getattr(node, "decorator_list", ())
            if decorators:
                head = self.lines[decorators[0].lineno - 1 : node.lineno - 1] + head
            head = [line[indent:] for line in head]
            return head + (self.body(node.body, node.body[0].lineno - 1, indent) or ["pass"])
        return self.text(node, indent)

    def branches(self, node: ast.If, indent: int) -> list[str]:
        out: list[str] = []
        word = "if"
        col = node.col_offset - indent
        while True:
            v = self.test(node.test)
            inner = node.body[0].col_offset - node.col_offset
            start = node.test.end_lineno
            if v is UNKNOWN:
                body = self.body(node.body, start, indent)
                if body:
                    out += [f"{' ' * col}{word} {self.expression(node.test)}:"]
                    out += body
                    word = "elif"
            elif v:
                if not out:
                    return self.body(node.body, start, indent + inner)
                return out + [f"{' ' * col}else:"] + self.body(node.body, start, indent)
            match node.orelse:
                case [ast.If() as inside] if inside.col_offset == node.col_offset:
                    node = inside
                case []:
                    return out
                case rest:
                    line = rest[0].lineno - 1
                    while "else:" not in self.lines[line]:
                        line -= 1
                    if not out:
                        return self.body(rest, line + 1, indent + inner)
                    body = self.body(rest, line + 1, indent)
                    return out + [f"{' ' * col}else:"] + body if body else out


def literal(value: Any) -> str:
    """A constant as one would write it."""
    if isinstance(value, float):
        for power in (-0.5, 0.5):
            n = round(value ** (1 / power)) if value > 0 else 0
            if 1 < n < 10**6 and n**power == value and value % 1:
                return f"{n}**{power}"
        if value >= 1 and value == int(value) and value < 1e16:
            return f"{value:.1f}"
    return repr(value)


def edited(text: str, changes: Sequence[tuple[int, int, str]]) -> str:
    for start, end, new in sorted(set(changes), reverse=True):
        text = text[:start] + new + text[end:]
    return text


class Text:
    """Source text with its syntax tree."""

    def __init__(self, text: str) -> None:
        self.text, self.tree = text, ast.parse(text)
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: Any) -> tuple[int, int]:
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def lines(self, node: Any) -> tuple[int, int]:
        """Of whole lines, with the comments that end them.

        A statement that stands alone under an `if` takes it along.
        """
        for above in ast.walk(self.tree):
            if isinstance(above, ast.If) and above.body == [node]:
                return self.lines(above)
        return self.starts[node.lineno - 1], self.starts[node.end_lineno]

    def without(
        self, items: Sequence[Any], gone: Sequence[int]
    ) -> Iterator[tuple[int, int, str]]:
        """A list without some of its items."""
        kept = [n for n in range(len(items)) if n not in gone]
        texts = [self.text[slice(*self.span(items[n]))] for n in kept]
        start, end = self.span(items[0])[0], self.span(items[-1])[1]
        yield start, end, ", ".join(texts)


def used(node: ast.AST) -> set[str]:
    """Names that are read below a node."""
    return {
        n.id
        for n in ast.walk(node)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }


def cleaned(source: str) -> str:
    """Without names that nothing reads any more."""
    while True:
        text = Text(source)
        changes = [*unread(text)]
        if not changes:
            return source
        source = edited(source, changes)


def unread(text: Text) -> Iterator[tuple[int, int, str]]:
    tree = text.tree
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    for f in functions:  # r = self.r, and tuples of sizes
        read = used(f)
        for node in ast.walk(f):
            match node:
                case ast.Assign([ast.Name(name)]) if name not in read:
                    yield *text.lines(node), ""
                case ast.Assign([ast.Tuple(names)], ast.Tuple(values)):
                    gone = [
                        n
                        for n, name in enumerate(names)
                        if isinstance(name, ast.Name) and name.id not in read
                    ]
                    if len(gone) == len(names):
                        yield *text.lines(node), ""
                    elif gone and len(gone) == len(names) - 1:
                        (kept,) = {*range(len(names))} - {*gone}
                        yield *text.span(node), (
                            f"{names[kept].id} = "
                            + text.text[slice(*text.span(values[kept]))]
                        )
                    elif gone:
                        yield from text.without(names, gone)
                        yield from text.without(values, gone)
                case ast.Assign([ast.Attribute(ast.Name("self"), "r")]):
                    (owner,) = (
                        c
                        for c in ast.walk(tree)
                        if isinstance(c, ast.ClassDef) and f in c.body
                    )
                    if not any(
                        isinstance(n, ast.Attribute)
                        and n.attr == "r"
                        and isinstance(n.ctx, ast.Load)
                        for n in ast.walk(owner)
                    ):
                        yield *text.lines(node), ""
    loaded = {
        n.attr
        for n in ast.walk(tree)
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)
    }
    for node in ast.walk(tree):  # self.seen: ... = ()
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            if node.target.attr not in loaded:
                yield *text.lines(node), ""
                return
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    for f in functions:  # parameters
        owner = next(
            (c for c in tree.body if isinstance(c, ast.ClassDef) and f in c.body),
            None,
        )
        name = f.name
        if name == "__init__":
            name = owner.name
        if name in ("forward", "Attention", "cache"):
            continue
        args = f.args.args
        read = used(f)
        gone = [n for n, a in enumerate(args) if a.arg not in read and a.arg != "self"]
        if not gone:
            continue
        if f.args.defaults:
            yield text.span(args[-1])[0] - 2, text.span(f.args.defaults[-1])[1], ""
            return
        yield from text.without(args, gone)
        shift = 1 if owner else 0
        for call in calls:
            called = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
            if called == name:
                yield from text.without(call.args, [n - shift for n in gone])
        return
    called = {n.func.id for n in calls if isinstance(n.func, ast.Name)}
    for node in ast.walk(tree):  # KVCache | WindowCache
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            for gone, kept in (node.left, node.right), (node.right, node.left):
                if isinstance(gone, ast.Name) and gone.id.endswith("Cache"):
                    if gone.id not in called:
                        kept = text.text[slice(*text.span(kept))]
                        yield *text.span(node), kept
                        return
    for f in functions:  # x = ...; return x
        for first, last in zip(f.body, f.body[1:], strict=False):
            match first, last:
                case ast.Assign([ast.Name(a)]), ast.Return(ast.Name(b)) if a == b:
                    start = text.span(first)[0]
                    yield start, text.span(first.value)[0], "return "
                    yield *text.lines(last), ""
                    return
        for node in f.body:  # Dv = D
            match node:
                case ast.Assign([ast.Name(a)], ast.Name(b)) if a.isalnum() and a[0].isupper():
                    yield *text.lines(node), ""
                    for n in ast.walk(f):
                        if isinstance(n, ast.Name) and n.id == a and n is not node.targets[0]:
                            yield *text.span(n), b
                    return
    names = used(tree) | {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name not in names:
            if node.name != "Attention":
                yield *text.lines(node), ""
                return
        if isinstance(node, ast.Import) and not {a.asname or a.name.split(".")[0] for a in node.names} & names:
            yield *text.lines(node), ""
            return
        if isinstance(node, ast.ImportFrom):
            gone = [n for n, a in enumerate(node.names) if (a.asname or a.name) not in names]
            if len(gone) == len(node.names):
                yield *text.lines(node), ""
                return


def file_of(config: Any) -> str:
    """The attention of one model as a file of its own, after its config."""
    return file_from(records_of(config))


def file_from(records: Mapping[int, Record]) -> str:
    """The same from the records of its layers."""
    every = [*records.values()]
    first = every[0]
    values = {
        f.name: [getattr(r, f.name) for r in every]
        for f in fields(Record)
        if f.name != "kind"
    }
    varying = {n: v for n, v in values.items() if len(set(v)) > 1}
    constant = {n: v[0] for n, v in values.items() if n not in varying}
    true = [name for name, found in varying.items() if all(found)]
    source = SOURCE.read_text("utf-8").split('"""', 2)[2]
    fold = Fold(source, constant, true)
    source = "\n".join(fold.body(ast.parse(source).body, 0, 0)) + "\n"
    source = source.replace("from attnref.models.record import Record\n", "")
    source, names = _by_layer(cleaned(source), varying)
    for ours, theirs in families()[first.family].names.items():
        source = re.sub(rf"\b{ours}\b", theirs, source)
    source = re.sub(r"\n{4,}", "\n\n\n", source.strip())
    if names:
        layers = range(max(records) + 1)
        tables = "".join(
            f"{name.upper()} = "
            + repeated([getattr(records.get(n), name, None) for n in layers])
            + "\n"
            for name in names
        )
        head, tail = source.split("\n\n\nclass Attention(", 1)
        source = f"{head}\n\n\n# Of each layer.\n{tables}\n\nclass Attention({tail}"
    return header(first, [*records]) + source + "\n"


def _by_layer(
    source: str, varying: Mapping[str, list[Any]]
) -> tuple[str, list[str]]:
    """Fields in which the layers differ become attributes of the module."""
    read = set(re.findall(r"\br\.(\w+)", source))
    kept = [name for name in varying if name in read]
    head, tail = source.split("class Attention(", 1)
    tail = re.sub(r" +(r = self\.r|self\.r = r)\n", "", tail)
    tail = re.sub(r"\br\.(?=\w)", "self.", tail)
    tail = re.sub(r"\((\w+)?\br\b(?=[,)])", r"(self", tail)
    first = "".join(f"        self.{n} = {n.upper()}[layer]\n" for n in kept)
    start = "        super().__init__()\n"
    tail = re.sub(r"def __init__\(.*?\)", "def __init__(self, layer: int = 0)", tail, count=1)
    tail = tail.replace(start, start + first, 1)
    head = head.replace("r: Record", 'r: "Attention"')
    return head + "class Attention(" + tail, kept


def repeated(values: Sequence[Any]) -> str:
    """A list, with what repeats in it written once."""
    runs: list[tuple[Any, int]] = []
    for v in values:
        if runs and runs[-1][0] == v:
            runs[-1] = v, runs[-1][1] + 1
        else:
            runs.append((v, 1))

    def joined(part: Sequence[tuple[Any, int]]) -> str:
        texts = [(literal(v) if n == 1 else f"{n} * [{literal(v)}]") for v, n in part]
        out: list[str] = []
        for text, (_, n) in zip(texts, part, strict=True):
            if n == 1 and out and out[-1].startswith("["):
                out[-1] = f"{out[-1][:-1]}, {text}]"
            else:
                out.append(f"[{text}]" if n == 1 else text)
        return " + ".join(out)

    for period in range(1, len(runs) // 2 + 1):
        times = len(runs) // period
        if runs == (runs[:period] * (times + 1))[: len(runs)]:
            text = joined(runs[:period])
            text = f"{times} * ({text})" if " " in text.strip("[]") and not text.startswith("[") or "+" in text else f"{times} * {text}"
            rest = runs[times * period :]
            return f"{text} + {joined(rest)}" if rest else text
    return joined(runs)


def header(r: Record, layers: Sequence[int]) -> str:
    """How the file is used, as its docstring."""
    n = layers[0]
    return f'''"""Self-attention of a model of the family {r.family}, with PyTorch alone.

layer = Attention({n})  # `weights` is the state_dict of the whole model
name = "model.layers.{n}.self_attn."
own = {{k.removeprefix(name): w for k, w in weights.items() if name in k}}
layer.load_state_dict(own)
cache = layer.cache(max_len=4096)
y = layer(x, cache=cache)  # x (B, T, E): the prompt, then token by token
"""

'''
