"""Which of the four variants suits which case."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from attnref.numbers.cost import Cost, attention_cost, mla_cost
from attnref.numbers.kv_memory import size
from attnref.released.specs import find_model, models
from sitekit.drawn.mla import V3
from sitekit.drawn.operations import H100
from sitekit.drawn.released import kinds_of
from sitekit.markdown.render import Row, Word

# A model of the size of Llama-3.1-8B with each variant on an H100.
SHAPE: dict[str, Any] = {"d_model": 4096, "n_heads": 32}
LATENT = V3 | SHAPE | {"q_lora_rank": None}
LAYERS, VOCABULARY = 32, 128_256
MEMORY = 80e9  # bytes of an H100


def _of_8b(**options: Any) -> dict[str, Cost]:
    """The cost of each variant in one layer of Llama-3.1-8B."""
    costs = {
        name: attention_cost(**SHAPE, n_kv_heads=K, **options)
        for name, K in {"mha": 32, "gqa": 8, "mqa": 1}.items()
    }
    return costs | {"mla": mla_cost(**LATENT, **options)}


def _weights(cost: Cost) -> int:
    """Parameters that a step reads once the attention is another one."""
    params = find_model("llama-3.1-8b").params
    assert params is not None
    original = attention_cost(**SHAPE, n_kv_heads=8).parameters
    width: int = SHAPE["d_model"]
    params -= VOCABULARY * width  # a row per token is read of these
    return params + LAYERS * (cost.parameters - original)


def least(cost: Cost, batch: int) -> float:
    """Seconds: the slower of reading all and computing all."""
    weights = _weights(cost)
    bytes_read = 2 * weights, 2 * LAYERS * cost.cached
    flops = 2 * batch * weights, LAYERS * (cost.scores + cost.values)
    return max(sum(bytes_read) / H100.bandwidth, sum(flops) / H100.peak)


def cases() -> Iterator[Row]:
    """Caches, and the least time of a decode step, in several situations."""
    embedding = VOCABULARY * SHAPE["d_model"]
    for batch, tokens in ((1, 1024), (64, 1024), (1, 131_072), (32, 8192), (128, 8192)):
        row: Row = [str(batch), f"{tokens:,}"]
        for cost in _of_8b(batch=batch, past=tokens - 1).values():
            cache = 2 * LAYERS * cost.cached
            total = cache + 2 * (_weights(cost) + embedding)
            ms = f"{1e3 * least(cost, batch):.1f} ms"
            row.append([size(cache), ms] if total <= MEMORY else size(cache))
        yield row


def devices() -> Iterator[Row]:
    """Bytes of cache per token on each device, in all layers."""
    for name, cost in _of_8b().items():
        heads = {"mha": 32, "gqa": 8}.get(name, 1)
        cache = 2 * LAYERS * cost.cached
        ranks = (1, 2, 4, 8, 16)
        yield [Word(name), *(f"{cache // min(n, heads):,}" for n in ranks)]


KINDS = ("MHA", "GQA", "MQA", "MLA", "shared", "window", "state")


def released() -> Iterator[Row]:
    """How many of a year's models have layers of each kind."""
    years = sorted({model.date[:4] for model in models().values()})
    for year in years:
        ours = [m for m in models().values() if m.date.startswith(year)]
        tally = Counter(kind for model in ours for kind in kinds_of(model))
        counts = (str(tally[kind] or "–") for kind in KINDS)
        yield [year, str(len(ours)), *counts]


def numbers() -> dict[str, object]:
    """What the text says of sizes and steps."""
    steps = [1e3 * least(cost, 1) for cost in _of_8b(past=1023).values()]
    short, v3 = _of_8b(past=1023), mla_cost(**V3, past=8191)
    grouped = short["gqa"].cached
    return {
        "of_mqa": 2 * 128 / (512 + 64),
        "fastest": min(steps),
        "slowest": max(steps),
        "latent": short["mla"].cached / grouped,
        "intensity": short["mla"].attention_intensity(),
        "intensity_of_v3": v3.attention_intensity(),
        "intensity_of_gqa": short["gqa"].attention_intensity(),
    }
