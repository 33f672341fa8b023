"""MkDocs hook: the English build also makes the Chinese one, into zh/.

MkDocs loads this file once. A server loads the rest of sitekit again after each
edit of code, so the functions here import what they call.
"""

import atexit
import gc
import re
from pathlib import Path
from typing import Any

import torch
from jinja2 import FileSystemBytecodeCache

from sitekit import CONFIGS, ROOT, adapter, serve

OVERRIDES = ROOT / "overrides"
COMMENT = re.compile(r"(?m)^\s*(//.*\n\s*)*")  # of JavaScript, and its indent
THEME_FILE = re.compile(r"assets/stylesheets/main\.\w+\.min\.css")
BUNDLE_FILE = re.compile(r"assets/javascripts/bundle\.\w+\.min\.js")
PALETTE_FILE = re.compile(r"assets/stylesheets/palette\.\w+\.min\.css")
# The theme has five rules for each of 20 tabs, and each is tried on each
# element: no page has more than 8 tabs in a row.
TABS_ABOVE_8 = re.compile(r",[^,{}]*tabbed-set>input:nth-child\((?:9|1\d|20)\)[^,{}]*")
# Pictures of what no page has: most kinds of boxes, tasks, footnotes, versions.
ICONS = re.compile(
    r"--md-(?:admonition-icon--(?:abstract|info|tip|warning|failure|danger|bug|example|quote)"
    r'|(?:tasklist|footnotes|annotation|version|post-pin)[\w-]*):url\("[^"]*"\);?'
)
# Palettes of the theme that no page has: the site has colours of its own.
PALETTE_RULES = re.compile(r"\[data-md-color-(?:primary|accent)=[^{}]*\{[^}]*\}")
# The theme's script fetches a sitemap beside each of these links. Ours are also
# Markdown and a feed, which have none: only links with `hreflang` are languages.
ALTERNATE = "link[rel=alternate]"
# The style of docstrings, which only pages of the API have.
DOCSTRINGS = re.compile(r'<link rel="stylesheet" href="[^"]*_mkdocstrings\.css">')
_is_server = False
# By language: a server has both.
_navigation: dict[str, list[Any]] = {}  # all pages, in order
_sites: dict[str, Any] = {}  # what sitekit/files.py knows of the site

# Collect garbage rarely: each collection visits all that torch has imported.
# At the end of the process there would be two more.
gc.set_threshold(100_000, 50, 100)
atexit.register(gc.freeze)


def _is_english(config: Any) -> bool:
    return bool(config.theme["language"] == "en")


def _context(page: Any, config: Any) -> Any:
    from sitekit import pipeline

    language = config.theme["language"]
    return pipeline.Context(page, config, _sites[language], _navigation[language])


def on_startup(command: str, dirty: bool) -> None:
    global _is_server
    _is_server = command == "serve"
    if _is_server:
        serve.start_serving()


def on_config(config: Any) -> Any:
    from sitekit import nav, search

    # The tensors of figures are small: threads would only wait for each other.
    torch.set_num_threads(1)
    config.extra["home_url"] = _home_url(config)
    config.extra["worker"] = _worker(config)
    if config.plugins["material/offline"].config.enabled:
        config.extra["polyfills"] = ["assets/iframe-worker.js"]
    if config.nav and not _is_english(config):
        config.nav = nav.translate(config.nav, config.extra["navigation"])
    plugin = config.plugins["material/search"]
    plugin.search_index = search.Index(plugin.config)
    return config


def _home_url(config: Any) -> str:
    """The address of the English home page, below which both languages are.
    Without `site_url` it is the root of the server, as for MkDocs."""
    root = config.extra["roots"][config.theme["language"]]
    return str((config.site_url or "/").removesuffix(root))


def _worker(config: Any) -> str:
    """The theme's worker of the search; without it, the build stops here."""
    (worker,) = (
        path.relative_to(folder).as_posix()
        for folder in map(Path, config.theme.dirs)
        for path in folder.glob("assets/javascripts/workers/search.*.js")
    )
    return worker


def on_files(files: Any, config: Any) -> Any:
    from sitekit import files as downloads
    from sitekit import outputs
    from sitekit.released import released

    for stem in released.stems():
        files.append(adapter.generated_page(f"{stem}.md", config))
    pages = files.documentation_pages()
    _sites[config.theme["language"]] = downloads.site(pages, config)
    stems = [page.src_uri.removesuffix(".md") for page in pages]
    for address, make in outputs.outputs(config, stems).items():
        files.append(adapter.GeneratedFile(config, address, make))
    _shorten(files)
    _ask_sitemaps_of_languages(files)
    return files


def _shorten(files: Any) -> None:
    """Take out of scripts and styles what a browser need not load."""
    for script in files.javascript_files():
        is_ours = (OVERRIDES / script.src_uri).exists()
        if is_ours and "worker" not in script.name:
            script.content_string = COMMENT.sub("", script.content_string)
    style = files.get_file_from_path("assets/attnref.css")
    style.content_string = _short_style(style.content_string)
    theme = next(f for f in files.css_files() if THEME_FILE.match(f.src_uri))
    theme.content_string = ICONS.sub("", TABS_ABOVE_8.sub("", theme.content_string))
    palette = next(f for f in files.css_files() if PALETTE_FILE.match(f.src_uri))
    palette.content_string = PALETTE_RULES.sub("", palette.content_string)


def _ask_sitemaps_of_languages(files: Any) -> None:
    """Let the theme's script ask only other languages for a sitemap."""
    bundle = next(f for f in files.javascript_files() if BUNDLE_FILE.match(f.src_uri))
    script = bundle.content_string
    if script.count(ALTERNATE) != 1:
        raise adapter.BuildError(f"{bundle.src_uri}: {ALTERNATE} stands there not once")
    bundle.content_string = script.replace(ALTERNATE, f"{ALTERNATE}[hreflang]")


def _short_style(style: str) -> str:
    """CSS without comments and spaces."""
    style = re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", style, flags=re.S))
    style = re.sub(r" ?([{};,]) ?", r"\1", style)
    return re.sub(r"(?<=[\w-]): (?=[^{}]*[;}])", ":", style).replace(";}", "}")


def on_nav(nav: Any, config: Any, files: Any) -> Any:
    from sitekit import texts
    from sitekit.check import entries

    site_pages = [file.page for file in files.documentation_pages()]
    _adopt(site_pages, nav)
    written = [page for page in site_pages if not adapter.is_model_page(page)]
    outside = [page for page in written if page not in nav.pages]
    _navigation[config.theme["language"]] = [*nav.pages, *outside]
    _title(_navigation[config.theme["language"]])
    entries.enter(config, nav, files)
    texts.enter(config, nav, files)
    return nav


def _adopt(site_pages: list[Any], nav: Any) -> None:
    """Give pages outside the navigation the parent of their door."""
    from sitekit.nav import door_of

    for page in site_pages:
        if not page.parent and not page.is_homepage:
            page.parent = door_of(page, nav.pages).parent


def _title(pages_with_files: list[Any]) -> None:
    """Give pages that the navigation does not name the title of their file."""
    from sitekit.markdown import pages
    from sitekit.nav import name_of

    for page in pages_with_files:
        matter = pages.front_matter(Path(page.file.abs_src_path))
        if "title" not in vars(page) and "title" in matter:
            page.title = name_of(matter["title"])


def on_page_read_source(page: Any, config: Any) -> str:
    from sitekit import pipeline

    return pipeline.read(page, str(config.theme["language"]))


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    from sitekit import pipeline

    adapter.enter(page, config, files)
    context = _context(page, config)
    return pipeline.run(pipeline.MARKDOWN, markdown, context)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """By now every fence of the page is drawn, or the build has stopped."""
    from sitekit import pipeline
    from sitekit.markdown import notebooks

    adapter.add_anchors(page)
    notebooks.add(page, config, files)
    return pipeline.run(pipeline.HTML, html, _context(page, config))


def on_page_context(context: Any, page: Any, config: Any, nav: Any) -> Any:
    """By now the search has read the page: its index holds none of this."""
    from sitekit import pipeline, published

    if config.site_url:
        context["described"] = published.described(page, config)
        context["language_tag"] = published.TAGS[config.theme["language"]]
    page.content = pipeline.run(pipeline.ARTICLE, page.content, _context(page, config))
    return context


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Say in Chinese what the theme says in English; set `lang` to zh-CN; leave
    out the style of what is not there."""
    if 'class="doc ' not in output:
        output = DOCSTRINGS.sub("", output, count=1)
    if config.theme["language"] == "zh":
        output = output.replace("Bases: <code>", "基类：<code>")
    return output.replace('<html lang="zh"', '<html lang="zh-CN"', 1)


def on_env(env: Any, config: Any, files: Any) -> Any:
    # The theme's templates are compiled once, not twice a build.
    env.bytecode_cache = FileSystemBytecodeCache()
    return env


def on_post_build(config: Any) -> None:
    """Build the Chinese half after the English one, into its folder. A server
    makes both as they are asked for."""
    from sitekit import moved

    moved.write_stubs(config, built=not _is_server)
    if _is_server:
        return
    index = config.plugins["material/search"].search_index
    adapter.GeneratedFile(config, index.PLACE, index.script).copy_file()
    if _is_english(config):
        root = config.extra["roots"]["zh"]
        adapter.build_site(
            CONFIGS["zh"],
            site_dir=str(Path(config.site_dir, root)),
            site_url=f"{config.site_url}{root}" if config.site_url else "",
            strict=bool(config.strict),
        )
