"""Written files are right in bfloat16 and float16 over 4,000 tokens."""

from functools import cache

import torch
from torch import nn

from attnref.released.difference import inputs_of
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


class Reader(nn.Module):
    """A layer behind those whose keys, latents or choice it reads: by its
    options, or all by the cache of one."""

    def __init__(self, layer, earlier, shares):
        super().__init__()
        self.layer, self.shares = layer, shares
        self.earlier = nn.ModuleDict(earlier)

    def cache(self, length):
        caches = [layer.cache(length) for layer in self.earlier.values()]
        return *caches, caches[0] if self.shares else self.layer.cache(length)

    def forward(self, x, cache):
        options = {}
        for (name, layer), own in zip(
            self.earlier.items(), cache[:-1], strict=True
        ):
            layer(x, cache=own)
            options[name] = getattr(layer, name, None)
        options = {} if self.shares else options
        return self.layer(x, cache=cache[-1], **options)


def module_of(mixer, number, record, records):
    """The layer, behind those that it reads, if it reads any."""
    layer = mixer(number)
    if not isinstance(record, AttentionRecord):
        return layer
    earlier = {}
    if record.shares is not None:
        earlier["latents"] = mixer(record.shares)
    if record.index_topk and not record.index_own:
        last = max(
            n
            for n, r in records.items()
            if n < number and r.index_own and r.shares is None
        )
        earlier["chosen"] = mixer(last)
    shares = record.shares is not None and not record.kv_rank
    return Reader(layer, earlier, shares) if earlier else layer


def read(layer, x):
    cache = layer.cache(LENGTH)
    state = hasattr(cache, "kept")
    out = [
        layer(part, cache=cache, **inputs_of(layer, part))
        for part in parts(x, state=state)
    ]
    return torch.cat(out, dim=1)


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
