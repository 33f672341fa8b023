"""The self-attention of any released model, driven by its record.

Every branch on `r` is decided by the record of a model, before anything runs.
`file_of` in `generate.py` prints this file without the branches that a model
does not take.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.RMSNorm):
    """RMSNorm whose weight is stored less 1."""

    def reset_parameters(self):
        nn.init.zeros_(self.weight)

    def forward(self, x):
        w = 1 + self.weight.float()
        return F.rms_norm(x.float(), w.shape, w, self.eps).to(x.dtype)


def norm_of(r, width):
    if r.norm_weight == "1 + w":
        return RMSNorm(width, r.norm_eps)
    if r.norm_weight is None:
        return nn.RMSNorm(width, r.norm_eps, elementwise_affine=False)
    return nn.RMSNorm(width, r.norm_eps)


class Conv1D(nn.Module):
    """A linear layer whose weight is stored transposed, `(in, out)`."""

    def __init__(self, width, out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, out))
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x):
        return x @ self.weight + self.bias


class HeadNorm(nn.Module):
    """LayerNorm of each head by itself, each with weights of its own."""

    def __init__(self, r, heads):
        super().__init__()
        self.r = r
        self.weight = nn.Parameter(torch.ones(heads, r.head_dim))

    def forward(self, x):
        r = self.r
        wide = F.layer_norm(x.float(), (r.head_dim,), eps=r.norm_eps)
        return (wide * self.weight[:, None]).to(x.dtype)  # (..., T, D)


def frequencies(r, device=None, longer=False):
    """RoPE: the angle of each pair per position, `(D / 2,)`; in float32."""
    width = r.rope_width
    even = torch.arange(0, width, 2, device=device).float()
    f = r.rope_theta ** -(even / width)
    if r.rope_kind == "linear":
        f = f / r.rope_factor
    elif r.rope_kind == "llama3":
        turns = r.rope_length * f / (2 * math.pi)
        keep = (turns - r.rope_low) / (r.rope_high - r.rope_low)
        keep = keep.clamp(0, 1)
        f = f * keep + f / r.rope_factor * (1 - keep)
    elif r.rope_kind == "yarn":
        steps = width / (2 * math.log(r.rope_theta))
        once = r.rope_length / (2 * math.pi)  # it turns once in this length
        turns = r.rope_high, r.rope_low
        low, high = (steps * math.log(once / n) for n in turns)
        if r.rope_truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        slow = torch.arange(width // 2, device=device).float() - low
        slow = (slow / (high - low or 0.001)).clamp(0, 1)
        f = f * (1 - slow) + f / r.rope_factor * slow
    elif r.rope_kind == "longrope":
        f = f / f.new_tensor(r.rope_long if longer else r.rope_short)
    elif r.rope_kind == "proportional":
        f[int(r.rope_share * width / 2) :] = 0
    if r.rope_backwards:
        f = -f
    return f


def rotate(r, x, angle):
    """RoPE: turn each pair of channels of `x` `(B, H, T, D)` by its angle."""
    cos, sin = angle.cos(), angle.sin()
    if r.rope_width != (r.rope_dim or r.head_dim):
        x, rest = x[..., : r.rope_width], x[..., r.rope_width :]
    wide = x.float() if r.rope_size == 1 else x.float() * r.rope_size
    if r.rope_layout == "half":
        a, b = wide.chunk(2, dim=-1)
        both = a * cos - b * sin, b * cos + a * sin
        x = torch.cat(both, -1).to(x.dtype)
    else:
        a, b = wide.unflatten(-1, (-1, 2)).unbind(-1)
        both = a * cos - b * sin, b * cos + a * sin
        x = torch.stack(both, dim=-1).flatten(-2).to(x.dtype)
    if r.rope_width != (r.rope_dim or r.head_dim):
        x = torch.cat((x, rest), dim=-1)
    return x


def slopes(n_heads):
    """ALiBi: by how much the score of a head falls per token, `(H,)`."""
    n = 2 ** math.floor(math.log2(n_heads))
    powers = [8 * (h + 1) / n for h in range(n)]
    powers += [4 * (2 * h + 1) / n for h in range(n_heads - n)]
    return torch.tensor([2**-p for p in powers]).float()


class Indexer(nn.Module):
    """DSA: which keys each query attends to, chosen by a small attention."""

    def __init__(self, r):
        super().__init__()
        self.r = r
        self.wq_b = nn.Linear(r.q_rank, r.index_heads * r.index_dim, bias=False)
        self.wk = nn.Linear(r.d_model, r.index_dim, bias=False)
        self.k_norm = nn.LayerNorm(r.index_dim, eps=1e-6)
        self.weights_proj = nn.Linear(r.d_model, r.index_heads, bias=False)

    def rotate(self, x, angle):
        r = self.r
        x, rest = x[..., : r.rope_dim], x[..., r.rope_dim :]
        if r.index_layout != r.rope_layout:  # pairs side by side, in q and k
            x = x.unflatten(-1, (2, -1)).mT.flatten(-2)
        return torch.cat((rotate(r, x, angle), rest), dim=-1)

    def key(self, x, angle):
        return self.rotate(self.k_norm(self.wk(x))[:, None], angle)

    def forward(self, x, q, k, angle, mask):
        """The mask with the keys of the highest scores alone."""
        r = self.r
        q = self.wq_b(q).unflatten(-1, (r.index_heads, r.index_dim))
        q = self.rotate(q.transpose(1, 2), angle)
        scores = (q.float() @ k.float().mT).relu()
        weights = self.weights_proj(x).float()  # of each head
        scores = torch.einsum("bth, bhts -> bts", weights, scores)[:, None]
        scores = scores.masked_fill(~mask, -torch.inf)
        best = scores.topk(min(r.index_topk, k.shape[2])).indices
        return mask & torch.zeros_like(scores).scatter(-1, best, 1).bool()


class KVCache:
    """What a layer keeps of earlier tokens, `(B, K, S, D)` each."""

    def __init__(self, r, max_len):
        self.max_len, self.length, self.kept = max_len, 0, ()
        self.window = r.window or r.chunk

    def append(self, *new):
        """Store new tokens; returns them after the earlier ones."""
        start, end = self.length, self.length + new[0].shape[2]
        if end > self.max_len and not self.window:
            raise ValueError(f"{end} tokens do not fit max_len={self.max_len}")
        self.length = end
        if self.window:  # later tokens see no more than that
            old = self.kept or [t[:, :, :0] for t in new]
            new = tuple(torch.cat(p, 2) for p in zip(old, new, strict=True))
            self.kept = tuple(t[:, :, -self.window :] for t in new)
            return new
        if not self.kept:
            self.kept = [F.pad(t, (0, 0, 0, self.max_len - end)) for t in new]
        for old, t in zip(self.kept, new, strict=True):
            old[:, :, start:end] = t
        return tuple(old[:, :, :end] for old in self.kept)


class Attention(nn.Module):
    """Self-attention of one layer."""

    in_package = False

    def __init__(self, r):
        super().__init__()
        self.r = r
        E, H, K, D = r.d_model, r.n_heads, r.n_kv_heads, r.head_dim
        Dv = D if r.v_head_dim == r.head_dim else r.v_head_dim
        if r.kv_rank:
            if r.q_rank is not None:
                self.q_a_proj = nn.Linear(E, r.q_rank, bias=r.qkv_bias)
                self.q_a_layernorm = norm_of(r, r.q_rank)
                self.q_b_proj = nn.Linear(r.q_rank, H * D, bias=False)
            else:
                self.q_proj = nn.Linear(E, H * D, bias=False)
            down = r.kv_rank + r.rope_dim
            self.kv_a_proj_with_mqa = nn.Linear(E, down, bias=r.qkv_bias)
            self.kv_a_layernorm = norm_of(r, r.kv_rank)
            width = H * (D - r.rope_dim + Dv)
            self.kv_b_proj = nn.Linear(r.kv_rank, width, bias=False)
            if r.index_own:
                self.indexer = Indexer(r)
        elif r.fused:
            width = (H + 2 * K) * D
            if r.transposed:
                self.qkv_proj = Conv1D(E, width)
            else:
                self.qkv_proj = nn.Linear(E, width, bias=r.qkv_bias)
        else:
            if r.gate == "in q_proj":
                self.q_proj = nn.Linear(E, 2 * H * D, bias=r.qkv_bias)
            else:
                self.q_proj = nn.Linear(E, H * D, bias=r.qkv_bias)
            if r.shares is None:
                self.k_proj = nn.Linear(E, K * D, bias=r.qkv_bias)
                if not r.k_is_v:
                    self.v_proj = nn.Linear(E, K * Dv, bias=r.qkv_bias)
        if r.transposed:
            self.o_proj = Conv1D(H * Dv, E)
        else:
            self.o_proj = nn.Linear(H * Dv, E, bias=r.o_bias)
        if r.norm == "RMS of a head" and r.shares is not None:
            self.q_norm = norm_of(r, D)
        elif r.norm == "RMS of a head":
            self.q_norm, self.k_norm = norm_of(r, D), norm_of(r, D)
        elif r.norm == "RMS of all heads":
            self.q_norm = norm_of(r, H * D)
            self.k_norm = norm_of(r, K * D)
        elif r.norm == "LayerNorm by heads":
            self.q_norm, self.k_norm = HeadNorm(r, H), HeadNorm(r, K)
        elif r.norm == "LayerNorm":
            self.q_norm = nn.LayerNorm(D, eps=r.norm_eps)
            self.k_norm = nn.LayerNorm(D, eps=r.norm_eps)
        if r.sub_norm:
            self.sub_norm = norm_of(r, H * D)
        if r.gate == "per head":
            self.gate_proj = nn.Linear(E, H, bias=False)
        elif r.gate == "per channel":
            self.gate_proj = nn.Linear(E, H * D, bias=False)
        if r.gate_bias:
            self.gate_bias = nn.Parameter(torch.zeros(H))
        if r.with_sinks:
            self.sinks = nn.Parameter(torch.zeros(H))

    def cache(self, max_len):
        """An empty cache that fits this layer."""
        return KVCache(self.r, max_len)

    def forward(
        self,
        x,
        *,
        cache=None,
        valid=None,
        chosen=None,
        mask=None,
        positions=None,
    ):
        """Of `x` `(B, T, E)`; `valid` `(B, S)` is False for pads so far."""
        r = self.r
        B, T, E = x.shape
        H, K, D = r.n_heads, r.n_kv_heads, r.head_dim
        Dv = D if r.v_head_dim == r.head_dim else r.v_head_dim
        if self.in_package:
            i, past = self.positions_of(x, cache, positions)
            i = i[:, None, :, None]
        else:
            past = 0 if cache is None else cache.length
            if r.shares is not None:
                past = past - T  # the other layer has stored these tokens
            n = torch.arange(past + T, device=x.device)  # all tokens so far
            at = n[None] if valid is None else (valid.cumsum(1) - 1).clamp(0)
            i = at[:, None, past:, None]  # (..., 1, T, 1)
        if r.rope_theta:
            if r.rope_kind == "longrope":
                if self.in_package:
                    longer = self.is_longer(x, cache, positions)
                else:
                    before, end = past, past + T
                    if valid is not None and end > r.rope_length:
                        # Of the longest row, without pads.
                        before = int(valid[:, :past].sum(1).max())
                        end = int(valid.sum(1).max())
                    if 0 < before <= r.rope_length < end:
                        raise ValueError(
                            "the text needs other angles: read it again"
                        )
                    longer = end > r.rope_length
                f = frequencies(r, x.device, longer)
            else:
                f = frequencies(r, x.device)
            angle = i * f  # of each pair: (..., 1, T, D / 2)

        if r.kv_rank:
            if r.q_rank is not None:
                c_q = self.q_a_layernorm(self.q_a_proj(x))
                q = self.q_b_proj(c_q)
            else:
                q = self.q_proj(x)
            q = q.view(B, T, H, D).transpose(1, 2)  # (B, H, T, D)
            q, q_pe = q.split((D - r.rope_dim, r.rope_dim), dim=-1)
            c = self.kv_a_proj_with_mqa(x)[:, None]
            c, k_pe = c.split((r.kv_rank, r.rope_dim), dim=-1)
            c = self.kv_a_layernorm(c)  # (B, 1, T, R)
            if r.latent_factor != 1:
                c = c * r.latent_factor
            up = self.kv_b_proj.weight.view(H, -1, r.kv_rank)
            w_uk, w_uv = up.split((D - r.rope_dim, r.v_head_dim), dim=1)
            if r.rope_theta:
                q_pe = rotate(r, q_pe, angle)
            q = torch.cat((q @ w_uk, q_pe), -1)  # (B, H, T, R + Dr)
            if r.rope_theta:
                k_pe = rotate(r, k_pe, angle)
            k = torch.cat((c, k_pe), -1)  # (B, 1, T, R + Dr)
            if r.index_own:
                k_index = self.indexer.key(x, angle)
        elif r.shares is not None:
            q = self.q_proj(x).view(B, T, H, D).transpose(1, 2)
            if r.norm == "RMS of a head":
                q = self.q_norm(q)
            if r.rope_theta:
                q = rotate(r, q, angle)
            k, v = cache.seen  # of the layer whose keys this one reads
        else:
            if r.fused == "per head":
                both = self.qkv_proj(x).view(B, T, K, H // K + 2, D)
                q, k, v = both.split((H // K, 1, 1), dim=3)
            elif r.fused:
                widths = H * D, K * D, K * D
                q, k, v = self.qkv_proj(x).split(widths, dim=-1)
            else:
                q = self.q_proj(x)
                k = self.k_proj(x)
                v = k if r.k_is_v else self.v_proj(x)
            if r.gate == "in q_proj":
                q, gate = q.view(B, T, H, 2 * D).chunk(2, dim=-1)
            if r.norm == "RMS of all heads":
                q, k = self.q_norm(q), self.k_norm(k)
            if r.clip:
                q, k = q.clamp(-r.clip, r.clip), k.clamp(-r.clip, r.clip)
                v = v.clamp(-r.clip, r.clip)
            if r.k_factor != 1:
                k = k * r.k_factor
            if r.v_factor != 1:
                v = v * r.v_factor
            q = q.reshape(B, T, H, D).transpose(1, 2)  # (B, H, T, D)
            k = k.reshape(B, T, K, D).transpose(1, 2)  # (B, K, T, D)
            v = v.reshape(B, T, K, Dv).transpose(1, 2)
            if r.norm not in (None, "RMS of all heads") and not r.norm_late:
                q, k = self.q_norm(q), self.k_norm(k)
            if r.v_norm:
                v = F.rms_norm(v, (r.v_head_dim,), eps=r.norm_eps)
            if r.rope_theta:
                q, k = rotate(r, q, angle), rotate(r, k, angle)
            if r.norm_late:
                q, k = self.q_norm(q), self.k_norm(k)
        if r.q_factor != 1:
            q = q * r.q_factor
        if r.q_growth:
            steps = i + r.q_growth_from if r.q_growth_from else i
            steps = (steps // r.q_growth_every).float()
            q = (q * (1 + r.q_growth * steps.log1p())).to(q.dtype)
        if r.q_power:
            steps = (i + 1).float() / r.q_growth_every
            q = (q * (1 + steps) ** r.q_power).to(q.dtype)

        if self.in_package:
            if r.kv_rank:
                v = None
                if r.index_own:
                    v = k_index
            stored = self.stored(q, k, v, mask, cache, positions)
            k, v, mask, j = stored
            if r.index_own:
                k_index, v = v, k[..., : r.kv_rank]
        else:
            if r.kv_rank:
                if cache is not None:
                    if r.index_own:
                        k, k_index = cache.append(k, k_index)
                    else:
                        (k,) = cache.append(k)
                v = k[..., : r.kv_rank]
            elif r.shares is None and cache is not None:
                k, v = cache.append(k, v)
                if r.is_shared:
                    cache.seen = k, v
            n = n[-k.shape[2] :] if r.window or r.chunk else n  # still there
            j = at[:, None, None, n]  # (..., 1, 1, S)
            mask = n <= n[-T:, None]  # (T, S); True = may attend
            if r.window:
                mask = mask & (j > i - r.window)
            if r.chunk:
                mask = mask & (j // r.chunk == i // r.chunk)
            if valid is not None:
                mask = mask & valid[:, None, None, n]  # (B, 1, T, S)
        if r.index_own:
            self.chosen = self.indexer(x, c_q, k_index, angle, mask)
            mask = self.chosen
        elif r.index_topk:
            mask = mask & chosen  # of the last layer that has an indexer

        if self.in_package and self.core is not None:
            heads = self.by_core(q, k, v, mask, i - j)
        elif r.softcap or r.with_sinks or r.alibi:
            rows = q.unflatten(1, (K, -1)).flatten(2, 3)  # that share k
            scores = (rows @ k.mT).view(B, H, T, k.shape[2]) * r.scale
            if r.alibi:
                m = slopes(H).to(x.device)[:, None, None]
                scores = scores - m * (i - j)
            if r.softcap:
                scores = r.softcap * torch.tanh(scores / r.softcap)
            scores = scores.masked_fill(~mask, -torch.inf)
            if r.with_sinks:
                sink = self.sinks[:, None, None].expand(B, H, T, 1)
                scores = torch.cat((scores, sink), dim=-1)  # (B, H, T, S + 1)
                weights = scores.softmax(dim=-1, dtype=torch.float32)[..., :-1]
            else:
                weights = scores.softmax(dim=-1, dtype=torch.float32)
                weights = weights.nan_to_num()  # a pad sees no key
            rows = weights.to(v.dtype).unflatten(1, (K, -1)).flatten(2, 3)
            heads = (rows @ v).view(B, H, T, v.shape[3])  # (B, H, T, Dv)
        else:
            heads = F.scaled_dot_product_attention(
                q, k, v, mask, scale=r.scale, enable_gqa=True
            )
        if r.kv_rank:
            heads = heads @ w_uv.mT  # (B, H, T, Dv)
        if r.head_norm:
            heads = F.rms_norm(heads, (r.v_head_dim,), eps=r.norm_eps)
        heads = heads.transpose(1, 2)  # (B, T, H, Dv)
        if r.gate in ("per head", "per channel"):
            gate = self.gate_proj(x).unflatten(-1, (H, -1))
            if r.gate_bias:
                gate = gate + self.gate_bias[:, None]
        if r.gate and r.gate_act == "sigmoid":
            heads = heads * gate.sigmoid()
        elif r.gate:
            heads = heads * F.softplus(gate)
        heads = heads.flatten(2)
        if r.sub_norm:
            heads = self.sub_norm(heads)
        return self.o_proj(heads)
