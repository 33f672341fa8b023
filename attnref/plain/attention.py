"""Scaled dot-product attention. Needs only PyTorch."""

import torch


def attention(q, k, v, mask=None):
    """q (B, H, T, D), k (B, H, S, D), v (B, H, S, Dv); mask True = may see."""
    scores = q @ k.mT / q.shape[-1] ** 0.5  # (B, H, T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask.expand_as(scores), -torch.inf)
    weights = scores.softmax(dim=-1)  # (B, H, T, S)
    weights = weights.nan_to_num(0.0)  # (B, H, T, S); a query that sees no key
    return weights @ v  # (B, H, T, Dv)
