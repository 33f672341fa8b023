"""A worked example of weights, and why scores are scaled."""

from collections.abc import Iterator

import torch
from torch import Tensor

import attnref
from sitekit.render import Row

# 我 爱 你 <pad> as four vectors of width 2.
EMBEDDED = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0], [1.0, 1.0]])
VALID = torch.tensor([[True, True, True, False]])


def weights() -> Tensor:
    x = EMBEDDED[None, None]
    mask = attnref.causal_mask(4) & attnref.padding_mask(VALID)
    return attnref.attention_weights(x, x, mask)[0, 0]


def dot_products() -> Iterator[Row]:
    """Spread of q.k and the largest softmax weight, unscaled and scaled."""
    samples, keys = 4096, 32
    for D in (4, 16, 64, 256):
        torch.manual_seed(0)
        q = torch.randn(1, samples, 1, D)
        k = torch.randn(1, samples, keys, D)
        dots = q @ k.mT
        top = [
            attnref.attention_weights(q, k, scale=s).amax(-1).mean().item()
            for s in (1.0, D**-0.5)
        ]
        spread, scaled = dots.std().item(), (dots * D**-0.5).std().item()
        told = (f"{x:.2f}" for x in (scaled, *top))
        yield [str(D), f"{D**0.5:.0f}", f"{spread:.1f}", *told]
