"""MHA, GQA and MQA compared in one decode step."""

from collections.abc import Iterator

from attnref.numbers.kv_memory import size
from sitekit.drawn.compute import mega
from sitekit.drawn.operations import SEEN, decode
from sitekit.render import Row


def compare() -> Iterator[Row]:
    """Parameters, FLOPs and bytes of one decode step of MHA, GQA-8 and MQA."""
    costs = decode()
    for key, name, K in (
        ("mha", "MHA", 32),
        ("gqa", "GQA-8", 8),
        ("mqa", "MQA", 1),
    ):
        cost = costs[key]
        yield [
            name,
            str(K),
            mega(cost.parameters),
            mega(cost.projections),
            mega(cost.scores + cost.values),
            size(2 * cost.cached / SEEN),
            size(2 * cost.cached),
            f"{float(cost.attention_intensity()):.0f}",
        ]
