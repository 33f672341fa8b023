"""A page as one program, for pytest-markdown-docs.

The plugin asks for a parser when it collects: this one reads the fences and
includes of a page.
"""

import re
from pathlib import Path
from types import SimpleNamespace

from sitekit.markdown import pages, source

# Each block of these is run by a test of tests/site/use, and trains or compiles
# a model: `make test` sees that no name is missing, `make audit` runs all.
SLOW = tuple(f"use/{name}" for name in ("project", "pytorch", "ship"))


def program_in(body: str) -> str:
    """The Python blocks of a page, as they are shown, in its order."""
    fences = [*source.fences(body)]
    known_lines = {n for f in fences for n in range(f.line, f.end + 1)}
    for number, line in enumerate(body.split("\n"), 1):
        fence = re.match(r"[\s>]*(?:```|~~~)(.*)", line)
        if fence and number not in known_lines:
            raise ValueError(f"line {number}: {fence[1]!r} never runs")
    return pages.program(body)


def program_of(path: Path) -> str:
    return program_in(pages.body_of(path))


class SiteMarkdown:
    """What the plugin takes for a parser of Markdown."""

    def parse(self, text: str) -> list[SimpleNamespace]:
        body = source.front_matter_of(text)[0]
        if "```python" not in body:
            return []
        line = text[: text.find("```python")].count("\n")
        fence = {"type": "fence", "info": "python", "map": [line, line]}
        return [SimpleNamespace(**fence, content=program_in(body))]
