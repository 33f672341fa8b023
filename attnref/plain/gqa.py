"""Grouped-query attention with RoPE and a KV cache. Needs only PyTorch 2.5+.

n_kv_heads = n_heads is MHA, n_kv_heads = 1 is MQA. Weights of Llama 2 and 3
load (3 with theta=5e5). Llama 3.1 also rescales RoPE, which is not here.
"""

import torch
import torch.nn.functional as F
from torch import nn


def rope(x, positions, theta=10000.0):
    """Rotate x (B, H, T, D) by its positions (T,): p and p + D/2 are a pair."""
    D = x.shape[-1]
    if D % 2:
        raise ValueError(f"{D=} is odd: RoPE rotates pairs of elements")
    p = torch.arange(D // 2, device=x.device).double()  # float32 is too coarse
    angle = positions[:, None] * theta ** (-2 * p / D)  # (T, D // 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)  # (T, D // 2)
    a, b = x.chunk(2, dim=-1)  # (..., T, D // 2)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class KVCache:
    """Room for max_len tokens of one layer."""

    def __init__(self, max_len):
        self.max_len, self.length, self.stored = max_len, 0, None

    def append(self, *new):
        """Store the new k and v, (B, K, T, D) each; return all so far."""
        new = torch.stack(new)  # (n, B, K, T, D); n = 2: k and v
        end = self.length + new.shape[3]
        if end > self.max_len:
            raise ValueError(f"{end} tokens, room for {self.max_len}")
        if self.stored is None:
            shape = (*new.shape[:3], self.max_len, new.shape[4])
            self.stored = new.new_empty(shape)  # (n, B, K, max_len, D)
        self.stored[:, :, :, self.length : end] = new
        self.length = end
        return self.stored[:, :, :, :end].unbind()


class GQA(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads, head_dim=None, theta=1e4):
        super().__init__()
        if n_heads % n_kv_heads:
            raise ValueError(f"{n_kv_heads=} does not divide {n_heads=}")
        if not head_dim and d_model % n_heads:
            raise ValueError(f"{n_heads=} does not divide {d_model=}")
        self.head_dim, self.theta = head_dim or d_model // n_heads, theta
        q_width, kv_width = n_heads * self.head_dim, n_kv_heads * self.head_dim
        self.q_proj = nn.Linear(d_model, q_width, bias=False)
        self.k_proj = nn.Linear(d_model, kv_width, bias=False)
        self.v_proj = nn.Linear(d_model, kv_width, bias=False)
        self.o_proj = nn.Linear(q_width, d_model, bias=False)

    def forward(self, x, cache=None, valid=None):
        """x (B, T, E) to (B, T, E); valid (B, S), True = no pad, all so far."""
        B, T, E = x.shape
        past = 0 if cache is None else cache.length
        if valid is not None and valid.shape[-1] != past + T:
            raise ValueError(f"{past + T} tokens, {valid.shape[-1]=}")
        at = torch.arange(past, past + T, device=x.device)  # (T,)
        q = self.q_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q = rope(q, at, self.theta)  # (B, H, T, D)
        k = rope(k, at, self.theta)  # (B, K, T, D)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, K, S, D); keys are stored rotated
        mask = None  # a prompt without pads: is_causal, in half the time
        if past or valid is not None:
            mask = torch.ones(T, past + T, dtype=torch.bool, device=x.device)
            mask = mask.tril(past)  # (T, S); the first new token sees past + 1
        if valid is not None:
            mask = mask & valid[:, None, None, :]  # (B, 1, T, S)
        # Head h reads key/value head h // (H // K); one token reads it once.
        rows = q.unflatten(1, (k.shape[1], -1)).squeeze(3) if T == 1 else q
        out = F.scaled_dot_product_attention(
            rows, k, v, mask, is_causal=mask is None, enable_gqa=True
        ).reshape(q.shape)
        wide = self.o_proj.in_features  # of all heads
        return self.o_proj(out.transpose(1, 2).reshape(B, T, wide))  # (B, T, E)
