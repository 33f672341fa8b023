"""Attention by hand, and why scores are scaled."""

from collections.abc import Iterator

import torch
from torch import Tensor

import attnref
from attnref.numbers.kv_memory import size
from sitekit.markdown.render import Row, Word

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


def outputs() -> Iterator[Row]:
    """Dot products, weights and output of each query."""
    allowed = attnref.causal_mask(4) & VALID
    out = weights() @ EMBEDDED
    for i, token in enumerate(TOKENS):
        keys = allowed[i]
        dots = EMBEDDED[keys] @ EMBEDDED[i]
        yield [
            token,
            vector(EMBEDDED[i]),
            ", ".join(f"{d:g}" for d in dots.tolist()),
            ", ".join(f"{w:.2f}" for w in weights()[i][keys].tolist()),
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
        scales = 1, D**-0.5
        weights = [attnref.attention_weights(q, k, scale=s) for s in scales]
        top = [A.amax(-1).mean() for A in weights]
        slope = [(A * (1 - A)).sum(-1).mean() for A in weights]
        yield [
            str(D),
            f"{dots.std().item():.1f}",
            *(f"{mean.item():.2f}" for mean in (*top, *slope)),
        ]


def numbers() -> dict[str, object]:
    """What the text says of the third word, and of scores in memory."""
    scores = EMBEDDED[:3] @ EMBEDDED[2] / 2**0.5
    of_like, of_you = scores[1:].tolist()
    exponentials, (first, second, third, _) = scores.exp(), weights()[2]
    return {
        "score_2": of_like,
        "score_3": of_you,
        "exp_2": exponentials[1],
        "exp_3": exponentials[2],
        "sum": exponentials.sum(),
        "weight_1": first,
        "weight_2": second,
        "weight_3": third,
        "scores": size(12 * 32 * 8192**2),
    }
