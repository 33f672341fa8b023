"""Cross-attention: queries from one sequence, keys and values from another."""

# --8<-- [start:imports]
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache, check_appended, past_of
from attnref.core.checks import check_input, check_layer, check_sizes
from attnref.core.heads import merge_heads, split_heads
from attnref.core.masks import View
from attnref.core.sdpa import Attend, sdpa

# --8<-- [end:imports]


# --8<-- [start:module]
class CrossAttention(nn.Module):
    """Cross-attention: queries from `x`, keys and values from `context`.

    Every query may attend to the whole context: there is no causal mask and
    no RoPE. `d_context` is the width of the context (`d_model` unless given),
    `n_kv_heads` the number K of key/value heads as in GQA (`n_heads` unless
    given). `bias` adds biases to all four projections, and `o_bias` overrides
    it for `o_proj`.

    Examples:
        >>> import torch
        >>> layer = CrossAttention(d_model=64, n_heads=8)
        >>> layer(torch.randn(2, 5, 64), torch.randn(2, 9, 64)).shape
        torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        d_context: int | None = None,
        bias: bool = False,
        o_bias: bool | None = None,
        dropout: float = 0.0,
        attend: Attend = sdpa,
    ) -> None:
        super().__init__()
        self.attend = attend
        self.d_model, self.n_heads = d_model, n_heads
        self.n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        self.d_context = d_model if d_context is None else d_context
        check_sizes(d_context=self.d_context)
        self.head_dim = check_layer(
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=self.n_kv_heads,
            head_dim=head_dim,
            dropout=dropout,
            attend=attend,
        )
        self.dropout = dropout
        q_width = n_heads * self.head_dim
        kv_width = self.n_kv_heads * self.head_dim
        self.q_proj = nn.Linear(d_model, q_width, bias=bias)
        self.k_proj = nn.Linear(self.d_context, kv_width, bias=bias)
        self.v_proj = nn.Linear(self.d_context, kv_width, bias=bias)
        o_bias = bias if o_bias is None else o_bias
        self.o_proj = nn.Linear(q_width, d_model, bias=o_bias)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Attend from `x` `(B, T, E)` to `context`; returns `(B, T, E)`.

        `context` is `(B, S, d_context)`. An empty `cache` is filled with its
        keys and values. Later calls pass the filled cache and no context.
        """
        check_input("x", x.shape, self.d_model)
        B, T, E = x.shape
        H, K = self.n_heads, self.n_kv_heads
        q = split_heads(self.q_proj(x), H)  # (B, H, T, D)
        S = past_of(cache, False)
        filled = cache is not None and bool(cache.stored)
        if cache is not None and filled:
            k, v = self._cached(cache, context, B)  # (B, K, S, D)
        else:
            if context is None:
                raise ValueError("context is None and no filled cache is given")
            check_input("context", context.shape, self.d_context)
            S = context.shape[1]
            if len(context) != B:
                raise ValueError(f"x has B={B}, context has B={len(context)}")
            k = split_heads(self.k_proj(context), K)  # (B, K, S, D)
            v = split_heads(self.v_proj(context), K)  # (B, K, S, D)
        new = 0 if filled else S
        keys = None if cache is None else cache.positions(new, x.device)
        lengths = None if cache is None else cache.lengths
        if lengths is not None:
            lengths = lengths - T  # none of the keys is new
        view = View(B, T, S - T, x.device, mask, lengths=lengths, keys=keys)
        seen = view.shown(False, H)
        if cache is not None and not filled:
            k, v = cache.append(k, v)  # (B, K, S, D)
            check_appended(cache, k, keys)
        dropout = self.dropout if self.training else 0.0
        heads = self.attend(q, k, v, seen, dropout=dropout)  # (B, H, T, D)
        out: Tensor = self.o_proj(merge_heads(heads))
        return out  # (B, T, E)

    def _cached(
        self, cache: Cache, context: Tensor | None, B: int
    ) -> tuple[Tensor, ...]:
        if context is not None:
            raise ValueError(
                f"the cache already holds a context of {cache.length} tokens: "
                "pass no context, or call cache.reset() first"
            )
        stored = cache.stored
        shapes = [tuple(t.shape) for t in stored]
        wanted = (B, self.n_kv_heads, cache.length, self.head_dim)
        if shapes != [wanted, wanted]:
            raise ValueError(
                f"the cache holds tensors of shapes {shapes}; "
                f"expected two of {wanted}"
            )
        return stored


# --8<-- [end:module]
