"""Rotary position embedding (RoPE): positions as angles of rotation."""

# --8<-- [start:imports]
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from attnref.core.scaling import Scaling

# --8<-- [end:imports]


# --8<-- [start:rope]
@dataclass(frozen=True)
class Rope:
    """Which channels of a layer's heads rotate, and by how much: `rope=`.

    `theta` is the base of the frequencies. `width` is the number of channels
    that rotate, the first ones of each head; None means all. `layout` is as in
    `apply_rope`, and `scaling`, such as `Yarn`, changes the frequencies.

    Examples:
        >>> Rope(500000.0, width=64)
        Rope(theta=500000.0, width=64, layout='half', scaling=None)
    """

    theta: float = 10000.0
    width: int | None = None
    layout: Literal["half", "interleaved"] = "half"
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        if not self.theta > 0:
            raise ValueError(f"theta={self.theta} must be positive")
        if self.width is not None and (self.width < 2 or self.width % 2):
            raise ValueError(
                f"width={self.width} must be even: RoPE rotates pairs of "
                "elements"
            )
        if self.layout not in ("half", "interleaved"):
            raise ValueError(
                f"layout={self.layout!r} is neither 'half' nor 'interleaved'"
            )


def check_rope(
    head_dim: int, rope: Rope | None, rope_theta: float | None = None
) -> Rope | None:
    """The RoPE of a layer; `rope_theta` is its short form.

    Examples:
        >>> check_rope(8, None, 500000.0)
        Rope(theta=500000.0, width=None, layout='half', scaling=None)
        >>> check_rope(8, Rope(width=12))
        Traceback (most recent call last):
        ValueError: Rope(width=12) rotates more than head_dim=8
    """
    if rope_theta is not None:
        if rope is not None:
            raise ValueError(f"{rope_theta=} and {rope=} are given; pass one")
        rope = Rope(rope_theta)
    if rope is not None:
        if (rope.width or 0) > head_dim:
            raise ValueError(
                f"Rope(width={rope.width}) rotates more than {head_dim=}"
            )
        width = head_dim if rope.width is None else rope.width
        if width % 2:
            raise ValueError(
                f"{head_dim=} is odd: RoPE rotates pairs of elements"
            )
        if rope.scaling is not None:  # it may not fit this width
            rope_table(torch.arange(0), width, scaling=rope.scaling)
    return rope


# --8<-- [end:rope]


# --8<-- [start:table]
def rope_table(
    positions: Tensor,
    dim: int,
    *,
    theta: float = 10000.0,
    scaling: Scaling | None = None,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles of all positions, one angle per pair.

    `positions` `(T,)` or `(B, T)` gives two tables `(T, dim / 2)` or
    `(B, T, dim / 2)`. At position `i`, pair `p` has the angle
    `i * theta ** (-2 p / dim)`. The tables are computed for the positions
    given, so there is no maximum length. A `scaling` that depends on the
    length of the text is passed as `scaling.at(length)`.

    Examples:
        >>> cos, sin = rope_table(torch.arange(3), 4)
        >>> cos
        tensor([[ 1.0000,  1.0000],
                [ 0.5403,  1.0000],
                [-0.4161,  0.9998]], dtype=torch.float64)
    """
    if dim < 2 or dim % 2:
        raise ValueError(f"{dim=} must be even: RoPE rotates pairs of elements")
    if not theta > 0:
        raise ValueError(f"{theta=} must be positive")
    if positions.dtype == torch.bool or positions.is_complex():
        raise TypeError(f"positions are {positions.dtype}; pass real numbers")
    # In float32, the angle at position 100,000 has a wrong third decimal.
    mps = positions.device.type == "mps"  # has no float64
    wide = torch.float32 if mps else torch.float64
    pairs = torch.arange(0, dim, 2, device=positions.device, dtype=wide)
    frequencies = theta ** (-pairs / dim)
    if scaling is not None:
        frequencies = scaling.slowed(frequencies, theta)
    angles = positions[..., None] * frequencies
    scale = 1.0 if scaling is None else scaling.table_scale
    return angles.cos() * scale, angles.sin() * scale


# --8<-- [end:table]


# --8<-- [start:apply]
def apply_rope(
    x: Tensor, cos: Tensor, sin: Tensor, *, layout: str = "half"
) -> Tensor:
    """Rotate each pair of elements of `x` `(B, H, T, D)` by its angle.

    `layout` says which elements form pair `p`: `"half"` takes `p` and
    `p + D / 2` (Llama in transformers), `"interleaved"` takes `2 p` and
    `2 p + 1` (the paper). Weights trained with one are wrong for the other.

    Examples:
        >>> x = torch.tensor([[[[1.0, 0.0]]]])
        >>> cos, sin = rope_table(torch.tensor([2]), 2)  # an angle of 2
        >>> apply_rope(x, cos, sin)
        tensor([[[[-0.4161,  0.9093]]]])
    """
    _check_tables(x, cos, sin)
    T, D = x.shape[2:]
    wide = torch.promote_types(x.dtype, torch.float32)
    if cos.dtype != wide:
        cos, sin = cos.to(wide), sin.to(wide)
    if cos.dim() == 3:  # tables of each row: one more axis, for the heads
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if layout == "half":
        a, b = x.chunk(2, dim=-1)  # (..., T, D // 2)
    elif layout == "interleaved":
        a, b = x[..., 0::2], x[..., 1::2]  # (..., T, D // 2)
    else:
        raise ValueError(f"{layout=} is neither 'half' nor 'interleaved'")
    a, b = a.to(wide), b.to(wide)
    both = (a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype)
    if layout == "half":
        return torch.cat(both, dim=-1)  # (..., T, D)
    return torch.stack(both, dim=-1).flatten(-2)  # (..., T, D)


# --8<-- [end:apply]


# --8<-- [start:rotate]
def rotate(
    q: Tensor,
    k: Tensor,
    *,
    rope: Rope | None,
    past: int = 0,
    positions: Tensor | None = None,
    rotated: int = 0,
) -> tuple[Tensor, Tensor]:
    """Rotate the queries and keys of a layer by their tokens' positions.

    `q` is `(B, H, T, D)`, `k` is `(B, K, T, D)`. Positions continue after the
    `past` tokens in the cache, unless `positions`, `(T,)`, `(1, T)` or
    `(B, T)`, gives others. With `rope=None` both are returned as they are.
    `rotated` is the length of the text for which the keys in the cache were
    rotated, if there are any: a length that needs other angles is refused.
    """
    if rope is None:
        if positions is not None:
            raise ValueError("positions are given, but rope is None")
        return q, k
    B, H, T, D = q.shape
    if positions is not None:
        check_positions(positions, B, T, q.device)
    length = text_length(rope, past, T, positions)
    scaling = rope.scaling
    if scaling is not None and length is not None:
        if rotated and scaling.at(rotated) != scaling.at(length):
            raise ValueError(
                f"the cached keys were rotated for a text of {rotated} tokens, "
                f"and {type(scaling).__name__} rotates one of {length} by "
                "other angles: read the whole text again, without these keys"
            )
        rope = replace(rope, scaling=scaling.at(length))
    cos, sin = _tables(q, rope, past, positions, once=length is not None)
    return _turned(q, cos, sin, rope), _turned(k, cos, sin, rope)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, rope: Rope) -> Tensor:
    """The first `rope.width` channels rotated, and the others as they are."""
    if rope.width is None:
        return apply_rope(x, cos, sin, layout=rope.layout)
    part, rest = x.tensor_split((rope.width,), dim=-1)
    part = apply_rope(part, cos, sin, layout=rope.layout)
    return torch.cat((part, rest), dim=-1)


def text_length(
    rope: Rope | None, past: int, T: int, positions: Tensor | None
) -> int | None:
    """The length of the text with `T` new tokens, as its positions say.

    None, if the angles do not depend on it, or if there is no new token. On the
    device meta, positions say nothing, and pads count.
    """
    scaling, end = None if rope is None else rope.scaling, past + T
    if scaling is None or T == 0 or scaling.at(end) is scaling:
        return None
    if positions is None or positions.is_meta:
        return end
    return int(positions.max()) + 1


def _tables(
    q: Tensor, rope: Rope, past: int, positions: Tensor | None, *, once: bool
) -> tuple[Tensor, Tensor]:
    """The tables of the new tokens: rows of longer, stored ones if possible;
    not for tables that this call alone needs `once`."""
    T, D = q.shape[2:]
    theta, width, end = rope.theta, rope.width or D, past + T
    scaling = rope.scaling
    # A compiler or a tracer may give tensors that mean nothing after it.
    once |= torch.compiler.is_compiling() or not isinstance(end, int)
    if positions is None and (once or type(q) is not Tensor):
        positions = torch.arange(past, end, device=q.device)
    if positions is not None:
        return rope_table(positions, width, theta=theta, scaling=scaling)
    wide = torch.promote_types(q.dtype, torch.float32)
    cos, sin = _stored(width, theta, scaling, q.device, wide).first(end)
    return cos[past:end], sin[past:end]


class _Tables:
    """The tables of the first positions, of all layers with these options."""

    def __init__(
        self,
        dim: int,
        theta: float,
        scaling: Scaling | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.how = dim, theta, scaling, device, dtype
        self.longest = (torch.empty(0), torch.empty(0))

    def first(self, length: int) -> tuple[Tensor, Tensor]:
        """At least so many: 256, 512, 1024, ..."""
        longest = self.longest
        if len(longest[0]) < max(length, 1):
            dim, theta, scaling, device, dtype = self.how
            size = 1 << max(8, (length - 1).bit_length())
            # What is made in inference mode cannot be used with gradients.
            with torch.inference_mode(False):
                at = torch.arange(size, device=device)
                cos, sin = rope_table(at, dim, theta=theta, scaling=scaling)
                longest = self.longest = cos.to(dtype), sin.to(dtype)
        return longest


# Each theta, width, dtype and device of a model has its own: far fewer.
_stored = lru_cache(_Tables)


# --8<-- [end:rotate]


# --8<-- [start:positions]
def token_positions(valid: Tensor) -> Tensor:
    """Positions `(B, S)` that count the real tokens of each row from 0.

    `valid` is `(B, S)`, True = a real token. A pad gets the position of the
    token before it, or 0; as it is never seen, this has no effect.

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
def check_positions(
    positions: Tensor, B: int, T: int, device: torch.device
) -> None:
    """Refuse positions that do not fit `T` tokens or `B` rows."""
    if all(positions.shape != s for s in ((T,), (1, T), (B, T))):
        raise ValueError(
            f"positions has shape {tuple(positions.shape)}; {B} rows of {T} "
            f"tokens need {(T,)} or {(B, T)}"
        )
    if positions.device != device:
        raise ValueError(f"positions are on {positions.device}, q on {device}")


def _check_tables(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    if x.dim() != 4 or x.shape[3] % 2:
        raise ValueError(
            f"x has shape {tuple(x.shape)}; it needs 4 axes (B, H, T, D) and "
            "an even D"
        )
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}; it needs a floating dtype")
    B, H, T, D = x.shape
    wanted = ((T, D // 2), (1, T, D // 2), (B, T, D // 2))
    if cos.shape != sin.shape or cos.shape not in wanted:
        raise ValueError(
            f"tables of shape {tuple(cos.shape)} and {tuple(sin.shape)} do not "
            f"fit x of shape {tuple(x.shape)}: {T} positions with {D // 2} "
            f"angles each are {wanted[0]} or {wanted[2]}"
        )


# --8<-- [end:check]
