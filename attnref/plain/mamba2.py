"""Mamba-2, the recurrent layer of Nemotron-H. Needs only PyTorch 2.5+."""

import torch
import torch.nn.functional as F
from torch import nn


def selective_scan(q, k, v, decay, state):
    """One token after the other. q, k (B, H, T, D), v (B, H, T, Dv).

    decay (a log, at most 0) is (B, H, T); state is (B, H, D, Dv). The paper
    calls q C, k B, and v the step times x.
    """
    out = []
    for t in range(q.shape[2]):
        state = state * decay[:, :, t, None, None].exp()  # (B, H, D, Dv)
        # Added to what is stored at k: no delta rule corrects it.
        state = state + k[:, :, t, :, None] * v[:, :, t, None]
        out.append(q[:, :, t, None] @ state)  # after the write
    return torch.cat(out, dim=2), state


class State:
    """What a layer keeps of all earlier tokens. It cannot be cropped."""

    def __init__(self):
        self.length = 0
        self.inputs = self.state = None  # of the convolution, of the rule


class Mamba2(nn.Module):
    """n_groups of heads share keys and queries of width D; values have Dv."""

    def __init__(self, d_model, n_heads, n_groups, D, Dv, width=4, eps=1e-5):
        super().__init__()
        if n_heads % n_groups:
            raise ValueError(f"{n_groups=} does not divide {n_heads=}")
        self.n_heads, self.n_groups, inner = n_heads, n_groups, n_heads * Dv
        self.widths = inner, n_groups * D, n_groups * D
        C = sum(self.widths)
        self.in_proj = nn.Linear(d_model, inner + C + n_heads, bias=False)
        self.conv1d = nn.Conv1d(C, C, width, groups=C)
        self.A_log = nn.Parameter(torch.zeros(n_heads))
        self.dt_bias = nn.Parameter(torch.ones(n_heads))
        self.D = nn.Parameter(torch.ones(n_heads))  # of x, past the state
        self.norm = nn.RMSNorm(inner, eps=eps)  # of each group
        self.out_proj = nn.Linear(inner, d_model, bias=False)

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

        C, past = sum(self.widths), self.conv1d.kernel_size[0] - 1
        sizes = self.widths[0], C, self.n_heads
        gate, mixed, step = self.in_proj(x).split(sizes, dim=-1)
        inputs = x.new_zeros(B, C, past)
        if cache is not None and cache.inputs is not None:
            inputs = cache.inputs
        mixed = torch.cat((inputs, mixed.mT), dim=-1)  # (B, C, past + T)
        last = n_real + torch.arange(past, device=x.device)  # (B, past)
        inputs = mixed.gather(2, last[:, None].expand(-1, C, -1))
        mixed = F.silu(self.conv1d(mixed)).mT  # (B, T, C); of 4 inputs each
        x, k, q = mixed.to(wide).split(self.widths, dim=-1)
        x = x.view(B, T, self.n_heads, -1).transpose(1, 2)  # (B, H, T, Dv)
        q, k = (t.view(B, T, self.n_groups, -1).transpose(1, 2) for t in (q, k))
        groups = self.n_heads // self.n_groups
        q = q.repeat_interleave(groups, dim=1)  # (B, H, T, D)
        k = k.repeat_interleave(groups, dim=1)  # head h reads h // groups
        step = F.softplus(step.to(wide) + self.dt_bias)
        step = (step * real[..., None]).mT  # (B, H, T); a pad: 0
        decay = -self.A_log.to(wide).exp()[:, None] * step  # (B, H, T)
        state = x.new_zeros(B, self.n_heads, k.shape[-1], x.shape[-1])
        if cache is not None and cache.state is not None:
            state = cache.state
        v = step[..., None] * x  # (B, H, T, Dv); a pad writes nothing
        heads, state = selective_scan(q, k, v, decay, state)
        if cache is not None:
            cache.inputs, cache.state = inputs, state
            cache.length = S
        heads = heads + self.D[:, None, None] * x  # (B, H, T, Dv)
        heads = heads.transpose(1, 2).reshape(B, T, -1)  # (B, T, H * Dv)
        heads = heads * F.silu(gate.to(wide))
        heads = heads.unflatten(-1, (self.n_groups, -1))  # normed by group
        heads = F.rms_norm(heads, heads.shape[-1:], eps=self.norm.eps)
        heads = heads.flatten(-2) * self.norm.weight  # (B, T, H * Dv)
        out = self.out_proj(heads.to(gate.dtype))  # (B, T, E)
        back = order.argsort(dim=1)[..., None].expand(-1, -1, E)
        return out.gather(1, back)  # (B, T, E)
