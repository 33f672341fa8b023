"""Scaled dot-product attention by PyTorch's `flex_attention`, compiled."""

# --8<-- [start:imports]
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from attnref.core.inputs import check_attention
from attnref.core.masks import Mask, mask_mod, part_of
from attnref.core.sdpa import without_autocast

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
    kernel = _kernel(compiled)
    tiles, corner = None, part_of(mask, slice(0, 1), slice(0, 1))
    if mask is not None and corner is not None:
        # Of the rows and heads, one will do where all have the same mask.
        heads = corner.shape[:2] if corner.dim() == 4 else (1, 1)
        tiles = kernel.create(mask_mod(mask), *heads, T, S, q.device)
    grouped = k.shape[1] != H
    how = {"block_mask": tiles, "scale": scale, "enable_gqa": grouped}
    with without_autocast(q.device):  # the output has the dtype of the inputs
        return kernel(q, k, v, **how)


class _Kernel:
    """PyTorch's functions, imported when they are first needed."""

    def __init__(self, compiled: bool) -> None:
        try:
            from torch._dynamo.exc import BackendCompilerFailed
            from torch.nn.attention.flex_attention import (
                create_block_mask,
                flex_attention,
            )
        except ImportError as error:
            raise RuntimeError(
                f"PyTorch {torch.__version__} has no flex_attention: flex "
                "needs 2.5 or later; use fused or flash"
            ) from error
        self.create: Callable[..., Any] = create_block_mask
        self.failed, self.fixed = BackendCompilerFailed, False
        self.plain: Callable[..., Any] = flex_attention
        self.attention: Callable[..., Any] = self.plain
        if compiled:
            self.attention = torch.compile(self.plain)

    def __call__(self, *inputs: Tensor, **options: Any) -> Tensor:
        try:
            out: Tensor = self.attention(*inputs, **options)
        except self.failed as error:
            if not self.fixed:
                # On a CPU, PyTorch 2.13 compiles some rules for fixed sizes
                # only: from now on, each length is compiled by itself.
                self.fixed = True
                self.attention = torch.compile(self.plain, dynamic=False)
                return self(*inputs, **options)
            cause = str(error.inner_exception).partition("\n")[0]
            raise RuntimeError(
                f"PyTorch cannot compile flex_attention here: {cause}; it "
                "needs a C++ compiler on a CPU, and Triton on a GPU; use "
                "fused, flash, or compiled=False"
            ) from error
        return out


_kernel = lru_cache(_Kernel)


# --8<-- [end:flex]
