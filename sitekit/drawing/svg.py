"""The kinds of drawing: heat map and bars.

A matrix is drawn as a heat map, a vector as bars; the words are
the page's, so that one drawing serves both languages.

A drawing is set in whatever font its reader has, and a text in SVG neither
wraps nor pushes anything away. So every drawing is laid out for the widest of
the common fonts, DejaVu Sans, and holds in all the others.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
import torch
from markupsafe import Markup, escape
from matplotlib.ft2font import FT2Font, LoadFlags
from torch import Tensor


class Drawing(NamedTuple):
    """`room` is what the title takes at 1 px, `width` what the drawing does:
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
    """Pixels that the longest of the texts takes in the widest common font."""
    face = _font(font)

    def width(letter: str) -> float:
        if not face.get_char_index(ord(letter)):
            return 1  # Chinese: as wide as it is high
        glyph = face.load_char(ord(letter), flags=LoadFlags.NO_SCALE)
        return glyph.horiAdvance / face.units_per_EM

    return size * max(sum(map(width, text)) for text in texts)


SANS, BOLD, MONO = "DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono"
TEXT = Markup('<text class="{}" x="{:g}" y="{:g}"{}>{}</text>')
UPWARDS = Markup(' transform="translate({:g} {:g}) rotate(-90)"')
LINE = Markup('<line x1="{:g}" y1="{:g}" x2="{:g}" y2="{:g}"/>')
BOX = Markup(
    '<rect class="{}" x="{:g}" y="{:g}" width="{:g}" height="{:g}" rx="{}"{}/>'
)
SVG = Markup(
    '<svg viewBox="0 0 {0:g} {1:g}" width="{0:g}" height="{1:g}" role="img" '
    'aria-label="{2}">{3}</svg>'
)
CELL, GAP, MARGIN = 36, 2, 2


def _drawing(
    width: float, height: float, title: str, marks: list[Markup]
) -> Drawing:
    svg = SVG.format(width, height, title, Markup("").join(marks))
    return Drawing(title, room([title], 1, BOLD), width, svg)


def _text(kind: str, x: float, y: float, text: str, more: str = "") -> Markup:
    # Thousands of times a build: Markup.format would take a tenth of it.
    return Markup(str.format(TEXT, kind, x, y, more, escape(text)))


def _box(
    kind: str, x: float, y: float, w: float, h: float, rx: int, more: str = ""
) -> Markup:
    """`y` is the middle of its height."""
    return Markup(str.format(BOX, kind, x, y - h / 2, w, h, rx, more))


def _label(text: object) -> tuple[str, str, float]:
    """With its class and its width: <pad> is code, and smaller."""
    word = str(text)
    if word.startswith("<"):
        return word, "label token", room([word], 10, MONO)
    return word, "label", room([word], 13)


def heatmap(
    matrix: Tensor,
    axes: tuple[str, str],
    *,
    title: str,
    rows: list[object],
    columns: list[object] | None = None,
) -> Drawing:
    """A cell for each query and key; its colours are classes of the theme."""
    if matrix.dim() == 4 and matrix.shape[2] == 1:  # holds for all queries
        matrix = matrix.expand(-1, -1, len(rows), -1)
    while matrix.dim() > 2 and len(matrix) == 1:
        matrix = matrix[0]
    if matrix.dim() != 2:
        raise ValueError(f"no heat map shows {tuple(matrix.shape)}")
    T, S = matrix.shape
    beside = [*map(_label, rows)]
    above = beside if columns is None else [*map(_label, columns)]
    if (len(beside), len(above)) != (T, S):
        raise ValueError(
            f"{len(beside)} x {len(above)} labels for a {T} x {S} figure: "
            "rows names the queries, columns the keys"
        )
    boolean = matrix.dtype == torch.bool
    most = max(1.0, float(matrix.double().abs().nan_to_num().max()))
    whole = boolean or not matrix.double().frac().any()
    texts = [
        [f"{v:g}" if whole or not v else f"{v:.2f}" for v in row]
        for row in matrix.tolist()
    ]
    font = BOLD if boolean else SANS
    cell = max(
        CELL,
        max(room(row, 12, font) for row in texts) + GAP + 4,
        max(width for *_, width in above) + 5,
    )
    left = MARGIN + 28 + max(width for *_, width in beside)
    top, inner = MARGIN + 46, cell - GAP
    # The name of an axis may be longer than the axis: the drawing then begins
    # and ends with it, and one name stands beside the other.
    down, across = (room([name], 11.5) / 2 + MARGIN for name in axes)
    middle_x = max(left + S * cell / 2, across + 18)
    middle_y = max(top + T * cell / 2, down)
    upwards = UPWARDS.format(MARGIN + 10, middle_y)
    marks = [
        _text("axis", middle_x, MARGIN + 10, axes[1]),
        _text("axis", 0, 0, axes[0], upwards),
    ]
    for j, (name, kind, _) in enumerate(above):
        x = left + (j + 0.5) * cell - GAP / 2
        marks.append(_text(kind, x, top - 12, name))
    for i, (name, kind, _) in enumerate(beside):
        y = top + (i + 0.5) * cell - GAP / 2
        marks.append(_text(f"{kind} row", left - 8, y, name))
        for j, value in enumerate(matrix[i].tolist()):
            x, ink = left + j * cell, ""
            kind = ("off", "on")[value] if boolean else "zero"
            if value != value:
                kind = "nan"
            elif value and not boolean:
                # Light enough at every weight for the number to be read.
                opacity = 0.08 + 0.42 * abs(value) / most
                kind, ink = "weight", f' style="fill-opacity:{opacity:.3f}"'
            marks += [
                _box(kind, x, y, inner, inner, 4, ink),
                _text(kind, x + inner / 2, y, texts[i][j]),
            ]
    width = max(left + S * cell + MARGIN, middle_x + across)
    height = max(top + T * cell + MARGIN, middle_y + down)
    return _drawing(width, height, title, marks)


def thumbnail(wrong: Tensor, right: Tensor) -> str:
    """A heat map as small as a word, in few bytes: cells that differ from the
    right ones have another colour."""
    strong = (wrong.abs() > wrong.abs().nan_to_num().max() / 2) | wrong.isnan()
    same = torch.zeros_like(strong)
    if wrong.shape == right.shape:
        same = wrong.isclose(right, rtol=1e-3, atol=1e-6)
    kinds = {
        "a": same & ~strong & (wrong != 0),
        "b": same & strong,
        "c": ~same & ~strong,
        "d": ~same & strong,
    }
    drawn = ""
    for kind, cells in kinds.items():
        marks = [
            f"M{run.start()} {i}h{len(run[0])}"
            for i, row in enumerate(cells.int().tolist())
            for run in re.finditer("1+", "".join(map(str, row)))
        ]
        if marks:
            drawn += f'<path class={kind} d="{"".join(marks)}"/>'
    T, S = wrong.shape
    return f'<svg class=thumbnail viewBox="0 -.5 {S} {T}">{drawn}</svg>'


def bars(
    values: Tensor, axes: tuple[str, str], *, title: str, labels: list[object]
) -> Drawing:
    """One bar per value, its number beside it; weights are shares of one."""
    names = [str(label).replace("`", "") for label in labels]
    if len(values) != len(names):
        raise ValueError(f"{len(names)} labels for {len(values)} bars")
    numbers = [f"{value:,}" for value in values.tolist()]
    left, row, longest = MARGIN + room(names, 13) + 10, 32, 270
    most = max(1.0, float(values.max()))
    lengths = (longest * values.double() / most).clamp(min=2)
    width = left + float(lengths.max()) + 8 + room(numbers, 12) + MARGIN
    marks = []
    for i, length in enumerate(lengths.tolist()):
        y = MARGIN + row * i + row / 2
        marks += [
            _text("label row", left - 10, y, names[i]),
            _box("on", left, y, length, 20, 2),
            _text("beside", left + length + 8, y, numbers[i]),
        ]
    return _drawing(width, row * len(names) + 2 * MARGIN, title, marks)
