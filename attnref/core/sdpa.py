"""Scaled dot-product attention with grouped heads, written out."""

# --8<-- [start:imports]
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from attnref.core.biases import Bias, PlacedBias, place
from attnref.core.inputs import check_attention, check_scores
from attnref.core.masks import Mask, dense
from attnref.core.softmax import softmax

# --8<-- [end:imports]


# --8<-- [start:attend]
class Attend(Protocol):
    """The function that a layer calls on its heads: `sdpa` or another core.

    A layer whose `Scores` have them also passes `softcap`, `sinks` and `bias`,
    as to `sdpa`. A function of yours may be without these three: it then
    serves all layers whose `Scores` do not set them. A core of this package
    takes all keywords of `sdpa`, and refuses by name, with a ValueError, those
    that it lacks.
    """

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask = None,
        /,
        *,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> Tensor: ...


# --8<-- [end:attend]


# --8<-- [start:scores]
@dataclass(frozen=True)
class Scores:
    """How a layer changes its scores, in every core: `scores=`.

    `scale`, `bias` and `softcap` are as in `sdpa`. With `sinks`, the layer has
    a parameter of that name: one learned logit per query head.

    Examples:
        >>> Scores(scale=0.1, softcap=50.0).options()
        {'scale': 0.1, 'softcap': 50.0}
    """

    scale: float | None = None
    bias: Bias | None = None
    softcap: float | None = None
    sinks: bool = False

    def options(self, sinks: Tensor | None = None) -> dict[str, Any]:
        """The keywords that a layer with these `sinks` passes to its core."""
        options: dict[str, Any] = {"scale": self.scale, "bias": self.bias}
        options |= {"softcap": self.softcap, "sinks": sinks}
        return {name: x for name, x in options.items() if x is not None}


# --8<-- [end:scores]


# --8<-- [start:weights]
def attention_weights(
    q: Tensor,
    k: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | Bias | None = None,
) -> Tensor:
    """The weight of each key for each query: `A = softmax(q k^T * scale)`.

    `q` `(B, H, T, D)` and `k` `(B, K, S, D)` give `(B, H, T, S)`. Query head
    `n` reads key head `n // (H // K)`, so `K` must divide `H`. `mask` is
    bool, True = may attend, and broadcasts to `(B, H, T, S)`. `scale` is
    `D ** -0.5` (the paper's `1 / sqrt(d_k)`) unless given. Each row sums to
    1, or to 0 if the query may attend to no key.

    After the scale, a score `z` is changed in this order: `bias`, a tensor
    that broadcasts to `(B, H, T, S)` or a `Bias`, is added; `softcap` `c`
    makes it `c * tanh(z / c)`; the mask hides it. `sinks` `(H,)` are one
    logit per query head, which takes a part of each row's weight and has no
    value: it is not scaled, and no mask hides it.

    Examples:
        >>> q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4)
        >>> attention_weights(q, k, torch.tensor([[True, False], [True, True]]))
        tensor([[[[1.0000, 0.0000],
                  [0.5000, 0.5000]]]])
    """
    check_scores(q, k, mask, scale, softcap, sinks, bias)
    added = place(bias, mask, q, k)
    weights = weigh(_scores(q, k, scale), mask, softcap, sinks, added)
    return weights.to(q.dtype)  # (B, H, T, S)


# --8<-- [end:weights]


# --8<-- [start:sdpa]
def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | Bias | None = None,
) -> Tensor:
    """Scaled dot-product attention: each query's weighted mean of the values.

    `q` `(B, H, T, D)`, `k` `(B, K, S, D)` and `v` `(B, K, S, Dv)` give
    `(B, H, T, Dv)`, the paper's `A V`. `mask`, `scale`, `softcap`, `sinks`
    and `bias` are as in `attention_weights`. A query that may attend to no key
    gets zeros. `dropout` is applied to the weights whenever it is above 0:
    leave it out in evaluation.

    Examples:
        >>> q, k = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 3, 4)
        >>> v = torch.tensor([[[[0.0], [3.0], [6.0]]]])
        >>> sdpa(q, k, v)
        tensor([[[[3.]]]])
    """
    check_attention(q, k, v, mask, scale, softcap, sinks, bias)
    added = place(bias, mask, q, k)
    # Not held by a name here, scores can be freed before the weights exist.
    weights = weigh(_scores(q, k, scale), mask, softcap, sinks, added)
    if dropout:
        weights = F.dropout(weights, dropout)  # (B, H, T, S)
    B, H, T, S = weights.shape
    K, Dv = v.shape[1], v.shape[3]
    rows = _fold(weights, K)  # (B, K, H // K * T, S)
    with without_autocast(q.device):
        mixed = rows @ v.to(rows.dtype)  # (B, K, H // K * T, Dv)
    return mixed.view(B, H, T, Dv).to(q.dtype)  # (B, H, T, Dv)


# --8<-- [end:sdpa]


# --8<-- [start:core]
def _scores(q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    B, H, T, D = q.shape
    K, S = k.shape[1:3]
    # Scores of half-precision inputs stay in float32 until the softmax.
    wide = torch.promote_types(q.dtype, torch.float32)
    # The queries are scaled: they are smaller than the scores.
    q = q.to(wide) * (D**-0.5 if scale is None else scale)  # (B, H, T, D)
    rows = _fold(q, K)  # (B, K, H // K * T, D)
    with without_autocast(q.device):
        scores = rows @ k.to(wide).mT  # (B, K, H // K * T, S)
    return scores.view(B, H, T, S)  # (B, H, T, S)


def weigh(
    scores: Tensor,
    mask: Mask,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: PlacedBias | None = None,
) -> Tensor:
    """From scaled scores `(B, H, T, S)` to weights, in the order models use."""
    if bias is not None:
        scores = scores + bias.dense().to(scores.dtype)  # (B, H, T, S)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()  # (B, H, T, S)
    mask = dense(mask)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)  # (B, H, T, S)
    if sinks is None:
        return softmax(scores)  # (B, H, T, S)
    B, H, T, S = scores.shape
    column = sinks.to(scores.dtype).view(H, 1, 1).expand(B, H, T, 1)
    return softmax(torch.cat((scores, column), dim=-1))[..., :S]


def _fold(x: Tensor, K: int) -> Tensor:
    """Stack the query heads that share a key/value head on the query axis.

    One matrix product then serves the whole group. It is the small tensor
    that is reshaped; the large ones, keys and values, are never repeated.
    """
    B, H, T, width = x.shape
    return x.reshape(B, K, H // K * T, width)  # (B, K, H // K * T, width)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Without autocast, which would round the float32 scores to half again."""
    kind = device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


# --8<-- [end:core]
