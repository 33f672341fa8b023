"""Gated DeltaNet, the recurrent layer of Qwen3.5. Needs only PyTorch 2.5+."""

import torch
import torch.nn.functional as F
from torch import nn


def delta_rule(q, k, v, decay, beta, state):
    """One token after the other. q, k (B, H, T, D), v (B, H, T, Dv).

    decay (a log, at most 0) and beta are (B, H, T); state is (B, H, D, Dv).
    """
    out = []
    for t in range(q.shape[2]):
        state = state * decay[:, :, t, None, None].exp()  # (B, H, D, Dv)
        known = k[:, :, t, None] @ state  # (B, H, 1, Dv); what is stored at k
        new = beta[:, :, t, None, None] * (v[:, :, t, None] - known)
        state = state + k[:, :, t, :, None] * new  # (B, H, D, Dv)
        out.append(q[:, :, t, None] @ state)  # after the write
    return torch.cat(out, dim=2), state


class State:
    """What a layer keeps of all earlier tokens. It cannot be cropped."""

    def __init__(self):
        self.length = 0
        self.inputs = self.state = None  # of the convolution, of the rule


class GatedDeltaNet(nn.Module):
    def __init__(self, d_model, n_heads, n_v_heads, D, Dv, width=4, eps=1e-6):
        super().__init__()
        if n_v_heads % n_heads:
            raise ValueError(f"{n_heads=} does not divide {n_v_heads=}")
        self.n_v_heads, self.D, self.Dv = n_v_heads, D, Dv
        self.widths = n_heads * D, n_heads * D, n_v_heads * Dv
        C = sum(self.widths)
        self.in_proj_qkv = nn.Linear(d_model, C, bias=False)
        self.in_proj_z = nn.Linear(d_model, n_v_heads * Dv, bias=False)
        self.in_proj_b = nn.Linear(d_model, n_v_heads, bias=False)
        self.in_proj_a = nn.Linear(d_model, n_v_heads, bias=False)
        self.conv1d = nn.Conv1d(C, C, width, groups=C, bias=False)
        self.A_log = nn.Parameter(torch.zeros(n_v_heads))
        self.dt_bias = nn.Parameter(torch.ones(n_v_heads))
        self.norm = nn.RMSNorm(Dv, eps=eps)
        self.out_proj = nn.Linear(n_v_heads * Dv, d_model, bias=False)

    def forward(self, x, cache=None, valid=None):
        """x (B, T, E) to (B, T, E); valid (B, S), True = no pad, all so far."""
        B, T, E = x.shape
        S = T if cache is None else cache.length + T
        if valid is not None and valid.shape != (B, S):
            raise ValueError(f"{(B, S)=}, {valid.shape=}")
        if x.numel() == 0:
            return x  # no row, or no token
        wide = torch.promote_types(x.dtype, torch.float32)  # of the state
        real = torch.ones(B, T, dtype=torch.bool, device=x.device)
        if valid is not None:
            real = valid[:, -T:]
        order = (~real).int().argsort(dim=1, stable=True)  # (B, T); pads last
        x = x.gather(1, order[..., None].expand(-1, -1, E))  # (B, T, E)
        n_real = real.sum(1, keepdim=True)  # (B, 1)
        real = torch.arange(T, device=x.device) < n_real  # (B, T)
        x = x.where(real[..., None], 0)  # (B, T, E); a pad may hold NaN

        mixed = self.in_proj_qkv(x).mT  # (B, C, T)
        C, past = sum(self.widths), self.conv1d.kernel_size[0] - 1
        inputs = x.new_zeros(B, C, past)
        if cache is not None and cache.inputs is not None:
            inputs = cache.inputs
        mixed = torch.cat((inputs, mixed), dim=-1)  # (B, C, past + T)
        last = n_real + torch.arange(past, device=x.device)  # (B, past)
        inputs = mixed.gather(2, last[:, None].expand(-1, C, -1))
        mixed = F.silu(self.conv1d(mixed)).mT  # (B, T, C); of 4 inputs each
        q, k, v = mixed.to(wide).split(self.widths, dim=-1)
        q = q.view(B, T, -1, self.D).transpose(1, 2)  # (B, K, T, D)
        k = k.view(B, T, -1, self.D).transpose(1, 2)
        v = v.view(B, T, -1, self.Dv).transpose(1, 2)  # of more heads
        q, k = (t * (t.square().sum(-1, True) + 1e-6).rsqrt() for t in (q, k))
        groups = self.n_v_heads // q.shape[1]
        q = q.repeat_interleave(groups, dim=1) * self.D**-0.5
        k = k.repeat_interleave(groups, dim=1)  # value head h reads h // groups
        beta = self.in_proj_b(x).sigmoid() * real[..., None]
        step = F.softplus(self.in_proj_a(x).to(wide) + self.dt_bias)
        rate = -self.A_log.to(wide).exp()  # (H,)
        decay = rate * step * real[..., None]  # a pad leaves 1
        state = v.new_zeros(B, self.n_v_heads, self.D, self.Dv)
        if cache is not None and cache.state is not None:
            state = cache.state
        heads, state = delta_rule(q, k, v, decay.mT, beta.mT, state)
        if cache is not None:
            cache.inputs, cache.state = inputs, state
            cache.length = S
        z = self.in_proj_z(x).view(B, T, -1, self.Dv)
        heads = heads.to(x.dtype)  # (B, H, T, Dv)
        heads = self.norm(heads.transpose(1, 2)) * F.silu(z)
        out = self.out_proj(heads.reshape(B, T, -1))  # (B, T, E)
        back = order.argsort(dim=1)[..., None].expand(-1, -1, E)
        return out.gather(1, back)  # (B, T, E)
