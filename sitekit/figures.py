"""Figures: numbers from attnref, words from the page.

A scene computes a matrix: queries by keys for a heat map, query heads by
key/value heads for a wiring. The fence in the page names the scene and brings
title, axis names and tokens in the page's language, so one drawing serves both
languages.

A drawing is set in whatever font its reader has, and a text in SVG neither
wraps nor pushes anything away. So every drawing is laid out for the widest of
the common fonts, DejaVu Sans, and holds in all the others.
"""

from collections.abc import Callable, Iterable
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.ft2font import FT2Font, LoadFlags
from torch import Tensor

import attnref
from sitekit.kept import kept

# Two sentences of two and three tokens, padded to four: 我爱你 and 你好.
VALID = torch.tensor([[True, True, True, False], [True, True, False, False]])
# 我 爱 你 <pad> as four vectors of width 2.
EMBEDDED = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0], [1.0, 1.0]])


def _padding() -> Tensor:
    return attnref.padding_mask(VALID)[0, 0].expand(4, 4)


def _causal() -> Tensor:
    return attnref.causal_mask(4)


def _combined() -> Tensor:
    return (attnref.causal_mask(4) & attnref.padding_mask(VALID))[0, 0]


def _cross() -> Tensor:
    """Two queries and a pad read 我爱你 <pad>."""
    queries = torch.tensor([[True, True, False]])
    return attnref.cross_mask(queries, VALID[:1])[0, 0]


def _chunk() -> Tensor:
    return attnref.causal_mask(2, 5)


def _left() -> Tensor:
    valid = VALID[1:].flip(-1)
    return (attnref.causal_mask(4) & attnref.padding_mask(valid))[0, 0]


def _weights() -> Tensor:
    x = EMBEDDED[None, None]
    mask = attnref.causal_mask(4) & attnref.padding_mask(VALID[:1])
    return attnref.attention_weights(x, x, mask)[0, 0]


def _rope() -> Tensor:
    """One and the same vector at six positions, turned, with itself."""
    x = torch.ones(1, 1, 6, 8, dtype=torch.float64) / 8**0.5
    turned = attnref.apply_rope(x, *attnref.rope_table(torch.arange(6), 8))
    return (turned @ turned.mT)[0, 0]


SCENES: dict[str, Callable[[], Tensor]] = {
    "padding": _padding,
    "causal": _causal,
    "combined": _combined,
    "cross": _cross,
    "chunk": _chunk,
    "left": _left,
    "weights": _weights,
    "prefill": lambda: attnref.causal_mask(4),
    "next_chunk": lambda: attnref.causal_mask(3, 7),
    "decode": lambda: attnref.causal_mask(1, 8),
    "rope": _rope,
}


@torch.no_grad()
def wiring(layer: Any) -> Tensor:
    """Which query head changes when a key/value head does: `(H, K)`.

    Found by experiment: each value head in turn is made another, and what
    reaches `o_proj` is compared head by head.
    """
    width = layer.k_proj.in_features
    inputs = (torch.randn(1, 5, layer.d_model), torch.randn(1, 5, width))
    heads: list[Tensor] = []
    layer.o_proj.register_forward_pre_hook(
        lambda _, args: heads.append(args[0].unflatten(-1, (layer.n_heads, -1)))
    )
    crossing = isinstance(layer, attnref.CrossAttention)

    def run() -> Tensor:
        layer(*inputs[: 1 + crossing])
        return heads.pop()

    before = run()
    columns = []
    for rows in layer.v_proj.weight.split(layer.head_dim):
        kept = rows.clone()
        rows += 1
        columns.append((run() != before).any(-1).any(1)[0])
        rows.copy_(kept)
    return torch.stack(columns, dim=1)


@kept
def wirings() -> dict[str, Tensor]:
    """The wiring of each layer, by the name of its page."""
    sizes: dict[str, Any] = {"d_model": 32, "n_heads": 8}
    layers = {
        "mha": attnref.MultiHeadAttention(**sizes),
        "gqa": attnref.GroupedQueryAttention(**sizes, n_kv_heads=2),
        "mqa": attnref.MultiQueryAttention(**sizes),
        "cross": attnref.CrossAttention(**sizes, n_kv_heads=4, d_context=24),
    }
    return {name: wiring(layer) for name, layer in layers.items()}


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


BOLD, MONO = "DejaVuSans-Bold", "DejaVuSansMono"


def _svg(width: float, height: float, title: str, *inside: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(title)}">'
        f"{''.join(inside)}</svg>"
    )


def _text(kind: str, x: float, y: float, text: str, more: str = "") -> str:
    return (
        f'<text class="{kind}" x="{x:g}" y="{y:g}"{more}>{escape(text)}</text>'
    )


CELL, GAP, MARGIN = 36, 2, 2


def heatmap(
    matrix: Tensor,
    rows: list[str],
    columns: list[str],
    axes: tuple[str, str],
    title: str,
) -> str:
    """One panel as SVG; its colours are CSS classes of the theme."""
    T, S = matrix.shape
    if (len(rows), len(columns)) != (T, S):
        raise ValueError(
            f"{len(rows)} x {len(columns)} labels for a {T} x {S} figure"
        )
    boolean = matrix.dtype == torch.bool

    def label(text: str) -> tuple[str, float]:
        """Its class and its width: <pad> is code, and smaller."""
        if text.startswith("<"):
            return "label token", room([text], 10, MONO)
        return "label", room([text], 13)

    def number(value: float) -> str:
        return f"{value:g}" if boolean or value == 0 else f"{value:.2f}"

    values = [number(value) for value in matrix.flatten().tolist()]
    cell = max(
        CELL,
        room(values, 12, BOLD if boolean else "DejaVuSans") + GAP + 4,
        max(label(text)[1] for text in columns) + 5,
    )
    left = MARGIN + 28 + max(label(text)[1] for text in rows)
    top = MARGIN + 46
    # The name of an axis may be longer than the axis: the drawing then begins
    # and ends with it, and one name stands beside the other.
    down, across = (room([name], 11.5) / 2 + MARGIN for name in axes)
    middle_x = max(left + S * cell / 2, across + 18)
    middle_y = max(top + T * cell / 2, down)
    width = max(left + S * cell + MARGIN, middle_x + across)
    height = max(top + T * cell + MARGIN, middle_y + down)
    upwards = f"translate({MARGIN + 10} {middle_y:g}) rotate(-90)"
    out = [
        _text("axis", middle_x, MARGIN + 10, axes[1]),
        _text("axis", 0, 0, axes[0], f' transform="{upwards}"'),
    ]
    for j, text in enumerate(columns):
        x = left + (j + 0.5) * cell - GAP / 2
        out.append(_text(label(text)[0], x, top - 12, text))
    for i, text in enumerate(rows):
        y = top + (i + 0.5) * cell - GAP / 2
        out.append(_text(f"{label(text)[0]} row", left - 8, y, text))
        for j, value in enumerate(matrix[i].tolist()):
            x, ink = left + j * cell, ""
            if boolean:
                kind = ("off", "on")[value]
            elif value == 0:
                kind = "zero"
            else:
                kind = "weight"
                # Light enough at every weight for the number to be read.
                ink = f' style="fill-opacity:{0.08 + 0.42 * value:.3f}"'
            inner = cell - GAP
            out.append(
                f'<rect class="{kind}" x="{x:g}" y="{y - inner / 2:g}" '
                f'width="{inner:g}" height="{inner:g}" rx="4"{ink}/>'
            )
            out.append(_text(kind, x + inner / 2, y, number(value)))
    return _svg(width, height, title, *out)


def lines(matrix: Tensor, axes: tuple[str, str], title: str) -> str:
    """Query heads above, key/value heads below, a line where one is read."""
    H, K = matrix.shape
    top, bottom = 44, 132
    names = [f"q{i}" for i in range(H)], [f"kv{i}" for i in range(K)]
    box = max(24, room(names[0], 11), room(names[1], 11, BOLD)) + 4
    width = max(H * (box + 2), room(axes, 11.5)) + 2 * MARGIN

    def place(i: int, n: int) -> float:
        return width / 2 + ((i + 0.5) / n - 0.5) * H * (box + 2)

    out = [
        f'<line x1="{place(h, H):g}" y1="{top}" x2="{place(k, K):g}" '
        f'y2="{bottom}"/>'
        for h, k in matrix.nonzero().tolist()
    ]
    for words, y, kind in zip(names, (top, bottom), ("off", "on"), strict=True):
        for i, word in enumerate(words):
            x = place(i, len(words))
            out.append(
                f'<rect class="{kind}" x="{x - box / 2:g}" y="{y - 12}" '
                f'width="{box:g}" height="24" rx="4"/>'
            )
            out.append(_text(f"{kind} head", x, y, word))
    out.append(_text("axis", width / 2, 14, axes[0]))
    out.append(_text("axis", width / 2, bottom + 34, axes[1]))
    return _svg(width, bottom + 48, title, *out)


def bars(values: Tensor, labels: list[str], title: str) -> str:
    """One bar a value, its number beside it."""
    if len(values) != len(labels):
        raise ValueError(f"{len(labels)} labels for {len(values)} bars")
    numbers = [f"{value:,}" for value in values.tolist()]
    left, row, longest = MARGIN + room(labels, 13) + 10, 32, 270
    width = left + longest + 8 + room(numbers, 12) + MARGIN
    out = []
    for i, (value, number, label) in enumerate(
        zip(values.tolist(), numbers, labels, strict=True)
    ):
        y = MARGIN + row * i + row / 2
        length = max(2.0, longest * value / float(values.max()))
        out += [
            _text("label row", left - 10, y, label),
            f'<rect class="on" x="{left:g}" y="{y - 10:g}" '
            f'width="{length:.1f}" height="20" rx="2"/>',
            _text("beside", left + length + 8, y, number),
        ]
    return _svg(width, row * len(labels) + 2 * MARGIN, title, *out)


def stream(
    shapes: dict[str, list[tuple[int, ...]]], words: list[str], title: str
) -> str:
    """Query above, cache below, attention between: a box for each tensor."""
    names = ("query", "cache", "made", "attention", "heads")
    word = dict(zip(names, words, strict=True))
    below = {
        name: " ".join(str(shape) for shape in shapes[name]) for name in names
    }
    half = max(144, room(words, 12, BOLD), room(below.values(), 10, MONO)) / 2
    half, high, between = half + 5, 25, 46
    columns = [MARGIN + half + i * (2 * half + between) for i in range(4)]
    places = {
        "query": (columns[0], 34, "off"),
        "cache": (columns[0], 118, "on"),
        "made": (columns[1], 118, "made"),
        "attention": (columns[2], 76, "off"),
        "heads": (columns[3], 76, "off"),
    }
    kept = {name: place for name, place in places.items() if shapes[name]}
    joins = [("query", "attention"), ("attention", "heads")]
    if "made" in kept:
        joins += [("cache", "made"), ("made", "attention")]
    else:
        joins += [("cache", "attention")]
    out = []
    for start, end in joins:
        (x1, y1, _), (x2, y2, _) = kept[start], kept[end]
        out.append(f'<line x1="{x1:g}" y1="{y1}" x2="{x2:g}" y2="{y2}"/>')
    latent = shapes["attention"] != shapes["heads"]
    for shown, x, y, matrix in (
        (latent, columns[1], 36, f"W^UK: {shapes['asked'][0]}"),
        (latent, (columns[2] + columns[3]) / 2, 62, "W^UV"),
        (bool(shapes["made"]), columns[1], 82, "W^UK, W^UV"),
    ):
        if shown:
            out.append(_text("axis", x, y, matrix))
    for name, (x, y, kind) in kept.items():
        out += [
            f'<rect class="{kind}" x="{x - half:g}" y="{y - high}" '
            f'width="{2 * half:g}" height="{2 * high}" rx="5"/>',
            _text(kind, x, y - 10, word[name]),
            _text(f"{kind} shape", x, y + 9, below[name]),
        ]
    return _svg(columns[3] + half + MARGIN, 152, title, *out)
