"""Attention by hand, and why scores are scaled."""

from collections.abc import Iterator

import torch
from torch import Tensor

import attnref
from sitekit.render import Row, Word

# I like you <pad> as four vectors of width 2.
TOKENS: Row = [Word("first"), Word("second"), Word("third"), "`<pad>`"]
EMBEDDED = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0], [1.0, 1.0]])
VALID = torch.tensor([[True, True, True, False]])


def weights() -> Tensor:
    x = EMBEDDED[None, None]
    mask = attnref.causal_mask(4) & attnref.padding_mask(VALID)
    return attnref.attention_weights(x, x, mask)[0, 0]


def vector(x: Tensor) -> str:
    return f"({', '.join(f'{round(n, 2):g}' for n in x.tolist())})"


def by_hand() -> Iterator[Row]:
    """Each step of one query, the third: a row per key, and the sums."""
    q, weight = EMBEDDED[2], weights()[2]
    dots = EMBEDDED @ q
    exponentials = (dots / 2**0.5).exp()
    parts = weight[:, None] * EMBEDDED
    for i, token in enumerate(TOKENS):
        seen = VALID[0, i]
        yield [
            token,
            vector(EMBEDDED[i]),
            f"{dots[i]:g}",
            f"{dots[i] / 2**0.5:.2f}",
            f"{exponentials[i]:.2f}" if seen else Word("masked"),
            f"{weight[i]:.2f}",
            vector(parts[i]),
        ]
    total = exponentials[VALID[0]].sum()
    sums = [f"{total:.2f}", f"{weight.sum():.2f}", vector(parts.sum(0))]
    yield [Word("sum"), "", "", "", *sums]


def outputs() -> Iterator[Row]:
    """Dot products, weights and output of each query."""
    allowed = attnref.causal_mask(4) & VALID
    out = weights() @ EMBEDDED
    for i, token in enumerate(TOKENS):
        seen = allowed[i]
        dots = EMBEDDED[seen] @ EMBEDDED[i]
        yield [
            token,
            vector(EMBEDDED[i]),
            ", ".join(f"{d:g}" for d in dots.tolist()),
            ", ".join(f"{w:.2f}" for w in weights()[i][seen].tolist()),
            vector(out[i]),
        ]


def dot_products() -> Iterator[Row]:
    """Spread of the scores, largest weight and slope, unscaled and scaled."""
    samples, keys = 4096, 32
    for D in (4, 16, 64, 256):
        torch.manual_seed(0)
        q = torch.randn(1, samples, 1, D)
        k = torch.randn(1, samples, keys, D)
        dots = q @ k.mT
        both = [attnref.attention_weights(q, k, scale=s) for s in (1, D**-0.5)]
        top = [A.amax(-1).mean() for A in both]
        slope = [(A * (1 - A)).sum(-1).mean() for A in both]
        yield [
            str(D),
            f"{D**0.5:.0f}",
            f"{dots.std().item():.1f}",
            f"{(dots * D**-0.5).std().item():.2f}",
            *(f"{mean.item():.2f}" for mean in (*top, *slope)),
        ]
