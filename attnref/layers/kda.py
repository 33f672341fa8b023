"""Kimi Delta Attention: a gated delta rule with a decay per channel."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache
from attnref.caches.state import InOrder
from attnref.core.checks import check_input, check_layer, check_sizes
from attnref.core.heads import RMSNorm, merge_heads, split_heads
from attnref.core.masks import Rule
from attnref.core.recurrence import units


class ForgetGate(nn.Module):
    """How each channel of the keys decays: logarithms, at most 0."""

    def __init__(
        self, d_model: int, n_heads: int, head_dim: int, bound: float | None
    ) -> None:
        super().__init__()
        self.bound = bound
        inner = n_heads * head_dim
        self.f_a_proj = nn.Linear(d_model, head_dim, bias=False)
        self.f_b_proj = nn.Linear(head_dim, inner, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(inner))
        rates = torch.empty(1, 1, n_heads, 1).uniform_(1, 16)
        self.A_log = nn.Parameter(rates.log())

    def forward(self, x: Tensor, wide: torch.dtype) -> Tensor:
        """`x` `(B, T, E)` to `(B, H, T, D)`, in the dtype of the state."""
        step = self.f_b_proj(self.f_a_proj(x)).to(wide) + self.dt_bias
        step = split_heads(step, self.A_log.shape[2])
        rate = self.A_log.to(wide).exp().transpose(1, 2)  # (1, H, 1, 1)
        if self.bound is not None:
            return self.bound * (rate * step).sigmoid()
        return -rate * F.softplus(step)


class KimiDeltaAttention(nn.Module):
    """Kimi Delta Attention (KDA) of Kimi Linear: each channel decays by itself.

    The state of each of the `n_heads` heads maps keys to values, both of width
    `head_dim`, `d_model / n_heads` unless it is given, and each channel of the
    keys decays by itself. `decay_bound` keeps the logarithms of the decays
    above it, as `kda_lower_bound` of a config. `full_rank_gate` computes the
    output gate by one matrix, `g_proj`; with both, this is the layer of Kimi
    K3. A convolution mixes each channel with its last `conv_kernel` inputs.
    Parameters are named as in transformers, which joins the three convolutions
    of a checkpoint.

    Examples:
        >>> layer = KimiDeltaAttention(d_model=64, n_heads=4, head_dim=8)
        >>> layer(torch.randn(2, 5, 64)).shape
        torch.Size([2, 5, 64])
    """

    needs = "state"

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        head_dim: int | None = None,
        conv_kernel: int = 4,
        decay_bound: float | None = None,
        full_rank_gate: bool = False,
        eps: float = 1e-5,
        causal: bool | Rule = True,
    ) -> None:
        super().__init__()
        self.causal = causal
        check_sizes(conv_kernel=conv_kernel)
        if decay_bound is not None and not decay_bound < 0:
            raise ValueError(f"{decay_bound=} must be below 0")
        head_dim = check_layer(
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=n_heads,
            head_dim=head_dim,
            dropout=0.0,
        )
        self.d_model, self.n_heads, self.head_dim = d_model, n_heads, head_dim
        inner = n_heads * head_dim
        self.q_proj = nn.Linear(d_model, inner, bias=False)
        self.k_proj = nn.Linear(d_model, inner, bias=False)
        self.v_proj = nn.Linear(d_model, inner, bias=False)
        C = 3 * inner
        self.conv1d = nn.Conv1d(C, C, conv_kernel, groups=C, bias=False)
        self.forget_gate = ForgetGate(d_model, n_heads, head_dim, decay_bound)
        self.b_proj = nn.Linear(d_model, n_heads, bias=False)
        self.full_rank_gate = full_rank_gate
        if full_rank_gate:
            self.g_proj = nn.Linear(d_model, inner, bias=False)
        else:
            self.g_a_proj = nn.Linear(d_model, head_dim, bias=False)
            self.g_b_proj = nn.Linear(head_dim, inner, bias=False)
        self.o_norm = RMSNorm(head_dim, eps=eps)
        self.o_proj = nn.Linear(inner, d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Read `x` `(B, T, E)` in order; returns `(B, T, E)`.

        `mask`, `cache` and `positions` are as in `GatedDeltaNet`.
        """
        check_input("x", x.shape, self.d_model)
        if x.shape[1] == 0:
            return x
        new = InOrder(self, x, cache=cache, mask=mask, positions=positions)
        x, wide = new.x, new.wide
        B, H, D = len(x), self.n_heads, self.head_dim
        projections = self.q_proj, self.k_proj, self.v_proj
        mixed = torch.cat([project(x) for project in projections], dim=-1)
        C, past = mixed.shape[2], self.conv1d.kernel_size[0] - 1
        state, inputs = new.state(
            ((B, H, D, D), wide), ((B, C, past), mixed.dtype)
        )
        mixed, inputs = new.convolved(self.conv1d, mixed, inputs)
        mixed = F.silu(mixed).to(wide)  # (B, T, 3 * H * D)
        q, k, v = (split_heads(t, H) for t in mixed.chunk(3, dim=-1))
        q, k = units(q) * D**-0.5, units(k)  # (B, H, T, D)
        beta = self.b_proj(x).to(wide).sigmoid().mT  # (B, H, T)
        decay = self.forget_gate(x, wide)  # (B, H, T, D)
        heads, state = new.read(q, k, v, decay, state, beta=beta)
        full = self.full_rank_gate
        gate = self.g_proj(x) if full else self.g_b_proj(self.g_a_proj(x))
        gate = gate.sigmoid()  # (B, T, H * D)
        heads = merge_heads(self.o_norm(heads.to(gate.dtype)))
        return new.end(self.o_proj(heads * gate), state, inputs)
