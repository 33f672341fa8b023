"""A strip of frames, one idea in each, which assets/stepper.js steps."""

from typing import NamedTuple

from markupsafe import Markup

from sitekit.drawing import svg


class Frame(NamedTuple):
    """What is drawn, and the numbers that its words tell."""

    marks: list[Markup]
    facts: dict[str, str]


class Steps(NamedTuple):
    """Frames of one size."""

    width: float
    height: float
    frames: list[Frame]


def text(kind: str, x: float, y: float, words: object) -> Markup:
    return svg.TEXT.format(kind, x, y, "", words)


def box(
    kind: str, x: float, y: float, w: float, h: float, rx: int = 3
) -> Markup:
    """`x` and `y` are its upper left corner."""
    return svg.BOX.format(kind, x, y, w, h, rx, "")


PATH = Markup('<path class="{}" d="{}"/>')


def path(kind: str, points: list[complex], closed: bool = False) -> Markup:
    places = "L".join(f"{z.real:.1f} {z.imag:.1f}" for z in points)
    return PATH.format(kind, f"M{places}{'Z' if closed else ''}")


def arrow(kind: str, start: complex, tip: complex) -> Markup:
    back = start - tip
    head = [8 * back / abs(back) * complex(1, side) for side in (0.5, -0.5)]
    barbs = "".join(
        f"M{(tip + z).real:.1f} {(tip + z).imag:.1f}"
        f"L{tip.real:.1f} {tip.imag:.1f}"
        for z in head
    )
    line = f"M{start.real:.1f} {start.imag:.1f}L{tip.real:.1f} {tip.imag:.1f}"
    return PATH.format(f"arrow {kind}", line + barbs)


CIRCLE = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{:g}"/>')


def circle(kind: str, x: float, y: float, radius: float) -> Markup:
    return CIRCLE.format(kind, x, y, radius)
