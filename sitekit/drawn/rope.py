"""Scores depend on the distance alone."""

import torch
from torch import Tensor

import attnref


def scores() -> Tensor:
    """One and the same vector at six positions, turned, with itself."""
    x = torch.ones(1, 1, 6, 8, dtype=torch.float64) / 8**0.5
    turned = attnref.apply_rope(x, *attnref.rope_table(torch.arange(6), 8))
    return (turned @ turned.mT)[0, 0]
