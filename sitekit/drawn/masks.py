"""What a row gives whose every key is masked, by filler and by library."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attnref
from sitekit.drawn.conventions import oracles
from sitekit.render import Cell, Rows, Word
from sitekit.tables import code

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
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
        return named(weigh(scores), scores)
    except RuntimeError:
        return Word("refused")


def named(weights: Tensor, scores: Tensor) -> Word:
    """The word for the weights of a row whose every key is masked."""
    if weights.isnan().any():
        return Word("nan")
    if (weights == 0).all():
        return Word("zeros")
    if torch.allclose(weights, torch.softmax(scores, -1), rtol=1e-3):
        return Word("ignored")
    if torch.equal(weights, torch.full_like(weights, 1 / len(SCORES))):
        return Word("uniform")
    raise ValueError(f"no name for the weights {weights.tolist()}")


def fully_masked() -> Rows:
    """-1e9, -1e20, finfo.min and -inf in each dtype, and attnref's bool."""

    def attnref_weights(scores: Tensor) -> Tensor:
        one = torch.ones(1, 1, 1, 1, dtype=scores.dtype)
        nothing = torch.zeros(1, 4, dtype=torch.bool)
        return attnref.attention_weights(
            one, scores.view(1, 1, -1, 1), nothing
        ).flatten()

    rows: Rows = []
    for how, function in (("add", _added), ("fill", _filled)):
        for name in ("-1e9", "-1e20", "finfo.min", "-inf"):
            cells: list[Cell] = [Word(how), code(name)]
            for dtype in DTYPES:
                low = torch.finfo(dtype).min
                filler = low if name == "finfo.min" else float(name)
                cells.append(outcome(partial(function, filler=filler), dtype))
            rows.append(cells)
    twice: list[Cell] = [Word("add2"), code("finfo.min")]
    for dtype in DTYPES:
        low = torch.finfo(dtype).min
        twice.append(outcome(partial(_added, filler=low, times=2), dtype))
    ours: list[Cell] = [Word("ours"), code("False")]
    ours += [outcome(attnref_weights, dtype) for dtype in DTYPES]
    return [*rows[:4], twice, *rows[4:], ours]


def empty_rows() -> Rows:
    """The first query of a left-padded row: what others give, and we.

    Values are unit vectors, so that an output is a row of weights.
    """
    x = torch.eye(4)[None]
    heads, real = x[None], torch.tensor([[False, False, True, True]])
    mask = attnref.causal_mask(4) & attnref.padding_mask(real)
    low = torch.finfo(x.dtype).min
    additive = [
        torch.zeros(4, 4).masked_fill(~mask, filler)
        for filler in (-torch.inf, low)
    ]
    fused = partial(F.scaled_dot_product_attention, heads, heads, heads)
    theirs = nn.MultiheadAttention(4, 1, bias=False, batch_first=True)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.copy_(torch.eye(4).repeat(len(weight) // 4, 1))
    layer = partial(theirs, x, x, x, attn_mask=~mask[0, 0])
    scores = heads @ heads.mT / 2
    by_hand = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
    kept = oracles()["empty"]
    outs = {
        "`torch.softmax`, `masked_fill(-inf)`": by_hand,
        "`F.scaled_dot_product_attention`, `bool`": fused(mask),
        "`F.scaled_dot_product_attention`, `-inf`": fused(additive[0]),
        "`F.scaled_dot_product_attention`, `finfo.min`": fused(additive[1]),
        "`nn.MultiheadAttention`": layer()[0],
        "`nn.MultiheadAttention`, `need_weights=False`": layer(
            need_weights=False
        )[0],
        "transformers, `eager`": kept["eager"],
        "transformers, `sdpa`": kept["sdpa"],
        "`attnref.sdpa`": attnref.sdpa(heads, heads, heads, mask),
    }
    return [
        [
            who,
            Word(out)
            if isinstance(out, str)
            else named(out.flatten()[:4], torch.tensor(SCORES)),
        ]
        for who, out in outs.items()
    ]
