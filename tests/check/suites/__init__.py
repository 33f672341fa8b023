"""Which tests to copy hold for which module, and how each is called.

A suite has pairs of a test and a function that makes its arguments of what has
a mistake planted: the plain forms, or a second package.
"""

from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

from attnref.check.catalogue import Variant, planted

Suite = tuple[tuple[Callable[..., None], Callable[[Any], tuple[Any, ...]]], ...]
PARTS = ("attention", "layer", "cache", "mla", "flash")
SUITES: dict[str, Suite] = {}
for part in PARTS:
    SUITES |= import_module(f"{__name__}.{part}").SUITES


def failing(variant: Variant, only: Collection[str] = ()) -> list[str]:
    """The names of the tests to copy that fail with these lines; of some."""
    failed: list[str] = []
    for law, arguments in SUITES[variant[0].module]:
        if only and law.__name__ not in only:
            continue
        try:
            law(*arguments(planted(variant)))
        except Exception:
            if law.__name__ not in failed:
                failed.append(law.__name__)
    return failed
