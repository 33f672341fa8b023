"""Plots: matplotlib's axes, attnref's numbers, the page's words.

Text stays text and colours are the page's own, so that a plot follows the
scheme. A word of the page stands as `{key}` until the page fills it in. Each
is drawn twice, wide and for the column of a phone; the page shows what fits.
"""

import io
import re
from collections.abc import Callable, Mapping
from functools import wraps
from html import escape
from math import log2
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from matplotlib.transforms import Affine2D

from attnref.numbers.cost import attention_cost
from attnref.numbers.kv_memory import kv_bytes, size
from attnref.numbers.specs import find_model
from sitekit.figures import room
from sitekit.interactive import kinds
from sitekit.kept import kept
from sitekit.numbers import BANDWIDTH, DOZEN, LLAMA, PEAK, PLOT, decode, short

# What is drawn in these colours gets those of the scheme.
INKS = {
    "#000001": "var(--ink)",
    "#000002": "var(--ink-soft)",
    "#000003": "var(--line)",
    "#000004": "var(--green)",
    "#000005": "var(--warm)",
    "#000006": "var(--code-keyword)",
    "#000007": "var(--code-name)",
}
INK, SOFT, LINE, GREEN, WARM, BLUE, PURPLE = INKS
STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 11,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
}


def _svg(figure: Figure, kind: str) -> str:
    """The drawing, with colours and fonts left to the page's style."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<style.*?</style>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r" font-family: [^;\"]*;?", "", text)
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    used = set(re.findall(r"[#(]#?(\w+)[\")]", text))
    text = re.sub(r' id="(\w+)"', lambda m: m[0] if m[1] in used else "", text)
    width, height = re.findall(r'(?:width|height)="([\d.]+)pt"', text)[:2]
    head = f'<svg class="{kind} plot" viewBox="0 0 {width} {height}"'
    head += f' width="{width}" height="{height}" role="img"'
    text = re.sub(
        r"<svg[^>]*>", f'{head} aria-label="{{title}}">', text, count=1
    )
    for placeholder, colour in INKS.items():
        text = text.replace(placeholder, colour)
    left = set(re.findall(r"#[0-9a-f]{6}\b", text)) - {"#ffffff"}
    if left:
        raise ValueError(f"colours that no scheme knows: {left}")
    return text.strip()


def _styled(
    draw: Callable[[bool], Figure],
) -> Callable[[], tuple[str, str]]:
    """A drawing in our style, wide and narrow, made once."""

    def one(kind: str) -> str:
        # Names in it are its own: both stand in one page.
        salt = {"svg.hashsalt": f"{draw.__name__} {kind}"}
        with matplotlib.rc_context(STYLE | salt):
            return _svg(draw(kind == "narrow"), kind)

    @wraps(draw)
    def drawn() -> tuple[str, str]:
        return one("wide"), one("narrow")

    return kept(drawn)


def _axes(
    width: float, height: float, box: tuple[float, float, float, float]
) -> tuple[Figure, Axes]:
    """Axes at left, bottom, width, height, in pixels of the page."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    figure.patch.set_visible(False)
    left, bottom, wide, high = box
    axes = figure.add_axes(
        (left / width, bottom / height, wide / width, high / height)
    )
    axes.patch.set_visible(False)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=6)
    return figure, axes


def _apart(heights: list[float], least: float) -> list[float]:
    """Places as near to `heights` as they can be, `least` apart."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    blocks: list[list[float]] = []  # middle of a block, and how many it has
    for i in order:
        blocks.append([heights[i], 1])
        while len(blocks) > 1:
            (m1, n1), (m2, n2) = blocks[-2:]
            if m2 - m1 >= least * (n1 + n2) / 2:
                break
            blocks[-2:] = [[(m1 * n1 + m2 * n2) / (n1 + n2), n1 + n2]]
    places = [0.0] * len(heights)
    at = iter(order)
    for middle, n in blocks:
        for k in range(int(n)):
            places[next(at)] = middle + (k - (n - 1) / 2) * least
    return places


LOOKS: Mapping[str, tuple[str, Any]] = {
    "whole": (WARM, "-"),
    "window": (BLUE, (0, (6, 2))),
    "latent": (GREEN, "-"),
    "state": (PURPLE, (0, (2, 1.5))),
}


def look(name: str) -> str:
    """Which kind of line a model gets."""
    found = set(kinds(find_model(name)))
    if "state" in found:
        return "state"
    if found & {"MLA", "shared"}:
        return "latent"
    return "window" if "window" in found else "whole"


@_styled
def contexts(narrow: bool) -> Figure:
    """Bytes of the cache against tokens, both in powers of two."""
    low, high = 2.0**22, 2.0**40
    marks = [2**i for i in range(22, 41, 3)]
    names = [find_model(name).name for name in DOZEN]
    width, height = (358, 500) if narrow else (700, 446)
    left = room(map(size, marks), 11) + 8
    wide = width - left - room(names, 11) - 18
    box = (left, 124, wide, 352) if narrow else (left, 45, wide, 379)
    figure, axes = _axes(width, height, box)
    tokens = [2**i for i in range(10, 21)]
    ends = []
    for name in DOZEN:
        model = find_model(name)
        taken = [kv_bytes(model, t) for t in tokens]
        colour, dashes = LOOKS[look(name)]
        axes.plot(tokens, taken, color=colour, linestyle=dashes, linewidth=1.8)
        if model.max_context <= tokens[-1]:
            axes.plot(
                [model.max_context],
                [kv_bytes(model, model.max_context)],
                color=colour,
                marker="o",
                markersize=5,
                linestyle="none",
                clip_on=False,
            )
        ends.append((taken[-1], colour))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlim(tokens[0], tokens[-1])
    axes.set_ylim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(tokens[::2]))
    axes.xaxis.set_major_formatter(
        FixedFormatter([short(t) for t in tokens[::2]])
    )
    axes.yaxis.set_major_locator(FixedLocator(marks))
    axes.yaxis.set_major_formatter(FixedFormatter([size(m) for m in marks]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.grid(True)
    axes.set_xlabel("{tokens}")
    pixels = Affine2D().scale(1 / box[2], 1 / box[3]) + axes.transAxes
    axes.text(0, box[3] + 8, "{bytes}", transform=pixels)
    span = box[3] / log2(high / low)
    heights = [log2(taken / low) * span for taken, _ in ends]
    for name, (_, colour), at, to in zip(
        names, ends, heights, _apart(heights, 16), strict=True
    ):
        axes.annotate(
            name,
            xy=(box[2], at),
            xytext=(box[2] + 16, to),
            xycoords=pixels,
            textcoords=pixels,
            color=colour,
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.8,
                "relpos": (0, 0.5),  # to where the name begins
                "shrinkA": 1,
                "shrinkB": 0,
            },
        )
    # Below the axes of a phone, they begin where the drawing does.
    x, y = (2 - left, -58) if narrow else (10, box[3] - 13)
    for i, key in enumerate(LOOKS):
        colour, dashes = LOOKS[key]
        at = y - 19 * i
        axes.plot(
            [x, x + 23],
            [at, at],
            color=colour,
            linestyle=dashes,
            linewidth=1.8,
            transform=pixels,
            clip_on=False,
        )
        axes.text(x + 28, at, f"{{{key}}}", va="center", transform=pixels)
    return figure


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


@_styled
def roofline(narrow: bool) -> Figure:
    """What a GPU can reach at each intensity, and where attention stands."""
    marks = [f"{m:,}" for m in (1, 10, 100, 1000)]
    width, height = (358, 318) if narrow else (700, 331)
    left = room(marks, 11) + 8
    figure, axes = _axes(
        width, height, (left, 43, width - left - 14, height - 68)
    )
    ends = [0.5, PEAK / BANDWIDTH, 20_000]
    axes.plot(ends, [attainable(x) for x in ends], color=INK, linewidth=2)
    axes.set_xscale("log", base=10)
    axes.set_yscale("log", base=10)
    axes.set_xlim(ends[0], ends[-1])
    axes.set_ylim(1e12, 3e15)
    ticks = [1, 4, 32, 100, 1000, 10_000]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{t:,}" for t in ticks]))
    axes.yaxis.set_major_locator(FixedLocator([1e12, 1e13, 1e14, 1e15]))
    axes.yaxis.set_major_formatter(FixedFormatter(marks))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
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


def roofline_rows() -> list[list[str]]:
    return [
        [
            f"{{{name}}}",
            f"{x:,.4g}",
            f"{attainable(x) / 1e12:,.4g}",
            f"{attainable(x) / PEAK:.1%}",
        ]
        for name, x in intensities().items()
    ]


def contexts_rows() -> list[list[str]]:
    chosen = [find_model(name) for name in DOZEN]
    return [[m.name, *(size(kv_bytes(m, t)) for t in PLOT)] for m in chosen]


Rows = Callable[[], list[list[str]]]
PLOTS: dict[str, tuple[Callable[[], tuple[str, str]], Rows]] = {
    "contexts": (contexts, contexts_rows),
    "roofline": (roofline, roofline_rows),
}


def plot(spec: dict[str, Any]) -> str:
    """plot, title, caption, words, and for its table: numbers, head."""
    drawn, rows = PLOTS[spec["plot"]]
    svg, words = "".join(drawn()), {**spec["words"], "title": spec["title"]}
    wanted = set(re.findall(r"\{(\w+)\}", svg))
    if wanted != set(words):
        raise ValueError(f"words differ: {sorted(wanted ^ set(words))}")

    def filled(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda m: escape(words[m[1]]), text)

    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in spec["head"])
    lines = ""
    for row in rows():
        if len(row) != len(spec["head"]):
            raise ValueError(f"{len(spec['head'])} heads, {len(row)} columns")
        cells = "".join(f"<td>{filled(cell)}</td>" for cell in row[1:])
        lines += f'<tr><th scope="row">{filled(row[0])}</th>{cells}</tr>'
    return (
        '<figure class="drawn"><div class="scroll plots" data-search-exclude>'
        f"{filled(svg)}</div>"
        f"<figcaption>{escape(spec['caption'], quote=False)}</figcaption>"
        f"<details><summary>{escape(spec['numbers'])}</summary>"
        '<div class="scroll"><table class="tabular"><thead><tr>'
        f"{head}</tr></thead><tbody>{lines}</tbody></table></div></details>"
        "</figure>"
    )
