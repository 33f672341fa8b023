"""Scores by distance, wavelengths of the pairs, and YaRN's ramp."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

import attnref
from sitekit.render import Row


def scores() -> Tensor:
    """Dot products of one vector with itself, at six positions each."""
    x = torch.ones(1, 1, 6, 8, dtype=torch.float64) / 8**0.5
    turned = attnref.apply_rope(x, *attnref.rope_table(torch.arange(6), 8))
    return (turned @ turned.mT)[0, 0]


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
