"""Ulysses: tokens split, but heads in attention. Needs only PyTorch 2.5+.

An all-to-all gives each rank all tokens of some heads, a second one returns
the output; group is a Group of ranks.py.
"""

import torch
import torch.nn.functional as F


class Swap(torch.autograd.Function):
    """All-to-all along the first axis; so is its gradient."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return group.swap(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.group.swap(grad), None


def to_heads(x, group):
    """All heads (B, H, T / n, D) to all tokens (B, H / n, T, D)."""
    parts = x.unflatten(1, (group.size, -1)).movedim(1, 0)
    return torch.cat([*Swap.apply(parts, group)], dim=2)


def to_tokens(x, group):
    """The way back: all tokens of some heads to all heads of some tokens."""
    parts = x.unflatten(2, (group.size, -1)).movedim(2, 0)
    return torch.cat([*Swap.apply(parts, group)], dim=1)


def causal(i, j):
    """Which keys at positions j the queries at i see."""
    return j <= i


def attend(q, k, v, positions, rule=causal):
    """Attention on one device, to tokens in any order; -1 = a pad."""
    keep = rule(positions[:, :, None], positions[:, None])
    keep = (keep & (positions >= 0)[:, None])[:, None]
    return F.scaled_dot_product_attention(q, k, v, keep, enable_gqa=True)


def ulysses(q, k, v, positions, group, attend=attend):
    """What ring_attention returns, from q (B, H, T, D), k, v (B, K, T, D).

    attend(q, k, v, positions) is any attention. Ring attention over other
    ranks makes a hybrid, for more ranks than heads.
    """
    group.check(q, k, v)
    n, H, K = group.size, q.shape[1], k.shape[1]
    if H % n:
        raise ValueError(f"{n} ranks do not divide {H} query heads")
    # Each rank gets the key heads that it reads; if few, several ranks one.
    copies = next(c for c in range(1, n + 1) if c * K % n == 0)
    k, v = (x.repeat_interleave(copies, dim=1) for x in (k, v))
    q, k, v = (to_heads(x, group) for x in (q, k, v))
    positions = positions.expand(q.shape[0], -1).contiguous()
    everywhere = torch.cat([*group.gather(positions)], dim=1)  # (B, T)
    return to_tokens(attend(q, k, v, everywhere), group)
