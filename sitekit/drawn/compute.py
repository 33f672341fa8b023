"""Operations and bytes of a decode step, for each variant."""

from collections.abc import Iterator
from math import ceil
from typing import Any

from attnref import crossover
from attnref.numbers.cost import attention_cost, mla_cost
from attnref.numbers.kv_memory import size
from sitekit.drawn.mla import V3, WIDTHS
from sitekit.drawn.operations import H100, SEEN, attainable, decode
from sitekit.markdown.render import Row, Word


def numbers() -> dict[str, object]:
    """What the text says of these steps."""
    costs = decode()
    expanded, absorbed = costs["expanded"], costs["absorbed"]
    mha, _, _, of_expanded, of_absorbed = pairs()
    short = mla_cost(**V3, form="absorbed", past=4096)
    return {
        "pair": mha[1],
        "pair_expanded": of_expanded[1],
        "times_expanded": of_expanded[2],
        "pair_absorbed": of_absorbed[1],
        "times_absorbed": of_absorbed[2],
        "parameters": absorbed.parameters / 1e6,
        "parameters_zh": absorbed.parameters / 1e8,
        "larger_cache": expanded.cached / absorbed.cached,
        "more_bytes": expanded.bytes_read() / absorbed.bytes_read(),
        "expanding": costs["latent"].projections / 1e9,
        "more_with_up": 2 * 128 * 512 * (128 + 128) / (2 * short.scores),
        "from_tokens": ceil(crossover(**WIDTHS)),
        "roof_of_mha": attainable(1) / H100.peak,
    }


def mega(n: int) -> str:
    return f"{n / 1e6:,.1f}"


def step() -> Iterator[Row]:
    """The forms of MLA; `one_code.compare` has MHA, GQA and MQA."""
    for name, cost in decode().items():
        if name in ("mha", "gqa", "mqa"):
            continue
        yield [
            Word(name),
            mega(cost.projections),
            mega(cost.scores + cost.values),
            size(2 * cost.cached),
            f"{float(cost.attention_intensity()):,.4g}",
            f"{float(cost.intensity()):,.4g}",
        ]


def least() -> Iterator[Row]:
    """The least time of scores and values of this step on an H100."""
    for name, cost in decode().items():
        if name == "latent":
            continue
        read = 2 * cost.cached / H100.bandwidth * 1e6
        done = (cost.scores + cost.values) / H100.peak * 1e6
        yield [Word(name), f"{read:.2f}", f"{done:.2f}"]


def turn() -> Iterator[Row]:
    """What is asked of the reader, as one writes it down, and the results."""
    costs = decode()
    gqa, absorbed = costs["gqa"], costs["absorbed"]
    products, read = gqa.scores + gqa.values, 2 * gqa.cached
    yield ["1", "4 × 8192 × 32 × 128", f"{mega(products)} MFLOPs"]
    yield ["2", "2 × 8192 × 8 × 128 × 2 B", size(read)]
    ratio = f"{products / read:.0f}"
    yield ["3", f"{mega(products)} / {mega(read)}", ratio]
    each = products // SEEN
    yield [
        "4",
        f"{mega(gqa.projections)} / {each / 1e6:.4f}",
        f"{gqa.projections // each:,}",
    ]
    flops = absorbed.scores + absorbed.values
    yield ["5", "2 × 128 × (2 × 512 + 64) × 8192", f"{mega(flops)} MFLOPs"]


def pairs() -> Iterator[Row]:
    """FLOPs for one query and one key, 128 heads of 128."""
    heads: dict[str, Any] = {"d_model": 16_384, "n_heads": 128}
    costs = {
        "mha": attention_cost(**heads),
        "gqa": attention_cost(**heads, n_kv_heads=8),
        "mqa": attention_cost(**heads, n_kv_heads=1),
        "expanded": mla_cost(**V3, form="expanded"),
        "absorbed": mla_cost(**V3, form="absorbed"),
    }
    plain = costs["mha"].scores + costs["mha"].values
    for name, cost in costs.items():
        done = cost.scores + cost.values
        yield [Word(name), f"{done:,}", f"{done / plain:g}", f"{cost.cached:,}"]
