"""What a cache costs: one more token, a step, a generation, other rows.

    python -m benchmarks.caches KVCache 8192

prints the milliseconds of a generation of so many tokens.
"""

import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from attnref import (
    Cache,
    GroupedQueryAttention,
    GrowingKVCache,
    KVCache,
    RingKVCache,
    Rope,
    Window,
    fused,
    sdpa,
)
from benchmarks.cores import HEADS, WIDTH
from benchmarks.timing import Processes, Timed, cpu

K = 8
Make = Callable[[int], KVCache | GrowingKVCache]
Step = Callable[[Tensor], Tensor]
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


def window(tokens: int, size: int = 4096) -> Timed:
    """One token through a layer with a window; or after one window of text."""
    layer = GroupedQueryAttention(
        d_model=1024,
        n_heads=8,
        n_kv_heads=2,
        rope=Rope(500_000.0),
        causal=Window(size),
        attend=fused,
    ).requires_grad_(False)
    past = torch.randn(2, 1, 2, tokens, 128)

    def step(cache: Cache, *past: Tensor, **changed: Any) -> Step:
        mine = deepcopy(layer)
        vars(mine).update(changed)
        mine.to(past[0].dtype)
        cache.append(*past)
        length, at = cache.length, torch.tensor([tokens])

        def run(x: Tensor) -> Tensor:
            cache.crop(length)
            out: Tensor = mine(x.to(past[0]), cache=cache, positions=at)
            return out

        return run

    room, last = KVCache(tokens + 1), past[..., 1 - size :, :]
    ways = {
        "RingKVCache": step(RingKVCache(size), *past),
        "KVCache": step(room, *past),
        "KVCache of one window": step(KVCache(size), *last, causal=True),
    }
    truth = step(KVCache(tokens + 1), *past.double(), attend=sdpa)
    return Timed(ways, [(torch.randn(1, 1, 1024),)], truth)


@torch.no_grad()
def generated(name: str, tokens: int) -> tuple[Tensor, float]:
    """Append a token and attend, so many times from an empty cache: the last
    output, and the milliseconds of all."""
    q = torch.ones(1, HEADS, 1, WIDTH)
    new = torch.arange(2.0).view(2, 1, 1, 1, 1).expand(2, 1, K, 1, WIDTH)
    cache, outs = CACHES[name](tokens), []

    def run() -> None:
        for i in range(tokens):
            outs[:] = [fused(q, *cache.append(*(i + new)))]

    took = cpu(run)
    return outs[0], took


def generate(tokens: int) -> Processes:
    """In a process of its own each: how fast memory grows depends on what
    was taken and released before."""
    command = ["-m", "benchmarks.caches"]
    return Processes("ms", {n: [*command, n, str(tokens)] for n in CACHES})


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


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(generated(sys.argv[1], int(sys.argv[2]))[1])
