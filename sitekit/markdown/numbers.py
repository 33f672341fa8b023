"""Numbers in the text of a page: `{{weights:.1f}} GB`.

The function `numbers` of sitekit/drawn/<page>.py gives all those of a page by
name; behind the colon stands a format of Python. Both languages name the same
ones, so that they say the same.
"""

import re
from pathlib import Path

from sitekit import ROOT
from sitekit.adapter import BuildError
from sitekit.markdown import source
from sitekit.markdown.calls import near, value

NUMBER = re.compile(r"\{\{(\w+)(?::([^{}]*))?\}\}")


def computed(text: str, path: Path) -> str:
    """The text of a page, or a part of it, with its numbers."""

    def number(match: re.Match[str]) -> str:
        name, form = match.groups("")
        try:
            numbers = value("numbers", path.stem)
            if name not in numbers:
                raise ValueError(f"no number {name!r}{near(name, numbers)}")
            known = numbers[name]
            plain = known if isinstance(known, int | str) else float(known)
            return format(plain, form)
        except Exception as error:
            raise BuildError(f"{_place(match[0], path)}: {error}") from error

    if "{{" not in text:
        return text
    text = NUMBER.sub(number, text)
    if "{{" in text:
        wrong = text[text.index("{{") :].split("\n")[0][:40]
        raise BuildError(f"{_place(wrong, path)}: is no {{{{name:format}}}}")
    return text


def _place(text: str, path: Path) -> str:
    lines = source.text_of(path).split("\n")
    at = next((n for n, line in enumerate(lines, 1) if text in line), 0)
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{name}:{at}: {text}"
