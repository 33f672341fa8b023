"""Home: the four variants in the sizes of one model, what a decode step reads,
and what is checked."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from markupsafe import Markup

from attnref.judge import shapes
from attnref.judge.catalogue import catalogue
from attnref.judge.exercises import EXERCISES
from attnref.numbers.kv_memory import kv_bytes, size, weight_bytes
from attnref.numbers.shapes import Full, Group, Mla, Model
from attnref.released.specs import find_model, models
from sitekit import ROOT
from sitekit.check.mistakes import kills
from sitekit.drawing import heads, svg
from sitekit.drawing.plots import Plot
from sitekit.drawn.operations import H100, VOCABULARY
from sitekit.markdown.render import Row, Word

LLAMA = find_model("llama-3.1-8b")
TOKENS = LLAMA.max_context
# What a step reads of them: of the embeddings, one row per token.
WEIGHTS = weight_bytes(LLAMA) - 2 * VOCABULARY * 4096


@cache
def four() -> dict[str, Model]:
    """Llama-3.1-8B with each variant; MLA has DeepSeek-V3's widths."""
    (llama,), (v3,) = LLAMA.groups, find_model("deepseek-v3").groups
    assert isinstance(llama, Full) and isinstance(v3, Mla) and llama.q_heads
    latent = replace(v3, layers=llama.layers, q_heads=llama.q_heads)
    groups: dict[str, Group] = {
        "MHA": replace(llama, kv_heads=llama.q_heads),
        "GQA": llama,
        "MQA": replace(llama, kv_heads=1),
        "MLA": latent,
    }
    return {name: replace(LLAMA, groups=(g,)) for name, g in groups.items()}


def _parts(model: Model) -> dict[str, int]:
    """Elements that all layers cache of a token, by what they are."""
    ((store,), (group,)) = model.groups[0].stores, model.groups
    names = ("latent", "key") if isinstance(group, Mla) else ("key", "value")
    widths = zip(names, store.widths, strict=True)
    elements = store.heads * group.layers
    return {name: elements * width for name, width in widths}


RULE = Markup('<path class="rule" d="M{0} 20v8m0-4H{1}m0-4v8"/>')
CARD, BAR = 160, 142  # the width of a card, and where its bar begins
SHELF = heads.STORED - 15, 49  # below what is stored: its upper end and height


class Card(NamedTuple):
    """One variant, with so many heads in its picture (no key/value heads for
    MLA). Bytes per token, per context, and the most per token of all four."""

    n_heads: int
    n_kv_heads: int
    token: int
    context: int
    largest: int

    def drawing(self, axes: tuple[str, str], *, title: str, words: list[str]) -> svg.Drawing:
        """`words`: below it, with {0} for the bytes of a token and {1} for
        those of a whole context of {2} tokens."""
        top, height = SHELF
        marks = [svg.box("shelf", 0, top, CARD, height, rx=4)]
        wiring = heads.wiring(self.n_heads, self.n_kv_heads)
        marks += heads.picture(*wiring, CARD)
        share = max(2, CARD * self.token / self.largest)
        for kind, length in (("track", CARD), ("fill", share)):
            marks.append(svg.box(kind, 0, BAR, length, 8, rx=2))
        plain = re.sub(r"\*\*|\]\([^)]*\)|\[", "", title)
        picture = svg.picture(CARD, BAR + 8, plain, marks)
        values = (size(self.token), size(self.context), f"{TOKENS:,}")
        below = [word.format(*values) for word in words]
        return svg.Drawing(title, 0, CARD, picture, below=below)


def card(variant: str, *, heads: int) -> Card:
    """With so many query heads, and as many keys for them as in the model."""
    (group,) = four()[variant].groups
    n_kv_heads = 0
    if isinstance(group, Full):
        assert group.q_heads
        n_kv_heads = max(1, heads * group.kv_heads // group.q_heads)
    tokens = {name: kv_bytes(model, 1) for name, model in four().items()}
    context = kv_bytes(four()[variant], TOKENS)
    largest = max(tokens.values())
    return Card(heads, n_kv_heads, tokens[variant], context, largest)


class Layout(NamedTuple):
    """Pixels of the plot of a step. Strips go from `left` to `right`; in a
    narrow one a line of text stands above each strip, `head` px high, in a wide
    one beside it, in a row of at least `row` px."""

    width: int
    bytes_per_pixel: int
    left: int
    right: int
    head: int = 0
    row: int = 0


WIDE = Layout(1030, 4096, left=92, right=840, row=30)
NARROW = Layout(342, 5632, left=0, right=326, head=24)
TOP, GAP = 44, 16  # where the first row begins; between two rows
WRITTEN = 4, 10  # behind a strip, what it writes: the space before, its width
LETTER = 44, 14  # where the letters begin, and from one to the next


def _step(layout: Layout, slowed: int) -> str:
    """Widths are tokens, heights the bytes of a token in all layers: areas are
    what a step reads. Beside each strip, what it writes."""
    width, scale, left, right, head, least_row = layout
    narrow, y, marks = bool(head), float(TOP), list[Markup]()

    def text(kind: str, x: float, y: float, words: str) -> Markup:
        """Its ink may begin before its place, or end after it."""
        return svg.text(kind, min(max(x, 2), width - 2), y, words)

    label = f"{TOKENS:,} {{tokens}}"
    marks.append(text("axis", (left + right) / 2, 10, label))
    marks.append(text("axis end", width if narrow else right + 18, 10, "{new}"))
    marks.append(RULE.format(left, right))
    strips = {n: (kv_bytes(m, TOKENS), _parts(m)) for n, m in four().items()}
    strips["{weights}"] = WEIGHTS, {"weights": 1}
    for name, (read, parts) in strips.items():
        height, elements = read / TOKENS / scale, sum(parts.values())
        row = max(height, least_row)
        top = part_top = y + head + (row - height) / 2
        middle = y + (8 if narrow else row / 2)
        ms = 1e3 * read / H100.bandwidth
        marks.append(text("name", 0, middle, name))
        x = width if narrow else right + 34
        kind = "read end" if narrow else "read"
        marks.append(text(kind, x, middle, f"{size(read)} · {ms:.3g} ms"))
        for n, (part, count) in enumerate(parts.items()):
            share = height * count / elements
            marks.append(svg.box(part, left, part_top, right - left, share, rx=0))
            if letter := heads.LETTERS.get(part):
                space, wide = WRITTEN
                marks.append(svg.box(part, right + space, part_top, wide, share, rx=0))
                x = LETTER[0] + LETTER[1] * n
                marks.append(text(f"{part} letter", x, middle, letter))
            part_top += share
        time = f' style="--time:{slowed * ms / 1e3:.3g}s"'
        marks.append(svg.box("sweep", left, top, right - left, height, rx=0, more=time))
        for n in range(1, 16):
            cut = left + n * (right - left) / 16
            marks.append(svg.line(cut, top, cut, top + height))
        y += head + row + GAP
    kind = "narrow" if narrow else "wide"
    attributes = f' class="{kind} plot step" tabindex="0"'
    return str(svg.picture(width, y + 4 - GAP, "{title}", marks, attributes))


def step(*, slowed: int) -> Plot:
    """Hovered over, or focused, it runs `slowed` times slower than the H100."""
    rows: list[Row] = []
    for name, model in four().items():
        read, parts = kv_bytes(model, TOKENS), _parts(model)
        letters = heads.LETTERS
        stored = " + ".join(f"{letters[k]} {n:,}" for k, n in parts.items())
        ms = f"{1e3 * read / H100.bandwidth:.3g}"
        rows.append([name, stored, size(kv_bytes(model, 1)), size(read), ms])
    ms = f"{1e3 * WEIGHTS / H100.bandwidth:.3g}"
    rows.append([Word("weights"), "–", "–", size(WEIGHTS), ms])
    return Plot(_step(WIDE, slowed), _step(NARROW, slowed), rows)


def checked() -> Iterator[Row]:
    """How many of each kind are checked."""
    texts = (p.read_text("utf-8") for p in (ROOT / "attnref").rglob("[!.]*.py"))
    same_shape = sum(kills()[name]["same_shape"] for name in catalogue())
    yield [str(len(catalogue())), Word("mistakes", (str(same_shape),))]
    yield [str(len(models())), Word("released")]
    yield [str(sum(len(shapes.comments(t)) for t in texts)), Word("shapes")]
    yield [str(len(EXERCISES)), Word("exercises")]
