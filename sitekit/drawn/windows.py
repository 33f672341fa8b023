"""Windows: how far layers see, and bytes of models."""

from collections.abc import Iterator

import torch

import attnref
from attnref.numbers.kv_memory import group_bytes, size, storage_of
from attnref.released.specs import find_model
from sitekit.drawn.measured import about, digits, sizes, slug
from sitekit.markdown.render import Row, Word


def reach() -> Iterator[Row]:
    """How far back the last token sees, by layers of masks multiplied."""
    for window, layers in ((2, 1), (2, 4), (4, 2), (4, 4)):
        T = layers * window + 3
        rule = attnref.Window(window)
        mask = attnref.RuleMask(rule, T, T, 0).dense().double()
        paths = torch.linalg.matrix_power(mask, layers)
        far = int((paths[-1] > 0).sum())
        yield [f"{window}", f"{layers}", f"{far}", f"{layers * window}"]


MODELS = ("mistral-7b", "gemma-2-27b", "gemma-3-27b", "gpt-oss-120b", "olmo-3-32b", "llama-4-scout")


def saved() -> Iterator[Row]:
    """One sequence in bfloat16 at the longest context: rings, and all kept."""
    for name in MODELS:
        model = find_model(name)
        storage, T = storage_of(model, "bf16"), model.max_context
        ring_bytes = full_bytes = 0
        windows = []
        for group in model.groups:
            group_total = group_bytes(group, T, storage)
            ring_bytes += group_total
            full = getattr(group, "window", None)
            if full is not None:
                windows.append(f"{group.layers} × {full:,}")
                first = group_bytes(group, 1, storage)
                group_total = first * T
            full_bytes += group_total
        yield [
            model.name,
            ", ".join(windows),
            f"{T:,}",
            size(full_bytes),
            size(ring_bytes),
            f"{full_bytes / ring_bytes:.1f}",
        ]


def blocks() -> Iterator[Row]:
    """A prompt with one mask, and by blocks: memory and time, as measured."""
    (memory,), (time,) = (sizes(case).values() for case in ("window memory", "windowed"))
    for name, way in memory["ways"].items():
        peak, ratio = way["value"][1], time["ways"][name]["ratio"][1]
        yield [Word(slug(name)), f"{digits(peak)} MB", f"{about(ratio)}×"]


def numbers() -> dict[str, object]:
    """How far 32 layers with a window of 4,096 reach, and the keys that a full
    ring returns."""
    ring, keys = attnref.RingKVCache(4, reserve=3), {}
    for tokens in (1,) * 20 + (3,):
        new = torch.zeros(1, 1, tokens, 2)
        keys[tokens] = ring.append(new, new)[0].shape[2]
    return {
        "reach": f"{32 * (4096 - 1) + 1:,}".replace(",", "{,}"),
        "step": keys[1],
        "burst": keys[3],
    }
