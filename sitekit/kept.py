"""What one build has computed and the next may keep, while no code changes.

This module alone outlives a build under `mkdocs serve`, and so holds the
worker process that builds the Chinese half.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import wraps
from typing import TypeVar

from sitekit import ROOT

T = TypeVar("T")
worker: ProcessPoolExecutor | None = None
_results: dict[tuple[object, ...], object] = {}


def _state_of_the_code() -> tuple[tuple[str, int], ...]:
    return tuple(
        (str(path), path.stat().st_mtime_ns)
        for folder in ("attnref", "sitekit")
        for path in sorted((ROOT / folder).rglob("*.py"))
    )


def kept(function: Callable[[], T]) -> Callable[[], T]:
    """Compute once, and again when a file of attnref or sitekit changes."""

    @wraps(function)
    def wrapper() -> T:
        key = (function.__qualname__, *_state_of_the_code())
        if key not in _results:
            _results[key] = function()
        return _results[key]  # type: ignore[return-value]

    return wrapper
