"""One file for one model: `attention.py` without what its records decide."""

import ast
import operator
import re
import textwrap
from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import fields
from itertools import groupby, product
from os import PathLike
from pathlib import Path
from typing import Any

from attnref.released.record import (
    AttentionRecord,
    families,
    fields_of,
    records_of,
)

Change = tuple[int, int, str]  # what takes the place of a part of a text
Layer = Mapping[str, Any]  # the fields of its record
Layers = Sequence[Layer]
SOURCE = Path(__file__).with_name("attention.py")
UNKNOWN = object()
KINDS = "window", "chunk"  # by them tests tell the layers of a model apart
# Two norms in a line that is too long; two `if` with the same test, and with
# opposite ones.
LONG = r"(?m)^(?=.{80})( +)(\S+), (\S+) = (.+), \4$"
TWICE = r"(?m)^(( *)if (?:not )?[\w.]+:\n)((?:\2 .*\n)+)\1"
OTHERWISE = r"(?m)^(( *)if ([\w.]+):\n(?:\2 .*\n)+)\2if not \3:"
COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def file_of(config: Mapping[str, object] | str | PathLike[str]) -> str:
    """The attention of one model as a file of its own, from its config.

    The file needs PyTorch alone. It is `attention.py`, without the branches
    that the records of the layers decide, and with their values written out.

    Examples:
        >>> config = {"model_type": "mistral", "num_hidden_layers": 2}
        >>> config |= {"hidden_size": 64, "num_attention_heads": 8}
        >>> text = file_of(config | {"head_dim": 8, "sliding_window": 16})
        >>> "q_norm" in text, "max_len}" in text, "[:, :, -16:]" in text
        (False, False, True)
    """
    given = fields_of(config)
    return file_from(records_of(given), given)


def file_from(
    records: Mapping[int, AttentionRecord], given: Mapping[str, Any]
) -> str:
    """That of `file_of`, from the records of the layers and the config."""
    every = [*records.values()]
    values = {
        f.name: [getattr(r, f.name) for r in every]
        for f in fields(AttentionRecord)
        if f.name != "kind"
    }
    differ = {n: v for n, v in values.items() if len(set(v)) > 1}
    source = SOURCE.read_text("utf-8").split('"""', 2)[2]
    source = source.replace("\n    in_package = False\n", "")
    reuses = any(r.index_topk and not r.index_own for r in every)
    more = ", chosen=None" if reuses else ""
    source = re.sub(
        r"\(\s+self,\s+x,[^)]+positions=None,\s+\)",
        f"(self, x, *, cache=None, valid=None{more})",
        source,
    )
    if values["v_head_dim"] == values["head_dim"]:
        source = source.replace("r.v_head_dim", "r.head_dim")
    if all(r.scale == r.head_dim**-0.5 and not r.kv_rank for r in every):
        source = source.replace("mask, scale=r.scale,", "mask,")
    layers: list[Layer] = []
    for each in zip(*values.values(), strict=True):
        layer = dict(zip(values, each, strict=True))
        layers += [] if layer in layers else [layer]
    fold = _Fold(source, layers)
    source = _read_only("\n".join(fold.body(fold.tree.body, 0, 0)) + "\n")
    source, names = _by_layer(source, [*differ])
    source = re.sub(TWICE, r"\1\3", source)
    source = re.sub(OTHERWISE, r"\1\2else:", source)
    names_of = dict(families()[every[0].family].names)
    at = names_of.pop("at", "model.layers.{}.self_attn")
    for ours, theirs in names_of.items():
        source = re.sub(rf"\b{ours}\b", theirs, source)
    source = re.sub(LONG, "\\1\\2 = \\4\n\\1\\3 = \\4", source)
    source = re.sub(r"\n{4,}", "\n\n\n", source.strip())
    joined = r"(?m)^( {8}heads = .+\()\n +(.{1,31})\n +\)$"
    source = re.sub(joined, r"\1\2)", source)
    source = _with_factors(source, every[0])
    source = re.sub(r"(?m)^(.{72,})  # RoPE$", r"\1", source)
    source = re.sub(r" : (\d+)\]", r" :\1]", source)
    source = re.sub(r"(\d) :\]", r"\1:]", source)
    source = re.sub(r"!= \((\w+\.\w+)\)", r"!= \1", source)
    if names:
        head, tail = source.split("\n\n\nclass Attention(", 1)
        rows = [records.get(n) for n in range(max(records) + 1)]
        tables = [_table(name, rows) for name in names]
        lines = f"{tables[0]}  # of each layer"
        if names[1:] or len(lines) > 79:
            lines = "\n".join(["# Of each layer.", *tables])
        source = f"{head}\n\n\n{lines}\n\n\nclass Attention({tail}"
    lead = _about(every[0].family, min(records), at, _remarks(given))
    return lead + source + "\n"


def _remarks(given: Mapping[str, Any]) -> str:
    """What the weights or the positions of a model need besides."""
    found = ""
    if given.get("quantization_config"):
        found += "The weights are quantised: dequantise them first.\n"
    for name in ("rope_parameters", "rope_scaling"):
        rope = given.get(name)
        if isinstance(rope, Mapping) and "mrope_section" in rope:
            found += "For text: a token of an image has three positions.\n"
            break
    return f"\n{found}" if found else ""


def _about(family: str, layer: int, at: str, remarks: str) -> str:
    own = "own = {k.split(name)[1]: w for k, w in weights.items() if name in k}"
    if at.startswith("model."):  # there may be a model of images beside it
        own = """\
text = {k.replace("language_model.", ""): w for k, w in weights.items()}
own = {k[len(name):]: w for k, w in text.items() if k.startswith(name)}"""
    return f'''"""Self-attention of a model of the family {family}.

layer = Attention({layer})  # `weights` is the state_dict of the whole model
name = "{at.format(layer)}."
{own}
layer.load_state_dict(own)
cache = layer.cache(max_len=4096)
y = layer(x, cache=cache)  # x (B, T, E): the prompt, then token by token
{remarks}"""

'''


def _by_layer(source: str, differ: Sequence[str]) -> tuple[str, list[str]]:
    """Fields in which the layers differ become attributes of the module."""
    read = set(re.findall(r"\br\.(\w+)", source))
    names = [name for name in differ if name in read]
    head, tail = source.split("class Attention(", 1)
    tail = re.sub(r" +(r = self\.r|self\.r = r)\n", "", tail)
    tail = re.sub(r"\br\.(?=\w)", "self.", tail)
    tail = re.sub(r"\(r\b(?=[,)])", "(self", tail.replace("self.r,", "self,"))
    head = re.sub(r"(?<=[( ])r(?=[,)])", "layer", head)
    head = re.sub(r"\br\.(?=\w)", "layer.", head)
    start = "        super().__init__()\n"
    given = "".join(f"        self.{n} = {n.upper()}[layer]\n" for n in names)
    tail = tail.replace(start, start + given, 1)
    init = "def __init__(self, layer=0)"
    tail = re.sub(r"def __init__\(.*?\)", init, tail, count=1)
    return f"{head}class Attention({tail}", names


def _with_factors(source: str, r: AttentionRecord) -> str:
    """With the many factors of RoPE as constants of their own."""
    head, start, tail = source.partition("\n\n\n")
    for name in ("rope_short", "rope_long"):
        if (value := repr(getattr(r, name))) in tail and len(value) > 60:
            tail = tail.replace(value, name.upper())
            inside = textwrap.indent(textwrap.fill(value[1:-1], 75), "    ")
            head += f"\n\n{name.upper()} = (\n{inside},\n)"
    return head + start + tail


def _table(name: str, layers: Sequence[AttentionRecord | None]) -> str:
    """A field of all layers, with what repeats in it written once."""
    values = [_literal(getattr(r, name, None)) for r in layers]
    texts = [_joined(values)]
    for start, period in product(range(len(values) // 2), range(2, 13)):
        head, tail = values[:start], values[start:]
        once, times = tail[:period], len(tail) // period
        if times > 1 and tail == (once * (times + 1))[: len(tail)]:
            parts = [_joined(head), f"{times} * ({_joined(once)})"]
            parts += [_joined(tail[times * period :])]
            text = " + ".join(filter(None, parts))
            texts.append(re.sub(r"\((\[[^]]*\])\)", r"\1", text))
    return f"{name.upper()} = {min(texts, key=len)}"


def _joined(values: Sequence[str]) -> str:
    runs = [(value, len([*run])) for value, run in groupby(values)]
    text = " + ".join(f"{n} * [{v}]" if n > 1 else f"[{v}]" for v, n in runs)
    for _ in runs:
        text = re.sub(r"(^|\+ )\[([^]]*)\] \+ \[", r"\1[\2, ", text)
    return text


def _literal(value: Any) -> str:
    """A constant as one would write it."""
    if isinstance(value, float) and value > 0:
        n = round(value**-2)
        if n % 8 == 0 and 16 < n < 10**6 and n**-0.5 == value:
            return f"{n}**-0.5"
        short = re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.0e}")
        if not 1e-3 <= value < 1e4 and float(short) == value:
            return short  # 1e6
    return repr(value)


class _Text:
    """Source text with its syntax tree."""

    def __init__(self, text: str) -> None:
        self.text, self.tree = text, ast.parse(text)
        self.lines = text.splitlines()
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: Any) -> tuple[int, int]:
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def of(self, node: Any) -> str:
        start, end = self.span(node)
        return self.text[start:end]


def _edited(text: str, changes: Sequence[Change], offset: int = 0) -> str:
    for start, end, new in sorted(set(changes), reverse=True):
        text = text[: start - offset] + new + text[end - offset :]
    return text


class _Fold(_Text):
    """Text without the branches that are decided, and with what is known:
    whatever is the same for all `layers`, which are fields of `r`."""

    def __init__(self, text: str, layers: Layers) -> None:
        super().__init__(text)
        self.layers = self.every = layers
        self.own: dict[str, ast.expr] = {}
        for node in ast.walk(self.tree):
            match node:
                case ast.Assign(
                    [ast.Attribute(ast.Name("self"), name)],
                    ast.BoolOp() as value,
                ):
                    self.own[name] = value

    def value(self, node: ast.AST) -> Any:
        """What an expression is, if that is decided; else UNKNOWN."""
        return _one([self.value_in(layer, node) for layer in self.layers])

    def truth(self, node: ast.AST) -> Any:
        """Whether an expression counts as true; UNKNOWN if open."""
        return _one(self.truths(node))

    def truths(self, node: ast.AST) -> list[Any]:
        return [self.truth_in(layer, node) for layer in self.layers]

    def value_in(self, layer: Layer, node: ast.AST) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.Attribute(ast.Name("r"), name):
                return layer.get(name, UNKNOWN)
            case ast.Attribute(ast.Name("self"), "in_package"):
                return False
            case ast.Attribute(ast.Name("self"), name) if name in self.own:
                return self.value_in(layer, self.own[name])
            case ast.UnaryOp(ast.Not(), inner):
                value = self.truth_in(layer, inner)
                return value if value is UNKNOWN else not value
            case ast.BoolOp(op, [*parts, last]):
                for part in parts:
                    decided = self.truth_in(layer, part)
                    if decided is UNKNOWN:
                        return UNKNOWN
                    if decided == isinstance(op, ast.Or):
                        return self.value_in(layer, part)
                return self.value_in(layer, last)
            case ast.Compare(left, [ast.Eq()], [right]) if self.of(
                left
            ) == self.of(right):
                return True
            case ast.Compare(left, [op], [right]):
                a, b = (self.value_in(layer, side) for side in (left, right))
                return (
                    UNKNOWN if UNKNOWN in (a, b) else COMPARED[type(op)](a, b)
                )
            case ast.Tuple(parts):
                values = [self.value_in(layer, part) for part in parts]
                return UNKNOWN if UNKNOWN in values else tuple(values)
        return UNKNOWN

    def truth_in(self, layer: Layer, node: ast.AST) -> Any:
        match node:
            case ast.BoolOp(op, parts):
                found = [self.truth_in(layer, part) for part in parts]
                stop = isinstance(op, ast.Or)
                if any(value is stop for value in found):
                    return stop
                return UNKNOWN if UNKNOWN in found else not stop
        value = self.value_in(layer, node)
        return value if value is UNKNOWN else bool(value)

    def tested(self, node: ast.AST) -> str:
        """The text of a test that is open, told by windows where it can be."""
        found = [] if "self." in self.of(node) else self.truths(node)
        for name in (*KINDS, "rope_theta"):
            has = [bool(layer[name]) for layer in self.layers]
            if found == has:
                return f"r.{name}"
            if found == [not value for value in has]:
                return f"not r.{name}"
        return self.written(node)

    def written(self, node: ast.AST) -> str:
        """The text of an expression or a statement, with what is known."""
        return _edited(self.of(node), [*self.changes(node)], self.span(node)[0])

    def changes(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.Attribute(_, name, ast.Load()) if new := self.known(
                node, name
            ):
                yield *self.span(node), new
            case ast.IfExp(test, yes, no) if self.truth(test) is not UNKNOWN:
                taken = yes if self.truth(test) else no
                yield *self.span(node), self.written(taken)
            case ast.IfExp(test, yes, no):
                yield *self.span(test), self.tested(test)
                truths, every = self.truths(test), self.layers
                for part, truth in ((yes, True), (no, False)):
                    self.layers = _where(truths, truth, every)
                    yield from self.changes(part)
                self.layers = every
            case ast.BoolOp(op, parts) if (
                len(left := self.open(op, parts)) == 1
            ):
                yield *self.span(node), self.written(left[0])
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from self.changes(child)

    def known(self, node: ast.AST, name: str) -> str:
        """What is written for a field; nothing if it stays."""
        value = self.value(node)
        if value is not UNKNOWN:
            stays = name in KINDS and not _same(self.every, name)
            return "" if stays else _literal(value)
        if name == "rope_width" and all(
            layer[name] == layer["head_dim"] for layer in self.layers
        ):
            return "r.head_dim"
        near, far = (
            [x for x in self.layers if bool(x["window"]) is of_window]
            for of_window in (True, False)
        )
        if name == "rope_theta" and _same(near, name) and _same(far, name):
            each = (_literal(x[0][name]) for x in (near, far))
            return "({} if r.window else {})".format(*each)
        return ""

    def open(self, op: ast.boolop, parts: Sequence[ast.AST]) -> list[ast.AST]:
        """The parts of `and` or `or` that are not decided or decide nothing."""
        idle = isinstance(op, ast.And)
        return [part for part in parts if self.truth(part) is not idle]

    def body(
        self, nodes: Sequence[ast.stmt], start: int, out: int
    ) -> list[str]:
        """The lines of statements, and of the comments and blanks before each.

        They begin after line `start`; `out` columns are cut from their left.
        """
        found: list[str] = []
        for node in nodes:
            before = self.lines[start : node.lineno - 1]
            start = node.end_lineno or 0
            lines = self.statement(node, out)
            if lines:
                found += [line[out:] for line in before] + lines
                if self.leaves(node):
                    break
        return found

    def leaves(self, node: ast.stmt) -> bool:
        """Whether what follows a statement is never reached."""
        if isinstance(node, ast.If) and self.truth(node.test) is True:
            return isinstance(node.body[-1], ast.Return)
        return False

    def statement(self, node: ast.stmt, out: int) -> list[str]:
        first = node.lineno - 1
        if isinstance(node, ast.If):
            return self.branches(node, out)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.For):
            inside = node.body[0].lineno - 1
            head = [line[out:] for line in self.lines[first:inside]]
            every = self.layers
            if head[0].startswith(("def frequencies", "def rotate")):
                turned = [x for x in every if x["rope_theta"]]
                self.layers = turned or every
            lines = self.body(node.body, inside, out)
            self.layers = every
            return head + lines
        text = " " * node.col_offset + self.written(node)
        left, _, right = text.strip().partition(" = ")
        if left == right:
            return []
        last = self.lines[(node.end_lineno or 0) - 1]
        text += last[node.end_col_offset :]  # the comment behind it
        return [line[out:] for line in text.splitlines()]

    def branches(self, node: ast.If, out: int) -> list[str]:
        """What is left of `if`, `elif` and `else`."""
        found: list[str] = []
        column = " " * (node.col_offset - out)
        deeper = node.body[0].col_offset - node.col_offset
        rest: list[ast.stmt] = [node]
        every = self.layers
        start, test = node.lineno - 1, UNKNOWN
        while rest:
            match rest:
                case [ast.If() as node] if self.is_chained(node, start, found):
                    test, body = self.truth(node.test), node.body
                    start, rest = node.test.end_lineno or 0, node.orelse
                case _:
                    test, body, rest = True, rest, []
                    start += next(
                        n
                        for n, line in enumerate(self.lines[start:], 1)
                        if line.strip() == "else:"
                    )
            if test is UNKNOWN:
                word, tested = "elif" if found else "if", self.tested(node.test)
                truths, layers = self.truths(node.test), self.layers
                self.layers = _where(truths, True, layers)
                lines = self.body(body, start, out)
                self.layers = _where(truths, False, layers)
                found += [f"{column}{word} {tested}:", *lines]
            elif test:
                deep = out if found else out + deeper
                lines = self.body(body, start, deep)
                if found and lines:
                    lines = [*found, f"{column}else:", *lines]
                found, rest = lines or found, []
            start = body[-1].end_lineno or 0
        self.layers = every
        return found

    def is_chained(
        self, node: ast.If, start: int, found: Sequence[str]
    ) -> bool:
        """Whether this `if` is the first of a chain, or an `elif` in it."""
        line = self.lines[node.lineno - 1]
        return line.strip().startswith("elif") or node.lineno - 1 == start


def _same(layers: Layers, name: str) -> bool:
    """Whether a field is the same in all of some layers."""
    return len({layer[name] for layer in layers}) == 1


def _one(values: Sequence[Any]) -> Any:
    same = all(value == values[0] for value in values)
    return values[0] if same else UNKNOWN


def _where(truths: Sequence[Any], truth: bool, layers: Layers) -> Layers:
    """The layers in which a test is this, or may be."""
    pairs = zip(truths, layers, strict=True)
    return [layer for found, layer in pairs if found in (truth, UNKNOWN)]


def _read_only(source: str) -> str:
    """Without names, parameters and definitions that nothing reads."""
    while True:
        taken: list[Change] = []
        for changes in _unread(_Text(source)):
            if not any(_overlap(a, b) for a in taken for b in changes):
                taken += changes
        if not taken:
            return source
        source = _edited(source, taken)


def _overlap(a: Change, b: Change) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _unread(text: _Text) -> Iterator[list[Change]]:
    """Each time, what can leave at once."""
    nodes = [*ast.walk(text.tree)]
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef)]
    yield [change for f in functions for change in _locals(text, f)]
    gone: list[Change] = []
    for owner in text.tree.body:  # self.max_len = max_len
        inside = [n for n in ast.walk(owner) if isinstance(owner, ast.ClassDef)]
        reads = {
            n.attr
            for n in inside
            if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)
        }
        for node in inside:
            match node:
                case ast.Assign([ast.Attribute(ast.Name("self"), name)]):
                    gone += [] if name in reads else [_line(text, node)]
                case ast.Assign([ast.Tuple(to)], ast.Tuple(values)):
                    of_self = [
                        n.attr for n in to if isinstance(n, ast.Attribute)
                    ]
                    if len(of_self) == len(to):
                        kept = [n for n, a in enumerate(of_self) if a in reads]
                        gone += _fewer(text, node, to, values, kept)
    yield gone
    for function in functions:
        yield [*_parameters(text, function, nodes)]
    unread: list[Change] = []
    loaded = _reads(text.tree)
    for node in text.tree.body:
        match node:
            case ast.ClassDef(name) | ast.FunctionDef(name):
                if name not in loaded and name != "Attention":
                    unread.append(_line(text, node))
            case ast.Import([ast.alias(name, alias)]):
                if (alias or name) not in loaded:
                    unread.append(_line(text, node))
    yield unread
    for function in functions:
        yield from _once(text, function)
    for node in text.tree.body:
        match node:
            case ast.FunctionDef(body=[*_, ast.Return(value)]) if value:
                yield from _in_place(text, node, value, nodes)


def _class_of(text: _Text, node: ast.AST) -> ast.AST:
    return next(c for c in text.tree.body if node in ast.walk(c))


def _line(text: _Text, node: Any) -> Change:
    """Whole lines; a statement alone under an `if` takes it along."""
    for above in ast.walk(text.tree):
        if isinstance(above, ast.If) and above.body == [node]:
            return _line(text, above)
    return text.starts[node.lineno - 1], text.starts[node.end_lineno], ""


def _reads(node: ast.AST) -> set[str]:
    return {
        n.id
        for n in ast.walk(node)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }


def _locals(text: _Text, function: ast.FunctionDef) -> Iterator[Change]:
    """Names of a function that it does not read, or only once, to return."""
    reads = _reads(function)
    for node in ast.walk(function):
        match node:
            case ast.Assign([ast.Name(name)]) if name not in reads:
                yield _line(text, node)
            case ast.Assign([ast.Tuple(names)], ast.Tuple(values)):
                kept = [
                    n
                    for n, name in enumerate(names)
                    if not isinstance(name, ast.Name) or name.id in reads
                ]
                yield from _fewer(text, node, names, values, kept)
    for first, last in zip(function.body, function.body[1:], strict=False):
        match first, last:
            case ast.Assign([ast.Name(a)], ast.Name(b)), _ if a == "Dv":
                yield _line(text, first)
                for n in ast.walk(function):
                    match n:
                        case ast.Name(id="Dv", ctx=ast.Load()):
                            yield *text.span(n), b


def _fewer(
    text: _Text,
    node: ast.stmt,
    names: Sequence[ast.expr],
    values: Sequence[ast.expr],
    kept: Sequence[int],
) -> list[Change]:
    """`a, b = c, d` without what is not read."""
    if not kept:
        return [_line(text, node)]
    if len(kept) == len(names):
        return []
    left = ", ".join(text.of(names[n]) for n in kept)
    right = ", ".join(text.of(values[n]) for n in kept)
    return [(*text.span(node), f"{left} = {right}")]


def _once(text: _Text, function: ast.FunctionDef) -> Iterator[list[Change]]:
    """What is named only for the next statement that touches it: put there."""
    names = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
    read: dict[str, list[int]] = {n.id: [] for n in names}
    for n in names:
        read[n.id] += [n.lineno] if isinstance(n.ctx, ast.Load) else []
    bodies = [function.body]
    for branch in ast.walk(function):
        if isinstance(branch, ast.If):
            bodies += [branch.body, branch.orelse]
    for body, node in [(each, node) for each in bodies for node in each]:
        match node:
            case ast.Assign([ast.Name("width" | "Dv" as name)], ast.Constant()):
                spans = [text.span(n) for n in names if n.id == name]
                number = text.of(node.value)
                yield [_line(text, node), *((*at, number) for at in spans[1:])]
            case ast.Assign([ast.Name(name)], value):
                after = body[body.index(node) + 1 :]
                then = next((n for n in after if name in _names(n)), None)
                if then is None:
                    continue
                passed = after[: after.index(then)]
                last = isinstance(then, ast.Return) or name in _set(then)
                end = then.end_lineno or 0
                if not last and (passed or any(n > end for n in read[name])):
                    continue
                changed = [n for each in passed for n in _set(each)]
                if not any(n in changed for n in _reads(value)):
                    yield _put(text, node, value, name, then)


def _put(
    text: _Text, first: ast.stmt, value: ast.expr, name: str, then: ast.stmt
) -> list[Change]:
    """`value` in the place of `name`, if it is read there once and fits."""
    found = [
        (above, n)
        for above in ast.walk(then)
        for n in ast.iter_child_nodes(above)
        if isinstance(n, ast.Name) and n.id == name
        if isinstance(n.ctx, ast.Load)
    ]
    one_line = first.lineno == first.end_lineno, then.lineno == then.end_lineno
    if len(found) != 1 or not all(one_line) or "cache" in _reads(value):
        return []
    [(above, place)] = found
    new = text.of(value)
    alone = (ast.Call, ast.Attribute, ast.Subscript, ast.Name, ast.Constant)
    if not isinstance(value, alone):
        free = isinstance(above, ast.Assign | ast.Return)
        if not free and not (
            isinstance(above, ast.Call) and not isinstance(value, ast.Tuple)
        ):
            new = f"({new})"
    start, end = text.span(then)
    new = _edited(text.of(then), [(*text.span(place), new)], start)
    remark, own = _remark(text, first), _remark(text, then)
    if remark.startswith("  # ("):  # the shape of what has no name any more
        remark = ""
    if (remark and own) or then.col_offset + len(new + remark + own) > 79:
        return []
    return [_line(text, first), (start, end, new + remark)]


def _remark(text: _Text, node: ast.stmt) -> str:
    return text.lines[(node.end_lineno or 0) - 1][node.end_col_offset :]


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _set(node: ast.AST) -> set[str]:
    return {
        n.id
        for n in ast.walk(node)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _in_place(
    text: _Text,
    function: ast.FunctionDef,
    value: ast.expr,
    nodes: Sequence[ast.AST],
) -> Iterator[list[Change]]:
    """A function that only returns: what it returns, where it is called."""
    body = [n for n in function.body if not isinstance(n, ast.Expr)]
    names = [arg.arg for arg in function.args.args]
    if len(body) > 1 or function.args.defaults:
        return
    for node in nodes:
        match node:
            case ast.Call(ast.Name(called), given, []) if (
                called == function.name
            ):
                start = text.span(value)[0]
                changes = [
                    (*text.span(n), text.of(given[names.index(n.id)]))
                    for n in ast.walk(value)
                    if isinstance(n, ast.Name) and n.id in names
                ]
                yield [
                    (*text.span(node), _edited(text.of(value), changes, start))
                ]


def _parameters(
    text: _Text, function: ast.FunctionDef, nodes: Sequence[ast.AST]
) -> Iterator[Change]:
    """Parameters that a function does not read, and what calls give them."""
    args, name = function.args.args, function.name
    if not args:
        return
    method = args[0].arg == "self"
    if name == "__init__":
        owner = _class_of(text, function)
        name = owner.name if isinstance(owner, ast.ClassDef) else ""
    reads = _reads(function) | {"self"}
    kept = [n for n, arg in enumerate(args) if arg.arg in reads]
    if len(kept) == len(args) or name in ("Attention", "forward", "cache"):
        return
    ends = [text.span(arg)[1] for arg in args]
    defaults = function.args.defaults
    for n, default in enumerate(defaults, len(args) - len(defaults)):
        ends[n] = text.span(default)[1]
    spans = [(text.span(args[n])[0], ends[n]) for n in kept]
    listed = ", ".join(text.text[start:end] for start, end in spans)
    yield text.span(args[0])[0], ends[-1], listed
    for node in nodes:
        match node:
            case ast.Call(ast.Name(called), given, named) if (
                called == name and given
            ):
                at = [n - method for n in kept if n >= method]
                new = ", ".join(text.of(given[n]) for n in at if n < len(given))
                end = text.span(given[-1])[1]
                if not new and named:  # without the comma between them
                    end = text.span(named[0])[0]
                yield text.span(given[0])[0], end, new
