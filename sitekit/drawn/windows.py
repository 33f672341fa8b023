"""Windows: the ring slot by slot, how far layers see, and bytes of models."""

from collections.abc import Iterator

import torch
from markupsafe import Markup

import attnref
from attnref.numbers.kv_memory import group_bytes, size, storage_of
from attnref.released.specs import find_model
from sitekit.drawing import steps
from sitekit.drawing.steps import Frame, Steps
from sitekit.drawn.measured import about, digits, sizes, slug
from sitekit.markdown.render import Row, Word

W, RESERVE = 4, 2


def _row(y: float, numbers: list[int], new: set[int]) -> list[Markup]:
    marks = []
    for slot, p in enumerate(numbers):
        kind = "slot" if p < 0 else "fresh" if p in new else "kept"
        x = 52 + 46 * slot
        marks.append(steps.box(kind, x, y, 42, 34))
        marks.append(steps.text("", x + 21, y + 17, "" if p < 0 else f"k{p}"))
        marks.append(steps.text("soft small", x + 21, y + 46, f"{slot}"))
    return marks


def ring() -> Steps:
    """The slots of a ring of four and two in reserve, read from the cache."""
    cache, frames = attnref.RingKVCache(W, reserve=RESERVE), []

    def show(new: int) -> None:
        at = cache.positions(0, torch.device("cpu")).tolist()
        end = cache.length
        sees = [p for p in range(end - W, end) if p >= 0]
        marks = _row(8, at, {*range(end - new, end)})
        for slot, p in enumerate(at):
            if p in sees:
                x = 52 + 46 * slot
                ends = [complex(x, 66), complex(x + 42, 66)]
                marks.append(steps.path("curve", ends))
        facts = {
            "length": end,
            "last": end - 1,
            "slot": (end - 1) % len(at),
            "new": new,
            "oldest": min(p for p in at if p >= 0),
        }
        frames.append(Frame(marks, {k: str(n) for k, n in facts.items()}))

    for new in (3, 1, 1, 9, 1, 3):
        token = torch.zeros(1, 1, new, 1)
        cache.append(token, token)
        show(new)
    cache.crop(cache.length - 2)
    show(0)
    return Steps(380, 74, frames)


def reach() -> Iterator[Row]:
    """How far back the last token sees, by layers of masks multiplied."""
    for window, layers in ((2, 1), (2, 4), (4, 2), (4, 4)):
        T = layers * window + 3
        rule = attnref.Window(window)
        seen = attnref.RuleMask(rule, T, T, 0).dense().double()
        paths = torch.linalg.matrix_power(seen, layers)
        far = int((paths[-1] > 0).sum())
        yield [f"{window}", f"{layers}", f"{far}", f"{layers * window}"]


MODELS = (
    "mistral-7b",
    "gemma-2-27b",
    "gemma-3-27b",
    "gpt-oss-120b",
    "olmo-3-32b",
    "llama-4-scout",
)


def saved() -> Iterator[Row]:
    """One sequence in bfloat16 at the longest context: rings, and all kept."""
    for name in MODELS:
        model = find_model(name)
        storage, T = storage_of(model, "bf16"), model.max_context
        stored = whole = 0
        windows = []
        for group in model.groups:
            of = group_bytes(group, T, storage)
            stored += of
            full = getattr(group, "window", None)
            if full is not None:
                windows.append(f"{group.layers} × {full:,}")
                first = group_bytes(group, 1, storage)
                of = first * T
            whole += of
        yield [
            model.name,
            ", ".join(windows),
            f"{T:,}",
            size(whole),
            size(stored),
            f"{whole / stored:.1f}",
        ]


def blocks() -> Iterator[Row]:
    """A prompt with one mask, and by blocks: memory and time, as measured."""
    (memory,), (time,) = (
        sizes(case).values() for case in ("window memory", "windowed")
    )
    for name, of in memory["ways"].items():
        peak, ratio = of["value"][1], time["ways"][name]["ratio"][1]
        yield [Word(slug(name)), f"{digits(peak)} MB", f"{about(ratio)}×"]


def numbers() -> dict[str, object]:
    """How far 32 layers with a window of 4,096 reach."""
    return {"reach": f"{32 * (4096 - 1) + 1:,}".replace(",", "{,}")}
