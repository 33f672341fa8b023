"""The known answers, and how large they are."""

from collections.abc import Iterator
from typing import Any

from attnref.judge.gradients import backward
from sitekit import answers
from sitekit.markdown.render import Row


def numbers() -> dict[str, float]:
    return {
        "cases": len(answers.index()),
        "zip": len(answers.archive()) / 1e6,
        "backward": len(backward()),
    }


def backward_mistakes() -> Iterator[Row]:
    """Each with its title and how one notices it, in both languages."""
    for id, mistake in backward().items():
        yield [f"`{id}`", *mistake[1:3]]


def cases() -> Iterator[Row]:
    """A case, what it is compared with, its sizes, and how many mistakes it
    names."""
    for name, case in answers.index().items():
        *path, last = case["oracle"].split(".")
        yield [
            _link(name, case),
            f"`{path[0]}` `{last}`",
            ", ".join(f"{x} {y}" for x, y in case["sizes"].items()),
            str(case["mistakes"]),
        ]


def hidden() -> Iterator[Row]:
    """A case, what float16 hides there, and what only bfloat16 hides."""
    for name, case in answers.index().items():
        in_float16, in_bfloat16 = (
            case["indistinguishable"][kind] for kind in ("float16", "bfloat16")
        )
        if in_float16 or in_bfloat16:
            only_bfloat16 = [way for way in in_bfloat16 if way not in in_float16]
            yield [_link(name, case), _list(in_float16), _list(only_bfloat16)]


def _link(name: str, case: dict[str, Any]) -> str:
    return f"[{name}](files:answers/{case['file']})"


def _list(ways: list[str]) -> str:
    return ", ".join(f"`{way}`" for way in ways) or "-"
