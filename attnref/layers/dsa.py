"""DeepSeek Sparse Attention (DSA): MLA over keys that an indexer chooses."""

# --8<-- [start:imports]
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache
from attnref.caches.past import placed, view_of
from attnref.core.checks import check_input, check_layer, check_sizes
from attnref.core.heads import RMSNorm, matrix, merge_heads, split_heads
from attnref.core.masks import Mask, Rule, dense
from attnref.core.rope import Rope, check_rope, rotate
from attnref.core.sdpa import Attend, sdpa, without_autocast

# --8<-- [end:imports]


# --8<-- [start:indexer]
class Indexer(nn.Module):
    """Chooses the `topk` keys that each query reads, for all heads together.

    `n_heads` queries of width `head_dim` are computed from the latent of the
    queries, and one key for all of them from `x`. The score of a key is the
    sum over the heads of a weight times the ReLU of query times key. No
    gradient passes the choice: an indexer is trained with a separate loss.
    """

    def __init__(
        self,
        *,
        d_model: int,
        q_lora_rank: int,
        n_heads: int,
        head_dim: int,
        topk: int,
    ) -> None:
        super().__init__()
        self.n_heads, self.topk = n_heads, topk
        self.wq_b = nn.Linear(q_lora_rank, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(d_model, head_dim, bias=False)
        self.k_norm = nn.LayerNorm(head_dim, eps=1e-6)
        self.weights_proj = nn.Linear(d_model, n_heads, bias=False)

    def queries_and_key(self, x: Tensor, c_q: Tensor) -> tuple[Tensor, Tensor]:
        """Before RoPE: `(B, Hi, T, Di)` and `(B, 1, T, Di)`."""
        k = self.wk(x)
        k = self.k_norm(k.to(self.k_norm.weight.dtype)).to(k.dtype)
        return split_heads(self.wq_b(c_q), self.n_heads), k[:, None]

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, seen: Tensor | None
    ) -> Tensor:
        """The indices of the keys that each query reads, `(B, T, topk)`.

        `k` is `(B, 1, S, Di)`. What `seen` `(B or 1, 1 or H, T, S)` hides from
        all heads comes last. Scores are in at least float32: in half precision
        many would be equal.
        """
        B, Hi, T, Di = q.shape
        wide = torch.promote_types(q.dtype, torch.float32)
        weights = self.weights_proj(x).to(wide)  # (B, T, Hi)
        with without_autocast(q.device):
            # All heads in one product: the keys are read once, not copied.
            rows = q.transpose(1, 2).reshape(B, T * Hi, Di).to(wide)
            scores = F.relu(k[:, 0].to(wide) @ rows.mT)  # (B, S, T * Hi)
            scores = scores.view(B, k.shape[2], T, Hi)  # (B, S, T, Hi)
            scores = torch.einsum("bsth,bth->bts", scores, weights)
        if seen is not None:
            scores = scores.masked_fill(~seen.any(dim=1), -torch.inf)
        return scores.topk(self.topk, dim=-1).indices


# --8<-- [end:indexer]


# --8<-- [start:gathered]
def gathered(
    q: Tensor, entry: Tensor, chosen: Tensor, seen: Tensor | None
) -> tuple[Tensor, Tensor, Mask]:
    """Each query with the keys that it has chosen, as a separate row.

    `q` is `(B, H, T, W)`, `entry` `(B, 1, S, W)`, `chosen` `(B, T, topk)` and
    `seen` `(B or 1, 1 or H, T, S)`. Only the chosen entries are read.
    """
    B, H, T, W = q.shape
    rows = torch.arange(B, device=q.device)[:, None, None]
    picked = entry[rows, 0, chosen].flatten(0, 1)
    q = q.transpose(1, 2).reshape(B * T, H, 1, W)
    if seen is not None:
        seen = seen.expand(B, -1, -1, -1).transpose(1, 2)
        seen = seen.take_along_dim(chosen[:, :, None], dim=3)
        seen = seen.flatten(0, 1)[:, :, None]  # hides what filled up topk
    return q, picked[:, None], seen


# --8<-- [end:gathered]


# --8<-- [start:module]
PAIRS = Rope(layout="interleaved")


class DeepSeekSparseAttention(nn.Module):
    """DSA of DeepSeek-V3.2 and GLM-5: absorbed MLA over chosen keys.

    Each query reads the `index_topk` tokens that the indexer's `index_n_heads`
    heads of width `index_head_dim` score best. The indexer's RoPE rotates the
    first `qk_rope_head_dim` channels of its heads in the layout
    `index_layout`: `"half"` in DeepSeek-V3.2, `"interleaved"` in GLM-5. The
    other options are as in `MultiHeadLatentAttention`, and parameters are
    named as in Hugging Face checkpoints. A cache holds latents and RoPE keys
    `(B, 1, S, R + Dr)`, and index keys `(B, 1, S, Di)`.

    Examples:
        >>> layer = DeepSeekSparseAttention(
        ...     d_model=64, n_heads=4, kv_lora_rank=24, qk_nope_head_dim=16,
        ...     qk_rope_head_dim=8, v_head_dim=12, q_lora_rank=32,
        ...     index_n_heads=3, index_head_dim=16, index_topk=4,
        ... )
        >>> layer(torch.randn(2, 9, 64)).shape
        torch.Size([2, 9, 64])
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
        q_lora_rank: int,
        index_n_heads: int,
        index_head_dim: int,
        index_topk: int,
        index_layout: Literal["half", "interleaved"] = "half",
        bias: bool = False,
        dropout: float = 0.0,
        causal: bool | Rule = True,
        rope: Rope | None = PAIRS,
        eps: float = 1e-6,
        attend: Attend = sdpa,
    ) -> None:
        super().__init__()
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
            q_lora_rank=q_lora_rank,
            index_n_heads=index_n_heads,
            index_head_dim=index_head_dim,
            index_topk=index_topk,
        )
        if index_head_dim < qk_rope_head_dim:
            raise ValueError(
                f"{index_head_dim=} must be at least {qk_rope_head_dim=}, the "
                "channels of the index keys that RoPE rotates"
            )
        self.attend, self.dropout, self.causal = attend, dropout, causal
        self.d_model, self.n_heads = d_model, n_heads
        self.kv_lora_rank, self.v_head_dim = kv_lora_rank, v_head_dim
        self.qk_nope_head_dim = qk_nope_head_dim
        self.qk_rope_head_dim = qk_rope_head_dim
        self.rope = check_rope(qk_rope_head_dim, rope)
        self.index_layout = Rope(layout=index_layout).layout
        R, width = kv_lora_rank, qk_nope_head_dim + qk_rope_head_dim
        self.scale = width**-0.5
        if rope is not None and rope.scaling is not None:
            self.scale *= rope.scaling.softmax_scale
        self.q_a_proj = nn.Linear(d_model, q_lora_rank, bias=bias)
        self.q_a_layernorm = RMSNorm(q_lora_rank, eps=eps)
        self.q_b_proj = nn.Linear(q_lora_rank, n_heads * width, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(
            d_model, R + qk_rope_head_dim, bias=bias
        )
        self.kv_a_layernorm = RMSNorm(R, eps=eps)
        self.kv_b_proj = nn.Linear(
            R, n_heads * (qk_nope_head_dim + v_head_dim), bias=False
        )
        self.o_proj = nn.Linear(n_heads * v_head_dim, d_model, bias=bias)
        self.indexer = Indexer(
            d_model=d_model,
            q_lora_rank=q_lora_rank,
            n_heads=index_n_heads,
            head_dim=index_head_dim,
            topk=index_topk,
        )

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Apply self-attention to `x` `(B, T, E)`; returns `(B, T, E)`.

        Keys are chosen among those that `mask` and the layer's rule show to
        any head. While there are no more of them than `index_topk`, this is
        MLA. Where a call chooses fewer entries than are cached, as in
        decoding, it reads only these.
        """
        check_input("x", x.shape, self.d_model)
        B, T, E = x.shape
        H, Dn, Dr = self.n_heads, self.qk_nope_head_dim, self.qk_rope_head_dim
        R, Dv = self.kv_lora_rank, self.v_head_dim
        up = matrix("kv_b_proj", self.kv_b_proj).view(H, Dn + Dv, R)
        view = view_of(self, cache, x, mask=mask, positions=positions)
        c_q = self.q_a_layernorm(self.q_a_proj(x))
        q = split_heads(self.q_b_proj(c_q), H)  # (B, H, T, Dn + Dr)
        q, q_rope = q.tensor_split((Dn,), dim=-1)
        c, k_rope = self.kv_a_proj_with_mqa(x)[:, None].split((R, Dr), dim=-1)
        q_index, k_index = self.indexer.queries_and_key(x, c_q)
        if self.rope is not None:
            width = self.rope.width or Dr  # of the first channels
            rope = replace(self.rope, width=width, layout=self.index_layout)
            q_index, k_index = rotate(
                q_index,
                k_index,
                rope=rope,
                past=view.past,
                positions=view.positions,
            )
        q_rope, k_rope, shown, append = placed(
            self, q_rope, k_rope, cache, view
        )
        entry = torch.cat((self.kv_a_layernorm(c), k_rope), dim=-1)
        entry, k_index = append(entry, k_index)
        w_k, w_v = up.tensor_split((Dn,), dim=1)
        q = torch.einsum("bhtn,hnr->bhtr", q, w_k.to(q.dtype))
        q = torch.cat((q, q_rope), dim=-1)  # (B, H, T, R + Dr)
        S, few = entry.shape[2], False
        if self.indexer.topk < S:
            seen = dense(shown)
            if seen is not None and seen.dim() == 2:
                seen = seen[None, None]  # (1, 1, T, S)
            chosen = self.indexer(x, q_index, k_index, seen)
            few = T * self.indexer.topk < S
            if few:
                q, entry, shown = gathered(q, entry, chosen, seen)
            else:
                at = torch.zeros(B, T, S, dtype=torch.bool, device=x.device)
                shown = at.scatter(2, chosen, True)[:, None]  # (B, 1, T, S)
                shown = shown if seen is None else seen & shown
        mixed = self.attend(
            q,
            entry,
            entry[..., :R],
            shown,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
        )
        if few:  # each query was a row
            mixed = mixed.view(B, T, H, R).transpose(1, 2)  # (B, H, T, R)
        heads = torch.einsum("hvr,bhtr->bhtv", w_v.to(mixed.dtype), mixed)
        out: Tensor = self.o_proj(merge_heads(heads))
        return out  # (B, T, E)


# --8<-- [end:module]
