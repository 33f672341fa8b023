"""Where exp overflows."""

import math
from collections.abc import Iterator

import torch

import attnref
from sitekit.drawn.masks import DTYPES
from sitekit.render import Row
from sitekit.tables import code


def _number(x: float) -> str:
    """Three digits, as one would write them: 6.55e+4 -> 65500, 3.4e38."""
    if math.isinf(x):
        return "inf"
    if 1e-3 <= abs(x) < 1e6:
        return f"{x:.3g}" if abs(x) < 1000 else f"{x:.0f}"
    mantissa, exponent = f"{x:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def exp_range() -> Iterator[Row]:
    """Where exp overflows in each dtype, and what the naive form returns."""
    for dtype in DTYPES:
        largest = torch.finfo(dtype).max
        limit = math.log(largest)
        past = torch.tensor([math.floor(limit) + 1.0, 0.0], dtype=dtype)
        both = past.exp() / past.exp().sum(), attnref.softmax(past)
        yield [
            code(dtype),
            _number(largest),
            f"{limit:.1f}",
            _number(torch.tensor(12.0, dtype=dtype).exp().item()),
            *(code([round(w, 3) for w in x.tolist()]) for x in both),
        ]
