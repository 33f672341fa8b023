"""`mkdocs serve`: a file of the site is made when a browser asks for it, and
again only after a change. `mkdocs build` does not come here.

After an edit of code the server drops all modules of sitekit and attnref but
this one and those that it imports by name at its top: MkDocs holds objects of
them.
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

from sitekit import CONFIGS, ROOT, adapter, place
from sitekit.adapter import Abort, BuildError, Files, LiveReloadServer

log = logging.getLogger("mkdocs.attnref")
KEPT_MODULES = {__name__, adapter.__name__, place.__name__}
# What the API pages document, other pages link by its name.
API = re.compile(r"^::: (attnref|names\b)|\]\[attnref", re.MULTILINE)


class LanguageSite:
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
        files = adapter.get_files(config)
        files.add_files_from_theme(env, config)
        self.files = plugins.on_files(files, config=config)
        # Exclusions also apply to the files that the hook has added.
        adapter.set_exclusions(self.files, config)
        nav = adapter.get_navigation(self.files, config)
        self.nav = plugins.on_nav(nav, config=config, files=self.files)
        plugins["mkdocstrings"].get_handler("python")  # for its style sheet
        self.env = plugins.on_env(env, config=config, files=Files([]))
        self.pages = self.files.documentation_pages()
        self.contents: dict[str, bytes | None] = {}  # by address
        self.articles: dict[str, tuple[int, str]] = {}  # with the file's time

    def render(self, file: Any) -> Any:
        """Turn the Markdown of a page into HTML, if the file has changed."""
        path = file.abs_src_path
        time = 0 if file.generated_by else os.stat(path).st_mtime_ns
        article = self.articles.get(file.src_uri)
        if article is None or article[0] != time:
            adapter.populate_page(file.page, self.config, self.files)
            log.info(f"Rendered {os.path.relpath(path, ROOT)}")
            article = self.articles[file.src_uri] = time, file.page.content
        file.page.content = article[1]
        return file.page

    def build(self, file: Any) -> None:
        """Write a page, in the theme, into the folder of the site."""
        page, config = self.render(file), self.config
        if API.search(page.markdown):
            for other in self.pages:
                if other.src_uri.startswith("api"):
                    self.render(other)
            on_env = config.plugins.on_env
            on_env(self.env, config=config, files=Files([file]))
        self.search.search_index = self.index
        adapter.build_page(page, config, self.pages, self.nav, self.env)
        level = config.validation.links.anchors
        page.validate_anchor_links(files=self.files, log_level=level)

    def content(self, address: str) -> bytes | None:
        """The file at an address below the root of this half."""
        if address not in self.contents:
            self.contents[address] = self._make(address)
        return self.contents[address]

    def _make(self, address: str) -> bytes | None:
        config, files = self.config, {f.dest_uri: f for f in self.files}
        if address.startswith("notebooks/") or address.endswith(".md"):
            stem = address.removeprefix("notebooks/").removesuffix(".ipynb")
            if page := self.files.get_file_from_path(f"{stem.removesuffix('.md')}.md"):
                self.render(page)
            files = {f.dest_uri: f for f in self.files}
        if address in config.theme.static_templates:
            adapter.build_template(address, self.env, self.files, config, self.nav)
        elif address == "search/entries.js":
            for file in self.pages:
                self.content(file.dest_uri)
            urls = (file.page.url for file in self.pages)  # in their order
            pages = self.index.pages
            self.index.pages = {url: pages[url] for url in urls}
            return str(self.index.script()).encode()
        elif file := files.get(address):
            if file not in self.pages:
                return bytes(file.content_bytes)
            self.build(file)
        path = Path(config.site_dir, address)
        return path.read_bytes() if path.is_file() else None


def render_alone(path: Path, config_path: Path) -> None:
    """Render one page as a build renders it, among all others."""
    config = adapter.config_of(config_path)
    config.plugins.on_startup(command="build", dirty=False)
    half = LanguageSite(config)
    for file in half.pages:
        if file.abs_src_path == str(path):
            half.render(file)


_lock = RLock()  # for all of the state below
# By the address of their root, the home last.
_halves: dict[str, LanguageSite] = {}
_state: object = None


def start_serving() -> None:
    adapter.use_server(_start, Server)


def _start(config: Any, **_: Any) -> None:
    """Stand in for MkDocs' `build`, and render nothing yet."""
    global _state
    with _lock:
        _state = _sources()
        try:
            half = LanguageSite(config)
        except BuildError as error:
            raise Abort(str(error)) from None
        half.config.plugins.on_post_build(config=half.config)
        _halves.clear()
        _halves[""] = half


def _content(address: str) -> bytes | None:
    """A file of either language. The Chinese half starts when a browser first
    asks for one of its files."""
    home = _halves[""].config
    root = home.extra["roots"]["zh"]
    if not address.startswith(root):
        return _halves[""].content(address)
    if root not in _halves:
        folder, url = str(Path(home.site_dir, root)), f"{home.site_url}{root}"
        config = adapter.config_of(CONFIGS["zh"], site_dir=folder, site_url=url)
        config.plugins.on_startup(command="serve", dirty=False)
        half = _halves[root] = LanguageSite(config)
        half.config.plugins.on_post_build(config=half.config)
    return _halves[root].content(address.removeprefix(root))


OK, REDIRECT = "200 OK", "302 Found"


def _response(address: str) -> tuple[str, bytes]:
    """Status and body of the answer to a request."""
    try:
        if (body := _content(address)) is not None:
            return OK, body
        if _content(f"{address}/index.html") is not None:
            return REDIRECT, b""
        return "404 Not Found", _content("404.html") or b""
    except Exception as error:
        if isinstance(error, BuildError):
            log.error(str(error))
        else:
            log.exception(address)
        body = f"<pre>{escape(str(error))}</pre>".encode()
        return "500 Internal Server Error", body


def _sources() -> object:
    """The state of all that a site is made of, but for the text of pages."""
    # This module stays after an edit, so it asks for the newest `pages`.
    from sitekit.markdown import pages

    rooms = ("attnref", "benchmarks", "docs", "overrides", "sitekit", "tests")
    front_matter = [
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
    return front_matter, files


class Server(LiveReloadServer):
    """MkDocs' server, for files that are made when they are asked for."""

    def __init__(self, builder: Callable[[], None], **options: Any) -> None:
        super().__init__(builder=partial(self._rebuild, builder), **options)

    def _rebuild(self, builder: Callable[[], None]) -> None:
        """After a change of texts alone, render those pages again; the others
        are only put in the theme again. After any other change, load our code
        again and begin anew."""
        with _lock:
            if _sources() == _state:
                for half in _halves.values():
                    half.contents.clear()
                return
            for name in list(sys.modules):
                is_ours = name.split(".")[0] in {"attnref", "sitekit"}
                if is_ours and name not in KEPT_MODULES:
                    del sys.modules[name]
            builder()

    def serve_request(self, environ: Any, start_response: Any) -> Any:
        path = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "ignore")
        address = path.removeprefix(self.mount_path)
        if path == address or address.startswith("livereload/"):
            return super().serve_request(environ, start_response)
        if address == "" or address.endswith("/"):
            address += "index.html"
        with _lock:
            # If a newer one comes after it, the page loads itself again.
            epoch = self._visible_epoch
            status, body = _response(address)
        if status == REDIRECT:
            start_response(status, [("Location", f"{quote(path)}/")])
            return []
        is_page = status != OK or address.endswith(".html")
        if is_page and self._watched_paths:
            body = self._inject_js_into_html(body, epoch)  # type: ignore[no-untyped-call]
        kind = "text/html" if is_page else self._guess_type(address)  # type: ignore[no-untyped-call]
        length = str(len(body))
        start_response(status, [("Content-Type", kind), ("Content-Length", length)])
        return [body]
