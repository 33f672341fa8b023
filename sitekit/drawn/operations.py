"""Ridges of GPUs, arithmetic intensities, and steps of a whole 8B model."""

from collections.abc import Iterator
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure

from attnref.numbers.cost import Cost, attention_cost, mla_cost
from attnref.numbers.kv_memory import kv_bytes, size, weight_bytes
from attnref.numbers.shapes import Source
from attnref.released.specs import find_model
from sitekit.drawing import plots, svg
from sitekit.drawing.plots import Plot
from sitekit.drawing.svg import room
from sitekit.drawn.mla import V3
from sitekit.markdown.render import Row, Word
from sitekit.markdown.tables import links


class Gpu(NamedTuple):
    """Peak FLOP/s in bfloat16, without sparsity, and bytes per second."""

    name: str
    peak: float
    bandwidth: float
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
    "a100": Gpu("A100 80 GB SXM", 312e12, 2.039e12, _of_nvidia("a100")),
    "h100": Gpu("H100 SXM", 989e12, 3.35e12, _of_nvidia("h100")),
    "h200": Gpu("H200 SXM", 989e12, 4.8e12, _of_nvidia("h200")),
    "h20": Gpu(
        "H20 96 GB",
        148e12,
        4.0e12,
        (
            Source(
                "LMSYS", "https://lmsys.org/blog/2025-09-26-sglang-ant-group"
            ),
        ),
    ),
    "4090": Gpu("RTX 4090", 165.2e12, 1.008e12, (Source("NVIDIA", ADA),)),
    "mi300x": Gpu("MI300X", 1307.4e12, 5.3e12, (Source("AMD", AMD),)),
    "910c": Gpu(
        "Ascend 910C",  # one of its two dies
        353.9e12,
        1.6e12,
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
SEEN = 8192  # tokens that a decode step reads


def decode() -> dict[str, Cost]:
    """One token after 8191: MHA, GQA, MQA of Llama's shape, MLA of V3's."""
    past = SEEN - 1
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
    share, read = 32 / (32 + 8), _read()
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
                cost = mla_cost(**V3 | shape, form=name, past=SEEN - 1)
            else:
                K = {"mha": heads, "gqa": KV_HEADS, "mqa": 1}[name]
                cost = attention_cost(**shape, n_kv_heads=K, past=SEEN - 1)
            row.append(f"{float(cost.attention_intensity()):.4g}")
        yield row


def _prefill(new: int) -> Fraction:
    """FLOPs per byte of a prompt's attention in a layer with GQA: queries and
    outputs are moved too, since they are no fewer than keys."""
    cost = attention_cost(**LLAMA, n_kv_heads=KV_HEADS, new=new)
    moved = 2 * (cost.cached + 2 * new * LLAMA["d_model"])
    return Fraction(cost.scores + cost.values, moved)


def digits(n: float) -> str:
    """To three digits, and never as 7e+04."""
    return f"{float(f'{n:.3g}'):,.10g}"


def intensities() -> dict[str, float]:
    """FLOPs per byte: of the cache in decoding, of all in a prefill."""
    result = {
        name: float(cost.attention_intensity())
        for name, cost in decode().items()
    }
    return result | {"prefill": float(_prefill(2048))}


def attainable(intensity: float, gpu: Gpu = H100) -> float:
    """FLOP/s that a GPU can reach at most."""
    return min(gpu.peak, intensity * gpu.bandwidth)


def _roofline(narrow: bool) -> Figure:
    """What a GPU can reach at each intensity, and where attention stands."""
    marks = {1e12: "1", 1e13: "10", 1e14: "100", 1e15: "1,000"}
    width, height = (358, 318) if narrow else (700, 331)
    left, high = room(marks.values(), 11) + 8, height - 68
    ends = (0.5, 20_000.0)
    ticks = {float(t): f"{t:,}" for t in (1, 4, 32, 100, 1000, 10_000)}
    figure, axes, _ = plots.axes_in(
        (width, height),
        (left, 43, width - left - 14, high),
        x=(10, ticks, ends),
        y=(10, marks, (1e12, 3e15)),
    )
    axes.set_xlabel("{intensity}")
    axes.text(0, 1 + 10 / high, "{flops}", transform=axes.transAxes)
    dashes, dots = (0, (3, 3)), (0, (1, 2))
    for gpu, colour, style in (
        (H20, plots.SOFT, dashes),
        (H100, plots.INK, "-"),
    ):
        corners = [ends[0], gpu.ridge, ends[1]]
        roof = [attainable(x, gpu) for x in corners]
        axes.plot(corners, roof, color=colour, linewidth=2, linestyle=style)
        name = gpu.name.split()[0]
        axes.annotate(
            name,
            xy=(ends[1], gpu.peak),
            xytext=(-2, -10),
            textcoords="offset points",
            color=colour,
            va="center",
            ha="right",
        )
        low = gpu.peak / 3
        axes.vlines(
            gpu.ridge, low, gpu.peak, color=colour, linewidth=1, linestyle=dots
        )
        axes.text(
            gpu.ridge * 1.1, low, f"{gpu.ridge:.0f}", color=colour, va="bottom"
        )
    places: dict[str, tuple[float, float, str]] = {
        "mha": (12, -14, "left"),
        "expanded": (12, -30, "left"),
        "gqa": (12, -12, "left"),
        "mqa": (-10, 10, "right"),
        "absorbed": (-10, 16, "right"),
        "prefill": (0, 16, "center"),
    }
    for name, x in intensities().items():
        colour = plots.GREEN if name in ("expanded", "absorbed") else plots.WARM
        y = attainable(x)
        right, up, side = places[name]
        axes.plot([x], [y], marker="o", markersize=7, color=colour)
        axes.annotate(
            f"{{{name}}}",
            xy=(x, y),
            xytext=(right, up),
            textcoords="offset points",
            color=colour,
            va="center",
            ha=side,
        )
    return figure


def _points() -> Iterator[Row]:
    for name, x in intensities().items():
        row: Row = [Word(name), f"{x:,.4g}"]
        for gpu in (H100, H20):
            most = attainable(x, gpu)
            row += [f"{most / 1e12:,.4g}", f"{most / gpu.peak:.1%}"]
        yield row


def roofline() -> Plot:
    return plots.plotted(_roofline, [*_points()])


def _read() -> int:
    """Parameters that a step of Llama-3.1-8B reads: all of them but the table
    of embeddings, of which it takes one row per token."""
    params = find_model("llama-3.1-8b").params
    assert params is not None
    width: int = LLAMA["d_model"]
    return params - VOCABULARY * width


def _attended(tokens: int) -> int:
    """FLOPs of scores and values of one new token, in all layers."""
    cost = attention_cost(**LLAMA, n_kv_heads=KV_HEADS, past=tokens - 1)
    return LAYERS * (cost.scores + cost.values)


def _cache(tokens: int) -> int:
    return kv_bytes(find_model("llama-3.1-8b"), tokens)


def first() -> Iterator[Row]:
    """What must be computed before the first token: the prompt, causally, and
    the output projection for its last token alone."""
    output = VOCABULARY * LLAMA["d_model"]
    for new in (512, 2048, 8192, 32_768, 131_072):
        weights = 2 * (new * (_read() - output) + output)
        # Its queries have (new + 1) / 2 keys on average.
        attended = _attended(1) * new * (new + 1) // 2
        least = [(weights + attended) / gpu.peak for gpu in (H100, H20)]
        yield [
            f"{new:,}",
            digits(weights / 1e12),
            digits(attended / 1e12),
            *(digits(1e3 * t) for t in least),
        ]


def _step(tokens: int, batch: int, gpu: Gpu) -> tuple[list[str], float]:
    """Milliseconds of each part, and of the step. The matrices are read once
    and multiply the token of each sequence; each cache is read for its own. A
    GPU may read the one while it computes with the other, so that only the
    sums are a bound."""
    weights, caches = 2 * _read(), batch * _cache(tokens)
    read = [1e3 * n / gpu.bandwidth for n in (weights, caches)]
    flops = [batch * n for n in (2 * _read(), _attended(tokens))]
    done = [1e3 * n / gpu.peak for n in flops]
    least = max(sum(read), sum(done))
    parts = [read[0], done[0], read[1], done[1]]
    return [*(f"{part:.2f}" for part in parts), f"{least:.1f}"], least


def steps(tokens: int, batches: tuple[int, ...]) -> Iterator[Row]:
    """Decode steps of Llama-3.1-8B, and tokens per second in all."""
    for batch in batches:
        cells, least = _step(tokens, batch, H100)
        yield [str(batch), *cells, f"{batch * 1e3 / least:,.0f}"]


class DecodeStep(NamedTuple):
    """Of each batch: sequences, milliseconds to read the weights, to read the
    caches and to compute, and whether it fits into the GPU's memory."""

    batches: list[tuple[int, float, float, float, bool]]

    def drawing(
        self, axes: tuple[str, str], *, title: str, words: list[str]
    ) -> svg.Drawing:
        """`words`: weights, caches and arithmetic; a batch, with {0} for its
        sequences, {1} for the milliseconds and {2} for the tokens per second;
        and what does not fit, with {0} for its sequences."""
        *kinds, fitting, other = words
        wide, y, marks = 340, 8.0, list[Markup]()
        scale = wide / 24  # ms: what reading 80 GB takes

        def box(kind: str, x: float, y: float, w: float, h: float) -> None:
            marks.append(svg.BOX.format(kind, x, y, w, h, 0, ""))

        x = 0.0
        for kind, word in zip(
            ("weights", "value", "query"), kinds, strict=True
        ):
            box(kind, x + 1, y - 5, 10, 10)
            marks.append(svg.TEXT.format("beside axis", x + 16, y, "", word))
            x += 30 + svg.room([word], 11.5)
        for sequences, weights, caches, done, fits in self.batches:
            least = max(weights + caches, done)
            rate = f"{1e3 * sequences / least:,.0f}"
            label = other.format(sequences)
            if fits:
                label = fitting.format(sequences, f"{least:.1f}", rate)
            y += 26
            marks.append(svg.TEXT.format("beside", 0, y, "", label))
            y += 12
            if fits:
                box("weights", 0, y, scale * weights, 14)
                box("value", scale * weights, y, scale * caches, 14)
                box("query", 1, y + 16, max(1, scale * done), 5)
            y += 18
        drawn = svg.SVG.format(wide, y + 6, title, Markup("").join(marks))
        return svg.Drawing(title, 0, wide, drawn)


def step_time(*, tokens: int) -> DecodeStep:
    """A decode step of Llama-3.1-8B on an H100 of 80 GB, by its batch."""
    points = []
    for batch in (1, 8, 32, 128):
        weights, caches = 2 * _read(), batch * _cache(tokens)
        done = batch * (2 * _read() + _attended(tokens)) / H100.peak
        whole = weight_bytes(find_model("llama-3.1-8b")) + caches
        first, then = (1e3 * n / H100.bandwidth for n in (weights, caches))
        points.append((batch, first, then, 1e3 * done, whole <= 80e9))
    return DecodeStep(points)


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
        done = cost.scores + cost.values
        yield [Word(name), f"{done:,}", f"{done / plain:g}", f"{cost.cached:,}"]
