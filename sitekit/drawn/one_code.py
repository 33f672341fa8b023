"""MHA, GQA and MQA compared in one decode step."""

from collections.abc import Iterator

from attnref.numbers.kv_memory import size
from sitekit.drawn.compute import mega
from sitekit.drawn.operations import H100, decode
from sitekit.markdown.render import Row


def compare() -> Iterator[Row]:
    """Parameters, FLOPs and bytes of one decode step of MHA, GQA-8 and MQA."""
    costs = decode()
    for key, K in (("mha", 32), ("gqa", 8), ("mqa", 1)):
        cost = costs[key]
        yield [
            f"{key.upper()}, `K` = {K}",
            mega(cost.parameters),
            mega(cost.projections),
            mega(cost.scores + cost.values),
            size(2 * cost.cached),
            f"{float(cost.attention_intensity()):.0f}",
        ]


def numbers() -> dict[str, object]:
    """What the text says of it."""
    costs = decode()
    return {
        "parameters": costs["mqa"].parameters / costs["mha"].parameters,
        "ridge": H100.ridge,
    }
