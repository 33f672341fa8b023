"""Attention by hand: each step of three tokens, by the plain forms."""

from collections.abc import Iterator

import torch
from torch import Tensor

from attnref.plain.attention import attention
from attnref.plain.flash import flash, flash_backward
from attnref.plain.kv_cache import KVCache
from attnref.plain.merge import merge
from attnref.plain.mla import MLA
from attnref.plain.rope import rope
from sitekit.markdown.render import Row, Word

TOKENS = [Word("first"), Word("second"), Word("third")]
X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])  # (T, E)
W_Q = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
W_K = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
W_V = torch.tensor([[2.0, 0.0], [0.0, 4.0]])
W_O = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
Q, K, V = X @ W_Q, X @ W_K, X @ W_V  # (T, D)
MASK = torch.ones(3, 3, dtype=torch.bool).tril()
C = X @ torch.tensor([[1.0], [2.0]])  # (T, R), the latents
W_UK = torch.tensor([[1.0, -1.0]])
W_UV = torch.tensor([[2.0, 1.0]])


def text(x: Tensor) -> str:
    """A number, or a vector; integers without decimals."""
    if x.dim():
        return f"({', '.join(map(text, x))})"
    n = round(x.item(), 2) + 0.0  # no -0
    return f"{n:.0f}" if n == x.item() else f"{n:.2f}"


def several(x: Tensor) -> str:
    return ", ".join(map(text, x))


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The output of one head for one sequence."""
    q, k, v = _batch(q, k, v)
    out: Tensor = attention(q, k, v, mask)
    return out[0, 0]


def weights(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """The weights that `attention` uses: unit vectors as values show them."""
    return attended(q, k, torch.eye(len(k)), mask)


def _batch(*tensors: Tensor) -> list[Tensor]:
    return [x[None, None] for x in tensors]


def projected() -> Iterator[Row]:
    for token, *rows in zip(TOKENS, X, Q, K, V, strict=True):
        yield [token, *map(text, rows)]


def scores() -> Iterator[Row]:
    for token, dots in zip(TOKENS, Q @ K.mT, strict=True):
        yield [token, *map(text, dots), *map(text, dots / 2**0.5)]


def softmaxes() -> Iterator[Row]:
    columns = Q @ K.mT / 2**0.5, weights(Q, K, MASK), MASK
    for token, row, weight, allowed in zip(TOKENS, *columns, strict=True):
        e = row[allowed].exp()
        yield [token, several(row[allowed]), several(e), text(e.sum()), several(weight[allowed])]


def outputs() -> Iterator[Row]:
    columns = weights(Q, K, MASK), attended(Q, K, V, MASK), MASK
    for token, weight, out, allowed in zip(TOKENS, *columns, strict=True):
        parts = (weight[:, None] * V)[allowed]
        yield [token, several(weight[allowed]), several(parts), text(out)]


def heads(n_kv_heads: int) -> Iterator[Row]:
    """The third query in heads of one element, so that the root is 1."""
    outs = []
    for head in (0, 1):
        q, (k, v) = Q[2:, [head]], (x[:, [head % n_kv_heads]] for x in (K, V))
        outs.append(attended(q, k, v)[0])
        yield [
            Word("head", (str(head),)),
            text(q[0, 0]),
            several(k[:, 0]),
            several(v[:, 0]),
            several((q @ k.mT)[0]),
            several(weights(q, k, MASK[2:])[0]),
            text(outs[-1][0]),
        ]
    out = torch.cat(outs)
    product = f"{text(out)} $W^O$ = {text(out @ W_O)}"
    yield [Word("mixed"), "", "", "", "", "", product]


def rotated() -> Iterator[Row]:
    for i, j in ((5, 2), (3, 0), (2, 5)):
        q, k = (
            rope(x[None, None, None], torch.tensor([position]))[0, 0, 0]
            for x, position in ((Q[2], i), (K[2], j))
        )
        yield [f"{i}, {j}", text(q), text(k), text(q @ k)]


def cached() -> Iterator[Row]:
    cache = KVCache(3)
    for i, token in enumerate(TOKENS):
        token_qkv = [x[i : i + 1] for x in (Q, K, V)]
        k, v = cache.append(*_batch(*token_qkv[1:]))
        out = attention(token_qkv[0][None, None], k, v)[0, 0, 0]
        elements = str(k.numel() + v.numel())
        yield [token, *(text(x[0]) for x in token_qkv), elements, text(out)]


def merged() -> Iterator[Row]:
    """The keys of the third query in two tiles."""
    dots, tiles = Q[2] @ K.mT / 2**0.5, []
    for keys in (slice(0, 2), slice(2, 3)):
        tiles.append(flash(*_batch(Q[2:], K[keys], V[keys])))
    out, lse = merge(*zip(*tiles, strict=True))
    columns = ("1, 2", "3"), (dots[:2], dots[2:]), tiles
    for name, part, (part_out, part_lse) in zip(*columns, strict=True):
        weight = (part_lse - lse).exp().squeeze()
        yield [
            name,
            several(part),
            text(part.exp().sum()),
            text(part_lse.squeeze()),
            text(part_out.squeeze()),
            text(weight),
            text(weight * part_out.squeeze()),
        ]
    total = text(dots.exp().sum())
    sums = [total, text(lse.squeeze()), "", "", text(out.squeeze())]
    yield [Word("merged"), "", *sums]


D_OUT = torch.tensor([1.0, 1.0])  # the gradient of the third query's output


def _forward_and_backward() -> tuple[Tensor, Tensor, list[Tensor]]:
    """Of the third query: the log-sum-exp, delta, and the gradients."""
    q, k, v, d_out = _batch(Q[2:], K, V, D_OUT[None])
    out, lse = flash(q, k, v)
    grads = flash_backward(d_out, q, k, v, out, lse, tile=(1, 2))
    return lse.squeeze(), out.squeeze() @ D_OUT, [x[0, 0] for x in grads]


def gradients() -> Iterator[Row]:
    """The keys of the third query in the same two tiles, backwards."""
    lse, delta, _ = _forward_and_backward()
    dots, d_weights = Q[2] @ K.mT / 2**0.5, V @ D_OUT
    for token, score, d_weight in zip(TOKENS, dots, d_weights, strict=True):
        weight, above = (score - lse).exp(), d_weight - delta
        yield [token, *map(text, (score, weight, d_weight, above, weight * above))]
    weight = (dots - lse).exp()
    total = (weight * (d_weights - delta)).sum()
    whole, total = (x.round(decimals=6) for x in (weight.sum(), total))
    yield [Word("sum"), "", text(whole), "", "", text(total)]


def numbers() -> dict[str, object]:
    lse, delta, (d_q, _, d_v) = _forward_and_backward()
    return {"lse": text(lse), "delta": text(delta), "d_q": text(d_q[0]), "d_v": text(d_v[2])}


def expanded() -> Iterator[Row]:
    """The third query reads keys and values that are made of the latents."""
    k, v = C @ W_UK, C @ W_UV
    weight = weights(Q[2:], k, MASK[2:])[0]
    columns = TOKENS, C[:, 0], k, v, k @ Q[2], weight, weight[:, None] * v
    for token, *cells in zip(*columns, strict=True):
        yield [token, *map(text, cells)]
    yield [Word("output"), *[""] * 5, text(_output_of_mla("per_head"))]


def absorbed() -> Iterator[Row]:
    q = Q[2] @ W_UK.mT  # one element, as a latent
    weight = weights(Q[2:], C @ W_UK, MASK[2:])[0]
    for token, c, part in zip(TOKENS, C, weight, strict=True):
        yield [token, text(c[0]), text(q @ c), text(part), text(part * c[0])]
    mean = text(weight @ C[:, 0])
    yield [Word("mean"), "", "", "", mean]
    yield [Word("output"), "", "", "", text(_output_of_mla("absorbed"))]


def _output_of_mla(form: str) -> Tensor:
    """What this method of the plain MLA returns: one head, no RoPE or norm."""
    layer = MLA(2, n_heads=1, R=1, Dn=2, Dr=0, Dv=2)
    with torch.no_grad():
        layer.kv_b_proj.weight.copy_(torch.cat((W_UK, W_UV), dim=1).mT)
        q, latent = _batch(Q[2:], C)
        mask = torch.ones(1, len(C), dtype=torch.bool)
        out: Tensor = getattr(layer, form)(q, q[..., :0], latent, mask)
        return out.squeeze()
