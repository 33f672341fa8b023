"""Lightning attention of MiniMax-01. Needs only PyTorch 2.5+."""

import torch
import torch.nn.functional as F
from torch import nn


def linear_attention(q, k, v, decay, state):
    """One token after the other. q, k, v (B, H, T, D), state (B, H, D, D).

    decay (a log, at most 0) is (B, H, T). No softmax, and no scale.
    """
    out = []
    for t in range(q.shape[2]):
        state = state * decay[:, :, t, None, None].exp()  # (B, H, D, D)
        state = state + k[:, :, t, :, None] * v[:, :, t, None]
        out.append(q[:, :, t, None] @ state)  # after the write
    return torch.cat(out, dim=2), state


class LightningState:
    """What a layer keeps of all earlier tokens. It cannot be cropped."""

    def __init__(self):
        self.length, self.state = 0, None


class LightningAttention(nn.Module):
    """Layer layer_idx, from 0, of n_layers: the later, the slower it decays."""

    def __init__(self, d_model, n_heads, D, layer_idx=0, n_layers=1, eps=1e-6):
        super().__init__()
        self.n_heads, self.D = n_heads, D
        self.rate = 1 - layer_idx / (n_layers - 1 + 1e-5) + 1e-5
        self.qkv_proj = nn.Linear(d_model, 3 * n_heads * D, bias=False)
        self.output_gate = nn.Linear(d_model, n_heads * D, bias=False)
        self.norm = nn.RMSNorm(n_heads * D, eps=eps)  # over all heads
        self.out_proj = nn.Linear(n_heads * D, d_model, bias=False)

    def forward(self, x, cache=None, valid=None):
        """x (B, T, E) to (B, T, E); valid (B, S), True = no pad, all so far."""
        B, T, E = x.shape
        S = T if cache is None else cache.length + T
        if valid is not None and valid.shape != (B, S):
            raise ValueError(f"{(B, S)=}, {valid.shape=}")
        if x.numel() == 0:
            return x  # no row, or no token
        wide = torch.promote_types(x.dtype, torch.float32)  # of the state
        H, D = self.n_heads, self.D
        real = x.new_ones(B, 1, T)
        if valid is not None:
            real = valid[:, None, -T:].to(x.dtype)  # (B, 1, T)
            x = x.where(valid[:, -T:, None], 0)  # (B, T, E); may hold NaN
        qkv = F.silu(self.qkv_proj(x).to(wide))  # of all three
        qkv = qkv.view(B, T, H, 3 * D).transpose(1, 2)  # (B, H, T, 3 * D)
        q, k, v = qkv.chunk(3, dim=-1)  # each head has its own three
        k = k * real[..., None]  # (B, H, T, D); a pad writes nothing
        slopes = [self.rate * 2 ** (-8 * (h + 1) / H) for h in range(H)]
        decay = -x.new_tensor(slopes, dtype=wide)[:, None]  # (H, 1)
        decay = decay * real  # (B, H, T); a pad: 0
        state = k.new_zeros(B, H, D, D)
        if cache is not None and cache.state is not None:
            state = cache.state
        heads, state = linear_attention(q, k, v, decay, state)
        if cache is not None:
            cache.state = state
            cache.length = S
        heads = heads.transpose(1, 2).reshape(B, T, H * D)
        heads = F.rms_norm(heads, heads.shape[-1:], eps=self.norm.eps)
        heads = (heads * self.norm.weight).to(x.dtype)  # (B, T, H * D)
        return self.out_proj(self.output_gate(x).sigmoid() * heads)
