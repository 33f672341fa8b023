"""What training shows of planted mistakes, and what wrong calls are told."""

import json
import math
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from attnref import (
    Block,
    Decoder,
    GroupedQueryAttention,
    KVCache,
    greedy,
    padding_mask,
    padding_mask_from_hf,
)
from sitekit.markdown.render import Row, Word

# As tests/site/use/test_project.py recorded it.
RECORD = Path(__file__).with_suffix(".json")
FLOOR = math.log(16)  # the least mean loss of 16 symbols as likely as another


def shown_by(row: dict[str, Any]) -> str:
    """What is the first to show a mistake, in the order of a project."""
    if row["random"] < FLOOR / 2:
        return "floor"
    if row["copied"] > 1:
        return "loss"
    if row["full"] < 0.9:
        return "answers"
    return "decode" if row["cached"] < 0.9 else "nothing"


def mistakes() -> Iterator[Row]:
    for row in json.loads(RECORD.read_text(encoding="utf-8"))["mistakes"]:
        code: list[str | Word] = [f"`{row['code']}`"] if row["code"] else []
        yield [
            [Word(row["mistake"]), *code],
            f"{row['random']:.2f}",
            f"{row['copied']:.2f}",
            f"{row['full']:.0%}",
            f"{row['cached']:.0%}",
            Word("sees" if row["future"] else "blind"),
            Word(shown_by(row)),
        ]


# Each is called when the site is built.
WRONG = {
    "name": "model(tokens, attention_mask=attention_mask)",
    "numbers": "model(tokens, mask=attention_mask)",
    "axes": "model(tokens, mask=attention_mask.bool())",
    "side": "greedy(model, tokens.flip(1), 9, valid=attention_mask.flip(1))",
    "short": "model(tokens[:, -1:], mask=padding(attention_mask[:, -1:]), caches=filled)",
    "grad": "model(tokens, caches=new(32))",
    "room": "greedy(model, tokens, 9, caches=new(16))",
    "used": "greedy(model, tokens, 9, caches=filled)",
    "rows": "model(tokens[:2, -1:], caches=filled)",
    "one": "model(tokens, caches=2 * new(32)[:1])",
    "eos": 'greedy(model, tokens, 9, eos="</s>")',
}


def messages() -> Iterator[Row]:
    layers = [GroupedQueryAttention(d_model=8, n_heads=4, n_kv_heads=2) for _ in range(2)]
    blocks = [Block(layer, d_model=8, d_ff=8) for layer in layers]
    model = Decoder(blocks, n_tokens=18, d_model=8)

    def make_caches(max_len: int) -> list[KVCache]:
        return [KVCache(max_len) for _ in layers]

    tokens = torch.zeros(3, 15, dtype=torch.long)
    attention_mask = (torch.arange(15) >= torch.tensor([[5], [3], [0]])).long()
    full_caches = make_caches(32)
    with torch.no_grad():
        model(tokens, caches=full_caches)
    names = {
        "model": model,
        "tokens": tokens,
        "attention_mask": attention_mask,
        "filled": full_caches,
        "new": make_caches,
        "greedy": greedy,
        "padding_mask": padding_mask,
        "padding": padding_mask_from_hf,
    }
    for key, call in WRONG.items():
        with torch.set_grad_enabled(key == "grad"):
            try:
                eval(call, names)
            except (TypeError, ValueError) as error:
                message = f"{type(error).__name__}: {error}"
            else:
                raise ValueError(f"{call} is not refused")
        yield [Word(key), [f"`{call}`", *textwrap.wrap(message, 76)]]


def numbers() -> dict[str, object]:
    """What the text says of the least loss, of rows that come out right with a
    mistake that nothing shows, and of a decode step."""
    record = json.loads(RECORD.read_text("utf-8"))
    plain, compiled = record["step_ms"]
    unseen = [r for r in record["mistakes"] if shown_by(r) == "nothing"]
    return {
        "floor": FLOOR,
        "unseen": min(min(r["full"], r["cached"]) for r in unseen),
        "plain_ms": plain,
        "compiled_ms": compiled,
    }
