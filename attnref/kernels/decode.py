"""Decode: one query per sequence, its keys split among many programs."""

# --8<-- [start:imports]
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnref.kernels.launch import (
    Kernel,
    check_dtype,
    check_place,
    constexpr,
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
    q, k, v, lengths, table, outs, lses, scale, parts, S,
    q_b, q_h, k_b, k_h, k_s, v_b, v_h, v_s, table_b,
    H: constexpr, G: constexpr, D: constexpr, DV: constexpr,
    WIDTH: constexpr, WIDTH_V: constexpr, PAGE: constexpr,
    SPAN: constexpr, BLOCK: constexpr, ROWS: constexpr,
):  # fmt: skip
    """SPAN keys of one head, for all query heads of its group at once."""
    part, kv, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.minimum(tl.load(lengths + b), S)
    if part * SPAN >= length:
        return
    end = tl.minimum(part * SPAN + SPAN, length)
    row = tl.arange(0, ROWS)  # query heads of the group; G of them are real
    d, e = tl.arange(0, WIDTH), tl.arange(0, WIDTH_V)
    head = kv * G + row
    b = b.to(tl.int64)  # a cache may have more than 2^31 elements
    queries = tl.load(
        q + b * q_b + head[:, None] * q_h + d,
        mask=(row[:, None] < G) & (d < D), other=0.0,
    )  # (ROWS, WIDTH)  # fmt: skip
    m = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDTH_V], tl.float32)
    for start in range(part * SPAN, end, BLOCK):
        s = start + tl.arange(0, BLOCK)
        place, page = s.to(tl.int64), b
        if PAGE > 0:  # token s is in row s % PAGE of a page of the pool
            page = tl.load(table + b * table_b + s // PAGE, mask=s < end)
            page, place = page.to(tl.int64)[:, None], place % PAGE
        keys = tl.load(
            k + page * k_b + kv * k_h + place[:, None] * k_s + d,
            mask=(s[:, None] < end) & (d < D), other=0.0,
        )  # (BLOCK, WIDTH)  # fmt: skip
        values = tl.load(
            v + page * v_b + kv * v_h + place[:, None] * v_s + e,
            mask=(s[:, None] < end) & (e < DV), other=0.0,
        )  # (BLOCK, WIDTH_V)  # fmt: skip
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        scores = tl.where(s < end, scores * scale, -float("inf"))
        larger = tl.maximum(m, tl.max(scores, 1))
        p = tl.exp(scores - larger[:, None])  # (ROWS, BLOCK)
        rescale = tl.exp(m - larger)
        acc = acc * rescale[:, None]
        acc += tl.dot(p.to(values.dtype), values, input_precision="ieee")
        total = total * rescale + tl.sum(p, 1)
        m = larger
    line = (b * H + head) * parts + part  # of outs (B, H, parts, DV)
    real = (row[:, None] < G) & (e < DV)
    tl.store(outs + line[:, None] * DV + e, acc / total[:, None], mask=real)
    tl.store(lses + line, m + tl.log(total), mask=row < G)


# --8<-- [end:kernel]


# --8<-- [start:function]
def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    table: Tensor | None = None,
    span: int | None = None,
    block: int = 64,
) -> Tensor:
    """Attention (B, H, 1, Dv) of the newest token to the tokens so far.

    q is (B, H, 1, D), k (B, K, S, D), v (B, K, S, Dv); `lengths` (B,) says
    how many rows of each sequence are filled: no other row is read. With a
    block `table` (B, n), k and v are pools of pages, (pages, K, size, D).
    A program reads `span` keys, in blocks of `block`.
    """
    given = (q, k, v, lengths) if table is None else (q, k, v, lengths, table)
    check_place("decode", *given)
    check_dtype("decode", q, k, v)
    (B, H, T, D), (K, S, DV) = q.shape, v.shape[1:]
    paged = table is not None
    rows = k.shape[0] if paged else B
    fits = k.shape == (rows, K, S, D) and v.shape[0] == rows
    if T != 1 or not fits or H % K or lengths.shape != (B,):
        names = {"q": q, "k": k, "v": v, "lengths": lengths}
        shapes = ", ".join(f"{n} {tuple(x.shape)}" for n, x in names.items())
        raise ValueError(f"decode takes one query per sequence: {shapes}")
    if table is not None and (table.shape[0] != B or table.stride(1) != 1):
        raise ValueError(f"{tuple(table.shape)=} must be (B, n), B={B}")
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    page, longest = (S, S * table.shape[1]) if table is not None else (0, S)
    span = span or span_for(longest, B * K, 512, block)
    parts = max(1, -(-longest // span))
    outs = q.new_empty(B, H, parts, DV, dtype=torch.float32)
    lses = q.new_empty(B, H, parts, dtype=torch.float32)
    out = q.new_empty(B, H, 1, DV)
    if out.numel() == 0:
        return out
    _attend[parts, K, B](
        q, k, v, lengths, table, outs, lses,
        D**-0.5 if scale is None else scale, parts, longest,
        *q.stride()[:2], *k.stride()[:3], *v.stride()[:3],
        table.stride(0) if table is not None else 0,
        H=H, G=H // K, D=D, DV=DV, WIDTH=power_of_2(D),
        WIDTH_V=power_of_2(DV), PAGE=page, SPAN=span, BLOCK=block,
        ROWS=power_of_2(H // K),
    )  # fmt: skip
    return merge_parts(outs, lses, lengths, out, span)


# --8<-- [end:function]
