"""How many pairs of key and value a state recalls. Needs only PyTorch."""

import torch


def written(k, v, decay=1.0, delta=False):
    """The state after all pairs: k and v (B, N, D) to (B, D, D)."""
    state = k.new_zeros(k.shape[0], k.shape[2], v.shape[2])
    for t in range(k.shape[1]):
        state = state * decay
        new = v[:, t, None]  # (B, 1, D)
        if delta:
            new = new - k[:, t, None] @ state  # (B, 1, D); what is missing
        state = state + k[:, t, :, None] * new  # (B, D, D)
    return state


def attended(q, k, v, scale=16.0):
    """Softmax attention. q and k have length 1: the scale makes it sharp."""
    return (scale * q @ k.mT).softmax(dim=-1) @ v  # (B, N, D)


def recalled(reads, values):
    """The share of reads (B, N, D) that lie nearest to the value of their key.

    values (B, M, D) have length 1; the first N are those that are asked for.
    """
    nearest = (reads @ values.mT).argmax(dim=-1)  # (B, N)
    wanted = torch.arange(reads.shape[1], device=reads.device)  # (N,)
    return (nearest == wanted).double().mean().item()
