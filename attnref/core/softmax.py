"""Softmax that cannot overflow: all at once, and in chunks."""

# --8<-- [start:imports]
import torch
from torch import Tensor

# --8<-- [end:imports]


# --8<-- [start:softmax]
def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Weights `exp(x_j) / sum_k exp(x_k)` along `dim`, without overflow.

    Any shape; float16 and bfloat16 are computed in float32. A row that
    is -inf throughout gives zeros: no candidate, no weight. That it became
    so by overflow and not by a mask cannot be told from the row.

    Examples:
        >>> softmax(torch.tensor([1000.0, 1000.0, float("-inf")]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    wide = _widen(x)
    if x.numel() == 0:
        return x.clone()  # no candidate at all
    peak = wide.detach().amax(dim, keepdim=True)
    # The largest exponent becomes 0. A row of -inf has no peak to take off:
    # -inf - (-inf) is NaN, so take off nothing.
    e = (wide - peak.masked_fill(peak == -torch.inf, 0)).exp()
    total = e.sum(dim, keepdim=True)
    return (e / total.masked_fill(total == 0, 1)).to(x.dtype)


# --8<-- [end:softmax]


# --8<-- [start:online]
def online_softmax(x: Tensor, dim: int = -1, *, chunk: int) -> Tensor:
    """The same weights from a row that arrives in chunks.

    One pass keeps two numbers a row, the largest entry so far and the sum
    of exponentials relative to it; a second pass writes the weights.

    Examples:
        >>> x = torch.tensor([3.0, 900.0, -2.0, 901.0, 7.0])
        >>> online_softmax(x, chunk=2)
        tensor([0.0000, 0.2689, 0.0000, 0.7311, 0.0000])
    """
    wide = _widen(x)
    if chunk < 1:
        raise ValueError(f"{chunk=} must be at least 1")
    if x.dim() == 0:
        raise ValueError("x is a single number; there is no axis to split")
    if x.numel() == 0:
        return x.clone()
    parts = torch.split(wide, chunk, dim)
    peak = torch.full_like(wide.narrow(dim, 0, 1), -torch.inf)
    total = torch.zeros_like(peak)
    for part in parts:
        new = torch.maximum(peak, part.detach().amax(dim, keepdim=True))
        base = new.masked_fill(new == -torch.inf, 0)
        # What was summed so far was relative to the old peak: rescale it.
        total = total * (peak - base).exp()
        total = total + (part - base).exp().sum(dim, keepdim=True)
        peak = new
    base = peak.masked_fill(peak == -torch.inf, 0)
    total = total.masked_fill(total == 0, 1)
    weights = [(part - base).exp() / total for part in parts]
    return torch.cat(weights, dim).to(x.dtype)


# --8<-- [end:online]


# --8<-- [start:widen]
def _widen(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}; softmax needs a floating dtype")
    return x.to(torch.promote_types(x.dtype, torch.float32))


# --8<-- [end:widen]
