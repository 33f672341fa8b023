"""Plots: matplotlib's axes, attnref's numbers, the page's words.

Text stays text and colours are the page's own, so that a plot follows the
scheme. A word of the page stands as `{key}` until the page fills it in. Each
is drawn twice, wide and for the column of a phone; the page shows what fits.
"""

import io
import re
from collections.abc import Callable
from statistics import fmean
from typing import Any, Literal, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from matplotlib.transforms import Affine2D, Transform

from sitekit.markdown.render import Rows

# Each colour of a drawing becomes one of the page's scheme.
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


class Plot(NamedTuple):
    wide: str
    narrow: str
    rows: Rows  # its numbers, as a table


def plotted(draw: Callable[[bool], Figure], rows: Rows) -> Plot:
    """What `draw(narrow)` draws, in our style."""

    def one(kind: str) -> str:
        # Names in it are its own: both stand in one page.
        salt = {"svg.hashsalt": f"{draw.__name__} {kind}"}
        with matplotlib.rc_context(STYLE | salt):
            return _svg(draw(kind == "narrow"), kind)

    return Plot(one("wide"), one("narrow"), rows)


def _svg(figure: Figure, kind: str) -> str:
    """The drawing, with colours and fonts left to the page's style."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    extras = r"(<(metadata|style).*?</\2>|<!--.*?-->)\s*"
    text = re.sub(extras, "", text, flags=re.DOTALL)
    text = re.sub(r"\n *", "\n", re.sub(r"(\.\d\d)\d+", r"\1", text))
    default = r' font-family: [^;"]*;?| transform="rotate\(-0 [^"]*"'
    text = re.sub(default, "", text)
    links = set(re.findall(r"[#(]#?(\w+)[\")]", text))
    text = re.sub(r' id="(\w+)"', lambda m: m[0] if m[1] in links else "", text)
    width, height = re.findall(r'(?:width|height)="([\d.]+)pt"', text)[:2]
    head = f'<svg class="{kind} plot" viewBox="0 0 {width} {height}"'
    head += f' width="{width}" height="{height}" role="img"'
    text = re.sub(r"<svg[^>]*>", f'{head} aria-label="{{title}}">', text, count=1)
    for placeholder, colour in INKS.items():
        text = text.replace(placeholder, colour)
    colours = set(re.findall(r"#[0-9a-f]{6}\b", text)) - {"#ffffff"}
    if colours:
        message = f"no scheme of the page has the colours {', '.join(colours)}"
        raise ValueError(f"{message}: draw in those of sitekit/drawing/plots.py")
    return text.strip()


# An axis: its base, or 0 if it is linear, the text of each mark, and its ends.
Scale = tuple[int, dict[float, str], tuple[float, float]]
PHONE, WIDE = 358, 700  # the width of a narrow plot and of a wide one, in px
NAME_UP = 9  # from the axes to the name of y above them
ROW, SAMPLE, SAMPLE_GAP = 20, 26, 8  # of a legend


class Edges(NamedTuple):
    """What stays free around the axes, in px: for what stands beside them."""

    left: float
    right: float
    below: float
    above: float


class Label(NamedTuple):
    """Where the name of a point stands, in px from the point."""

    right: int
    up: int
    align: Literal["left", "center", "right"]


class Chart(NamedTuple):
    """Axes of `width` x `height` px. What has `inside` for its transform is
    placed in px from their lower left corner."""

    figure: Figure
    axes: Axes
    inside: Transform
    width: float
    height: float

    def name_axes(self, x: str, y: str) -> None:
        """x stands below its axis, y above its own."""
        self.axes.set_xlabel(x)
        above = self.height + NAME_UP
        self.axes.text(0, above, y, transform=self.inside)

    def label(self, name: str, point: tuple[float, float], place: Label, *, color: str) -> None:
        self.axes.annotate(
            name,
            xy=point,
            xytext=(place.right, place.up),
            textcoords="offset points",
            color=color,
            va="center",
            ha=place.align,
        )

    def key(self, x: float, y: float, name: str, *, sample: float = SAMPLE, **look: Any) -> None:
        """One entry of the legend: a line or, without a `sample`, a marker."""
        ends = [x, x + sample] if sample else [x]
        place: Any = {"transform": self.inside, "clip_on": False}
        self.axes.plot(ends, [y for _ in ends], **look, **place)
        right = x + sample + SAMPLE_GAP
        self.axes.text(right, y, name, va="center", transform=self.inside)


def make_chart(size: tuple[float, float], edges: Edges, *, x: Scale, y: Scale) -> Chart:
    """All sizes are pixels of the page."""
    width, height = size
    inner_width = width - edges.left - edges.right
    inner_height = height - edges.below - edges.above
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    figure.patch.set_visible(False)
    axes = figure.add_axes(
        (edges.left / width, edges.below / height, inner_width / width, inner_height / height)
    )
    axes.patch.set_visible(False)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=6)
    axes.grid(True)
    for name, (base, marks, ends) in (("x", x), ("y", y)):
        axis = getattr(axes, f"{name}axis")
        if base:
            getattr(axes, f"set_{name}scale")("log", base=base)
        getattr(axes, f"set_{name}lim")(*ends)
        axis.set_major_locator(FixedLocator(list(marks)))
        axis.set_major_formatter(FixedFormatter(list(marks.values())))
        axis.set_minor_locator(NullLocator())
    pixels = Affine2D().scale(1 / inner_width, 1 / inner_height)
    inside = pixels + axes.transAxes
    return Chart(figure, axes, inside, inner_width, inner_height)


class Curve(NamedTuple):
    """Points, how matplotlib draws them, and the first and the distance of
    those that get a marker, if not all do."""

    x: list[float]
    y: list[float]
    look: dict[str, Any]
    markers: tuple[int, int] | None = None


def curves(
    narrow: bool,
    curves: dict[str, Curve],
    *,
    x: Scale,
    y: Scale,
    names: tuple[str, str],
    left: float,
    legend: float,
    landmark: tuple[float, str] | None = None,
) -> Figure:
    """Curves with their names, beside them in `legend` px or, if it is narrow,
    below; a vertical line marks a `landmark`, with its name at the top."""
    rows = ROW * len(curves)
    size, edges = (WIDE, 310), Edges(left, legend, below=46, above=30)
    if narrow:
        size = PHONE, 300 + rows
        edges = Edges(left, right=26, below=58 + rows, above=30)
    chart = make_chart(size, edges, x=x, y=y)
    chart.name_axes(*names)
    if landmark:
        place, name = landmark
        chart.axes.axvline(place, color=SOFT, linestyle=(0, (2, 3)))
        chart.axes.text(place, y[2][1], f"{name} ", ha="right", va="top")
    key_x, key_y = chart.width + 22, chart.height - 14
    if narrow:
        key_x, key_y = 4 - left, -66
    for n, (name, curve) in enumerate(curves.items()):
        look = {"linewidth": 1.8, "markersize": 5} | curve.look
        marked: Any = {"markevery": curve.markers, "clip_on": False}
        chart.axes.plot(curve.x, curve.y, **look, **marked)
        chart.key(key_x, key_y - ROW * n, name, **look)
    return chart.figure


def apart(heights: list[float], least: float) -> list[float]:
    """Places as near to `heights` as possible, with `least` between two."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    # Without the distances between them, heights in order may not fall: an
    # isotonic regression, by its formula of means.
    moved = [heights[i] - n * least for n, i in enumerate(order)]
    places = heights.copy()
    for n, i in enumerate(order):
        ends = range(n + 1, len(moved) + 1)
        means = (min(fmean(moved[a:b]) for b in ends) for a in range(n + 1))
        places[i] = max(means) + n * least
    return places
