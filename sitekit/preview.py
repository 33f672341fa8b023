"""The picture that a page shows where its address is sent, and its tags.

Messengers read no SVG and run no script. So each page has a PNG of 1200 x 630,
made only for a site that knows its address: the tags need whole ones. Both
languages share the English picture, whose font every Python has.
"""

import io
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import matplotlib
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from attnref.check.catalogue import catalogue
from attnref.numbers.kv_memory import kv_bytes, size
from attnref.released.record import fields_of
from sitekit import ROOT
from sitekit.check import mistakes
from sitekit.drawn.released import KINDS
from sitekit.markdown.pages import front_matter
from sitekit.released import released, told

WIDTH, HEIGHT, EDGE = 1200, 630, 72
INK, SOFT, PAPER, FAINT = "#21231f", "#5a5d55", "#ffffff", "#dbe3e0"
GREEN, RED = "#0f6b63", "#c2410c"
# As strips have them in assets/attnref.css, in light.
QUERY, KEY, LATENT = "#0a5c8a", "#9a4a12", "#7a2a6a"
COLORS = {
    "full": GREEN,
    "window": QUERY,
    "chunk": QUERY,
    "latent": LATENT,
    "compressed": LATENT,
    "recurrent": KEY,
    "shared": SOFT,
}


@cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = Path(matplotlib.get_data_path(), "fonts/ttf", name)
    return ImageFont.truetype(path, size)


def _wrapped(text: str, font: ImageFont.FreeTypeFont, room: int) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= room or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _mask(
    draw: ImageDraw.ImageDraw, x: int, y: int, size: int, cell: int
) -> None:
    """A causal one; of three tokens, the logo."""
    gap = cell // 4
    for i in range(size):
        for j in range(size):
            left, top = x + j * cell, y + i * cell
            box = (left, top, left + cell - gap, top + cell - gap)
            color = GREEN if j <= i else FAINT
            draw.rounded_rectangle(box, gap, fill=color)


def _pair(stem: str) -> tuple[str, Tensor, Tensor] | None:
    """Of the first mistake of the page that can be drawn: its title, what is
    right and what is wrong."""
    path = ROOT / "docs" / "en" / f"{stem}.md"
    for id in re.findall(r"::: mistake (\S+)", path.read_text("utf-8")):
        right, wrong = mistakes.seen(id)
        if isinstance(wrong, str) or not right.dim() == wrong.dim() == 2:
            continue
        if min(right.shape) > 2:
            return catalogue()[id].title.en, right, wrong
    return None


def _matrix(
    draw: ImageDraw.ImageDraw,
    x: int,
    y: int,
    values: Tensor,
    right: Tensor,
    room: tuple[int, int] = (460, 246),
) -> None:
    """Cells that differ from the right ones are red."""
    values, right = values.float(), right.float()
    cell = min(room[1] / values.shape[0], room[0] / values.shape[1])
    most = values.abs().nan_to_num().max().item() or 1.0
    same = values.shape == right.shape
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            left, top = x + j * cell, y + i * cell
            near = same and torch.isclose(
                values[i, j], right[i, j], rtol=1e-3, atol=1e-6
            )
            color = GREEN if near else RED
            dark = 1.0 if value != value else abs(value) / most
            box = (left, top, left + cell - 2, top + cell - 2)
            draw.rectangle(box, fill=_mixed(color, dark))


def _mixed(color: str, dark: float) -> tuple[int, ...]:
    """Of a color and paper."""
    full = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    dark = 0.12 + 0.88 * dark
    return tuple(round(255 + (c - 255) * dark) for c in full)


def _numbers(model: released.Released) -> Iterator[tuple[str, str]]:
    shape = model.model
    tokens = min(shape.max_context, 131_072)
    yield f"{model.layers}", "layers"
    kinds = released.kinds_of(model)
    if kinds:
        yield told.heads(kinds[0]), "heads: query / KV / width"
    yield size(released.per_token(model)), "KV cache of a token"
    yield size(kv_bytes(shape, tokens)), f"of {tokens:,} tokens"


def _of_model(draw: ImageDraw.ImageDraw, model: released.Released) -> None:
    at = float(EDGE)
    for number, label in _numbers(model):
        draw.text((at, 320), number, INK, _font(40, bold=True), anchor="ls")
        draw.text((at, 360), label, SOFT, _font(22), anchor="ls")
        wide = _font(40, bold=True).getlength(number)
        at += 48 + max(wide, _font(22).getlength(label))
    kinds = told.letters(fields_of(model.config), model.records)
    step = (WIDTH - 2 * EDGE) / max(len(kinds), 1)
    for n, letter in enumerate(kinds):
        name, strokes = KINDS[letter]
        for middle, wide in strokes:
            top = 430 + 7 * (middle - wide / 2)
            left = EDGE + n * step
            box = (left, top, left + max(step - 4, 1), top + 7 * wide)
            draw.rectangle(box, fill=COLORS[name])
    note = f"{model.file}: one file that runs and loads the weights"
    draw.text((EDGE, 572), note, SOFT, _font(26), anchor="ls")


def _of_text(draw: ImageDraw.ImageDraw, text: str, top: int) -> None:
    """Its first sentences, as many as there is room for."""
    _mask(draw, WIDTH - EDGE - 288, HEIGHT - EDGE - 288, 8, 36)
    room = (WIDTH - 2 * EDGE - 340, (HEIGHT - EDGE - top) // 46)
    ends = [m.end() for m in re.finditer(r"[.:](?= |$)", text)]
    texts = [text[:end] for end in ends if end > 12] or [text]
    fits = [_wrapped(text, _font(32), room[0]) for text in texts]
    lines = max(
        (x for x in fits if len(x) <= room[1]), key=len, default=fits[0]
    )
    for n, line in enumerate(lines):
        draw.text((EDGE, top + 46 * n), line, SOFT, _font(32), anchor="ls")


def place(stem: str) -> str:
    """As overrides/main.html names it."""
    return f"assets/previews/{stem}.png"


def of_page(stem: str) -> bytes:
    """A PNG."""
    path = ROOT / "docs" / "en" / f"{stem}.md"
    if path.exists():
        matter = front_matter(path)
        title, text = matter["title"], matter["description"]
    else:
        title, text = released.released()[stem.split("/")[-1]].name, ""
    image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, WIDTH, 12), fill=GREEN)
    _mask(draw, EDGE, 54, 3, 19)
    draw.text((EDGE + 70, 92), "attnref", GREEN, _font(34, True), anchor="ls")
    big = _font(60 if len(title) < 28 else 50, bold=True)
    y = 196
    for line in _wrapped(title, big, WIDTH - 2 * EDGE)[:2]:
        draw.text((EDGE, y), line, INK, big, anchor="ls")
        y += 66
    if not path.exists():
        _of_model(draw, released.released()[stem.split("/")[-1]])
    elif stem.startswith("mistakes/") and (pair := _pair(stem)):
        name, right, wrong = pair
        draw.text((EDGE, y + 10), f"{name}: right, wrong", SOFT, _font(28))
        for x, values in ((EDGE, right), (WIDTH // 2 + 40, wrong)):
            _matrix(draw, x, y + 70, values, right)
    else:
        _of_text(draw, text, y + 40)
    return _png(image)


def of_mistake(id: str) -> bytes:
    """A PNG, of half the size: there are hundreds."""
    image = Image.new("RGB", (WIDTH // 2, HEIGHT // 2), PAPER)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, WIDTH // 2, 6), fill=GREEN)
    _mask(draw, 36, 24, 3, 9)
    draw.text((70, 42), "attnref", GREEN, _font(17, True), anchor="ls")
    right, wrong = mistakes.seen(id)
    title, y = catalogue()[id].title.en, 80
    for line in _wrapped(title, _font(23, bold=True), WIDTH // 2 - 72)[:2]:
        draw.text((36, y), line, INK, _font(23, bold=True), anchor="ls")
        y += 29
    for x, label, value in ((36, "wrong", wrong), (320, "right", right)):
        draw.text((x, y + 6), label, SOFT, _font(16), anchor="ls")
        if not isinstance(value, str) and value.dim() == right.dim() == 2:
            _matrix(draw, x, y + 18, value, right, (240, 300 - y - 18))
            continue
        text = mistakes.number(value).replace(", ", "  ").strip("`")
        for n, line in enumerate(_wrapped(text, _font(19), 240)[:6]):
            color = RED if label == "wrong" else INK
            draw.text((x, y + 36 + 24 * n), line, color, _font(19), anchor="ls")
    return _png(image)


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.quantize(64, dither=Image.Dither.NONE).save(out, "PNG")
    return out.getvalue()
