"""FlashAttention as an algorithm: attention tile by tile, in plain PyTorch."""

# --8<-- [start:imports]
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnref.core.biases import Bias, PlacedBias, place
from attnref.core.checks import check_sizes
from attnref.core.inputs import check_attention
from attnref.core.masks import Mask, part_of
from attnref.core.sdpa import without_autocast
from attnref.core.sinks import add_sinks

# --8<-- [end:imports]


# --8<-- [start:tiles]
class Tile(NamedTuple):
    """Some queries and some keys; which sees which, None = all do."""

    rows: slice
    columns: slice
    seen: Tensor | None


class Tiles(NamedTuple):
    """The scores of one call, cut into tiles of `height` by `width`."""

    T: int
    S: int
    mask: Mask
    height: int
    width: int

    def of_rows(self, rows: slice) -> Iterator[Tile]:
        for columns in parts(self.S, self.width):
            yield from self._tile(rows, columns)

    def of_columns(self, columns: slice) -> Iterator[Tile]:
        for rows in parts(self.T, self.height):
            yield from self._tile(rows, columns)

    def _tile(self, rows: slice, columns: slice) -> Iterator[Tile]:
        """The tile, unless no query in it sees any key."""
        seen = part_of(self.mask, rows, columns)
        known = not torch.compiler.is_compiling()  # which elements are True
        if seen is not None and known and seen.device.type != "meta":
            shown = int(seen.count_nonzero())  # one pass for both questions
            if shown == 0:
                return
            if shown == seen.numel():
                seen = None
        yield Tile(rows, columns, seen)


def parts(length: int, size: int) -> list[slice]:
    starts = range(0, length, size)
    return [slice(i, min(i + size, length)) for i in starts]


# --8<-- [end:tiles]


# --8<-- [start:forward]
def _forward(
    q: Tensor, k: Tensor, v: Tensor, how: "_How"
) -> tuple[Tensor, Tensor]:
    """The output, and the log-sum-exp of each query's scores.

    Per row of scores, `m` is the largest so far, `total` the sum of the
    exponentials and `acc` the sum of the weighted values. Both are relative to
    `m`: when `m` grows, they are rescaled.
    """
    B, H, T, D = q.shape
    K, S, Dv = v.shape[1:]
    wide = torch.promote_types(q.dtype, torch.float32)
    out = q.new_empty(B, H, T, Dv)
    lse = q.new_empty((B, H, T, 1), dtype=wide)
    # All tiles use the same memory for scores: fresh memory is slow.
    size = min(T, how.tiles.height) * min(S, how.tiles.width)
    room = q.new_empty(B * H * size, dtype=wide)
    for rows in parts(T, how.tiles.height):
        queries = _folded(q, rows, K, wide) * how.scale
        m = queries.new_full((*queries.shape[:2], 1), -torch.inf)
        total = torch.zeros_like(m)
        acc = queries.new_zeros((*queries.shape[:2], Dv))
        for tile in how.tiles.of_rows(rows):
            keys = _folded(k, tile.columns, K, wide)
            values = _folded(v, tile.columns, K, wide)
            shape = *queries.shape[:2], keys.shape[1]
            scores = room[: prod(shape)].view(shape)
            torch.bmm(queries, keys.mT, out=scores)
            scores = how.changed(scores, tile, (B, H))
            _hide(scores, tile, (B, H), -torch.inf)
            larger = torch.maximum(m, scores.amax(-1, keepdim=True))
            # No key seen so far: -inf - (-inf) would be NaN.
            base = larger.masked_fill(larger == -torch.inf, 0)
            p = scores.sub_(base).exp_()
            rescale = (m - base).exp_()
            total.mul_(rescale).add_(p.sum(-1, keepdim=True))
            acc.mul_(rescale).baddbmm_(how.dropped(p, tile), values)
            m = larger
        # A query that sees no key: total = 0, the output 0, the lse -inf.
        acc.div_(total.masked_fill(total == 0, 1))
        out[:, :, rows] = acc.view_as(out[:, :, rows])
        m.add_(total.masked_fill(total == 0, 1).log())
        lse[:, :, rows] = m.view_as(lse[:, :, rows])
    return out, lse


# --8<-- [end:forward]


# --8<-- [start:backward]
def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: Tensor,
    delta: Tensor,
    d_out: Tensor,
    how: "_How",
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of q, k, v and the bias; the weights are computed again.

    With the log-sum-exp of a row its weights are `exp(s - lse)`: no maximum
    and no sum is needed. `delta` is what the softmax subtracts from the
    gradient of every weight of a row: the sum of `d_out * out`.
    """
    B, H = q.shape[:2]
    K, S = k.shape[1:3]
    wide = lse.dtype
    dq = torch.zeros_like(q, dtype=wide)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    learned = None if how.bias is None else how.bias.learned
    d_bias = None if learned is None else torch.zeros_like(learned)
    # A query that sees no key has no weights: exp(s - inf) = 0.
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    for columns in parts(S, how.tiles.width):
        keys = _folded(k, columns, K, wide)
        values = _folded(v, columns, K, wide)
        d_keys, d_values = torch.zeros_like(keys), torch.zeros_like(values)
        for tile in how.tiles.of_columns(columns):
            queries = _folded(q, tile.rows, K, wide) * how.scale
            above = _folded(d_out, tile.rows, K, wide)
            rows = _folded(lse, tile.rows, K, wide)
            slope = None  # of the softcap
            if how.softcap is None and how.bias is None:
                p = torch.baddbmm(rows, queries, keys.mT, beta=-1).exp_()
            else:
                scores = how.changed(torch.bmm(queries, keys.mT), tile, (B, H))
                p = (scores - rows).exp_()
                if how.softcap is not None:
                    slope = 1 - (scores / how.softcap) ** 2
            _hide(p, tile, (B, H), 0)
            d_values.baddbmm_(how.dropped(p, tile).mT, above)
            d_p = how.dropped(torch.bmm(above, values.mT), tile)
            d_scores = d_p.sub_(_folded(delta, tile.rows, K, wide)).mul_(p)
            if slope is not None:
                d_scores *= slope
            if how.bias is not None and d_bias is not None:
                by_head = _by_head(d_scores, tile, (B, H))
                how.bias.add_gradient(d_bias, by_head, *tile[:2])
            d_keys.baddbmm_(d_scores.mT, queries)
            d_queries = dq[:, :, tile.rows]
            d_queries += torch.bmm(d_scores, keys).view_as(d_queries)
        dk[:, :, columns] = d_keys.view_as(dk[:, :, columns])
        dv[:, :, columns] = d_values.view_as(dv[:, :, columns])
    return (dq * how.scale).to(q.dtype), dk, dv, d_bias


# --8<-- [end:backward]


# --8<-- [start:fold]
def _folded(x: Tensor, part: slice, K: int, dtype: torch.dtype) -> Tensor:
    """A part of `x`, `(B * K, heads per group * positions, width)`."""
    B, H, _, width = x.shape
    rows = H // K * (part.stop - part.start)
    return x[:, :, part].to(dtype).reshape(B * K, rows, width)


def _hide(
    scores: Tensor, tile: Tile, heads: tuple[int, int], value: float
) -> None:
    if tile.seen is not None:
        _by_head(scores, tile, heads).masked_fill_(~tile.seen, value)


def _by_head(scores: Tensor, tile: Tile, heads: tuple[int, int]) -> Tensor:
    T = tile.rows.stop - tile.rows.start
    return scores.view(*heads, T, scores.shape[2])


# --8<-- [end:fold]


# --8<-- [start:flash]
class _How(NamedTuple):
    tiles: Tiles
    scale: float
    dropout: float
    seed: int
    softcap: float | None
    bias: PlacedBias | None

    def changed(
        self, scores: Tensor, tile: Tile, heads: tuple[int, int]
    ) -> Tensor:
        """The scaled scores of a tile after bias and softcap."""
        if self.bias is not None:
            added = self.bias.part(tile.rows, tile.columns)
            _by_head(scores, tile, heads).add_(added)
        if self.softcap is None:
            return scores
        return scores.div_(self.softcap).tanh_().mul_(self.softcap)

    def dropped(self, weights: Tensor, tile: Tile) -> Tensor:
        """Dropout that the backward pass can repeat: one seed per tile."""
        if not self.dropout:
            return weights
        number = tile.rows.start * self.tiles.S + tile.columns.start
        g = torch.Generator(weights.device).manual_seed(self.seed + number)
        drawn = torch.rand(weights.shape, generator=g, device=weights.device)
        return weights * (drawn >= self.dropout) / (1 - self.dropout)


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        learned: Tensor | None,
        how: _How,
    ) -> tuple[Tensor, Tensor]:
        with without_autocast(q.device):
            out, lse = _forward(q, k, v, how)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.how = how
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        given = (*ctx.saved_tensors, *grad_outputs, ctx.how)
        return *_Gradients.apply(*given), None  # type: ignore[no-untyped-call]


class _Gradients(torch.autograd.Function):
    """The backward pass, which has no derivative itself."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        d_out: Tensor,
        d_lse: Tensor,
        how: _How,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        mixed = d_out.to(lse.dtype) * out
        delta = mixed.sum(-1, keepdim=True) - d_lse
        with without_autocast(q.device):
            return _backward(q, k, v, lse, delta, d_out, how)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise RuntimeError("flash has no second derivative; use sdpa")


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | Bias | None = None,
    tile: tuple[int, int] | None = None,
) -> Tensor:
    """The same as `sdpa`, tile by tile: no `(T, S)` matrix is in memory.

    `tile` is the number of queries and of keys in a tile. The default is 128
    and 128; with fewer queries more keys, up to 512.

    Examples:
        >>> q, k = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 3, 4)
        >>> v = torch.tensor([[[[0.0], [3.0], [6.0]]]])
        >>> flash(q, k, v, tile=(1, 2))
        tensor([[[[3.]]]])
    """
    return flash_lse(
        q,
        k,
        v,
        mask,
        scale=scale,
        dropout=dropout,
        softcap=softcap,
        sinks=sinks,
        bias=bias,
        tile=tile,
    )[0]


def flash_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | Bias | None = None,
    tile: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """`flash`, and the log-sum-exp of the scores of each query `(B, H, T)`.

    It includes `sinks`: if you merge parts, give them to none of the parts.
    """
    check_attention(q, k, v, mask, scale, softcap, sinks, bias)
    rows = min(max(q.shape[2], 32), 128)
    height, width = tile or (128, 128 * 128 // rows)
    check_sizes(height=height, width=width)
    if not 0 <= dropout < 1:
        raise ValueError(f"{dropout=} must be at least 0 and below 1")
    seed = int(torch.randint(2**40, ())) if dropout else 0
    cut = Tiles(q.shape[2], k.shape[2], mask, height, width)
    factor = q.shape[3] ** -0.5 if scale is None else scale
    added = place(bias, mask, q, k)
    how = _How(cut, factor, dropout, seed, softcap, added)
    given = (q, k, v, None if added is None else added.learned, how)
    try:
        out, lse = _Flash.apply(*given)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if "functorch" not in str(error):
            raise
        raise RuntimeError(
            "flash does not run under torch.func, as in vmap or grad, nor does "
            "what is built on it; use sdpa"
        ) from error
    lse = lse[..., 0]
    return (out, lse) if sinks is None else add_sinks(out, lse, sinks)


# --8<-- [end:flash]
