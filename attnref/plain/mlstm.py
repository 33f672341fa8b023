"""mLSTM, the matrix memory of xLSTM. Needs only PyTorch 2.5+."""

import torch
import torch.nn.functional as F
from torch import nn


def capped(x, cap=15.0):
    """Keep x softly between -cap and cap: no sum of its exponentials overflows.

    The paper, which caps later, keeps a running maximum instead.
    """
    return cap * (x / cap).tanh()


def matrix_memory(q, k, v, decay, state):
    """One token after the other. q, k (B, H, T, D), v (B, H, T, Dv).

    decay (a log, at most 0) is (B, H, T); state is (B, H, D, Dv + 1). Its last
    column is the sum of all keys: what is read there divides what is read in
    the others.
    """
    v = F.pad(v, (0, 1), value=1)  # (B, H, T, Dv + 1)
    out = []
    for t in range(q.shape[2]):
        state = state * decay[:, :, t, None, None].exp()  # (B, H, D, Dv + 1)
        state = state + k[:, :, t, :, None] * v[:, :, t, None]
        out.append(q[:, :, t, None] @ state)  # after the write
    out = torch.cat(out, dim=2)  # (B, H, T, Dv + 1)
    return out[..., :-1] / out[..., -1:].abs().clamp(min=1), state


class MLSTMState:
    """What a layer keeps of all earlier tokens. It cannot be cropped."""

    def __init__(self):
        self.length, self.state = 0, None


class MLSTM(nn.Module):
    """Keys have width D, values Dv; the input gate is at most e^15."""

    def __init__(self, d_model, n_heads, D, Dv, eps=1e-6):
        super().__init__()
        self.n_heads = n_heads
        self.q = nn.Linear(d_model, n_heads * D, bias=False)
        self.k = nn.Linear(d_model, n_heads * D, bias=False)
        self.v = nn.Linear(d_model, n_heads * Dv, bias=False)
        self.ogate_preact = nn.Linear(d_model, n_heads * Dv, bias=False)
        self.igate_preact = nn.Linear(d_model, n_heads)
        self.fgate_preact = nn.Linear(d_model, n_heads)
        self.multihead_norm = nn.LayerNorm(n_heads * Dv, eps, bias=False)
        self.out_proj = nn.Linear(n_heads * Dv, d_model, bias=False)

    def forward(self, x, cache=None, valid=None):
        """x (B, T, E) to (B, T, E); valid (B, S), True = no pad, all so far."""
        B, T, E = x.shape
        S = T if cache is None else cache.length + T
        if valid is not None and valid.shape != (B, S):
            raise ValueError(f"{(B, S)=}, {valid.shape=}")
        if x.numel() == 0:
            return x  # no row, or no token
        wide = torch.promote_types(x.dtype, torch.float32)  # of the state
        H = self.n_heads
        real = x.new_ones(B, 1, T)
        if valid is not None:
            real = valid[:, None, -T:].to(x.dtype)  # (B, 1, T)
            x = x.where(valid[:, -T:, None], 0)  # (B, T, E); may hold NaN
        projected = (self.q(x), self.k(x), self.v(x))
        q, k, v = (
            t.to(wide).view(B, T, H, -1).transpose(1, 2) for t in projected
        )  # q, k (B, H, T, D), v (B, H, T, Dv)
        q = q * q.shape[-1] ** -0.5  # (B, H, T, D)
        write = capped(self.igate_preact(x).to(wide)).mT  # (B, H, T); a log
        k = k * (write.exp() * real)[..., None]  # a pad writes nothing
        decay = F.logsigmoid(capped(self.fgate_preact(x).to(wide)))
        decay = decay.mT * real  # (B, H, T); a pad: 0
        state = k.new_zeros(B, H, k.shape[-1], v.shape[-1] + 1)
        if cache is not None and cache.state is not None:
            state = cache.state
        heads, state = matrix_memory(q, k, v, decay, state)
        if cache is not None:
            cache.state, cache.length = state, S
        norm = self.multihead_norm
        heads = F.layer_norm(heads, heads.shape[-1:], eps=norm.eps)  # each head
        heads = heads.transpose(1, 2).reshape(B, T, -1)  # (B, T, H * Dv)
        heads = (heads * norm.weight).to(x.dtype)
        return self.out_proj(self.ogate_preact(x).sigmoid() * heads)
