"""Rotary position embedding (RoPE): positions as angles of rotation."""

# --8<-- [start:imports]
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

# --8<-- [end:imports]


# --8<-- [start:yarn]
@dataclass(frozen=True)
class Yarn:
    """YaRN as DeepSeek uses it: RoPE beyond the trained length.

    A pair that makes at least `beta_fast` turns within `original_max_len`
    tokens keeps its frequency; one that makes at most `beta_slow` turns has it
    divided by `factor`; between the two, a linear ramp over the pairs blends
    both. `mscale_all_dim` scales the scores, `mscale` the tables.

    Examples:
        >>> yarn = Yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
        >>> round(yarn.softmax_scale, 3)  # (0.1 * ln(40) + 1) ** 2
        1.874
    """

    factor: float
    original_max_len: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0

    def __post_init__(self) -> None:
        if not self.factor >= 1 or not self.original_max_len >= 1:
            raise ValueError(
                f"factor={self.factor} and original_max_len="
                f"{self.original_max_len} must be at least 1"
            )
        if not self.beta_fast >= self.beta_slow > 0:
            raise ValueError(
                f"beta_fast={self.beta_fast} must be at least "
                f"beta_slow={self.beta_slow}, and both above 0"
            )

    @property
    def table_scale(self) -> float:
        """The factor by which all cosines and sines are multiplied."""
        if self.mscale and self.mscale_all_dim:
            return self._scale(self.mscale) / self._scale(self.mscale_all_dim)
        return self._scale(1.0)

    @property
    def softmax_scale(self) -> float:
        """The factor by which the scale of the scores is multiplied."""
        return self._scale(self.mscale_all_dim) ** 2

    def _scale(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0

    def slowed(self, frequencies: Tensor, theta: float) -> Tensor:
        """The frequencies after YaRN: the low ones divided by `factor`."""
        D = 2 * len(frequencies)

        def pair(turns: float) -> float:
            """The index (a float) of the pair with so many turns."""
            wavelength = self.original_max_len / (turns * 2 * math.pi)
            return D * math.log(wavelength) / (2 * math.log(theta))

        low = max(math.floor(pair(self.beta_fast)), 0)
        high = min(math.ceil(pair(self.beta_slow)), D - 1)
        p = torch.arange(D // 2).to(frequencies)
        slow = ((p - low) / (high - low or 1)).clamp(0, 1)
        return frequencies * (1 - slow) + frequencies / self.factor * slow


# --8<-- [end:yarn]


# --8<-- [start:table]
def rope_table(
    positions: Tensor,
    dim: int,
    *,
    theta: float = 10000.0,
    yarn: Yarn | None = None,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles of all positions, one angle per pair.

    `positions` `(T,)` or `(B, T)` gives two tables `(T, dim / 2)` or
    `(B, T, dim / 2)`. At position `i`, pair `p` has the angle
    `i * theta ** (-2 p / dim)`. The tables are computed for the positions
    given, so there is no maximum length.

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
    if yarn is not None:
        frequencies = yarn.slowed(frequencies, theta)
    angles = positions[..., None] * frequencies
    scale = 1.0 if yarn is None else yarn.table_scale
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
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    elif layout == "interleaved":
        a, b = x[..., 0::2], x[..., 1::2]  # (..., T, D // 2)
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
    layout: str = "half",
    yarn: Yarn | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotate the queries and keys of a layer by their tokens' positions.

    `q` is `(B, H, T, D)`, `k` is `(B, K, T, D)`. The positions are those after
    the `past` tokens in the cache, unless `positions`, `(T,)`, `(1, T)` or
    `(B, T)`, gives others. With `theta=None` both are returned as they are.
    """
    if theta is None:
        if positions is not None:
            raise ValueError("positions are given, but rope_theta is None")
        return q, k
    B, H, T, D = q.shape
    if positions is None:
        cos, sin = _tables(q, past, theta, yarn)
    else:
        check_positions(positions, B, T, q.device)
        cos, sin = rope_table(positions, D, theta=theta, yarn=yarn)
    q = apply_rope(q, cos, sin, layout=layout)
    return q, apply_rope(k, cos, sin, layout=layout)


def _tables(
    q: Tensor, past: int, theta: float, yarn: Yarn | None
) -> tuple[Tensor, Tensor]:
    """The tables of the tokens after `past`: rows of longer, stored ones."""
    T, D = q.shape[2:]
    end = past + T
    # A compiler or a tracer may give tensors that mean nothing after it.
    traced = torch.compiler.is_compiling() or not isinstance(end, int)
    if traced or type(q) is not Tensor:
        positions = torch.arange(past, end, device=q.device)
        return rope_table(positions, D, theta=theta, yarn=yarn)
    wide = torch.promote_types(q.dtype, torch.float32)
    cos, sin = _stored(D, theta, yarn, q.device, wide).first(end)
    return cos[past:end], sin[past:end]


class _Tables:
    """The tables of the first positions, of all layers with these options."""

    def __init__(
        self,
        dim: int,
        theta: float,
        yarn: Yarn | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.how = dim, theta, yarn, device, dtype
        self.longest = (torch.empty(0), torch.empty(0))

    def first(self, length: int) -> tuple[Tensor, Tensor]:
        """At least so many: 256, 512, 1024, ..."""
        longest = self.longest
        if len(longest[0]) < length:
            dim, theta, yarn, device, dtype = self.how
            size = 1 << max(8, (length - 1).bit_length())
            # What is made in inference mode cannot be used with gradients.
            with torch.inference_mode(False):
                positions = torch.arange(size, device=device)
                cos, sin = rope_table(positions, dim, theta=theta, yarn=yarn)
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
    """Refuse positions that are not those of `T` tokens, or of `B` rows."""
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
