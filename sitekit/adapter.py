"""MkDocs and its theme, and the only file that imports them.

This module outlives the builds of `mkdocs serve`, unlike most of sitekit. So it
holds what a build makes of pages, for the next one: a page of the same text, of
which nothing that it includes or draws has changed, is not rendered again.
"""

import logging
import os
import re
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from material.plugins.search.plugin import (  # type: ignore[import-untyped]
    Parser,
)
from mkdocs.commands import serve
from mkdocs.commands.build import _build_page, _populate_page, build
from mkdocs.config import load_config
from mkdocs.exceptions import BuildError
from mkdocs.livereload import LiveReloadServer
from mkdocs.structure.files import File, Files, get_files, set_exclusions
from mkdocs.structure.nav import get_navigation
from mkdocs.structure.pages import Page
from mkdocs.utils import CountHandler, get_relative_url
from mkdocs.utils.meta import get_data

__all__ = ["BuildError", "Parser", "config_of", "get_relative_url"]
log = logging.getLogger("mkdocs.attnref")
# The theme greets before each build. MkDocs reads the fences' names in
# mkdocs.yml, and so imports this, before it turns to the theme.
os.environ["NO_MKDOCS_2_WARNING"] = "1"


def config_of(path: Path, **options: Any) -> Any:
    return load_config(str(path), **options)


def build_site(path: Path, **options: Any) -> None:
    """What `mkdocs build -f PATH` does."""
    config = config_of(path, **options)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    config.plugins.on_shutdown()


def html_of(path: Path, config: Any) -> str:
    """A page alone, with the site's Markdown and without plugins."""
    file = File(path.name, str(path.parent), config.site_dir, True)
    page = Page(None, file, config)
    page.read_source(config)
    page.render(config, Files([file]))
    return str(page.content)


def written_page(src_uri: str, config: Any) -> File:
    """A page that stands in no file: what it says is read by the hook. It has
    the path that its file would have."""
    file = File.generated(config, src_uri, content="")
    file.abs_src_path = str(Path(config.docs_dir, src_uri))
    return file


def render_alone(path: Path, config_path: Path) -> None:
    """One page as a build renders it, among all others, which are only read.
    No file is made that stands beside the pages: models have 124."""
    global _later
    later, _later = _later, {}
    config = config_of(config_path)
    plugins = config.plugins
    plugins.on_startup(command="build", dirty=False)
    try:
        config = plugins.on_config(config)
        files = get_files(config)
        files.add_files_from_theme(config.theme.get_env(), config)
        files = plugins.on_files(files, config=config)
        set_exclusions(files, config)  # after the hook has added its own
        nav = get_navigation(files, config)
        plugins.on_nav(nav, config=config, files=files)
        for file in files.documentation_pages():
            if not file.generated_by:
                file.page.read_source(config)  # lists of pages show their heads
        (page,) = (
            file.page
            for file in files.documentation_pages()
            if file.abs_src_path == str(path)
        )
        _populate_page(page, config, files)
    finally:
        plugins.on_shutdown()
        _later = later


def front_matter_of(text: str) -> tuple[str, dict[str, Any]]:
    """A page without it, and it."""
    body, meta = get_data(text)
    return str(body), dict(meta)


class Asked(NamedTuple):
    """A file that is asked for while the site is built for the first time."""

    place: str  # core/gqa/index.html
    answer: Callable[[], bytes]
    answered: "Future[bytes | None]"


_asked: list[Asked] = []
_asking = Lock()
# Such a page is not made alone: it leads to others, or they to it.
API = re.compile(r"^::: (attnref|names\b)|\]\[attnref", re.MULTILINE)


class Server(LiveReloadServer):
    """MkDocs' own, but it answers while it builds the site for the first time:
    `make_asked` makes what is asked for. It also makes the files that are made
    when they are asked for, and waits before it answers for an address below
    one of `waits`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._built = False
        self.waits: dict[str, Callable[[], None]] = {}
        self._watched_paths[""] = 0  # so that a page waits for its next version
        self.server_bind()
        self.server_activate()
        self.serve_thread.daemon = True  # a build that fails ends it
        self.serve_thread.start()
        log.info(f"{self.url} answers, and what it is asked for is built first")

    def serve(self, **options: Any) -> None:
        del self._watched_paths[""]
        with _asking:
            self._built = True
        for asked in _asked:
            asked.answered.set_result(None)
        _asked.clear()
        for part, name in (
            (self, "server_bind"),
            (self, "server_activate"),
            (self.serve_thread, "start"),
        ):
            setattr(part, name, lambda: None)  # that has been done
        super().serve(**options)  # type: ignore[no-untyped-call]

    def _still(self) -> bool:
        return self._visible_epoch == self._wanted_epoch

    def serve_request(self, environ: Any, start_response: Any) -> Any:
        answer = partial(super().serve_request, environ, start_response)
        path = environ["PATH_INFO"].removeprefix(self.mount_path)
        place = f"{path}index.html" if path[-1:] in ("", "/") else path
        asked = Asked(place, lambda: b"".join(answer()), Future())
        with _asking:
            if self._built:
                asked.answered.set_result(None)
            else:
                _asked.append(asked)
        if (early := asked.answered.result()) is not None:
            return [early]
        while not environ["PATH_INFO"].startswith("/livereload/"):
            with self._epoch_cond:  # no build of the English half is going on
                self._epoch_cond.wait_for(self._still)
                epoch = self._visible_epoch
            for root, wait in self.waits.items():
                if path.startswith(root):
                    wait()
            _make(path)
            # Nor has one begun meanwhile, or even ended: the Chinese half may
            # be on its way again.
            if self._still() and self._visible_epoch == epoch:
                break
        return answer()


def make_asked(
    config: Any, files: Any, nav: Any, env: Callable[[], Any]
) -> None:
    """Between two pages of the first build: what is asked for, if it needs no
    other. The build makes these pages too, and does not see that they were."""
    current = config._current_page
    for asked in [*_asked]:
        file = next((f for f in files if f.dest_uri == asked.place), None)
        if file is None or asked not in _asked:
            continue
        page = file.page
        if page and page.content is None:
            page.read_source(config)
        if API.search(page.markdown) if page else file.is_documentation_page():
            continue
        _asked.remove(asked)
        if page is None:
            file.copy_file()
        else:
            if page.content is None:
                _populate_page(page, config, files)
            content, documents = page.content, files.documentation_pages()
            _build_page(page, config, documents, nav, env())
            page.content = content
        asked.answered.set_result(asked.answer())
    config._current_page = current


_later: dict[str, Callable[[], None]] | None = None
making = Lock()  # of what is made while pages are served, builds included


def start_serving() -> None:
    """From now on, a file of `add_file` is made when it is first asked for, and
    a page of the first build as soon as it is."""
    global _later
    _later = {}
    serve.LiveReloadServer = Server  # type: ignore[attr-defined]


def add_file(config: Any, place: str, make: Callable[[], str | bytes]) -> None:
    """A file of the site that stands nowhere else."""

    def write() -> None:
        made, path = make(), Path(config.site_dir, place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made.encode() if isinstance(made, str) else made)

    if _later is None:
        write()
    else:
        _later[place] = write


def _make(place: str) -> None:
    with making:  # of two that ask for it, one waits for the other
        if _later and place in _later:
            _later[place]()
            del _later[place]


class Rendered(NamedTuple):
    """What rendering writes into a page."""

    content: str
    toc: Any
    title: str | None
    ids: set[str]
    links: dict[str, dict[str, str]]  # by the page they lead to


_results: dict[tuple[str, str], tuple[object, Any]] = {}
_made: dict[str, int] = {}
_again: list[tuple[str, str]] = []  # what had warnings, for the next build


def forget() -> None:
    """What was made with other templates or settings."""
    _results.clear()


def reused(kind: str, name: str, key: object, make: Callable[[], Any]) -> Any:
    """What was made of that name, if it was made from the same key; else it is
    made. `kind` is what is counted."""
    known = _results.get((kind, name))
    if known is None or known[0] != key:
        _made[kind] = _made.get(kind, 0) + 1
        _results.pop((kind, name), None)
        _results[kind, name] = known = key, make()
    return known[1]


def begin_counting() -> None:
    _made.clear()
    while _again:
        _results.pop(_again.pop(), None)


def count_of(kind: str) -> int:
    """How many were made since."""
    return _made.get(kind, 0)


def render_once(page: Any, key: Callable[[str, str], object]) -> None:
    """Have a page rendered when its key is another than that of the page which
    was rendered before. The key is of the Markdown with all lists in it."""
    page.render = partial(_render, page, key)


def _render(
    page: Any, key: Callable[[str, str], object], config: Any, files: Any
) -> None:
    kind, name = f"pages of {config.theme['language']}", page.file.src_uri
    warnings = CountHandler()
    warnings.setLevel(logging.WARNING)

    def render() -> Rendered:
        logger = logging.getLogger("mkdocs")
        logger.addHandler(warnings)
        try:
            type(page).render(page, config, files)
        finally:
            logger.removeHandler(warnings)
        return Rendered(
            page.content,
            page.toc,
            page._title_from_render,
            page.present_anchor_ids,
            {f.src_uri: x for f, x in (page.links_to_anchors or {}).items()},
        )

    urls = tuple((file.src_uri, file.url) for file in files)
    whole = urls, page.markdown, key(name, page.markdown)
    result: Rendered = reused(kind, name, whole, render)
    if warnings.get_counts():
        _again.append((kind, name))
    page.content, page.toc = result.content, result.toc
    page._title_from_render, page.present_anchor_ids = result.title, result.ids
    page.links_to_anchors = {
        files.get_file_from_path(uri): links
        for uri, links in result.links.items()
    }
