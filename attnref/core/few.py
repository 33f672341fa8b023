"""Scaled dot-product attention for few queries."""

# --8<-- [start:imports]
from collections.abc import Iterator
from functools import reduce

import torch
from torch import Tensor

from attnref.core.biases import Bias, place
from attnref.core.masks import Mask
from attnref.core.sdpa import weigh, without_autocast

# --8<-- [end:imports]


# --8<-- [start:few]
def few(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | Bias | None = None,
) -> Tensor:
    """The same as `sdpa`, in an order that suits few queries: see `fused`.

    There are few scores, so the time goes into reading keys and values once.
    """
    B, H, T, D = q.shape
    K, S, Dv = v.shape[1:]
    wide = torch.promote_types(q.dtype, torch.float32)
    q = q.to(wide) * (D**-0.5 if scale is None else scale)  # (B, H, T, D)
    rows = q.reshape(B, K, H // K * T, D)  # (B, K, H // K * T, D)
    with without_autocast(q.device):
        pieces = [_products(rows, part) for _, part in _widened(k, wide)]
        # Softmax wants the scores of a row side by side; `cat` is slow at it.
        scores = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
        scores = scores.view(B, H, T, S)  # (B, H, T, S)
        added = place(bias, mask, q, k)
        weights = weigh(scores, mask, softcap, sinks, added)  # (B, H, T, S)
        weights = weights.reshape(B, K, H // K * T, S)
        parts = (weights[..., at] @ part for at, part in _widened(v, wide))
        mixed = reduce(torch.add, parts)  # (B, K, H // K * T, Dv)
    return mixed.view(B, H, T, Dv).to(v.dtype)  # (B, H, T, Dv)


def _products(rows: Tensor, keys: Tensor) -> Tensor:
    if rows.shape[2] <= 8:
        # The large matrix first: it is read as it lies in memory.
        return (keys @ rows.mT).mT.contiguous()
    return rows @ keys.mT


def _widened(x: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Keys or values in `dtype`, part by part; use each before the next.

    A part is used before it leaves the processor's cache. All of `x`, widened
    at once, would be written to memory and read again; on a GPU it is, because
    there each part would cost the launch of a kernel.
    """
    whole = x.dtype == dtype or x.device.type != "cpu"
    if whole or torch.compiler.is_compiling():
        yield slice(None), x.to(dtype)
        return
    B, K, _, D = x.shape
    size = max(1, 2**20 // max(1, B * K * D))  # 4 MiB of float32
    parts = torch.split(x, size, dim=2)
    room = torch.empty_like(parts[0], dtype=dtype)
    for i, part in enumerate(parts):
        if torch.is_grad_enabled():
            part = part.to(dtype)
        else:  # all in the same memory: fresh memory is slow
            part = room[:, :, : part.shape[2]].copy_(part)
        yield slice(i * size, (i + 1) * size), part


# --8<-- [end:few]
