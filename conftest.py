"""Pages and docstrings run through the site's own Markdown.

pytest-markdown-docs asks for a parser; this one expands includes and sees
blocks inside tabs and admonitions, which the plugin's own does not.

`pytest --page gqa` runs what concerns one page.
"""

import inspect
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sitekit import ROOT, pages, parity, source


class SiteMarkdown:
    def parse(self, text: str) -> list[Any]:
        """The Python blocks of a page as one fence: one program."""
        if "```" not in text and "~~~" not in text:
            return []  # most docstrings: rendering them all takes seconds
        body = pages.front_matter_of(text)[0]
        for block in pages.render(body).blocks:
            if block.language not in source.LANGUAGES:
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


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--page", help="only what concerns it: gqa")


def pytest_configure(config: Any) -> None:
    if config.getoption("page") is not None:
        try:
            parity.whole_stem(config.getoption("page"))
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    if config.getoption("page") is None:
        return
    page = OnePage(parity.whole_stem(config.getoption("page")))
    kept = [item for item in items if page.concerned_by(item)]
    config.hook.pytest_deselected(items=[i for i in items if i not in kept])
    items[:] = kept


class OnePage:
    """What is run for one page: all that names it, the tests of the code that
    it shows, the laws for the layers and caches of this code, and tests that
    say something of all pages together (marked `whole`)."""

    def __init__(self, stem: str) -> None:
        from tests.variants import CACHES, VARIANTS

        self.stem, self.name = stem, stem.rpartition("/")[2]
        self.file = self.name.replace("-", "_")
        body = pages.body_of(parity.twin(stem, "en"))
        self.files = {ROOT / i.path for i in source.includes(body)}
        package = {f for f in self.files if f.is_relative_to(ROOT / "attnref")}
        self.files = package | {
            ROOT / "tests" / f.parent.name / f"test_{f.name}" for f in package
        }
        made = {name: v.layer for name, v in VARIANTS.items()}
        made |= {name: type(make(1)) for name, make in CACHES.items()}
        entries = [
            name
            for name, kind in made.items()
            if Path(inspect.getfile(kind)) in package
        ]
        names = map(re.escape, {self.name, self.file, *entries})
        # Not a part of another word; `_` stands between words of a test's name.
        self.named = re.compile(f"(?<![a-z0-9])({'|'.join(names)})(?![a-z0-9])")

    def concerned_by(self, item: Any) -> bool:
        where = item.path.relative_to(ROOT).as_posix()
        if where.startswith("tests/oracles/") or any(
            item.iter_markers("alone")
        ):
            return False
        if item.path in self.files or any(item.iter_markers("whole")):
            return True
        params = getattr(item, "callspec", SimpleNamespace(params={})).params
        if any(map(self.is_meant_by, params.values())):
            return True
        if where.startswith("docs/"):
            return self.is_meant_by(item.path)
        if where.startswith("tests/site/"):
            drawn = rf"\b{self.file}\.\w+\("
            return bool(re.search(drawn, inspect.getsource(item.function)))
        return bool(self.named.search(item.nodeid))

    def is_meant_by(self, value: object) -> bool:
        """Whether a path or an address, in either language, is the page's."""
        if not isinstance(value, str | Path):
            return False
        place = str(value).removeprefix(f"{ROOT}/docs/").removesuffix(".md")
        place = re.sub(r"^(en|zh)(/|$)", "", place).strip("/")
        return (place or "index") == self.stem
