"""Self-attention to the new tokens and to those in the cache."""

# --8<-- [start:imports]
from typing import Protocol

import torch
from torch import Tensor

from attnref.caches.kv_cache import Cache, check_kept, past_of
from attnref.core.masks import Rule, decoder_mask, rule_of
from attnref.core.rope import Rope, check_positions, rotate
from attnref.core.sdpa import Attend

# --8<-- [end:imports]


# --8<-- [start:past]
class SelfAttention(Protocol):
    """What `self_attention` reads of a layer."""

    causal: bool | Rule
    rope: Rope | None
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
    They are rotated, stored, and the queries attend to all that are stored.
    The mask is refused before the cache changes.
    """
    H = q.shape[1]
    B, K, T, D = k.shape
    past = past_of(cache, layer.causal)
    at = counted_positions(cache, layer.causal, positions, q)
    lengths = None if cache is None else cache.lengths
    if layer.rope is None and at is not None:
        positions = None  # they are for the rule alone
    elif layer.rope is not None and positions is None and cache is not None:
        positions = cache.next_positions(T)
    q, k = rotate(q, k, rope=layer.rope, past=past, positions=positions)
    numbers = None if cache is None else cache.positions(T, q.device)
    seen = decoder_mask(
        mask,
        (B, H, T, past + T),
        causal=layer.causal,
        device=q.device,
        positions=numbers,
        token_positions=at,
        lengths=lengths,
    )
    if cache is not None:
        k, v = cache.append(k, v)  # (B, K, S, D); keys are stored rotated
        check_kept(cache, k, numbers, at)
    dropout = layer.dropout if layer.training else 0.0
    return layer.attend(q, k, v, seen, dropout=dropout)  # (B, H, T, D)


def counted_positions(
    cache: Cache | None,
    causal: bool | Rule,
    positions: Tensor | None,
    q: Tensor,
) -> Tensor | None:
    """The positions by which a layer's rule sees all tokens so far.

    None, if the rule reads the numbers of tokens alone, or if all positions
    are these. `positions` are those of the queries `q` `(B, H, T, D)`; a cache
    remembers those of earlier calls.
    """
    rule, T = rule_of(causal), q.shape[2]
    if rule.by_number:
        return None
    if positions is not None:
        check_positions(positions, len(q), T, q.device)
        if positions.dtype not in (torch.int32, torch.int64):
            raise TypeError(
                f"positions are {positions.dtype}, and the rule {rule} counts "
                "tokens: pass int32 or int64"
            )
        if positions.dim() == 1:
            positions = positions[None]
    return positions if cache is None else cache.positions_of(positions, T)


# --8<-- [end:past]
