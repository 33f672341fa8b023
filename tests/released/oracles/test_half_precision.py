"""Written files are right in bfloat16 and float16 over 4,000 tokens."""

from functools import cache

import torch
from torch import nn

from attnref.released.generate import file_of
from attnref.released.record import AttentionRecord
from tests.kit.families import (
    FAMILIES,
    config_of,
    mixers_of,
    records_of,
)
from tests.kit.rounding import (
    LENGTH,
    growth,
    in_half_precision,
    parsed,
    parts,
    slow,
)

LENGTHS = dict.fromkeys(
    ("max_position_embeddings", "n_positions", "max_seq_len"), LENGTH
)


@cache
def config(family):
    """For texts of so many tokens."""
    fields = config_of(family).to_dict()
    return fields | {n: size for n, size in LENGTHS.items() if n in fields}


def fields_of(record):
    """Which of its fields are set: what the file of such a layer does."""
    return type(record).__name__, *(n for n, x in vars(record).items() if x)


@cache
def kinds():
    """A layer for each set of fields that some family has."""
    found = {}
    for family in FAMILIES:
        records = {**records_of(config(family)), **mixers_of(config(family))}
        for layer, record in records.items():
            found.setdefault(fields_of(record), (family, layer, record))
    return {f"{family} {n}": (family, n, r) for family, n, r in found.values()}


class Pair(nn.Module):
    """A layer that reads the keys, or the choice, of the one before it."""

    def __init__(self, earlier, layer, shares):
        super().__init__()
        self.earlier, self.layer, self.shares = earlier, layer, shares

    def cache(self, length):
        first = self.earlier.cache(length)
        return first, first if self.shares else self.layer.cache(length)

    def forward(self, x, cache):
        self.earlier(x, cache=cache[0])
        options = {} if self.shares else {"chosen": self.earlier.chosen}
        return self.layer(x, cache=cache[1], **options)


def module_of(mixer, number, record, records):
    """The layer, behind the one that it reads, if it reads one."""
    layer = mixer(number)
    if not isinstance(record, AttentionRecord):
        return layer
    shares = record.shares
    if shares is None:
        if not record.index_topk or record.index_own:
            return layer
        shares = max(
            n for n, r in records.items() if n < number and r.index_own
        )
        return Pair(mixer(shares), layer, False)
    return Pair(mixer(shares), layer, True)


def read(layer, x):
    cache = layer.cache(LENGTH)
    state = hasattr(cache, "kept")
    chunks = parts(x, state=state)
    return torch.cat([layer(part, cache=cache) for part in chunks], dim=1)


@in_half_precision(kinds(), "minimax 1 bfloat16")
def test_a_written_file_rounds_late_tokens_as_early_ones(case):
    name, dtype = parsed(case)
    family, number, record = kinds()[name]
    space = {}
    exec(compile(file_of(config(family)), family, "exec"), space)
    records = records_of(config(family))
    layer = slow(module_of(space["mixer"], number, record, records))
    choosing = bool(getattr(record, "index_topk", 0))
    # Tiny models choose few keys: a single other one is much of the result.
    options = {"choosing": choosing, "tie": choosing / 16}
    assert growth(layer, read, dtype, record.d_model, **options) <= 3
