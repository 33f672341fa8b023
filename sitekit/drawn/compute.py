"""Operations, bytes and what a GPU can reach with them."""

from functools import cache
from typing import Any

from matplotlib.figure import Figure

from attnref.cost import Cost, attention_cost, mla_cost
from attnref.kv_memory import size
from sitekit.drawn.mla import V3
from sitekit.plots import (
    GREEN,
    INK,
    SOFT,
    WARM,
    Plot,
    axes_in,
    logarithmic,
    plotted,
)
from sitekit.render import Rows, Word
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


def step() -> Rows:
    return [
        [
            Word(name),
            mega(cost.parameters),
            mega(cost.projections),
            mega(cost.scores),
            mega(cost.values),
            size(2 * cost.cached),
            f"{float(cost.attention_intensity()):,.4g}",
            f"{float(cost.intensity()):,.4g}",
        ]
        for name, cost in decode().items()
    ]


def least() -> Rows:
    """The least time that attention of this step can take on such a GPU."""
    rows: Rows = []
    for name, cost in decode().items():
        if name == "latent":
            continue
        read = 2 * cost.cached / BANDWIDTH * 1e6
        done = (cost.scores + cost.values) / PEAK * 1e6
        rows.append(
            [Word(name), f"{read:.2f}", f"{done:.2f}", f"{max(read, done):.2f}"]
        )
    return rows


def pairs() -> Rows:
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
    return [
        [
            Word(name),
            f"{cost.scores + cost.values:,}",
            f"{(cost.scores + cost.values) / plain:g}",
            f"{cost.cached:,}",
        ]
        for name, cost in costs.items()
    ]


def prompt() -> Rows:
    """A whole prompt at once, GQA-8 of Llama's shape."""
    rows: Rows = []
    for new in (1024, 4096, 16_384, 65_536):
        cost = attention_cost(**LLAMA, n_kv_heads=8, new=new)
        products = cost.scores + cost.values
        rows.append(
            [
                f"{new:,}",
                f"{cost.projections / 1e9:,.0f}",
                f"{products / 1e9:,.0f}",
                f"{products / cost.flops:.0%}",
            ]
        )
    return rows


def batches() -> Rows:
    """Decoding more sequences at once: weights are shared, caches not."""
    rows: Rows = []
    for batch in (1, 8, 64, 256):
        cost = attention_cost(**LLAMA, n_kv_heads=8, past=SEEN - 1, batch=batch)
        rows.append(
            [
                str(batch),
                size(2 * cost.parameters),
                size(2 * cost.cached),
                f"{cost.cached / (cost.cached + cost.parameters):.0%}",
                f"{float(cost.intensity()):.3g}",
            ]
        )
    return rows


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
    figure, axes = axes_in(
        width, height, (left, 43, width - left - 14, height - 68)
    )
    ends = [0.5, PEAK / BANDWIDTH, 20_000]
    axes.plot(ends, [attainable(x) for x in ends], color=INK, linewidth=2)
    ticks = {float(t): f"{t:,}" for t in (1, 4, 32, 100, 1000, 10_000)}
    logarithmic(axes.xaxis, 10, ticks, (ends[0], ends[-1]))
    flops = dict(zip((1e12, 1e13, 1e14, 1e15), marks, strict=True))
    logarithmic(axes.yaxis, 10, flops, (1e12, 3e15))
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
        colour = GREEN if name in ("expanded", "absorbed") else WARM
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
    axes.axvline(
        PEAK / BANDWIDTH, color=SOFT, linewidth=1, linestyle=(0, (3, 3))
    )
    axes.text(
        PEAK / BANDWIDTH * 1.08, 1.6e12, "{ridge}", color=SOFT, va="center"
    )
    return figure


@cache
def roofline() -> Plot:
    rows: Rows = [
        [
            Word(name),
            f"{x:,.4g}",
            f"{attainable(x) / 1e12:,.4g}",
            f"{attainable(x) / PEAK:.1%}",
        ]
        for name, x in intensities().items()
    ]
    return plotted(_roofline, rows)
