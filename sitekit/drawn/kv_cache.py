"""What a cache saves, and what growing one costs."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import attnref
from attnref.numbers.cost import attention_cost
from attnref.numbers.kv_memory import size
from sitekit.drawn.compute import LLAMA
from sitekit.drawn.mla import empty
from sitekit.render import Row


def saved() -> Iterator[Row]:
    """Operations to generate N tokens with and without a cache, one layer."""
    layer = LLAMA | {"n_kv_heads": 8}
    for N in (4, 16, 64):
        new = sum(attention_cost(**layer, new=t + 1).flops for t in range(N))
        past = sum(attention_cost(**layer, past=t).flops for t in range(N))
        told = new / 1e9, past / 1e9, new / past
        yield [str(N), *(f"{x:,.1f}" for x in told)]


class _Written(TorchDispatchMode):
    """Counts the bytes that cat and copy_ write."""

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
    token = empty(1, 8, 1, 128)
    for N in (16, 64, 256):
        written = []
        for store in (attnref.KVCache(N), attnref.GrowingKVCache()):
            with _Written() as count:
                for _ in range(N):
                    store.append(token, token)
            written.append(count.bytes)
        room, growing = written
        yield [f"{N:,}", size(room), size(growing), f"{growing / room:,.1f}"]
