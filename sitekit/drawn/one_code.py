"""MHA, GQA and MQA at one and the same step."""

from collections.abc import Iterator

from attnref.numbers.kv_memory import size
from sitekit.drawn.compute import SEEN, decode, mega, products
from sitekit.render import Row


def compare() -> Iterator[Row]:
    """The same step of MHA, GQA-8 and MQA: what differs, and what does not."""
    names = {"MHA": 32, "GQA-8": 8, "MQA": 1}
    for (name, K), cost in zip(names.items(), decode().values(), strict=True):
        yield [
            name,
            str(K),
            mega(cost.parameters),
            mega(cost.projections),
            mega(products(cost)),
            size(2 * cost.cached / SEEN),
            size(2 * cost.cached),
            f"{float(cost.attention_intensity()):.0f}",
        ]
