"""Programs over the grid, bytes and FLOPs of kernels, what ptxas said."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnref.core.flash import Tiles, parts
from attnref.core.masks import causal_mask
from attnref.kernels.launch import span_for
from attnref.numbers.kv_memory import size
from sitekit import ROOT
from sitekit.drawing import svg
from sitekit.drawing.heatmap import Cell, lattice
from sitekit.drawn.operations import GPUS, KV_HEADS
from sitekit.markdown.render import Row, Word

H, D, R, DR = 32, 128, 512, 64  # Llama-3.1-8B's heads, DeepSeek-V3's latent
LONG, PROMPT = 131_072, 8192
H100 = GPUS["h100"]


class Grid(NamedTuple):
    """Programs or heads, and blocks of keys: a number, 0 = it is not read."""

    numbers: Tensor

    def drawing(self, axes: tuple[str, str], *, title: str) -> svg.Drawing:
        cells = [
            [Cell("on" if number else "off", str(number or "")) for number in row]
            for row in self.numbers.tolist()
        ]
        rows: list[object] = [*range(len(cells))]
        columns: list[object] = [*range(len(cells[0]))]
        return lattice(cells, axes, title=title, rows=rows, columns=columns, least=30)


def prompt_grid() -> Grid:
    """Each block of queries is a program: the step at which it reads keys."""
    tiles = Tiles(8, 8, causal_mask(8), 2, 2)
    numbers = torch.zeros(4, 4, dtype=torch.int64)
    for row, rows in enumerate(parts(8, 2)):
        for step, tile in enumerate(tiles.of_rows(rows), 1):
            numbers[row, tile.columns.start // 2] = step
    return Grid(numbers)


def decode_grid() -> Grid:
    """Each key/value head and span of two blocks is a program of its own."""
    span = span_for(8, 2, programs=4, block=2) // 2
    programs = torch.arange(1, 2 * 4 // span + 1).view(2, -1)
    return Grid(programs.repeat_interleave(span, dim=1))


def _flash(tokens: int) -> tuple[float, float]:
    """Bytes and FLOPs: bfloat16 is read and written once, and one float32 per
    query, its log-sum-exp."""
    moved = 2 * tokens * D * 2 * (H + KV_HEADS) + 4 * H * tokens
    return moved, 2 * H * tokens * (tokens + 1) * D


def _decode(batch: int) -> tuple[float, float]:
    return 2 * batch * LONG * KV_HEADS * 2 * D, 4 * batch * LONG * H * D


def _mla(batch: int, heads: int) -> tuple[float, float]:
    flops = 2 * batch * LONG * heads * (R + DR + R)
    return 2 * batch * LONG * (R + DR), flops


def _delta(tokens: int, chunk: int = 16, columns: int = 16) -> tuple[float, float]:
    """Products of keys with keys and queries are there for each program."""
    of_keys = 2 * 2 * chunk * D * (D // columns)
    flops = of_keys + 2 * 2 * chunk * D + 3 * 2 * D * D
    return tokens * H * (4 * D * 2 + 2 * 4), tokens * H * flops


CASES = {
    "flash": _flash(PROMPT),
    "decode": _decode(1),
    "decode, 16": _decode(16),
    "mla_decode, 16 heads": _mla(1, 16),
    "mla_decode, 128 heads": _mla(1, 128),
    "gated_delta": _delta(PROMPT),
}


def roofline() -> Iterator[Row]:
    """Bytes, FLOPs per byte, and the least time of each on an H100."""
    for name, (moved, flops) in CASES.items():
        reading, computing = moved / H100.bandwidth, flops / H100.peak
        yield [
            Word(name),
            size(moved),
            f"{flops / moved:.0f}",
            f"{1e3 * reading:.3f}",
            f"{1e3 * computing:.3f}",
            Word("memory" if reading > computing else "compute"),
        ]


def saved() -> Iterator[Row]:
    """A line of a kernel, and the bytes that are moved without it."""
    cache, _ = _decode(1)
    span = span_for(LONG, KV_HEADS, programs=512, block=64)
    pieces = LONG // span
    entries, _ = _mla(1, 128)
    for kernel, key, line, more in (
        ("decode", "scores", "scores = tl.dot(queries, tl.trans(keys)", 8 * H * LONG),
        ("decode", "group", "head = kv * G + row", (H // KV_HEADS - 1) * cache),
        ("decode", "parts", "outs + line[:, None] * DV + e", -8 * H * pieces * (D + 1)),
        ("mla_decode", "value", "tl.dot(p.to(latent.dtype), latent", entries * R / (R + DR)),
        ("mla_decode", "heads", "head = group * ROWS + tl.arange(0, ROWS)", 126 * entries),
        ("flash", "tiles", "range(first, end, BLOCK_S)", _tiles_left_out()),
    ):
        path = ROOT / f"attnref/kernels/{kernel}.py"
        if line not in path.read_text(encoding="utf-8"):
            raise ValueError(f"{path.name} has no {line!r}")
        sign = "-" if more < 0 else ""
        yield [f"`{kernel}`", f"`{line}`", Word(key), f"{sign}{size(abs(more))}"]


def _tiles_left_out() -> float:
    """Keys and values of the tiles above the diagonal, of all query heads."""
    tiles = PROMPT // 128
    hidden = sum(PROMPT - 128 * (n + 1) for n in range(tiles))
    return 2 * 2 * H * hidden * D


@cache
def _record() -> dict[str, Any]:
    path = ROOT / "benchmarks" / "kernels.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


def assembled() -> Iterator[Row]:
    """Registers, spilled bytes, shared memory and the unit that multiplies."""
    for name, new in _record()["sm_90"].items():
        old = _record()["sm_80"][name]
        if name.endswith("merge") and name != "decode: merge":
            continue
        yield [
            f"`{name.split(': ')[1]}`",
            Word(name.split(": ")[0]),
            *(str(row["registers"]) for row in (old, new)),
            *(f"{row['shared']:g}" for row in (old, new)),
            str(max(old["spilled"], new["spilled"])),
            *(f"`{row['unit']}`" if row["unit"] else "-" for row in (old, new)),
        ]


def numbers() -> dict[str, object]:
    planted = ROOT / "tests" / "kit" / "planted.txt"
    span = span_for(LONG, KV_HEADS, programs=512, block=64)
    rows = [row for x in ("sm_80", "sm_90") for row in _record()[x].values()]
    return {
        "planted": planted.read_text(encoding="utf-8").count("\n- "),
        "triton": _record()["triton"],
        "span": span,
        "programs": LONG // span * KV_HEADS,
        "parts_share": 100 * 2 * 4 * H * (LONG // span) * (D + 1) / _decode(1)[0],
        "registers": max(row["registers"] for row in rows),
        "ridge": H100.ridge,
    }
