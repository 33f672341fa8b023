"""The known answers, and how large they are."""

from collections.abc import Iterator

from sitekit import answers
from sitekit.markdown.render import Row


def numbers() -> dict[str, float]:
    return {
        "cases": len(answers.index()),
        "zip": len(answers.archive()) / 1e6,
    }


def cases() -> Iterator[Row]:
    """A case, what it is compared with, and how many mistakes it names."""
    for name, case in answers.index().items():
        *path, last = case["oracle"].split(".")
        yield [
            f"[{name}](files:answers/{case['file']})",
            f"`{path[0]}` `{last}`",
            str(case["mistakes"]),
        ]
