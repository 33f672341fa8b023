"""Parts of the keys and what is merged of them, and the bytes that are read."""

import math
from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

import torch

from attnref.core.flash import flash_lse, parts
from attnref.core.merge import merge
from attnref.numbers.cost import attention_cost, mla_cost
from attnref.numbers.kv_memory import kv_bytes, size
from attnref.released.specs import find_model
from sitekit.drawing import svg
from sitekit.drawn.mla import V3
from sitekit.drawn.operations import H100, KV_HEADS, LLAMA
from sitekit.markdown.render import Row, Word

# One query and six keys in three parts: scores, and values of one element.
SCORES = torch.tensor([1.0, 2.0, 3.0, 1.0, 4.0, 1.0]).double()
VALUES = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0, 60.0]).double()
PARTS = parts(len(SCORES), 2)
ONE = torch.ones(1, 1, 1, 1).double()  # the query: a key is its own score


def _attend(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
    k, v = (x[None, None, part, None] for x in (SCORES, VALUES))
    return flash_lse(ONE, k, v, scale=1.0)


def merged() -> Iterator[Row]:
    """Output, log-sum-exp and weight of each part, then of all parts merged."""
    outs, lses = zip(*map(_attend, PARTS), strict=True)
    out, lse = merge(outs, lses)
    for part, part_out, part_lse in zip(PARTS, outs, lses, strict=True):
        yield [
            ", ".join(str(j) for j in range(part.start, part.stop)),
            ", ".join(f"{s:g}" for s in SCORES[part].tolist()),
            ", ".join(f"{v:g}" for v in VALUES[part].tolist()),
            f"{part_out.item():.3f}",
            f"{part_lse.item():.4f}",
            f"{(part_lse - lse).exp().item():.4f}",
            f"{((part_lse - lse).exp() * part_out.squeeze(-1)).item():.3f}",
        ]
    totals = [f"{out.item():.3f}", f"{lse.item():.4f}", "1.0000"]
    yield [Word("merged"), "", "", *totals, f"{out.item():.3f}"]
    mean = torch.stack(outs).mean().item()
    yield [Word("mean"), "", "", f"{mean:.3f}", "", "", ""]


COLUMN_GAP, STAGE, STAGE_GAP = 8, 32, 26  # between columns; height of a stage
LEFT = TOP = 30  # what the names of the axes take


class Stages(NamedTuple):
    """Stages from top to bottom: the kind of their boxes, and what stands in
    each. A stage of one box is as wide as all columns."""

    boxes: list[tuple[str, list[str]]]

    def drawing(self, axes: tuple[str, str], *, title: str, words: list[str]) -> svg.Drawing:
        """`words` are one text per stage; `{}` in it is what the box holds."""
        if len(words) != len(self.boxes):
            raise ValueError(f"{len(words)} words, {len(self.boxes)} steps")
        rows = [
            [word.format(text) for text in texts]
            for word, (_, texts) in zip(words, self.boxes, strict=True)
        ]
        columns = max(map(len, rows))
        widest = max(
            svg.room(texts, 12, svg.BOLD) / (1 if len(texts) > 1 else columns) for texts in rows
        )
        column = max(widest + 16, 88)
        width = columns * (column + COLUMN_GAP) - COLUMN_GAP
        height = len(rows) * (STAGE + STAGE_GAP) - STAGE_GAP
        center = LEFT + width / 2
        marks = [svg.axis_names(axes, center, TOP + height / 2)]
        lefts = [LEFT + n * (column + COLUMN_GAP) for n in range(columns)]
        first, last = TOP + STAGE / 2, TOP + height - STAGE / 2
        for left in lefts:
            x = left + column / 2
            marks.append(svg.line(x, first, x, last))
        for n, (kind, _) in enumerate(self.boxes):
            y, texts = TOP + n * (STAGE + STAGE_GAP), rows[n]
            box_width = width if len(texts) == 1 else column
            for x, text in zip(lefts, texts, strict=False):
                marks.append(svg.cell(kind, x, y, box_width, STAGE, text, rx=4))
        edge = svg.MARGIN
        size = LEFT + width + edge, TOP + height + edge
        return svg.drawing(*size, title, marks)


def split() -> Stages:
    """The parts of the example, each to its own result, and these to one."""
    rows = [*merged()]
    parts = rows[: len(PARTS)]
    return Stages(
        [
            ("off", [""]),
            ("on", [str(row[0]) for row in parts]),
            ("made", [f"{row[3]}; {row[4]}" for row in parts]),
            ("off", [str(rows[len(PARTS)][3])]),
        ]
    )


def cascade(rows: int) -> Stages:
    """A prefix that all rows read together, and then the keys of each."""
    numbers = [str(i) for i in range(rows)]
    return Stages([("off", numbers), ("on", [""]), ("on", numbers), ("off", numbers)])


# The processors of an H100 SXM, as the author of FlashAttention counts them in
# the thread that the page links to; and the queries of one thread block in
# FlashMLA and FlashAttention.
PROCESSORS, QUERIES = 132, 64


def enough(blocks: int) -> int:
    """The most parts per sequence, each with a processor of its own."""
    return max(1, PROCESSORS // blocks)


def partial(tokens: int, batch: int) -> Iterator[Row]:
    """Thread blocks without parts, parts for all, and what a part costs."""
    past = tokens - 1
    for name, K in ("mha", 32), ("gqa", KV_HEADS), ("mqa", 1), ("mla", 1):
        if name == "mla":
            heads, width = V3["n_heads"], V3["kv_lora_rank"]
            cost = mla_cost(**V3, past=past)
        else:
            heads, width = LLAMA["n_heads"], 128
            cost = attention_cost(**LLAMA, n_kv_heads=K, past=past)
        blocks = K * ceil(heads / K / QUERIES)
        # Output and log-sum-exp in float32, written and read again.
        bytes_of_part = 2 * heads * (width + 1) * 4
        per_token = 2 * cost.cached / tokens  # in bfloat16
        yield [
            Word(name),
            str(K),
            str(blocks),
            str(enough(blocks)),
            str(enough(blocks * batch)),
            f"{bytes_of_part / per_token:,.0f}",
        ]


def bytes_read(own: int) -> Iterator[Row]:
    """Bytes of the cache that a decode step reads, if each row stores the
    prefix before its `own` tokens, and if all share it."""
    llama_and_v3 = [find_model("llama-3.1-8b"), find_model("deepseek-v3")]
    for prefix in (2048, 8192, 32768):
        for batch in (16, 64):
            row: Row = [f"{prefix:,}", str(batch)]
            for model in llama_and_v3:
                unshared = kv_bytes(model, prefix + own, batch=batch)
                rows = kv_bytes(model, own, batch=batch)
                shared = kv_bytes(model, prefix) + rows
                row += [size(unshared), size(shared)]
            yield [*row, f"{unshared / shared:.1f}x"]


def numbers() -> dict[str, object]:
    """What the text says of GPUs and logarithms."""
    cost = attention_cost(**LLAMA, n_kv_heads=KV_HEADS)
    v3 = find_model("deepseek-v3")
    cache = kv_bytes(v3, 131072)  # on each of 8 GPUs, or striped over them
    bytes_sent = V3["n_heads"] * (V3["kv_lora_rank"] + 1) * 4  # float32
    return {
        "dcp_whole": size(cache),
        "dcp_part": size(cache / 8),
        "dcp_sent": size(bytes_sent),
        "dcp_read": size(cache / 8 / v3.groups[0].layers),
        "sms": PROCESSORS,
        "blocks": KV_HEADS,
        "batch": ceil(H100.ridge / cost.attention_intensity()),
        "parts_of_a100": 108 // 12,
        "parts": enough(12),
        "ln_2": math.log(2),
        "log2_e": math.log2(math.e),
    }
