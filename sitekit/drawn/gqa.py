"""How the heads of a group are stacked."""

from collections.abc import Iterator

import torch

from attnref.core.sdpa import _fold
from sitekit.render import Row


def fold(n_heads: int, n_kv_heads: int, queries: int) -> Iterator[Row]:
    """Which rows, (head, query), stand in the product of each key head."""
    heads, at = torch.arange(n_heads), torch.arange(queries)
    marks = torch.cartesian_prod(heads, at).view(1, n_heads, queries, 2)
    for k, row in enumerate(_fold(marks, n_kv_heads)[0].tolist()):
        yield [str(k), ", ".join(f"({head}, {query})" for head, query in row)]
