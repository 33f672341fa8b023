"""Attention over parts of the keys, merged. Needs only PyTorch."""

import torch


def merge(outs, lses):
    """Outputs (B, H, T, D) and log-sum-exps (B, H, T) of parts of the keys."""
    outs, lses = torch.stack(outs), torch.stack(lses)
    outs = outs.masked_fill(lses[..., None] == -torch.inf, 0)  # not 0 * NaN
    weights = lses.softmax(dim=0).nan_to_num(0.0)  # a query that sees no key
    weights = weights.to(outs.dtype)  # lses may be wider than outs
    return (weights[..., None] * outs).sum(dim=0), lses.logsumexp(dim=0)
