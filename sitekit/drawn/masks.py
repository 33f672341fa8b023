"""The masks of the page, and what comes out of a fully masked row."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attnref
from attnref.numbers.kv_memory import size
from sitekit.drawn.rules import mask_of
from sitekit.drawn.transformers import oracles
from sitekit.markdown.render import Row, Word
from sitekit.markdown.tables import code

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SCORES = (1.0, 2.0, 3.0, 0.5)


def window(length: int, size: int) -> Tensor:
    return mask_of(attnref.Window(size), length)


def documents(ids: Tensor) -> Tensor:
    return mask_of(attnref.Causal() & attnref.Documents(ids), len(ids))


def chunks(length: int, size: int) -> Tensor:
    chunk = torch.arange(length) // size
    return attnref.causal_mask(length) & (chunk[:, None] == chunk)


def _add_filler(scores: Tensor, filler: float, times: int = 1) -> Tensor:
    for _ in range(times):  # a padding mask and a causal one: each adds it
        scores = scores + torch.ones_like(scores) * filler
    return torch.softmax(scores, -1)


def _fill(scores: Tensor, filler: float) -> Tensor:
    no_keys = torch.zeros_like(scores, dtype=torch.bool)
    return torch.softmax(scores.masked_fill(~no_keys, filler), -1)


def outcome(weigh: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Word:
    """What comes out of a row in which every key is masked."""
    try:
        return named(weigh(torch.tensor(SCORES, dtype=dtype)))
    except RuntimeError:
        return Word("refused")


def named(weights: Tensor) -> Word:
    """The word for the weights of a row in which every key is masked."""
    scores = torch.tensor(SCORES, dtype=weights.dtype)
    if weights.isnan().any():
        return Word("nan")
    if (weights == 0).all():
        return Word("zeros")
    if torch.allclose(weights, torch.softmax(scores, -1), rtol=1e-3):
        return Word("ignored")
    if torch.equal(weights, torch.full_like(weights, 1 / len(SCORES))):
        return Word("uniform")
    raise ValueError(f"no name for the weights {weights.tolist()}")


def _ours(scores: Tensor) -> Tensor:
    one = torch.ones(1, 1, 1, 1, dtype=scores.dtype)
    keys, nothing = scores.view(1, 1, -1, 1), torch.zeros(1, 4).bool()
    return attnref.attention_weights(one, keys, nothing).flatten()


def fully_masked() -> Iterator[Row]:
    """-1e9, finfo.min and -inf in each dtype, and attnref's bool."""
    fillers = ("-1e9", "finfo.min", "-inf")
    for word, weigh, names in (
        ("add", _add_filler, fillers),
        ("add2", partial(_add_filler, times=2), ("finfo.min",)),
        ("fill", _fill, fillers),
    ):
        for name in names:
            cells: Row = [Word(word), code(name)]
            for dtype in DTYPES:
                low = torch.finfo(dtype).min
                filler = low if name == "finfo.min" else float(name)
                cells.append(outcome(partial(weigh, filler=filler), dtype))
            yield cells
    yield [Word("ours"), code("False"), *(outcome(_ours, d) for d in DTYPES)]


def spacing() -> Iterator[Row]:
    """How far apart numbers near -1e9 lie, and what is left of a score."""
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        far = torch.tensor(-1e9, dtype=dtype)
        step = (torch.nextafter(far, torch.zeros_like(far)) - far).item()
        results = [f"{(far + score - far).item():g}" for score in (3, 40)]
        spacing = f"{step:,.0f}" if step > 1 else f"{step:.2g}"
        yield [code(dtype), spacing, *results]


def empty_rows() -> Iterator[Row]:
    """The first query of a left-padded row: what libraries give, and we.

    Values are unit vectors, so that an output is a row of weights.
    """
    x = torch.eye(4)[None]
    heads, real = x[None], torch.tensor([[False, False, True, True]])
    mask = attnref.causal_mask(4) & attnref.padding_mask(real)
    masks = {"bool": mask}
    for filler, low in (("-inf", -torch.inf), ("finfo.min", torch.finfo().min)):
        masks[filler] = torch.zeros(4, 4).masked_fill(~mask, low)
    fused = partial(F.scaled_dot_product_attention, heads, heads, heads)
    theirs = nn.MultiheadAttention(4, 1, bias=False, batch_first=True)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.copy_(torch.eye(4).repeat(len(weight) // 4, 1))
    layer = partial(theirs, x, x, x, attn_mask=~mask[0, 0])
    light = layer(need_weights=False)
    by_hand = (heads @ heads.mT / 2).masked_fill(~mask, -torch.inf).softmax(-1)
    outs_of_transformers = oracles()["empty"]
    outs = {
        "`masked_fill(-inf).softmax(-1)`": by_hand,
        **{
            f"`F.scaled_dot_product_attention`, `{filler}`": fused(mask_or_bias)
            for filler, mask_or_bias in masks.items()
        },
        "`nn.MultiheadAttention`": layer()[0],
        "`nn.MultiheadAttention`, `need_weights=False`": light[0],
        "transformers, `eager`": outs_of_transformers["eager"],
        "transformers, `sdpa`": outs_of_transformers["sdpa"],
        "`attnref.sdpa`": attnref.sdpa(heads, heads, heads, mask),
    }
    for library, out in outs.items():
        is_word = isinstance(out, str)
        yield [library, Word(out) if is_word else named(out.flatten()[:4])]


def numbers() -> dict[str, object]:
    """Bytes of the mask of a prompt of 32,768 tokens."""
    return {"mask": size(32_768**2)}
