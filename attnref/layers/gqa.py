"""Grouped-query attention (GQA): query heads of a group share keys."""

# --8<-- [start:imports]
import torch
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache
from attnref.caches.past import self_attention
from attnref.core.checks import check_input, check_layer
from attnref.core.heads import merge_heads, split_heads
from attnref.core.masks import Rule
from attnref.core.rope import Rope, check_rope
from attnref.core.sdpa import Attend, Scores, sdpa
from attnref.core.softmax import softmax

# --8<-- [end:imports]


# --8<-- [start:loop]
def grouped_query_loop(
    x: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """GQA as a loop over the groups and over the query heads of each group.

    `x` `(B, T, E)`; `wq` `(H, E, D)`, one matrix per query head; `wk`, `wv`
    `(K, E, D)`, one per group; `wo` `(H * D, E)`; `mask` `(T, T)`, True = may
    attend.
    """
    H, E, D = wq.shape
    K = len(wk)
    heads = []
    for g in range(K):
        k, v = x @ wk[g], x @ wv[g]  # (B, T, D)
        for h in range(g * H // K, (g + 1) * H // K):
            q = x @ wq[h]  # (B, T, D)
            scores = q @ k.mT / D**0.5  # (B, T, T)
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf)
            heads.append(softmax(scores) @ v)
    return torch.cat(heads, dim=-1) @ wo  # (B, T, E)


# --8<-- [end:loop]


# --8<-- [start:module]
class GroupedQueryAttention(nn.Module):
    """Grouped-query attention: H query heads share K key/value heads.

    Query head `h` reads key/value head `h // (H // K)`. Causal by default.
    `rope` says how queries and keys are rotated, and `rope_theta=b` is short
    for `rope=Rope(b)`; without either, they are not. `bias` adds biases to all
    four projections, and `o_bias` overrides it for `o_proj`. `scores` sets
    another scale, a bias, a softcap and sinks. Parameters are named as in
    Hugging Face checkpoints. Not every checkpoint that loads is also computed
    correctly: the page "With transformers and PEFT" says which ones are.

    Examples:
        >>> layer = GroupedQueryAttention(d_model=64, n_heads=8, n_kv_heads=2)
        >>> layer(torch.randn(2, 5, 64)).shape, layer.k_proj.weight.shape
        (torch.Size([2, 5, 64]), torch.Size([16, 64]))
        >>> GroupedQueryAttention(d_model=64, n_heads=8, n_kv_heads=3)
        Traceback (most recent call last):
        ValueError: n_kv_heads=3 does not divide n_heads=8
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        n_kv_heads: int,
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
        super().__init__()
        self.d_model, self.n_heads = d_model, n_heads
        self.n_kv_heads, self.attend = n_kv_heads, attend
        self.head_dim = check_layer(
            d_model, n_heads, n_kv_heads, head_dim, dropout, attend
        )
        self.dropout, self.causal = dropout, causal
        self.rope = check_rope(self.head_dim, rope, rope_theta)
        q_width, kv_width = n_heads * self.head_dim, n_kv_heads * self.head_dim
        self.q_proj = nn.Linear(d_model, q_width, bias=bias)
        self.k_proj = nn.Linear(d_model, kv_width, bias=bias)
        self.v_proj = nn.Linear(d_model, kv_width, bias=bias)
        o_bias = bias if o_bias is None else o_bias
        self.o_proj = nn.Linear(q_width, d_model, bias=o_bias)
        self.scores = scores or Scores()
        logits = nn.Parameter(torch.zeros(n_heads))
        self.sinks = logits if self.scores.sinks else None

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
        H, K = self.n_heads, self.n_kv_heads
        q = split_heads(self.q_proj(x), H)  # (B, H, T, D)
        k = split_heads(self.k_proj(x), K)  # (B, K, T, D)
        v = split_heads(self.v_proj(x), K)  # (B, K, T, D)
        heads = self_attention(
            self, q, k, v, mask=mask, cache=cache, positions=positions
        )  # (B, H, T, D)
        out: Tensor = self.o_proj(merge_heads(heads))
        return out  # (B, T, E)


# --8<-- [end:module]
