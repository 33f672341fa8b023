"""What a KV cache saves, and what a growing one costs."""

from collections.abc import Iterator
from typing import Any

import torch
from markupsafe import Markup

import attnref
from attnref.numbers.cost import attention_cost
from attnref.numbers.kv_memory import kv_bytes, size
from attnref.released.specs import find_model
from sitekit.drawing import steps
from sitekit.drawing.recorded import Watching
from sitekit.drawing.steps import Frame, Steps
from sitekit.drawn.operations import LLAMA
from sitekit.drawn.questions import READ
from sitekit.markdown.render import Row


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


ROOM = 8


def _slot(kind: str, i: int, y: int, word: str = "") -> Markup:
    x = 44 + 42 * i
    box = steps.box(kind, x, y, 38, 32)
    if kind == "recomputed":  # told without colour, too
        for n in (8, 19, 30):
            ends = [complex(x + n - 6, y + 26), complex(x + n + 6, y + 6)]
            box += steps.path("hatch recomputed", ends)
    return box + steps.text("", x + 19, y + 16, word)


def stages() -> Steps:
    """What a cache of two rows, a and b, holds after each call, read from it;
    below it, what a model without a cache computes again."""
    cache, frames, length = attnref.KVCache(ROOM), [], 0

    def show(new: int) -> None:
        held = cache.stored[0][:, 0, :, 0].tolist()
        marks = []
        for r, row in enumerate(held):
            y = 8 + 40 * r
            marks.append(steps.text("end soft", 34, y + 16, f"{r}"))
            for i in range(ROOM):
                kind, word = "slot", ""
                if i < len(row):
                    kind = "fresh" if i >= len(row) - new else "kept"
                    word = f"{'ab'[int(row[i]) // 10]}{int(row[i]) % 10}"
                marks.append(_slot(kind, i, y, word))
        if new:
            marks.append(steps.text("start soft small", 44, 112, "{without}"))
            for i in range(len(held[0])):
                again = i < len(held[0]) - new
                marks.append(_slot("recomputed" if again else "fresh", i, 126))
        facts = {"new": new, "held": len(held[0]), "again": len(held[0]) - new}
        frames.append(Frame(marks, {k: str(n) for k, n in facts.items()}))

    for new in (4, 1, 2):
        tokens = torch.arange(length, length + new) + torch.tensor([[0], [10]])
        tokens = tokens[:, None, :, None].float()
        cache.append(tokens, tokens)
        length += new
        show(new)
    cache.crop(5)
    show(0)
    cache.reorder(torch.tensor([1, 1]))
    show(0)
    return Steps(380, 168, frames)


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
