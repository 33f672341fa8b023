"""Numbers in the text of a page: `{{weights:.1f}} GB`.

The function `numbers` of sitekit/drawn/<page>.py gives all those of a page by
name; behind the colon stands a format of Python. Both languages name the same
ones, so that they say the same. What stands in such braces as an expression,
with calls, is a fact about the code: facts.py.
"""

import re
from pathlib import Path

from sitekit import ROOT
from sitekit.adapter import BuildError
from sitekit.markdown import facts, source
from sitekit.markdown.calls import near, value

NUMBER = re.compile(r"\{\{(\w+)(?::([^{}]*))?\}\}")


def fill(text: str, path: Path) -> str:
    """Put numbers, and the results of facts, into the text of a page or into a
    part of it."""

    def number(match: re.Match[str]) -> str:
        name, form = match.groups("")
        try:
            numbers = value("numbers", path.stem)
            if name not in numbers:
                raise ValueError(f"no number {name!r}{near(name, numbers)}")
            entry = numbers[name]
            printable = entry if isinstance(entry, int | str) else float(entry)
            return format(printable, form)
        except Exception as error:
            raise BuildError(f"{_place(match[0], path)}: {error}") from error

    def fact(match: re.Match[str]) -> str:
        try:
            return facts.result(match[1])
        except Exception as error:
            raise BuildError(f"{_place(match[0], path)}: {error}") from error

    if "{{" not in text:
        return text
    text = NUMBER.sub(number, facts.FACT.sub(fact, text))
    if "{{" in text:
        rest = text[text.index("{{") :].split("\n")[0][:40]
        raise BuildError(f"{_place(rest, path)}: is no {{{{name:format}}}}")
    return text


def _place(text: str, path: Path) -> str:
    lines = source.text_of(path).split("\n")
    number = next((n for n, line in enumerate(lines, 1) if text in line), 0)
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{name}:{number}: {text}"
