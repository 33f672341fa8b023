"""Parts of the keys of one query, merged by their log-sum-exps."""

# --8<-- [start:imports]
from typing import TYPE_CHECKING

from torch import Tensor

from attnref.kernels.launch import Kernel, constexpr, power_of_2

if TYPE_CHECKING:
    import triton.language as tl

# --8<-- [end:imports]


# --8<-- [start:merge]
@Kernel
def _merge(
    outs, lses, lengths, out, parts,
    H: constexpr, D: constexpr, WIDTH: constexpr, SPAN: constexpr,
):  # fmt: skip
    """One head of one sequence; parts behind its length were not written."""
    h, b = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, WIDTH)
    line = b.to(tl.int64) * H + h
    m, total = -float("inf"), 0.0
    acc = tl.zeros([WIDTH], tl.float32)
    written = tl.minimum(parts, tl.cdiv(tl.load(lengths + b), SPAN))
    for part in range(0, written):
        lse = tl.load(lses + line * parts + part)
        larger = tl.maximum(m, lse)
        weight, rescale = tl.exp(lse - larger), tl.exp(m - larger)
        rows = outs + (line * parts + part) * D + d
        acc = acc * rescale + tl.load(rows, mask=d < D, other=0.0) * weight
        total = total * rescale + weight
        m = larger
    acc = acc / tl.where(total == 0, 1.0, total)  # no key at all: zeros
    tl.store(out + line * D + d, acc, mask=d < D)


def merge_parts(
    outs: Tensor, lses: Tensor, lengths: Tensor, out: Tensor, span: int
) -> Tensor:
    """Write `outs` (B, H, parts, D) into `out` (B, H, 1, D)."""
    B, H, parts, D = outs.shape
    _merge[H, B](
        outs, lses, lengths, out, parts,
        H=H, D=D, WIDTH=power_of_2(D), SPAN=span,
    )  # fmt: skip
    return out


# --8<-- [end:merge]
