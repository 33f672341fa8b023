"""A transformer block around any attention, and a decoder made of them."""

# --8<-- [start:imports]
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache, past_of
from attnref.caches.past import view_of
from attnref.core.checks import check_sizes, whole_number
from attnref.core.masks import padding_mask, padding_mask_from_hf

# --8<-- [end:imports]


# --8<-- [start:block]
class SwiGLU(nn.Module):
    """Gated feed-forward layer: `down(silu(gate(x)) * up(x))`."""

    def __init__(self, *, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias=False)
        self.up_proj = nn.Linear(d_model, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.silu(self.gate_proj(x)) * self.up_proj(x)
        out: Tensor = self.down_proj(hidden)
        return out  # (B, T, E)


class Block(nn.Module):
    """Pre-norm layer: `x + attention(norm(x))`, then `x + mlp(norm(x))`.

    `attention` is any layer of this package. All arguments of `forward`
    other than `x` (mask, cache, positions, a context) are passed on to it.
    Parameters are named as in a Llama layer of transformers.

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
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out  # (B, T, E)


# --8<-- [end:block]


# --8<-- [start:decoder]
class Decoder(nn.Module):
    """Decoder-only model: tokens `(B, T)` to logits `(B, T, n_tokens)`.

    `caches` holds one cache per layer. All other arguments of `forward` are
    passed on to each layer: a mask, positions, MLA's form, a context. So layers
    of self- and of cross-attention do not mix; attention and recurrent layers
    do. Caches that differ in length, have no room, or keep too little for their
    layer are refused before any of them is written to, and so is a mask that a
    recurrent layer cannot read. A layer without an attribute `causal` needs a
    cache that keeps everything, and one with `d_context` stores its context,
    once, and no tokens. A layer that `shares` the keys of an earlier one has
    its cache.
    """

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
        caches: Sequence[Cache] | None = None,
        **attention: Any,
    ) -> Tensor:
        if caches is not None:
            self._check(caches, tokens, **attention)
        x = self.embed_tokens(tokens)  # (B, T, E)
        for i, layer in enumerate(self.layers):
            cache = None if caches is None else caches[i]
            x = layer(x, cache=cache, **attention)  # (B, T, E)
        logits: Tensor = self.lm_head(self.norm(x))
        return logits

    def _check(
        self,
        caches: Sequence[Cache],
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        **_: Any,
    ) -> None:
        """Runs before the first layer writes, while nothing has changed."""
        if not isinstance(caches, Sequence):
            kind = type(caches).__name__
            raise TypeError(f"caches is {kind}; pass a list of one per layer")
        if None in caches:
            raise TypeError("caches holds None; pass one cache per layer")
        attention = [getattr(b, "self_attn", b) for b in self.layers]
        shares = [getattr(layer, "shares", None) for layer in attention]
        pairs = zip(caches, shares, strict=False)
        own = [cache for cache, of in pairs if of is None]
        twice = any(a is b for i, a in enumerate(own) for b in own[:i])
        if twice or len(caches) != len(self.layers):
            raise ValueError(
                f"{len(caches)} caches for {len(self.layers)} layers"
                f"{', one of them twice' if twice else ''}: each layer needs "
                "its own"
            )
        rules = [getattr(layer, "causal", False) for layer in attention]
        needs = [getattr(layer, "needs", "append") for layer in attention]
        lengths = list(map(past_of, caches, rules, needs))
        if any(length != lengths[0] for length in lengths):
            raise ValueError(f"caches hold {lengths} tokens: lengths differ")
        for layer, cache, need in zip(attention, caches, needs, strict=True):
            if need == "state" and hasattr(layer, "causal"):
                view_of(layer, cache, tokens[..., None], mask=mask).real()
            if not hasattr(layer, "d_context"):
                cache.check_room(tokens.shape[1])
            elif context is not None and not cache.stored:
                cache.check_room(context.shape[-2])


# --8<-- [end:decoder]


# --8<-- [start:generate]
def sampled(
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Callable[[Tensor], Tensor]:
    """A function that samples tokens `(B,)` from logits `(B, n_tokens)`.

    Logits are divided by `temperature`; then the `top_k` most likely tokens
    are kept, and of those the fewest whose probabilities sum to `top_p`. Of
    equally likely tokens, `top_k` keeps all or none, as transformers does.

    Examples:
        >>> pick = sampled(temperature=0.7, top_p=0.9)
        >>> pick(torch.tensor([[0.0, 9.0, 0.0], [9.0, 0.0, 0.0]]))
        tensor([1, 0])
    """
    if not temperature > 0:
        raise ValueError(f"{temperature=} must be positive")
    if top_k is not None:
        check_sizes(top_k=top_k)
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"{top_p=} must be above 0 and at most 1")

    def pick(scores: Tensor) -> Tensor:
        scores = scores.float() / temperature
        if top_k is not None:
            least = scores.topk(min(top_k, scores.shape[1])).values[:, -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if top_p is not None and top_p < 1:
            ordered, order = scores.sort(dim=-1)
            left_out = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
            left_out[:, -1] = False  # the likeliest is kept, whatever top_p is
            left_out = left_out.scatter(1, order, left_out)  # as they stood
            scores = scores.masked_fill(left_out, -torch.inf)
        weights = scores.softmax(dim=-1)
        return torch.multinomial(weights, 1, generator=generator)[:, 0]

    return pick


@torch.no_grad()
def greedy(
    decoder: Callable[..., Tensor],
    prompt: Tensor,
    steps: int,
    *,
    valid: Tensor | None = None,
    caches: Sequence[Cache] | None = None,
    pick: Callable[[Tensor], Tensor] | None = None,
    eos: int | Sequence[int] | None = None,
    pad: int | None = None,
    **attention: Any,
) -> Tensor:
    """Continue the prompt `(B, T)` by up to `steps` new tokens per row.

    `decoder` is a `Decoder`, compiled or not, or any other model that is
    called like one: `decoder(tokens, mask=..., caches=...)` returns logits.

    Returns the prompt followed by the new tokens. Each of these is the most
    likely one, or the one that `pick` takes from the logits: see `sampled`. A
    row that has produced a token of `eos` (None: no row ends) continues with
    `pad` (the first of `eos` unless given); when all rows have ended, so does
    the call. `valid` says which tokens of the prompt are real: a tokenizer's
    `attention_mask`, a bool tensor of that shape `(B, T)`, or the padding mask
    made from either. Pad on the left, since new tokens are appended on the
    right.

    With `caches` (empty, one per layer) the prompt is read once, and after it
    one token per step; without, each step reads all tokens again. `attention`
    is passed on to each layer. If layers have dropout, call `decoder.eval()`
    first.
    """
    eos = () if eos is None else eos
    several = eos if isinstance(eos, Iterable) else [eos]
    ends = torch.tensor([whole_number("eos", token) for token in several])
    ends = ends.to(prompt)
    ended = torch.zeros_like(prompt[:, 0], dtype=torch.bool)
    valid = _valid(valid, prompt)
    given = caches if isinstance(caches, Sequence) else ()
    if past := max((getattr(cache, "length", 0) for cache in given), default=0):
        raise ValueError(
            f"caches hold {past} tokens of an earlier call: reset() each, or "
            "pass new ones"
        )
    new = tokens = prompt
    for _ in range(steps):
        mask = None if valid is None else padding_mask(valid)
        scores = decoder(new, mask=mask, caches=caches, **attention)
        last = scores[:, -1]
        token = last.argmax(dim=-1) if pick is None else pick(last)
        if len(ends):
            token = token.where(~ended, ends[0] if pad is None else pad)
            ended |= torch.isin(token, ends)
        new = token[:, None]
        tokens = torch.cat((tokens, new), dim=1)
        if len(ends) and ended.all():
            break
        if valid is not None:
            valid = torch.cat((valid, torch.ones_like(new).bool()), dim=1)
        new = tokens if caches is None else new
    return tokens


def _valid(valid: Tensor | None, prompt: Tensor) -> Tensor | None:
    """`(B, T)`, True = a real token, from any of the accepted masks.

    None if all are real: with a mask, even one that hides nothing, `fused`
    needs `T x T` elements of memory, which `is_causal` saves.
    """
    B, T = prompt.shape
    if valid is None:
        return None
    if valid.shape == (B, 1, 1, T):
        valid = valid[:, 0, 0]
    valid = padding_mask_from_hf(valid)[:, 0, 0]
    if valid.shape != prompt.shape:
        raise ValueError(
            f"valid has shape {tuple(valid.shape)}, the prompt {(B, T)}"
        )
    if not valid[:, -1].all() or (valid[:, :-1] & ~valid[:, 1:]).any():
        raise ValueError("a pad follows a token: pad on the left to generate")
    return None if valid.all() else valid


# --8<-- [end:generate]
