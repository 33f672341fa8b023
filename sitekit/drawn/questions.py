"""Of the fifty questions: RoPE and its scalings, and a quantised cache."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from attnref import Yarn, sdpa
from sitekit.markdown.render import Row

WIDTH, PAIRS = 128, (0, 16, 32, 48, 63)
TRAINED, FACTOR = 4096, 8  # tokens in training, and how much is asked for


def _frequencies(theta: float) -> Tensor:
    pairs = torch.arange(0, WIDTH, 2, dtype=torch.float64)
    return theta ** (-pairs / WIDTH)


def wavelengths() -> Iterator[Row]:
    """After how many tokens a pair has made a whole turn, for two bases."""
    turns = [2 * math.pi / _frequencies(theta) for theta in (1e4, 5e5)]
    for pair in PAIRS:
        yield [str(pair), *(f"{turn[pair]:,.1f}" for turn in turns)]


def scalings() -> Iterator[Row]:
    """What each method divides the frequency of a pair by."""
    theta = 1e4
    plain = _frequencies(theta)
    longer = theta * FACTOR ** (WIDTH / (WIDTH - 2))
    ways = (
        plain / FACTOR,
        _frequencies(longer),
        Yarn(FACTOR, TRAINED).slowed(plain, theta),
    )
    for pair in PAIRS:
        turns = TRAINED * plain[pair] / (2 * math.pi)
        divided = [f"{plain[pair] / way[pair]:.2f}" for way in ways]
        yield [str(pair), f"{turns:,.2f}", *divided]


def rounded(x: Tensor, bits: int, axis: int) -> Tensor:
    """To `2 ** bits` levels between least and largest along an axis."""
    low, high = x.amin(axis, keepdim=True), x.amax(axis, keepdim=True)
    step = (high - low) / (2**bits - 1)
    out: Tensor = ((x - low) / step).round() * step + low
    return out


def cache() -> tuple[Tensor, Tensor, Tensor]:
    """Queries, and 64 keys and values; two channels of the keys are large."""
    draw = torch.Generator().manual_seed(0)
    wide = torch.float64
    q = torch.randn(1, 1, 256, 64, generator=draw, dtype=wide)
    k, v = torch.randn(2, 1, 1, 64, 64, generator=draw, dtype=wide)
    k[..., 3] *= 12
    k[..., 40] *= 8
    return q, k, v


def quantised() -> Iterator[Row]:
    """Error of attention's output where keys or values are rounded."""
    q, k, v = cache()
    exact = sdpa(q, k, v)
    axes = {"channel": -2, "token": -1}
    for bits in (8, 4, 2):
        row: Row = [str(bits)]
        for which in "kv":
            for axis in axes.values():
                new_k = rounded(k, bits, axis) if which == "k" else k
                new_v = rounded(v, bits, axis) if which == "v" else v
                error = (sdpa(q, new_k, new_v) - exact).norm() / exact.norm()
                row.append(f"{error:.3f}")
        yield row
