"""Attention sinks: a logit per head, and first tokens that are kept.

Needs only PyTorch.
"""

import torch


def attention_with_sinks(q, k, v, sinks, mask=None):
    """q (B, H, T, D), k (B, H, S, D), v (B, H, S, Dv), sinks (H,)."""
    scores = q @ k.mT / q.shape[-1] ** 0.5  # (B, H, T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask.expand_as(scores), -torch.inf)
    B, H, T, S = scores.shape
    sink = sinks.view(H, 1, 1).expand(B, H, T, 1)  # (B, H, T, 1)
    scores = torch.cat((scores, sink), dim=-1)  # (B, H, T, S + 1)
    weights = scores.softmax(dim=-1)  # (B, H, T, S + 1)
    weights = weights.nan_to_num(0.0)  # (B, H, T, S + 1); a sink of -inf
    return weights[..., :S].to(v.dtype) @ v  # (B, H, T, Dv)


def add_sinks(out, lse, sinks):
    """The same from any kernel's output and log-sum-exps (B, H, T)."""
    sink = sinks[:, None]  # (H, 1)
    low = torch.finfo(lse.dtype).min  # a query that sees no key has lse = -inf
    kept = (lse.clamp(min=low) - sink).sigmoid()  # (B, H, T)
    return out * kept[..., None].to(out.dtype), torch.logaddexp(lse, sink)


def streaming_mask(T, S, first, window):
    """(T, S): the first keys, and the last ones up to the query's own."""
    i = torch.arange(S - T, S)[:, None]  # (T, 1)
    j = torch.arange(S)  # (S,)
    return (j <= i) & ((j < first) | (j > i - window))  # (T, S)


def streaming_positions(S, first, window):
    """The tokens that StreamingLLM keeps of S, and their new positions."""
    j = torch.arange(S)
    kept = j[streaming_mask(1, S, first, window)[0]]
    return kept, torch.arange(len(kept))
