"""Self-attention to the new tokens and to those in the cache."""

# --8<-- [start:imports]
from typing import Any, Protocol

import torch
from torch import Tensor

from attnref.caches.kv_cache import Cache, check_kept, past_of
from attnref.core.masks import Rule, decoder_mask, rule_of
from attnref.core.parts import HeadParts, output_gate
from attnref.core.rope import Rope, check_positions, rotate
from attnref.core.sdpa import Attend

# --8<-- [end:imports]


# --8<-- [start:past]
class SelfAttention(Protocol):
    """What `self_attention` reads of a layer."""

    causal: bool | Rule
    rope: Rope | None
    parts: HeadParts
    dropout: float
    training: bool
    attend: Attend


def self_attention(
    layer: SelfAttention,
    x: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    cache: Cache | None,
    positions: Tensor | None,
) -> Tensor:
    """What all self-attention does with its heads: `(B, H, T, D)`.

    `q` is `(B, H, T, D)`, `k` and `v` are `(B, K, T, D)`, of the new tokens
    `x`; with a gate in `q_proj`, `q` is wider. The order of operations: norm,
    RoPE, cache, scale, bias, softcap, mask, sink, softmax, values, gate. The
    mask is refused before the cache changes.
    """
    modules: Any = layer  # those of its parts
    parts, H = layer.parts, q.shape[1]
    B, K, T, D = k.shape
    past = past_of(cache, layer.causal)
    at = counted_positions(cache, layer.causal, positions, q)
    lengths = None if cache is None else cache.lengths
    placed = layer.rope is not None or parts.long_queries is not None
    if placed and positions is None and cache is not None:
        positions = cache.next_positions(T)
    q, gate = output_gate(layer, x, q)
    if parts.norm is not None and not parts.norm_after_rope:
        q, k = modules.q_norm(q), modules.k_norm(k)
    if parts.value_norm is not None:
        v = modules.v_norm(v)
    if parts.long_queries is not None:
        places = positions
        if places is None:
            places = torch.arange(past, past + T, device=q.device)
        factor = parts.long_queries.factor(places)[..., None]
        if factor.dim() == 3:
            factor = factor[:, None]  # (B, 1, T, 1)
        q = (q * factor).to(q.dtype)  # (B, H, T, D)
    if layer.rope is None and (at is not None or parts.long_queries):
        positions = None  # they are not for RoPE
    q, k = rotate(q, k, rope=layer.rope, past=past, positions=positions)
    if parts.norm is not None and parts.norm_after_rope:
        q, k = modules.q_norm(q), modules.k_norm(k)
    numbers = None if cache is None else cache.positions(T, q.device)
    seen = decoder_mask(
        mask,
        (B, H, T, past + T),
        causal=layer.causal,
        device=q.device,
        positions=numbers,
        token_positions=at,
        lengths=lengths,
        kept=None if cache is None else cache.returns(T),
    )
    if cache is not None:
        k, v = cache.append(k, v)  # (B, K, S, D); normed and rotated
        check_kept(cache, k, numbers, at)
    told = parts.told()
    if parts.sinks:
        told["sinks"] = modules.sinks
    dropout = layer.dropout if layer.training else 0.0
    heads = layer.attend(q, k, v, seen, dropout=dropout, **told)
    return heads if gate is None else heads * gate  # (B, H, T, D)


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
