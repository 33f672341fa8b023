"""Multi-head latent attention (MLA): keys and values from a small latent."""

# --8<-- [start:imports]
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache
from attnref.caches.past import placed, view_of
from attnref.core.checks import check_input, check_layer, check_sizes
from attnref.core.heads import (
    RMSNorm,
    is_matrix,
    matrix,
    merge_heads,
    split_heads,
)
from attnref.core.masks import Mask, Rule
from attnref.core.rope import Rope, check_rope
from attnref.core.sdpa import Attend, Scores, sdpa

# --8<-- [end:imports]


# --8<-- [start:parts]
class Parts(NamedTuple):
    """What a layer computes from its input before a form takes over.

    `q` `(B, H, T, Dn)` is the part of the queries without position and
    `q_rope` `(B, H, T, Dr)` the part with RoPE; `c` `(B, 1, T, R)` is the
    latent after its RMSNorm, `k_rope` `(B, 1, T, Dr)` the RoPE key that all
    heads share. `up` is the module `kv_b_proj`: the paper's W^UK and W^UV,
    interleaved head by head. `append` returns what it is given after what is
    in the cache, if there is one. `attend` is the layer's core with its scale,
    and with all else that it is passed.
    """

    q: Tensor
    q_rope: Tensor
    c: Tensor
    k_rope: Tensor
    up: nn.Module
    mask: Mask
    append: Callable[..., tuple[Tensor, ...]]
    attend: Callable[..., Tensor]


def _expand(p: Parts, c: Tensor, k_rope: Tensor) -> tuple[Tensor, Tensor]:
    """Each head's own keys and values, computed from the latents.

    `up` is called as a module, so that adapters, hooks and quantised layers
    in its place take effect.
    """
    B, H, T, Dn = p.q.shape
    S = c.shape[2]
    up = p.up(c)  # (B, 1, S, H * (Dn + Dv))
    up = up.view(B, S, H, up.shape[3] // H)  # (B, S, H, Dn + Dv)
    k, v = up.transpose(1, 2).tensor_split((Dn,), dim=-1)
    return torch.cat((k, k_rope.expand(-1, H, -1, -1)), dim=-1), v


# --8<-- [end:parts]


# --8<-- [start:expanded]
def _expanded(p: Parts) -> Tensor:
    """Each head's keys and values are computed once and cached."""
    k, v = p.append(*_expand(p, p.c, p.k_rope))
    q = torch.cat((p.q, p.q_rope), dim=-1)  # (B, H, T, Dn + Dr)
    return p.attend(q, k, v, p.mask)


# --8<-- [end:expanded]


# --8<-- [start:latent]
def _latent(p: Parts) -> Tensor:
    """The latent is cached, and expanded again at each step."""
    entry = torch.cat((p.c, p.k_rope), dim=-1)  # (B, 1, T, R + Dr)
    (entry,) = p.append(entry)  # (B, 1, S, R + Dr)
    c, k_rope = entry.tensor_split((p.c.shape[3],), dim=-1)
    k, v = _expand(p, c, k_rope)
    q = torch.cat((p.q, p.q_rope), dim=-1)  # (B, H, T, Dn + Dr)
    return p.attend(q, k, v, p.mask)


# --8<-- [end:latent]


# --8<-- [start:absorbed]
def _absorbed(p: Parts) -> Tensor:
    """The latent is cached and attended to directly: MQA in latent space."""
    B, H, T, Dn = p.q.shape
    R = p.c.shape[3]
    other = ", or pass form='latent' or 'expanded', which call the module"
    up = matrix("kv_b_proj", p.up, other=other).view(
        H, -1, R
    )  # (H, Dn + Dv, R)
    w_uk, w_uv = up.tensor_split((Dn,), dim=1)
    entry = torch.cat((p.c, p.k_rope), dim=-1)  # (B, 1, T, R + Dr)
    (entry,) = p.append(entry)  # (B, 1, S, R + Dr)
    c = entry[..., :R]  # (B, 1, S, R)
    # Stacked over the batch: `p.q @ w_uk` would copy the weight for each row.
    rows = p.q.transpose(0, 1).reshape(H, B * T, Dn)  # (H, B * T, Dn)
    q = (rows @ w_uk).view(H, B, T, R).transpose(0, 1)  # (B, H, T, R)
    q = torch.cat((q, p.q_rope), dim=-1)  # (B, H, T, R + Dr)
    mixed = p.attend(q, entry, c, p.mask)  # (B, H, T, R)
    rows = mixed.transpose(0, 1).reshape(H, B * T, R)  # (H, B * T, R)
    # In half precision, `rows @ w_uv.mT` takes five times as long on a CPU.
    heads = w_uv @ rows.mT  # (H, Dv, B * T)
    heads = heads.view(*heads.shape[:2], B, T)  # (H, Dv, B, T)
    return heads.permute(2, 0, 3, 1)  # (B, H, T, Dv)


# --8<-- [end:absorbed]


# --8<-- [start:module]
FORMS = {"expanded": _expanded, "latent": _latent, "absorbed": _absorbed}
INTERLEAVED = Rope(layout="interleaved")


class MultiHeadLatentAttention(nn.Module):
    """MLA of DeepSeek-V2 and V3, in three forms that compute the same.

    The keys and values of all heads are computed from one latent of
    `kv_lora_rank` elements per token. Positions are in a separate part of
    width `qk_rope_head_dim`, with one RoPE key for all heads. `q_lora_rank`
    is the rank of the latent of the queries; None means that queries are not
    compressed. `rope` says how the part with positions is rotated, and `scores`
    sets another scale, a bias, a softcap and sinks. With `output_gate`, as in
    Kimi K3, what the heads return is multiplied by a sigmoid of the input.
    Parameters are named as in Hugging Face checkpoints of DeepSeek-V3.

    Examples:
        >>> layer = MultiHeadLatentAttention(
        ...     d_model=64, n_heads=4, kv_lora_rank=24, qk_nope_head_dim=16,
        ...     qk_rope_head_dim=8, v_head_dim=12, q_lora_rank=32,
        ... )
        >>> layer(torch.randn(2, 5, 64)).shape
        torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        kv_lora_rank: int,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        v_head_dim: int,
        q_lora_rank: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
        causal: bool | Rule = True,
        rope: Rope | None = INTERLEAVED,
        eps: float = 1e-6,
        scores: Scores | None = None,
        output_gate: bool = False,
        attend: Attend = sdpa,
    ) -> None:
        super().__init__()
        self.attend = attend
        check_layer(
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=n_heads,
            head_dim=qk_rope_head_dim,
            dropout=dropout,
            attend=attend,
        )
        check_sizes(
            kv_lora_rank=kv_lora_rank,
            qk_nope_head_dim=qk_nope_head_dim,
            v_head_dim=v_head_dim,
        )
        self.d_model, self.n_heads = d_model, n_heads
        self.q_lora_rank, self.kv_lora_rank = q_lora_rank, kv_lora_rank
        self.qk_nope_head_dim = qk_nope_head_dim
        self.qk_rope_head_dim = qk_rope_head_dim
        self.v_head_dim = v_head_dim
        self.dropout, self.causal = dropout, causal
        self.rope = check_rope(qk_rope_head_dim, rope)
        qk_head_dim = qk_nope_head_dim + qk_rope_head_dim
        self.scale = qk_head_dim**-0.5
        if rope is not None and rope.scaling is not None:
            self.scale *= rope.scaling.softmax_scale
        q_width = n_heads * qk_head_dim
        if q_lora_rank is None:
            self.q_proj = nn.Linear(d_model, q_width, bias=False)
        else:
            check_sizes(q_lora_rank=q_lora_rank)
            self.q_a_proj = nn.Linear(d_model, q_lora_rank, bias=bias)
            self.q_a_layernorm = RMSNorm(q_lora_rank, eps=eps)
            self.q_b_proj = nn.Linear(q_lora_rank, q_width, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(
            d_model, kv_lora_rank + qk_rope_head_dim, bias=bias
        )
        self.kv_a_layernorm = RMSNorm(kv_lora_rank, eps=eps)
        self.kv_b_proj = nn.Linear(
            kv_lora_rank, n_heads * (qk_nope_head_dim + v_head_dim), bias=False
        )
        out_width = n_heads * v_head_dim
        self.g_proj = None
        if output_gate:
            self.g_proj = nn.Linear(d_model, out_width, bias=False)
        self.o_proj = nn.Linear(out_width, d_model, bias=bias)
        self.scores = scores or Scores()
        if self.scores.scale is not None:
            self.scale = self.scores.scale
        logits = nn.Parameter(torch.zeros(n_heads))
        self.sinks = logits if self.scores.sinks else None

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        positions: Tensor | None = None,
        form: str | None = None,
    ) -> Tensor:
        """Apply self-attention to `x` `(B, T, E)`; returns `(B, T, E)`.

        `form` is `"expanded"`, `"latent"` or `"absorbed"`. In the expanded
        form a cache holds keys `(B, H, S, Dn + Dr)` and values
        `(B, H, S, Dv)`. In the other two it holds latents and RoPE keys,
        `(B, 1, S, R + Dr)`, so these forms may alternate on one cache. If no
        form is given, `form_of` chooses it.
        """
        check_input("x", x.shape, self.d_model)
        if form is not None and form not in FORMS:
            raise ValueError(f"{form=} is none of {', '.join(FORMS)}")
        B, T, E = x.shape
        H, Dn, Dr = self.n_heads, self.qk_nope_head_dim, self.qk_rope_head_dim
        R = self.kv_lora_rank
        view = view_of(self, cache, x, mask=mask, positions=positions)
        if form is None:
            form = form_of(self, T, view.past, cached=cache is not None)
        if self.q_lora_rank is None:
            q = self.q_proj(x)  # (B, T, H * (Dn + Dr))
        else:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = split_heads(q, H)  # (B, H, T, Dn + Dr)
        q, q_rope = q.tensor_split((Dn,), dim=-1)
        c, k_rope = (
            self.kv_a_proj_with_mqa(x).unsqueeze(1).split((R, Dr), dim=-1)
        )
        c = self.kv_a_layernorm(c)  # (B, 1, T, R)
        q_rope, k_rope, seen, append = placed(self, q_rope, k_rope, cache, view)
        options = self.scores.options(self.sinks) | {"scale": self.scale}
        options["dropout"] = self.dropout if self.training else 0.0
        attend = partial(self.attend, **options)
        up = self.kv_b_proj
        parts = Parts(q, q_rope, c, k_rope, up, seen, append, attend)
        heads = merge_heads(FORMS[form](parts))  # (B, T, H * Dv)
        if self.g_proj is not None:
            heads = heads * self.g_proj(x).sigmoid()
        out: Tensor = self.o_proj(heads)
        return out  # (B, T, E)


# --8<-- [end:module]


# --8<-- [start:merged]
@torch.no_grad()
def absorbed_weights(
    layer: MultiHeadLatentAttention,
) -> tuple[Tensor, Tensor]:
    """Merge W^UK into the query projection and W^UV into the output one.

    The first, `(H, R + Dr, Q)`, maps what queries are computed from (`Q` is
    `q_lora_rank`, or `E` without it) to queries in the latent space. The
    second, `(E, H, R)`, maps each head's sum of latents to the output. Both
    are computed once, and W^UK and W^UV are then not needed any more. They
    are larger than their factors. The output's bias is not included, nor what
    is done to scores, such as a softcap. An output gate stands between the two
    that are merged, so a layer with one is refused.
    """
    if layer.g_proj is not None:
        raise ValueError("an output gate stands between W^UV and W^O")
    H, Dn, Dr = layer.n_heads, layer.qk_nope_head_dim, layer.qk_rope_head_dim
    R, Dv = layer.kv_lora_rank, layer.v_head_dim
    last = "q_proj" if layer.q_lora_rank is None else "q_b_proj"
    w_q = matrix(last, getattr(layer, last)).view(H, Dn + Dr, -1)
    up = matrix("kv_b_proj", layer.kv_b_proj).view(H, Dn + Dv, R)
    w_uk, w_uv = up.tensor_split((Dn,), dim=1)
    onto_latent = w_uk.mT @ w_q[:, :Dn]
    query = torch.cat((onto_latent, w_q[:, Dn:]), dim=1)
    w_o = matrix("o_proj", layer.o_proj, biased=True).view(-1, H, Dv)
    output = (w_o.transpose(0, 1) @ w_uv).transpose(0, 1)
    return query, output


# --8<-- [end:merged]


# --8<-- [start:crossover]
def crossover(
    *,
    kv_lora_rank: int,
    qk_nope_head_dim: int,
    v_head_dim: int,
    past: int | None = None,
) -> float:
    """The number of new tokens where latent and absorbed cost the same.

    With `past` tokens in the cache, the absorbed form needs fewer FLOPs below
    this number and the latent form above it. Without `past`: the limit for a
    long cache. Infinite if the latent is so small that the absorbed form is
    always cheaper.

    Examples:
        >>> v3 = dict(kv_lora_rank=512, qk_nope_head_dim=128, v_head_dim=128)
        >>> round(crossover(**v3), 1), round(crossover(**v3, past=4096), 1)
        (170.7, 164.1)
    """
    R, both = kv_lora_rank, qk_nope_head_dim + v_head_dim
    if both >= 2 * R:
        return float("inf")
    limit = R * both / (2 * R - both)
    if past is None:
        return limit
    if past < 0:
        raise ValueError(f"{past=} must be at least 0")
    root: float = (past**2 + 4 * past * limit) ** 0.5
    return (root - past) / 2


# --8<-- [end:crossover]


# --8<-- [start:choice]
def form_of(
    layer: MultiHeadLatentAttention,
    new: int,
    past: int = 0,
    *,
    cached: bool = True,
) -> str:
    """The form that a layer chooses for `new` tokens after `past`.

    Without a cache, as in training: `"expanded"`. With one: `"latent"` or
    `"absorbed"`, whichever needs fewer FLOPs, but `"latent"` if `kv_b_proj`
    has been replaced or quantised, or has hooks. Memory traffic is not counted.
    """
    if not cached:
        return "expanded"
    R, Dr = layer.kv_lora_rank, layer.qk_rope_head_dim
    both, S = layer.qk_nope_head_dim + layer.v_head_dim, past + new
    latent = S * R * both + new * S * (both + Dr)
    absorbed = new * R * both + new * S * (2 * R + Dr)
    cheaper = absorbed <= latent and is_matrix(layer.kv_b_proj)
    return "absorbed" if cheaper else "latent"


# --8<-- [end:choice]
