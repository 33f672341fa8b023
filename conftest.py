"""Pages and docstrings run through the site's own Markdown.

pytest-markdown-docs asks for a parser; this one expands includes and sees
blocks inside tabs and admonitions, which the plugin's own does not.
"""

from collections import Counter
from types import SimpleNamespace
from typing import Any

from sitekit import pages


class SiteMarkdown:
    def parse(self, text: str) -> list[Any]:
        """The Python blocks of a page as one fence: one program."""
        body = pages.get_data(text)[0]
        for block in pages.render(body).blocks:
            if block.language not in pages.LANGUAGES:
                raise ValueError(f"a fence of {block.language!r} never runs")
        program = pages.program(body)
        if not program:
            return []
        line = text[: text.find("```python")].count("\n")
        return [
            SimpleNamespace(
                type="fence", info="python", content=program, map=[line, line]
            )
        ]


def pytest_markdown_docs_markdown_it() -> SiteMarkdown:
    return SiteMarkdown()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line for all tests that were left out for one reason."""
    reports = terminalreporter.stats.get("skipped", [])
    for why, times in Counter(r.longrepr[2] for r in reports).items():
        terminalreporter.write_line(f"{times} left out: {why}", yellow=True)
