"""What one build has computed and the next may keep, while no code changes.

This module alone outlives a build under `mkdocs serve`, and so holds the
worker process that builds the Chinese half.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import wraps
from typing import Any, TypeVar

from sitekit import ROOT

T = TypeVar("T")
worker: ProcessPoolExecutor | None = None
_results: dict[tuple[object, ...], object] = {}


def _state_of_the_code() -> tuple[tuple[str, int], ...]:
    """Of all that a page can draw from, beside its own text."""
    paths = [
        path
        for folder in ("attnref/**", "sitekit/**", "tests/**", ".")
        for ending in ("py", "yml", "json")
        for path in sorted(ROOT.glob(f"{folder}/*.{ending}"))
    ]
    return tuple((str(path), path.stat().st_mtime_ns) for path in paths)


def kept(function: Callable[[], T]) -> Callable[[], T]:
    """Compute once, and again when a file of the code changes."""

    @wraps(function)
    def wrapper() -> T:
        key = (function.__qualname__, *_state_of_the_code())
        if key not in _results:
            _results[key] = function()
        return _results[key]  # type: ignore[return-value]

    return wrapper


class Pages:
    """Pages that were rendered before and need not be again.

    Rendering is most of a build, and an edit touches one page. A page with
    `:::` is rendered always: mkdocstrings has to meet its objects.
    """

    def __init__(self) -> None:
        self.known: dict[object, tuple[Any, ...]] = {}
        self.keys: dict[str, object] = {}

    def begin(self, markdown: str, page: Any, files: Any) -> str:
        """What is to be rendered: nothing, if the result is known."""
        names = tuple(file.src_uri for file in files)
        key = (page.file.abs_src_path, markdown, names, _state_of_the_code())
        if "\n::: " in markdown:
            return markdown
        self.keys[page.file.abs_src_path] = key
        return "" if key in self.known else markdown

    def end(self, html: str, page: Any, files: Any) -> str:
        """The page as it was rendered, now or before."""
        key = self.keys.pop(page.file.abs_src_path, None)
        if key is None:
            return html
        if key not in self.known:
            links = {
                file.src_uri: anchors
                for file, anchors in (page.links_to_anchors or {}).items()
            }
            self.known[key] = (html, page.toc, page.present_anchor_ids, links)
        html, page.toc, page.present_anchor_ids, links = self.known[key]
        page.links_to_anchors = {
            files.get_file_from_path(uri): anchors
            for uri, anchors in links.items()
        }
        return html


pages = Pages()
