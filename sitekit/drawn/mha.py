"""Two heads by hand: how one vector becomes both, and what each listens to."""

from collections.abc import Iterator

import torch
from torch import Tensor

import attnref
from attnref.core.heads import split_heads
from sitekit.drawn.sdpa import vector
from sitekit.render import Row, Word

TOKENS = "first", "second", "third"
# I like you: word class in the first two elements, subject or predicate in
# the last two.
EMBEDDED = torch.tensor(
    [[2.0, 0.0, 2.0, 0.0], [0.0, 2.0, 0.0, 2.0], [2.0, 0.0, 0.0, 2.0]]
)


def _heads() -> Tensor:
    """Queries, which are also keys and values: nothing is projected."""
    return split_heads(EMBEDDED[None], 2)


def head(n: int) -> Tensor:
    x = _heads()[:, [n]]
    return attnref.attention_weights(x, x, attnref.causal_mask(3))[0, 0]


def split() -> Iterator[Row]:
    """The query of each token, and what each head gets of it."""
    both = _heads()[0].unbind(1)
    for token, x, pair in zip(TOKENS, EMBEDDED, both, strict=True):
        yield [Word(token), vector(x), *map(vector, pair)]
