"""Parts of the keys and what is merged of them, and the bytes that are read."""

import math
from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

import torch
from markupsafe import Markup

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


def _of(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
    k, v = (x[None, None, part, None] for x in (SCORES, VALUES))
    return flash_lse(ONE, k, v, scale=1.0)


def merged() -> Iterator[Row]:
    """Each part's output, log-sum-exp and weight, and then all of them."""
    outs, lses = zip(*map(_of, PARTS), strict=True)
    out, lse = merge(outs, lses)
    for part, own, its in zip(PARTS, outs, lses, strict=True):
        yield [
            ", ".join(str(j) for j in range(part.start, part.stop)),
            ", ".join(f"{s:g}" for s in SCORES[part].tolist()),
            ", ".join(f"{v:g}" for v in VALUES[part].tolist()),
            f"{own.item():.3f}",
            f"{its.item():.4f}",
            f"{(its - lse).exp().item():.4f}",
            f"{((its - lse).exp() * own.squeeze(-1)).item():.3f}",
        ]
    whole = [f"{out.item():.3f}", f"{lse.item():.4f}", "1.0000"]
    yield [Word("merged"), "", "", *whole, f"{out.item():.3f}"]
    mean = torch.stack(outs).mean().item()
    yield [Word("mean"), "", "", f"{mean:.3f}", "", "", ""]


class Steps(NamedTuple):
    """Steps from top to bottom: the kind of their boxes, and what stands in
    each. A step of one box is as wide as all columns."""

    boxes: list[tuple[str, list[str]]]

    def drawing(
        self, axes: tuple[str, str], *, title: str, words: list[str]
    ) -> svg.Drawing:
        """`words` are one text per step; `{}` in it is what the box holds."""
        if len(words) != len(self.boxes):
            raise ValueError(f"{len(words)} words, {len(self.boxes)} steps")
        rows = [
            [word.format(text) for text in texts]
            for word, (_, texts) in zip(words, self.boxes, strict=True)
        ]
        columns = max(map(len, rows))
        one = max(
            svg.room(texts, 12, svg.BOLD) / (1 if len(texts) > 1 else columns)
            for texts in rows
        )
        width, height, gap, left, top = max(one + 16, 88), 32, 26, 30, 30
        whole = columns * (width + 8) - 8
        ends = [top + i * (height + gap) + height / 2 for i in range(len(rows))]
        marks = [
            svg.TEXT.format("axis", left + whole / 2, 12, "", axes[1]),
            svg.TEXT.format(
                "axis",
                0,
                0,
                svg.UPWARDS.format(12, (ends[0] + ends[-1]) / 2),
                axes[0],
            ),
        ]
        middles = [left + c * (width + 8) + width / 2 for c in range(columns)]
        marks += [svg.LINE.format(x, ends[0], x, ends[-1]) for x in middles]
        for (kind, _), texts, y in zip(self.boxes, rows, ends, strict=True):
            wide = whole if len(texts) == 1 else width
            places = [left + whole / 2] if len(texts) == 1 else middles
            for text, x in zip(texts, places, strict=True):
                box = (x - wide / 2, y - height / 2, wide, height, 4)
                marks.append(svg.BOX.format(kind, *box, ""))
                marks.append(svg.TEXT.format(kind, x, y, "", text))
        across, down = left + whole + 2, ends[-1] + height / 2 + 2
        drawn = svg.SVG.format(across, down, title, Markup("").join(marks))
        room = svg.room([title], 1, svg.BOLD)
        return svg.Drawing(title, room, across, drawn)


def split() -> Steps:
    """The parts of the example, each to its own result, and these to one."""
    rows = [*merged()]
    parts = rows[: len(PARTS)]
    return Steps(
        [
            ("off", [""]),
            ("on", [str(row[0]) for row in parts]),
            ("made", [f"{row[3]}; {row[4]}" for row in parts]),
            ("off", [str(rows[len(PARTS)][3])]),
        ]
    )


def cascade(rows: int) -> Steps:
    """A prefix that all rows read together, and then the keys of each."""
    numbers = [str(i) for i in range(rows)]
    return Steps(
        [("off", numbers), ("on", [""]), ("on", numbers), ("off", numbers)]
    )


# Of an H100 SXM, by the author of FlashAttention in the thread that the page
# links to; queries that one thread block takes, by FlashMLA and FlashAttention.
PROCESSORS, QUERIES = 132, 64


def enough(blocks: int) -> int:
    """The most parts per sequence, each with a processor of its own."""
    return max(1, PROCESSORS // blocks)


def partial(tokens: int, batch: int) -> Iterator[Row]:
    """Thread blocks without parts, parts for all, and what a part costs."""
    past = tokens - 1
    for name, kv in ("mha", 32), ("gqa", KV_HEADS), ("mqa", 1), ("mla", 1):
        if name == "mla":
            heads, wide = V3["n_heads"], V3["kv_lora_rank"]
            cost = mla_cost(**V3, past=past)
        else:
            heads, wide = LLAMA["n_heads"], 128
            cost = attention_cost(**LLAMA, n_kv_heads=kv, past=past)
        blocks = kv * ceil(heads / kv / QUERIES)
        # Output and log-sum-exp in float32, written and read again.
        moved = 2 * heads * (wide + 1) * 4
        per_token = 2 * cost.cached / tokens  # in bfloat16
        yield [
            Word(name),
            str(kv),
            str(blocks),
            str(enough(blocks)),
            str(enough(blocks * batch)),
            f"{moved / per_token:,.0f}",
        ]


def bytes_read(own: int) -> Iterator[Row]:
    """Bytes of the cache that a decode step reads, and with a prefix once."""
    known = [find_model("llama-3.1-8b"), find_model("deepseek-v3")]
    for prefix in (2048, 8192, 32768):
        for batch in (16, 64):
            row: Row = [f"{prefix:,}", str(batch)]
            for model in known:
                apart = kv_bytes(model, prefix + own, batch=batch)
                rows = kv_bytes(model, own, batch=batch)
                once = kv_bytes(model, prefix) + rows
                row += [size(apart), size(once)]
            yield [*row, f"{apart / once:.1f}x"]


def numbers() -> dict[str, object]:
    """What the text says of GPUs and logarithms."""
    cost = attention_cost(**LLAMA, n_kv_heads=KV_HEADS)
    v3 = find_model("deepseek-v3")
    cache = kv_bytes(v3, 131072)  # on each of 8 GPUs, or striped over them
    sent = V3["n_heads"] * (V3["kv_lora_rank"] + 1) * 4  # float32
    return {
        "dcp_whole": size(cache),
        "dcp_part": size(cache / 8),
        "dcp_sent": size(sent),
        "dcp_read": size(cache / 8 / v3.groups[0].layers),
        "sms": PROCESSORS,
        "blocks": KV_HEADS,
        "batch": ceil(H100.ridge / cost.attention_intensity()),
        "parts_of_a100": 108 // 12,
        "parts": enough(12),
        "ln_2": math.log(2),
        "log2_e": math.log2(math.e),
    }
