"""Kimi Delta Attention (KDA) of Kimi Linear and K3. Needs only PyTorch 2.5+.

K3 has bound=-5.0 and full_rank=True.
"""

import torch
import torch.nn.functional as F
from torch import nn


def kda_rule(q, k, v, decay, beta, state):
    """One token after the other. q, k, v (B, H, T, D), beta (B, H, T).

    decay (a log, at most 0) is (B, H, T, D); state is (B, H, D, D).
    """
    out = []
    for t in range(q.shape[2]):
        state = state * decay[:, :, t, :, None].exp()  # each channel its own
        known = k[:, :, t, None] @ state  # (B, H, 1, D); what is stored at k
        new = beta[:, :, t, None, None] * (v[:, :, t, None] - known)
        state = state + k[:, :, t, :, None] * new  # (B, H, D, D)
        out.append(q[:, :, t, None] @ state)  # after the write
    return torch.cat(out, dim=2), state


class State:
    """What a layer keeps of all earlier tokens. It cannot be cropped."""

    def __init__(self):
        self.length = 0
        self.inputs = self.state = None  # of the convolution, of the rule


class ForgetGate(nn.Module):
    def __init__(self, d_model, n_heads, D, bound=None):
        super().__init__()
        self.bound = bound
        self.f_a_proj = nn.Linear(d_model, D, bias=False)
        self.f_b_proj = nn.Linear(D, n_heads * D, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(n_heads * D))
        self.A_log = nn.Parameter(torch.zeros(1, 1, n_heads, 1))

    def forward(self, x, wide):
        step = self.f_b_proj(self.f_a_proj(x)).to(wide) + self.dt_bias
        step = step.unflatten(-1, (self.A_log.shape[2], -1))
        rate = self.A_log.to(wide).exp()  # (1, 1, H, 1)
        if self.bound:  # not the other formula, cut off at the bound
            return self.bound * (rate * step).sigmoid()  # (B, T, H, D)
        return -rate * F.softplus(step)  # (B, T, H, D)


class KDA(nn.Module):
    def __init__(
        self,
        d_model,
        n_heads,
        D,
        width=4,
        eps=1e-5,
        bound=None,
        full_rank=False,
    ):
        super().__init__()
        self.n_heads, self.D, inner = n_heads, D, n_heads * D
        self.full_rank = full_rank
        self.q_proj = nn.Linear(d_model, inner, bias=False)
        self.k_proj = nn.Linear(d_model, inner, bias=False)
        self.v_proj = nn.Linear(d_model, inner, bias=False)
        C = 3 * inner
        self.conv1d = nn.Conv1d(C, C, width, groups=C, bias=False)
        self.forget_gate = ForgetGate(d_model, n_heads, D, bound)
        self.b_proj = nn.Linear(d_model, n_heads, bias=False)
        if full_rank:
            self.g_proj = nn.Linear(d_model, inner, bias=False)
        else:
            self.g_a_proj = nn.Linear(d_model, D, bias=False)
            self.g_b_proj = nn.Linear(D, inner, bias=False)
        self.o_norm = nn.RMSNorm(D, eps=eps)
        self.o_proj = nn.Linear(inner, d_model, bias=False)

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

        mixed = [self.q_proj(x), self.k_proj(x), self.v_proj(x)]
        mixed = torch.cat(mixed, dim=-1).mT  # (B, C, T)
        C, past = mixed.shape[1], self.conv1d.kernel_size[0] - 1
        inputs = x.new_zeros(B, C, past)
        if cache is not None and cache.inputs is not None:
            inputs = cache.inputs
        mixed = torch.cat((inputs, mixed), dim=-1)  # (B, C, past + T)
        last = n_real + torch.arange(past, device=x.device)  # (B, past)
        inputs = mixed.gather(2, last[:, None].expand(-1, C, -1))
        mixed = F.silu(self.conv1d(mixed)).mT  # (B, T, C); of 4 inputs each
        mixed = mixed.to(wide).view(B, T, 3, -1, self.D)  # (B, T, 3, H, D)
        q, k, v = mixed.permute(2, 0, 3, 1, 4)
        q, k = (t * (t.square().sum(-1, True) + 1e-6).rsqrt() for t in (q, k))
        beta = (self.b_proj(x).sigmoid() * real[..., None]).mT  # (B, H, T)
        decay = self.forget_gate(x, wide) * real[..., None, None]
        decay = decay.transpose(1, 2)  # (B, H, T, D)
        state = q.new_zeros(B, self.n_heads, self.D, self.D)
        if cache is not None and cache.state is not None:
            state = cache.state
        heads, state = kda_rule(q * self.D**-0.5, k, v, decay, beta, state)
        if cache is not None:
            cache.inputs, cache.state = inputs, state
            cache.length = S
        full = self.full_rank
        gate = self.g_proj(x) if full else self.g_b_proj(self.g_a_proj(x))
        gate = gate.view(B, T, -1, self.D)
        heads = heads.to(x.dtype)  # (B, H, T, D)
        heads = self.o_norm(heads.transpose(1, 2)) * gate.sigmoid()
        out = self.o_proj(heads.reshape(B, T, -1))  # (B, T, E)
        back = order.argsort(dim=1)[..., None].expand(-1, -1, E)
        return out.gather(1, back)  # (B, T, E)
