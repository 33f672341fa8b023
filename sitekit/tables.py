"""Tables whose numbers are computed when the page is built.

Each function gives rows of cells. A cell that is a plain string is shown as
it is; a cell `Word("nan")` is looked up in the page's own words.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

import attnref
from sitekit.kept import kept


class Word(NamedTuple):
    key: str


Cell = str | Word
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _code(x: object) -> str:
    return f"`{x}`".replace("torch.", "")


def _number(x: float) -> str:
    """Three digits, as one would write them: 6.55e+4 -> 65500, 3.4e38."""
    if math.isinf(x):
        return "inf"
    if 1e-3 <= abs(x) < 1e6:
        return f"{x:.3g}" if abs(x) < 1000 else f"{x:.0f}"
    mantissa, exponent = f"{x:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def exp_range() -> list[list[Cell]]:
    """Where exp overflows in each dtype, and what the naive form returns."""
    rows: list[list[Cell]] = []
    for dtype in DTYPES:
        largest = torch.finfo(dtype).max
        limit = math.log(largest)
        past = torch.tensor([math.floor(limit) + 1.0, 0.0], dtype=dtype)
        naive = past.exp() / past.exp().sum()
        stable = attnref.softmax(past)
        rows.append(
            [
                _code(dtype),
                _number(largest),
                f"{limit:.1f}",
                _number(torch.tensor(12.0, dtype=dtype).exp().item()),
                _code([round(w, 3) for w in naive.tolist()]),
                _code([round(w, 3) for w in stable.tolist()]),
            ]
        )
    return rows


@kept
def dot_products() -> list[list[Cell]]:
    """Spread of q.k and the largest softmax weight, unscaled and scaled."""
    samples, keys = 4096, 32
    rows: list[list[Cell]] = []
    for D in (4, 16, 64, 256):
        torch.manual_seed(0)
        q = torch.randn(1, samples, 1, D)
        k = torch.randn(1, samples, keys, D)
        dots = q @ k.mT
        top = [
            attnref.attention_weights(q, k, scale=s).amax(-1).mean().item()
            for s in (1.0, D**-0.5)
        ]
        rows.append(
            [
                str(D),
                f"{D**0.5:.0f}",
                f"{dots.std().item():.1f}",
                f"{(dots * D**-0.5).std().item():.2f}",
                *(f"{t:.2f}" for t in top),
            ]
        )
    return rows


SCORES = (1.0, 2.0, 3.0, 0.5)


def _added(scores: Tensor, filler: float, times: int = 1) -> Tensor:
    for _ in range(times):  # a padding and a causal mask: each adds its own
        scores = scores + torch.ones_like(scores) * filler
    return torch.softmax(scores, -1)


def _filled(scores: Tensor, filler: float) -> Tensor:
    none = torch.zeros_like(scores, dtype=torch.bool)
    return torch.softmax(scores.masked_fill(~none, filler), -1)


def outcome(weigh: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Word:
    """What comes out for a row whose every key is masked."""
    scores = torch.tensor(SCORES, dtype=dtype)
    try:
        weights = weigh(scores)
    except RuntimeError:
        return Word("refused")
    if weights.isnan().any():
        return Word("nan")
    if (weights == 0).all():
        return Word("zeros")
    if torch.allclose(weights, torch.softmax(scores, -1), rtol=1e-3):
        return Word("ignored")
    if torch.equal(weights, torch.full_like(weights, 1 / len(SCORES))):
        return Word("uniform")
    raise ValueError(f"no name for the weights {weights.tolist()}")


def fully_masked() -> list[list[Cell]]:
    """-1e9, -1e20, finfo.min and -inf in each dtype, and attnref's bool."""

    def attnref_weights(scores: Tensor) -> Tensor:
        one = torch.ones(1, 1, 1, 1, dtype=scores.dtype)
        nothing = torch.zeros(1, 4, dtype=torch.bool)
        return attnref.attention_weights(
            one, scores.view(1, 1, -1, 1), nothing
        ).flatten()

    rows: list[list[Cell]] = []
    for how, function in (("add", _added), ("fill", _filled)):
        for name in ("-1e9", "-1e20", "finfo.min", "-inf"):
            cells: list[Cell] = [Word(how), _code(name)]
            for dtype in DTYPES:
                low = torch.finfo(dtype).min
                filler = low if name == "finfo.min" else float(name)
                cells.append(outcome(partial(function, filler=filler), dtype))
            rows.append(cells)
    twice: list[Cell] = [Word("add2"), _code("finfo.min")]
    for dtype in DTYPES:
        low = torch.finfo(dtype).min
        twice.append(outcome(partial(_added, filler=low, times=2), dtype))
    ours: list[Cell] = [Word("ours"), _code("False")]
    ours += [outcome(attnref_weights, dtype) for dtype in DTYPES]
    return [*rows[:4], twice, *rows[4:], ours]


TABLES: dict[str, Callable[[], list[list[Cell]]]] = {
    "exp_range": exp_range,
    "dot_products": dot_products,
    "fully_masked": fully_masked,
}
