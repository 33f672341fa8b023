"""Operations, bytes and what a GPU can reach with them."""

from collections.abc import Iterator
from typing import Any

from matplotlib.figure import Figure

from attnref.numbers.cost import Cost, attention_cost, mla_cost
from attnref.numbers.kv_memory import size
from sitekit import plots
from sitekit.drawn.mla import FORMS, V3
from sitekit.plots import Plot
from sitekit.render import Row, Word
from sitekit.svg import room

LLAMA: dict[str, Any] = {"d_model": 4096, "n_heads": 32}
SEEN = 8192  # tokens that a decode step reads
PEAK, BANDWIDTH = 989e12, 3.35e12  # H100 SXM, bfloat16 without sparsity


def compared(
    shape: dict[str, Any], *forms: str, past: int = 0
) -> dict[str, Cost]:
    """A token of MHA, GQA-8 and MQA of a shape, and of MLA, which is V3's."""
    kv_heads = {"mha": shape["n_heads"], "gqa": 8, "mqa": 1}
    return {
        name: attention_cost(**shape, n_kv_heads=K, past=past)
        for name, K in kv_heads.items()
    } | {form: mla_cost(**V3, form=form, past=past) for form in forms}


def decode(*forms: str) -> dict[str, Cost]:
    """One token after 8191, of Llama's shape."""
    return compared(LLAMA, *forms, past=SEEN - 1)


def products(cost: Cost) -> int:
    """Operations between queries, keys and values."""
    return cost.scores + cost.values


def mega(n: int) -> str:
    return f"{n / 1e6:,.1f}"


def step() -> Iterator[Row]:
    for name, cost in decode(*FORMS).items():
        parts = cost.parameters, cost.projections, cost.scores, cost.values
        ratios = cost.attention_intensity(), cost.intensity()
        yield [
            Word(name),
            *map(mega, parts),
            size(2 * cost.cached),
            *(f"{float(ratio):,.4g}" for ratio in ratios),
        ]


def least() -> Iterator[Row]:
    """The least time that attention of this step can take on such a GPU."""
    for name, cost in decode("expanded", "absorbed").items():
        times = 2 * cost.cached / BANDWIDTH, products(cost) / PEAK
        told = (f"{time * 1e6:.2f}" for time in (*times, max(times)))
        yield [Word(name), *told]


def pairs() -> Iterator[Row]:
    """Operations for one query and one key, 128 heads of 128."""
    heads = {"d_model": 16_384, "n_heads": 128}
    costs = compared(heads, "expanded", "absorbed")
    for name, cost in costs.items():
        done = products(cost)
        share = f"{done / products(costs['mha']):g}"
        yield [Word(name), f"{done:,}", share, f"{cost.cached:,}"]


def prompt() -> Iterator[Row]:
    """A whole prompt at once, GQA-8 of Llama's shape."""
    for new in (1024, 4096, 16_384, 65_536):
        cost = attention_cost(**LLAMA, n_kv_heads=8, new=new)
        parts = cost.projections, products(cost)
        giga = (f"{n / 1e9:,.0f}" for n in parts)
        yield [f"{new:,}", *giga, f"{parts[1] / cost.flops:.0%}"]


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
    new = 2048
    prefill = attention_cost(**LLAMA, n_kv_heads=8, new=new)
    # So many queries and outputs are no less than the cache.
    moved = 2 * (prefill.cached + 2 * new * LLAMA["d_model"])
    return {
        name: float(cost.attention_intensity())
        for name, cost in decode("expanded", "absorbed").items()
    } | {"prefill": products(prefill) / moved}


def attainable(intensity: float) -> float:
    """FLOP/s that an H100 can reach at most."""
    return min(PEAK, intensity * BANDWIDTH)


def _roofline(narrow: bool) -> Figure:
    """What a GPU can reach at each intensity, and where attention stands."""
    marks = {1e12: "1", 1e13: "10", 1e14: "100", 1e15: "1,000"}
    width, height = (358, 318) if narrow else (700, 331)
    left, high = room(marks.values(), 11) + 8, height - 68
    ridge, dashes = PEAK / BANDWIDTH, (0, (3, 3))
    ends = [0.5, ridge, 20_000]
    ticks = {float(t): f"{t:,}" for t in (1, 4, 32, 100, 1000, 10_000)}
    figure, axes, _ = plots.axes_in(
        (width, height),
        (left, 43, width - left - 14, high),
        x=(10, ticks, (ends[0], ends[-1])),
        y=(10, marks, (1e12, 3e15)),
    )
    axes.plot(ends, [attainable(x) for x in ends], color=plots.INK, linewidth=2)
    axes.set_xlabel("{intensity}")
    axes.text(0, 1 + 10 / high, "{flops}", transform=axes.transAxes)
    points = dict.fromkeys(("gqa", "mqa"), (12, -12, "left"))
    points |= {"mha": (12, -14, "left"), "expanded": (12, -30, "left")}
    points |= {"absorbed": (-10, 16, "right"), "prefill": (0, 16, "center")}
    for name, x in intensities().items():
        colour = plots.GREEN if name in FORMS else plots.WARM
        axes.plot([x], [attainable(x)], "o", markersize=7, color=colour)
        *offset, side = points[name]
        text: Any = {"text": f"{{{name}}}", "color": colour, "ha": side}
        text |= {"xytext": offset, "textcoords": "offset points"}
        axes.annotate(xy=(x, attainable(x)), va="center", **text)
    axes.axvline(ridge, color=plots.SOFT, linewidth=1, linestyle=dashes)
    axes.text(ridge * 1.08, 1.6e12, "{ridge}", color=plots.SOFT, va="center")
    return figure


def roofline() -> Plot:
    rows: list[Row] = []
    for name, x in intensities().items():
        most = attainable(x)
        flops, share = f"{most / 1e12:,.4g}", f"{most / PEAK:.1%}"
        rows.append([Word(name), f"{x:,.4g}", flops, share])
    return plots.plotted(_roofline, rows)
