"""The marks of which drawings are made: text, boxes, lines, arrows.

A drawing is set in whatever font its reader has, and a text in SVG neither
wraps nor pushes anything away. So every drawing is laid out for the widest of
the common fonts, DejaVu Sans, and holds in all the others. All lengths are
pixels; colours are classes of the theme.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
from markupsafe import Markup, escape
from matplotlib.ft2font import FT2Font, LoadFlags


class Drawing(NamedTuple):
    """`room` is the width of the title at 1 px, `width` that of the drawing:
    panels share a row by them. `below` are lines of text."""

    title: str
    room: float
    width: float
    svg: Markup
    scrolls: bool = False
    below: Sequence[str] = ()


@cache
def _font(name: str) -> FT2Font:
    folder = Path(matplotlib.get_data_path(), "fonts/ttf")
    return FT2Font(str(folder / f"{name}.ttf"))


def room(texts: Iterable[str], size: float, font: str = "DejaVuSans") -> float:
    """The width of the longest of the texts in the widest common font."""
    face = _font(font)

    def width(letter: str) -> float:
        if not face.get_char_index(ord(letter)):
            return 1  # Chinese: as wide as it is high
        glyph = face.load_char(ord(letter), flags=LoadFlags.NO_SCALE)
        return glyph.horiAdvance / face.units_per_EM

    return size * max(sum(map(width, text)) for text in texts)


SANS, BOLD, MONO = "DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono"
MARGIN = 2
AXIS = MARGIN + 10  # the middle of an axis' name, from the edge

TEXT = '<text class="{}" x="{:g}" y="{:g}"{}>{}</text>'
BOX = '<rect class="{}" x="{:g}" y="{:g}" width="{:g}" height="{:g}" rx="{}"{}/>'
LINE = '<line x1="{:g}" y1="{:g}" x2="{:g}" y2="{:g}"/>'
PATH = '<path class="{}" d="{}"/>'
CIRCLE = '<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{:g}"/>'
UPWARDS = ' transform="translate({:g} {:g}) rotate(-90)"'
PICTURE = (
    '<svg{3} viewBox="0 0 {0:g} {1:g}" width="{0:g}" height="{1:g}" '
    'role="img" aria-label="{2}">{4}</svg>'
)


def _mark(form: str, *values: object) -> Markup:
    # Thousands of times a build: Markup.format would take a tenth of it.
    return Markup(form.format(*values))


def text(kind: str, x: float, y: float, words: object, more: str = "") -> Markup:
    """`y` is the middle of its height; `kind`, its classes, say of `x`."""
    return _mark(TEXT, kind, x, y, more, escape(words))


def box(
    kind: str, x: float, y: float, width: float, height: float, rx: int = 3, more: str = ""
) -> Markup:
    """`x` and `y` are its upper left corner, `rx` the radius of the corners."""
    return _mark(BOX, kind, x, y, width, height, rx, more)


def cell(
    kind: str,
    x: float,
    y: float,
    width: float,
    height: float,
    words: object,
    *,
    ink: str | None = None,
    rx: int = 3,
    more: str = "",
) -> Markup:
    """A box with words in its middle, of the same class or that of `ink`."""
    middle = x + width / 2, y + height / 2
    words_in_it = text(kind if ink is None else ink, *middle, words)
    return box(kind, x, y, width, height, rx, more) + words_in_it


def line(x1: float, y1: float, x2: float, y2: float) -> Markup:
    return _mark(LINE, x1, y1, x2, y2)


def path(kind: str, points: Iterable[complex], closed: bool = False) -> Markup:
    places = "L".join(f"{z.real:.1f} {z.imag:.1f}" for z in points)
    return _mark(PATH, kind, f"M{places}{'Z' if closed else ''}")


def arrow(kind: str, start: complex, tip: complex) -> Markup:
    back = start - tip
    head = [8 * back / abs(back) * complex(1, side) for side in (0.5, -0.5)]
    barbs = "".join(
        f"M{(tip + z).real:.1f} {(tip + z).imag:.1f}L{tip.real:.1f} {tip.imag:.1f}" for z in head
    )
    shaft = f"M{start.real:.1f} {start.imag:.1f}L{tip.real:.1f} {tip.imag:.1f}"
    return _mark(PATH, f"arrow {kind}", shaft + barbs)


def circle(kind: str, x: float, y: float, radius: float) -> Markup:
    return _mark(CIRCLE, kind, x, y, radius)


def axis_names(axes: tuple[str, str], x: float, y: float) -> Markup:
    """The name of the axis across, above `x`, and that of the one down, which
    is read upwards, left of `y`."""
    down, across = axes
    upwards = UPWARDS.format(AXIS, y)
    return text("axis", x, AXIS, across) + text("axis", 0, 0, down, upwards)


def picture(
    width: float, height: float, title: str, marks: Iterable[Markup], attributes: str = ""
) -> Markup:
    """The SVG; a screen reader says its title."""
    size = width, height
    return _mark(PICTURE, *size, escape(title), attributes, "".join(marks))


def drawing(width: float, height: float, title: str, marks: Iterable[Markup]) -> Drawing:
    svg = picture(width, height, title, marks)
    return Drawing(title, room([title], 1, BOLD), width, svg)
