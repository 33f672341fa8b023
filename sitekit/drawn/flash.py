"""Tiles of a small example one after another, and what tiles save."""

import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import torch
from markupsafe import Markup
from torch import Tensor

import attnref
from attnref.core.flash import Tiles, parts
from attnref.numbers.kv_memory import size
from sitekit.drawing import steps, svg
from sitekit.drawing.steps import Frame, Steps
from sitekit.drawn.operations import GPUS
from sitekit.markdown.render import Row, Word

# Six tokens: scores are small integers, scale 1; values are one number each.
# The maximum of the last query grows with each tile.
Q = [[1, 0], [0, 1], [1, 1], [0, 1], [1, 1], [1, 0]]
K = [[1, 0], [0, 1], [2, 1], [0, 2], [1, 1], [3, 0]]
SCORES = torch.tensor(Q).double() @ torch.tensor(K).double().mT
VALUES = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0, 60.0]).double()
TILE = 2
QUERY = 5


class Order(NamedTuple):
    """For each query and key `(T, S)`: the number of the tile in which it is
    computed, 0 = in none; and whether it is seen."""

    numbers: Tensor
    seen: Tensor

    def drawing(self, axes: tuple[str, str], *, title: str) -> svg.Drawing:
        """Tiles with their numbers; what is computed and hidden is marked."""
        T, S = self.numbers.shape
        cell, gap, left, top = 30, 6, 52, 48

        def place(i: int) -> float:
            return i * cell + i // TILE * gap + cell / 2

        width, height = (n * cell + n // TILE * gap for n in (S, T))
        marks = [
            svg.TEXT.format("axis", left + width / 2, 12, "", axes[1]),
            svg.TEXT.format(
                "axis", 0, 0, svg.UPWARDS.format(12, top + height / 2), axes[0]
            ),
        ]
        for i in range(max(T, S)):
            x, y = left + place(i), top + place(i)
            marks.append(svg.TEXT.format("label", x, top - 14, "", i))
            marks.append(svg.TEXT.format("label row", left - 8, y, "", i))
        for i, j in product(range(T), range(S)):
            x, y = left + place(j), top + place(i)
            number = int(self.numbers[i, j])
            kind = "on" if self.seen[i, j] else "made" if number else "off"
            box = (x - cell / 2 + 1, y - cell / 2 + 1, cell - 2, cell - 2, 4)
            marks.append(svg.BOX.format(kind, *box, ""))
            marks.append(svg.TEXT.format(kind, x, y, "", number or ""))
        drawn = svg.SVG.format(
            left + width, top + height, title, Markup("").join(marks)
        )
        room = svg.room([title], 1, svg.BOLD)
        return svg.Drawing(title, room, left + width, drawn)


def order(window: int | None = None) -> Order:
    """The tiles of the example in the order of the forward pass."""
    T = len(SCORES)
    seen = attnref.causal_mask(T)
    if window is not None:
        seen = seen & ~seen.tril(-window)
    numbers = torch.zeros(T, T, dtype=torch.int64)
    tiles = Tiles(T, T, seen, TILE, TILE)
    done = (t for rows in parts(T, TILE) for t in tiles.of_rows(rows))
    for number, tile in enumerate(done, 1):
        numbers[tile.rows, tile.columns] = number
    return Order(numbers, seen)


class Step(NamedTuple):
    """What the last query knows after the keys from `start` to `end`."""

    start: int
    end: int
    m: float
    factor: float  # of the sums so far
    total: float
    acc: float


def _walk() -> Iterator[Step]:
    m, total, acc = -math.inf, 0.0, 0.0
    for start in range(0, QUERY + 1, TILE):
        end = start + TILE
        s = SCORES[QUERY, start:end]
        larger = max(m, s.max().item())
        factor, p = math.exp(m - larger), (s - larger).exp()
        total = total * factor + p.sum().item()
        acc = acc * factor + (p @ VALUES[start:end]).item()
        m = larger
        yield Step(start, end, m, factor, total, acc)


def one_row() -> Steps:
    """The last query, tile by tile: scores, exponentials, m, l and o; at the
    end the weights, which are those of softmax."""
    frames, walk = [], [*_walk()]
    for n, step in enumerate([*walk, walk[-1]], 1):
        whole = n > len(walk)
        below = (SCORES[QUERY] - step.m).exp()
        below[step.end :] = 0
        below /= step.total if whole else 1
        marks = [
            steps.text("end soft small", 62, 22, "s"),
            steps.text(
                "end soft small", 62, 66, "p / \u2113" if whole else "p"
            ),
            steps.text("end soft small", 62, 110, "v"),
        ]
        for j, (score, p) in enumerate(
            zip(SCORES[QUERY].tolist(), below.tolist(), strict=True)
        ):
            x = 72 + 48 * j + 8 * (j // TILE)
            now = whole or step.start <= j < step.end
            done = j < step.end
            kind = "now" if now else "past" if done else "slot"
            marks.append(steps.box(kind, x, 6, 44, 32))
            if done:
                marks.append(steps.text("", x + 22, 22, f"{score:g}"))
                marks.append(steps.text("", x + 22, 66, f"{p:.2f}"))
            marks.append(steps.text("value", x + 22, 110, f"{VALUES[j]:g}"))
        state = {"m": f"{step.m:g}", "\u2113": f"{step.total:.3f}"}
        state |= {"o": f"{step.acc:.2f}"}
        for i, (name, number) in enumerate(state.items()):
            marks.append(
                steps.text("start", 30 + 118 * i, 152, f"{name} = {number}")
            )
        out = f"{step.acc / step.total:.2f}"
        if whole:
            marks.append(
                steps.text("value start", 30, 182, f"o / \u2113 = {out}")
            )
        facts = state | {"factor": f"{step.factor:.2f}", "out": out}
        frames.append(Frame(marks, facts))
    return Steps(388, 196, frames)


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
        yield [
            f"{tokens:,}",
            size(HEADS * tokens**2 * BYTES),
            size(out),
            size(HEADS * tokens * 4),
        ]


def numbers() -> dict[str, object]:
    """What the text says of bytes, and of the example."""
    eager, *_ = (row[2] for row in moved(8192, 128))
    return {
        "ridge": GPUS["h100"].ridge,
        "eager": eager,
        "keys": size(2 * KV_HEADS * 8192 * WIDTH * BYTES),
        "wide": size(512 * 128 * 4),
        "small": size(64 * 64 * 4),
        "last_rows": 100 - 64,
    }
