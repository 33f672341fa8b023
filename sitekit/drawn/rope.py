"""What scalings do to the pairs of a short text, and wavelengths of the pairs."""

import math
from collections.abc import Iterator
from itertools import product

import torch

import attnref
from attnref import Scaling
from sitekit.markdown.render import Row

TRAINED = 16  # tokens of the text that the figure's model was trained on
BASES, WIDTHS, FACTORS = (100, 1_000, 10_000, 500_000), (4, 8, 16), (2, 4, 8)


def _scalings(factor: float) -> Iterator[tuple[str, Scaling, str]]:
    """Its name, the scaling, and as code. YaRN keeps pairs of two turns, as no
    pair makes its usual 32 in so short a text."""
    yield "linear", attnref.PositionInterpolation(factor), f"PositionInterpolation({factor})"
    yield "ntk", attnref.Ntk(factor), f"Ntk({factor})"
    yarn = attnref.Yarn(factor, TRAINED, beta_fast=2.0, beta_slow=0.5, truncate=False)
    options = "beta_fast=2.0, beta_slow=0.5, truncate=False"
    yield "yarn", yarn, f"Yarn({factor}, {TRAINED}, {options})"


def stretched() -> dict[str, object]:
    """Of each scaling and factor: what each pair's frequency is multiplied by,
    for all bases and widths, and the scale of its tables."""
    scalings = {}
    for factor in FACTORS:
        for name, scaling, code in _scalings(float(factor)):
            slowed = {}
            for base, width in product(BASES, WIDTHS):
                plain = base ** (-torch.arange(0, width, 2).double() / width)
                ratio = scaling.slowed(plain, float(base)) / plain
                slowed[f"{base} {width}"] = [float(f"{x:.9g}") for x in ratio.tolist()]
            scalings[f"{name} {factor}"] = {
                "code": code,
                "scale": float(f"{scaling.table_scale:.9g}"),
                "slowed": slowed,
            }
    return {"trained": TRAINED, "scalings": scalings}


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


def numbers() -> dict[str, object]:
    """What the text says of the slowest pair."""
    return {"slowest": 10_000 ** (1 - 2 / 128)}
