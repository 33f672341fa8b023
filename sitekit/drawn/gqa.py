"""How heads share keys and values, and how those of a group are stacked."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from markupsafe import Markup
from torch import Tensor

from attnref.core.sdpa import _fold
from attnref.numbers.cost import Cost, attention_cost
from attnref.numbers.kv_memory import kv_bytes, size
from attnref.released.specs import find_model
from sitekit.drawing import svg
from sitekit.drawn.compare import picture, wires_of
from sitekit.drawn.operations import decode, mega
from sitekit.markdown.render import Row

WIDTH = 128  # of a head
HEADS = 8


class Shared(NamedTuple):
    """Which query head reads which key/value head, and what that costs."""

    wires: Tensor
    cost: Cost

    def drawing(
        self, axes: tuple[str, str], *, title: str, words: list[str]
    ) -> svg.Drawing:
        """`words`: below it, with {0} for the bytes of a token, {1} for the
        parameters and {2} for the FLOPs per byte of cache."""
        marks = picture(self.wires, torch.zeros(self.wires.shape[1]), 320)
        drawn = svg.SVG.format(320, 132, title, Markup("").join(marks))
        values = (
            f"{2 * self.cost.cached:,}",
            f"{self.cost.parameters:,}",
            f"{float(self.cost.attention_intensity()):g}",
        )
        below = [word.format(*values) for word in words]
        return svg.Drawing(title, 0, 320, drawn, below=below)


def shared(*, n_kv_heads: int) -> Shared:
    wires, _ = wires_of(HEADS, n_kv_heads)
    width = HEADS * WIDTH
    cost = attention_cost(d_model=width, n_heads=HEADS, n_kv_heads=n_kv_heads)
    return Shared(wires, cost)


def fold(n_heads: int, n_kv_heads: int, queries: int) -> Iterator[Row]:
    """Which rows, (head, query), stand in the product of each key head."""
    heads, at = torch.arange(n_heads), torch.arange(queries)
    marks = torch.cartesian_prod(heads, at).view(1, n_heads, queries, 2)
    for k, row in enumerate(_fold(marks, n_kv_heads)[0].tolist()):
        yield [str(k), ", ".join(f"({head}, {query})" for head, query in row)]


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
    """Bytes per token of Llama-3.1-8B, of one layer and of all, and the share
    of MHA's parameters that MQA has."""
    token, costs = kv_bytes(find_model("llama-3.1-8b"), 1), decode()
    parameters = costs["mqa"].parameters / costs["mha"].parameters
    return {"layer": token // 32, "token": token, "parameters": parameters}
