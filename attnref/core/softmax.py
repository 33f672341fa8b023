"""Softmax without overflow: over a whole row, and chunk by chunk."""

# --8<-- [start:imports]
import torch
from torch import Tensor

# --8<-- [end:imports]


# --8<-- [start:softmax]
def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Weights `exp(x_j) / sum_j' exp(x_j')` along `dim`, without overflow.

    `x` may have any shape; float16 and bfloat16 are computed in float32. A
    row in which every score is -inf gives zeros, whether a mask or an
    overflow made it so: the row itself does not show which.

    Examples:
        >>> softmax(torch.tensor([1000.0, 1000.0, float("-inf")]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    wide = _widen(x)
    if x.numel() == 0:
        return x.clone()  # there are no scores
    # The weights do not depend on what is subtracted, so neither does their
    # gradient: the maximum is a constant for autograd.
    peak = wide.detach().amax(dim, keepdim=True)
    # The largest exponent becomes 0. In a row of -inf the maximum is -inf,
    # and -inf - (-inf) is NaN: subtract a finite number there.
    e = (wide - peak.clamp(min=torch.finfo(wide.dtype).min)).exp_()
    # Every other row has exp(0) = 1 in its total: only zeros are below 1.
    total = e.sum(dim, keepdim=True).clamp(min=1)
    return (e / total).to(x.dtype)


# --8<-- [end:softmax]


# --8<-- [start:online]
def online_softmax(x: Tensor, dim: int = -1, *, chunk: int) -> Tensor:
    """The same weights as `softmax`, from a row that is read in chunks.

    The first pass keeps two numbers per row: the largest score so far, `m`,
    and the sum `l` of `exp(x_j - m)`. The second pass computes the weights
    `exp(x_j - m) / l`.

    Examples:
        >>> x = torch.tensor([3.0, 900.0, -2.0, 901.0, 7.0])
        >>> online_softmax(x, chunk=2)
        tensor([0.0000, 0.2689, 0.0000, 0.7311, 0.0000])
    """
    wide = _widen(x)
    if chunk < 1:
        raise ValueError(f"{chunk=} must be at least 1")
    if x.dim() == 0:
        raise ValueError("x is a scalar: there is no axis to split")
    if x.numel() == 0:
        return x.clone()
    low = torch.finfo(wide.dtype).min
    parts = torch.split(wide, chunk, dim)
    base = peak = torch.full_like(wide.narrow(dim, 0, 1), -torch.inf)
    total = torch.zeros_like(peak)
    for part in parts:
        new = torch.maximum(peak, part.detach().amax(dim, keepdim=True))
        base = new.clamp(min=low)  # not -inf, as above
        # The sum so far is relative to the old maximum: rescale it.
        total = total * (peak - base).exp()
        total = total + (part - base).exp().sum(dim, keepdim=True)
        peak = new
    total = total.clamp(min=1)
    weights = [(part - base).exp() / total for part in parts]
    return torch.cat(weights, dim).to(x.dtype)


# --8<-- [end:online]


# --8<-- [start:widen]
def _widen(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}; softmax needs a floating dtype")
    return x.to(torch.promote_types(x.dtype, torch.float32))


# --8<-- [end:widen]
