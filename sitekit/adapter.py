"""MkDocs and its theme, and the only file that imports them.

The rest of sitekit finds here, by a public name, what is private in MkDocs.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from material.plugins.search.plugin import Parser  # type: ignore[import-untyped]
from mkdocs.commands import serve as serve_command
from mkdocs.commands.build import _build_page as build_page
from mkdocs.commands.build import _build_theme_template as build_template
from mkdocs.commands.build import _populate_page as populate_page
from mkdocs.commands.build import build, get_context
from mkdocs.config import load_config
from mkdocs.exceptions import Abort, BuildError
from mkdocs.livereload import LiveReloadServer
from mkdocs.structure.files import File, Files, get_files, set_exclusions
from mkdocs.structure.nav import get_navigation
from mkdocs.structure.pages import Page, _RelativePathTreeprocessor
from mkdocs.structure.toc import TableOfContents
from mkdocs.utils import get_relative_url, get_theme_dir
from mkdocs.utils.meta import get_data

from sitekit import place

__all__ = ["Abort", "BuildError", "Files", "LiveReloadServer", "Parser"]
__all__ += ["build_page", "build_template", "get_files", "get_navigation"]
__all__ += ["get_relative_url", "get_theme_dir", "populate_page"]
__all__ += ["set_exclusions"]
# The theme greets before each build. MkDocs reads the fences' names in
# mkdocs.yml, and so imports this, before it turns to the theme.
os.environ["NO_MKDOCS_2_WARNING"] = "1"


def config_of(path: Path, **options: Any) -> Any:
    return load_config(str(path), **options)


def build_site(path: Path, **options: Any) -> None:
    """Do what `mkdocs build -f PATH` does."""
    config = config_of(path, **options)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    config.plugins.on_shutdown()


def use_server(start: Callable[..., None], server: type[LiveReloadServer]) -> None:
    """Take the place of what `mkdocs serve` looks up when it begins."""
    serve_command.build = start  # type: ignore[attr-defined]
    serve_command.LiveReloadServer = server  # type: ignore[attr-defined]


def html_of(path: Path, config: Any) -> str:
    """Render one page with the site's Markdown, without plugins."""
    file = File(path.name, str(path.parent), config.site_dir, True)
    page = Page(None, file, config)
    page.read_source(config)
    enter(page, config, Files([file]))
    page.render(config, Files([file]))
    return str(page.content)


# What MkDocs knows of the links of the page that is rendered.
_links: list[_RelativePathTreeprocessor] = []


def enter(page: Any, config: Any, files: Files) -> None:
    """Say which page is rendered next."""
    _links[:] = [_RelativePathTreeprocessor(page.file, files, config)]
    path = Path(page.file.abs_src_path)
    language = str(config.theme["language"])
    place.enter(place.Place(path, language, _links[0].path_to_url))


def add_anchors(page: Any) -> None:
    """Let MkDocs check the sections to which drawings of the page link."""
    for file, anchors in _links[0].links_to_anchors.items():
        page.links_to_anchors.setdefault(file, {}).update(anchors)


def generated_page(src_uri: str, config: Any) -> File:
    """A page that stands in no file, with the path that its file would have.
    The hook hands MkDocs its text."""
    file = File.generated(config, src_uri, content="")
    file.abs_src_path = str(Path(config.docs_dir, src_uri))
    return file


def is_model_page(page: Any) -> bool:
    """Whether it stands in no file: only pages of models do not."""
    return bool(page.file.generated_by)


def url_of(stem: str, config: Any) -> str:
    """The address of a page below the root of its language."""
    return f"{stem}/" if config.use_directory_urls else f"{stem}.html"


def around(
    src_uri: str, words: dict[str, str], content: str, config: Any, nav: Any, files: Files
) -> str:
    """The theme around an article that stands in no page of the site."""
    page = Page(words["title"], generated_page(src_uri, config), config)
    page.meta, page.content = {"description": words["text"], "preview": 600}, content
    page.toc = TableOfContents([])
    folder = Path(src_uri).parent
    page.parent = next(x.parent for x in nav.pages if Path(x.file.src_uri).parent == folder)
    page.active = True
    env = config.theme.get_env()
    html = env.get_template("main.html").render(get_context(nav, files, config, page))
    page.active = False
    return str(config.plugins.on_post_page(html, page=page, config=config))


class GeneratedFile(File):
    """A file that is in the site but not among its sources. It is made when
    the build writes it, or when a browser asks a server for it."""

    def __init__(self, config: Any, address: str, make: Callable[[], str | bytes]) -> None:
        # MkDocs takes for a page what ends in .md.
        place = address.replace(".md", ".text")
        options = config.site_dir, config.use_directory_urls
        super().__init__(place, None, *options, dest_uri=address)
        self.make = make

    @property  # type: ignore[misc]
    def content_bytes(self) -> bytes:
        content = self.make()
        return content.encode() if isinstance(content, str) else content

    def copy_file(self, dirty: bool = False) -> None:
        path = Path(self.abs_dest_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.content_bytes)


def front_matter_of(text: str) -> tuple[str, dict[str, Any]]:
    """The text of a page without its front matter, and the front matter."""
    body, meta = get_data(text)
    return str(body), dict(meta)
