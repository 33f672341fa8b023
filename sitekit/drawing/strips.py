"""Strips: a cell per layer of a model, drawn by the kind of the layer."""

from itertools import groupby

from markupsafe import Markup

Cells = list[tuple[str, bool]]  # letter; whether an indexer selects its keys

# A letter for each kind of layer, and for each of its strokes the middle and
# the width, of a height of 10: told apart without colour, too.
KINDS: dict[str, tuple[str, list[tuple[float, float]]]] = {
    "F": ("full", [(5, 10)]),
    "W": ("window", [(7.5, 5)]),
    "C": ("chunk", [(6, 2), (9, 2)]),
    "L": ("latent", [(2.2, 4.4), (7.8, 4.4)]),
    "K": ("compressed", [(3.5, 1.6), (6, 1.6), (8.5, 1.6)]),
    "R": ("recurrent", [(9, 2)]),
    "S": ("shared", [(9.6, 0.8)]),
}


def paths(cells: Cells) -> Markup:
    """A path for each kind with its runs, which the style cuts into layers."""
    runs: dict[tuple[str, float, float], str] = {}
    start = 0
    for (letter, selected), run in groupby(cells):
        kind, strokes = KINDS[letter]
        length = len([*run])
        rows = [(kind, y, width) for y, width in strokes]
        rows += [("index", 5, 2)] * selected
        for row in rows:
            runs[row] = runs.get(row, "") + f"M{start} {row[1]:g}h{length}"
        start += length
    return Markup("").join(
        Markup(f'<path class="{kind}" stroke-width="{width:g}" d="{d}"/>')
        for (kind, _, width), d in runs.items()
    )
