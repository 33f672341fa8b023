"""Self-attention to the new tokens and to those in the cache."""

# --8<-- [start:imports]
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from attnref.caches.kv_cache import Cache, check_kept, past_of
from attnref.core.biases import Bias
from attnref.core.masks import Mask, Rule, decoder_mask, rule_of
from attnref.core.parts import HeadParts, output_gate
from attnref.core.rope import Rope, check_positions, rotate, text_length
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
    parts, T = layer.parts, q.shape[2]
    q, gate = output_gate(layer, x, q)
    if parts.norm is not None and not parts.norm_after_rope:
        q, k = modules.q_norm(q), modules.k_norm(k)
    if parts.value_norm is not None:
        v = modules.v_norm(v)
    if parts.long_queries is not None:
        places = positions
        if places is None and cache is not None:
            places = cache.next_positions(T)
        if places is None:
            past = past_of(cache, layer.causal)
            places = torch.arange(past, past + T, device=q.device)
        factor = parts.long_queries.factor(places)[..., None]
        if factor.dim() == 3:
            factor = factor[:, None]  # (B, 1, T, 1)
        q = (q * factor).to(q.dtype)  # (B, H, T, D)
    q, k, seen, append = placed(
        layer, q, k, mask=mask, cache=cache, positions=positions
    )
    if parts.norm is not None and parts.norm_after_rope:
        q, k = modules.q_norm(q), modules.k_norm(k)
    k, v = append(k, v)  # normed and rotated, after those in the cache
    told = parts.told()
    if parts.sinks:
        told["sinks"] = modules.sinks
    dropout = layer.dropout if layer.training else 0.0
    heads = layer.attend(q, k, v, seen, dropout=dropout, **told)
    return heads if gate is None else heads * gate  # (B, H, T, D)


class Placed(NamedTuple):
    """New tokens among those in the cache: what `append` returns is seen so."""

    q: Tensor
    k: Tensor
    mask: Mask
    append: Callable[..., tuple[Tensor, ...]]


def placed(
    layer: Any,
    q: Tensor,
    k: Tensor,
    *,
    mask: Tensor | None,
    cache: Cache | None,
    positions: Tensor | None,
) -> Placed:
    """Rotate queries and keys, and say which keys are seen and where they are.

    `q` is `(B, H, T, D)`, `k` `(B, K, T, D)`. Positions that neither RoPE nor
    the rule nor a part of the layer reads are refused.
    """
    parts, rope, (B, H, T, _) = layer.parts, layer.rope, q.shape
    past = past_of(cache, layer.causal)
    at = counted_positions(cache, layer.causal, positions, q, parts.bias)
    if rope is None and (at is not None or parts.long_queries is not None):
        positions = None  # they are not for RoPE
    if rope is not None and positions is None and cache is not None:
        positions = cache.next_positions(T)
    rotated = (getattr(cache, "rotated", 0) or past) if past else 0
    q, k = rotate(
        q, k, rope=rope, past=past, positions=positions, rotated=rotated
    )
    numbers = None if cache is None else cache.positions(T, q.device)
    seen = decoder_mask(
        mask,
        (B, H, T, past + T),
        causal=layer.causal,
        device=q.device,
        positions=numbers,
        token_positions=at,
        lengths=None if cache is None else cache.lengths,
        kept=None if cache is None else cache.returns(T),
    )
    length = text_length(rope, past, T, positions)
    return Placed(q, k, seen, partial(_append, cache, numbers, at, length))


def _append(
    cache: Cache | None,
    numbers: Tensor | None,
    at: Tensor | None,
    length: int | None,
    *tensors: Tensor,
) -> tuple[Tensor, ...]:
    """The new tokens after those in the cache, if there is one."""
    if cache is None:
        return tensors
    kept = cache.append(*tensors)
    check_kept(cache, kept[0], numbers, at)
    if length is not None:
        cache.rotated = length
    return kept


def counted_positions(
    cache: Cache | None,
    causal: bool | Rule,
    positions: Tensor | None,
    q: Tensor,
    bias: Bias | None = None,
) -> Tensor | None:
    """The positions by which a rule or a bias places all tokens so far.

    None, if there is no bias and the rule reads the numbers of tokens alone, or
    if all positions are these. `positions` are those of the queries `q`
    `(B, H, T, D)`; a cache remembers those of earlier calls.
    """
    rule, T = rule_of(causal), q.shape[2]
    if rule.by_number and bias is None:
        return None
    if positions is not None:
        check_positions(positions, len(q), T, q.device)
        if positions.dtype not in (torch.int32, torch.int64):
            what = f"the rule {rule}"
            if rule.by_number:
                what = f"the bias {type(bias).__name__}"
            raise TypeError(
                f"positions are {positions.dtype}, and {what} counts "
                "tokens: pass int32 or int64"
            )
        if positions.dim() == 1:
            positions = positions[None]
    return positions if cache is None else cache.positions_of(positions, T)


# --8<-- [end:past]
