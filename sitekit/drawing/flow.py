"""The data flow of a plain form: a box for each variable, drawn top to bottom.

What a box stands for, and what leads to it, is in traced.py beside this file.
Here it gets its place: below all that it is computed of.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, sqrt

import torch
from markupsafe import Markup

from sitekit.drawing import svg
from sitekit.drawing.svg import BOLD, MARGIN, MONO, Drawing, room
from sitekit.drawing.traced import PLAIN, Node, Traced
from sitekit.markdown import source
from sitekit.markdown.render import Row

BOX, STEP, TIP = 50, 20, 9  # heights of a box, a step and an arrow's tip
GAP, SIDE = 7, 8  # between rows, and between boxes
PILL = 18  # the height of a step's box
NAME, LETTERS, SIZES = 11, 28.5, 41  # the lines of a box, below its upper end
PHONE = 358  # the width of its screen
AREA = 14  # the longest side of a square
SHELF = 14  # what a shelf needs below its boxes, for its name
CACHE = "op", "cache"
ORDER = ("query", "rope", "latent", "key", "value", "mask")
ARROW = Markup('<path d="M{:g} {:g}V{:g}C{:g} {:g} {:g} {:g} {:g} {:g}V{:g}"/>')
HEAD = Markup('<path class="tip" d="M{:g} {:g}l-4-7h8z"/>')
ASIDE = Markup('<path d="M{:g} {:g}V{:g}Q{:g} {:g} {:g} {:g}"/>')


@dataclass(eq=False)
class Place:
    """Where a node stands, or where an edge passes by a row. `x` is its middle,
    and `end` is where it ends."""

    rank: int
    order: float  # from the left
    width: float
    node: Node | None = None
    x: float = 0
    end: float = 0
    above: list["Place"] = field(default_factory=list)
    below: list["Place"] = field(default_factory=list)


def _sizes(node: Node) -> str:
    return " × ".join(map(str, node.shape))


def _width(node: Node) -> float:
    name = room([node.name], 13, BOLD) + AREA + 8
    lines = room([node.letters], 10, MONO), room([_sizes(node)], 10)
    steps = [room([text], 10) for _, text in node.steps]
    return ceil(max(name, *lines, *steps)) + 9


def _rows(nodes: list[Node]) -> list[list[Place]]:
    """From top to bottom. A node is below its inputs, and the inputs of the
    whole form are as low as possible; an edge that passes rows by has a place
    in each of them."""
    ranks: dict[Node, int] = {}
    for node in nodes:
        ranks[node] = max((ranks[n] + 1 for n in node.made_of), default=0)
    widths = [0.0] * (1 + max(ranks.values()))
    for node in nodes:
        users = [n for n in nodes if node in n.made_of]
        if not users:
            ranks[node] = len(widths) - 1
        if node.made_of:
            widths[ranks[node]] += _width(node) + SIDE
    for node in (n for n in nodes if not n.made_of):
        user = min(ranks[n] for n in nodes if node in n.made_of)
        width = _width(node)
        fits = (r for r in range(user) if widths[r] + width < PHONE)
        ranks[node] = max(fits, default=0)
        widths[ranks[node]] += width + SIDE
    places: dict[Node, Place] = {}
    for node in nodes:
        orders = [places[n].order for n in node.made_of]
        order = sum(orders) / len(orders) if orders else len(ORDER)
        if node.meaning:
            order = ORDER.index(node.meaning)
        places[node] = Place(ranks[node], order, _width(node), node)
    rows: list[list[Place]] = [[] for _ in range(1 + max(ranks.values()))]
    for node, place in places.items():
        rows[place.rank].append(place)
        for input_node in node.made_of:
            upper = places[input_node]
            for rank in range(upper.rank + 1, place.rank):
                passing = Place(rank, upper.order, 6, above=[upper])
                upper.below.append(passing)
                rows[rank].append(passing)
                upper = passing
            upper.below.append(place)
            place.above.append(upper)
    return [sorted(row, key=lambda p: p.order) for row in rows]


def _place(rows: list[list[Place]]) -> float:
    """Gives each place an `x` near the middle of its neighbours above and
    below; the width of the drawing."""
    for turn in range(30):
        for row in rows[:: -1 if turn % 2 else 1]:
            for p in row:
                neighbours = (p.below if turn % 2 else p.above) or [p]
                p.x = sum(n.x for n in neighbours) / len(neighbours)
            wishes = [p.x for p in row]
            for p, q in pairwise(row):
                q.x = max(q.x, p.x + (p.width + q.width) / 2 + SIDE)
            shift = sum(p.x - w for p, w in zip(row, wishes, strict=True))
            for p in row:
                p.x -= shift / len(row)
    left = min(row[0].x - row[0].width / 2 for row in rows)
    right = max(row[-1].x + row[-1].width / 2 for row in rows)
    widest = max(sum(p.width + SIDE for p in row) for row in rows) - SIDE
    width = max(widest, min(right - left, PHONE - 2 * MARGIN))
    offset = (left + right - width) / 2 - MARGIN
    for row in rows:
        start, end = float(MARGIN), MARGIN + width
        for p in row:
            p.x = max(p.x - offset, start + p.width / 2)
            start = p.x + p.width / 2 + SIDE
        for p in row[::-1]:
            p.x = min(p.x, end - p.width / 2)
            p.x = round(p.x)
            end = p.x - p.width / 2 - SIDE
    return width + 2 * MARGIN


def draw(traced: Traced, title: str) -> Drawing:
    nodes = [n for n in traced.nodes if n.drawn]
    rows = _rows(nodes)
    width, y = _place(rows), float(MARGIN)
    largest = max(torch.Size(n.shape).numel() for n in nodes)
    code = source.text_of(PLAIN / f"{traced.file}.py").split("\n")
    shelves: list[Markup] = []
    edges: list[Markup] = []
    boxes: list[Markup] = []
    for row in rows:
        shifts = [abs(n.x - p.x) for p in row for n in p.above]
        begin = y + (GAP + max(shifts) // 8 if shifts else 0)
        steps = max(len(_steps(p)) for p in row)
        top = begin + STEP * steps + (TIP if row is not rows[0] else 0)
        bottom = top + BOX
        stored_here = [p for p in row if p.node and CACHE in p.node.steps]
        if stored_here:
            shelves += _shelf(stored_here[0], stored_here[-1], top)
            bottom += SHELF + 3
        for p in row:
            for n, upper in enumerate(p.above):
                step = _later(p, n)
                if step and _is_beside(upper, p, step):
                    edges.append(_edge_to_step(upper, p, step, y, begin))
                else:
                    end = top if p.node else bottom
                    edges.append(_edge(upper, p, y, begin, end))
            p.end = bottom
            if p.node:
                p.end = top + BOX
                if p.above:
                    edges.append(HEAD.format(p.x, top))
                boxes.append(_box(p, p.node, begin, top, largest, code))
        y = bottom
    arrows = Markup('<g class="arrows">{}</g>').format(Markup("").join(edges))
    marks = [*shelves, arrows, *boxes]
    attributes = f' class="flow" data-file="{traced.file}"'
    picture = svg.picture(width, y + MARGIN, title, marks, attributes)
    scrolls = width > 1.1 * PHONE  # or is drawn a little smaller there
    return Drawing(title, room([title], 1, BOLD), width, picture, scrolls)


def _shelf(first: Place, last: Place, top: float) -> list[Markup]:
    """The cache, below boxes that are stored in it."""
    x0, right = first.x - first.width / 2, last.x + last.width / 2
    place = x0 - 5, top - 5, right - x0 + 10, BOX + SHELF + 8
    name_y = top + BOX + 8
    return [svg.box("shelf", *place, rx=5), svg.text("cache", x0 + 1, name_y, "cache")]


def _edge(upper: Place, p: Place, y: float, begin: float, end: float) -> Markup:
    """From a place down to `y`, from there aside to `begin`, and to `end`."""
    middle = (y + begin) / 2
    start = upper.x, upper.end, y, upper.x, middle
    return ARROW.format(*start, p.x, middle, p.x, begin, end)


def _is_beside(upper: Place, p: Place, step: tuple[int, str]) -> bool:
    """Whether an edge can come to this step from its side."""
    return abs(upper.x - p.x) > _pill(step[1]) / 2 + TIP


def _edge_to_step(upper: Place, p: Place, step: tuple[int, str], y: float, begin: float) -> Markup:
    number, word = step
    half_pill = _pill(word) / 2
    side = p.x + (half_pill if upper.x > p.x else -half_pill)
    height = begin + STEP * number + PILL / 2
    return ASIDE.format(upper.x, upper.end, y, upper.x, height, side, height)


def _pill(word: str) -> float:
    return ceil(room([word], 10)) + 9


def _later(p: Place, n: int) -> tuple[int, str] | None:
    """The number of the step, and its word, at which the n-th input takes part,
    if this is not the first."""
    steps = _steps(p)
    number = p.node.later.get(p.node.made_of[n], 0) if p.node else 0
    return (number, steps[number][1]) if 0 < number < len(steps) else None


def _steps(p: Place) -> list[tuple[str, str]]:
    """The steps above a box; a shelf says by itself that it is the cache."""
    return [s for s in p.node.steps if s != CACHE] if p.node else []


def _box(p: Place, node: Node, begin: float, top: float, largest: int, code: list[str]) -> Markup:
    """A box says its lines of code to a reader who points at it; a square in
    it has the area of its tensor."""
    kind = node.meaning or "plain"
    state = " stored" * node.stored + " recomputed" * node.again
    ink = " on" if node.stored else ""
    x0, right = p.x - p.width / 2, p.x + p.width / 2
    size = torch.Size(node.shape).numel()
    side = max(2, round(AREA * sqrt(size / largest), 1))
    square = right - 5 - side, top + 5, side, side
    marks = []
    for n, (step, word) in enumerate(_steps(p)):
        y, width = begin + STEP * n, _pill(word)
        pill = p.x - width / 2, y, width, PILL
        marks.append(svg.box(f"{step} pill", *pill, rx=9))
        marks.append(svg.text(f"{step} pill", p.x, y + PILL / 2 - 0.5, word))
    marks += [
        svg.box(f"{kind} box{state}", x0, top, p.width, BOX, rx=5),
        svg.text(f"{kind} name{ink}", x0 + 6, top + NAME, node.name),
        svg.text(f"shape{ink}", p.x, top + LETTERS, node.letters),
        svg.text(f"size{ink}", p.x, top + SIZES, _sizes(node)),
        svg.box(f"{kind} area{ink}", *square, rx=0),
    ]
    lines = sorted({*node.lines})
    text = "\n".join(code[i - 1].strip() for i in lines)
    return Markup('<g data-lines="{}"><title>{}</title>{}</g>').format(
        " ".join(map(str, lines)), text, Markup("").join(marks)
    )


def rows(traced: Traced, comma: str) -> list[Row]:
    """The variables as a table: name, letters, shape, and what makes it."""
    result: list[Row] = []
    for node in traced.nodes:
        words = [n.name for n in node.inputs] + [word for _, word in node.steps]
        sources = comma.join(f"`{word}`" for word in dict.fromkeys(words))
        cells = node.name, node.letters, str(node.shape)
        result.append([*(f"`{cell}`" for cell in cells), sources])
    return result
