"""What one build has computed and the next may keep, while no code changes.

This module alone outlives a build under `mkdocs serve`, and so holds the
worker process that builds the Chinese half.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from sitekit import ROOT

T = TypeVar("T")
worker: ProcessPoolExecutor | None = None
_results: dict[tuple[object, ...], object] = {}


def _state_of_the_code() -> tuple[tuple[str, int], ...]:
    """Of all that a page can draw from, beside its own text."""
    state = []
    for folder in ("attnref/**", "sitekit/**", "tests/**", "."):
        for ending in ("py", "yml", "json"):
            for path in sorted(ROOT.glob(f"{folder}/*.{ending}")):
                # An editor's lock may be a link that leads nowhere.
                with suppress(FileNotFoundError):
                    state.append((str(path), path.stat().st_mtime_ns))
    return tuple(state)


def kept(function: Callable[[], T]) -> Callable[[], T]:
    """Compute once, and again when a file of the code changes."""

    @wraps(function)
    def wrapper() -> T:
        key = (function.__qualname__, *_state_of_the_code())
        if key not in _results:
            _results[key] = function()
        return _results[key]  # type: ignore[return-value]

    return wrapper


class Rendered(NamedTuple):
    """What rendering a page gives; its links by the file they lead to."""

    html: str
    toc: Any
    anchors: Any
    links: dict[str, Any]
    objects: list[tuple[Any, Any]]


class Pages:
    """Pages that were rendered before and need not be again.

    Rendering and indexing are most of a build, and an edit touches one page.
    Only objects.inv, for other sites, is not what a first build makes of it.
    """

    def __init__(self) -> None:
        self.known: dict[str, tuple[object, Rendered]] = {}
        self.entries: dict[str, tuple[object, list[Any]]] = {}
        self.key: object = None
        self.objects: list[tuple[Any, Any]] = []

    def listen(self, autorefs: Any, index: Any) -> None:
        """Learn what mkdocstrings and the search make of a page."""
        from sitekit import search

        self.register = autorefs.register_anchor
        add = index.add_entry_from_context

        def register(page: Any, *args: Any, **told: Any) -> None:
            self.objects.append((args, told))
            self.register(page, *args, **told)

        def add_once(page: Any) -> None:
            held = len(index.entries)
            names = [*map(index._segment_chinese, search.names_of(page))]
            key = page.title, page.content, page.meta, names
            if self.entries.get(page.url, (None,))[0] == key:
                index.entries.extend(self.entries[page.url][1])
            else:
                html, page.content = page.content, search.readable(page.content)
                add(page)
                page.content = html
                search.add_names(index.entries[held:], names)
                self.entries[page.url] = key, index.entries[held:]

        autorefs.register_anchor = register
        index.add_entry_from_context = add_once

    def begin(self, markdown: str, page: Any, files: Any) -> str:
        """What is to be rendered: nothing, if the result is known."""
        names = tuple(file.src_uri for file in files)
        self.key, self.objects = (markdown, names, _state_of_the_code()), []
        return "" if self._result(page) else markdown

    def _result(self, page: Any) -> Rendered | None:
        key, result = self.known.get(page.file.abs_src_path, (None, None))
        return result if key == self.key else None

    def end(self, html: str, page: Any, files: Any) -> str:
        """The page as it was rendered, now or before."""
        result = self._result(page)
        if result is None:
            links = {
                file.src_uri: anchors
                for file, anchors in (page.links_to_anchors or {}).items()
            }
            anchors = page.present_anchor_ids
            result = Rendered(html, page.toc, anchors, links, self.objects)
            self.known[page.file.abs_src_path] = self.key, result
            return html
        page.toc, page.present_anchor_ids = result.toc, result.anchors
        page.links_to_anchors = {
            files.get_file_from_path(uri): anchors
            for uri, anchors in result.links.items()
        }
        for args, told in result.objects:
            self.register(page, *args, **told)
        return result.html


pages = Pages()
