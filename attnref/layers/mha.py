"""Multi-head attention (MHA): each head has its own queries, keys, values."""

# --8<-- [start:imports]
import torch
from torch import Tensor

from attnref.core.masks import Rule
from attnref.core.rope import Rope
from attnref.core.sdpa import Attend, Scores, sdpa
from attnref.core.softmax import softmax
from attnref.layers.gqa import GroupedQueryAttention

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
class MultiHeadAttention(GroupedQueryAttention):
    """Multi-head attention: each of H heads has its own query, key and value.

    It is GQA with as many key/value heads as query heads, and accepts all other
    options of `GroupedQueryAttention`.

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
        scores: Scores | None = None,
        attend: Attend = sdpa,
    ) -> None:
        super().__init__(
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=n_heads,
            head_dim=head_dim,
            bias=bias,
            o_bias=o_bias,
            dropout=dropout,
            causal=causal,
            rope_theta=rope_theta,
            rope=rope,
            scores=scores,
            attend=attend,
        )


# --8<-- [end:module]
