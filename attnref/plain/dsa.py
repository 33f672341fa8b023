"""DeepSeek Sparse Attention (DSA): MLA over keys that an indexer chooses.

Needs only PyTorch 2.5+. Weights of GLM-5 load, and with halves=True those of
DeepSeek-V3.2, whose YaRN is not here.
"""

import torch
import torch.nn.functional as F
from torch import nn


def rope(x, positions, theta=10000.0, halves=False):
    """Rotate x (B, H, T, D) by positions (T,).

    2p and 2p + 1 are a pair; with halves, p and p + D/2.
    """
    D = x.shape[-1]
    if D % 2:
        raise ValueError(f"{D=} is odd: RoPE rotates pairs of elements")
    p = torch.arange(D // 2, device=x.device).double()  # float32 is too coarse
    angle = positions[:, None] * theta ** (-2 * p / D)  # (T, D // 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)  # (T, D // 2)
    a, b = x.chunk(2, dim=-1) if halves else (x[..., 0::2], x[..., 1::2])
    a, b = a * cos - b * sin, b * cos + a * sin  # (..., T, D // 2)
    if halves:
        return torch.cat((a, b), dim=-1)  # (..., T, D)
    return torch.stack((a, b), dim=-1).flatten(-2)  # (..., T, D)


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


class Indexer(nn.Module):
    """Hi small heads with one key for all of them choose what MLA reads."""

    def __init__(self, d_model, q_rank, Hi, Di, topk, Dr, theta, halves):
        super().__init__()
        self.Hi, self.topk, self.Dr = Hi, topk, Dr
        self.theta, self.halves = theta, halves
        self.wq_b = nn.Linear(q_rank, Hi * Di, bias=False)
        self.wk = nn.Linear(d_model, Di, bias=False)
        self.k_norm = nn.LayerNorm(Di, eps=1e-6)  # not RMSNorm; with a bias
        self.weights_proj = nn.Linear(d_model, Hi, bias=False)

    def turn(self, x, at):
        x, rest = x.tensor_split((self.Dr,), dim=-1)  # Dr of Di channels
        return torch.cat((rope(x, at, self.theta, self.halves), rest), dim=-1)

    def key(self, x, at):
        return self.turn(self.k_norm(self.wk(x))[:, None], at)  # (B, 1, T, Di)

    def scores(self, x, c_q, at, k, mask):
        """How much each query wants each key, (B, T, S).

        k (B, 1, S, Di) are index keys, mask (B, T, S) what may be read.
        """
        q = self.wq_b(c_q).unflatten(-1, (self.Hi, -1)).transpose(1, 2)
        q = self.turn(q, at)  # (B, Hi, T, Di)
        wide = torch.promote_types(x.dtype, torch.float32)  # few scores tie
        scores = F.relu(q.to(wide) @ k.to(wide).mT)  # (B, Hi, T, S)
        weights = self.weights_proj(x).to(wide)  # (B, T, Hi); any sign
        scores = torch.einsum("bhts,bth->bts", scores, weights)  # (B, T, S)
        scores = scores.masked_fill(~mask, -torch.inf)  # before the choice
        return scores

    def forward(self, x, c_q, at, k, mask):
        """The indices of the keys that each query reads, (B, T, topk)."""
        scores = self.scores(x, c_q, at, k, mask)
        return scores.topk(min(self.topk, k.shape[2]), dim=-1).indices


class DSA(nn.Module):
    """The cache holds R + Dr + Di elements per token, for all heads together.

    index is (Hi, Di, topk). Only the indexer's RoPE may have halves.
    """

    def __init__(
        self, d_model, n_heads, R, Dn, Dr, Dv, q_rank, index, theta, halves
    ):
        super().__init__()
        self.n_heads, self.theta = n_heads, theta
        self.R, self.Dn, self.Dr = R, Dn, Dr
        self.q_a_proj = nn.Linear(d_model, q_rank, bias=False)
        self.q_a_layernorm = nn.RMSNorm(q_rank, eps=1e-6)
        self.q_b_proj = nn.Linear(q_rank, n_heads * (Dn + Dr), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(d_model, R + Dr, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(R, eps=1e-6)
        self.kv_b_proj = nn.Linear(R, n_heads * (Dn + Dv), bias=False)
        self.o_proj = nn.Linear(n_heads * Dv, d_model, bias=False)
        how = *index, Dr, theta, halves
        self.indexer = Indexer(d_model, q_rank, *how)

    def forward(self, x, cache=None, valid=None):
        """x (B, T, E) to (B, T, E); valid (B, S), True = no pad, all so far."""
        B, T, E = x.shape
        R, Dn, Dr = self.R, self.Dn, self.Dr
        past = 0 if cache is None else cache.length
        if valid is not None and valid.shape[-1] != past + T:
            raise ValueError(f"{past + T} tokens, {valid.shape[-1]=}")
        at = torch.arange(past, past + T, device=x.device)  # (T,)
        c_q = self.q_a_layernorm(self.q_a_proj(x))  # (B, T, q_rank)
        q = self.q_b_proj(c_q).unflatten(-1, (-1, Dn + Dr)).transpose(1, 2)
        q, q_rope = q.split((Dn, Dr), dim=-1)
        w = self.kv_b_proj.weight.view(self.n_heads, -1, R)  # (H, Dn + Dv, R)
        w_k, w_v = w.tensor_split((Dn,), dim=1)
        q = torch.cat((q @ w_k, rope(q_rope, at, self.theta)), dim=-1)
        c, k_rope = self.kv_a_proj_with_mqa(x)[:, None].split((R, Dr), dim=-1)
        c = self.kv_a_layernorm(c)  # (B, 1, T, R); only c is normed
        k_rope = rope(k_rope, at, self.theta)  # (B, 1, T, Dr)
        entry = torch.cat((c, k_rope, self.indexer.key(x, at)), dim=-1)
        if cache is not None:
            (entry,) = cache.append(entry)  # (B, 1, S, R + Dr + Di)
        entry, k_index = entry.tensor_split((R + Dr,), dim=-1)
        mask = x.new_ones(B, T, past + T).tril(past).bool()  # (B, T, S)
        if valid is not None:
            mask = mask & valid[:, None]  # (B, T, S)
        chosen = self.indexer(x, c_q, at, k_index, mask)  # (B, T, topk)
        if T == 1:  # only these entries are read
            entry = entry.take_along_dim(chosen[..., None], dim=2)
            mask = mask.take_along_dim(chosen, dim=2)  # (B, 1, topk)
        else:  # early queries have fewer keys than topk: masked ones fill it
            mask = mask & torch.zeros_like(mask).scatter(2, chosen, True)
        k, v, mask = entry, entry[..., :R], mask[:, None]  # for all heads
        scale = (Dn + Dr) ** -0.5  # not from the width R + Dr
        mixed = F.scaled_dot_product_attention(q, k, v, mask, scale=scale)
        out = (mixed @ w_v.mT).transpose(1, 2)  # (B, T, H, Dv)
        return self.o_proj(out.flatten(2))  # (B, T, E)
