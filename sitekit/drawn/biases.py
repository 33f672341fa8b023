"""What a bias leaves of equal scores, T5's classes, and what goes wrong."""

from collections.abc import Iterator

import torch
from torch import Tensor

import attnref
from attnref.plain.alibi import alibi, slopes
from sitekit.drawn.sinks import far
from sitekit.markdown.render import Row, Word

HEADS = 8


def decays(keys: int) -> Tensor:
    """Weights of keys with equal scores in the first, third and fifth head."""
    bias: Tensor = alibi(HEADS, 1, keys)[:5:2, 0]
    return bias.softmax(dim=-1)


def slope_list() -> Iterator[Row]:
    """The slopes of 8 and of 12 heads, as powers of 2."""
    for n_heads in (8, 12):
        powers = slopes(n_heads).log2().tolist()
        yield [str(n_heads), ", ".join(f"{x:g}" for x in powers)]


def capped() -> Iterator[Row]:
    """Scores and what a cap of 50 makes of them."""
    for score in (1.0, 10.0, 50.0, 100.0, 500.0):
        after = 50 * torch.tensor(score / 50).tanh()
        yield [f"{score:g}", f"{after.item():.2f}"]


def classes() -> Iterator[Row]:
    """The distances of some of T5's 32 classes."""
    bucket = attnref.RelativeBias(torch.zeros(32, 1)).bucket(torch.arange(200))
    for number in (0, 1, 15, 16, 20, 25, 30, 31):
        distances = (bucket == number).nonzero().flatten().tolist()
        first, last = distances[0], distances[-1]
        whole = str(first) if first == last else f"{first}-{last}"
        yield [str(number), whole if number < 31 else f"≥ {first}"]


def mistaken() -> Iterator[Row]:
    """Outputs of random inputs: how far each mistake is from the right one."""
    torch.manual_seed(0)
    H, T, D, cap = 12, 24, 16, 3.0
    q, k, v = torch.randn(3, 3, H, T, D)
    q = 3 * q
    seen = attnref.causal_mask(T)
    bias = alibi(H, T)
    want = attnref.sdpa(q, k, v, seen, bias=bias)

    def row(word: str, out: Tensor) -> Row:
        return [Word(word), far(out, want)]

    yield row("bare", attnref.sdpa(q, k, v, seen))
    yield row("sign", attnref.sdpa(q, k, v, seen, bias=-bias))
    even = -torch.exp2(-8 / H * torch.arange(1.0, H + 1))[:, None, None]
    distance = bias[:1] / -slopes(H)[:1, None, None]
    yield row("even", attnref.sdpa(q, k, v, seen, bias=even * distance))
    yield row("scaled", attnref.sdpa(q, k, v, seen, bias=bias * D**-0.5))
    want = attnref.sdpa(q, k, v, seen, softcap=cap)
    yield row("uncapped", attnref.sdpa(q, k, v, seen))
    before = attnref.sdpa(q, k, v, seen, softcap=cap * D**-0.5)
    yield row("before", before)
    scores = q @ k.mT * D**-0.5
    hidden = scores.masked_fill(~seen, -torch.inf)
    after = (cap * (hidden / cap).tanh()).softmax(dim=-1) @ v
    yield row("after", after)
