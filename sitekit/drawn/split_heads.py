"""Heads over devices, which of them are copies, and what a device stores."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from attnref.numbers.kv_memory import DTYPES, size, token_bytes
from attnref.numbers.ranks import decode_sent, sum_sent
from attnref.numbers.shapes import Mla
from attnref.released.specs import find_model
from sitekit.drawing import svg
from sitekit.drawn.mla import V3
from sitekit.markdown.render import Row, Word

HEAD, GAP, PAD = 34, 6, 10  # a head, what stays free, and a rank's edge
ROW = 30


class Ranks(NamedTuple):
    """Which heads each rank has: of queries, and of keys."""

    queries: list[list[int]]
    keys: list[list[int]]

    def drawing(self, axes: tuple[str, str], *, title: str, words: list[str]) -> svg.Drawing:
        """`words` name a rank, a query head, a key head and a copy of one."""
        name, query, key, copy = words
        across = max(map(len, self.queries))
        widest = svg.room([key.format(9), copy.format(9)], 12, svg.BOLD) + 12
        head = max(HEAD, (widest - GAP * (across - 1)) / across)
        width = across * (head + GAP) - GAP
        box, left, top = width + 2 * PAD, 30, 30
        marks = [svg.axis_names(axes, left + len(self.queries) * (box + 8) / 2, 96)]
        met: set[int] = set()
        for r, (queries, keys) in enumerate(zip(self.queries, self.keys, strict=True)):
            x = left + r * (box + 8)
            marks.append(svg.cell("off", x, top, box, ROW, name.format(r)))
            for n, h in enumerate(queries):
                place = x + PAD + n * (head + GAP), top + ROW + 10, head, ROW
                marks.append(svg.cell("query", *place, query.format(h), rx=9))
            part = (width + GAP) / len(keys) - GAP
            for n, k in enumerate(keys):
                kind, text = ("key made", copy) if k in met else ("key", key)
                place = x + PAD + n * (part + GAP), top + 2 * ROW + 30, part, ROW
                ink = "key head" if k in met else "on head"
                marks.append(svg.cell(kind, *place, text.format(k), ink=ink))
                met.add(k)
        size = left + len(self.queries) * (box + 8), top + 3 * ROW + 30 + svg.MARGIN
        return svg.drawing(*size, title, marks)


def boxes(n_heads: int, n_kv_heads: int, ranks: int) -> Ranks:
    """The heads of each rank, as `rows` of plain/tensor_parallel.py cuts them."""

    def part(heads: int, r: int) -> list[int]:
        first = r * heads // ranks
        return [*range(first, first + max(1, heads // ranks))]

    return Ranks(*([part(heads, r) for r in range(ranks)] for heads in (n_heads, n_kv_heads)))


MODELS = ("llama-3.1-8b", "llama-3.1-70b", "deepseek-v3")


def cached(ranks: int) -> Iterator[Row]:
    """What all devices together store per token, compared with one device."""
    for id in MODELS:
        model = find_model(id)
        (group,) = model.groups
        one = token_bytes(group, DTYPES["bf16"]).first
        shares = [token_bytes(group, DTYPES["bf16"], ranks=n).first for n in (2, 4, 8, 16)]
        copies = [
            f"{float(n * share / one):g}" for n, share in zip((2, 4, 8, 16), shares, strict=True)
        ]
        heads = "1" if isinstance(group, Mla) else str(getattr(group, "kv_heads", 0))
        yield [model.name, heads, *copies, size(int(shares[2]))]


def dcp_sent(ranks: int, batch: int, *, own_heads: bool = True, size: int = 4) -> int:
    """DeepSeek-V3 in one layer, tokens split: queries of all heads in bfloat16, partial
    outputs of `size` bytes, log-sum-exps, and the sum after `o_proj`."""
    H, R = V3["n_heads"], V3["kv_lora_rank"]
    queries: int = (ranks - 1) * batch * H // ranks * (R + V3["qk_rope_head_dim"]) * 2
    output = sum_sent(ranks=ranks, elements=batch * V3["d_model"])
    heads = {"ranks": ranks, "n_heads": H, "batch": batch, "size": size}
    return queries + output + decode_sent(v_head_dim=R, own_heads=own_heads, **heads)


def numbers() -> dict[str, Any]:
    (large,) = find_model("llama-3.1-70b").groups
    bytes_of = int(token_bytes(large, DTYPES["bf16"], ranks=16).first)
    return {
        "dcp": dcp_sent(8, 32) / 1e6,
        "dcp_half": dcp_sent(8, 32, size=2) / 1e6,  # a reduce-scatter in bfloat16
        "dcp_all": dcp_sent(8, 32, own_heads=False) / 1e6,
        "grouped": bytes_of,
        "grouped_dcp": bytes_of // 2,
    }


def ways(ranks: int, batch: int) -> Iterator[Row]:
    """DeepSeek-V3 in one layer: bytes per cached token and device, what a
    device sends in a decode step, and the sequences that it works on."""
    (group,) = find_model("deepseek-v3").groups
    entry = int(token_bytes(group, DTYPES["bf16"]).first)
    rotated = 2 * V3["qk_rope_head_dim"]  # bytes of the RoPE key
    output = sum_sent(ranks=ranks, elements=batch * V3["d_model"])
    rows = {
        "tp": (entry, output),
        "dp": (entry / ranks, 0),
        "dcp": (entry / ranks, dcp_sent(ranks, batch)),
        "tpla": ((entry - rotated) / 2 + rotated, None),
    }
    for name, (stored, sent) in rows.items():
        yield [
            Word(name),
            f"{stored:,.0f} B",
            Word("unknown") if sent is None else f"{sent / 1e6:,.1f} MB" if sent else "0",
            Word(f"{name} exact"),
        ]
