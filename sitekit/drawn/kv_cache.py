"""What a KV cache saves, and what a growing one costs."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

import attnref
from attnref.numbers.cost import attention_cost
from attnref.numbers.kv_memory import kv_bytes, size
from attnref.released.specs import find_model
from sitekit.drawing.recorder import Recorder
from sitekit.drawn.operations import LLAMA
from sitekit.drawn.questions import READ
from sitekit.markdown.render import Row


def saved() -> Iterator[Row]:
    """FLOPs to generate N tokens with and without a cache, one layer: of all
    steps, and of the last one against the first."""
    layer = LLAMA | {"n_kv_heads": 8}
    for N in (4, 16, 64, 1000):
        anew = [attention_cost(**layer, new=i).flops for i in range(1, N + 1)]
        steps = [attention_cost(**layer, past=i).flops for i in range(N)]
        yield [
            f"{N:,}",
            f"{sum(anew) / 1e9:,.1f}",
            f"{sum(steps) / 1e9:,.1f}",
            f"{sum(anew) / sum(steps):,.1f}",
            f"{anew[-1] / anew[0]:,.0f}",
            f"{steps[-1] / steps[0]:.2f}",
        ]


class _WriteCounter(Recorder):
    """Counts the bytes that `cat` and `copy_` write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.cat, torch.ops.aten.copy_):
            self.bytes += out.nbytes
        return out


def growth() -> Iterator[Row]:
    """Bytes written to store N tokens one by one: Llama-3.1-8B, one layer."""
    token = torch.zeros(1, 8, 1, 128, dtype=torch.bfloat16)
    for N in (16, 64, 256):
        bytes_written = []
        for store in (attnref.KVCache(N), attnref.GrowingKVCache()):
            with _WriteCounter() as count:
                for _ in range(N):
                    store.append(token, token)
            bytes_written.append(count.bytes)
        fixed, growing = bytes_written
        yield [f"{N:,}", size(fixed), size(growing), f"{growing / fixed:,.1f}"]


ROOM = 8


def refusals() -> dict[str, Any]:
    """What a cache with room for eight tokens says when it refuses: more
    tokens, by "stored,new", and to go back from nothing."""

    def said(stored: int, call: Callable[[attnref.KVCache], object]) -> str:
        cache = attnref.KVCache(ROOM)
        cache.append(torch.zeros(1, 1, stored, 1))
        try:
            call(cache)
        except ValueError as error:
            return str(error)
        raise AssertionError(f"{stored} stored: nothing was refused")

    def append(new: int) -> Callable[[attnref.KVCache], object]:
        return lambda cache: cache.append(torch.zeros(1, 1, new, 1))

    texts = {
        f"{stored},{new}": said(stored, append(new))
        for new in range(1, 5)
        for stored in range(ROOM - new + 1, ROOM + 1)
    }
    return {"append": texts, "crop": said(0, lambda cache: cache.crop(-1))}


def numbers() -> dict[str, object]:
    """What the text says of Llama-3.1-8B, and of its thousandth token."""
    model, layer = find_model("llama-3.1-8b"), LLAMA | {"n_kv_heads": 8}
    first, last = (attention_cost(**layer, past=past) for past in (0, 999))
    afresh = attention_cost(**layer, new=1000)
    # Of the whole model: each token of the cache has 4 FLOPs per query head
    # and element of it, and layer.
    flops = [READ + 32 * 4 * 4096 * n for n in (1, 1000)]
    read = [READ + kv_bytes(model, n) for n in (1, 1000)]
    return {
        "of_a_token": size(kv_bytes(model, 1)),
        "whole": size(kv_bytes(model, 131_072)),
        "last": last.flops / first.flops,
        "without": afresh.flops / first.flops,
        "weights": size(2 * first.parameters),
        "cache": 2 * last.cached / 2**20,
        "bytes": last.bytes_read() / first.bytes_read(),
        "model_flops": flops[1] / flops[0],
        "model_bytes": read[1] / read[0],
    }
