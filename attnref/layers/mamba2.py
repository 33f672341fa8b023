"""Mamba-2: a state that each token adds to, and that each token scales."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache
from attnref.caches.state import InOrder
from attnref.core.checks import check_input, check_sizes
from attnref.core.heads import RMSNorm, merge_heads, split_heads
from attnref.core.masks import Rule


class Mamba2(nn.Module):
    """Mamba-2 of Nemotron-H, Granite 4, Bamba: attention without softmax.

    Keys of width `key_dim`, the `state_size` of a config, write values of width
    `value_dim`, its `head_dim`, into a state per head, and queries read it. The
    paper calls keys B and queries C; `n_heads / n_groups` heads share both.
    Each token chooses a step, which scales what it writes and how far the state
    decays; `step_limits` bound it. A convolution mixes each channel with its
    last `conv_kernel` inputs. Parameters are named as in Hugging Face
    checkpoints.

    Examples:
        >>> layer = Mamba2(
        ...     d_model=64, n_heads=8, n_groups=2, value_dim=16, key_dim=12
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
        n_groups: int,
        value_dim: int,
        key_dim: int,
        conv_kernel: int = 4,
        bias: bool = False,
        conv_bias: bool = True,
        step_limits: tuple[float, float] = (0.0, float("inf")),
        eps: float = 1e-5,
        causal: bool | Rule = True,
    ) -> None:
        super().__init__()
        self.causal = causal
        check_sizes(
            d_model=d_model,
            n_heads=n_heads,
            n_groups=n_groups,
            value_dim=value_dim,
            key_dim=key_dim,
            conv_kernel=conv_kernel,
        )
        if n_heads % n_groups:
            raise ValueError(f"{n_groups=} does not divide {n_heads=}")
        self.d_model, self.n_heads, self.n_groups = d_model, n_heads, n_groups
        self.value_dim, self.key_dim = value_dim, key_dim
        self.step_limits = step_limits
        inner = n_heads * value_dim
        C = inner + 2 * n_groups * key_dim
        self.in_proj = nn.Linear(d_model, inner + C + n_heads, bias=bias)
        self.conv1d = nn.Conv1d(C, C, conv_kernel, groups=C, bias=conv_bias)
        self.A_log = nn.Parameter(torch.arange(1.0, n_heads + 1).log())
        self.dt_bias = nn.Parameter(torch.ones(n_heads))
        self.D = nn.Parameter(torch.ones(n_heads))
        self.norm = RMSNorm(inner, eps=eps)  # each group by itself
        self.out_proj = nn.Linear(inner, d_model, bias=bias)

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
        B, H, K, D = len(x), self.n_heads, self.n_groups, self.key_dim
        C, past = self.conv1d.weight.shape[0], self.conv1d.kernel_size[0] - 1
        inner = H * self.value_dim
        gate, mixed, step = self.in_proj(x).split((inner, C, H), dim=-1)
        state, inputs = new.state(
            ((B, H, D, self.value_dim), wide), ((B, C, past), mixed.dtype)
        )
        mixed, inputs = new.convolved(self.conv1d, mixed, inputs)
        mixed = F.silu(mixed).to(wide)  # (B, T, C)
        v, k, q = mixed.tensor_split((inner, inner + K * D), dim=-1)
        v = split_heads(v, H)  # (B, H, T, Dv)
        q, k = split_heads(q, K), split_heads(k, K)
        step = F.softplus(step.to(wide) + self.dt_bias).clamp(*self.step_limits)
        step = step.mT  # (B, H, T)
        decay = -self.A_log.to(wide).exp()[:, None] * step  # (B, H, T)
        written = step[..., None] * v  # (B, H, T, Dv)
        heads, state = new.read(q, k, written, decay, state)
        heads = heads + self.D.to(wide)[:, None, None] * v  # (B, H, T, Dv)
        out = merge_heads(heads) * F.silu(gate.to(wide))
        # A norm over each group of heads.
        out = out.view(*out.shape[:2], K, inner // K)
        out = F.rms_norm(out, out.shape[-1:], eps=self.norm.eps).flatten(-2)
        out = (out * self.norm.weight).to(gate.dtype)  # (B, T, H * Dv)
        return new.end(self.out_proj(out), state, inputs)
