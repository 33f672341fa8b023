"""Temperatures, where exp overflows, and the online form step by step."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

import attnref
from sitekit.drawn.masks import DTYPES
from sitekit.markdown.render import Row
from sitekit.markdown.tables import code


def _number(x: float) -> str:
    """Three significant digits: 6.55e+4 -> 65500, 3.4e+38 -> 3.40e38."""
    if math.isinf(x):
        return "inf"
    if 1e-3 <= abs(x) < 1e6:
        return f"{x:.3g}" if abs(x) < 1000 else f"{x:.0f}"
    mantissa, exponent = f"{x:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def weights(temperature: float, shift: float = 0) -> Tensor:
    """The weights of the scores 2, 1 and 0, plus a shift, to two digits."""
    scores = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64) + shift
    return attnref.softmax(scores / temperature).round(decimals=2)


def ranges() -> dict[str, tuple[float, float]]:
    """The largest number of each dtype, and the smallest above 0."""
    limits = {str(dtype).removeprefix("torch."): torch.finfo(dtype) for dtype in DTYPES}
    return {name: (x.max, x.smallest_normal * x.eps) for name, x in limits.items()}


def exp_range() -> Iterator[Row]:
    """Where exp overflows in each dtype, and what the naive form returns."""
    for dtype in DTYPES:
        largest = torch.finfo(dtype).max
        limit = math.log(largest)
        scores = torch.tensor([math.floor(limit) + 1.0, 0.0], dtype=dtype)
        results = scores.exp() / scores.exp().sum(), attnref.softmax(scores)
        yield [
            code(dtype),
            _number(largest),
            f"{limit:.1f}",
            _number(torch.tensor(12.0, dtype=dtype).exp().item()),
            *(code([round(w, 3) for w in x.tolist()]) for x in results),
        ]


# Small scores, so that each number can be checked, and a value for each.
SCORES = (1.0, 0.0, 2.0, 1.0, 0.0)
VALUES = (10.0, 20.0, 30.0, 40.0, 50.0)


def chunks() -> Iterator[Row]:
    """Maximum, sum and output after each chunk of two scores."""
    m, total, out = -math.inf, 0.0, 0.0
    for start in range(0, len(SCORES), 2):
        scores = SCORES[start : start + 2]
        largest = max(m, *scores)
        scale = math.exp(m - largest)
        exponentials = [math.exp(s - largest) for s in scores]
        values = VALUES[start : start + 2]
        total = total * scale + sum(exponentials)
        out = out * scale + sum(e * v for e, v in zip(exponentials, values, strict=True))
        m = largest
        yield [
            ", ".join(f"{s:g}" for s in scores),
            f"{m:g}",
            f"{scale:.4f}",
            f"{total:.4f}",
            f"{out:.2f}",
            f"{out / total:.2f}",
        ]


def numbers() -> dict[str, object]:
    """What the text says of three scores, and of chunks."""
    one, two, three = weights(temperature=1).tolist()
    (_, _, _, first, *_), (_, _, factor, second_sum, *_), *_ = chunks()
    return {
        "exp_of_2": math.exp(2),
        "exp_of_1": math.exp(1),
        "sum": math.exp(2) + math.exp(1) + 1,
        "first": one,
        "second": two,
        "third": three,
        "rescaled": math.exp(-1),
        "two_chunks": 1 + math.exp(-1),
        "overflow": math.log(torch.finfo(torch.float16).max),
        "sum_1": first,
        "factor": factor,
        "sum_2": second_sum,
    }
