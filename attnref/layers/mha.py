"""Multi-head attention (MHA): each head has its own queries, keys, values."""

# --8<-- [start:imports]
import torch
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache
from attnref.caches.past import self_attention
from attnref.core.checks import check_input, check_layer
from attnref.core.heads import merge_heads, split_heads
from attnref.core.masks import Rule
from attnref.core.parts import HeadParts, add_parts
from attnref.core.rope import Rope, check_rope
from attnref.core.sdpa import Attend, sdpa
from attnref.core.softmax import softmax

# --8<-- [end:imports]


# --8<-- [start:loop]
def multi_head_loop(
    x: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """MHA as a loop over the heads, as in the paper's formula.

    `x` `(B, T, E)`; `wq`, `wk`, `wv` `(H, E, D)`, one matrix per head;
    `wo` `(H * D, E)`; `mask` `(T, T)`, True = may attend. Slow: a reference
    for reading and for tests.
    """
    H, E, D = wq.shape
    heads = []
    for h in range(H):
        q, k, v = x @ wq[h], x @ wk[h], x @ wv[h]  # (B, T, D)
        scores = q @ k.mT / D**0.5  # (B, T, T)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        heads.append(softmax(scores) @ v)
    return torch.cat(heads, dim=-1) @ wo  # (B, T, E)


# --8<-- [end:loop]


# --8<-- [start:module]
class MultiHeadAttention(nn.Module):
    """Multi-head attention: each of H heads has its own query, key and value.

    Causal by default. `rope` says how queries and keys are rotated, and
    `rope_theta=b` is short for `rope=Rope(b)`; without them, they are not.
    `bias` adds biases to all four projections, and `o_bias` overrides it for
    `o_proj`. Parameters are named as in Hugging Face checkpoints. Not every
    checkpoint that loads is also computed correctly: see the page "Which
    checkpoints load?".

    Examples:
        >>> layer = MultiHeadAttention(d_model=64, n_heads=8)
        >>> layer(torch.randn(2, 5, 64)).shape
        torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        head_dim: int | None = None,
        bias: bool = False,
        o_bias: bool | None = None,
        dropout: float = 0.0,
        causal: bool | Rule = True,
        rope_theta: float | None = None,
        rope: Rope | None = None,
        parts: HeadParts | None = None,
        attend: Attend = sdpa,
    ) -> None:
        super().__init__()
        self.attend = attend
        self.d_model, self.n_heads = d_model, n_heads
        self.head_dim = check_layer(
            d_model, n_heads, n_heads, head_dim, dropout, attend
        )
        self.dropout, self.causal = dropout, causal
        self.rope = check_rope(self.head_dim, rope, rope_theta)
        inner = n_heads * self.head_dim
        self.q_proj = nn.Linear(d_model, inner, bias=bias)
        self.k_proj = nn.Linear(d_model, inner, bias=bias)
        self.v_proj: nn.Linear | None = nn.Linear(d_model, inner, bias=bias)
        o_bias = bias if o_bias is None else o_bias
        self.o_proj = nn.Linear(inner, d_model, bias=o_bias)
        self.parts = add_parts(self, parts)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Apply self-attention to `x` `(B, T, E)`; returns `(B, T, E)`.

        `mask` is bool, True = may attend, and broadcasts to `(B, H, T, S)`.
        With a `cache`, the S keys are the cached ones followed by the T new
        ones; without, S = T.
        """
        check_input("x", x.shape, self.d_model)
        H = self.n_heads
        q = split_heads(self.q_proj(x), H)  # (B, H, T, D)
        k = split_heads(self.k_proj(x), H)  # (B, H, T, D)
        v = k  # (B, H, T, D)
        if self.v_proj is not None:
            v = split_heads(self.v_proj(x), H)  # (B, H, T, D)
        heads = self_attention(
            self, x, q, k, v, mask=mask, cache=cache, positions=positions
        )  # (B, H, T, D)
        out: Tensor = self.o_proj(merge_heads(heads))
        return out  # (B, T, E)


# --8<-- [end:module]
