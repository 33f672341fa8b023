"""Ridges of GPUs, arithmetic intensities, and steps of a whole 8B model."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from math import ceil
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from attnref.numbers.cost import Cost, attention_cost, mla_cost
from attnref.numbers.kv_memory import DTYPES, group_bytes, kv_bytes, size
from attnref.numbers.shapes import Full, Source
from attnref.released.specs import find_model
from sitekit.drawing import plots
from sitekit.drawing.plots import Label, Plot
from sitekit.drawing.svg import room
from sitekit.drawn.mla import V3
from sitekit.markdown.render import Row, Word
from sitekit.markdown.tables import links
from sitekit.released.javascript import bundle


class Gpu(NamedTuple):
    """Peak FLOP/s in bfloat16, without sparsity, bytes per second, and bytes of
    its memory."""

    name: str
    peak: float
    bandwidth: float
    memory: float
    sources: tuple[Source, ...]

    @property
    def ridge(self) -> float:
        return self.peak / self.bandwidth


ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/"
ADA += "nvidia-ada-gpu-architecture.pdf"
AMD = "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"
ASCEND = "https://github.com/Ascend/msmodeling/blob/"
ASCEND += "1e5a50b1a025a6658a277aa963c87691dc279f4f/tensor_cast/device.py"


def _of_nvidia(name: str) -> tuple[Source, ...]:
    place = f"https://www.nvidia.com/en-us/data-center/{name}/"
    return (Source("NVIDIA", place),)


GPUS = {
    "a100": Gpu("A100 80 GB SXM", 312e12, 2.039e12, 80e9, _of_nvidia("a100")),
    "h100": Gpu("H100 SXM", 989e12, 3.35e12, 80e9, _of_nvidia("h100")),
    "h200": Gpu("H200 SXM", 989e12, 4.8e12, 141e9, _of_nvidia("h200")),
    "h20": Gpu(
        "H20 96 GB",
        148e12,
        4.0e12,
        96e9,
        (Source("LMSYS", "https://lmsys.org/blog/2025-09-26-sglang-ant-group"),),
    ),
    "4090": Gpu("RTX 4090", 165.2e12, 1.008e12, 24e9, (Source("NVIDIA", ADA),)),
    "mi300x": Gpu("MI300X", 1307.4e12, 5.3e12, 192e9, (Source("AMD", AMD),)),
    "910c": Gpu(
        "Ascend 910C",  # one of its two dies
        353.9e12,
        1.6e12,
        64e9,
        (
            Source("MindStudio", ASCEND),
            Source("arXiv:2506.12708", "https://arxiv.org/abs/2506.12708"),
        ),
    ),
}
H100, H20 = GPUS["h100"], GPUS["h20"]


def gpus() -> Iterator[Row]:
    for gpu in GPUS.values():
        name: str | Word = gpu.name
        if gpu is GPUS["910c"]:
            name = Word("die")
        yield [
            name,
            f"{gpu.peak / 1e12:,g}",
            f"{gpu.bandwidth / 1e12:.4g}",
            f"{gpu.ridge:.0f}",
            links(*gpu.sources),
        ]


LLAMA: dict[str, Any] = {"d_model": 4096, "n_heads": 32}
LAYERS, KV_HEADS, VOCABULARY = 32, 8, 128_256  # of Llama-3.1-8B
CONTEXT = 8192  # tokens that a decode step reads


def decode() -> dict[str, Cost]:
    """One token after 8191: MHA, GQA, MQA of Llama's shape, MLA of V3's."""
    past = CONTEXT - 1
    return {
        "mha": attention_cost(**LLAMA, past=past),
        "gqa": attention_cost(**LLAMA, n_kv_heads=KV_HEADS, past=past),
        "mqa": attention_cost(**LLAMA, n_kv_heads=1, past=past),
        "expanded": mla_cost(**V3, form="expanded", past=past),
        "absorbed": mla_cost(**V3, form="absorbed", past=past),
    }


def numbers() -> dict[str, object]:
    """What the text says."""
    absorbed, ridge = intensities()["absorbed"], H100.ridge
    # The intensity of a prompt is this share of its length; a causal query has
    # (T + 1) / 2 of the T keys.
    share, read = 32 / (32 + 8), OF_LLAMA["read"]
    mha, _, _, of_expanded, of_absorbed = pairs()
    return {
        "ridge": ridge,
        "busy": int(ridge) + 1,
        "busy_h20": int(H20.ridge) + 1,
        "ridge_h20": H20.ridge,
        "absorbed": absorbed,
        "throttled": 865 / 3.35,
        "share": share,
        "prompt": ceil(ridge / share),
        "causal_prompt": ceil(2 * ridge / share - 1),
        "weights": 2 * read / 1e9,
        "cache": size(_cache(8192)),
        "turn_weights": 2 * read / H20.bandwidth * 1e3,
        "turn_multiply": 16 * 2 * read / H20.peak * 1e3,
        "turn_caches": 16 * _cache(4096) / H20.bandwidth * 1e3,
        "turn_size": size(16 * _cache(4096)),
        "turn_gb": 16 * _cache(4096) / 1e9,
        "peaks": H100.peak / H20.peak,
        "pair": mha[1],
        "pair_expanded": of_expanded[1],
        "times_expanded": of_expanded[2],
        "pair_absorbed": of_absorbed[1],
        "times_absorbed": of_absorbed[2],
        "roof_of_mha": attainable(1) / H100.peak,
    }


def variants() -> Iterator[Row]:
    """FLOPs per byte of the cache, of each variant with 32 and 128 heads."""
    latent = r"h\,(2\,d_c + d_r) / (d_c + d_r)"
    formulas = {"mha": "$1$", "gqa": "$h / h_{kv}$", "mqa": "$h$"}
    formulas |= {"expanded": "$1$", "absorbed": f"${latent}$"}
    for name, formula in formulas.items():
        row: Row = [Word(name), formula]
        for heads in (32, 128):
            shape: dict[str, Any] = {"d_model": 128 * heads, "n_heads": heads}
            if name in ("expanded", "absorbed"):
                cost = mla_cost(**V3 | shape, form=name, past=CONTEXT - 1)
            else:
                K = {"mha": heads, "gqa": KV_HEADS, "mqa": 1}[name]
                cost = attention_cost(**shape, n_kv_heads=K, past=CONTEXT - 1)
            row.append(f"{float(cost.attention_intensity()):.4g}")
        yield row


def _prefill(new: int) -> Fraction:
    """FLOPs per byte of a prompt's attention in a layer with GQA: queries and
    outputs are moved too, since they are no fewer than keys."""
    cost = attention_cost(**LLAMA, n_kv_heads=KV_HEADS, new=new)
    bytes_moved = 2 * (cost.cached + 2 * new * LLAMA["d_model"])
    return Fraction(cost.scores + cost.values, bytes_moved)


def digits(n: float) -> str:
    """A number with three digits, and never as 7e+04."""
    return f"{float(f'{n:.3g}'):,.10g}"


def intensities() -> dict[str, float]:
    """FLOPs per byte: of the cache in decoding, of all in a prefill."""
    result = {name: float(cost.attention_intensity()) for name, cost in decode().items()}
    return result | {"prefill": float(_prefill(2048))}


def attainable(intensity: float, gpu: Gpu = H100) -> float:
    """FLOP/s that a GPU can reach at most."""
    return min(gpu.peak, intensity * gpu.bandwidth)


# Where the name of each point stands: three points are close to each other.
LABELS = {
    "mha": Label(12, -14, "left"),
    "expanded": Label(12, -30, "left"),
    "gqa": Label(12, -12, "left"),
    "mqa": Label(-10, 10, "right"),
    "absorbed": Label(-10, 16, "right"),
    "prefill": Label(0, 16, "center"),
}
ROOFS = {"h20": (plots.SOFT, (0, (3, 3))), "h100": (plots.INK, "-")}
BELOW_END = Label(-2, -10, "right")  # the name of a GPU, at its roof
DOTS: Any = {"linewidth": 1, "linestyle": (0, (1, 2))}  # down from a ridge


def _roofline(narrow: bool) -> Figure:
    """What a GPU can reach at each intensity, and where attention stands."""
    marks = {1e12: "1", 1e13: "10", 1e14: "100", 1e15: "1,000"}
    first, last = 0.5, 20_000.0
    ticks = {float(t): f"{t:,}" for t in (1, 4, 32, 100, 1000, 10_000)}
    chart = plots.make_chart(
        (358, 318) if narrow else (700, 331),
        plots.Edges(left=room(marks.values(), 11) + 8, right=14, below=43, above=25),
        x=(10, ticks, (first, last)),
        y=(10, marks, (1e12, 3e15)),
    )
    chart.name_axes("{intensity}", "{flops}")
    axes = chart.axes
    for id, (colour, style) in ROOFS.items():
        gpu = GPUS[id]
        corners = [first, gpu.ridge, last]
        roof = [attainable(x, gpu) for x in corners]
        axes.plot(corners, roof, color=colour, linewidth=2, linestyle=style)
        name = gpu.name.split()[0]
        chart.label(name, (last, gpu.peak), BELOW_END, color=colour)
        third = gpu.peak / 3
        axes.vlines(gpu.ridge, third, gpu.peak, color=colour, **DOTS)
        number, x = f"{gpu.ridge:.0f}", gpu.ridge * 1.1
        axes.text(x, third, number, color=colour, va="bottom")
    for name, x in intensities().items():
        colour = plots.GREEN if name in ("expanded", "absorbed") else plots.WARM
        point = x, attainable(x)
        axes.plot(*point, marker="o", markersize=7, color=colour)
        chart.label(f"{{{name}}}", point, LABELS[name], color=colour)
    return chart.figure


def _points() -> Iterator[Row]:
    for name, x in intensities().items():
        row: Row = [Word(name), f"{x:,.4g}"]
        for gpu in (H100, H20):
            reachable = attainable(x, gpu)
            row += [f"{reachable / 1e12:,.4g}", f"{reachable / gpu.peak:.1%}"]
        yield row


def roofline() -> Plot:
    return plots.plotted(_roofline, [*_points()])


# Models of which every layer is one of GQA or MHA and a dense feed-forward part:
# their width, and the rows of their table of embeddings.
DENSE = {
    "llama-3.1-8b": (4096, VOCABULARY),
    "llama-3.1-70b": (8192, VOCABULARY),
    "llama-3.1-405b": (16_384, VOCABULARY),
    "llama-2-7b": (4096, 32_000),
}


def sizes_of(id: str) -> dict[str, int]:
    """What is stored of a model, its parameters that a step reads, those of its
    output projection, and FLOPs of one query and one key in all its layers."""
    model, (width, rows) = find_model(id), DENSE[id]
    (group,) = model.groups
    assert isinstance(group, Full) and group.q_heads and model.params
    K, D = group.kv_heads, group.head_dim
    cost = attention_cost(d_model=width, n_heads=group.q_heads, n_kv_heads=K, head_dim=D)
    return {
        "params": model.params,
        # Of the table of embeddings it takes one row per token.
        "read": model.params - rows * width,
        "output": rows * width,
        "pair": group.layers * (cost.scores + cost.values),
        "layers": group.layers,
        "kv_heads": K,
        "head_dim": D,
    }


OF_LLAMA = sizes_of("llama-3.1-8b")


def _weights(params: int, use: Mapping[str, Any]) -> int:
    """Bytes of parameters on each device: those of `weight_bytes`, of which no
    script needs the names of models and the errors."""
    ranks: int = use["ranks"]
    return -(-DTYPES[use["weights"]].bits_for(params) // (8 * ranks))


def _caches(sizes: Mapping[str, int], use: Mapping[str, Any], batch: int) -> int:
    D = sizes["head_dim"]
    group = Full(
        layers=sizes["layers"], q_heads=None, kv_heads=sizes["kv_heads"], head_dim=D, v_head_dim=D
    )
    storage, ranks = DTYPES[use["cache"]], use["ranks"]
    return group_bytes(group, use["tokens"], storage, batch=batch, ranks=ranks)


def _cache(tokens: int) -> int:
    return kv_bytes(find_model("llama-3.1-8b"), tokens)


def _prompt_flops(sizes: Mapping[str, int], new: int) -> tuple[int, int]:
    """What must be computed before the first token, in matrices and in causal
    attention; the output projection is for the last token alone."""
    # Its queries have (new + 1) / 2 keys on average.
    attention = sizes["pair"] * new * (new + 1) // 2
    return 2 * (new * (sizes["read"] - sizes["output"]) + sizes["output"]), attention


def first() -> Iterator[Row]:
    for new in (512, 2048, 8192, 32_768, 131_072):
        weights, attention = _prompt_flops(OF_LLAMA, new)
        least = [(weights + attention) / gpu.peak for gpu in (H100, H20)]
        yield [
            f"{new:,}",
            digits(weights / 1e12),
            digits(attention / 1e12),
            *(digits(1e3 * t) for t in least),
        ]


class Pass(NamedTuple):
    """Milliseconds of a device to read the weights and the caches, to multiply by
    the weights, and to compute scores and values. It may read the one while it
    computes with the other, so that only the sums are a bound."""

    weights: float
    caches: float
    multiply: float
    attend: float

    @property
    def least(self) -> float:
        return max(self.weights + self.caches, self.multiply + self.attend)


def _use(tokens: int, batch: int) -> dict[str, Any]:
    return {"tokens": tokens, "batch": batch, "ranks": 1, "weights": "bf16", "cache": "bf16"}


def one_pass(
    sizes: Mapping[str, int], gpu: Mapping[str, Any], use: Mapping[str, Any], prompt: bool
) -> Pass:
    """The prompt of one sequence, or a decode step of a batch: the matrices are
    read once and multiply the token of each sequence; each cache is read for
    its own. Heads and matrices are split over the ranks."""
    tokens, batch = use["tokens"], 1 if prompt else use["batch"]
    read = _weights(sizes["read"], use)
    caches = _caches(sizes, use, batch)
    flops = (2 * batch * sizes["read"], batch * tokens * sizes["pair"])
    if prompt:
        flops = _prompt_flops(sizes, tokens)
    return Pass(
        *(1e3 * n / gpu["bandwidth"] for n in (read, caches)),
        *(1e3 * n / (use["ranks"] * gpu["peak"]) for n in flops),
    )


def taken(sizes: Mapping[str, int], use: Mapping[str, Any]) -> int:
    """Bytes of all weights and of the caches of a batch, on each device."""
    return _weights(sizes["params"], use) + _caches(sizes, use, use["batch"])


BATCHES = tuple(2**n for n in range(11))


def passes(
    sizes: Mapping[str, int], gpu: Mapping[str, Any], use: Mapping[str, Any]
) -> dict[str, Any]:
    """What the live figure shows: both passes, what they take, the tokens per
    second of each batch, with whether it fits, and what changes with twice the
    sequences or half the cache."""
    line = []
    for batch in BATCHES:
        other = {**use, "batch": batch}
        rate = batch * 1e3 / one_pass(sizes, gpu, other, False).least
        line.append([rate, taken(sizes, other) <= gpu["memory"]])
    step = one_pass(sizes, gpu, use, False)
    twice = {**use, "batch": 2 * use["batch"]}
    smaller = max(step.weights + step.caches / 2, step.multiply + step.attend)
    return {
        "decode": [*step],
        "prompt": [*one_pass(sizes, gpu, use, True)],
        "taken": taken(sizes, use),
        "line": line,
        # Of a step of twice as many sequences, and of half the cache.
        "slower": one_pass(sizes, gpu, twice, False).least / step.least,
        "room": taken(sizes, twice) <= gpu["memory"],
        "gain": step.least / smaller,
    }


def roof() -> dict[str, Any]:
    """The models and devices of the live figure."""
    names = ("name", "peak", "bandwidth", "memory")
    return {
        "models": [{"name": find_model(id).name, "sizes": sizes_of(id)} for id in DENSE],
        "gpus": [{name: getattr(gpu, name) for name in names} for gpu in GPUS.values()],
    }


@cache
def script() -> str:
    """assets/passes.js: what the live figure calls."""
    return bundle([(__name__, passes.__name__)])


def _step(tokens: int, batch: int, gpu: Gpu) -> tuple[list[str], float]:
    """Milliseconds of each part, and of the step."""
    step = one_pass(OF_LLAMA, gpu._asdict(), _use(tokens, batch), False)
    parts = [step.weights, step.multiply, step.caches, step.attend]
    return [*(f"{part:.2f}" for part in parts), f"{step.least:.1f}"], step.least


def steps(tokens: int, batches: tuple[int, ...]) -> Iterator[Row]:
    """Decode steps of Llama-3.1-8B, and tokens per second in all."""
    for batch in batches:
        cells, least = _step(tokens, batch, H100)
        yield [str(batch), *cells, f"{batch * 1e3 / least:,.0f}"]


def turn() -> Iterator[Row]:
    """What is asked of the reader: one step on two GPUs."""
    for gpu in (H20, H100):
        cells, least = _step(4096, 16, gpu)
        yield [gpu.name, *cells, f"{1e3 / least:,.0f}"]


def mega(n: int) -> str:
    return f"{n / 1e6:,.1f}"


def pairs() -> Iterator[Row]:
    """FLOPs for one query and one key, 128 heads of 128."""
    heads: dict[str, Any] = {"d_model": 16_384, "n_heads": 128}
    costs = {
        "mha": attention_cost(**heads),
        "gqa": attention_cost(**heads, n_kv_heads=8),
        "mqa": attention_cost(**heads, n_kv_heads=1),
        "expanded": mla_cost(**V3, form="expanded"),
        "absorbed": mla_cost(**V3, form="absorbed"),
    }
    plain = costs["mha"].scores + costs["mha"].values
    for name, cost in costs.items():
        flops = cost.scores + cost.values
        yield [Word(name), f"{flops:,}", f"{flops / plain:g}", f"{cost.cached:,}"]
