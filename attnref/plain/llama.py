"""A whole Llama: weights of transformers load. Needs only PyTorch 2.5+.

RoPE is not rescaled: Llama 2 and 3, not 3.1.
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


class SwiGLU(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias=False)
        self.up_proj = nn.Linear(d_model, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, d_model, d_ff, eps, **attention):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(d_model, eps=eps)
        self.self_attn = GQA(d_model, **attention)
        self.post_attention_layernorm = nn.RMSNorm(d_model, eps=eps)
        self.mlp = SwiGLU(d_model, d_ff)

    def forward(self, x, cache=None, valid=None):
        x = x + self.self_attn(self.input_layernorm(x), cache, valid)
        return x + self.mlp(self.post_attention_layernorm(x))  # (B, T, E)


class Llama(nn.Module):
    def __init__(self, vocab, n_layers, d_model, d_ff, eps=1e-5, **attention):
        super().__init__()
        layers = [
            Block(d_model, d_ff, eps, **attention) for _ in range(n_layers)
        ]
        self.model = nn.ModuleDict()
        self.model["embed_tokens"] = nn.Embedding(vocab, d_model)
        self.model["layers"] = nn.ModuleList(layers)
        self.model["norm"] = nn.RMSNorm(d_model, eps=eps)
        self.lm_head = nn.Linear(d_model, vocab, bias=False)

    def forward(self, tokens, caches=None, valid=None):
        """Tokens (B, T) to logits (B, T, vocab)."""
        x = self.model["embed_tokens"](tokens)  # (B, T, E)
        for i, block in enumerate(self.model["layers"]):
            x = block(x, caches[i] if caches else None, valid)  # (B, T, E)
        return self.lm_head(self.model["norm"](x))

    @torch.no_grad()
    def generate(self, tokens, steps, valid=None):
        """Tokens (B, T), padded on the left, and the likeliest next ones."""
        room = tokens.shape[1] + steps
        caches, new = [KVCache(room) for _ in self.model["layers"]], tokens
        for _ in range(steps):  # reads the prompt, then one token at a time
            logits = self(new, caches, valid)[:, -1]
            new = logits.argmax(dim=-1, keepdim=True)  # (B, 1)
            tokens = torch.cat((tokens, new), dim=1)
            if valid is not None:
                valid = F.pad(valid, (0, 1), value=True)
        return tokens
