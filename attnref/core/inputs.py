"""What every attention function refuses, in the same words."""

# --8<-- [start:imports]
import torch
from torch import Tensor

from attnref.core.biases import Bias
from attnref.core.masks import Mask, check_mask

# --8<-- [end:imports]


# --8<-- [start:check]
def check_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    scale: float | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | Bias | None = None,
) -> None:
    """Queries, keys, values and what changes the scores must fit together."""
    _check_values(q, k, v)
    check_scores(q, k, mask, scale, softcap, sinks, bias)


def check_scores(
    q: Tensor,
    k: Tensor,
    mask: Mask,
    scale: float | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | Bias | None = None,
) -> None:
    """The same without values."""
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
    if softcap is not None and not softcap > 0:
        raise ValueError(f"{softcap=} must be above 0; without one, pass None")
    if sinks is not None:
        _check_floats("sinks", sinks, q.device)
        if sinks.shape != (H,):
            raise ValueError(
                f"sinks has shape {tuple(sinks.shape)}; it needs one logit "
                f"per query head, {(H,)}"
            )
    if isinstance(bias, Tensor):
        _check_floats("bias", bias, q.device)
        _check_spread(tuple(bias.shape), (B, H, T, S))
    elif bias is not None:
        if not hasattr(bias, "check_heads"):
            kind = type(bias).__name__
            raise TypeError(f"bias is {kind}; pass a tensor or a Bias")
        bias.check_heads(H)


def _check_floats(name: str, x: Tensor, device: torch.device) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is {type(x).__name__}; pass a tensor")
    if not x.is_floating_point():
        how = ": a bool tensor is a `mask`" if x.dtype == torch.bool else ""
        raise TypeError(f"{name} is {x.dtype}; it needs a floating dtype{how}")
    if x.device != device:
        raise ValueError(f"{name} is on {x.device}, q on {device}")


def _check_spread(shape: tuple[int, ...], full: tuple[int, ...]) -> None:
    """A bias may have 2, 3 or 4 axes: `(T, S)`, `(H, T, S)` or all."""
    pairs = zip(shape, full[-len(shape) :], strict=False)
    if len(shape) not in (2, 3, 4) or any(m not in (1, n) for m, n in pairs):
        raise ValueError(
            f"bias has shape {shape}, which does not broadcast to "
            f"(B, H, T, S) = {full}"
        )


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
