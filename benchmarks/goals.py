"""What must hold: each line is a goal of the project, with its guard.

`at` are the arguments of the case for which the goal is stated. `quick` are
smaller ones, and `guard` the bounds there, with 30 % of room to what was
measured: what `make bench-quick` measures. `slow` names a contender with whose
figures in place of ours the goal must not be met.

Bounds were set before the runs, those on a window after its first one. Why
some are not met, or in some runs only:

decode, share   The limit lets reading and multiplying overlap, takes products
                at the rate of a large square one, and softmax for nothing.
                With GQA both parts take about as long, and with four rows of
                queries per key head the products alone take twice the reading:
                of thirteen ways to write them none was faster. With MQA the
                products are the bottleneck.
layer           transformers makes the same call with a static cache: a tie.
prompt, GQA     In bfloat16 the layer of transformers rotates in bfloat16 and
                ours in float32, where angles are exact: twice as many bytes.
prompt, flash   Each operation on a tile writes its result to memory: two thirds
                of the time are products, as fast as large ones. In bfloat16
                PyTorch's kernel has products that sum in float32, on a
                processor with AMX several times as fast as those in float32;
                `bmm` has none that does not round its result to bfloat16.
backward, sdpa  `sdpa` has become faster since: it scales the queries instead
                of the scores and takes exponentials in place. `flash` saves
                a little over a third of the multiplications, since tiles on
                the diagonal are whole and scores are computed again.
generation      What `torch.cat` costs depends on what memory the allocator can
                use again, which differs between processes.
tiny layer      Calls cost more than arithmetic; ours are positions, cache and
                checks, and the layer of transformers is given its RoPE table.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from math import inf, log
from statistics import median
from typing import Any, NamedTuple

from benchmarks import caches, cores, memory
from benchmarks.timing import Measured, Setting, middle

At = tuple[Any, ...]
Results = Mapping[tuple[str, At], Measured]


def beside_transformers(file: str, name: str) -> Callable[..., Setting]:
    """Imported late: transformers takes seconds."""

    def case(*at: Any) -> Setting:
        module = import_module(f"benchmarks.{file}")
        setting: Setting = getattr(module, name)(*at)
        return setting

    return case


class Case(NamedTuple):
    """An experiment: what its arguments are, and those of the full run."""

    make: Callable[..., Setting]
    axes: tuple[str, ...]
    at: tuple[At, ...]
    seconds: float  # about how long each setting is timed


BOTH = ("float32", "bfloat16")
RECURRENT = ("Gated DeltaNet", "KDA", "Mamba-2")
LENGTHS = (1024, 4096, 8192, 16_384, 32_768)
CASES = {
    "decode": Case(
        cores.decode,
        ("dtype", "heads", "tokens"),
        tuple(
            (d, h, n)
            for d in BOTH
            for h in cores.KV_HEADS
            for n in LENGTHS
            if h != "GQA-2" or (d == "float32" and n <= 16_384)
        ),
        2.0,
    ),
    "layer": Case(
        beside_transformers("layers", "layer"),
        ("dtype", "shape", "tokens"),
        (
            *((d, "Llama-3-8B", n) for d in BOTH for n in (2048, 8192, 32_768)),
            ("float32", "tiny", 64),
        ),
        3.0,
    ),
    "prompt": Case(
        beside_transformers("layers", "prompt"),
        ("dtype", "shape", "tokens"),
        tuple((d, s, 1024) for s in ("GQA", "MLA") for d in BOTH),
        3.0,
    ),
    "mla": Case(
        beside_transformers("layers", "mla"),
        ("dtype", "tokens"),
        (
            *(("float32", n) for n in (512, 2048, 8192, 16_384)),
            *(("bfloat16", n) for n in (512, 8192)),
        ),
        2.0,
    ),
    "recurrence": Case(
        beside_transformers("recurrent", "recurrence"),
        ("layer", "tokens"),
        tuple((layer, n) for layer in RECURRENT for n in (1, 2048)),
        2.0,
    ),
    "step": Case(
        cores.step,
        ("dtype", "heads", "tokens"),
        tuple((d, h, 32_768) for d in BOTH for h in ("MHA", "GQA-8", "MQA")),
        3.0,
    ),
    "latent": Case(
        cores.latent,
        ("dtype", "tokens"),
        tuple((d, n) for d in BOTH for n in (2048, 8192, 32_768)),
        1.0,
    ),
    "chosen": Case(
        cores.chosen,
        ("dtype", "tokens"),
        tuple((d, n) for d in BOTH for n in (4096, 32_768, 131_072)),
        1.0,
    ),
    "prefill": Case(
        cores.prefill,
        ("dtype", "shape", "tokens"),
        (
            *((d, "GQA", n) for d in BOTH for n in (512, 1024, 2048, 4096)),
            *(("float32", "MLA", n) for n in (1024, 4096)),
        ),
        6.0,
    ),
    "windowed": Case(
        cores.windowed, ("dtype", "tokens"), (("float32", 8192),), 6.0
    ),
    "given mask": Case(
        cores.given_mask,
        ("dtype", "tokens"),
        tuple((d, 2048) for d in BOTH),
        6.0,
    ),
    "backward": Case(
        cores.backward,
        ("dtype", "shape", "tokens"),
        tuple(("float32", "GQA", n) for n in (1024, 2048)),
        6.0,
    ),
    "append": Case(
        caches.append, ("tokens",), tuple((n,) for n in LENGTHS), 1.0
    ),
    "window": Case(caches.window, ("tokens",), ((8192,), (32_768,)), 2.0),
    "generate": Case(caches.generate, ("tokens",), ((2048,), (8192,)), 0.0),
    "reorder": Case(caches.reorder, ("used", "room"), ((16, 8192),), 1.0),
    "memory": Case(
        memory.memory,
        ("dtype", "shape", "tokens"),
        (
            *(("float32", "GQA", n) for n in (1024, 4096, 16_384)),
            ("float32", "MLA", 4096),
        ),
        0.0,
    ),
    "window memory": Case(
        memory.memory,
        ("dtype", "shape", "tokens"),
        (("float32", "window", 8192),),
        0.0,
    ),
    "import": Case(memory.imports, (), ((),), 0.0),
}


class Goal(NamedTuple):
    name: str
    case: str
    at: tuple[At, ...]  # at each of these sizes
    ours: str
    what: str  # times as long, times as fast, share, value, exponent
    peer: str = ""
    least: float = -inf
    most: float = inf
    quick: At = ()
    guard: tuple[float, float] = (-inf, inf)
    slow: str = ""

    def figures(self, results: Results, at: At) -> list[float]:
        """What is compared with the bounds, turn by turn."""
        here = results[self.case, at]
        if self.what == "times as long":
            return here.ratios(self.ours, self.peer)
        if self.what == "times as fast":
            return here.ratios(self.peer, self.ours)
        if self.what == "share":
            return here.shares[self.ours]
        if self.what == "value":
            return here.values[self.ours]
        shorter = results[self.case, quarter(at)].values[self.ours]
        start = median(shorter)
        return [log(t / start) / log(4) for t in here.values[self.ours]]

    def sizes(self, at: At) -> list[At]:
        """What has to be measured: the exponent also needs shorter ones."""
        return [quarter(at), at] if self.what == "exponent" else [at]

    def line(self, results: Results, at: At) -> dict[str, object]:
        """As JSON: what was measured, and with the slow form in our place."""
        figures = middle(self.figures(results, at))
        line: dict[str, object] = {"goal": self.name, "case": self.case}
        line |= {"at": ", ".join(map(str, at))}
        line |= {"ours": self.ours, "what": self.what, "peer": self.peer}
        if self.least > -inf:
            line["least"] = self.least
        if self.most < inf:
            line["most"] = self.most
        met = self.least <= figures[1] <= self.most
        line |= {"found": figures, "met": met}
        here = results[self.case, at]
        if self.slow in here.values:
            slow = {(self.case, at): here.with_slow(self.ours, self.slow)}
            line["slow"] = middle(self.figures({**results, **slow}, at))
        return line

    def at_small_sizes(self) -> "Goal":
        least, most = self.guard
        return self._replace(at=(self.quick,), least=least, most=most)


def quarter(at: At) -> At:
    """The same with a quarter of the tokens."""
    return (*at[:-1], at[-1] // 4)


STATIC, DYNAMIC = (
    f"transformers sdpa, {n}Cache" for n in ("Static", "Dynamic")
)
TORCH = "torch, is_causal"
SHORT = ("a quarter", 32_768)  # of Llama's layer, with all of its tokens
GOALS = [
    *(
        Goal(
            f"decode step of Llama-3-8B's layer, {dtype}",
            "layer",
            ((dtype, "Llama-3-8B", 32_768),),
            "fused",
            "times as long",
            STATIC,
            most=most,
            quick=(dtype, *SHORT),
            guard=(-inf, guard),
            slow="repeated heads",
        )
        for dtype, most, guard in (
            ("float32", 0.9, 1.25),
            ("bfloat16", 1.0, 1.4),
        )
    ),
    *(
        Goal(
            f"decode step of Llama-3-8B's layer, against {peer}",
            "layer",
            (("float32", "Llama-3-8B", 32_768),),
            "fused",
            "times as fast",
            peer,
            least=least,
            quick=("float32", *SHORT),
            guard=(guard, inf),
            slow="repeated heads",
        )
        for peer, least, guard in (
            (DYNAMIC, 4, 3.0),
            ("repeated heads", 10, 7.5),
        )
    ),
    *(
        Goal(
            f"prompt through the {ours}, {shape}",
            "prompt",
            tuple((dtype, shape, 1024) for dtype in BOTH),
            ours,
            "times as long",
            "transformers",
            most=1.05,
        )
        for shape in ("GQA", "MLA")
        for ours in ("plain form", "written file", "layer, fused")
    ),
    *(
        Goal(
            f"decode core, decided by fused, against {peer}",
            "step",
            CASES["step"].at,
            "fused",
            "times as long",
            peer,
            most=1.05,
        )
        for peer in ("torch, folded", "few")
    ),
    Goal(
        "prompt with a window, by blocks",
        "windowed",
        (("float32", 8192),),
        "plain form, blocks",
        "times as long",
        "torch, bool mask",
        most=0.15,
    ),
    Goal(
        "memory of a window, by blocks",
        "window memory",
        (("float32", "window", 8192),),
        "plain form, blocks",
        "times as long",
        "torch, bool mask",
        most=0.1,
    ),
    Goal(
        "prompt through flash, the mask a tensor",
        "given mask",
        CASES["given mask"].at,
        "flash",
        "times as long",
        TORCH,
        most=1.3,
    ),
    *(
        Goal(
            f"decode core, float32, {heads}",
            "decode",
            (("float32", heads, 8192), ("float32", heads, 32_768)),
            "fused",
            "share",
            least=least,
            quick=("float32", heads, 8192),
            guard=(guard, inf),
            slow="torch, enable_gqa",
        )
        for heads, least, guard in (
            ("MHA", 0.6, 0.45),
            ("GQA-8", 0.45, 0.26),
            ("MQA", 0.7, 0.45),
        )
    ),
    *(
        Goal(
            f"decode core, bfloat16, {heads}, against enable_gqa",
            "decode",
            (("bfloat16", heads, 8192),),
            "fused",
            "times as fast",
            "torch, enable_gqa",
            least=least,
            quick=("bfloat16", heads, 8192),
            guard=(guard, inf),
            slow="torch, enable_gqa",
        )
        for heads, least, guard in (("GQA-8", 6, 5.5), ("MHA", 3, 2.7))
    ),
    *(
        Goal(
            f"prompt through flash, {dtype}",
            "prefill",
            tuple((dtype, "GQA", n) for n in (1024, 2048, 4096)),
            "flash",
            "times as long",
            TORCH,
            most=most,
            quick=(dtype, "GQA", 1024),
            guard=(-inf, 1.4),
            slow="eager" if dtype == "float32" else "sdpa",
        )
        for dtype, most in (("float32", 1.15), ("bfloat16", 1.25))
    ),
    *(
        Goal(
            f"forward and backward through flash, against {peer}",
            "backward",
            tuple(("float32", "GQA", n) for n in (1024, 2048)),
            "flash",
            what,
            peer,
            least=least,
            most=most,
            quick=("float32", "GQA", 512),
            guard=guard,
            slow="sdpa",
        )
        for peer, what, least, most, guard in (
            (TORCH, "times as long", -inf, 1.1, (-inf, 1.1)),
            ("sdpa", "times as fast", 3, inf, (1.25, inf)),
        )
    ),
    Goal(
        "prompt through flash, widths of MLA",
        "prefill",
        (("float32", "MLA", 4096),),
        "flash",
        "times as long",
        TORCH,
        most=0.45,
        quick=("float32", "MLA", 1024),
        guard=(-inf, 0.7),
        slow=TORCH,
    ),
    Goal(
        "memory of flash, widths of MLA",
        "memory",
        (("float32", "MLA", 4096),),
        "flash",
        "times as long",
        TORCH,
        most=0.05,
        quick=("float32", "MLA", 1024),
        guard=(-inf, 0.15),
        slow=TORCH,
    ),
    Goal(
        "memory of flash",
        "memory",
        tuple(("float32", "GQA", n) for n in (1024, 4096, 16_384)),
        "flash",
        "value",
        most=40,
        quick=("float32", "MLA", 1024),
        guard=(-inf, 52),
        slow=TORCH,
    ),
    Goal(
        "memory of fused",
        "memory",
        tuple(("float32", "GQA", n) for n in (1024, 4096, 16_384)),
        "fused",
        "value",
        most=40,
        quick=("float32", "GQA", 1024),
        guard=(-inf, 52),
        slow="eager",
    ),
    Goal(
        "decode step of MLA",
        "mla",
        (("float32", 8192),),
        "fused",
        "times as fast",
        STATIC,
        least=50,
        quick=("float32", 2048),
        guard=(14, inf),
        slow=DYNAMIC,
    ),
    *(
        Goal(
            f"{what} through the recurrence of {layer}",
            "recurrence",
            ((layer, tokens),),
            "chunked",
            "times as long",
            "transformers",
            most=most,
            quick=(layer, quick),
            guard=(-inf, guard),
            slow="transformers",
        )
        for layer in RECURRENT
        for what, tokens, most, quick, guard in (
            ("prompt", 2048, 0.6, 512, 0.8),
            ("decode step", 1, 0.75, 1, 0.98),
        )
    ),
    Goal(
        "growth of the core of that step",
        "latent",
        (("float32", 32_768),),
        "fused",
        "exponent",
        least=0.9,
        most=1.1,
        quick=("float32", 16_384),
        guard=(0.7, 1.3),
    ),
    Goal(
        "that core with keys that an indexer chooses",
        "chosen",
        (("float32", 32_768),),
        "chosen keys",
        "times as long",
        "all keys, fused",
        most=0.45,
        quick=("float32", 16_384),
        guard=(-inf, 0.6),
        slow="chosen keys, the others masked",
    ),
    Goal(
        "one more token in KVCache",
        "append",
        tuple((n,) for n in LENGTHS),
        "KVCache",
        "value",
        most=0.02,
        quick=(8192,),
        guard=(-inf, 0.05),
        slow="torch.cat",
    ),
    *(
        Goal(
            f"decode step with a window of 4096, against {peer}",
            "window",
            at,
            "RingKVCache",
            what,
            peer,
            least=least,
            most=most,
            quick=(32_768,),
            guard=guard,
            slow="KVCache",
        )
        for peer, at, what, least, most, guard in (
            (
                "KVCache of one window",
                ((8192,), (32_768,)),
                "times as long",
                -inf,
                1.6,
                (-inf, 1.9),
            ),
            ("KVCache", ((32_768,),), "times as fast", 2, inf, (1.9, inf)),
        )
    ),
    Goal(
        "generation with KVCache",
        "generate",
        ((8192,),),
        "KVCache",
        "times as fast",
        "torch.cat",
        least=3,
        quick=(1024,),
        guard=(1.7, inf),
        slow="torch.cat",
    ),
    Goal(
        "reorder of 16 used slots of 8192",
        "reorder",
        ((16, 8192),),
        "KVCache",
        "times as long",
        "index_select, whole room",
        most=0.01,
        quick=(16, 8192),
        guard=(-inf, 0.013),
        slow="index_select, whole room",
    ),
    Goal(
        "one token through a tiny layer",
        "layer",
        (("float32", "tiny", 64),),
        "fused",
        "times as long",
        DYNAMIC,
        most=1.0,
        quick=("float32", "tiny", 64),
        guard=(-inf, 1.55),
    ),
    # What is imported is counted in tests/house/test_layering.py.
    Goal("import of attnref", "import", ((),), "attnref", "value", most=20),
]
QUICK = [goal.at_small_sizes() for goal in GOALS if goal.quick]


def sizes_of(goals: Iterable[Goal]) -> dict[tuple[str, At], set[str]]:
    """The sizes that goals need, and at each the contenders."""
    plan: dict[tuple[str, At], set[str]] = {}
    for goal in goals:
        for at in (size for each in goal.at for size in goal.sizes(each)):
            ways = plan.setdefault((goal.case, at), set())
            ways |= {goal.ours, goal.peer, goal.slow} - {""}
    return plan
