"""The heat maps of the entries, right and wrong."""

from torch import Tensor

from sitekit.mistakes import seen


def right(name: str) -> Tensor:
    return seen(name)[0]


def wrong(name: str) -> Tensor:
    found = seen(name)[1]
    if isinstance(found, str):
        raise ValueError(f"{name} raises {found}")
    return found
