"""Lightning attention: a recurrent layer without the delta rule."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache
from attnref.caches.state import InOrder
from attnref.core.checks import (
    check_counts,
    check_input,
    check_layer,
    check_sizes,
)
from attnref.core.heads import RMSNorm, merge_heads, split_heads
from attnref.core.masks import Rule


class LightningAttention(nn.Module):
    """Lightning attention of MiniMax-01: each head has a decaying matrix.

    Head `h` of `n_heads`, from 0, decays by `e^-s` per token, whatever it
    reads: `s` is `2^(-8 (h + 1) / n_heads)` in the first layer of a model and
    falls to almost 0 in the last. This one is layer `layer_idx`, from 0, of the
    model's `n_layers` of all kinds. `head_dim` is `d_model / n_heads` unless
    given.
    Parameters are named as in Hugging Face's MiniMax, whose buffers follow from
    these sizes and are not stored.

    Examples:
        >>> layer = LightningAttention(d_model=64, n_heads=4, head_dim=8)
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
        layer_idx: int = 0,
        n_layers: int = 1,
        eps: float = 1e-6,
        causal: bool | Rule = True,
    ) -> None:
        super().__init__()
        self.causal = causal
        head_dim = check_layer(
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=n_heads,
            head_dim=head_dim,
            dropout=0.0,
        )
        check_counts(layer_idx=layer_idx)
        check_sizes(n_layers=n_layers)
        if layer_idx >= n_layers:
            raise ValueError(f"{layer_idx=} is not below {n_layers=}")
        self.d_model, self.n_heads, self.head_dim = d_model, n_heads, head_dim
        self.rate = 1 - layer_idx / (n_layers - 1 + 1e-5) + 1e-5
        inner = n_heads * head_dim
        self.qkv_proj = nn.Linear(d_model, 3 * inner, bias=False)
        self.output_gate = nn.Linear(d_model, inner, bias=False)
        self.norm = RMSNorm(inner, eps=eps)
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
        x, wide = new.x, new.wide
        B, T, H, D = *x.shape[:2], self.n_heads, self.head_dim
        qkv, gate = self.qkv_proj(x), self.output_gate(x).sigmoid()
        (state,) = new.state(((B, H, D, D), wide))
        # Each head has its query, key and value side by side.
        qkv = split_heads(F.silu(qkv.to(wide)), H)  # (B, H, T, 3 * D)
        q, k, v = qkv.chunk(3, dim=-1)
        # Not a buffer: `layer.to(torch.bfloat16)` would round it.
        exact = wide if x.is_mps else torch.float64
        h = torch.arange(1, H + 1, dtype=exact, device=x.device)
        slopes = (self.rate * (h * (-8 / H)).exp2()).to(wide)
        decay = -slopes[:, None].expand(B, H, T)  # (B, H, T)
        heads, state = new.read(q, k, v, decay, state)
        # Nothing bounds these sums: float16 holds them once normed.
        heads = merge_heads(heads)  # (B, T, H * D)
        weight, eps = self.norm.weight.to(wide), self.norm.eps
        heads = F.rms_norm(heads, weight.shape, weight, eps)
        return new.end(self.out_proj(gate * heads.to(gate.dtype)), state)
