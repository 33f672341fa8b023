"""The picture that a page shows where its address is sent, and its tags.

Messengers read no SVG and run no script. So each page has a PNG of 1200 x 630,
made only for a site that knows its address: the tags need whole ones. The
Chinese one needs a font that not every machine has; without it, it is English.
"""

import io
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from attnref.judge.catalogue import catalogue
from attnref.numbers.kv_memory import kv_bytes, size
from attnref.released.parts import letters
from sitekit import ROOT
from sitekit.check import mistakes
from sitekit.drawing.heatmap import is_close
from sitekit.drawing.strips import KINDS
from sitekit.markdown.pages import front_matter
from sitekit.released import released, told

WIDTH, HEIGHT, EDGE = 1200, 630, 72
INK, SOFT, PAPER, FAINT = "#21231f", "#5a5d55", "#ffffff", "#dbe3e0"
GREEN, RED = "#0f6b63", "#a3213f"
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


# Where systems keep a font with Chinese letters; the collections begin with
# faces for other countries.
CHINESE = (
    ("/usr/share/fonts/opentype/noto/NotoSansCJK-{}.ttc", 2),
    ("/usr/share/fonts/noto-cjk/NotoSansCJK-{}.ttc", 2),
    ("/System/Library/Fonts/PingFang.ttc", 2),
    ("/usr/share/fonts/truetype/wqy/wqy-microhei.ttc", 0),
    ("C:/Windows/Fonts/msyh.ttc", 0),
)


@cache
def _chinese(bold: bool) -> tuple[str, int] | None:
    found = ((path.format("Bold" if bold else "Regular"), face) for path, face in CHINESE)
    return next((font for font in found if Path(font[0]).exists()), None)


@cache
def _font(size: int, bold: bool = False, language: str = "en") -> ImageFont.FreeTypeFont:
    if language == "zh" and (chinese := _chinese(bold)):
        return ImageFont.truetype(chinese[0], size, index=chinese[1])
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = Path(matplotlib.get_data_path(), "fonts/ttf", name)
    return ImageFont.truetype(path, size)


def _wrap(text: str, font: ImageFont.FreeTypeFont, room: int) -> list[str]:
    lines = [""]
    # Chinese is broken after any letter, but not before a mark.
    words = re.findall(r"[\u2e80-\uffef](?:[，。、：；！？）”])*|[^\s\u2e80-\uffef]+ *|\s+", text)
    for word in words:
        longer = f"{lines[-1]}{word}".lstrip()
        if font.getlength(longer) <= room or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word.lstrip())
    return [line.rstrip() for line in lines]


def _mask(draw: ImageDraw.ImageDraw, x: int, y: int, size: int, cell: int) -> None:
    """Draw a causal mask. The one of three tokens is the logo."""
    gap = cell // 4
    for i in range(size):
        for j in range(size):
            left, top = x + j * cell, y + i * cell
            box = (left, top, left + cell - gap, top + cell - gap)
            color = GREEN if j <= i else FAINT
            draw.rounded_rectangle(box, gap, fill=color)


def _pair(stem: str, language: str) -> tuple[str, Tensor, Tensor] | None:
    """The first mistake of the page that can be drawn: its title, the right
    output and the wrong one."""
    path = ROOT / "docs" / "en" / f"{stem}.md"
    for id in re.findall(r"::: mistake (\S+)", path.read_text("utf-8")):
        right, wrong = mistakes.outputs(id)
        if isinstance(wrong, str) or not right.dim() == wrong.dim() == 2:
            continue
        if min(right.shape) > 2:
            return f"{getattr(catalogue()[id].title, language)}{TURNS[language]}", right, wrong
    return None


def _matrix(
    draw: ImageDraw.ImageDraw,
    x: int,
    y: int,
    values: Tensor,
    right: Tensor,
    room: tuple[int, int] = (460, 246),
) -> None:
    """Draw a matrix; cells that differ from the right ones are red."""
    values, right = values.float(), right.float()
    cell = min(room[1] / values.shape[0], room[0] / values.shape[1])
    largest = values.abs().nan_to_num().max().item() or 1.0
    same_shape = values.shape == right.shape
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            x_cell, y_cell = x + j * cell, y + i * cell
            is_right = same_shape and is_close(values[i, j], right[i, j])
            color = GREEN if is_right else RED
            dark = 1.0 if value != value else abs(value) / largest
            box = (x_cell, y_cell, x_cell + cell - 2, y_cell + cell - 2)
            draw.rectangle(box, fill=_mix(color, dark))


def _mix(color: str, dark: float) -> tuple[int, ...]:
    """Mix a color with white."""
    full = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    dark = 0.12 + 0.88 * dark
    return tuple(round(255 + (c - 255) * dark) for c in full)


LABELS = {
    "en": ("layers", "heads: query / KV / width", "KV cache of a token", "of {:,} tokens"),
    "zh": ("层", "头：查询 / 键值 / 维度", "每个 token 的 KV 缓存", "{:,} 个 token"),
}
NOTES = {
    "en": "{}: one file that runs and loads the weights",
    "zh": "{}：一个文件，能运行，能加载权重",
}
TURNS = {"en": ": right, wrong", "zh": "：左对右错"}
SIDES = {"en": ("wrong", "right"), "zh": ("错", "对")}


def _numbers(model: released.Released, language: str) -> Iterator[tuple[str, str]]:
    layers, heads, token, all_tokens = LABELS[language]
    shape = model.model
    tokens = min(shape.max_context, 131_072)
    yield f"{model.layers}", layers
    kinds = released.kinds_of(model)
    if kinds:
        yield told.heads(kinds[0]), heads
    yield size(released.per_token(model)), token
    yield size(kv_bytes(shape, tokens)), all_tokens.format(tokens)


def _of_model(draw: ImageDraw.ImageDraw, model: released.Released, language: str) -> None:
    x, small = float(EDGE), _font(22, language=language)
    for number, label in _numbers(model, language):
        draw.text((x, 320), number, INK, _font(40, bold=True), anchor="ls")
        draw.text((x, 360), label, SOFT, small, anchor="ls")
        width = _font(40, bold=True).getlength(number)
        x += 48 + max(width, small.getlength(label))
    kinds = letters(model.reading, model.records)
    step = (WIDTH - 2 * EDGE) / max(len(kinds), 1)
    for n, letter in enumerate(kinds):
        name, strokes = KINDS[letter]
        for middle, width in strokes:
            top = 430 + 7 * (middle - width / 2)
            left = EDGE + n * step
            box = (left, top, left + max(step - 4, 1), top + 7 * width)
            draw.rectangle(box, fill=COLORS[name])
    note = NOTES[language].format(model.file)
    draw.text((EDGE, 572), note, SOFT, _font(26, language=language), anchor="ls")


def _of_text(draw: ImageDraw.ImageDraw, text: str, top: int, language: str) -> None:
    """Draw the first sentences of a text, as many as there is room for."""
    _mask(draw, WIDTH - EDGE - 288, HEIGHT - EDGE - 288, 8, 36)
    room = (WIDTH - 2 * EDGE - 340, (HEIGHT - EDGE - top) // 46)
    ends = [m.end() for m in re.finditer(r"[.:](?= |$)|[。：]", text)]
    texts = [text[:end] for end in ends if end > 12] or [text]
    font = _font(32, language=language)
    fits = [_wrap(text, font, room[0]) for text in texts]
    lines = max((x for x in fits if len(x) <= room[1]), key=len, default=fits[0][: room[1]])
    for n, line in enumerate(lines):
        draw.text((EDGE, top + 46 * n), line, SOFT, font, anchor="ls")


def place(stem: str) -> str:
    """The address of a picture, which overrides/main.html names too."""
    return f"assets/previews/{stem}.png"


def _spoken(language: str) -> str:
    """The language of a picture: English without a font for another."""
    return language if language == "en" or _chinese(bold=False) else "en"


def of_page(stem: str, language: str = "en") -> bytes:
    """Draw the picture of a page, as a PNG."""
    language = _spoken(language)
    path = ROOT / "docs" / language / f"{stem}.md"
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
    is_short = len(title) < (28 if language == "en" else 18)
    big = _font(60 if is_short else 50, True, language)
    y = 196
    for line in _wrap(title, big, WIDTH - 2 * EDGE)[:2]:
        draw.text((EDGE, y), line, INK, big, anchor="ls")
        y += 66
    if not path.exists():
        _of_model(draw, released.released()[stem.split("/")[-1]], language)
    elif stem.startswith("mistakes/") and (pair := _pair(stem, language)):
        name, right, wrong = pair
        draw.text((EDGE, y + 10), name, SOFT, _font(28, language=language))
        for x, values in ((EDGE, right), (WIDTH // 2 + 40, wrong)):
            _matrix(draw, x, y + 70, values, right)
    else:
        _of_text(draw, text, y + 40, language)
    return _png(image)


def of_mistake(id: str, language: str = "en") -> bytes:
    """Draw the picture of a mistake, of half the size: there are hundreds."""
    language = _spoken(language)
    image = Image.new("RGB", (WIDTH // 2, HEIGHT // 2), PAPER)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, WIDTH // 2, 6), fill=GREEN)
    _mask(draw, 36, 24, 3, 9)
    draw.text((70, 42), "attnref", GREEN, _font(17, True), anchor="ls")
    right, wrong = mistakes.outputs(id)
    title, y = getattr(catalogue()[id].title, language), 80
    big = _font(23, True, language)
    for line in _wrap(title, big, WIDTH // 2 - 72)[:2]:
        draw.text((36, y), line, INK, big, anchor="ls")
        y += 29
    sides = zip((36, 320), SIDES[language], (wrong, right), strict=True)
    for x, label, value in sides:
        draw.text((x, y + 6), label, SOFT, _font(16, language=language), anchor="ls")
        if not isinstance(value, str) and value.dim() == right.dim() == 2:
            _matrix(draw, x, y + 18, value, right, (240, 300 - y - 18))
            continue
        text = mistakes.number(value).replace(", ", "  ").strip("`")
        for n, line in enumerate(_wrap(text, _font(19), 240)[:6]):
            color = RED if value is wrong else INK
            draw.text((x, y + 36 + 24 * n), line, color, _font(19), anchor="ls")
    return _png(image)


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.quantize(64, dither=Image.Dither.NONE).save(out, "PNG")
    return out.getvalue()
