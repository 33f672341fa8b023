"""Home: the four variants in the sizes of one model, what a decode step reads,
and what is checked."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from markupsafe import Markup
from torch import Tensor

from attnref.check import shapes
from attnref.check.catalogue import catalogue
from attnref.check.exercises import EXERCISES
from attnref.numbers.kv_memory import kv_bytes, size, weight_bytes
from attnref.numbers.shapes import Full, Group, Mla, Model
from attnref.released.specs import find_model, models
from sitekit import ROOT
from sitekit.check.mistakes import kills
from sitekit.drawing import svg
from sitekit.drawing.plots import Plot
from sitekit.drawn.compare import CACHED, LETTERS, picture, wires_of
from sitekit.drawn.operations import H100, VOCABULARY
from sitekit.markdown.render import Row, Word

LLAMA = find_model("llama-3.1-8b")
TOKENS = LLAMA.max_context
# What a step reads of them: of the embeddings, one row per token.
WEIGHTS = weight_bytes(LLAMA) - 2 * VOCABULARY * 4096


@cache
def four() -> dict[str, Model]:
    """Llama-3.1-8B with each variant; MLA has DeepSeek-V3's widths."""
    (own,), (v3,) = LLAMA.groups, find_model("deepseek-v3").groups
    assert isinstance(own, Full) and isinstance(v3, Mla) and own.q_heads
    latent = replace(v3, layers=own.layers, q_heads=own.q_heads)
    groups: dict[str, Group] = {
        "MHA": replace(own, kv_heads=own.q_heads),
        "GQA": own,
        "MQA": replace(own, kv_heads=1),
        "MLA": latent,
    }
    return {name: replace(LLAMA, groups=(g,)) for name, g in groups.items()}


def _parts(model: Model) -> dict[str, int]:
    """Elements that all layers cache of a token, by what they are."""
    ((store,), (group,)) = model.groups[0].stores, model.groups
    names = ("latent", "key") if isinstance(group, Mla) else ("key", "value")
    widths = zip(names, store.widths, strict=True)
    held = store.heads * group.layers
    return {name: held * width for name, width in widths}


RULE = Markup('<path class="rule" d="M{0} 20v8m0-4H{1}m0-4v8"/>')
BAR = 142  # where it stands in a card


class Card(NamedTuple):
    """One variant. `wires`: which query head reads which key/value head, of
    those drawn, `(H, K)`; `latent`: which key/value heads are computed from a
    latent, `(K,)`. Bytes per token, per context, and the most per token."""

    wires: Tensor
    latent: Tensor
    token: int
    whole: int
    most: int

    def drawing(
        self, axes: tuple[str, str], *, title: str, words: list[str]
    ) -> svg.Drawing:
        """`words`: below it, with {0} for the bytes of a token and {1} for
        those of a whole context of {2} tokens."""
        wide = 160
        marks = [svg.BOX.format("shelf", 0, CACHED - 15, wide, 49, 4, "")]
        marks += picture(self.wires, self.latent, wide)
        share = max(2, wide * self.token / self.most)
        for kind, long in (("track", wide), ("fill", share)):
            marks.append(svg.BOX.format(kind, 0, BAR, long, 8, 2, ""))
        plain = re.sub(r"\*\*|\]\([^)]*\)|\[", "", title)
        drawn = svg.SVG.format(wide, BAR + 8, plain, Markup("").join(marks))
        values = (size(self.token), size(self.whole), f"{TOKENS:,}")
        below = [word.format(*values) for word in words]
        return svg.Drawing(title, 0, wide, drawn, below=below)


def card(variant: str, *, heads: int) -> Card:
    """With so many query heads; running a layer shows which reads which."""
    (group,) = four()[variant].groups
    shown = 0
    if isinstance(group, Full):
        assert group.q_heads
        shown = max(1, heads * group.kv_heads // group.q_heads)
    wires, latent = wires_of(heads, shown)
    costs = {name: kv_bytes(m, 1) for name, m in four().items()}
    whole = kv_bytes(four()[variant], TOKENS)
    return Card(wires, latent, costs[variant], whole, max(costs.values()))


def _step(narrow: bool, slowed: int) -> str:
    """Widths are tokens, heights the bytes of a token in all layers: areas are
    what a step reads. Beside each strip, what it writes."""
    width, scale = (342, 5632) if narrow else (1030, 4096)  # bytes per pixel
    left, right = (0, 326) if narrow else (92, 840)
    y, marks = 44.0, list[Markup]()

    def text(kind: str, x: float, y: float, words: str) -> Markup:
        """Its ink may begin before its place, or end after it."""
        x = min(max(x, 2), width - 2)
        return svg.TEXT.format(kind, x, y, "", words)

    def box(
        kind: str, x: float, y: float, w: float, h: float, more: str = ""
    ) -> Markup:
        return svg.BOX.format(kind, x, y, w, h, 0, Markup(more))

    label = f"{TOKENS:,} {{tokens}}"
    marks.append(text("axis", (left + right) / 2, 10, label))
    marks.append(text("axis end", width if narrow else right + 18, 10, "{new}"))
    marks.append(RULE.format(left, right))
    every = {n: (kv_bytes(m, TOKENS), _parts(m)) for n, m in four().items()}
    every["{weights}"] = WEIGHTS, {"weights": 1}
    for name, (read, parts) in every.items():
        high, whole = read / TOKENS / scale, sum(parts.values())
        row = high if narrow else max(high, 30)
        top = at = y + (24 if narrow else (row - high) / 2)
        middle = y + 8 if narrow else y + row / 2
        ms = 1e3 * read / H100.bandwidth
        marks.append(text("name", 0, middle, name))
        x = width if narrow else right + 34
        kind = "read end" if narrow else "read"
        marks.append(text(kind, x, middle, f"{size(read)} · {ms:.3g} ms"))
        for n, (part, elements) in enumerate(parts.items()):
            share = high * elements / whole
            marks.append(box(part, left, at, right - left, share))
            if letter := LETTERS.get(part):
                marks.append(box(part, right + 4, at, 10, share))
                marks.append(
                    text(f"{part} letter", 44 + 14 * n, middle, letter)
                )
            at += share
        time = f' style="--time:{slowed * ms / 1e3:.3g}s"'
        marks.append(box("sweep", left, top, right - left, high, time))
        for n in range(1, 16):
            cut = left + n * (right - left) / 16
            marks.append(svg.LINE.format(cut, top, cut, top + high))
        y += row + (40 if narrow else 16)
    drawn = svg.SVG.format(width, y - 12, "{title}", Markup("").join(marks))
    kind = "narrow" if narrow else "wide"
    return str(drawn).replace("<svg", f'<svg class="{kind} plot step"', 1)


def step(*, slowed: int) -> Plot:
    """Hovered over, it runs `slowed` times slower than the H100."""
    rows: list[Row] = []
    for name, model in four().items():
        read, parts = kv_bytes(model, TOKENS), _parts(model)
        held = " + ".join(f"{LETTERS[k]} {n:,}" for k, n in parts.items())
        ms = f"{1e3 * read / H100.bandwidth:.3g}"
        rows.append([name, held, size(kv_bytes(model, 1)), size(read), ms])
    ms = f"{1e3 * WEIGHTS / H100.bandwidth:.3g}"
    rows.append([Word("weights"), "–", "–", size(WEIGHTS), ms])
    return Plot(_step(False, slowed), _step(True, slowed), rows)


def checked() -> Iterator[Row]:
    """How many of each kind are checked."""
    texts = (p.read_text("utf-8") for p in (ROOT / "attnref").rglob("[!.]*.py"))
    hidden = sum(kills()[name]["same_shape"] for name in catalogue())
    yield [str(len(catalogue())), Word("mistakes", (str(hidden),))]
    yield [str(len(models())), Word("released")]
    yield [str(sum(len(shapes.comments(t)) for t in texts)), Word("shapes")]
    yield [str(len(EXERCISES)), Word("exercises")]
