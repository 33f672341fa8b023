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
    call = _call(q, k, v, mask, scale, dropout)
    out: Tensor = F.scaled_dot_product_attention(**call)
    seen = call["attn_mask"]
    if seen is not None:
        # A query that sees no key: PyTorch 2.4 gives NaN.
        out = out.masked_fill(~seen.any(dim=-1, keepdim=True), 0)
    return out.reshape(*q.shape[:3], v.shape[3])  # (B, H, T, Dv)


def fused_backend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
) -> str:
    """Which of PyTorch's kernels `fused` calls for these inputs.

    "flash", "efficient" or "cudnn", or "math", which is not fused: it keeps
    all scores. It depends on the device, the dtype, the mask, the widths and
    on gradients, and is asked of PyTorch, which decides the same way.

    Examples:
        >>> q = torch.zeros(1, 2, 3, 4)
        >>> fused_backend(q, q, q)
        'flash'
        >>> fused_backend(q, q, q, dropout=0.1)
        'math'
    """
    check_attention(q, k, v, mask, scale)
    call = _call(q, k, v, mask, scale, dropout)
    chosen: int = torch._fused_sdp_choice(**call)
    names = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
    return names.get(chosen, f"number {chosen} of SDPBackend")


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    scale: float | None,
    dropout: float,
) -> dict[str, Any]:
    """The arguments with which PyTorch is called."""
    B, H, T, D = q.shape
    K = k.shape[1]
    how: dict[str, Any] = {"attn_mask": None, "dropout_p": dropout}
    how["scale"] = scale
    lazy = None if isinstance(mask, Tensor) else mask
    if lazy is not None and lazy.is_triangle() and (H == K or HAS_GQA):
        # The heads cannot be stacked: the kernel would take the queries of
        # the second head of a group for later ones.
        how["is_causal"] = True
        if H > K:
            how["enable_gqa"] = True
    else:
        q = q.reshape(B, K, H // K * T, D)  # (B, K, H // K * T, D)
        how["attn_mask"] = _stacked(dense(mask), H, K, T)
    return {"query": q, "key": k, "value": v, **how}


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
