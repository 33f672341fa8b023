"""Self-attention to the new tokens and to those in the cache."""

# --8<-- [start:imports]
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache, check_appended, past_of
from attnref.core.masks import Mask, Rule, View, rule_of
from attnref.core.rope import Rope, check_positions, rotate, text_length
from attnref.core.sdpa import Attend, Scores

# --8<-- [end:imports]


# --8<-- [start:past]
class SelfAttention(Protocol):
    """What `self_attention` reads of a layer."""

    causal: bool | Rule
    rope: Rope | None
    scores: Scores
    sinks: nn.Parameter | None
    dropout: float
    training: bool
    attend: Attend


def self_attention(
    layer: SelfAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    cache: Cache | None,
    positions: Tensor | None,
) -> Tensor:
    """What all self-attention does with its heads: `(B, H, T, D)`.

    `q` is `(B, H, T, D)`, `k` and `v` are `(B, K, T, D)`, of the new tokens.
    The order of operations: RoPE, cache, scale, bias, softcap, mask, sink,
    softmax, values. The mask is refused before the cache changes.
    """
    view = view_of(layer, cache, q, mask=mask, positions=positions)
    q, k, seen, append = placed(layer, q, k, cache, view)
    k, v = append(k, v)  # rotated, after those in the cache
    options = layer.scores.options(layer.sinks)
    dropout = layer.dropout if layer.training else 0.0
    return layer.attend(q, k, v, seen, dropout=dropout, **options)


class Placed(NamedTuple):
    """New tokens among those in the cache: what `append` returns is seen so."""

    q: Tensor
    k: Tensor
    mask: Mask
    append: Callable[..., tuple[Tensor, ...]]


def view_of(
    layer: Any,
    cache: Cache | None,
    x: Tensor,
    *,
    mask: Tensor | None = None,
    positions: Tensor | None = None,
) -> View:
    """What a call sees of the new tokens `x` `(B, ..., T, width)`.

    A cache that the layer cannot use is refused, and so are positions that
    neither its RoPE nor its rule nor its bias reads.
    """
    B, T, device = x.shape[0], x.shape[-2], x.device
    causal, needs = layer.causal, getattr(layer, "needs", "append")
    past = past_of(cache, causal, needs)
    if positions is not None:
        check_positions(positions, B, T, device)
    bias = getattr(layer, "scores", Scores()).bias
    rule = rule_of(causal)
    counts = not rule.by_number or bias is not None
    rotates = getattr(layer, "rope", True) is not None
    if not (counts or rotates or positions is None):
        raise ValueError("positions are given, but rope is None")
    at = positions if counts else None
    if at is not None and at.dtype not in (torch.int32, torch.int64):
        what = f"the rule {rule}"
        if rule.by_number:
            what = f"the bias {type(bias).__name__}"
        raise TypeError(
            f"positions are {at.dtype}, and {what} counts tokens: pass int32 "
            "or int64"
        )
    if at is not None and at.dim() == 1:
        at = at[None]
    if cache is None:
        return View(B, T, past, device, mask, positions, token_positions=at)
    return View(
        B,
        T,
        past,
        device,
        mask,
        cache.next_positions(T) if positions is None else positions,
        cache.lengths,
        cache.positions(T, device),
        cache.returns(T),
        cache.positions_of(at, T) if counts else None,
    )


def placed(
    layer: Any, q: Tensor, k: Tensor, cache: Cache | None, view: View
) -> Placed:
    """Rotate queries and keys, and say which keys are seen and where they are.

    `q` is `(B, H, T, D)`, `k` `(B, K, T, D)`.
    """
    rope, length = layer.rope, None
    if rope is not None:
        past, at = view.past, view.positions
        rotated = (getattr(cache, "rotated", 0) or past) if past else 0
        q, k = rotate(q, k, rope=rope, past=past, positions=at, rotated=rotated)
        length = text_length(rope, past, view.T, at)
    seen = view.shown(layer.causal, q.shape[1])
    return Placed(q, k, seen, partial(append, cache, view, length))


def append(
    cache: Cache | None, view: View, rotated: int | None, *new: Tensor
) -> tuple[Tensor, ...]:
    """The new tokens after those in the cache, if there is one.

    `rotated` is the length of the text for which the keys were rotated, where
    it matters.
    """
    if cache is None:
        return new
    stored = cache.append(*new)
    check_appended(cache, stored[0], view.keys, view.token_positions)
    if rotated is not None:
        cache.rotated = rotated
    return stored


# --8<-- [end:past]
