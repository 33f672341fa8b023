"""The page that is being rendered, as far as a fence on it needs to know.

The program that renders calls `enter` first; for MkDocs, sitekit/adapter.py
does. A fence then asks nothing of that program.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    path: Path
    language: str
    address: Callable[[str], str]  # of a page, by the path of its Markdown


_current: list[Place] = []


def enter(place: Place) -> None:
    _current[:] = [place]


def current() -> Place:
    return _current[0]
