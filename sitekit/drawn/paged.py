"""A paged cache: its blocks and tables in a run, and bytes of models."""

from collections.abc import Iterator
from typing import Any

import torch
from markupsafe import Markup

from attnref.numbers.kv_memory import kv_bytes, size
from attnref.plain import paged
from attnref.released.specs import find_model
from sitekit.drawing import steps
from sitekit.drawing.steps import Frame, Steps
from sitekit.markdown.render import Row

SIZE, BLOCKS = 4, 6
SYSTEM = 2000  # tokens with which each request begins
OWN, REQUESTS = 500, 64
MODELS = (
    "deepseek-v3",
    "llama-3.1-8b",
    "qwen3-235b-a22b",
    "llama-3.1-70b",
    "llama-2-13b",
)


def _drawn(
    letters: list[str], before: list[str], tables: dict[str, Any]
) -> list[Markup]:
    """Two rows of three blocks: what each slot stores, and who reads it."""
    marks = []
    for block in range(BLOCKS):
        x, y = 8 + 142 * (block % 3), 24 + 74 * (block // 3)
        readers = [name for name, table in tables.items() if block in table]
        words = " ".join(readers) or "{free}"
        marks.append(steps.text("start soft small", x, y - 12, f"{block}"))
        marks.append(steps.text("end small", x + 130, y - 12, words))
        for row in range(SIZE):
            letter, old = (x[block * SIZE + row] for x in (letters, before))
            kind = "kept" if readers and letter else "slot"
            kind = "fresh" if letter != old else kind
            marks.append(steps.box(kind, x + 33 * row, y, 31, 30))
            marks.append(steps.text("", x + 33 * row + 15.5, y + 15, letter))
    for n, (name, table) in enumerate(tables.items()):
        words = f"{name}: {' '.join(map(str, table))}"
        marks.append(steps.text("start", 8 + 142 * n, 160, words))
    return marks


def blocks() -> Steps:
    """Six blocks of four tokens, as the plain form uses them; a token stores
    its letter."""
    pool, frames = paged.Pool(BLOCKS, SIZE, (1, 1)), list[Frame]()
    tables: dict[str, list[int]] = {}
    texts: dict[str, str] = {}
    letters = [""] * BLOCKS * SIZE

    def write(name: str, text: str) -> None:
        past = len(texts.get(name, tables[name] * SIZE))
        new = [float(ord(letter)) for letter in text[past:]]
        pool.append(tables[name], list(text), torch.tensor(new)[None, :, None])
        texts[name] = text

    def show(new: int = 0) -> None:
        nonlocal letters
        now = [chr(int(code)) for code in pool.stored.flatten()]
        now = [letter.strip("\0") for letter in now]
        marks = _drawn(now, letters, tables)
        letters, free = now, pool.readers.count(0)
        frames.append(Frame(marks, {"new": f"{new}", "left": f"{free}"}))

    def found(name: str, text: str) -> None:
        tables[name] = pool.find(list(text))
        new = len(text) - SIZE * len(tables[name])
        write(name, text)
        show(new)

    found("A", "you_are_bot")
    found("B", "you_are_bad")
    tables["C"], texts["C"] = pool.fork(tables["A"]), texts["A"]
    show()
    write("C", "you_are_bots")
    show(1)
    write("A", "you_are_both")
    show(1)
    for name in ("A", "B", "C"):
        pool.release(tables.pop(name))
    show()
    found("D", "you_are_wild")
    return Steps(430, 172, frames)


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
    found = SYSTEM // 16 * 16
    for name in MODELS:
        model = find_model(name)
        token = kv_bytes(model, 1)
        blocks = -(-(SYSTEM + OWN) // 16) * 16
        apart = REQUESTS * blocks * token
        saved = (REQUESTS - 1) * found * token
        yield [model.name, size(apart), size(apart - saved), size(saved)]


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
