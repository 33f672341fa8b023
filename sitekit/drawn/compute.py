"""Operations, bytes and what a GPU can reach with them."""

from collections.abc import Iterator
from typing import Any

from matplotlib.figure import Figure

from attnref.numbers.cost import Cost, attention_cost, mla_cost
from attnref.numbers.kv_memory import size
from sitekit import plots
from sitekit.drawn.mla import V3
from sitekit.plots import Plot
from sitekit.render import Row, Word
from sitekit.svg import room

LLAMA: dict[str, Any] = {"d_model": 4096, "n_heads": 32}
SEEN = 8192  # tokens that a decode step reads
PEAK, BANDWIDTH = 989e12, 3.35e12  # H100 SXM, bfloat16 without sparsity


def decode() -> dict[str, Cost]:
    """One token after 8191: MHA, GQA, MQA of Llama's shape, MLA of V3's."""
    past = SEEN - 1
    return {
        "mha": attention_cost(**LLAMA, past=past),
        "gqa": attention_cost(**LLAMA, n_kv_heads=8, past=past),
        "mqa": attention_cost(**LLAMA, n_kv_heads=1, past=past),
        "expanded": mla_cost(**V3, form="expanded", past=past),
        "latent": mla_cost(**V3, form="latent", past=past),
        "absorbed": mla_cost(**V3, form="absorbed", past=past),
    }


def mega(n: int) -> str:
    return f"{n / 1e6:,.1f}"


def step() -> Iterator[Row]:
    for name, cost in decode().items():
        yield [
            Word(name),
            mega(cost.parameters),
            mega(cost.projections),
            mega(cost.scores),
            mega(cost.values),
            size(2 * cost.cached),
            f"{float(cost.attention_intensity()):,.4g}",
            f"{float(cost.intensity()):,.4g}",
        ]


def least() -> Iterator[Row]:
    """The least time that attention of this step can take on such a GPU."""
    for name, cost in decode().items():
        if name == "latent":
            continue
        read = 2 * cost.cached / BANDWIDTH * 1e6
        done = (cost.scores + cost.values) / PEAK * 1e6
        yield [
            Word(name),
            f"{read:.2f}",
            f"{done:.2f}",
            f"{max(read, done):.2f}",
        ]


def pairs() -> Iterator[Row]:
    """Operations for one query and one key, 128 heads of 128."""
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


def prompt() -> Iterator[Row]:
    """A whole prompt at once, GQA-8 of Llama's shape."""
    for new in (1024, 4096, 16_384, 65_536):
        cost = attention_cost(**LLAMA, n_kv_heads=8, new=new)
        products = cost.scores + cost.values
        yield [
            f"{new:,}",
            f"{cost.projections / 1e9:,.0f}",
            f"{products / 1e9:,.0f}",
            f"{products / cost.flops:.0%}",
        ]


def batches() -> Iterator[Row]:
    """Decoding more sequences at once: weights are shared, caches not."""
    for batch in (1, 8, 64, 256):
        cost = attention_cost(**LLAMA, n_kv_heads=8, past=SEEN - 1, batch=batch)
        yield [
            str(batch),
            size(2 * cost.parameters),
            size(2 * cost.cached),
            f"{cost.cached / (cost.cached + cost.parameters):.0%}",
            f"{float(cost.intensity()):.3g}",
        ]


def intensities() -> dict[str, float]:
    """Operations a byte: of the cache in decoding, of all in a prefill."""
    found = {
        name: float(cost.attention_intensity())
        for name, cost in decode().items()
        if name != "latent"
    }
    new = 2048
    prefill = attention_cost(**LLAMA, n_kv_heads=8, new=new)
    # So many queries and outputs are no less than the cache.
    moved = prefill.cached + 2 * new * LLAMA["d_model"]
    products = prefill.scores + prefill.values
    return found | {"prefill": products / (2 * moved)}


def attainable(intensity: float) -> float:
    """FLOP/s that an H100 can reach at most."""
    return min(PEAK, intensity * BANDWIDTH)


def _roofline(narrow: bool) -> Figure:
    """What a GPU can reach at each intensity, and where attention stands."""
    marks = [f"{m:,}" for m in (1, 10, 100, 1000)]
    width, height = (358, 318) if narrow else (700, 331)
    left = room(marks, 11) + 8
    figure, axes = plots.axes_in(
        width, height, (left, 43, width - left - 14, height - 68)
    )
    ends = [0.5, PEAK / BANDWIDTH, 20_000]
    axes.plot(ends, [attainable(x) for x in ends], color=plots.INK, linewidth=2)
    ticks = {float(t): f"{t:,}" for t in (1, 4, 32, 100, 1000, 10_000)}
    plots.logarithmic(axes.xaxis, 10, ticks, (ends[0], ends[-1]))
    flops = dict(zip((1e12, 1e13, 1e14, 1e15), marks, strict=True))
    plots.logarithmic(axes.yaxis, 10, flops, (1e12, 3e15))
    axes.grid(True)
    axes.set_xlabel("{intensity}")
    axes.text(0, 1 + 10 / (height - 68), "{flops}", transform=axes.transAxes)
    places: dict[str, tuple[float, float, str]] = {
        "mha": (12, -14, "left"),
        "expanded": (12, -30, "left"),
        "gqa": (12, -12, "left"),
        "mqa": (12, -12, "left"),
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
    ridge, dashes = PEAK / BANDWIDTH, (0, (3, 3))
    axes.axvline(ridge, color=plots.SOFT, linewidth=1, linestyle=dashes)
    axes.text(ridge * 1.08, 1.6e12, "{ridge}", color=plots.SOFT, va="center")
    return figure


def _points() -> Iterator[Row]:
    for name, x in intensities().items():
        most = attainable(x)
        flops, share = f"{most / 1e12:,.4g}", f"{most / PEAK:.1%}"
        yield [Word(name), f"{x:,.4g}", flops, share]


def roofline() -> Plot:
    return plots.plotted(_roofline, [*_points()])
