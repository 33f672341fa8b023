"""What a plain form computes while it runs: its variables, the shape of each,
and the variables that each is computed from.

The file runs with a probe behind each assignment. An experiment finds what a
variable is computed from: each tensor that its statement names is changed in
turn, and if the variable changes too, that tensor is one of its inputs.
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

from attnref.judge.shapes import comments
from sitekit import ROOT
from sitekit.markdown import source

PLAIN = ROOT / "attnref/plain"
CACHE = str(PLAIN / "kv_cache.py")  # for files that define no cache
# A picture shows each of these as one step, though the file defines it.
SINGLE_STEPS = ("__init__", "append", "rope", "split")
# The operations that a picture names; others move elements, or are
# arithmetic.
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

    def __init__(self, class_name: str) -> None:
        self.sites: list[Site] = []
        self.class_name, self.function, self.loops = class_name, "", 0

    def _probe(self, node: Any, name: str, value: ast.expr | None) -> ast.Call:
        last = node.end_lineno or node.lineno
        lines = range(node.lineno, 1 + (last if value else node.lineno))
        site = Site(self.function, lines, name, value, self.loops)
        self.sites.append(site)
        number = ast.Constant(len(self.sites) - 1)
        argument = value if name == "return" else ast.Name(name, ast.Load())
        assert argument is not None
        return ast.Call(ast.Name("_probe", ast.Load()), [number, argument], [])

    def _saved(self, node: Any, name: str, value: ast.expr | None) -> ast.stmt:
        probe = self._probe(node, name, value)
        return ast.Assign([ast.Name(name, ast.Store())], probe)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.stmt:
        """Only the class that is drawn gets probes."""
        if node.name == self.class_name:
            self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        if node.name in SINGLE_STEPS:
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
        targets = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            targets = [*zip(target.elts, value.elts, strict=True)]
        names = [
            (name.id, part_value)
            for part, part_value in targets
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
    inputs: dict[str, Any],
    begin: Callable[[], None] = lambda: None,
) -> tuple[Any, Any]:
    """Calls a function, or makes a layer and calls it, with a cache that holds
    `past` tokens; returns the layer and the cache."""
    torch.manual_seed(0)
    function, sizes, keywords = (space[name], letters_of(arguments, inputs), arguments)
    if inspect.isclass(function):
        function, keywords = function(**arguments), {}
    takes = inspect.signature(getattr(function, "forward", function)).parameters
    keywords = keywords | {k: v for k, v in inputs.items() if k in takes}
    if past := inputs.get("past"):
        if cache_class := space.get("CompressedCache"):
            keywords["cache"] = cache_class()
        else:
            caches = space if "KVCache" in space else run_path(CACHE)
            keywords["cache"] = caches["KVCache"](past + sizes["T"])
        function(torch.randn(sizes["B"], past, sizes["E"]), keywords["cache"])
    shapes = {"x": "BTE", "context": "BSC", "q": "BHTD", "k": "BHSD"}
    axes = {name: [*letters] for name, letters in shapes.items()}
    axes["v"] = [*"BHS", "Dv"]
    for name in axes.keys() & takes.keys():
        keywords[name] = torch.randn([sizes[letter] for letter in axes[name]])
    if "mask" in takes:
        T, S = sizes["T"], sizes["S"]
        keywords["mask"] = torch.ones(T, S).tril(S - T).bool()
    begin()
    function(**keywords)
    return function, keywords.get("cache")


def _changed_tensor(value: Tensor) -> Tensor:
    if value.dtype == torch.bool:
        return ~value
    return value + torch.ones_like(value).cumsum(-1).to(value.dtype)


def letters_of(arguments: dict[str, Any], inputs: dict[str, Any]) -> dict[str, int]:
    """The size of each letter, by the arguments of a layer and of its call."""
    by_letter = {SIZES.get(k, k): n for k, n in arguments.items()}
    sizes = {k: n for k, n in (by_letter | inputs).items() if len(k) <= 2}
    sizes.pop("f", None)  # RoPE's angles
    sizes = {"S": sizes["T"] + inputs.get("past", 0)} | sizes
    if "Dn" not in sizes and "E" in sizes:
        sizes.setdefault("D", sizes["E"] // sizes["H"])
    distinct = [n for k, n in sizes.items() if n != 1 and k != "S"]
    if len(distinct) > len({*distinct}):
        raise ValueError(f"{sizes}: a flow needs another size for each letter")
    return {letter: sizes[letter] for letter in LETTERS if letter in sizes}


def _in_letters(shape: tuple[int, ...], sizes: dict[str, int]) -> str:
    """A shape as a comment would say it."""
    letter_of = {1: "1"} | {n: letter for letter, n in [*sizes.items()][::-1]}
    if sizes.get("S") == sizes.get("T", 0):  # no cache: keys are the queries
        letter_of[sizes["S"]] = "T"
    widths = [letter for letter in WIDTHS if letter in sizes]
    for a, b in combinations(widths, 2):
        letter_of.setdefault(sizes[a] + sizes[b], f"{a} + {b}")
    if missing := [n for n in shape if n not in letter_of]:
        raise ValueError(f"no letters have the size {missing[0]}: {sizes}")
    dims = [letter_of[n] for n in shape]
    return f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"


def _inner_first(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes from the inside out, without the `x` of `x.shape`."""
    if not (isinstance(node, ast.Attribute) and node.attr == "shape"):
        for child in ast.iter_child_nodes(node):
            yield from _inner_first(child)
        yield node


def _names_read(value: ast.expr | None) -> Iterator[str]:
    """The names that a value is computed from; a name of which only the shape
    is read is none of them."""
    for node in _inner_first(value or ast.Constant(None)):
        if isinstance(node, ast.Name):
            yield node.id


def _steps(value: ast.expr, layer: Any, weights: set[str]) -> Iterator[tuple[str, str]]:
    """How a value is made, the first step first."""
    for node in _inner_first(value):
        if isinstance(node, ast.Call):
            path = ast.unparse(node.func)
            name = path if path in STEPS else path.rpartition(".")[2]
            if isinstance(getattr(layer, name, None), nn.Module):
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

    def __init__(self, code: Any, sites: list[Site], call: Call):
        self.code, self.sites, self.call = code, sites, call
        with torch.random.fork_rng():
            self.events, self.layer, cache = self.run(None)
            runs = [self.run(i)[0] for i in range(len(self.events))]
        self.changed = [
            [not torch.equal(a, b) for (_, a), (_, b) in zip(self.events, run, strict=True)]
            for run in runs
        ]
        groups = getattr(cache, "kept", {}).values()
        tensors = [tensor for group in groups for tensor in group]
        if hasattr(cache, "stored"):
            tensors = [cache.stored]
        self.stored_memory = {*map(_memory, tensors)}

    def run(self, change: int | None) -> tuple[list[tuple[Site, Tensor]], Any, Any]:
        """Runs the code; the tensor of this number is changed."""
        events: list[tuple[Site, Tensor]] = []

        def probe(number: int, value: Any) -> Any:
            if isinstance(value, Tensor):
                if len(events) == change:
                    value = _changed_tensor(value)
                events.append((self.sites[number], value))
            return value

        space = {"__name__": "traced", "_probe": probe}
        exec(self.code, space)
        return events, *call(space, *self.call, begin=events.clear)


def _memory(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _meaning(value: Tensor, site: Site, inputs: list[Node]) -> str:
    if value.dtype == torch.bool:
        return "mask"
    if not value.is_floating_point():
        return "positions"
    code = ast.unparse(site.value or ast.Constant(None))
    of_weights = all(n.meaning == "weights" for n in inputs)
    if of_weights and (inputs or ".weight" in code):
        return "weights"
    return MEANINGS.get(site.name, "")


def _nodes(experiment: _Experiment) -> Iterator[tuple[Site, Node]]:
    """The variables in the order in which they come."""
    scopes: dict[str, dict[str, Node]] = {}
    by_identity: dict[int, Node] = {}  # by identity, as calls hand tensors on
    numbers: dict[Node, int] = {}
    statement, variables = range(0), dict[str, Node]()
    for number, (site, value) in enumerate(experiment.events):
        scope = scopes.setdefault(site.function, {})
        node = by_identity.get(id(value))
        if node and site.value is None:
            scope[site.name] = node
            continue
        if node and node.name == "return":
            node.name, scope[site.name] = site.name, node
            node.lines += site.lines
            continue
        if site.lines != statement:  # which may assign several
            statement, variables = site.lines, dict(scope)
        read = [variables[name] for name in _names_read(site.value) if name in variables]
        inputs = [n for n in dict.fromkeys(read) if experiment.changed[numbers[n]][number]]
        node = Node(site.name, [*site.lines], "", tuple(value.shape))
        node.inputs, node.meaning = inputs, _meaning(value, site, inputs)
        weights = {n.name for n in read if n.meaning == "weights"}
        if site.value is not None:
            steps = _steps(site.value, experiment.layer, weights)
            node.steps = [*dict.fromkeys(steps)]
        node.stored = _memory(value) in experiment.stored_memory
        from_cache = [n.stored or n.again for n in inputs]
        node.again = not node.stored and bool(from_cache) and all(from_cache)
        scope[site.name] = by_identity[id(value)] = node
        numbers[node] = number
        yield site, node


def trace(
    file: str, name: str, arguments: dict[str, Any], inputs: dict[str, Any], within: str = ""
) -> Traced:
    """What `name(**arguments)` of a plain form computes; `inputs` are sizes of
    tensors, the number of tokens that its cache holds before (`past`), and
    arguments of its call; `within` names the only method to draw. A loop is
    drawn as its last pass."""
    text, probes = source.text_of(PLAIN / f"{file}.py"), _Probes(name)
    tree = ast.fix_missing_locations(probes.visit(ast.parse(text)))
    code, call = compile(tree, file, "exec"), (name, arguments, inputs)
    sizes = letters_of(arguments, inputs)
    letters = {
        (c.first, target): c.text
        for c in comments(text).values()
        for target in c.targets or ["return"]
    }
    deepest = max(site.loops for site in probes.sites)
    nodes: list[Node] = []
    part: list[Node] = []
    for site, node in _nodes(_Experiment(code, probes.sites, call)):
        node.letters = letters.get((site.lines[0], site.name), "")
        nodes.append(node)
        if part and deepest and site.lines[0] < part[-1].lines[0]:
            part = []
        if site.function == within or (deepest and site.loops == deepest):
            part.append(node)
    nodes = _simplify(nodes, part)
    for node in nodes:
        node.letters = node.letters or _in_letters(node.shape, sizes)
        if eval(node.letters, {}, sizes) != node.shape:
            raise ValueError(f"{node.name} is {node.shape}, not {node.letters}")
    used = {a for n in nodes for a in re.findall("[A-Za-z]+", n.letters)}
    return Traced(file, nodes, {k: n for k, n in sizes.items() if k in used})


def _simplify(nodes: list[Node], part: list[Node]) -> list[Node]:
    """Without a variable that the next line overwrites; and if there is a part,
    only this part and the variables that it reads."""
    if part:
        read = {n for node in part for n in node.inputs} - {*part}
        for node in read:
            node.inputs, node.steps = [], []
        nodes = [n for n in nodes if n in read] + part
    for node in nodes:
        for previous in [n for n in node.inputs if n.name == node.name]:
            one_reader = [n for n in nodes if previous in n.inputs] == [node]
            sizes = torch.Size(previous.shape), torch.Size(node.shape)
            view = not previous.letters and sizes[0].numel() == sizes[1].numel()
            if one_reader and previous.lines[-1] < node.lines[0] and (view or sizes[0] == sizes[1]):
                inputs = dict.fromkeys([*previous.inputs, *node.inputs])
                later = {*node.inputs} - {*previous.inputs, previous}
                behind = {n: len(previous.steps) + node.later.get(n, 0) for n in later}
                node.later = previous.later | behind
                node.inputs = [n for n in inputs if n is not previous]
                node.steps = previous.steps + node.steps
                node.lines = previous.lines + node.lines
                nodes = [n for n in nodes if n is not previous]
    return nodes
