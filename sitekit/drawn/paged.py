"""A paged cache: what it refuses, and bytes of models."""

from collections.abc import Iterator

import torch

from attnref.numbers.kv_memory import kv_bytes, size
from attnref.plain import paged
from attnref.released.specs import find_model
from sitekit.markdown.render import Row

SYSTEM = 2000  # tokens with which each request begins
OWN_TOKENS, REQUESTS = 500, 64
MODELS = ("deepseek-v3", "llama-3.1-8b", "qwen3-235b-a22b", "llama-3.1-70b", "llama-2-13b")


def refusals() -> dict[str, str]:
    """What a pool says that has too few blocks, by "needed,free"."""
    texts = {}
    for needed in range(1, 5):
        for free in range(needed):
            pool = paged.Pool(free, 1, (1, 1))
            try:
                pool.append([], list(range(needed)), torch.zeros(1, needed, 1))
            except ValueError as error:
                texts[f"{needed},{free}"] = str(error)
    return texts


def waste() -> Iterator[Row]:
    """Bytes of a block, and what rounding up loses in a sequence on average."""
    for name in MODELS:
        model = find_model(name)
        token = kv_bytes(model, 1)
        yield [
            model.name,
            size(token),
            size(16 * token),
            *(size((b - 1) / 2 * token) for b in (16, 64, 256)),
        ]


def shared() -> Iterator[Row]:
    """Caches of requests that begin alike, apart and with shared blocks."""
    prefix = SYSTEM // 16 * 16
    for name in MODELS:
        model = find_model(name)
        token = kv_bytes(model, 1)
        blocks = -(-(SYSTEM + OWN_TOKENS) // 16) * 16
        unshared = REQUESTS * blocks * token
        share = (REQUESTS - 1) * prefix * token
        yield [model.name, size(unshared), size(unshared - share), size(share)]


def numbers() -> dict[str, object]:
    """What the text says of Llama-3.1-8B."""
    llama = find_model("llama-3.1-8b")
    token = kv_bytes(llama, 1)
    reserved, length = 8192, 1100
    blocks = -(-length // 16)
    return {
        "reserved": size(reserved * token),
        "share": length / reserved,
        "blocks": blocks,
        "empty": 16 * blocks - length,
        "full": length / (16 * blocks),
        "lost": size((16 * blocks - length) * token),
        "unread": (REQUESTS - 1) * (SYSTEM // 16 * 16),
    }
