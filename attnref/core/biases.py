"""Biases: terms that two positions add to a score, such as ALiBi."""

# --8<-- [start:imports]
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnref.core.checks import check_sizes
from attnref.core.masks import Everything, Mask, RuleMask, cut, mask_mod

# --8<-- [end:imports]


# --8<-- [start:bias]
class Bias:
    """A term added to a score: a function of head and positions.

    `bias(h, i, j)` is added, in head `h`, to the scaled score of the query at
    position `i` and the key at `j`; the three broadcast. A core evaluates it
    tile by tile. The positions are those of the mask, if it is a `RuleMask`;
    otherwise the queries are the last of the keys, as in `causal_mask`.
    """

    n_heads: int

    def __call__(self, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        raise NotImplementedError

    @property
    def learned(self) -> Tensor | None:
        """The tensor that gets a gradient from it, if there is one."""
        return None

    def check_heads(self, H: int) -> None:
        """Refuse another number of query heads."""
        if self.n_heads != H:
            raise ValueError(f"bias has {self.n_heads} heads, q has H={H}")


# --8<-- [end:bias]


# --8<-- [start:alibi]
@dataclass(frozen=True)
class Alibi(Bias):
    """ALiBi: each head subtracts the distance of a key times its slope.

    If `H` is a power of two, the slopes are `2 ** (-8 / H)` and its powers.
    Otherwise the slopes of `P` heads, the largest power of two below `H`, are
    followed by every other slope of `2 P` heads.

    Examples:
        >>> h, j = torch.arange(2)[:, None], torch.arange(4)
        >>> Alibi(2)(h, torch.tensor(3), j)
        tensor([[-0.1875, -0.1250, -0.0625, -0.0000],
                [-0.0117, -0.0078, -0.0039, -0.0000]])
    """

    n_heads: int

    def __post_init__(self) -> None:
        check_sizes(n_heads=self.n_heads)

    def __call__(self, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        P = 2 ** (self.n_heads.bit_length() - 1)
        # In float32, exp2 depends on the processor; mps has no float64.
        h = h.to(torch.float32 if h.is_mps else torch.float64)
        order = torch.where(h < P, h + 1, h - P + 0.5)
        slope: Tensor = (-8 / P * order).exp2().float()
        return -slope * (i - j).abs()


# --8<-- [end:alibi]


# --8<-- [start:relative]
@dataclass(frozen=True, eq=False)
class RelativeBias(Bias):
    """T5's bias: a learned number per head and bucket of distances.

    `table` is `(n_buckets, H)`. For keys that are not later, half of the
    buckets are single distances, from 0; the others widen in powers up to
    `max_distance`, and the last holds all distances beyond. With
    `bidirectional`, half of the table is for later keys; otherwise these
    count as distance 0.

    Examples:
        >>> bias = RelativeBias(torch.arange(32.0)[:, None])
        >>> h, j = torch.tensor(0), torch.tensor([100, 99, 85, 60, 0, 101])
        >>> bias(h, torch.tensor(100), j).tolist()
        [0.0, 1.0, 15.0, 23.0, 30.0, 0.0]
    """

    table: Tensor
    max_distance: int = 128
    bidirectional: bool = False

    def __post_init__(self) -> None:
        n_buckets = len(self.table) // (2 if self.bidirectional else 1)
        if not n_buckets or self.max_distance <= max(1, n_buckets // 2):
            raise ValueError(
                f"{n_buckets} buckets for keys that are not later, and max_"
                f"distance={self.max_distance}: there must be one, and the "
                "distance must be above 1 and above half their number"
            )

    @property
    def n_heads(self) -> int:  # type: ignore[override]
        return self.table.shape[1]

    @property
    def learned(self) -> Tensor:
        return self.table

    def __call__(self, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.table[self.bucket(i - j), h]

    def bucket(self, distance: Tensor) -> Tensor:
        """The row of `table` for keys at this distance before the query."""
        n = len(self.table) // 2 if self.bidirectional else len(self.table)
        later = torch.where(distance < 0, len(self.table) - n, 0)
        if self.bidirectional:
            distance = distance.abs()
        distance = distance.clamp(min=0)
        exact = max(1, n // 2)
        powers = (distance.clamp(min=1) / exact).log()
        steps = powers / math.log(self.max_distance / exact) * (n - exact)
        far = (exact + steps.long()).clamp(max=n - 1)
        return later + torch.where(distance < exact, distance, far)


# --8<-- [end:relative]


# --8<-- [start:placed]
@dataclass(frozen=True, eq=False)
class PlacedBias:
    """A bias at the positions of one call, of which parts are built."""

    bias: Tensor | Bias
    at: RuleMask

    def part(self, rows: slice, columns: slice) -> Tensor:
        """For some queries and some keys; it broadcasts to `(B, H, T, S)`."""
        if isinstance(self.bias, Tensor):
            return cut(self.bias, rows, columns)
        i, j = self.at.places(*self.at.numbers(rows, columns))
        h = torch.arange(self.bias.n_heads, device=i.device)
        return self.bias(h[:, None, None], i, j)

    def dense(self) -> Tensor:
        """The whole bias as one tensor."""
        return self.part(slice(None), slice(None))

    def of(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """For one row, head, query and key: what a `score_mod` adds."""
        if isinstance(self.bias, Tensor):
            return mask_mod(self.bias)(b, h, i, j)
        return self.bias(h, *self.at.places(*self.at.number(b, i, j), b))

    @property
    def learned(self) -> Tensor | None:
        """The tensor that it is made from, if that one has a gradient."""
        bias = self.bias
        made = bias if isinstance(bias, Tensor) else bias.learned
        return made if made is not None and made.requires_grad else None

    def add_gradient(
        self, total: Tensor, above: Tensor, rows: slice, columns: slice
    ) -> None:
        """Add the gradient from a part to `total`, that of `learned`."""
        if isinstance(self.bias, Tensor):
            some = cut(total, rows, columns)
            some += above.sum_to_size(some.shape)
            return
        with torch.enable_grad():
            part = self.part(rows, columns)
        above = above.sum_to_size(part.shape).to(part.dtype)
        inputs = [x for x in (self.learned,) if x is not None]
        total += torch.autograd.grad(part, inputs, above)[0]


def place(
    bias: Tensor | Bias | None, mask: Mask, q: Tensor, k: Tensor
) -> PlacedBias | None:
    """A bias at the positions of the mask, or of a `causal_mask`."""
    if bias is None:
        return None
    if mask is None or isinstance(mask, Tensor):
        T, S = q.shape[2], k.shape[2]
        mask = RuleMask(Everything(), T, S, S - T, device=q.device)
    return PlacedBias(bias, mask)


# --8<-- [end:placed]
