"""What every attention function refuses, in the same words."""

# --8<-- [start:imports]
from torch import Tensor

from attnref.core.masks import Mask, check_mask

# --8<-- [end:imports]


# --8<-- [start:check]
def check_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
) -> None:
    """Queries, keys, values, mask and scale must fit together."""
    _check_values(q, k, v)
    check_scores(q, k, mask, scale)


def check_scores(q: Tensor, k: Tensor, mask: Mask, scale: float | None) -> None:
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
