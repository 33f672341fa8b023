"""What a KV cache saves, and what a growing one costs."""

from collections.abc import Iterator
from typing import Any

import torch

import attnref
from attnref.numbers.cost import attention_cost
from attnref.numbers.kv_memory import size
from sitekit.drawn.operations import LLAMA
from sitekit.recorded import Watching
from sitekit.render import Row


def saved() -> Iterator[Row]:
    """FLOPs to generate N tokens with and without a cache, one layer: of all
    steps, and of the last one against the first."""
    layer = LLAMA | {"n_kv_heads": 8}
    for N in (4, 16, 64, 1000):
        afresh = [attention_cost(**layer, new=i).flops for i in range(1, N + 1)]
        cached = [attention_cost(**layer, past=i).flops for i in range(N)]
        yield [
            f"{N:,}",
            f"{sum(afresh) / 1e9:,.1f}",
            f"{sum(cached) / 1e9:,.1f}",
            f"{sum(afresh) / sum(cached):,.1f}",
            f"{afresh[-1] / afresh[0]:,.0f}",
            f"{cached[-1] / cached[0]:.2f}",
        ]


class _Written(Watching):
    """Counts the bytes that `cat` and `copy_` write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.cat, torch.ops.aten.copy_):
            self.bytes += out.nbytes
        return out


def growth() -> Iterator[Row]:
    """Bytes written to store N tokens one by one: Llama-3.1-8B, one layer."""
    token = torch.zeros(1, 8, 1, 128, dtype=torch.bfloat16)
    for N in (16, 64, 256):
        written = []
        for store in (attnref.KVCache(N), attnref.GrowingKVCache()):
            with _Written() as count:
                for _ in range(N):
                    store.append(token, token)
            written.append(count.bytes)
        room, growing = written
        yield [f"{N:,}", size(room), size(growing), f"{growing / room:,.1f}"]
