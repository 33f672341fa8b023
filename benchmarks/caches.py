"""What a cache costs: one more token, a whole generation, other rows."""

from collections.abc import Callable

import torch
from torch import Tensor

from attnref import GrowingKVCache, KVCache, sdpa
from benchmarks.cores import HEADS, WIDTH
from benchmarks.timing import Timed

K = 8
Make = Callable[[int], KVCache | GrowingKVCache]
CACHES: dict[str, Make] = {
    "KVCache": KVCache,
    "torch.cat": lambda room: GrowingKVCache(),
}


def append(tokens: int) -> Timed:
    """One token more in a cache of 8 key/value heads, in float32."""
    new = torch.randn(2, 1, K, 1, WIDTH)
    past = torch.randn(2, 1, K, tokens, WIDTH)

    def appending(make: Make) -> Callable[[], Tensor]:
        cache = make(tokens + 1)
        cache.append(*past)

        def run() -> Tensor:
            cache.crop(tokens)
            return cache.append(*new)[0]

        return run

    held = past.new_empty(2, 1, K, tokens + 1, WIDTH)
    held[:, :, :, :tokens] = past
    at = torch.tensor([tokens])

    def copied() -> Tensor:
        for into, token in zip(held, new, strict=True):
            into.index_copy_(2, at, token)
        return held[0]

    ways = {name: appending(make) for name, make in CACHES.items()}
    ways["index_copy_"] = copied
    truth = torch.cat((past[0], new[0]), dim=2)
    repeats = {"KVCache": 50, "index_copy_": 50}
    return Timed(ways, truth=lambda: truth, repeats=repeats)


def generate(tokens: int, places: int = 16, steps: int = 8) -> Timed:
    """Append and attend, from an empty cache to `tokens`: a part of it.

    At so many places, evenly spread, so many steps are made one after the
    other; between the places nothing is timed.
    """
    q = torch.randn(1, HEADS, 1, WIDTH)
    past = torch.randn(2, 1, K, tokens, WIDTH)
    starts = [(2 * i + 1) * tokens // (2 * places) for i in range(places)]

    def generating(make: Make) -> Callable[[], Tensor]:
        caches = [make(tokens) for _ in starts]
        for cache, start in zip(caches, starts, strict=True):
            cache.append(*past[:, :, :, :start])

        def run() -> Tensor:
            for cache, start in zip(caches, starts, strict=True):
                cache.crop(start)
                for at in range(start, start + steps):
                    new = past[:, :, :, at : at + 1]
                    out = sdpa(q, *cache.append(*new))
            return out

        return run

    def truth() -> Tensor:
        k, v = past[:, :, :, : starts[-1] + steps].double()
        return sdpa(q.double(), k, v)

    ways = {name: generating(make) for name, make in CACHES.items()}
    return Timed(ways, truth=truth)


def reorder(used: int, room: int, rows: int = 4) -> Timed:
    """All beams go on from the first; or what it was, the whole room."""
    past = torch.randn(2, rows, K, used, WIDTH)
    chosen = torch.zeros(rows, dtype=torch.int64)
    cache = KVCache(room)
    cache.append(*past)
    whole = [x.new_zeros(rows, K, room, WIDTH) for x in past]
    for held, x in zip(whole, past, strict=True):
        held[:, :, :used] = x

    def reordered() -> Tensor:
        cache.reorder(chosen)
        return cache.stored[0]

    def selected() -> Tensor:
        k, v = (x.index_select(0, chosen) for x in whole)
        return k[:, :, :used]

    ways = {"KVCache": reordered, "index_select, whole room": selected}
    return Timed(ways, truth=lambda: past[0][chosen])
