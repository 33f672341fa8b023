"""Multi-query attention, causal, without RoPE. Needs only PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn


class MQA(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{n_heads=} does not divide {d_model=}")
        self.n_heads, head_dim = n_heads, d_model // n_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, head_dim, bias=False)
        self.v_proj = nn.Linear(d_model, head_dim, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, cache=None):
        """x (B, T, E) to (B, T, E); cache is one of kv_cache.py."""
        (B, T, E), H = x.shape, self.n_heads
        k, v = self.k_proj(x)[:, None], self.v_proj(x)[:, None]  # (B, 1, T, D)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, 1, S, D)
        S = k.shape[2]
        # All heads of a token are rows of queries to the same keys: no copies.
        q = self.q_proj(x).view(B, 1, T * H, E // H)  # (B, 1, T * H, D)
        mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
        mask = mask.repeat_interleave(H, dim=0)  # (T * H, S)
        out = F.scaled_dot_product_attention(q, k, v, mask)  # (B, 1, T * H, D)
        return self.o_proj(out.reshape(B, T, E))  # (B, T, E)
