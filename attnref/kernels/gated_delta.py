"""Gated DeltaNet in chunks: the state stays on the chip all along the text."""

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
)

if TYPE_CHECKING:
    import triton.language as tl

# --8<-- [end:imports]


# --8<-- [start:kernel]
@Kernel
def _chunks(
    q, k, v, decay, beta, state, last, out, T,
    D: constexpr, DV: constexpr, WIDTH: constexpr,
    C: constexpr, COLUMNS: constexpr, PRECISION: constexpr,
):  # fmt: skip
    """COLUMNS columns of the state of one head; each is independent.

    What the C tokens of a chunk write, U, solves (I + L) U = beta (V - K S'),
    with S' the faded state and L[i, j] = beta[i] (k[i] . k[j]) fade(i, j).
    """
    columns, line = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i, d = tl.arange(0, C), tl.arange(0, WIDTH)
    e = columns * COLUMNS + tl.arange(0, COLUMNS)
    corner = line * D * DV + d[:, None] * DV + e
    inside = (d[:, None] < D) & (e < DV)
    S = tl.load(state + corner, mask=inside, other=0.0)  # (WIDTH, COLUMNS)
    before, diagonal = i[:, None] > i[None, :], i[:, None] == i[None, :]
    for start in range(0, T, C):
        row = line * T + start + i
        real = start + i < T
        wide = real[:, None] & (d < D)
        queries = tl.load(q + row[:, None] * D + d, mask=wide, other=0.0)
        keys = tl.load(k + row[:, None] * D + d, mask=wide, other=0.0)
        wide = real[:, None] & (e < DV)
        values = tl.load(v + row[:, None] * DV + e, mask=wide, other=0.0)
        logs = tl.load(decay + row, mask=real, other=0.0)  # (C,)
        b = tl.load(beta + row, mask=real, other=0.0)[:, None]
        # Sums over (j, i]: a difference of two long sums would lose digits.
        sums = tl.cumsum(tl.where(before, logs[:, None], 0.0), 0)
        fade = tl.where(before | diagonal, tl.exp(sums), 0.0)  # (C, C)
        since = tl.exp(tl.cumsum(logs, 0))[:, None]  # from the state
        until = tl.exp(tl.sum(tl.where(before, logs[:, None], 0.0), 0))
        alike = tl.dot(keys, tl.trans(keys), input_precision=PRECISION)
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
        # Row after row; (I - L)(I + L^2)(I + L^4)... cancels where keys agree.
        inverse = tl.where(before, -b * alike * fade, 0.0)
        for n in range(1, C):
            this = i[:, None] == n
            found = tl.sum(tl.where(this, inverse, 0.0), 0)  # (C,)
            found += tl.sum(found[:, None] * inverse, 0)
            inverse = tl.where(this, found[None, :], inverse)
        inverse += tl.where(diagonal, 1.0, 0.0)
        queries, keys = queries.to(tl.float32), keys.to(tl.float32)
        known = tl.dot(keys, S, input_precision=PRECISION) * since
        news = b * (values.to(tl.float32) - known)
        news = tl.dot(inverse, news, input_precision=PRECISION)  # (C, COLUMNS)
        result = tl.dot(queries, S, input_precision=PRECISION) * since
        result += tl.dot(scores * fade, news, input_precision=PRECISION)
        tl.store(out + row[:, None] * DV + e, result, mask=wide)
        S *= tl.exp(tl.sum(logs, 0))
        faded = tl.trans(keys * until[:, None])
        S += tl.dot(faded, news, input_precision=PRECISION)
    tl.store(last + corner, S, mask=inside)


# --8<-- [end:kernel]


# --8<-- [start:function]
def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    *,
    chunk: int = 16,
    columns: int = 16,
) -> tuple[Tensor, Tensor]:
    """The outputs (B, H, T, Dv) and the last state (B, H, D, Dv), forward only.

    As `delta_rule` of the plain form: q (scaled) and k (of length 1) are
    (B, H, T, D), v (B, H, T, Dv); `decay` (a log, at most 0), `beta` (B, H, T)
    and `state` (B, H, D, Dv) are float32. A program has `columns` of the state.
    """
    check_place("gated_delta", q, k, v, decay, beta, state)
    check_dtype("gated_delta", q, k, v)
    (B, H, T, D), DV = q.shape, v.shape[3]
    shapes = {
        "q": (q, (B, H, T, D)),
        "k": (k, (B, H, T, D)),
        "v": (v, (B, H, T, DV)),
        "decay": (decay, (B, H, T)),
        "beta": (beta, (B, H, T)),
        "state": (state, (B, H, D, DV)),
    }
    for name, (x, shape) in shapes.items():
        if x.shape != shape:
            raise ValueError(f"{name} has {tuple(x.shape)}, not {shape}")
        if name in ("decay", "beta", "state") and x.dtype != torch.float32:
            raise TypeError(f"{name} is {x.dtype}; pass float32")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise RuntimeError("gated_delta has no backward pass")
    q, k, v, decay, beta, state = (x.contiguous() for x, _ in shapes.values())
    out, last = torch.empty_like(v), torch.empty_like(state)
    if last.numel():
        _chunks[-(-DV // columns), B * H](
            q, k, v, decay, beta, state, last, out, T,
            D=D, DV=DV, WIDTH=power_of_2(D), C=chunk, COLUMNS=columns,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        )  # fmt: skip
    return out, last


# --8<-- [end:function]
