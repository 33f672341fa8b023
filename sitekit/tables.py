"""Tables: a function's, that of a layer while it runs, that of models."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch

from attnref.numbers.kv_memory import growth, kv_bytes, size
from attnref.numbers.specs import Full, Model, Source, find_model
from sitekit.calls import arguments, checked, near, value
from sitekit.recorded import inputs_of, recorded
from sitekit.render import Cell, Rows

Table = tuple[Rows, dict[str, Any]]  # and what its caption may tell


def code(*texts: object) -> str:
    return ", ".join(f"`{text}`".replace("torch.", "") for text in texts)


def exact(n: Fraction) -> str:
    """A number of bytes, with the decimals that it has."""
    return f"{n.numerator:,}" if n.denominator == 1 else f"{float(n):,.2f}"


def links(*sources: Source) -> str:
    return ", ".join(f"[{s.label}]({s.url})" for s in sources)


def computed(page: str, *, table: str) -> Table:
    return value(table, page), arguments(table)


def walk(
    page: str,
    *,
    walk: str,
    rows: int,
    new: int,
    past: int = 0,
    context: int = 0,
    cache: str | None = None,
) -> Table:
    """A layer reads `new` tokens with `past` in its cache, or a context."""
    layer = value(walk, page)
    named = {} if cache is None else {"cache": value(cache, page)}
    if past:
        with torch.no_grad():
            layer(*inputs_of(layer, rows, past, context), **named)
    read = inputs_of(layer, rows, new, context)
    cells, sizes = recorded(layer, *read, **named)
    facts = {"rows": rows, "new": new, "past": past, "context": context}
    return cells, facts | {"walk": code(walk), "sizes": sizes}


COLUMNS: dict[str, Callable[[Model, Full], Cell]] = {
    "name": lambda model, group: model.name,
    "layers": lambda model, group: str(group.layers),
    "q_heads": lambda model, group: str(group.q_heads),
    "kv_heads": lambda model, group: str(group.kv_heads),
    "head_dim": lambda model, group: str(group.head_dim),
    "token": lambda model, group: exact(growth(model).later),
    "source": lambda model, group: links(*model.sources[:1]),
}


def models(page: str, *, models: dict[str, Any]) -> Table:
    checked("models", models, familiar)
    return familiar(**models), {}


def familiar(*, variant: str, ids: list[str], columns: list[str | int]) -> Rows:
    """Released models of one variant. A number for a column: the cache of a
    sequence of so many tokens, in bfloat16."""
    rows: Rows = []
    for name in ids:
        model = find_model(name)
        (group,) = model.groups
        if not isinstance(group, Full) or group.variant != variant:
            raise ValueError(f"{name} is not {variant}")
        row: list[Cell] = []
        for column in columns:
            if isinstance(column, int):
                row.append(size(kv_bytes(model, column)))
            elif column in COLUMNS:
                row.append(COLUMNS[column](model, group))
            else:
                why = f"there is no column {column!r}, nor is it a number"
                raise ValueError(why + near(column, COLUMNS))
        rows.append(row)
    return rows


TABLES: dict[str, Callable[..., Table]] = {
    "table": computed,
    "walk": walk,
    "models": models,
}
