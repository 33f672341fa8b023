"""The rows of tables: of a function of the page, or of known models."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from attnref.numbers.kv_memory import growth, kv_bytes, size
from attnref.numbers.shapes import Source
from attnref.released.specs import find_model
from sitekit.markdown.calls import arguments, check_keys, near, value
from sitekit.markdown.render import Rows

Table = tuple[Rows, dict[str, Any]]  # the facts that its caption may name


def code(*texts: object) -> str:
    return ", ".join(f"`{text}`".replace("torch.", "") for text in texts)


def exact(n: Fraction) -> str:
    """A number of bytes, with the decimals that it has."""
    return f"{n.numerator:,}" if n.denominator == 1 else f"{float(n):,.2f}"


def links(*sources: Source) -> str:
    return ", ".join(f"[{s.label}]({s.url})" for s in sources)


def computed(page: str, *, table: str) -> Table:
    return value(table, page), arguments(table)


def models(page: str, *, models: dict[str, Any]) -> Table:
    check_keys("models", models, familiar)
    return familiar(**models), {}


def familiar(*, variant: str, ids: list[str], columns: list[str | int]) -> Rows:
    """Released models of one variant. A number for a column: the cache of a
    sequence of so many tokens, in bfloat16."""
    rows: Rows = []
    for model in map(find_model, ids):
        group, *other_groups = model.groups
        if other_groups or getattr(group, "variant", None) != variant:
            raise ValueError(f"{model.id} is not {variant} in all its layers")
        cells: dict[str | int, str] = {
            "name": model.name,
            "token": exact(growth(model).later),
            "source": links(*model.sources[:1]),
            **{key: str(number) for key, number in vars(group).items()},
            **{n: size(kv_bytes(model, n)) for n in columns if type(n) is int},
        }
        for column in columns:
            if column not in cells:
                reason = f"there is no column {column!r}, nor is it a number"
                raise ValueError(reason + near(column, map(str, cells)))
        rows.append([cells[column] for column in columns])
    return rows


TABLES: dict[str, Callable[..., Table]]
TABLES = {"table": computed, "models": models}
