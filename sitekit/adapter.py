"""MkDocs and its theme, and the only file that imports them.

`mkdocs build` is MkDocs' own. `mkdocs serve` makes each file when it is asked
for, and again only after a change.
"""

import logging
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from html import escape
from pathlib import Path
from threading import RLock
from typing import Any
from urllib.parse import quote

from material.plugins.search.plugin import (  # type: ignore[import-untyped]
    Parser,
)
from mkdocs.commands import serve
from mkdocs.commands.build import (
    _build_page,
    _build_theme_template,
    _populate_page,
    build,
)
from mkdocs.config import load_config
from mkdocs.exceptions import Abort, BuildError
from mkdocs.livereload import LiveReloadServer
from mkdocs.structure.files import File, Files, get_files, set_exclusions
from mkdocs.structure.nav import get_navigation
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from mkdocs.utils.meta import get_data

from sitekit import CONFIGS, ROOT

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


class MadeFile(File):
    """A file of the site that stands nowhere else, made when it is written or
    asked for."""

    def __init__(
        self, config: Any, place: str, make: Callable[[], str | bytes]
    ) -> None:
        directory_urls = config.use_directory_urls
        super().__init__(place, None, config.site_dir, directory_urls)
        self.make = make

    @property  # type: ignore[misc]
    def content_bytes(self) -> bytes:
        made = self.make()
        return made.encode() if isinstance(made, str) else made

    def copy_file(self, dirty: bool = False) -> None:
        path = Path(self.abs_dest_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.content_bytes)


def front_matter_of(text: str) -> tuple[str, dict[str, Any]]:
    """A page without it, and it."""
    body, meta = get_data(text)
    return str(body), dict(meta)


# What API pages document, others link by its name.
API = re.compile(r"^::: (attnref|names\b)|\]\[attnref", re.MULTILINE)


class Half:
    """One language of the site, of which each file is made when it is asked
    for. It begins as MkDocs' `build` does."""

    def __init__(self, config: Any) -> None:
        self.config = config = config.plugins.on_config(config)
        plugins = config.plugins
        # MkDocs has one instance of this plugin for all that it ever loads.
        self.search = plugins["material/search"]
        self.index = self.search.search_index
        plugins.on_pre_build(config=config)
        env = config.theme.get_env()
        files = get_files(config)
        files.add_files_from_theme(env, config)
        self.files = plugins.on_files(files, config=config)
        set_exclusions(self.files, config)  # also of what the hook has added
        nav = get_navigation(self.files, config)
        self.nav = plugins.on_nav(nav, config=config, files=self.files)
        plugins["mkdocstrings"].get_handler("python")  # for its style sheet
        self.env = plugins.on_env(env, config=config, files=Files([]))
        self.pages = self.files.documentation_pages()
        self.made: dict[str, bytes | None] = {}  # by the place in the site
        self.contents: dict[str, tuple[int, str]] = {}  # of pages, with times

    def render(self, file: Any) -> Any:
        """The page of a file with what its Markdown becomes."""
        path = file.abs_src_path
        time = 0 if file.generated_by else os.stat(path).st_mtime_ns
        known = self.contents.get(file.src_uri)
        if known is None or known[0] != time:
            _populate_page(file.page, self.config, self.files)
            log.info(f"Rendered {os.path.relpath(path, ROOT)}")
            known = self.contents[file.src_uri] = time, file.page.content
        file.page.content = known[1]
        return file.page

    def build(self, file: Any) -> None:
        """Such a page in the theme, into its place."""
        page, config = self.render(file), self.config
        if API.search(page.markdown):
            for other in self.pages:
                if other.src_uri.startswith("api"):
                    self.render(other)
            on_env = config.plugins.on_env
            on_env(self.env, config=config, files=Files([file]))
        self.search.search_index = self.index
        _build_page(page, config, self.pages, self.nav, self.env)
        level = config.validation.links.anchors
        page.validate_anchor_links(files=self.files, log_level=level)

    def file_at(self, place: str) -> bytes | None:
        """What stands at this place of the site, below its root."""
        if place not in self.made:
            self.made[place] = self._make(place)
        return self.made[place]

    def _make(self, place: str) -> bytes | None:
        config, by_place = self.config, {f.dest_uri: f for f in self.files}
        if place.startswith("notebooks/") and place not in by_place:
            stem = place.removeprefix("notebooks/").removesuffix(".ipynb")
            if page := self.files.get_file_from_path(f"{stem}.md"):
                self.render(page)
            by_place = {f.dest_uri: f for f in self.files}
        if place in config.theme.static_templates:
            _build_theme_template(place, self.env, self.files, config, self.nav)
        elif place == "search/entries.js":
            for file in self.pages:
                self.file_at(file.dest_uri)
            urls = (file.page.url for file in self.pages)  # in their order
            pages = self.index.pages
            self.index.pages = {url: pages[url] for url in urls}
            return str(self.index.script()).encode()
        elif file := by_place.get(place):
            if file not in self.pages:
                return bytes(file.content_bytes)
            self.build(file)
        path = Path(config.site_dir, place)
        return path.read_bytes() if path.is_file() else None


def render_alone(path: Path, config_path: Path) -> None:
    """One page as a build renders it, among all others."""
    config = config_of(config_path)
    config.plugins.on_startup(command="build", dirty=False)
    half = Half(config)
    for file in half.pages:
        if file.abs_src_path == str(path):
            half.render(file)


_lock = RLock()  # of what is served
_halves: dict[str, Half] = {}  # by where they hang, the home last
_state: object = None


def start_serving() -> None:
    """`mkdocs serve` looks up both of these when it begins."""
    serve.build = _begin  # type: ignore[attr-defined]
    serve.LiveReloadServer = Server  # type: ignore[attr-defined,assignment]


def _begin(config: Any, **_: Any) -> None:
    """In place of MkDocs' `build`: nothing is rendered yet."""
    global _state
    with _lock:
        _state = _sources()
        try:
            half = Half(config)
        except BuildError as error:
            raise Abort(str(error)) from None
        half.config.plugins.on_post_build(config=half.config)
        _halves.clear()
        _halves[""] = half


def _served(place: str) -> bytes | None:
    """A file of either language."""
    home = _halves[""].config
    root = home.extra["roots"]["zh"]
    if not place.startswith(root):
        return _halves[""].file_at(place)
    if root not in _halves:
        folder, url = str(Path(home.site_dir, root)), f"{home.site_url}{root}"
        config = config_of(CONFIGS["zh"], site_dir=folder, site_url=url)
        config.plugins.on_startup(command="serve", dirty=False)
        half = _halves[root] = Half(config)
        half.config.plugins.on_post_build(config=half.config)
    return _halves[root].file_at(place.removeprefix(root))


OK, MOVED = "200 OK", "302 Found"


def _answer(place: str) -> tuple[str, bytes]:
    """How a file is answered for, and with what."""
    try:
        if (body := _served(place)) is not None:
            return OK, body
        if _served(f"{place}/index.html") is not None:
            return MOVED, b""
        return "404 Not Found", _served("404.html") or b""
    except Exception as error:
        if isinstance(error, BuildError):
            log.error(str(error))
        else:
            log.exception(place)
        body = f"<pre>{escape(str(error))}</pre>".encode()
        return "500 Internal Server Error", body


def _sources() -> object:
    """All that a site is made of, but for the text of pages."""
    from sitekit.markdown import pages

    rooms = ("attnref", "benchmarks", "docs", "overrides", "sitekit", "tests")
    heads = [
        (path, repr(pages.front_matter(path)))
        for language in CONFIGS
        for path in pages.markdown_files(language)
    ]
    files = [
        (path, path.stat().st_mtime_ns)
        for pattern in ("mkdocs*.yml", *(f"{room}/**/*.*" for room in rooms))
        for path in sorted(ROOT.glob(pattern))
        # An editor's lock is a link that leads nowhere.
        if path.suffix not in (".md", ".pyc") and path.exists()
    ]
    return heads, files


class Server(LiveReloadServer):
    """MkDocs' own, over files that are made when they are asked for."""

    def __init__(self, builder: Callable[[], None], **options: Any) -> None:
        super().__init__(builder=partial(self._rebuild, builder), **options)

    def _rebuild(self, builder: Callable[[], None]) -> None:
        """After a change of texts alone, those pages are rendered again, and
        the others are only put in the theme again."""
        with _lock:
            if _sources() == _state:
                for half in _halves.values():
                    half.made.clear()
                return
            for name in list(sys.modules):
                ours = name.split(".")[0] in {"attnref", "sitekit"}
                if ours and name != __name__:
                    del sys.modules[name]
            builder()

    def serve_request(self, environ: Any, start_response: Any) -> Any:
        path = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "ignore")
        place = path.removeprefix(self.mount_path)
        if path == place or place.startswith("livereload/"):
            return super().serve_request(environ, start_response)
        if place == "" or place.endswith("/"):
            place += "index.html"
        with _lock:
            # If a newer one comes after it, the page loads itself again.
            epoch = self._visible_epoch
            status, body = _answer(place)
        if status == MOVED:
            start_response(status, [("Location", f"{quote(path)}/")])
            return []
        is_page = status != OK or place.endswith(".html")
        if is_page and self._watched_paths:
            body = self._inject_js_into_html(body, epoch)  # type: ignore[no-untyped-call]
        kind = "text/html" if is_page else self._guess_type(place)  # type: ignore[no-untyped-call]
        length = str(len(body))
        start_response(
            status, [("Content-Type", kind), ("Content-Length", length)]
        )
        return [body]
