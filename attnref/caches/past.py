"""Self-attention to the new tokens and to those in the cache."""

# --8<-- [start:imports]
from typing import Protocol

from torch import Tensor

from attnref.caches.kv_cache import Cache, past_of
from attnref.core.masks import Rule, decoder_mask
from attnref.core.rope import rotate
from attnref.core.sdpa import Attend

# --8<-- [end:imports]


# --8<-- [start:past]
class SelfAttention(Protocol):
    """What `self_attention` reads of a layer."""

    causal: bool | Rule
    rope_theta: float | None
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
    q, k = rotate(q, k, theta=layer.rope_theta, past=past, positions=positions)
    seen = decoder_mask(
        mask,
        (B, H, T, past + T),
        causal=layer.causal,
        device=q.device,
        positions=None if cache is None else cache.positions(T, q.device),
    )
    if cache is not None:
        k, v = cache.append(k, v)  # (B, K, S, D); keys are stored rotated
    dropout = layer.dropout if layer.training else 0.0
    return layer.attend(q, k, v, seen, dropout=dropout)  # (B, H, T, D)


# --8<-- [end:past]
