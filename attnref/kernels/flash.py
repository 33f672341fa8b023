"""FlashAttention as Triton kernels: one forward, two backward."""

# --8<-- [start:imports]
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnref.core.inputs import check_attention
from attnref.core.masks import Causal, Mask, RuleMask, Window
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


# --8<-- [start:scores]
@Kernel
def _scores(
    queries, keys, scale, t, s, T, S,
    CAUSAL: constexpr, WINDOW: constexpr, CAP: constexpr,
):  # fmt: skip
    """The scores of a tile, -inf where a query does not see a key."""
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
    if CAP > 0:  # tanh(x) = 1 - 2 / (exp(2 x) + 1)
        scores = CAP * (1 - 2 / (tl.exp(2 / CAP * scores) + 1))
    i, j = t[:, None] + S - T, s[None, :]  # the last query is the last token
    seen = (t[:, None] < T) & (j < S)
    if CAUSAL:
        seen = seen & (j <= i)
    if WINDOW > 0:
        seen = seen & (j > i - WINDOW)
    return tl.where(seen, scores, -float("inf"))


# --8<-- [end:scores]


# --8<-- [start:forward]
@Kernel
def _forward(
    q, k, v, sinks, out, lse, scale, T, S,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s,
    H: constexpr, G: constexpr, D: constexpr, DV: constexpr,
    WIDTH: constexpr, WIDTH_V: constexpr, CAUSAL: constexpr,
    WINDOW: constexpr, CAP: constexpr, SINKS: constexpr,
    BLOCK_T: constexpr, BLOCK_S: constexpr,
):  # fmt: skip
    """BLOCK_T queries of one head walk along the keys that they see."""
    # The last queries see most keys: they begin.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    h, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    t = block * BLOCK_T + tl.arange(0, BLOCK_T)
    d, e = tl.arange(0, WIDTH), tl.arange(0, WIDTH_V)
    q += b * q_b + h * q_h + t[:, None].to(tl.int64) * q_t + d
    rows = t[:, None] < T
    queries = tl.load(q, mask=rows & (d < D), other=0.0)  # (BLOCK_T, WIDTH)
    m = tl.full([BLOCK_T], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_T], tl.float32)
    acc = tl.zeros([BLOCK_T, WIDTH_V], tl.float32)
    first, end = 0, S
    if CAUSAL:  # what the last query of the block sees
        end = tl.minimum(S, S - T + (block + 1) * BLOCK_T)
    if WINDOW > 0:  # what its first query sees
        first = tl.maximum(0, S - T + block * BLOCK_T - WINDOW + 1)
        first = first // BLOCK_S * BLOCK_S
    for start in range(first, end, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        far, inside = s[:, None].to(tl.int64), s[:, None] < S
        keys = tl.load(
            k + b * k_b + h // G * k_h + far * k_s + d,
            mask=inside & (d < D), other=0.0,
        )  # (BLOCK_S, WIDTH)  # fmt: skip
        values = tl.load(
            v + b * v_b + h // G * v_h + far * v_s + e,
            mask=inside & (e < DV), other=0.0,
        )  # (BLOCK_S, WIDTH_V)  # fmt: skip
        scores = _scores(queries, keys, scale, t, s, T, S, CAUSAL, WINDOW, CAP)
        larger = tl.maximum(m, tl.max(scores, 1))
        # No key seen so far: -inf - (-inf) would be NaN.
        base = tl.where(larger == -float("inf"), 0.0, larger)
        p = tl.exp(scores - base[:, None])  # (BLOCK_T, BLOCK_S)
        rescale = tl.exp(m - base)
        acc = acc * rescale[:, None]
        acc += tl.dot(p.to(values.dtype), values, input_precision="ieee")
        total = total * rescale + tl.sum(p, 1)
        m = larger
    if SINKS:  # one more score per head, without a value
        sink = tl.load(sinks + h).to(tl.float32)
        larger = tl.maximum(m, sink)
        rescale = tl.exp(m - larger)
        acc = acc * rescale[:, None]
        total = total * rescale + tl.exp(sink - larger)
        m = larger
    # A query that sees no key: the output 0, the log-sum-exp -inf.
    total = tl.where(total == 0, 1.0, total)
    line = (b * H + h) * T + t  # of out (B, H, T, DV)
    out += line[:, None] * DV + e
    tl.store(out, acc / total[:, None], mask=rows & (e < DV))
    tl.store(lse + line, m + tl.log(total), mask=t < T)


# --8<-- [end:forward]


# --8<-- [start:gradient]
@Kernel
def _gradient(
    queries, keys, values, d_out, lse, delta, scale, t, s, T, S,
    CAUSAL: constexpr, WINDOW: constexpr, CAP: constexpr,
):  # fmt: skip
    """The weights of a tile, and the gradient of its scores."""
    scores = _scores(queries, keys, scale, t, s, T, S, CAUSAL, WINDOW, CAP)
    # A query that sees no key has the log-sum-exp -inf: -inf + inf is NaN.
    p = tl.exp(scores - tl.where(lse == -float("inf"), 0.0, lse)[:, None])
    d_p = tl.dot(d_out, tl.trans(values), input_precision="ieee")
    d_scores = p * (d_p - delta[:, None])
    if CAP > 0:  # hidden scores are -inf, and have no weight
        capped = tl.where(scores == -float("inf"), 0.0, scores) / CAP
        d_scores = d_scores * (1 - capped * capped)
    return p, d_scores


# --8<-- [end:gradient]


# --8<-- [start:queries]
@Kernel
def _d_queries(
    q, k, v, d_out, lse, delta, dq, scale, T, S,
    H: constexpr, G: constexpr, D: constexpr, DV: constexpr,
    WIDTH: constexpr, WIDTH_V: constexpr, CAUSAL: constexpr,
    WINDOW: constexpr, CAP: constexpr,
    BLOCK_T: constexpr, BLOCK_S: constexpr,
):  # fmt: skip
    """BLOCK_T queries of one head walk along their keys once more."""
    block, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    line = b.to(tl.int64) * H + h  # of q (B * H, T, D)
    t = block * BLOCK_T + tl.arange(0, BLOCK_T)
    d, e = tl.arange(0, WIDTH), tl.arange(0, WIDTH_V)
    real_d, real_e = (t[:, None] < T) & (d < D), (t[:, None] < T) & (e < DV)
    near, near_v = t[:, None] * D + d, t[:, None] * DV + e
    queries = tl.load(q + line * T * D + near, mask=real_d, other=0.0)
    d_outs = tl.load(d_out + line * T * DV + near_v, mask=real_e, other=0.0)
    lses = tl.load(lse + line * T + t, mask=t < T, other=0.0)
    deltas = tl.load(delta + line * T + t, mask=t < T, other=0.0)
    k += line // G * S * D  # of k (B * K, S, D)
    v += line // G * S * DV
    acc = tl.zeros([BLOCK_T, WIDTH], tl.float32)
    first, end = 0, S
    if CAUSAL:
        end = tl.minimum(S, S - T + (block + 1) * BLOCK_T)
    if WINDOW > 0:
        first = tl.maximum(0, S - T + block * BLOCK_T - WINDOW + 1)
        first = first // BLOCK_S * BLOCK_S
    for start in range(first, end, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        inside = s[:, None] < S
        keys = tl.load(k + s[:, None] * D + d, mask=inside & (d < D), other=0.0)
        values = tl.load(
            v + s[:, None] * DV + e, mask=inside & (e < DV), other=0.0
        )
        _, d_scores = _gradient(
            queries, keys, values, d_outs, lses, deltas, scale, t, s, T, S,
            CAUSAL, WINDOW, CAP,
        )  # fmt: skip
        acc += tl.dot(d_scores.to(keys.dtype), keys, input_precision="ieee")
    tl.store(dq + line * T * D + near, acc * scale, mask=real_d)


# --8<-- [end:queries]


# --8<-- [start:keys]
@Kernel
def _d_keys_values(
    q, k, v, d_out, lse, delta, dk, dv, scale, T, S,
    K: constexpr, G: constexpr, D: constexpr, DV: constexpr,
    WIDTH: constexpr, WIDTH_V: constexpr, CAUSAL: constexpr,
    WINDOW: constexpr, CAP: constexpr,
    BLOCK_T: constexpr, BLOCK_S: constexpr,
):  # fmt: skip
    """BLOCK_S keys walk along the queries of all heads of their group.

    No other program adds to their gradients: no atomics, one order of sums.
    """
    block, kv, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group = b.to(tl.int64) * K + kv  # of k (B * K, S, D)
    s = block * BLOCK_S + tl.arange(0, BLOCK_S)
    d, e = tl.arange(0, WIDTH), tl.arange(0, WIDTH_V)
    real_d, real_e = (s[:, None] < S) & (d < D), (s[:, None] < S) & (e < DV)
    near = group * S * D + s[:, None] * D + d
    near_v = group * S * DV + s[:, None] * DV + e
    keys = tl.load(k + near, mask=real_d, other=0.0)
    values = tl.load(v + near_v, mask=real_e, other=0.0)
    acc_k = tl.zeros([BLOCK_S, WIDTH], tl.float32)
    acc_v = tl.zeros([BLOCK_S, WIDTH_V], tl.float32)
    first, end = 0, T
    if CAUSAL:  # the first query that sees the block's first key
        first = tl.maximum(0, block * BLOCK_S - (S - T)) // BLOCK_T * BLOCK_T
    if WINDOW > 0:  # the last query that sees its last key
        end = tl.minimum(T, (block + 1) * BLOCK_S - 1 - (S - T) + WINDOW)
    for line in range(group * G, group * G + G):  # heads of q (B * H, T, D)
        for start in range(first, end, BLOCK_T):
            t = start + tl.arange(0, BLOCK_T)
            inside = t[:, None] < T
            queries = tl.load(
                q + line * T * D + t[:, None] * D + d,
                mask=inside & (d < D), other=0.0,
            )  # fmt: skip
            d_outs = tl.load(
                d_out + line * T * DV + t[:, None] * DV + e,
                mask=inside & (e < DV), other=0.0,
            )  # fmt: skip
            lses = tl.load(lse + line * T + t, mask=t < T, other=0.0)
            deltas = tl.load(delta + line * T + t, mask=t < T, other=0.0)
            p, d_scores = _gradient(
                queries, keys, values, d_outs, lses, deltas, scale, t, s, T, S,
                CAUSAL, WINDOW, CAP,
            )  # fmt: skip
            p = tl.trans(p.to(d_outs.dtype))
            acc_v += tl.dot(p, d_outs, input_precision="ieee")
            d_scores = tl.trans(d_scores.to(queries.dtype))
            acc_k += tl.dot(d_scores, queries, input_precision="ieee")
    tl.store(dk + near, acc_k * scale, mask=real_d)
    tl.store(dv + near_v, acc_v, mask=real_e)


# --8<-- [end:keys]


# --8<-- [start:function]
class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        scale: float,
        sizes: dict[str, Any],
        block: tuple[int, int] | None,
    ) -> tuple[Tensor, Tensor]:
        (B, H, T, D), (K, S, DV) = q.shape, v.shape[1:]
        out = q.new_empty(B, H, T, DV)
        lse = q.new_empty(B, H, T, dtype=torch.float32)
        sizes |= {"G": H // K, "D": D, "DV": DV}
        sizes |= {"WIDTH": power_of_2(D), "WIDTH_V": power_of_2(DV)}
        # What fits into registers: more spills, as `ptxas` says.
        side = 64 if q.itemsize == 2 and max(D, DV) <= 128 else 32
        block_t, block_s = block or (2 * side, side)
        if out.numel():
            _forward[-(-T // block_t), H, B](
                q, k, v, sinks, out, lse, scale, T, S,
                *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
                H=H, **sizes, SINKS=sinks is not None, BLOCK_T=block_t,
                BLOCK_S=block_s, num_warps=8,
            )  # fmt: skip
        ctx.save_for_backward(q, k, v, sinks, out, lse)
        ctx.scale, ctx.sizes, ctx.side, ctx.block = scale, sizes, side, block
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Any
    ) -> Any:
        (d_out, d_lse), scale = grad_outputs, ctx.scale
        q, k, v, sinks, out, lse = ctx.saved_tensors
        (B, H, T), (K, S) = q.shape[:3], k.shape[1:3]
        q, k, v, d_out = (x.contiguous() for x in (q, k, v, d_out))
        # What the softmax subtracts, from the output alone: (B, H, T).
        delta = (out.float() * d_out.float()).sum(-1) - d_lse
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        inputs = q, k, v, d_out, lse, delta
        if q.numel():
            block_t, block_s = ctx.block or (ctx.side, 32)
            _d_queries[-(-T // block_t), H, B](
                *inputs, dq, scale, T, S, H=H, **ctx.sizes,
                BLOCK_T=block_t, BLOCK_S=block_s, num_warps=8,
            )  # fmt: skip
        if k.numel():
            block_t, block_s = ctx.block or (32, ctx.side)
            _d_keys_values[-(-S // block_s), K, B](
                *inputs, dk, dv, scale, T, S, K=K, **ctx.sizes,
                BLOCK_T=block_t, BLOCK_S=block_s, num_warps=8,
            )  # fmt: skip
        d_sinks = None
        if sinks is not None:  # a sink has a weight and no value
            p_sinks = (sinks.float()[:, None] - lse).exp()
            d_sinks = -(p_sinks * delta).sum((0, 2)).to(sinks.dtype)
        return dq, dk, dv, d_sinks, None, None, None


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    block: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention (B, H, T, Dv) and the log-sum-exp (B, H, T), differentiable.

    q is (B, H, T, D), k (B, K, S, D), v (B, K, S, Dv). `window` counts the
    query's own token and implies `causal`; `sinks` is (H,); `block` is the
    number of queries and of keys in a tile.
    """
    check_place("flash", q, k, v)
    check_attention(q, k, v, None, scale, softcap, sinks)
    check_dtype("flash", q)
    if window is not None and window < 1:
        raise ValueError(f"{window=} must be at least 1")
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    sizes: dict[str, Any] = {"WINDOW": window or 0, "CAP": float(softcap or 0)}
    sizes |= {"CAUSAL": causal or window is not None}
    factor = q.shape[3] ** -0.5 if scale is None else scale
    options = q, k, v, sinks, factor, sizes, block
    return _Flash.apply(*options)  # type: ignore


# --8<-- [end:function]


# --8<-- [start:attend]
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: object = None,
) -> Tensor:
    """`flash` for a layer, `attend=attend`: no mask, a causal one, a window."""
    if dropout:
        raise ValueError("this kernel has no dropout; use attnref.flash")
    if bias is not None:
        raise ValueError("this kernel has no bias; use attnref.flash")
    parts: Any = {"scale": scale, "softcap": softcap, "sinks": sinks}
    if mask is None:
        return flash(q, k, v, causal=False, **parts)[0]
    rule = _rule_alone(mask)
    if rule is None:
        raise ValueError(
            "this kernel has causal masks and windows, without pads or "
            "positions; use attnref.flex or attnref.flash"
        )
    window = rule.size if isinstance(rule, Window) else None
    return flash(q, k, v, window=window, **parts)[0]


def _rule_alone(mask: Mask) -> Causal | Window | None:
    """The rule, if it decides by the numbers of all tokens and nothing else."""
    if not isinstance(mask, RuleMask) or mask.past != mask.S - mask.T:
        return None
    more = mask.positions, mask.mask, mask.token_positions, mask.lengths
    rule = mask.rule
    if not all(x is None for x in more):
        return None
    if type(rule) is Window and not rule.first:
        return rule
    return rule if type(rule) is Causal else None  # a subclass hides more


# --8<-- [end:attend]
