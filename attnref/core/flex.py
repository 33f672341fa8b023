"""Scaled dot-product attention by PyTorch's `flex_attention`, compiled."""

# --8<-- [start:imports]
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from attnref.core.masks import Mask, mask_mod, part_of
from attnref.core.sdpa import check_attention

# --8<-- [end:imports]


# --8<-- [start:flex]
def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    compiled: bool = True,
) -> Tensor:
    """The same as `sdpa`, by PyTorch's `flex_attention`, compiled.

    The rule of the mask becomes part of the kernel. The first call compiles,
    which takes seconds. With `compiled=False` PyTorch computes the same with
    all scores in memory, without a compiler.

    Refused are dropout and, on a CPU, gradients: `flex_attention` has neither.

    Examples:
        >>> q = torch.zeros(1, 1, 1, 4)
        >>> flex(q, q, q, dropout=0.1)
        Traceback (most recent call last):
        ValueError: dropout=0.1: flex has no dropout; use fused, flash or sdpa
    """
    check_attention(q, k, v, mask, scale)
    if dropout:
        raise ValueError(
            f"{dropout=}: flex has no dropout; use fused, flash or sdpa"
        )
    B, H, T, D = q.shape
    S, Dv = v.shape[2:]
    if q.device.type == "cpu":
        learns = any(x.requires_grad for x in (q, k, v))
        if learns and torch.is_grad_enabled():
            raise RuntimeError(
                "flex has no gradients on a CPU; call it under "
                "torch.no_grad(), or use fused, flash or sdpa"
            )
        if compiled and q.dtype == torch.float64:
            raise TypeError("flex is not compiled for float64 on a CPU")
        q, k, v = q.detach(), k.detach(), v.detach()
    if 0 in (B, T, S):
        return q.new_zeros(B, H, T, Dv)
    attention, create_block_mask, failed = _kernel(compiled)
    tiles, corner = None, part_of(mask, slice(0, 1), slice(0, 1))
    if mask is not None and corner is not None:
        # Of the rows and heads, one will do where all have the same mask.
        heads = corner.shape[:2] if corner.dim() == 4 else (1, 1)
        tiles = create_block_mask(mask_mod(mask), *heads, T, S, q.device)
    grouped = k.shape[1] != H
    try:
        out: Tensor = attention(
            q, k, v, block_mask=tiles, scale=scale, enable_gqa=grouped
        )
    except failed as error:
        why = str(getattr(error, "inner_exception", error)).partition("\n")[0]
        raise RuntimeError(
            f"PyTorch did not compile flex_attention: {why}. It needs a C++ "
            "compiler on a CPU, and Triton on a GPU, and has no kernel for "
            "some rules; use fused or flash"
        ) from error
    return out


@lru_cache
def _kernel(
    compiled: bool,
) -> tuple[Callable[..., Any], Callable[..., Any], type[Exception]]:
    """PyTorch's functions and error, imported when they are first needed."""
    try:
        from torch._dynamo.exc import BackendCompilerFailed
        from torch.nn.attention.flex_attention import (
            create_block_mask,
            flex_attention,
        )
    except ImportError as error:
        raise RuntimeError(
            f"PyTorch {torch.__version__} has no flex_attention: flex needs "
            "2.5 or later; use fused or flash"
        ) from error
    attention: Callable[..., Any] = flex_attention
    if compiled:
        attention = torch.compile(attention)
    return attention, create_block_mask, BackendCompilerFailed


# --8<-- [end:flex]
