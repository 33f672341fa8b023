"""MHA whose cache is a tuple (k, v), as in older code. Needs only PyTorch."""

import torch
import torch.nn.functional as F


def mha_cached(x, w_q, w_k, w_v, w_o, n_heads, cache=None):
    """x (B, T, E) to (B, T, E), and the cache for the next call.

    Each weight is (E, E), as in nn.Linear; cache is what the last call gave.
    """
    q, k, v = (
        F.linear(x, w).unflatten(-1, (n_heads, -1)).transpose(1, 2)
        for w in (w_q, w_k, w_v)
    )
    if cache is not None:
        k = torch.cat((cache[0], k), dim=2)  # (B, H, S, D)
        v = torch.cat((cache[1], v), dim=2)  # (B, H, S, D)
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
    heads = F.scaled_dot_product_attention(q, k, v, mask)  # (B, H, T, D)
    return F.linear(heads.transpose(1, 2).reshape(x.shape), w_o), (k, v)
