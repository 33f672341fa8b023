"""Scaled dot-product attention with grouped heads, written out."""

# --8<-- [start:imports]
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from attnref.core.masks import Mask, check_mask, dense
from attnref.core.softmax import softmax

# --8<-- [end:imports]


# --8<-- [start:attend]
class Attend(Protocol):
    """What a layer calls on its heads: `sdpa`, or another core like it."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask = None,
        /,
        *,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> Tensor: ...


# --8<-- [end:attend]


# --8<-- [start:weights]
def attention_weights(
    q: Tensor,
    k: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
) -> Tensor:
    """The weight of each key for each query: `A = softmax(q k^T * scale)`.

    `q` `(B, H, T, D)` and `k` `(B, K, S, D)` give `(B, H, T, S)`. Query head
    `n` reads key head `n // (H // K)`, so `K` must divide `H`. `mask` is
    bool, True = may attend, and broadcasts to `(B, H, T, S)`. `scale` is
    `D ** -0.5` (the paper's `1 / sqrt(d_k)`) unless given. Each row sums to
    1, or to 0 if the query may attend to no key.

    Examples:
        >>> q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4)
        >>> attention_weights(q, k, torch.tensor([[True, False], [True, True]]))
        tensor([[[[1.0000, 0.0000],
                  [0.5000, 0.5000]]]])
    """
    return _weights(q, k, mask, scale).to(q.dtype)  # (B, H, T, S)


# --8<-- [end:weights]


# --8<-- [start:sdpa]
def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Scaled dot-product attention: each query's weighted mean of the values.

    `q` `(B, H, T, D)`, `k` `(B, K, S, D)` and `v` `(B, K, S, Dv)` give
    `(B, H, T, Dv)`, the paper's `A V`. `mask` and `scale` are those of
    `attention_weights`. A query that may attend to no key gives zeros.
    `dropout` is applied to the weights whenever it is above 0: leave it out
    in evaluation.

    Examples:
        >>> q, k = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 3, 4)
        >>> v = torch.tensor([[[[0.0], [3.0], [6.0]]]])
        >>> sdpa(q, k, v)
        tensor([[[[3.]]]])
    """
    _check_values(q, k, v)
    weights = _weights(q, k, mask, scale)  # (B, H, T, S)
    if dropout:
        weights = F.dropout(weights, dropout)  # (B, H, T, S)
    B, H, T, S = weights.shape
    K, Dv = v.shape[1], v.shape[3]
    rows = _fold(weights, K)  # (B, K, H // K * T, S)
    mixed = _mixed(rows, v)  # (B, K, H // K * T, Dv)
    return mixed.view(B, H, T, Dv).to(q.dtype)  # (B, H, T, Dv)


# --8<-- [end:sdpa]


# --8<-- [start:core]
def _weights(q: Tensor, k: Tensor, mask: Mask, scale: float | None) -> Tensor:
    _check_scores(q, k, mask, scale)
    B, H, T, D = q.shape
    K, S = k.shape[1:3]
    # Scores of half-precision inputs stay in float32 until the softmax.
    wide = torch.promote_types(q.dtype, torch.float32)
    # The queries are scaled: they are smaller than the scores.
    q = q.to(wide) * (D**-0.5 if scale is None else scale)  # (B, H, T, D)
    rows = _fold(q, K)  # (B, K, H // K * T, D)
    scores = _scores(rows, k, T)  # (B, K, H // K * T, S)
    scores = scores.view(B, H, T, S)  # (B, H, T, S)
    mask = dense(mask)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)  # (B, H, T, S)
    return softmax(scores)  # (B, H, T, S)


def _fold(x: Tensor, K: int) -> Tensor:
    """Stack the query heads that share a key/value head on the query axis.

    One matrix product then serves the whole group. It is the small tensor
    that is reshaped; the large ones, keys and values, are never repeated.
    """
    B, H, T, width = x.shape
    return x.reshape(B, K, H // K * T, width)  # (B, K, H // K * T, width)


def _scores(rows: Tensor, k: Tensor, T: int) -> Tensor:
    """`rows @ k.mT`; for few rows as `k @ rows.mT`, which is then faster."""
    few = (
        rows.device.type == "cpu"  # not measured on others
        # A graph may be of any T above 1: it cannot depend on how many.
        and (T == 1 or not torch.compiler.is_compiling())
        and rows.shape[2] <= 8
    )
    pieces = []
    for part in _widened(k, rows):
        if few:  # the large matrix first: it is read as it lies in memory
            pieces.append(_matmul(part, rows.mT).mT)
        else:
            pieces.append(_matmul(rows, part.mT))
    # Softmax wants the scores of a row side by side.
    return pieces[0].contiguous() if len(pieces) == 1 else torch.cat(pieces, -1)


def _mixed(rows: Tensor, v: Tensor) -> Tensor:
    """`rows @ v`, as a sum over the parts of `v`."""
    if rows.dtype == v.dtype:
        return _matmul(rows, v)
    sizes = [part.shape[2] for part in _parts(v, rows)]
    columns = torch.split(rows, sizes, dim=-1)
    pairs = zip(columns, _widened(v, rows), strict=True)
    return reduce(torch.add, (_matmul(a, b) for a, b in pairs))


def _widened(x: Tensor, rows: Tensor) -> Iterator[Tensor]:
    """The parts of `x` in the dtype of `rows`; use each before the next."""
    parts = _parts(x, rows)
    if len(parts) == 1 or torch.is_grad_enabled():
        yield from (part.to(rows.dtype) for part in parts)
        return
    room = parts[0].new_empty(parts[0].shape, dtype=rows.dtype)
    for part in parts:  # all in the same memory: fresh memory is slow
        yield room[:, :, : part.shape[2]].copy_(part)


def _parts(x: Tensor, rows: Tensor) -> Sequence[Tensor]:
    """Keys or values, in parts if they have to be widened for few rows.

    A widened part is used before it leaves the processor's cache. All of `x`,
    widened at once, would be written to memory and read again.
    """
    B, K, S, D = x.shape
    if torch.compiler.is_compiling() or rows.dtype == x.dtype:
        return [x]
    if rows.shape[2] > D:  # the scores are larger than the keys
        return [x]
    elements = 2**20 if x.device.type == "cpu" else 2**26
    return torch.split(x, max(1, elements // max(1, B * K * D)), dim=2)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    with without_autocast(a.device):
        return a @ b


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Without autocast, which would round the float32 scores to half again."""
    kind = device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


# --8<-- [end:core]


# --8<-- [start:check]
def check_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
) -> None:
    """What every core refuses, in the same words."""
    _check_values(q, k, v)
    _check_scores(q, k, mask, scale)


def _check_scores(
    q: Tensor, k: Tensor, mask: Mask, scale: float | None
) -> None:
    _check_pair("q", q, "k", k)
    B, H, T, D = q.shape
    K, S = k.shape[1:3]
    if k.shape[3] != D:
        raise ValueError(f"q has D={D}, k has D={k.shape[3]}")
    if D == 0:
        raise ValueError("q and k have D=0: the head width must be at least 1")
    if K == 0 or H % K:
        raise ValueError(f"q has H={H} heads, k has K={K}: K must divide H")
    if scale is not None and not isinstance(scale, (int, float)):
        raise TypeError(f"scale is {type(scale).__name__}; pass a float")
    if mask is not None:
        check_mask(mask, (B, H, T, S), q.device)


def _check_values(q: Tensor, k: Tensor, v: Tensor) -> None:
    _check_pair("q", q, "v", v)
    if k.shape[1:3] != v.shape[1:3]:
        raise ValueError(
            f"k has K={k.shape[1]} heads and S={k.shape[2]} keys, "
            f"v has K={v.shape[1]} and S={v.shape[2]}: they must agree"
        )


def _check_pair(name: str, x: Tensor, other: str, y: Tensor) -> None:
    for n, t in ((name, x), (other, y)):
        if t.dim() != 4:
            raise ValueError(
                f"{n} has shape {tuple(t.shape)}; it needs 4 axes: "
                "batch, heads, positions, width"
            )
        if not t.is_floating_point():
            raise TypeError(f"{n} is {t.dtype}; it needs a floating dtype")
    if x.shape[0] != y.shape[0]:
        raise ValueError(
            f"{name} has B={x.shape[0]}, {other} has B={y.shape[0]}"
        )
    if x.dtype != y.dtype:
        raise TypeError(f"{name} is {x.dtype}, {other} is {y.dtype}")
    if x.device != y.device:
        raise ValueError(f"{name} is on {x.device}, {other} on {y.device}")


# --8<-- [end:check]
