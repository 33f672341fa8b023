"""Scaled dot-product attention by PyTorch's `flex_attention`, compiled."""

# --8<-- [start:imports]
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from attnref.core.biases import Bias, PlacedBias, place
from attnref.core.inputs import check_attention
from attnref.core.masks import Mask, hiding, mask_mod
from attnref.core.sdpa import without_autocast
from attnref.core.sinks import add_sinks

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
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | Bias | None = None,
    compiled: bool = True,
) -> Tensor:
    """The same as `sdpa`, by PyTorch's `flex_attention`, compiled.

    The rule of the mask becomes part of the kernel, as do `bias` and `softcap`;
    `sinks` are added to its output, by the log-sum-exp. The first call compiles
    for seconds. With `compiled=False` PyTorch computes the same with all scores
    in memory, without a compiler.

    It refuses dropout and, on a CPU, gradients: `flex_attention` has neither.

    Examples:
        >>> q = torch.zeros(1, 1, 1, 4)
        >>> flex(q, q, q, dropout=0.1)
        Traceback (most recent call last):
        ValueError: dropout=0.1: flex has no dropout; use fused, flash or sdpa
    """
    check_attention(q, k, v, mask, scale, softcap, sinks, bias)
    if dropout:
        raise ValueError(
            f"{dropout=}: flex has no dropout; use fused, flash or sdpa"
        )
    B, H, T, D = q.shape
    S, Dv = v.shape[2:]
    if q.device.type == "cpu":
        made = bias if isinstance(bias, Tensor | None) else bias.learned
        given = (x for x in (q, k, v, sinks, made) if x is not None)
        if any(x.requires_grad for x in given) and torch.is_grad_enabled():
            raise RuntimeError(
                "flex has no gradients on a CPU; call it under "
                "torch.no_grad(), or use fused, flash or sdpa"
            )
        if compiled and q.dtype == torch.float64:
            raise TypeError("flex is not compiled for float64 on a CPU")
        q, k, v = q.detach(), k.detach(), v.detach()
    if 0 in (B, T, S):
        return q.new_zeros(B, H, T, Dv)
    grouped, seen = k.shape[1] != H, hiding(mask)
    how: dict[str, Any] = {"scale": scale, "enable_gqa": grouped}
    if softcap is not None or bias is not None:
        how["score_mod"] = _score_mod(softcap, place(bias, mask, q, k))
    with without_autocast(q.device):  # the output has the dtype of the inputs
        if torch.compiler.is_compiling():  # a part of the caller's graph
            create, attention = _functions()
            # PyTorch 2.13 fails on a CPU where these are views of products.
            q, k, v = (x.contiguous() for x in (q, k, v))
            how["block_mask"] = _tiles(create, seen, T, S, q.device)
        else:
            attention = kernel = _kernel(compiled)
            how["block_mask"] = kernel.tiles(seen, T, S, q.device)
        if sinks is None:
            out: Tensor = attention(q, k, v, **how)
            return out
        bare, lse = attention(q, k, v, return_lse=True, **how)
    return add_sinks(bare, lse, sinks)[0]


def _score_mod(
    softcap: float | None, bias: PlacedBias | None
) -> Callable[..., Tensor]:
    """The function of a scaled score that becomes part of the kernel."""

    def changed(
        score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor
    ) -> Tensor:
        if bias is not None:
            score = score + bias.of(b, h, i, j)
        return score if softcap is None else softcap * (score / softcap).tanh()

    return changed


def _functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """PyTorch's functions, imported when they are first needed."""
    try:
        from torch.nn.attention.flex_attention import (
            create_block_mask,
            flex_attention,
        )
    except ImportError as error:
        raise RuntimeError(
            f"PyTorch {torch.__version__} has no flex_attention: flex "
            "needs 2.5 or later; use fused or flash"
        ) from error
    return create_block_mask, flex_attention


def _tiles(
    create: Callable[..., Any],
    mask: Mask,
    T: int,
    S: int,
    device: torch.device,
) -> Any:
    """The `BlockMask`: which tiles are computed, and which of them masked."""
    if mask is None:
        return None
    corner = mask  # of which the axes are counted
    if not isinstance(corner, Tensor):
        corner = corner.part(slice(1), slice(1))
    # Of the rows and heads, one will do where all have the same mask.
    heads = corner.shape[:2] if corner.dim() == 4 else (1, 1)
    return create(mask_mod(mask), *heads, T, S, device)


def _numbers(mask: Mask) -> tuple[Any, ...] | None:
    """A mask as numbers, if they define it. Tensors may change."""
    if mask is None or isinstance(mask, Tensor):
        return None
    fields = [x for rule in mask.rule.parts for x in vars(rule).items()]
    tensors = (
        mask.positions,
        mask.mask,
        mask.token_positions,
        mask.lengths,
    )
    numbers = all(isinstance(value, int | float) for _, value in fields)
    if not numbers or any(x is not None for x in tensors):
        return None
    kinds = map(type, mask.rule.parts)
    return *kinds, *fields, mask.past


class _Kernel:
    """What is kept from call to call: a compiled kernel, and block masks."""

    def __init__(self, compiled: bool) -> None:
        self.create, self.plain = _functions()
        self.fixed = False
        self.cached: dict[tuple[Any, ...], Any] = {}
        self.attention: Callable[..., Any] = self.plain
        if compiled:
            self.attention = torch.compile(self.plain)

    def tiles(self, mask: Mask, T: int, S: int, device: torch.device) -> Any:
        """Kept for a rule that only numbers define, such as a window."""
        numbers = _numbers(mask)
        if numbers is None:
            return _tiles(self.create, mask, T, S, device)
        key = (*numbers, T, S, device)
        if key not in self.cached:
            if len(self.cached) >= 64:  # lengths that will not come again
                self.cached.clear()
            self.cached[key] = _tiles(self.create, mask, T, S, device)
        return self.cached[key]

    def __call__(self, *inputs: Tensor, **options: Any) -> Any:
        from torch._dynamo.exc import BackendCompilerFailed

        try:
            return self.attention(*inputs, **options)
        except BackendCompilerFailed as error:
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


_kernel = lru_cache(_Kernel)


# --8<-- [end:flex]
