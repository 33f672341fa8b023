"""Gated DeltaNet: a recurrent layer, whose state has a fixed size."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache
from attnref.caches.state import InOrder
from attnref.core.checks import check_input, check_sizes
from attnref.core.heads import RMSNorm, merge_heads, split_heads
from attnref.core.masks import Rule
from attnref.core.recurrence import units


class GatedDeltaNet(nn.Module):
    """Gated DeltaNet of Qwen3-Next and Qwen3.5: each head writes to a matrix.

    The state of each of the `n_v_heads` value heads maps keys of width
    `key_dim` to values of width `value_dim`. `n_heads` heads of queries and
    keys are shared by groups of them. A token replaces a share of what is
    stored at its key, at most `beta_max`: 1, or 2 in Olmo-Hybrid, which may
    turn the sign. A convolution mixes each channel with its last `conv_kernel`
    inputs.
    Parameters are named as in Hugging Face checkpoints of Qwen3.5.

    Examples:
        >>> layer = GatedDeltaNet(
        ...     d_model=64, n_heads=2, n_v_heads=4, key_dim=8, value_dim=12
        ... )
        >>> layer(torch.randn(2, 5, 64)).shape
        torch.Size([2, 5, 64])
    """

    needs = "state"

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        n_v_heads: int,
        key_dim: int,
        value_dim: int,
        conv_kernel: int = 4,
        beta_max: float = 1.0,
        eps: float = 1e-6,
        causal: bool | Rule = True,
    ) -> None:
        super().__init__()
        self.causal = causal
        check_sizes(
            d_model=d_model,
            n_heads=n_heads,
            n_v_heads=n_v_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            conv_kernel=conv_kernel,
        )
        if not 0 < beta_max <= 2:  # beyond, a state grows without bound
            raise ValueError(f"{beta_max=} is not from 0 to 2")
        if n_v_heads % n_heads:
            raise ValueError(f"{n_heads=} does not divide {n_v_heads=}")
        self.d_model, self.n_heads, self.n_v_heads = d_model, n_heads, n_v_heads
        self.key_dim, self.value_dim = key_dim, value_dim
        self.beta_max = beta_max
        inner = n_v_heads * value_dim
        C = 2 * n_heads * key_dim + inner
        self.in_proj_qkv = nn.Linear(d_model, C, bias=False)
        self.in_proj_z = nn.Linear(d_model, inner, bias=False)
        self.in_proj_b = nn.Linear(d_model, n_v_heads, bias=False)
        self.in_proj_a = nn.Linear(d_model, n_v_heads, bias=False)
        self.conv1d = nn.Conv1d(C, C, conv_kernel, groups=C, bias=False)
        self.A_log = nn.Parameter(torch.empty(n_v_heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(torch.ones(n_v_heads))
        self.norm = RMSNorm(value_dim, eps=eps)
        self.out_proj = nn.Linear(inner, d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Read `x` `(B, T, E)` in order; returns `(B, T, E)`.

        `mask` is the padding mask of all tokens so far, `(B, 1, 1, S)`, True =
        a real token; a pad changes neither the state nor what other tokens
        get. `positions` are accepted because other layers of a model read
        them, and change nothing.
        """
        check_input("x", x.shape, self.d_model)
        if x.shape[1] == 0:
            return x
        new = InOrder(self, x, cache=cache, mask=mask, positions=positions)
        x, wide, B = new.x, new.wide, len(x)
        D, Dv, H = self.key_dim, self.value_dim, self.n_v_heads
        mixed = self.in_proj_qkv(x)  # (B, T, C)
        C, past = mixed.shape[2], self.conv1d.kernel_size[0] - 1
        state, inputs = new.state(
            ((B, H, D, Dv), wide), ((B, C, past), mixed.dtype)
        )
        mixed, inputs = new.convolved(self.conv1d, mixed, inputs)
        mixed = F.silu(mixed).to(wide)  # (B, T, C)
        keys = self.n_heads * D
        q, k, v = mixed.tensor_split((keys, 2 * keys), dim=-1)
        q, k = (units(split_heads(t, self.n_heads)) for t in (q, k))
        v = split_heads(v, H)  # (B, H, T, Dv)
        beta = self.beta_max * self.in_proj_b(x).to(wide).sigmoid().mT
        step = F.softplus(self.in_proj_a(x).to(wide) + self.dt_bias)
        decay = (-self.A_log.to(wide).exp() * step).mT  # (B, H, T)
        heads, state = new.read(q * D**-0.5, k, v, decay, state, beta=beta)
        z = split_heads(self.in_proj_z(x), H)  # (B, H, T, Dv)
        heads = self.norm(heads.to(z.dtype)) * F.silu(z)  # (B, H, T, Dv)
        return new.end(self.out_proj(merge_heads(heads)), state, inputs)
