"""DeepSeek-V4: what a query sees, step by step, and what its layers cost."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attnref.numbers.cost import Cost, attention_cost, compressed_cost, mla_cost
from attnref.numbers.kv_memory import kv_bytes, size
from attnref.numbers.shapes import Compressed
from attnref.plain.deepseek_v4 import CompressedAttention, CompressedCache
from attnref.released.specs import find_model
from sitekit.drawing import svg
from sitekit.drawing.steps import Frame, Steps
from sitekit.drawn.mla import V3
from sitekit.markdown.render import Cell, Row, Word

W, RATE, TOPK = 4, 4, 2
LENGTHS = (4096, 131_072, 1_048_576)
FLASH: dict[str, Any] = {"d_model": 4096, "n_heads": 64, "head_dim": 512}
FLASH |= {"window": 128, "q_rank": 1024, "o_rank": 1024, "groups": 8}
INDEX = {"index_heads": 64, "index_dim": 128, "topk": 512}
KINDS: dict[str, dict[str, int]] = {
    "window": {},
    "hca": {"ratio": 128},
    "csa": {"ratio": 4, **INDEX},
}


def _run(chunks: tuple[int, ...]) -> Iterator[tuple[CompressedCache, Tensor]]:
    """After each chunk the cache, and which entries the last token reads."""
    torch.manual_seed(3)
    f = torch.tensor([1.0, 0.1])
    layer = CompressedAttention(*(16, 2, 8, W, f, 6, 5, 2), rate=RATE, index=(3, 8, TOPK))
    indexer: Any = layer.compressor.get_submodule("indexer")
    choose, chosen = indexer.choose, list[Tensor]()

    def note(*args: Any) -> Tensor:
        chosen.append(choose(*args))
        return chosen[-1]

    indexer.choose = note
    cache = CompressedCache()
    with torch.random.fork_rng(), torch.no_grad():
        for new in chunks:
            layer(torch.randn(1, new, 16), cache)
            yield cache, chosen[-1][0, -1]


def seen() -> Steps:
    """A CSA layer with an entry for 4 tokens, a window of 4 and 2 chosen."""
    chunks, frames, step = (3, 1, 3, 5, 4), [], 23
    for new, (cache, read) in zip(chunks, _run(chunks), strict=True):
        end, marks = cache.length, []
        (window,) = cache.kept["window"]
        first = end - window.shape[2]
        waiting = cache.kept["main"][0].shape[2]
        if waiting:
            x, width = 6 + step * (end - waiting), step * waiting + 1
            marks.append(svg.box("recomputed", x, 18, width, 34, 5))
        for t in range(sum(chunks)):
            kind = "kept" if first <= t < end else "slot"
            kind = "fresh" if end - new <= t < end and t >= first else kind
            x = 8 + step * t
            ink = "small" if first <= t < end else "soft small"
            place = x, 22, step - 3, 26
            marks.append(svg.cell(kind, *place, t, ink=ink))
        sees = [complex(8 + step * first, 54), complex(5 + step * end, 54)]
        marks.append(svg.path("curve", sees))
        for n, is_read in enumerate(read.tolist()):
            x, width = 8 + step * RATE * n, step * RATE - 3
            kind, ink = ("latent", "on") if is_read else ("slot", "")
            marks.append(svg.cell(kind, x, 92, width, 28, f"e{n}", ink=ink))
            if is_read:
                ends = [complex(x, 126), complex(x + width, 126)]
                marks.append(svg.path("curve", ends))
            block_x = max(x - step * RATE, 8)  # and its own block
            ends = [complex(block_x, 88), complex(block_x, 74)]
            ends += [complex(x + width, 74), complex(x + width, 88)]
            if n == len(read) - 1:
                marks.append(svg.path("wire ray", ends))
        facts = {
            "last": end - 1,
            "first": first,
            "waiting": waiting,
            "entries": len(read),
            "read": ", ".join(f"e{n}" for n in read.nonzero()[:, 0].tolist()),
        }
        frames.append(Frame(marks, {k: str(n) for k, n in facts.items()}))
    return Steps(380, 132, frames)


def _costs(past: int) -> Iterator[tuple[str, Cost]]:
    """A decode step of one layer of each kind, in DeepSeek-V4-Flash's sizes."""
    gqa: dict[str, Any] = {"n_heads": 64, "n_kv_heads": 8, "head_dim": 128}
    yield "gqa", attention_cost(d_model=4096, past=past, **gqa)
    latent = V3 | {"d_model": 4096, "n_heads": 64}
    yield "mla", mla_cost(**latent, past=past, form="absorbed")
    for name, options in KINDS.items():
        yield name, compressed_cost(**FLASH, **options, past=past)


def _read(name: str, cost: Cost, tokens: int) -> int:
    """Elements of the cache that the step reads: CSA not all its entries."""
    if name not in KINDS:
        return cost.cached
    index = KINDS[name].get("index_dim", 0)
    ratio = KINDS[name].get("ratio", tokens + 1)
    keys = cost.values // (2 * FLASH["n_heads"])
    return int(keys) + tokens // ratio * index


def _rows(cells: Mapping[str, Sequence[Cell]]) -> Iterator[Row]:
    for name, row in cells.items():
        yield [Word(name), *row]


def stored() -> Iterator[Row]:
    """Bytes in bfloat16 that one layer keeps of so many tokens."""
    cells: dict[str, list[str]] = {}
    for tokens in LENGTHS:
        for name, cost in _costs(tokens - 1):
            cells.setdefault(name, []).append(size(2 * cost.cached))
    yield from _rows(cells)


def step() -> Iterator[Row]:
    """Bytes that a decode step reads of the cache, and products with it."""
    cells: dict[str, list[list[str]]] = {}
    for tokens in LENGTHS:
        for name, cost in _costs(tokens - 1):
            read = size(2 * _read(name, cost, tokens))
            flops = (cost.scores + cost.values) / 1e6
            cells.setdefault(name, []).append([read, f"{flops:,.0f} MFLOPs"])
    yield from _rows(cells)


def models() -> Iterator[Row]:
    """Layers of each kind, and the cache of one sequence in bfloat16."""
    for id in ("deepseek-v4-flash", "deepseek-v4-pro"):
        model = find_model(id)
        kinds = dict.fromkeys((None, 4, 128), 0)
        for group in model.groups:
            assert isinstance(group, Compressed)
            kinds[group.ratio] += group.layers
        lengths = (4096, 1_048_576)
        caches = [size(kv_bytes(model, tokens)) for tokens in lengths]
        yield [model.name, *map(str, kinds.values()), *caches]


def numbers() -> dict[str, object]:
    flash = find_model("deepseek-v4-flash")
    most: dict[int, int] = {}  # elements that wait, in a layer
    total = 0
    for group in flash.groups:
        if isinstance(group, Compressed) and group.ratio:
            most[group.ratio] = group.waiting(group.ratio - 1)
            total += group.layers * most[group.ratio]
    cached = {name: cost.cached for name, cost in _costs(1_048_575)}
    heads = FLASH["n_heads"] * FLASH["head_dim"]
    return {
        "waiting_hca": 2 * most[128] / 1024,
        "waiting_csa": 2 * most[4] / 1024,
        "waiting": 2 * total / 2**20,
        "short": kv_bytes(flash, 4096) / 2**20,
        "per_layer": cached["mla"] / cached["csa"],
        "per_hca": cached["mla"] / cached["hca"],
        "heads": f"{heads:,}",
        "whole": heads * 4096,
        "grouped": (heads + 8 * 4096) * 1024,
    }
