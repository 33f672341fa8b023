"""Multi-head latent attention (MLA) of DeepSeek. Needs only PyTorch 2.5+.

Weights of DeepSeek-V2 and V3 load; their YaRN is not here.
"""

import torch
import torch.nn.functional as F
from torch import nn


def rope(x, positions, theta=10000.0):
    """Rotate x (B, H, T, D) by positions (T,): 2p and 2p + 1 are a pair."""
    D = x.shape[-1]
    if D % 2:
        raise ValueError(f"{D=} is odd: RoPE rotates pairs of elements")
    p = torch.arange(D // 2, device=x.device).double()  # float32 is too coarse
    angle = positions[:, None] * theta ** (-2 * p / D)  # (T, D // 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)  # (T, D // 2)
    a, b = x[..., 0::2], x[..., 1::2]  # (..., T, D // 2)
    pairs = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return pairs.flatten(-2)  # (..., T, D)


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


class MLA(nn.Module):
    """The cache holds R + Dr elements per token, for all heads together."""

    def __init__(self, d_model, n_heads, R, Dn, Dr, Dv, q_rank=None, theta=1e4):
        super().__init__()
        self.n_heads, self.theta = n_heads, theta
        self.R, self.Dn, self.Dr, self.Dv, self.q_rank = R, Dn, Dr, Dv, q_rank
        if q_rank:  # V2 and V3; not V2-Lite
            self.q_a_proj = nn.Linear(d_model, q_rank, bias=False)
            self.q_a_layernorm = nn.RMSNorm(q_rank, eps=1e-6)
            self.q_b_proj = nn.Linear(q_rank, n_heads * (Dn + Dr), bias=False)
        else:
            self.q_proj = nn.Linear(d_model, n_heads * (Dn + Dr), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(d_model, R + Dr, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(R, eps=1e-6)
        self.kv_b_proj = nn.Linear(R, n_heads * (Dn + Dv), bias=False)
        self.o_proj = nn.Linear(n_heads * Dv, d_model, bias=False)

    def forward(self, x, cache=None, valid=None, absorbed=None):
        """x (B, T, E) to (B, T, E); valid (B, S), True = no pad, all so far."""
        B, T, E = x.shape
        R, Dn, Dr = self.R, self.Dn, self.Dr
        past = 0 if cache is None else cache.length
        if valid is not None and valid.shape[-1] != past + T:
            raise ValueError(f"{past + T} tokens, {valid.shape[-1]=}")
        at = torch.arange(past, past + T, device=x.device)  # (T,)
        if self.q_rank:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        else:
            q = self.q_proj(x)
        q = q.unflatten(-1, (-1, Dn + Dr)).transpose(1, 2)  # (B, H, T, Dn + Dr)
        q, q_rope = q.split((Dn, Dr), dim=-1)
        q_rope = rope(q_rope, at, self.theta)  # (B, H, T, Dr)
        c, k_rope = self.kv_a_proj_with_mqa(x)[:, None].split((R, Dr), dim=-1)
        c = self.kv_a_layernorm(c)  # (B, 1, T, R); only c is normed
        k_rope = rope(k_rope, at, self.theta)  # (B, 1, T, Dr); for all heads
        entry = torch.cat((c, k_rope), dim=-1)  # (B, 1, T, R + Dr)
        if cache is not None:
            (entry,) = cache.append(entry)  # (B, 1, S, R + Dr)
        mask = None  # a prompt without pads: is_causal, in half the time
        if past or valid is not None:
            mask = torch.ones(T, past + T, dtype=torch.bool, device=x.device)
            mask = mask.tril(past)  # (T, S)
        if valid is not None:
            mask = mask & valid[:, None, None, :]  # (B, 1, T, S)
        if absorbed is None:  # which of the two takes fewer products
            S, W = past + T, Dn + self.Dv
            absorbed = T * R * (W + 2 * S) < S * W * (R + T)
        form = self.absorbed if absorbed else self.per_head
        out = form(q, q_rope, entry, mask)  # (B, H, T, Dv)
        wide = self.o_proj.in_features  # of all heads
        return self.o_proj(out.transpose(1, 2).reshape(B, T, wide))  # (B, T, E)

    def per_head(self, q, q_rope, entry, mask):
        """Keys and values of each head, computed from the latent."""
        H, (c, k_rope) = self.n_heads, entry.split((self.R, self.Dr), dim=-1)
        kv = self.kv_b_proj(c[:, 0]).unflatten(-1, (H, -1)).transpose(1, 2)
        k, v = kv.tensor_split((self.Dn,), dim=-1)
        q = torch.cat((q, q_rope), dim=-1)  # (B, H, T, Dn + Dr)
        k = torch.cat((k, k_rope.expand(-1, H, -1, -1)), dim=-1)
        return F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None
        )

    def absorbed(self, q, q_rope, entry, mask):
        """The same without them: q . (W c) = (q W) . c, where c is cached."""
        w = self.kv_b_proj.weight.view(self.n_heads, -1, self.R)
        w_k, w_v = w.tensor_split((self.Dn,), dim=1)
        q = torch.cat((q @ w_k, q_rope), dim=-1)  # (B, H, T, R + Dr)
        k, v = entry, entry[..., : self.R]  # one for all heads, as in MQA
        scale = (self.Dn + self.Dr) ** -0.5  # not from the width R + Dr
        mixed = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, scale=scale
        )
        return mixed @ w_v.mT  # (B, H, T, Dv)
