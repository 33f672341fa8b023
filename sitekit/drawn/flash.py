"""Tiles of a small example one after another, and what tiles save."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

import attnref
from attnref.core.flash import Tiles, parts
from attnref.judge.catalogue import Plain, Variant, catalogue
from attnref.numbers.kv_memory import size
from sitekit.drawing import svg
from sitekit.drawing.heatmap import Cell, lattice
from sitekit.drawn.operations import GPUS
from sitekit.markdown.render import Row, Word

TOKENS, TILE = 6, 2
# The values of eight keys, around the origin.
VALUES = [
    [0.9, 0.2], [0.5, 0.75], [-0.25, 0.95], [-0.6, 0.45],
    [-0.95, -0.1], [-0.45, -0.85], [0.2, -0.6], [0.75, -0.7],
]  # fmt: skip
# What the figure plants: a mistake of the catalogue, and which of its variants.
MISTAKES = {
    "acc": ("flash-no-rescaling", 1),
    "total": ("flash-no-rescaling", 2),
    "maximum": ("flash-maximum-of-the-tile", 2),
    "divided": ("flash-not-divided", 1),
}


def variant(name: str) -> Variant:
    """The lines of a mistake that the figure shows."""
    mistake, n = MISTAKES[name]
    return catalogue()[mistake].variants[n]


def _loop(planted: Variant = ()) -> list[tuple[str, bool]]:
    """The lines of the plain form for a tile, without a mask, and the one below
    the loop; True for a line that a mistake has put there."""
    right, text = Plain().text("plain.flash"), Plain(planted).text("plain.flash")
    loop = text[text.index("            scores = ") : text.index("        lses.append")]
    skipped = ("if mask", "seen =", "scores = scores.masked_fill")
    return [
        (line[8:].partition("  #")[0], f"{line}\n" not in right)
        for line in loop.splitlines()
        if not line.strip().startswith(skipped)
    ]


def walk() -> dict[str, object]:
    """What the live figure needs: values, and the code with each mistake."""
    codes = {"right": _loop(), **{name: _loop(variant(name)) for name in MISTAKES}}
    ids = {"right": "", **{name: mistake for name, (mistake, _) in MISTAKES.items()}}
    return {"values": VALUES, "lines": codes, "ids": ids}


class Order(NamedTuple):
    """For each query and key `(T, S)`: the number of the tile in which it is
    computed, 0 = in none; and whether the query may see it."""

    numbers: Tensor
    allowed: Tensor

    def drawing(self, axes: tuple[str, str], *, title: str) -> svg.Drawing:
        """Tiles with their numbers; what is computed and hidden is marked."""

        def cell(number: int, allowed: bool) -> Cell:
            computed = "made" if number else "off"
            return Cell("on" if allowed else computed, str(number or ""))

        pairs = zip(self.numbers.tolist(), self.allowed.tolist(), strict=True)
        cells = [[*map(cell, *rows)] for rows in pairs]
        labels: list[object] = [*range(len(cells))]
        options: dict[str, Any] = {"tile": TILE, "least": 30}
        return lattice(cells, axes, title=title, rows=labels, **options)


def order(window: int | None = None) -> Order:
    """The tiles of the example in the order of the forward pass."""
    T = TOKENS
    allowed = attnref.causal_mask(T)
    if window is not None:
        allowed = allowed & ~allowed.tril(-window)
    numbers = torch.zeros(T, T, dtype=torch.int64)
    tiles = Tiles(T, T, allowed, TILE, TILE)
    computed = (t for rows in parts(T, TILE) for t in tiles.of_rows(rows))
    for number, tile in enumerate(computed, 1):
        numbers[tile.rows, tile.columns] = number
    return Order(numbers, allowed)


# The heads of a layer of Llama-3.1-8B, in bfloat16, on an H100.
HEADS, KV_HEADS, WIDTH, BYTES = 32, 8, 128, 2


def moved(tokens: int, tile: int) -> Iterator[Row]:
    """Bytes to and from the GPU's memory, and what they mean. Each query of
    each head that shares a key/value head is a row of that head's tiles."""
    scores = HEADS * tokens**2 * BYTES
    queries = HEADS * tokens * WIDTH * BYTES  # the output has as many
    keys = 2 * KV_HEADS * tokens * WIDTH * BYTES  # with the values
    lse = HEADS * tokens * 4
    flops = 4 * HEADS * tokens**2 * WIDTH
    gpu = GPUS["h100"]
    rows = tokens * HEADS // KV_HEADS
    for name, n in (
        ("eager", 2 * queries + keys + 4 * scores),
        ("tiles", 2 * queries + math.ceil(rows / tile) * keys + lse),
        ("once", 2 * queries + keys + lse),
    ):
        yield [
            Word(name),
            size(n),
            f"{flops / n:,.0f}",
            f"{1e3 * n / gpu.bandwidth:.2f}",
            f"{1e3 * flops / gpu.peak:.2f}",
        ]


def saved() -> Iterator[Row]:
    """What the backward pass needs beside q, k and v."""
    for tokens in (2048, 8192, 32768):
        out = HEADS * tokens * WIDTH * BYTES
        yield [f"{tokens:,}", size(HEADS * tokens**2 * BYTES), size(out), size(HEADS * tokens * 4)]


def numbers() -> dict[str, object]:
    """What the text says of bytes, and of the example."""
    eager, *_ = (row[2] for row in moved(8192, 128))
    return {
        "ridge": GPUS["h100"].ridge,
        "eager": eager,
        "keys": size(2 * KV_HEADS * 8192 * WIDTH * BYTES),
        "wide": size(512 * 128 * 4),
        "small": size(64 * 64 * 4),
    }
