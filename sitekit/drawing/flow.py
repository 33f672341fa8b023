"""The data flow of a plain form: a box for each variable, drawn top to bottom.

What a box stands for, and what leads to it, is in traced.py beside this file.
Here it gets its place: below all that it is computed of.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, sqrt

import torch
from markupsafe import Markup

from sitekit.drawing.svg import (
    BOLD,
    BOX,
    MARGIN,
    MONO,
    SVG,
    TEXT,
    Drawing,
    room,
)
from sitekit.drawing.traced import PLAIN, Node, Traced
from sitekit.markdown import source
from sitekit.markdown.render import Row

# Of a box, a step, an arrow's tip; between rows, and between boxes.
HIGH, STEP, TIP, GAP, SIDE = 50, 20, 9, 7, 8
PHONE = 358  # what its screen holds
AREA, SHELF = 14, 14  # the longest side of a square; what stands on a shelf
CACHE = "op", "cache"
ORDER = ("query", "rope", "latent", "key", "value", "mask")
ARROW = Markup('<path d="M{:g} {:g}V{:g}C{:g} {:g} {:g} {:g} {:g} {:g}V{:g}"/>')
HEAD = Markup('<path class="tip" d="M{:g} {:g}l-4-7h8z"/>')
ASIDE = Markup('<path d="M{:g} {:g}V{:g}Q{:g} {:g} {:g} {:g}"/>')


@dataclass(eq=False)
class Place:
    """Of a node, or of an edge that passes by a row. `x` is its middle,
    and `end` is where it ends."""

    rank: int
    order: float  # from the left
    wide: float
    node: Node | None = None
    x: float = 0
    end: float = 0
    above: list["Place"] = field(default_factory=list)
    below: list["Place"] = field(default_factory=list)


def _sizes(node: Node) -> str:
    return " × ".join(map(str, node.shape))


def _wide(node: Node) -> float:
    name = room([node.name], 13, BOLD) + AREA + 8
    lines = room([node.letters], 10, MONO), room([_sizes(node)], 10)
    steps = [room([text], 10) for _, text in node.steps]
    return ceil(max(name, *lines, *steps)) + 9


def _rows(nodes: list[Node]) -> list[list[Place]]:
    """From above: each below its inputs, and inputs of all as low as can be;
    an edge that passes rows by has a place in each."""
    ranks: dict[Node, int] = {}
    for node in nodes:
        ranks[node] = max((ranks[n] + 1 for n in node.made_of), default=0)
    wide = [0.0] * (1 + max(ranks.values()))
    for node in nodes:
        users = [n for n in nodes if node in n.made_of]
        if not users:
            ranks[node] = len(wide) - 1
        if node.made_of:
            wide[ranks[node]] += _wide(node) + SIDE
    for node in (n for n in nodes if not n.made_of):
        below = min(ranks[n] for n in nodes if node in n.made_of)
        fits = (r for r in range(below) if wide[r] + _wide(node) < PHONE)
        ranks[node] = max(fits, default=0)
        wide[ranks[node]] += _wide(node) + SIDE
    places: dict[Node, Place] = {}
    for node in nodes:
        orders = [places[n].order for n in node.made_of]
        order = sum(orders) / len(orders) if orders else len(ORDER)
        if node.meaning:
            order = ORDER.index(node.meaning)
        places[node] = Place(ranks[node], order, _wide(node), node)
    rows: list[list[Place]] = [[] for _ in range(1 + max(ranks.values()))]
    for node, place in places.items():
        rows[place.rank].append(place)
        for other in node.made_of:
            upper = places[other]
            for rank in range(upper.rank + 1, place.rank):
                passing = Place(rank, upper.order, 6, above=[upper])
                upper.below.append(passing)
                rows[rank].append(passing)
                upper = passing
            upper.below.append(place)
            place.above.append(upper)
    return [sorted(row, key=lambda p: p.order) for row in rows]


def _placed(rows: list[list[Place]]) -> float:
    """Each near the middle of what it is joined with; the width of all."""
    for turn in range(30):
        for row in rows[:: -1 if turn % 2 else 1]:
            for p in row:
                near = (p.below if turn % 2 else p.above) or [p]
                p.x = sum(n.x for n in near) / len(near)
            wish = [p.x for p in row]
            for p, q in pairwise(row):
                q.x = max(q.x, p.x + (p.wide + q.wide) / 2 + SIDE)
            shift = sum(p.x - w for p, w in zip(row, wish, strict=True))
            for p in row:
                p.x -= shift / len(row)
    left = min(row[0].x - row[0].wide / 2 for row in rows)
    right = max(row[-1].x + row[-1].wide / 2 for row in rows)
    least_of_all = max(sum(p.wide + SIDE for p in row) for row in rows) - SIDE
    whole = max(least_of_all, min(right - left, PHONE - 2 * MARGIN))
    aside = (left + right - whole) / 2 - MARGIN
    for row in rows:
        least, most = float(MARGIN), MARGIN + whole
        for p in row:
            p.x = max(p.x - aside, least + p.wide / 2)
            least = p.x + p.wide / 2 + SIDE
        for p in row[::-1]:
            p.x = min(p.x, most - p.wide / 2)
            p.x = round(p.x)
            most = p.x - p.wide / 2 - SIDE
    return whole + 2 * MARGIN


def draw(traced: Traced, title: str) -> Drawing:
    nodes = [n for n in traced.nodes if n.drawn]
    rows = _rows(nodes)
    width, y = _placed(rows), float(MARGIN)
    most = max(torch.Size(n.shape).numel() for n in nodes)
    text = source.text_of(PLAIN / f"{traced.file}.py").split("\n")
    shelves: list[Markup] = []
    edges: list[Markup] = []
    boxes: list[Markup] = []
    for row in rows:
        aside = [abs(n.x - p.x) for p in row for n in p.above]
        begin = y + (GAP + max(aside) // 8 if aside else 0)
        steps = max(len(_steps(p)) for p in row)
        top = begin + STEP * steps + (TIP if row is not rows[0] else 0)
        bottom = top + HIGH
        held = [p for p in row if p.node and CACHE in p.node.steps]
        if held:
            left, right = held[0], held[-1]
            x, end = left.x - left.wide / 2, right.x + right.wide / 2
            shelf = x - 5, top - 5, end - x + 10, HIGH + SHELF + 8
            shelves.append(BOX.format("shelf", *shelf, 5, ""))
            label = TEXT.format("cache", x + 1, bottom + 8, "", "cache")
            shelves.append(label)
            bottom += SHELF + 3
        for p in row:
            for n, upper in enumerate(p.above):
                middle = (y + begin) / 2
                end = top if p.node else bottom
                if step := _later(p, n):  # to its own step, from the side
                    half = _pill(step[1]) / 2
                    if abs(upper.x - p.x) > half + TIP:
                        x = p.x + (half if upper.x > p.x else -half)
                        at = begin + STEP * step[0] + 9
                        side = upper.x, at, x, at
                        edges.append(ASIDE.format(upper.x, upper.end, y, *side))
                        continue
                start = upper.x, upper.end, y, upper.x, middle
                edges.append(ARROW.format(*start, p.x, middle, p.x, begin, end))
            p.end = bottom
            if p.node:
                p.end = top + HIGH
                if p.above:
                    edges.append(HEAD.format(p.x, top))
                boxes.append(_box(p, p.node, begin, top, most, text))
        y = bottom
    arrows = Markup('<g class="arrows">{}</g>').format(Markup("").join(edges))
    marks = Markup("").join([*shelves, arrows, *boxes])
    svg = str(SVG.format(width, y + MARGIN, title, marks))
    own = f'<svg class="flow" data-file="{traced.file}"'
    drawn = Markup(svg.replace("<svg", own, 1))
    scrolls = width > 1.1 * PHONE  # or is drawn a little smaller there
    return Drawing(title, room([title], 1, BOLD), width, drawn, scrolls)


def _pill(word: str) -> float:
    return ceil(room([word], 10)) + 9


def _later(p: Place, n: int) -> tuple[int, str] | None:
    """The step, and its word, at which what comes from above takes part, if
    this is not the first."""
    steps = _steps(p)
    at = p.node.later.get(p.node.made_of[n], 0) if p.node else 0
    return (at, steps[at][1]) if 0 < at < len(steps) else None


def _steps(p: Place) -> list[tuple[str, str]]:
    """Those between a box and what is above it; a shelf says its own."""
    return [s for s in p.node.steps if s != CACHE] if p.node else []


def _box(
    p: Place, node: Node, begin: float, top: float, most: int, code: list[str]
) -> Markup:
    """With the area of its tensor, and its lines for who rests on it."""
    kind = node.meaning or "plain"
    state = " stored" * node.stored + " recomputed" * node.again
    ink = " on" if node.stored else ""
    left, right = p.x - p.wide / 2, p.x + p.wide / 2
    size = torch.Size(node.shape).numel()
    side = max(2, round(AREA * sqrt(size / most), 1))
    marks = []
    for n, (what, word) in enumerate(_steps(p)):
        y, w = begin + STEP * n, _pill(word)
        marks.append(BOX.format(f"{what} pill", p.x - w / 2, y, w, 18, 9, ""))
        marks.append(TEXT.format(f"{what} pill", p.x, y + 8.5, "", word))
    marks += [
        BOX.format(f"{kind} box{state}", left, top, p.wide, HIGH, 5, ""),
        TEXT.format(f"{kind} name{ink}", left + 6, top + 11, "", node.name),
        TEXT.format(f"shape{ink}", p.x, top + 28.5, "", node.letters),
        TEXT.format(f"size{ink}", p.x, top + 41, "", _sizes(node)),
        BOX.format(
            f"{kind} area{ink}",
            *(right - 5 - side, top + 5, side, side, 0, ""),
        ),
    ]
    lines = sorted({*node.lines})
    text = "\n".join(code[i - 1].strip() for i in lines)
    return Markup('<g data-lines="{}"><title>{}</title>{}</g>').format(
        " ".join(map(str, lines)), text, Markup("").join(marks)
    )


def rows(traced: Traced, comma: str) -> list[Row]:
    """What is drawn, as a table."""
    result: list[Row] = []
    for node in traced.nodes:
        made = [n.name for n in node.inputs] + [word for _, word in node.steps]
        sources = comma.join(f"`{word}`" for word in dict.fromkeys(made))
        cells = node.name, node.letters, str(node.shape)
        result.append([*(f"`{cell}`" for cell in cells), sources])
    return result
