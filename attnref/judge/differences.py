"""How far tensors are from each other, and how a file stores them."""

from typing import Any

import torch
from torch import Tensor


def _differences(a: Tensor, b: Tensor) -> Tensor:
    """Infinities and NaN are equal to themselves, and to nothing else."""
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    return (a - b).abs().where(~same, 0).nan_to_num(torch.inf)


def largest_difference(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return torch.inf
    return float(_differences(a, b).max()) if a.numel() else 0.0


def distance(a: Tensor, b: Tensor) -> float:
    """The root mean square of the differences: independent errors of many
    elements hardly move an output nearer to another one."""
    return float(_differences(a, b).square().mean().sqrt())


def as_dtype(x: Tensor, dtype: Any) -> Tensor:
    """Round x, unless it is a mask."""
    return x.to(dtype) if dtype and x.is_floating_point() else x


def largest(x: Tensor) -> float:
    finite = x.double().abs().nan_to_num(0.0, 0.0)
    return float(finite.max()) if x.numel() else 0.0


def as_stored(value: Tensor) -> Tensor:
    """A tensor as its file has it."""
    dtype = torch.float32 if value.is_floating_point() else value.dtype
    return value.to(dtype).contiguous()
