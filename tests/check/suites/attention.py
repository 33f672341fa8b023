"""Of softmax, masks and attention."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnref.check.properties import (
    chunks_are_apart,
    documents_are_apart,
    empty_rows_are_zero,
    equals_torch,
    far_scores,
    first_tokens_are_kept,
    future_is_hidden,
    gates_are_of_their_heads,
    gradients_are_slopes,
    half_is_exact,
    is_alibi,
    is_causal,
    is_softmax,
    is_window,
    long_rows_sum_to_one,
    norms_are_as_published,
    pads_change_nothing,
    parts_are_in_order,
    scores_are_biased_and_capped,
    sinks_take_weight,
)

Core = Callable[..., Tensor]


def grouped(attention: Core) -> Core:
    """With each key/value head repeated for its group."""

    def core(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        G = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(G, 1), v.repeat_interleave(G, 1)
        return attention(q, k, v, mask)

    return core


def unmasked(softmax: Core) -> Core:
    """Attention by this softmax."""
    return lambda q, k, v: softmax(q @ k.mT) @ v


def padded(core: Core, mask_of: Core) -> tuple[Core]:
    """Attention in four heads, under the padding mask alone."""

    def attend(x: Tensor, valid: Tensor) -> Tensor:
        heads = x.view(*x.shape[:2], 4, -1).transpose(1, 2)
        out = core(heads, heads, heads, mask_of(valid))
        return out.transpose(1, 2).flatten(2)

    return (attend,)


def packed(p: Any) -> tuple[Core]:
    """Attention of packed documents."""

    def attend(x: Tensor, ids: Tensor) -> Tensor:
        mask = p.masks.document_mask(ids[None])
        return p.attention.attention(*(x[:, None],) * 3, mask)[:, 0]

    return (attend,)


def one_document(p: Any) -> tuple[Core]:
    """The mask of a single document, for the last tokens."""

    def mask(T: int, S: int) -> Tensor:
        ids = torch.zeros(1, S, dtype=torch.long)
        return p.masks.document_mask(ids)[0, 0, -T:]

    return (mask,)


def prefixed(p: Any) -> tuple[Core, Tensor]:
    """A decoder layer with a prefix of two tokens."""
    torch.manual_seed(0)
    sizes = {"d_model": 8, "n_heads": 2}
    layer = p.MultiHeadAttention(**sizes, causal=p.Prefix(2))
    return layer, torch.randn(2, 5, 8)


def in_three(p: Any) -> tuple[Core]:
    """Attention with sinks, the keys in three parts."""

    def core(
        q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, mask: Tensor
    ) -> Any:
        return p.split_kv(q, k, v, mask, sinks=sinks, splits=3)

    return (core,)


def normed(p: Any) -> tuple[Core]:
    """The norm of heads, with given weights."""

    def norm(x: Tensor, w: Tensor, over: Any, plus: bool) -> Any:
        kind = p.Norm(over, weight="1 + w" if plus else "w")
        made = p.HeadNorm(x.shape[1], x.shape[3], kind)
        made.weight = torch.nn.Parameter(w)
        return made(x).detach()

    return (norm,)


def gated(p: Any) -> tuple[Any, Tensor]:
    """A layer whose gates come from the query projection."""
    torch.manual_seed(0)
    parts = p.HeadParts(gate=p.Gate(in_query=True))
    layer = p.MultiHeadAttention(d_model=12, n_heads=3, parts=parts)
    return layer, torch.randn(2, 5, 12)


def in_chunks(p: Any) -> tuple[Core]:
    at = torch.arange(6)
    return (lambda T, size: p.Chunk(size)(at[:T, None], at[:T]),)


SUITES = {
    "plain.softmax": (
        (is_softmax, lambda p: (p.softmax.softmax,)),
        (is_softmax, lambda p: (partial(p.softmax.online_softmax, chunk=2),)),
        (gradients_are_slopes, lambda p: (unmasked(p.softmax.softmax),)),
    ),
    "core.softmax": ((long_rows_sum_to_one, lambda p: (p.softmax,)),),
    "plain.attention": (
        (equals_torch, lambda p: (grouped(p.attention.attention),)),
        (empty_rows_are_zero, lambda p: (p.attention.attention,)),
        (far_scores, lambda p: (p.attention.attention,)),
    ),
    "core.sdpa": (
        (equals_torch, lambda p: (p.sdpa,)),
        (half_is_exact, lambda p: (p.sdpa,)),
    ),
    "plain.sinks": (
        (sinks_take_weight, lambda p: (p.sinks.attention_with_sinks,)),
        (first_tokens_are_kept, lambda p: (p.sinks.streaming_mask,)),
    ),
    "core.merge": ((sinks_take_weight, in_three),),
    "plain.alibi": (
        (is_alibi, lambda p: (p.alibi.alibi,)),
        (
            scores_are_biased_and_capped,
            lambda p: (p.alibi.biased_attention,),
        ),
    ),
    "plain.order": ((parts_are_in_order, lambda p: (p.order.todays_heads,)),),
    "core.parts": (
        (norms_are_as_published, normed),
        (gates_are_of_their_heads, gated),
    ),
    "plain.masks": (
        (is_causal, lambda p: (p.masks.causal_mask,)),
        (is_window, lambda p: (lambda W, T: p.masks.window_mask(T, T, W),)),
        (
            pads_change_nothing,
            lambda p: padded(p.attention.attention, p.masks.padding_mask),
        ),
        (documents_are_apart, packed),
        (is_causal, one_document),
    ),
    "core.masks": (
        (chunks_are_apart, in_chunks),
        (future_is_hidden, prefixed),
        (
            pads_change_nothing,
            lambda p: padded(
                p.sdpa, lambda valid: p.padding_mask_from_hf(valid.long())
            ),
        ),
    ),
}
