"""Pairs as turning arrows, wavelengths of the pairs, and YaRN's ramp."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from markupsafe import Markup
from torch import Tensor

import attnref
from sitekit import svg
from sitekit.render import Row

HAND = Markup(
    '<line class="{}" x1="{:.2f}" y1="{:.2f}" x2="{:.2f}" y2="{:.2f}"/>'
)


class Clocks(NamedTuple):
    """Arrows by their kind, as complex numbers `(pairs, columns)`, and the
    degrees that stand below them."""

    arrows: dict[str, Tensor]
    degrees: Tensor
    columns: list[str]

    def drawing(self, axes: tuple[str, str], *, title: str) -> svg.Drawing:
        """A clock for each pair and column."""
        radius, wide, high, left, top = 24, 66, 74, 46, 46
        rows, columns = self.degrees.shape
        width, height = left + columns * wide, top + rows * high
        upwards = svg.UPWARDS.format(12, (top + height) / 2)
        marks = [
            svg.TEXT.format("axis", (left + width) / 2, 12, "", axes[1]),
            svg.TEXT.format("axis", 0, 0, upwards, axes[0]),
        ]
        for j, name in enumerate(self.columns):
            x = left + (j + 0.5) * wide
            marks.append(svg.TEXT.format("label", x, top - 14, "", name))
        for p in range(rows):
            y = top + p * high + radius
            marks.append(svg.TEXT.format("label row", left - 8, y, "", p))
            for j in range(columns):
                x = left + (j + 0.5) * wide
                side = 2 * radius
                box = (x - radius, y - radius, side, side, radius)
                angle = f"{self.degrees[p, j].item():.3g}°"
                marks.append(svg.BOX.format("off", *box, ""))
                marks.append(
                    svg.TEXT.format("off", x, y + radius + 11, "", angle)
                )
                for kind, of_all in self.arrows.items():
                    arrow = radius * of_all[p, j].item()
                    marks += _arrow(kind, complex(x, y), arrow.conjugate())
        drawn = svg.SVG.format(width, height, title, Markup("").join(marks))
        room = svg.room([title], 1, svg.BOLD)
        return svg.Drawing(title, room, width, drawn)


def _arrow(kind: str, start: complex, arrow: complex) -> Iterator[Markup]:
    tip = start + arrow
    for end in (start, *(tip - arrow * z for z in (0.3 + 0.15j, 0.3 - 0.15j))):
        yield HAND.format(kind, end.real, end.imag, tip.real, tip.imag)


def clocks(apart: int = 0) -> Clocks:
    """Four pairs that point to the right, at positions 0 to 3, as `apply_rope`
    rotates them; beside each, if `apart`, the same so many positions later."""
    x = torch.tensor([1.0] * 4 + [0.0] * 4).double().expand(1, 1, 4, 8)

    def turned(positions: Tensor) -> Tensor:
        table = attnref.rope_table(positions, 8)
        return torch.complex(*attnref.apply_rope(x, *table)[0, 0].T.chunk(2))

    at = torch.arange(4)
    key, query = turned(at), turned(at + apart)
    if not apart:
        columns = [str(i) for i in range(4)]
        return Clocks({"query": query}, query.angle().rad2deg(), columns)
    columns = [f"{i}, {i + apart}" for i in range(4)]
    angles = (query / key).angle().rad2deg()
    return Clocks({"key": key, "query": query}, angles, columns)


def distances() -> Iterator[Row]:
    """The cosine of each pair at each distance, and their mean."""
    cos, _ = attnref.rope_table(torch.arange(6), 8)
    for distance, row in enumerate(cos):
        cells = [*row.tolist(), row.mean().item()]
        yield [str(distance), *(f"{cell:.2f}" for cell in cells)]


def wavelengths(dim: int) -> Iterator[Row]:
    """Tokens until a pair has turned once, for two bases."""
    for p in (0, dim // 8, dim // 4, 3 * dim // 8, dim // 2 - 1):
        turn = [2 * math.pi * theta ** (2 * p / dim) for theta in (1e4, 5e5)]
        yield [str(p), *(f"{n:,.0f}" if n > 100 else f"{n:.1f}" for n in turn)]


def yarn_ramp() -> Iterator[Row]:
    """The pairs of DeepSeek-V3's RoPE key before and after YaRN."""
    yarn, dim, theta = attnref.Yarn(40.0, 4096), 64, 10000.0
    plain = theta ** (-torch.arange(0, dim, 2).double() / dim)
    after = yarn.slowed(plain, theta)
    ramp = (1 - after / plain) / (1 - 1 / yarn.factor)
    for p in (0, 10, 13, 16, 20, 23, 31):
        waves = [2 * math.pi / f[p].item() for f in (plain, after)]
        yield [
            str(p),
            f"{yarn.original_max_len / waves[0]:.2f}",
            f"{ramp[p].item():.2f}",
            *(f"{n:,.0f}" if n > 100 else f"{n:.1f}" for n in waves),
        ]
