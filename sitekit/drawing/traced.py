"""What a plain form computes while it runs: its variables, the shape of each,
and of which others each is computed.

The file runs with a probe behind each assignment. What a variable is computed
of is found by experiment: of the names in its statement, those which, made
other tensors, make it another one too.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from runpy import run_path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnref.check.shapes import comments
from sitekit import ROOT
from sitekit.markdown import source

PLAIN = ROOT / "attnref/plain"
CACHE = str(PLAIN / "kv_cache.py")  # of those without one in their file
# What a picture shows as one step, though the file says how it is done.
WHOLE = ("__init__", "append", "rope", "split")
# The operations that it names; others move elements or are arithmetic.
STEPS = {
    **{name: name for name in ("cat", "exp", "softmax", "rope")},
    **{"cache.append": "cache", "masked_fill": "mask", "maximum": "max"},
    **{"self.split": "split", "sum": "sum", "amax": "max"},
    **{"scaled_dot_product_attention": "SDPA", "choose": "choose"},
}
MEANINGS = {
    **{"q": "query", "queries": "query", "k": "key", "v": "value"},
    **{"c": "latent", "entry": "latent", "q_rope": "rope", "k_rope": "rope"},
    **{"kv": "latent", "window": "latent", "entries": "latent"},
}
SIZES = {"d_model": "E", "d_context": "C", "n_heads": "H", "n_kv_heads": "K"}
WIDTHS = ("R", "D", "Dn", "Dr", "Dv", "W", "T")
LETTERS = ("B", "S", *"tsHK", *WIDTHS, *"ECNG", "Rq", "Ro")


@dataclass(eq=False)
class Node:
    """A variable. `lines`: of its file; `steps`: how it is made, each with its
    kind; `inputs`: the variables that it is made of; `later`: behind how many
    steps some of them come in."""

    name: str
    lines: list[int]
    letters: str
    shape: tuple[int, ...]
    meaning: str = ""
    steps: list[tuple[str, str]] = field(default_factory=list)
    inputs: list["Node"] = field(default_factory=list)
    later: dict["Node", int] = field(default_factory=dict)
    stored: bool = False  # in the memory of the cache
    again: bool = False  # computed of what is stored, at each call

    @property
    def drawn(self) -> bool:
        """Weights and positions are steps of what they are used for."""
        return self.meaning not in ("weights", "positions")

    @property
    def made_of(self) -> list["Node"]:
        return [node for node in self.inputs if node.drawn]


# The name, the arguments of a layer or a function, and what its call is given.
Call = tuple[str, dict[str, Any], dict[str, Any]]


class Site(NamedTuple):
    """Where a function assigns a name, or gets it (without a value)."""

    function: str
    lines: range
    name: str
    value: ast.expr | None
    loops: int  # around it


class _Probes(ast.NodeTransformer):
    """Behind each assignment, and before each return."""

    def __init__(self, called: str) -> None:
        self.sites: list[Site] = []
        self.called, self.function, self.loops = called, "", 0

    def _probe(self, node: Any, name: str, value: ast.expr | None) -> ast.Call:
        last = node.end_lineno or node.lineno
        lines = range(node.lineno, 1 + (last if value else node.lineno))
        site = Site(self.function, lines, name, value, self.loops)
        self.sites.append(site)
        number = ast.Constant(len(self.sites) - 1)
        given = value if name == "return" else ast.Name(name, ast.Load())
        assert given is not None
        return ast.Call(ast.Name("_probe", ast.Load()), [number, given], [])

    def _saved(self, node: Any, name: str, value: ast.expr | None) -> ast.stmt:
        probe = self._probe(node, name, value)
        return ast.Assign([ast.Name(name, ast.Store())], probe)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.stmt:
        """Of the classes only the one that is drawn."""
        if node.name == self.called:
            self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        if node.name in WHOLE:
            return node
        self.function = node.name
        self.generic_visit(node)
        names = [arg.arg for arg in node.args.args if arg.arg != "self"]
        node.body[:0] = [self._saved(node, name, None) for name in names]
        return node

    def visit_For(self, node: ast.For) -> ast.stmt:
        self.loops += 1
        self.generic_visit(node)
        self.loops -= 1
        return node

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        (target,), value = node.targets, node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = [*zip(target.elts, value.elts, strict=True)]
        names = [
            (name.id, its)
            for part, its in pairs
            for name in ast.walk(part)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        ]
        return [node, *(self._saved(node, *pair) for pair in names)]

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        assert node.value is not None
        node.value = self._probe(node, "return", node.value)
        return node


class Traced(NamedTuple):
    """The variables of a picture in their order, and the letters' sizes."""

    file: str
    nodes: list[Node]
    sizes: dict[str, int]


@torch.no_grad()
def call(
    space: dict[str, Any],
    name: str,
    arguments: dict[str, Any],
    given: dict[str, Any],
    begin: Callable[[], None] = lambda: None,
) -> tuple[Any, Any]:
    """Calls a function, or makes a layer and calls it, with what its cache
    holds before it begins; the layer and the cache."""
    torch.manual_seed(0)
    called, sizes, more = space[name], letters_of(arguments, given), arguments
    if inspect.isclass(called):
        called, more = called(**arguments), {}
    takes = inspect.signature(getattr(called, "forward", called)).parameters
    more = more | {k: v for k, v in given.items() if k in takes}
    if past := given.get("past"):
        if own := space.get("CompressedCache"):
            more["cache"] = own()
        else:
            caches = space if "KVCache" in space else run_path(CACHE)
            more["cache"] = caches["KVCache"](past + sizes["T"])
        called(torch.randn(sizes["B"], past, sizes["E"]), more["cache"])
    shapes = {"x": "BTE", "context": "BSC", "q": "BHTD", "k": "BHSD"}
    axes = {name: [*letters] for name, letters in shapes.items()}
    axes["v"] = [*"BHS", "Dv"]
    for name in axes.keys() & takes.keys():
        more[name] = torch.randn([sizes[letter] for letter in axes[name]])
    if "mask" in takes:
        T, S = sizes["T"], sizes["S"]
        more["mask"] = torch.ones(T, S).tril(S - T).bool()
    begin()
    called(**more)
    return called, more.get("cache")


def _other(value: Tensor) -> Tensor:
    if value.dtype == torch.bool:
        return ~value
    return value + torch.ones_like(value).cumsum(-1).to(value.dtype)


def letters_of(
    arguments: dict[str, Any], given: dict[str, Any]
) -> dict[str, int]:
    """The size of each letter, by the arguments of a layer and of its call."""
    named = {SIZES.get(k, k): n for k, n in arguments.items()}
    sizes = {k: n for k, n in (named | given).items() if len(k) <= 2}
    sizes.pop("f", None)  # RoPE's angles
    sizes = {"S": sizes["T"] + given.get("past", 0)} | sizes
    if "Dn" not in sizes and "E" in sizes:
        sizes.setdefault("D", sizes["E"] // sizes["H"])
    several = [n for k, n in sizes.items() if n != 1 and k != "S"]
    if len(several) > len({*several}):
        raise ValueError(f"{sizes}: a flow needs another size for each letter")
    return {letter: sizes[letter] for letter in LETTERS if letter in sizes}


def _in_letters(shape: tuple[int, ...], sizes: dict[str, int]) -> str:
    """A shape as a comment would say it."""
    known = {1: "1"} | {n: letter for letter, n in [*sizes.items()][::-1]}
    if sizes.get("S") == sizes.get("T", 0):  # no cache: keys are the queries
        known[sizes["S"]] = "T"
    widths = [letter for letter in WIDTHS if letter in sizes]
    for a, b in combinations(widths, 2):
        known.setdefault(sizes[a] + sizes[b], f"{a} + {b}")
    if missing := [n for n in shape if n not in known]:
        raise ValueError(f"no letters have the size {missing[0]}: {sizes}")
    dims = [known[n] for n in shape]
    return f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"


def _inner_first(node: ast.AST) -> Iterator[ast.AST]:
    """Without `x` in `x.shape`."""
    if not (isinstance(node, ast.Attribute) and node.attr == "shape"):
        for child in ast.iter_child_nodes(node):
            yield from _inner_first(child)
        yield node


def _read(value: ast.expr | None) -> Iterator[str]:
    """The names of which a value is made, and not of their sizes alone."""
    for node in _inner_first(value or ast.Constant(None)):
        if isinstance(node, ast.Name):
            yield node.id


def _steps(
    value: ast.expr, called: Any, weights: set[str]
) -> Iterator[tuple[str, str]]:
    """How a value is made, the first step first."""
    for node in _inner_first(value):
        if isinstance(node, ast.Call):
            whole = ast.unparse(node.func)
            name = whole if whole in STEPS else whole.rpartition(".")[2]
            if isinstance(getattr(called, name, None), nn.Module):
                yield "weights", name
            elif name in STEPS:
                yield ("rope" if name == "rope" else "op"), STEPS[name]
        elif isinstance(node, ast.Name) and node.id in weights:
            yield "weights", node.id
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            if not used & weights:
                yield "op", "@"


class _Experiment:
    """Runs code: which site got which tensor, and which other tensors each of
    them changes."""

    def __init__(self, code: Any, sites: list[Site], how: Call):
        self.code, self.sites, self.how = code, sites, how
        with torch.random.fork_rng():
            self.events, self.called, cache = self.run(None)
            others = [self.run(i)[0] for i in range(len(self.events))]
        self.changed = [
            [
                not torch.equal(a, b)
                for (_, a), (_, b) in zip(*both, strict=True)
            ]
            for both in zip([self.events] * len(others), others, strict=True)
        ]
        groups = getattr(cache, "kept", {}).values()
        held = [tensor for tensors in groups for tensor in tensors]
        if hasattr(cache, "stored"):
            held = [cache.stored]
        self.held = {*map(_memory, held)}

    def run(
        self, change: int | None
    ) -> tuple[list[tuple[Site, Tensor]], Any, Any]:
        """The tensor of that number is made another one."""
        events: list[tuple[Site, Tensor]] = []

        def probe(number: int, value: Any) -> Any:
            if isinstance(value, Tensor):
                if len(events) == change:
                    value = _other(value)
                events.append((self.sites[number], value))
            return value

        space = {"__name__": "traced", "_probe": probe}
        exec(self.code, space)
        return events, *call(space, *self.how, begin=events.clear)


def _memory(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _meaning(value: Tensor, site: Site, inputs: list[Node]) -> str:
    if value.dtype == torch.bool:
        return "mask"
    if not value.is_floating_point():
        return "positions"
    made = ast.unparse(site.value or ast.Constant(None))
    alone = all(n.meaning == "weights" for n in inputs)
    if alone and (inputs or ".weight" in made):
        return "weights"
    return MEANINGS.get(site.name, "")


def _nodes(of: _Experiment) -> Iterator[tuple[Site, Node]]:
    """The variables in the order in which they come."""
    scopes: dict[str, dict[str, Node]] = {}
    known: dict[int, Node] = {}  # by identity, as calls hand tensors on
    event: dict[Node, int] = {}
    statement, before = range(0), dict[str, Node]()
    for at, (site, value) in enumerate(of.events):
        scope = scopes.setdefault(site.function, {})
        node = known.get(id(value))
        if node and site.value is None:
            scope[site.name] = node
            continue
        if node and node.name == "return":
            node.name, scope[site.name] = site.name, node
            node.lines += site.lines
            continue
        if site.lines != statement:  # which may assign several
            statement, before = site.lines, dict(scope)
        read = [before[name] for name in _read(site.value) if name in before]
        inputs = [n for n in dict.fromkeys(read) if of.changed[event[n]][at]]
        node = Node(site.name, [*site.lines], "", tuple(value.shape))
        node.inputs, node.meaning = inputs, _meaning(value, site, inputs)
        weights = {n.name for n in read if n.meaning == "weights"}
        if site.value is not None:
            steps = _steps(site.value, of.called, weights)
            node.steps = [*dict.fromkeys(steps)]
        node.stored = _memory(value) in of.held
        there = [n.stored or n.again for n in inputs]
        node.again = not node.stored and bool(there) and all(there)
        scope[site.name] = known[id(value)] = node
        event[node] = at
        yield site, node


def trace(
    file: str,
    name: str,
    arguments: dict[str, Any],
    given: dict[str, Any],
    within: str = "",
) -> Traced:
    """What `name(**arguments)` of a plain form computes; `given` are sizes of
    its inputs, the length of what its cache holds before (`past`), and
    arguments of its call; `within` is one of its methods, if not all is wanted.
    Of a loop it is the last pass."""
    text, probes = source.text_of(PLAIN / f"{file}.py"), _Probes(name)
    tree = ast.fix_missing_locations(probes.visit(ast.parse(text)))
    code, how = compile(tree, file, "exec"), (name, arguments, given)
    sizes = letters_of(arguments, given)
    letters = {
        (c.first, target): c.text
        for c in comments(text).values()
        for target in c.targets or ["return"]
    }
    deepest = max(site.loops for site in probes.sites)
    nodes: list[Node] = []
    part: list[Node] = []
    for site, node in _nodes(_Experiment(code, probes.sites, how)):
        node.letters = letters.get((site.lines[0], site.name), "")
        nodes.append(node)
        if part and deepest and site.lines[0] < part[-1].lines[0]:
            part = []
        if site.function == within or (deepest and site.loops == deepest):
            part.append(node)
    nodes = _shown(nodes, part)
    for node in nodes:
        node.letters = node.letters or _in_letters(node.shape, sizes)
        if eval(node.letters, {}, sizes) != node.shape:
            raise ValueError(f"{node.name} is {node.shape}, not {node.letters}")
    used = {a for n in nodes for a in re.findall("[A-Za-z]+", n.letters)}
    return Traced(file, nodes, {k: n for k, n in sizes.items() if k in used})


def _shown(nodes: list[Node], part: list[Node]) -> list[Node]:
    """Without what is overwritten by what follows at once; or a part of them
    and what it reads."""
    if part:
        read = {n for node in part for n in node.inputs} - {*part}
        for node in read:
            node.inputs, node.steps = [], []
        nodes = [n for n in nodes if n in read] + part
    for node in nodes:
        for old in [n for n in node.inputs if n.name == node.name]:
            alone = [n for n in nodes if old in n.inputs] == [node]
            sizes = torch.Size(old.shape), torch.Size(node.shape)
            moved = not old.letters and sizes[0].numel() == sizes[1].numel()
            if (
                alone
                and old.lines[-1] < node.lines[0]
                and (moved or sizes[0] == sizes[1])
            ):
                both = dict.fromkeys([*old.inputs, *node.inputs])
                new = {*node.inputs} - {*old.inputs, old}
                behind = {n: len(old.steps) + node.later.get(n, 0) for n in new}
                node.later = old.later | behind
                node.inputs = [n for n in both if n is not old]
                node.steps = old.steps + node.steps
                node.lines = old.lines + node.lines
                nodes = [n for n in nodes if n is not old]
    return nodes
