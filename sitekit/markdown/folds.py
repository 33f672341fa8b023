"""Folds: `??? note "The whole layer, {lines} lines"`, with blocks in it.

Its blocks are blocks of the page like any other. In the build, {lines} becomes
the number of lines of code that the fold holds, and each fold has an address,
`#sharing.2`: the section and which of its folds. It stands within the fold, so
that a browser opens what a link leads to.
"""

import re
from collections import Counter
from itertools import takewhile
from typing import Any

from markdown import Markdown

from sitekit.adapter import BuildError
from sitekit.markdown.source import DRAWN, fences

FOLD = re.compile(
    r'<h[1-6] id="([\w-]+)"|<details class="(?!question|answer)[^"]*">\s*'
    r"<summary>.*?</summary>",
    re.DOTALL,
)
COUNTED = re.compile(r'( *)\?\?\?\+? [\w ]+ ".*\{lines\}.*"')


def with_includes(lines: list[str], config: Any) -> list[str]:
    name = "pymdownx.snippets"
    md = Markdown(
        extensions=[name], extension_configs={name: config.mdx_configs[name]}
    )
    return list(md.preprocessors["snippet"].run(lines))


def counted(markdown: str, config: Any) -> str:
    """The Markdown of a page, with the number of lines in titles of folds."""
    lines = markdown.split("\n")
    for at, line in enumerate(lines):
        if match := COUNTED.fullmatch(line):
            inner = re.compile(rf"{match[1]}    |\s*$")
            body = with_includes(
                [*takewhile(inner.match, lines[at + 1 :])], config
            )
            held = fences("\n".join(body))
            blocks = [b for b in held if b.language not in DRAWN]
            if not blocks:
                raise BuildError(f"{line.strip()} holds no block of code")
            number = sum(len(b.text.strip("\n").split("\n")) for b in blocks)
            lines[at] = line.replace("{lines}", str(number))
    return "\n".join(lines)


def addressed(html: str) -> str:
    """The HTML of a page; what asks has an address of its own."""
    section, seen = "top", Counter[str]()

    def address(match: re.Match[str]) -> str:
        nonlocal section
        if match[1]:
            section = match[1]
            return match[0]
        seen[section] += 1
        return f'{match[0]}<span id="{section}.{seen[section]}"></span>'

    return FOLD.sub(address, html)
