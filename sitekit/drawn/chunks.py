"""Recurrent layers in chunks: what each size costs, how decays are summed."""

from collections.abc import Iterator
from math import exp
from typing import Any

import torch

from attnref.numbers.cost import gated_delta_cost
from sitekit.drawn.recurrent import SIZES
from sitekit.markdown.render import Row, Word

CHUNKS = 1, 16, 64, 256, 4096


def sizes(*, tokens: int) -> Iterator[Row]:
    """Steps and products of the recurrence, by the size of a chunk."""
    yield [Word("waiting"), *(f"{-(-tokens // chunk):,}" for chunk in CHUNKS)]
    costs = (gated_delta_cost(**SIZES, new=tokens, chunk=chunk) for chunk in CHUNKS)
    flops = ((cost.scores + cost.values) / tokens / 1e6 for cost in costs)
    yield [Word("flops"), *(f"{n:.1f}" for n in flops)]


SUMS = -10.0, -100.0, -10_000.0
DECAY = -0.1  # the logarithm of the decay between the two tokens


def decays() -> Iterator[Row]:
    """A decay between two tokens, computed in three ways in float32."""
    before = torch.tensor(SUMS)
    after = before + DECAY
    ways = {
        "factors": after.exp() * (-before).exp(),
        "difference": (after - before).exp(),
        "between": torch.full_like(before, DECAY).exp(),
    }
    for name, decay in ways.items():
        yield [Word(name), *(f"{x:.4f}" for x in decay.tolist())]


def numbers() -> dict[str, Any]:
    large = torch.tensor(-1e4)
    step = large - torch.nextafter(large, 2 * large)
    return {"step": f"{step.item():.5f}", "kept": f"{exp(DECAY):.4f}"}
