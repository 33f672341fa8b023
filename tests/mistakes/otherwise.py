"""Each mistake in another form: as wrong lines in `solutions/einsum.py`.

It is not in the catalogue that these lines stand, but in code that computes the
same in another way: a mistake is recognised by what it computes, not by how it
is written.
"""

from typing import NamedTuple


class Otherwise(NamedTuple):
    """An exercise, and right and wrong lines in its solution by einsum."""

    exercise: str
    lines: tuple[tuple[str, str], ...]


def of(exercise: str, *lines: tuple[str, str]) -> Otherwise:
    return Otherwise(exercise, lines)


OTHERWISE = {
    "mask-times-tiny": of(
        "sdpa",
        (
            "        scores = torch.where(mask, scores, -torch.inf)\n",
            "        scores = scores - 1e-9 * ~mask\n",
        ),
    ),
}

# Mistakes that no exercise tells, and why.
TOLD_BY_NONE: dict[str, str] = {}
