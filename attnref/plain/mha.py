"""Multi-head attention, causal. Needs only PyTorch."""

import torch
from torch import nn


class MHA(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{n_heads=} does not divide {d_model=}")
        self.n_heads = n_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        """x (B, T, E) to (B, T, E)."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)  # (B, T, E)
        q, k, v = self.split(q), self.split(k), self.split(v)  # (B, H, T, D)
        scores = q @ k.mT / q.shape[-1] ** 0.5  # (B, H, T, T)
        future = torch.ones_like(scores[:1, :1], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)  # (B, H, T, T)
        weights = scores.softmax(dim=-1)  # (B, H, T, T)
        heads = weights @ v  # (B, H, T, D)
        merged = heads.transpose(1, 2).reshape(x.shape)  # (B, T, E)
        return self.o_proj(merged)  # (B, T, E)

    def split(self, x):
        """The heads stand side by side: view first, and then transpose."""
        B, T, E = x.shape
        H = self.n_heads
        return x.view(B, T, H, E // H).transpose(1, 2)  # (B, H, T, D)
