"""Memory of devices, as their drivers report it."""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from attnref.words import hint, message


class Device(NamedTuple):
    """A device: `mib` of memory, and where its driver was seen to say so."""

    name: str
    mib: int
    source: str


@cache
def devices() -> dict[str, Device]:
    """All devices that are known, by what `--device` calls them."""
    text = Path(__file__).with_suffix(".json").read_text("utf-8")
    return {id: Device(**row) for id, row in json.loads(text).items()}


def find_device(id: str) -> Device:
    """A device by its id; the error suggests similar ones.

    Examples:
        >>> find_device("H100").mib
        81559
    """
    known = devices()
    if id.lower() in known:
        return known[id.lower()]
    meant = hint(id, {id: id for id in known})
    meant = meant or message("; there are {}", message(", ").join(known))
    raise ValueError(message("there is no device {!r}", id) + meant)
