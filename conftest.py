"""Pages are collected as programs; `pytest --page gqa` runs what concerns one.

How pytest-markdown-docs reads a page: `tests/kit/programs.py`.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

# Where there is no GPU, kernels run in Triton's interpreter. Triton looks once,
# when it is imported, and torch's compiler imports it.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
from _pytest.doctest import DoctestModule
from pytest_markdown_docs.plugin import MarkdownDocstringCodeModule

from sitekit import ROOT
from sitekit.markdown import parity
from tests.kit.one_page import OnePage
from tests.kit.programs import SLOW, SiteMarkdown


def pytest_markdown_docs_markdown_it() -> SiteMarkdown:
    return SiteMarkdown()


ONE_PAGE = pytest.StashKey[OnePage]()
BUILT_PAGE = ROOT / "tests" / "kit" / "built_page.py"


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: Any) -> Any:
    """Docstrings have doctests, no fences; tests have neither."""
    collectors = yield
    unwanted = (MarkdownDocstringCodeModule,)
    if file_path.is_relative_to(ROOT / "tests"):
        unwanted += (DoctestModule,)
    if file_path == BUILT_PAGE and ONE_PAGE in parent.config.stash:
        collectors.append(pytest.Module.from_parent(parent, path=file_path))
    return [c for c in collectors if not isinstance(c, unwanted)]


def pytest_itemcollected(item: Any) -> None:
    if item.path in {ROOT / f"docs/en/{stem}.md" for stem in SLOW}:
        item.add_marker("audit")


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    """One line for all tests that were left out for one reason."""
    reports = terminalreporter.stats.get("skipped", [])
    for why, times in Counter(r.longrepr[2] for r in reports).items():
        terminalreporter.write_line(f"{times} left out: {why}", yellow=True)
    if config.getoption("page") is not None:
        terminalreporter.write_line(LEFT_OUT, yellow=True)


LEFT_OUT = (
    "Left out: the page in a browser, oracles and what belongs to use/, the "
    "catalogue of mistakes, and what takes all layers together: see make test."
)


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--page", help="only what concerns it: gqa")


def pytest_configure(config: Any) -> None:
    if config.getoption("page") is not None:
        try:
            stem = parity.whole_stem(config.getoption("page"))
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
        config.stash[ONE_PAGE] = OnePage(stem)


def pytest_ignore_collect(collection_path: Path, config: Any) -> bool | None:
    page = config.stash.get(ONE_PAGE, None)
    return True if page and not page.reads(collection_path) else None


@pytest.hookimpl(trylast=True)  # after the marks of tests/conftest.py
def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    page = config.stash.get(ONE_PAGE, None)
    if page:
        selected = [item for item in items if page.concerned_by(item)]
        config.hook.pytest_deselected(
            items=[item for item in items if item not in selected]
        )
        items[:] = selected
