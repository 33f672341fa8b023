"""Heat maps: a cell for each query and key; and as small as a word."""

import re
from typing import NamedTuple

import torch
from torch import Tensor

from sitekit.drawing import svg
from sitekit.drawing.svg import BOLD, MARGIN, MONO, SANS, Drawing, room

CELL, GAP = 36, 2  # the least pitch of cells; what stays free between two
SEAM = 6  # what stays free between tiles
ABOVE = MARGIN + 46  # the cells begin below an axis' name and the labels
BESIDE = MARGIN + 28  # and right of an axis' name, labels and what parts them
LABEL_UP, LABEL_LEFT = 12, 8  # from the cells to the labels


class Cell(NamedTuple):
    """`kind` is its class; `style` may say how full its colour is."""

    kind: str
    text: str
    style: str = ""


def _label(label: object) -> tuple[str, str, float]:
    """A label with its class and its width: <pad> is code, and smaller."""
    word = str(label)
    if word.startswith("<"):
        return word, "label token", room([word], 10, MONO)
    return word, "label", room([word], 13)


def lattice(
    cells: list[list[Cell]],
    axes: tuple[str, str],
    *,
    title: str,
    rows: list[object],
    columns: list[object] | None = None,
    font: str = SANS,
    tile: int = 0,
    least: float = CELL,
) -> Drawing:
    """Cells with labels, rows and columns alike if only rows have some; with a
    seam behind each `tile` of them. Their pitch is at least so large."""
    row_labels = [*map(_label, rows)]
    column_labels = row_labels if columns is None else [*map(_label, columns)]
    T, S = len(cells), len(cells[0])
    if (len(row_labels), len(column_labels)) != (T, S):
        raise ValueError(
            f"{len(row_labels)} x {len(column_labels)} labels for a {T} x {S} "
            "figure: rows names the queries, columns the keys"
        )
    pitch = max(
        least,
        max(room([cell.text for cell in row], 12, font) for row in cells) + GAP + 4,
        max(width for *_, width in column_labels) + 5,
    )
    side = pitch - GAP
    left, top = BESIDE + max(width for *_, width in row_labels), ABOVE

    def offset(n: int) -> float:
        return n * pitch + (n // tile * SEAM if tile else 0)

    # The name of an axis may be longer than the axis: the drawing then begins
    # and ends with it, and one name stands beside the other.
    down, across = (room([name], 11.5) / 2 + MARGIN for name in axes)
    right, bottom = (end + offset(n - 1) + pitch for end, n in ((left, S), (top, T)))
    middle_x = max((left + right) / 2, across + 18)
    middle_y = max((top + bottom) / 2, down)
    marks = [svg.axis_names(axes, middle_x, middle_y)]
    for j, (word, kind, _) in enumerate(column_labels):
        x = left + offset(j) + side / 2
        marks.append(svg.text(kind, x, top - LABEL_UP, word))
    for i, (word, kind, _) in enumerate(row_labels):
        y = top + offset(i)
        marks.append(svg.text(f"{kind} row", left - LABEL_LEFT, y + side / 2, word))
        for j, (kind, number, style) in enumerate(cells[i]):
            place = left + offset(j), y, side, side
            marks.append(svg.cell(kind, *place, number, rx=4, more=style))
    width = max(right + MARGIN, middle_x + across)
    height = max(bottom + MARGIN, middle_y + down)
    return svg.drawing(width, height, title, marks)


def heatmap(
    matrix: Tensor,
    axes: tuple[str, str],
    *,
    title: str,
    rows: list[object],
    columns: list[object] | None = None,
) -> Drawing:
    """Allowed or not, or a number: the larger it is, the fuller its cell."""
    if matrix.dim() == 4 and matrix.shape[2] == 1:  # holds for all queries
        matrix = matrix.expand(-1, -1, len(rows), -1)
    while matrix.dim() > 2 and len(matrix) == 1:
        matrix = matrix[0]
    if matrix.dim() != 2:
        raise ValueError(f"no heat map shows {tuple(matrix.shape)}")
    boolean = matrix.dtype == torch.bool
    largest = max(1.0, float(matrix.double().abs().nan_to_num().max()))
    integers = boolean or not matrix.double().frac().any()

    def cell(value: float) -> Cell:
        number = f"{value:g}" if integers or not value else f"{value:.2f}"
        if value != value:
            return Cell("nan", number)
        if boolean:
            return Cell("on" if value else "off", number)
        if not value:
            return Cell("zero", number)
        # Light enough at every weight for the number to be read.
        opacity = 0.08 + 0.42 * abs(value) / largest
        return Cell("weight", number, f' style="fill-opacity:{opacity:.3f}"')

    return lattice(
        [[cell(value) for value in row] for row in matrix.tolist()],
        axes,
        title=title,
        rows=rows,
        columns=columns,
        font=BOLD if boolean else SANS,
    )


def is_close(x: Tensor, right: Tensor) -> Tensor:
    """Which cells of a matrix are drawn as right ones."""
    return x.isclose(right, rtol=1e-3, atol=1e-6)


def thumbnail(shown: Tensor, right: Tensor) -> str:
    """A heat map as small as a word, in few bytes.

    Cells of the classes a (weak) and b (strong) are as in `right`, those of c
    (weak) and d (strong) differ from it; a zero that is right is not drawn.
    attnref.css colours the classes below `.thumbnail`.
    """
    strong = (shown.abs() > shown.abs().nan_to_num().max() / 2) | shown.isnan()
    equal = torch.zeros_like(strong)
    if shown.shape == right.shape:
        equal = is_close(shown, right)
    kinds = {
        "a": equal & ~strong & (shown != 0),
        "b": equal & strong,
        "c": ~equal & ~strong,
        "d": ~equal & strong,
    }
    paths = ""
    for kind, cells in kinds.items():
        runs = [
            f"M{run.start()} {i}h{len(run[0])}"
            for i, row in enumerate(cells.int().tolist())
            for run in re.finditer("1+", "".join(map(str, row)))
        ]
        if runs:
            paths += f'<path class={kind} d="{"".join(runs)}"/>'
    T, S = shown.shape
    return f'<svg class=thumbnail viewBox="0 -.5 {S} {T}">{paths}</svg>'
