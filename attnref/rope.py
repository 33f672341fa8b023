"""Rotary position embedding (RoPE): positions as angles."""

# --8<-- [start:imports]
import torch
from torch import Tensor

# --8<-- [end:imports]


# --8<-- [start:table]
def rope_table(
    positions: Tensor, dim: int, *, theta: float = 10000.0
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles, one angle a pair.

    `positions` `(T,)` or `(B, T)` gives two tables `(T, dim / 2)` or
    `(B, T, dim / 2)`. Pair `i` turns by `theta ** (-2 i / dim)` a step. The
    tables are computed for these very positions, so there is none to outgrow.

    Examples:
        >>> cos, sin = rope_table(torch.arange(3), 4)
        >>> cos
        tensor([[ 1.0000,  1.0000],
                [ 0.5403,  1.0000],
                [-0.4161,  0.9998]], dtype=torch.float64)
    """
    if dim < 2 or dim % 2:
        raise ValueError(f"{dim=} must be even: RoPE turns pairs of numbers")
    if not theta > 0:
        raise ValueError(f"{theta=} must be positive")
    if positions.dtype == torch.bool or positions.is_complex():
        raise TypeError(f"positions are {positions.dtype}; pass numbers")
    # float32 has an angle of 100,000 steps wrong in the third decimal.
    mps = positions.device.type == "mps"  # has no float64
    wide = torch.float32 if mps else torch.float64
    pairs = torch.arange(0, dim, 2, device=positions.device, dtype=wide)
    frequencies = theta ** (-pairs / dim)
    angles = positions.to(wide)[..., None] * frequencies
    return angles.cos(), angles.sin()


# --8<-- [end:table]


# --8<-- [start:apply]
def apply_rope(
    x: Tensor, cos: Tensor, sin: Tensor, *, layout: str = "half"
) -> Tensor:
    """Turn each pair of numbers of `x` by its angle; `(B, H, T, D)` stays.

    `layout` says which numbers make pair `i`: `"half"` takes `i` and
    `i + D / 2` (Llama in transformers), `"interleaved"` takes `2 i` and
    `2 i + 1` (the paper). Weights made for one are wrong for the other.

    Examples:
        >>> x = torch.tensor([[[[1.0, 0.0]]]])
        >>> cos, sin = rope_table(torch.tensor([2]), 2)  # two steps of 1
        >>> apply_rope(x, cos, sin)
        tensor([[[[-0.4161,  0.9093]]]])
    """
    _check(x, cos, sin)
    wide = torch.promote_types(x.dtype, torch.float32)
    # One axis more, for the heads: all of a token turn alike.
    cos, sin = cos.to(wide).unsqueeze(-3), sin.to(wide).unsqueeze(-3)
    if layout == "half":
        a, b = x.to(wide).chunk(2, dim=-1)  # (..., T, D // 2)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    elif layout == "interleaved":
        a, b = x.to(wide).unflatten(-1, (-1, 2)).unbind(-1)  # (..., T, D // 2)
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1)
        turned = turned.flatten(-2)
    else:
        raise ValueError(f"{layout=} is neither 'half' nor 'interleaved'")
    return turned.to(x.dtype)  # (..., T, D)


# --8<-- [end:apply]


# --8<-- [start:rotate]
def rotate(
    q: Tensor,
    k: Tensor,
    *,
    theta: float | None,
    past: int = 0,
    positions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What a layer does: `q` and `k` turned by where their tokens stand.

    These follow the `past` tokens of the cache, unless `positions`, `(T,)` or
    `(B, T)`, says otherwise. A `theta` of None leaves both as they are.
    """
    if theta is None:
        if positions is not None:
            raise ValueError("positions are given, but rope_theta is None")
        return q, k
    B, H, T, D = q.shape
    if positions is None:
        positions = torch.arange(past, past + T, device=q.device)  # (T,)
    elif positions.shape != (T,) and positions.shape != (B, T):
        raise ValueError(
            f"positions has shape {tuple(positions.shape)}; {B} rows of {T} "
            f"tokens need {(T,)} or {(B, T)}"
        )
    elif positions.device != q.device:
        raise ValueError(
            f"positions are on {positions.device}, q on {q.device}"
        )
    cos, sin = rope_table(positions, D, theta=theta)
    return apply_rope(q, cos, sin), apply_rope(k, cos, sin)


# --8<-- [end:rotate]


# --8<-- [start:positions]
def token_positions(valid: Tensor) -> Tensor:
    """Each row's tokens counted from 0, pads left out: `(B, S)`.

    `valid` is `(B, S)`, True = a real token. A pad has the position of the
    token before it, or 0; it is never seen, so that it does not matter.

    Examples:
        >>> token_positions(torch.tensor([[False, False, True, True]]))
        tensor([[0, 0, 0, 1]])
        >>> token_positions(torch.tensor([[True, True, False, True]]))
        tensor([[0, 1, 1, 2]])
    """
    if valid.dtype != torch.bool:
        raise TypeError(f"valid is {valid.dtype}; pass bool, True = real")
    counted = valid.cumsum(dim=-1) - 1
    return counted.clamp(min=0)  # (B, S)


# --8<-- [end:positions]


# --8<-- [start:check]
def _check(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    if x.dim() != 4 or x.shape[3] % 2:
        raise ValueError(
            f"x has shape {tuple(x.shape)}; it needs 4 axes (B, H, T, D) and "
            "an even D"
        )
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}; it needs a floating dtype")
    B, H, T, D = x.shape
    wanted = ((T, D // 2), (1, T, D // 2), (B, T, D // 2))
    if cos.shape != sin.shape or all(cos.shape != w for w in wanted):
        raise ValueError(
            f"tables of shape {tuple(cos.shape)} and {tuple(sin.shape)} do not "
            f"fit x of shape {tuple(x.shape)}: {T} positions of {D // 2} "
            f"angles, {wanted[0]} or {wanted[2]}"
        )


# --8<-- [end:check]
