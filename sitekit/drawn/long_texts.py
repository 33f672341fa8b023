"""What attention on several devices sends, and how long its ranks wait."""

from collections.abc import Iterator
from typing import Any

from attnref.numbers.ranks import (
    Sent,
    relay_sent,
    ring_sent,
    shapes_sent,
    tensor_parallel_sent,
    ulysses_sent,
    waiting,
)
from sitekit.drawn.operations import KV_HEADS, LLAMA
from sitekit.markdown.render import Row, Word

TOKENS, RANKS, WIDTH = 131_072, 8, 128
HEADS: dict[str, int] = {"n_heads": LLAMA["n_heads"], "n_kv_heads": KV_HEADS, "head_dim": WIDTH}
LATENT = 576  # of DeepSeek's MLA: 512 + 64
STATE: dict[str, Any] = {"heads": 32, "key_dim": 128, "value_dim": 128}  # of a Gated DeltaNet


def ring(ranks: int, tokens: int = TOKENS, width: int = KV_HEADS * 2 * WIDTH) -> Sent:
    return ring_sent(ranks=ranks, tokens=tokens, kv_width=width)


def ulysses(ranks: int, tokens: int = TOKENS) -> Sent:
    return ulysses_sent(ranks=ranks, tokens=tokens, **HEADS)


def heads(tokens: int, ranks: int) -> Sent:
    return tensor_parallel_sent(ranks=ranks, tokens=tokens, d_model=LLAMA["d_model"])


def megabytes(size: float) -> str:
    size /= 1e6
    return f"{size:,.0f} MB" if size >= 10 else f"{size:.1f} MB"


def sent(tokens: int, ranks: int) -> Iterator[Row]:
    """What each way sends, at this length and at a quarter of it."""

    def ways(tokens: int) -> dict[str, Sent]:
        return {
            "ring": ring(ranks, tokens),
            "ulysses": ulysses(ranks, tokens),
            "heads": heads(tokens, ranks),
            "mla": ring(ranks, tokens, LATENT),
            "relay": relay_sent(ranks=ranks, **STATE),
            "scan": relay_sent(ranks=ranks, **STATE, scan=True),
        }

    for name, (forward, backward) in ways(tokens).items():
        fewer = ways(tokens // 4)[name].forward
        yield [Word(name), *map(megabytes, (forward, backward, fewer))]


def by_ranks(tokens: int) -> Iterator[Row]:
    """The forward pass of a ring and of Ulysses, for each number of ranks."""
    for n in (2, 4, 8, 16, 32):
        a, b = ring(n, tokens).forward, ulysses(n, tokens).forward
        yield [str(n), megabytes(a), megabytes(b), f"{a / b:.2f}"]


def waits(tokens: int) -> Iterator[Row]:
    for how in ("contiguous", "striped", "zigzag"):
        ratios = [float(waiting(tokens, n, how)) for n in (2, 4, 8, 16)]
        yield [Word(how), *(f"{ratio:.3f}" for ratio in ratios)]


def numbers() -> dict[str, Any]:
    rows = TOKENS // RANKS
    places = (RANKS - 1) * 8 * rows + shapes_sent(RANKS)
    return {
        "tokens": TOKENS,
        "ranks": RANKS,
        "ring": ring(RANKS).forward / 1e6,
        "backward": ring(RANKS).backward / ring(RANKS).forward,
        "backward_of_two": ring(2).backward / ring(2).forward,
        "scores": 4 * HEADS["n_heads"] * rows**2 / 1e9,  # of a step, in float32
        "ulysses": ulysses(RANKS).forward / 1e6,
        "heads": heads(TOKENS, RANKS).forward / 1e6,
        "latents": (ring(RANKS, TOKENS, LATENT).forward - places) / 1e6,
        "relay": relay_sent(ranks=RANKS, **STATE).forward / 1e6,
        "at_four": ring(4).forward / 1e6,
        "ulysses_at_four": ulysses(4).forward / 1e6,
    }
