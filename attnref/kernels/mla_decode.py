"""Decode of absorbed MLA: many query heads share one latent per token."""

# --8<-- [start:imports]
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnref.kernels.launch import (
    Kernel,
    check_dtype,
    check_place,
    constexpr,
    has_wgmma,
    power_of_2,
    span_for,
)
from attnref.kernels.merge import merge_parts

if TYPE_CHECKING:
    import triton.language as tl

# --8<-- [end:imports]


# --8<-- [start:kernel]
@Kernel
def _attend(
    q, cache, lengths, outs, lses, scale, parts, S, q_b, q_h, cache_b, cache_s,
    H: constexpr, R: constexpr, DR: constexpr, WIDTH: constexpr,
    WIDTH_R: constexpr, SPAN: constexpr, BLOCK: constexpr,
    ROWS: constexpr,
):  # fmt: skip
    """SPAN tokens for ROWS query heads: each latent is read once for all."""
    # Neighbours in the grid read the same tokens: the second finds them in L2.
    group, part, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.minimum(tl.load(lengths + b), S)
    if part * SPAN >= length:
        return
    end = tl.minimum(part * SPAN + SPAN, length)
    head = group * ROWS + tl.arange(0, ROWS)
    r, d = tl.arange(0, WIDTH), tl.arange(0, WIDTH_R)
    b = b.to(tl.int64)
    q += b * q_b + head[:, None] * q_h
    real = (head[:, None] < H) & (r < R)
    absorbed = tl.load(q + r, mask=real, other=0.0)  # (ROWS, WIDTH)
    rotated = (head[:, None] < H) & (d < DR)
    rotated = tl.load(q + R + d, mask=rotated, other=0.0)  # (ROWS, WIDTH_R)
    m = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(part * SPAN, end, BLOCK):
        s = start + tl.arange(0, BLOCK)
        token = cache + b * cache_b + s[:, None].to(tl.int64) * cache_s
        inside = s[:, None] < end
        latent = tl.load(token + r, mask=inside & (r < R), other=0.0)
        key = tl.load(token + R + d, mask=inside & (d < DR), other=0.0)
        scores = tl.dot(absorbed, tl.trans(latent), input_precision="ieee")
        scores += tl.dot(rotated, tl.trans(key), input_precision="ieee")
        scores = tl.where(s < end, scores * scale, -float("inf"))
        larger = tl.maximum(m, tl.max(scores, 1))
        p = tl.exp(scores - larger[:, None])  # (ROWS, BLOCK)
        rescale = tl.exp(m - larger)
        acc = acc * rescale[:, None]
        acc += tl.dot(p.to(latent.dtype), latent, input_precision="ieee")
        total = total * rescale + tl.sum(p, 1)
        m = larger
    line = (b * H + head) * parts + part  # of outs (B, H, parts, R)
    tl.store(outs + line[:, None] * R + r, acc / total[:, None], mask=real)
    tl.store(lses + line, m + tl.log(total), mask=head < H)


# --8<-- [end:kernel]


# --8<-- [start:function]
def mla_decode(
    q: Tensor,
    cache: Tensor,
    lengths: Tensor,
    R: int,
    *,
    scale: float,
    span: int | None = None,
    block: int = 32,
    rows: int | None = None,
) -> Tensor:
    """Weighted sums of latents (B, H, 1, R), still without the value matrix.

    q is (B, H, 1, R + Dr): the query absorbed into the latent's space, then
    its rotated part. `cache` is (B, S, R + Dr), filled up to `lengths` (B,).
    `scale` is (Dn + Dr) ** -0.5, of the heads before absorption. A program
    reads `span` tokens for `rows` query heads, in blocks of `block`.
    """
    check_place("mla_decode", q, cache, lengths)
    check_dtype("mla_decode", q, cache)
    (B, H, T, width), S = q.shape, cache.shape[1]
    if T != 1 or cache.shape != (B, S, width) or not 0 < R < width:
        shapes = f"q {tuple(q.shape)}, cache {tuple(cache.shape)}, {R=}"
        raise ValueError(f"mla_decode takes one query per sequence: {shapes}")
    if lengths.shape != (B,):
        raise ValueError(f"{tuple(lengths.shape)=} must be {(B,)}")
    q, cache = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, cache))
    # What fits into registers: more spills, as `ptxas` says.
    rows = min(rows or (64 if has_wgmma(q) else 32), power_of_2(H))
    groups = -(-H // rows)
    span = span or span_for(S, B * groups, 264, block)
    parts = max(1, -(-S // span))
    outs = q.new_empty(B, H, parts, R, dtype=torch.float32)
    lses = q.new_empty(B, H, parts, dtype=torch.float32)
    out = q.new_empty(B, H, 1, R)
    if out.numel() == 0:
        return out
    _attend[groups, parts, B](
        q, cache, lengths, outs, lses, scale, parts, S,
        *q.stride()[:2], *cache.stride()[:2],
        H=H, R=R, DR=width - R, WIDTH=power_of_2(R),
        WIDTH_R=power_of_2(width - R), SPAN=span, BLOCK=block, ROWS=rows,
        num_warps=8 if rows > 16 else 4, num_stages=2,
    )  # fmt: skip
    return merge_parts(outs, lses, lengths, out, span)


# --8<-- [end:function]
