"""The pins of constraints.txt: of some packages one for each Python."""

from packaging.requirements import Requirement

from sitekit import ROOT

LINES = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]


def holds(pin: Requirement, python: str) -> bool:
    """On that Python; one without a marker holds on each."""
    environment = {"python_full_version": python}
    return not pin.marker or pin.marker.evaluate(environment)


def pinned() -> dict[str, str]:
    """The versions that are pinned for this Python."""
    return {
        pin.name: str(pin.specifier).removeprefix("==")
        for pin in LINES
        if not pin.marker or pin.marker.evaluate()
    }
