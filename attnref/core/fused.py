"""Scaled dot-product attention by PyTorch's own kernels: what to ship."""

# --8<-- [start:imports]
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnref.core.masks import Mask, dense
from attnref.core.sdpa import check_attention

# --8<-- [end:imports]


# --8<-- [start:fused]
HAS_GQA = torch.__version__ >= "2.5"  # the first with `enable_gqa`


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """The same as `sdpa`, by `F.scaled_dot_product_attention`.

    The query heads of a group are stacked on the query axis, so that keys and
    values are read once. A prompt that only the causal rule masks, with no
    pads and no earlier tokens, is passed on as `is_causal`, without a mask.
    """
    check_attention(q, k, v, mask, scale)
    B, H, T, D = q.shape
    K, Dv = v.shape[1], v.shape[3]
    lazy = None if isinstance(mask, Tensor) else mask
    if lazy is not None and lazy.is_triangle() and (H == K or HAS_GQA):
        grouped: dict[str, Any] = {} if H == K else {"enable_gqa": True}
        # The heads cannot be stacked: the kernel would take the queries of
        # the second head of a group for later ones.
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=True, scale=scale, **grouped
        )
    rows = q.reshape(B, K, H // K * T, D)  # (B, K, H // K * T, D)
    seen = _stacked(dense(mask), H, K, T)
    out = F.scaled_dot_product_attention(
        rows, k, v, attn_mask=seen, dropout_p=dropout, scale=scale
    )  # (B, K, H // K * T, Dv)
    if seen is not None:
        # A query that sees no key: PyTorch 2.4 gives NaN.
        out = out.masked_fill(~seen.any(dim=-1, keepdim=True), 0)
    return out.view(B, H, T, Dv)  # (B, H, T, Dv)


def _stacked(mask: Tensor | None, H: int, K: int, T: int) -> Tensor | None:
    """The mask of stacked heads; one that all heads share is not repeated
    unless the queries have masks of their own."""
    if mask is None:
        return None
    mask = mask[(None,) * (4 - mask.dim())]
    if mask.shape[1:3] == (1, 1) or H == K:
        return mask
    heads = K if mask.shape[1] > 1 else 1
    mask = mask.expand(-1, heads * (H // K), T, -1)
    return mask.reshape(len(mask), heads, H // K * T, mask.shape[3])


# --8<-- [end:fused]
