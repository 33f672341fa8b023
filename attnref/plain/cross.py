"""Cross-attention: x attends to a context. Needs only PyTorch."""

import torch.nn.functional as F
from torch import nn


class CrossAttention(nn.Module):
    def __init__(self, d_model, n_heads, d_context=None):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{n_heads=} does not divide {d_model=}")
        self.head_dim = d_model // n_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_context or d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_context or d_model, d_model, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, context, valid=None):
        """x (B, T, E), context (B, S, C); valid (B, S), True = no pad of it."""
        if valid is not None and valid.shape[-1] != context.shape[1]:
            raise ValueError(f"{context.shape[1]} tokens, {valid.shape[-1]=}")
        q = self.split(self.q_proj(x))  # (B, H, T, D)
        k = self.split(self.k_proj(context))  # (B, H, S, D)
        v = self.split(self.v_proj(context))  # (B, H, S, D)
        # No causal mask: all of the context is there. Its pads are hidden.
        mask = None if valid is None else valid[:, None, None, :]
        heads = F.scaled_dot_product_attention(q, k, v, mask)  # (B, H, T, D)
        return self.o_proj(heads.transpose(1, 2).reshape(x.shape))  # (B, T, E)

    def split(self, x):
        """(B, T, H * D) to (B, H, T, D)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
