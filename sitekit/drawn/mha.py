"""Two heads by hand: how one vector becomes both, and what each listens to."""

from collections.abc import Iterator

import torch
from markupsafe import Markup
from torch import Tensor

import attnref
from attnref.core.heads import merge_heads, split_heads
from attnref.numbers.kv_memory import kv_bytes
from attnref.released.specs import find_model
from sitekit.drawing import svg
from sitekit.drawing.steps import Frame, Steps

# I like you: word class in the first two elements, subject or predicate in
# the last two.
EMBEDDED = torch.tensor([[2.0, 0.0, 2.0, 0.0], [0.0, 2.0, 0.0, 2.0], [2.0, 0.0, 0.0, 2.0]])


def _heads() -> Tensor:
    """Queries, which are also keys and values: nothing is projected."""
    return split_heads(EMBEDDED[None], 2)


def head(n: int) -> Tensor:
    x = _heads()[:, [n]]
    return attnref.attention_weights(x, x, attnref.causal_mask(3))[0, 0]


# Three tokens, two heads of width 2: of each element its token and its head.
TAGS = torch.tensor([[[t, h, d] for h in (0, 1) for d in (0, 1)] for t in range(3)])


def _cells(x: float, y: float, tags: Tensor) -> Iterator[Markup]:
    """A row of elements: the digit is the token, the letter the head."""
    for n, (token, head, _) in enumerate(tags.tolist()):
        place = x + 36 * n, y, 33, 28
        word = f"{token}{'ab'[head]}"
        yield svg.cell(f"head-{head}", *place, word, ink="head")


def reshapes() -> Steps:
    """How a projection becomes heads and comes back, beside the wrong ways."""
    T, H, D = 3, 2, 2
    rows = TAGS[None]  # (B, T, H * D), and the tags
    split = torch.stack([split_heads(t, H) for t in rows.unbind(-1)], -1)[0]
    by_view = rows.view(H, T, D, 3)
    back = torch.stack([merge_heads(t[None]) for t in split.unbind(-1)], -1)[0]
    by_reshape = split.reshape(T, H * D, 3)

    def tensor(x: float, name: str, tags: Tensor) -> Iterator[Markup]:
        kind = {"\u2713": "good", "\u2717": "recomputed"}.get(name[0], "soft")
        yield svg.text(f"{kind} start", x, 14, name)
        y = 34.0
        for block in tags if tags.dim() == 4 else tags[None]:
            for row in block:
                yield from _cells(x, y, row)
                y += 32
            y += 14

    def by_head(tags: Tensor) -> Iterator[Markup]:
        for t, token in enumerate(tags):
            for h, part in enumerate(token.view(H, D, 3)):
                yield from _cells(100 + 92 * h, 34 + 40 * t, part)

    frames = [
        [*tensor(100, "(T, H * D)", TAGS)],
        [svg.text("soft start", 100, 14, "view(T, H, D)"), *by_head(TAGS)],
        [
            *tensor(20, "\u2713 view, transpose", split),
            *tensor(220, "\u2717 view(H, T, D)", by_view),
        ],
        [
            *tensor(20, "\u2713 transpose, reshape", back),
            *tensor(220, "\u2717 reshape", by_reshape),
        ],
    ]
    return Steps(380, 246, [Frame(marks, {}) for marks in frames])


def numbers() -> dict[str, object]:
    """What the text says of Llama-2-7B: bytes per token."""
    return {"token": kv_bytes(find_model("llama-2-7b"), 1)}
