"""A transformer block around any attention, and a decoder made of them."""

# --8<-- [start:imports]
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnref.kv_cache import Cache
from attnref.masks import padding_mask

# --8<-- [end:imports]


# --8<-- [start:block]
class SwiGLU(nn.Module):
    """Feed-forward layer whose hidden numbers are gated: `silu(g) * u`."""

    def __init__(self, *, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias=False)
        self.up_proj = nn.Linear(d_model, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.silu(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(hidden)  # (B, T, E)


class Block(nn.Module):
    """Attention, then feed-forward; each normalised before, added after.

    `attention` is any layer of this package. What `forward` gets beside `x`
    (mask, cache, positions, a context) is passed on to it. Parameters are
    named as in a Llama layer of transformers.

    Examples:
        >>> from attnref import MultiHeadAttention
        >>> layer = MultiHeadAttention(d_model=64, n_heads=8)
        >>> Block(layer, d_model=64, d_ff=96)(torch.randn(2, 5, 64)).shape
        torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        attention: nn.Module,
        *,
        d_model: int,
        d_ff: int,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(d_model, eps=eps)
        self.self_attn = attention
        self.post_attention_layernorm = nn.RMSNorm(d_model, eps=eps)
        self.mlp = SwiGLU(d_model=d_model, d_ff=d_ff)

    def forward(self, x: Tensor, **attention: Any) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), **attention)
        return x + self.mlp(self.post_attention_layernorm(x))  # (B, T, E)


# --8<-- [end:block]


# --8<-- [start:decoder]
class Decoder(nn.Module):
    """Tokens `(B, T)` to a score for each next token, `(B, T, n_tokens)`."""

    def __init__(
        self,
        blocks: Iterable[Block],
        *,
        n_tokens: int,
        d_model: int,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(n_tokens, d_model)
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(d_model, eps=eps)
        self.lm_head = nn.Linear(d_model, n_tokens, bias=False)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        if caches is not None and not (
            len(caches) == len(self.layers) == len(set(map(id, caches)))
        ):
            raise ValueError(
                f"{len(set(map(id, caches)))} caches for {len(self.layers)} "
                "layers: each needs one of its own"
            )
        x = self.embed_tokens(tokens)  # (B, T, E)
        for i, layer in enumerate(self.layers):
            cache = None if caches is None else caches[i]
            x = layer(x, mask=mask, cache=cache)  # (B, T, E)
        return self.lm_head(self.norm(x))


@torch.no_grad()
def greedy(
    decoder: Decoder,
    prompt: Tensor,
    steps: int,
    *,
    valid: Tensor | None = None,
    caches: Sequence[Cache] | None = None,
) -> Tensor:
    """The prompt `(B, T)`, and `steps` tokens more, each the likeliest.

    `valid` `(B, T)` says which tokens are real when rows are padded; pad on
    the left, since what is generated stands on the right. With `caches`, empty
    ones, one a layer, the prompt is read once and then one token at a time;
    without, everything is read again at each step. If layers have dropout,
    call `decoder.eval()` first.
    """
    tokens = prompt
    if valid is None:
        valid = torch.ones_like(prompt, dtype=torch.bool)
    padding_mask(valid)  # refuses what is not bool of shape (B, T)
    if not valid[:, -1].all() or (valid[:, :-1] & ~valid[:, 1:]).any():
        raise ValueError("a pad follows a token: pad on the left to generate")
    new = prompt
    for _ in range(steps):
        scores = decoder(new, mask=padding_mask(valid), caches=caches)
        token = scores[:, -1].argmax(dim=-1, keepdim=True)
        tokens = torch.cat((tokens, token), dim=1)
        valid = torch.cat((valid, torch.ones_like(token).bool()), dim=1)
        new = tokens if caches is None else token
    return tokens


# --8<-- [end:decoder]
