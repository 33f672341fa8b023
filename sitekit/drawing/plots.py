"""Plots: matplotlib's axes, attnref's numbers, the page's words.

Text stays text and colours are the page's own, so that a plot follows the
scheme. A word of the page stands as `{key}` until the page fills it in. Each
is drawn twice, wide and for the column of a phone; the page shows what fits.
"""

import io
import re
from collections.abc import Callable
from statistics import fmean
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from matplotlib.transforms import Affine2D, Transform

from sitekit.markdown.render import Rows

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
    others = r"(<(metadata|style).*?</\2>|<!--.*?-->)\s*"
    text = re.sub(others, "", text, flags=re.DOTALL)
    text = re.sub(r"\n *", "\n", re.sub(r"(\.\d\d)\d+", r"\1", text))
    left_out = r' font-family: [^;"]*;?| transform="rotate\(-0 [^"]*"'
    text = re.sub(left_out, "", text)
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
        why = f"no scheme of the page has the colours {', '.join(left)}"
        raise ValueError(f"{why}: draw in those of sitekit/drawing/plots.py")
    return text.strip()


# Of an axis: its base, or 0 if it is linear, what is marked, and its ends.
Scale = tuple[int, dict[float, str], tuple[float, float]]


def axes_in(
    size: tuple[float, float],
    box: tuple[float, float, float, float],
    *,
    x: Scale,
    y: Scale,
) -> tuple[Figure, Axes, Transform]:
    """Axes at left, bottom, width, height, and what places things in them: all
    in pixels of the page."""
    width, height = size
    left, bottom, wide, high = box
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    figure.patch.set_visible(False)
    axes = figure.add_axes(
        (left / width, bottom / height, wide / width, high / height)
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
    pixels = Affine2D().scale(1 / wide, 1 / high) + axes.transAxes
    return figure, axes, pixels


def apart(heights: list[float], least: float) -> list[float]:
    """Places as near to `heights` as they can be, `least` apart."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    # What is left of them less those distances may not fall: an isotonic
    # regression, by its formula of means.
    left = [heights[i] - n * least for n, i in enumerate(order)]
    places = heights.copy()
    for n, i in enumerate(order):
        ends = range(n + 1, len(left) + 1)
        means = (min(fmean(left[a:b]) for b in ends) for a in range(n + 1))
        places[i] = max(means) + n * least
    return places
