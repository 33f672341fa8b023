"""A strip of frames, one idea in each, which assets/stepper.js steps."""

from typing import NamedTuple

from markupsafe import Markup


class Frame(NamedTuple):
    """What is drawn, and the numbers that its words tell."""

    marks: list[Markup]
    facts: dict[str, str]


class Steps(NamedTuple):
    """Frames of one size."""

    width: float
    height: float
    frames: list[Frame]
