"""Folds: `??? note "The whole layer, {lines} lines"`, with blocks in it.

Its blocks are blocks of the page like any other. In the build, {lines} becomes
the number of lines of code that the fold holds, and a note that counts them is
a `file`: a pill, where other notes are a line of text and questions a box. Each
fold has an address, `#sharing.2`: the section and which of its folds. It stands
within the fold, so that a browser opens what a link leads to.
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
TITLE = re.compile(r'( *)\?\?\?\+? [\w ]+ ".*\{lines\}.*"')


def with_includes(lines: list[str], config: Any) -> list[str]:
    """The Markdown of a page with the code that it includes."""
    name = "pymdownx.snippets"
    md = Markdown(extensions=[name], extension_configs={name: config.mdx_configs[name]})
    return list(md.preprocessors["snippet"].run(lines))


def count_lines(markdown: str, config: Any) -> str:
    """Put the number of lines that a fold holds into its title: it is a file."""
    lines = markdown.split("\n")
    for index, line in enumerate(lines):
        if match := TITLE.fullmatch(line):
            indented = re.compile(rf"{match[1]}    |\s*$")
            body = with_includes([*takewhile(indented.match, lines[index + 1 :])], config)
            inner_fences = fences("\n".join(body))
            blocks = [b for b in inner_fences if b.language not in DRAWN]
            if not blocks:
                raise BuildError(f"{line.strip()} holds no block of code")
            number = sum(len(b.text.strip("\n").split("\n")) for b in blocks)
            counted = line.replace("{lines}", str(number))
            lines[index] = counted.replace("??? note", "??? file", 1)
    return "\n".join(lines)


def add_addresses(html: str) -> str:
    """Give each fold an address, unless it is a question, which has one."""
    section, counts = "top", Counter[str]()

    def address(match: re.Match[str]) -> str:
        nonlocal section
        if match[1]:
            section = match[1]
            return match[0]
        counts[section] += 1
        return f'{match[0]}<span id="{section}.{counts[section]}"></span>'

    return FOLD.sub(address, html)
