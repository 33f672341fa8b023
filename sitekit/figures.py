"""Figures: numbers from attnref, words from the page.

A scene computes a matrix: queries by keys for a heat map, query heads by
key/value heads for a wiring. The fence in the page names the scene and brings
title, axis names and tokens in the page's language, so one drawing serves both
languages.
"""

from collections.abc import Callable
from html import escape
from typing import Any

import torch
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


CELL, GAP, MARGIN = 44, 2, 2


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
    # Chinese characters are as wide as they are high, Latin ones about half.
    side = 12 + max(
        sum(14 if ord(c) > 0x2E7F else 7.5 for c in row) for row in rows
    )
    left, top = MARGIN + 22 + side, MARGIN + 50
    width, height = left + S * CELL + MARGIN, top + T * CELL + float(MARGIN)
    # The name of a low figure's rows is longer than they are high.
    name_of_rows = sum(12 if ord(c) > 0x2E7F else 6.5 for c in axes[0])
    height = max(height, top + (T * CELL + name_of_rows) / 2)
    boolean = matrix.dtype == torch.bool
    name = escape(title)
    out = [
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{name}">'
    ]
    middle_x, middle_y = left + S * CELL / 2, top + T * CELL / 2
    across, down = escape(axes[1]), escape(axes[0])
    out.append(
        f'<text class="axis" x="{middle_x:g}" y="{MARGIN + 12}">{across}</text>'
    )
    out.append(
        f'<text class="axis" transform="translate({MARGIN + 12} {middle_y:g}) '
        f'rotate(-90)">{down}</text>'
    )
    for j, label in enumerate(columns):
        x = left + j * CELL + CELL / 2
        out.append(
            f'<text x="{x:g}" y="{top - 12}" class="label">{escape(label)}'
            "</text>"
        )
    for i, label in enumerate(rows):
        y = top + i * CELL + CELL / 2
        out.append(
            f'<text x="{left - 10:g}" y="{y:g}" class="label row">'
            f"{escape(label)}</text>"
        )
        for j in range(S):
            value = float(matrix[i, j])
            x = left + j * CELL
            inner = CELL - GAP
            place = f'x="{x:g}" y="{y - CELL / 2:g}"'
            if boolean:
                kind, text, ink = ("off", "on")[int(value)], f"{value:g}", ""
            else:
                kind = "zero" if value == 0 else "weight"
                text = "0" if value == 0 else f"{value:.2f}"
                # Light enough at every weight for the number to be read.
                ink = f' style="fill-opacity:{0.08 + 0.42 * value:.3f}"'
                ink = "" if value == 0 else ink
            out.append(
                f'<rect class="{kind}" {place} width="{inner}" '
                f'height="{inner}" rx="4"{ink}/>'
            )
            out.append(
                f'<text class="{kind}" x="{x + inner / 2:g}" '
                f'y="{y - GAP / 2:g}">{text}</text>'
            )
    return "".join(out) + "</svg>"


def lines(matrix: Tensor, axes: tuple[str, str], title: str) -> str:
    """Query heads above, key/value heads below, a line where one is read."""
    H, K = matrix.shape
    top, bottom, step = 44, 132, 30
    width, height = H * step + 2 * MARGIN, bottom + 48
    out = [
        f'<svg viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">'
    ]

    def place(i: int, n: int) -> float:
        return MARGIN + (i + 0.5) * H * step / n

    for h, k in matrix.nonzero().tolist():
        out.append(
            f'<line x1="{place(h, H):g}" y1="{top}" x2="{place(k, K):g}" '
            f'y2="{bottom}"/>'
        )
    for n, y, word, kind in ((H, top, "q", "off"), (K, bottom, "kv", "on")):
        for i in range(n):
            x = place(i, n)
            out.append(
                f'<rect class="{kind}" x="{x - 13:g}" y="{y - 12}" '
                'width="26" height="24" rx="4"/>'
                f'<text class="{kind}" x="{x:g}" y="{y}">{word}{i}</text>'
            )
    for word, y in zip(axes, (14, bottom + 34), strict=True):
        out.append(
            f'<text class="axis" x="{width / 2:g}" y="{y}">{escape(word)}'
            "</text>"
        )
    return "".join(out) + "</svg>"


def bars(values: Tensor, labels: list[str], title: str) -> str:
    """One bar a value, its number beside it."""
    if len(values) != len(labels):
        raise ValueError(f"{len(labels)} labels for {len(values)} bars")
    left, row, longest = 110, 34, 380
    width, height = left + longest + 70, row * len(labels) + 2 * MARGIN
    out = [
        f'<svg viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">'
    ]
    for i, (value, label) in enumerate(
        zip(values.tolist(), labels, strict=True)
    ):
        y = MARGIN + row * i + row / 2
        length = max(2.0, longest * value / float(values.max()))
        out.append(
            f'<text class="label row" x="{left - 10}" y="{y:g}">'
            f"{escape(label)}</text>"
            f'<rect class="on" x="{left}" y="{y - 10:g}" '
            f'width="{length:.1f}" height="20" rx="2"/>'
            f'<text class="beside" x="{left + length + 8:.1f}" y="{y:g}">'
            f"{value:,}</text>"
        )
    return "".join(out) + "</svg>"


def stream(
    shapes: dict[str, list[tuple[int, ...]]], words: list[str], title: str
) -> str:
    """Query above, cache below, attention between: a box for each tensor."""
    names = ("query", "cache", "made", "attention", "heads")
    word = dict(zip(names, words, strict=True))
    places = {
        "query": (76, 34, "off"),
        "cache": (76, 118, "on"),
        "made": (266, 118, "made"),
        "attention": (456, 76, "off"),
        "heads": (646, 76, "off"),
    }
    kept = {name: place for name, place in places.items() if shapes[name]}
    joins = [("query", "attention"), ("attention", "heads")]
    if "made" in kept:
        joins += [("cache", "made"), ("made", "attention")]
    else:
        joins += [("cache", "attention")]
    half, high = 72, 25
    out = [
        '<svg class="wide" viewBox="0 0 722 152" width="722" height="152" '
        f'role="img" aria-label="{escape(title)}">'
    ]
    for start, end in joins:
        (x1, y1, _), (x2, y2, _) = kept[start], kept[end]
        out.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>')
    latent = shapes["attention"] != shapes["heads"]
    for shown, x, y, matrix in (
        (latent, 266, 36, f"W^UK: {shapes['asked'][0]}"),
        (latent, 551, 62, "W^UV"),
        (bool(shapes["made"]), 266, 82, "W^UK, W^UV"),
    ):
        if shown:
            out.append(f'<text class="axis" x="{x}" y="{y}">{matrix}</text>')
    for name, (x, y, kind) in kept.items():
        below = " ".join(str(shape) for shape in shapes[name])
        out.append(
            f'<rect class="{kind}" x="{x - half}" y="{y - high}" '
            f'width="{2 * half}" height="{2 * high}" rx="5"/>'
            f'<text class="{kind}" x="{x}" y="{y - 10}">{escape(word[name])}'
            f'</text><text class="{kind} shape" x="{x}" y="{y + 9}">{below}'
            "</text>"
        )
    return "".join(out) + "</svg>"
