"""Multi-query attention (MQA): many query heads, one key/value head."""

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
def multi_query_loop(
    x: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """MQA as a loop over the query heads, with one key and one value head.

    `x` `(B, T, E)`; `wq` `(H, E, D)`, one matrix per head; `wk`, `wv`
    `(E, D)`, shared by all heads; `wo` `(H * D, E)`; `mask` `(T, T)`, True =
    may attend.
    """
    H, E, D = wq.shape
    k, v = x @ wk, x @ wv  # (B, T, D)
    heads = []
    for h in range(H):
        q = x @ wq[h]  # (B, T, D)
        scores = q @ k.mT / D**0.5  # (B, T, T)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        heads.append(softmax(scores) @ v)
    return torch.cat(heads, dim=-1) @ wo  # (B, T, E)


# --8<-- [end:loop]


# --8<-- [start:module]
class MultiQueryAttention(GroupedQueryAttention):
    """Multi-query attention: H query heads share one key and one value head.

    It is GQA with a single key/value head, and accepts all other options of
    `GroupedQueryAttention`.

    Examples:
        >>> layer = MultiQueryAttention(d_model=64, n_heads=8)
        >>> layer(torch.randn(2, 5, 64)).shape, layer.k_proj.weight.shape
        (torch.Size([2, 5, 64]), torch.Size([8, 64]))
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
            n_kv_heads=1,
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
