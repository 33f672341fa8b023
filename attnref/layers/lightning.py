"""Lightning attention: a recurrent layer without the delta rule."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache
from attnref.caches.past import view_of
from attnref.caches.state import state_of
from attnref.core.checks import (
    check_counts,
    check_input,
    check_layer,
    check_sizes,
)
from attnref.core.heads import RMSNorm, merge_heads, split_heads
from attnref.core.masks import Rule


def lightning_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    state: Tensor,
    *,
    document: Tensor | None = None,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """Add each token to the state, and read it: `(B, H, T, D)` of reads.

    `S_t = e^g_t S_{t-1} + k_t v_t^T`, and `q_t` reads `S_t`, unscaled. Within
    a chunk this is attention without softmax, under the decay between two
    tokens. `q`, `k` and `v` are `(B, H, T, D)`; `decay`, the `g`, at most 0, is
    `(B, H, T)`. Returned with the reads is the state `(B, H, D, D)` after the
    last token.

    Where documents are packed, `document` `(B, T)` numbers them, from that of
    the state before, 0: nothing passes from one to the next.
    """
    outs: list[Tensor] = []
    n, before = 0, decay[:, 0, :1] * 0  # the document of the state
    while n < q.shape[2]:  # `range` would bind a compiler to this length
        part = slice(n, n + chunk)
        n += chunk
        q_c, k_c, v_c = (x[:, :, part] for x in (q, k, v))
        g = decay[:, :, part].cumsum(dim=-1)
        past = g.exp()[..., None]  # of the state before this chunk
        # Of the difference: `e^g` apart from `e^-g` would overflow.
        between = (g[..., None] - g[..., None, :]).tril().exp().tril()
        left = (g[..., -1:] - g).exp()[..., None]  # at the end of the chunk
        if document is not None:
            d = document[:, None, part]  # (B, 1, T)
            past = past * (d == before[:, None])[..., None]
            between = between * (d[..., None] == d[..., None, :])
            left = left * (d == d[..., -1:])[..., None]
            before = d[:, 0, -1:]
        outs.append(past * (q_c @ state) + (between * (q_c @ k_c.mT)) @ v_c)
        state = past[..., -1:, :] * state + (left * k_c).mT @ v_c
    return torch.cat(outs, dim=2) if outs else v, state


class LightningAttention(nn.Module):
    """Lightning attention of MiniMax-01: a matrix per head, that decays.

    Head `h` of `n_heads`, from 0, decays by `e^-s` a token, whatever it reads:
    `s` is `2^(-8 (h + 1) / n_heads)` in the first layer of a model and falls to
    almost 0 in the last. Of its `n_layers`, all kinds counted, this one is
    `layer_idx`, from 0. `head_dim` is `d_model / n_heads`, unless it is given.
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
        get. `positions` are accepted, as other layers of a model read them,
        and change nothing.
        """
        check_input("x", x.shape, self.d_model)
        B, T, E = x.shape
        view = view_of(self, cache, x, mask=mask, positions=positions)
        if T == 0:
            return x
        real, document = view.real(), view.documents(self.causal)
        if real is not None:  # without biases, a pad's key and value are 0
            x = x.where(real[..., None], 0)  # (B, T, E)
        qkv, gate = self.qkv_proj(x), self.output_gate(x).sigmoid()
        wide = torch.promote_types(qkv.dtype, torch.float32)
        H, D = self.n_heads, self.head_dim
        (state,) = state_of(cache, x.device, ((B, H, D, D), wide))
        # Each head has its query, key and value side by side.
        qkv = split_heads(F.silu(qkv.to(wide)), H)  # (B, H, T, 3 * D)
        q, k, v = qkv.chunk(3, dim=-1)
        # Not a buffer: `layer.to(torch.bfloat16)` would round it.
        h = torch.arange(1, H + 1, dtype=wide, device=x.device)
        slopes = self.rate * (h * (-8 / H)).exp2()
        decay = -slopes[:, None].expand(B, H, T)  # (B, H, T)
        if real is not None:  # a pad lets nothing decay
            decay = decay * real[:, None]
        kind = "cpu" if x.device.type == "meta" else x.device.type
        with torch.autocast(kind, enabled=False):  # a state in float32
            heads, state = lightning_attention(
                q, k, v, decay, state, document=document
            )
            # Nothing bounds these sums: float16 holds them once normed.
            heads = merge_heads(heads)  # (B, T, H * D)
            weight, eps = self.norm.weight.to(wide), self.norm.eps
            heads = F.rms_norm(heads, weight.shape, weight, eps)
        if cache is not None:
            cache.update(T, state)
        out: Tensor = self.out_proj(gate * heads.to(gate.dtype))
        return out  # (B, T, E)
