"""Heads and what they read: queries at the top, below them keys and values,
and at the bottom the latent of which MLA makes these."""

from collections.abc import Iterator

import torch
from markupsafe import Markup
from torch import Tensor

from sitekit.drawing import svg

LETTERS = {"query": "q", "key": "k", "value": "v", "latent": "c"}
HEIGHT = 132  # of a picture
QUERY, MADE, STORED = 10, 44, 98  # the middles of queries, and of keys
HEAD = 17, 18  # width and height of a head
VALUE = 19  # from the middle of a key to that of its value
LATENT, ROPE_KEY = (66, 37), (20, 37)  # as high as a key and its value
LATENT_X, ROPE_KEY_X = -11, 34  # from the middle of the picture to theirs


def wiring(n_heads: int, n_kv_heads: int) -> tuple[Tensor, Tensor]:
    """Which query head reads which key/value head, `(H, K)`, and which of these
    are computed from a latent, `(K,)`. Without key/value heads it is MLA, where
    each head has its own and the latent makes all. tests/site/test_compare.py
    finds the same in the layers, by experiment."""
    if not n_kv_heads:
        return torch.eye(n_heads), torch.ones(n_heads)
    group = n_heads // n_kv_heads
    reads = torch.eye(n_kv_heads).repeat_interleave(group, dim=0)
    return reads, torch.zeros(n_kv_heads)


def picture(reads: Tensor, latent: Tensor, width: int) -> Iterator[Markup]:
    """What `wiring` says; filled is what is stored."""
    (H, K), is_mla = reads.shape, bool(latent.any())
    key_y = MADE if is_mla else STORED
    middle = STORED + VALUE / 2  # of a key and its value together

    def x_of(i: int, n: int) -> float:
        return width * (i + 0.5) / n

    def head(
        kind: str, x: float, y: float, letter: str, size: tuple[int, int] = HEAD
    ) -> Iterator[Markup]:
        is_query = kind == "query"
        is_stored = kind in ("key", "value", "latent")
        corner = x - size[0] / 2, y - size[1] / 2
        yield svg.box(kind, *corner, *size, rx=9 if is_query else 3)
        ink = "on" if is_stored else kind
        # q has its ink below the line
        yield svg.text(f"{ink} head", x, y - is_query, letter)

    for h, k in reads.nonzero().tolist():
        yield svg.line(x_of(h, H), QUERY, x_of(k, K), key_y)
    for (k,) in latent.nonzero().tolist():
        yield svg.line(x_of(k, K), key_y + VALUE, width / 2, middle)
    for h in range(H):
        yield from head("query", x_of(h, H), QUERY, LETTERS["query"])
    for k in range(K):
        for n, name in enumerate(("key", "value")):
            kind = f"{name} made" if is_mla else name
            y = key_y + VALUE * n
            yield from head(kind, x_of(k, K), y, LETTERS[name])
    if is_mla:
        x = width / 2
        letter = LETTERS["latent"]
        yield from head("latent", x + LATENT_X, middle, letter, LATENT)
        yield from head("key", x + ROPE_KEY_X, middle, "kᴿ", ROPE_KEY)
