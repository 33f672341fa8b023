"""Softmax, over a whole row and chunk by chunk. Needs only PyTorch."""

import torch


def softmax(x, dim=-1):
    """The weights exp(x_j) / sum(exp(x)); a row of -inf gives zeros."""
    # Only differences count, so the largest exponent may be 0: no overflow.
    e = (x - x.amax(dim, keepdim=True)).exp()
    weights = e / e.sum(dim, keepdim=True)
    return weights.nan_to_num(0.0)  # -inf - (-inf) is NaN


def online_softmax(x, chunk):
    """The same weights over the last axis, read in chunks."""
    dtype, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))
    # The largest score so far: finite, or a row of -inf would give NaN.
    m = torch.full_like(x[..., :1], torch.finfo(x.dtype).min)
    total = torch.zeros_like(m)  # the sum of exp(x_j - m) so far
    for part in x.split(chunk, dim=-1):
        larger = torch.maximum(m, part.amax(dim=-1, keepdim=True))
        total = total * (m - larger).exp()  # relative to the new maximum
        total = total + (part - larger).exp().sum(dim=-1, keepdim=True)
        m = larger
    return ((x - m).exp() / total).nan_to_num(0.0).to(dtype)
