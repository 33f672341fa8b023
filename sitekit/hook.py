"""MkDocs hook: the English build also makes the Chinese one, into zh/.

MkDocs loads this file once in its life, while the rest of sitekit is loaded
anew after a change: hence the import within.
"""

import atexit
import gc
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jinja2 import FileSystemBytecodeCache

from sitekit import CONFIGS, ROOT, adapter

OWN = ROOT / "overrides"
REMARK = re.compile(r"(?m)^\s*(//.*\n\s*)*")  # a comment, and its indent
# The theme has five rules for each of 20 tabs, and each is tried on each
# element: no page has more than 8 tabs in a row.
THEME = re.compile(r"assets/stylesheets/main\.\w+\.min\.css")
FURTHER_TABS = re.compile(
    r",[^,{}]*tabbed-set>input:nth-child\((?:9|1\d|20)\)[^,{}]*"
)

# Rarely: each time, all that torch has imported is looked through. At the end
# of the process it would be twice more.
gc.set_threshold(100_000, 50, 100)
atexit.register(gc.freeze)
_serves = False
# By language: a server has both.
_navs: dict[str, Any] = {}
_sites: dict[str, Any] = {}  # what sitekit/files.py knows of it


def _is_english(config: Any) -> bool:
    return bool(config.theme["language"] == "en")


def on_startup(command: str, dirty: bool) -> None:
    global _serves
    _serves = command == "serve"
    if _serves:
        adapter.start_serving()


def on_config(config: Any) -> Any:
    from sitekit import nav, search

    # The tensors of figures are small: threads would only wait for each other.
    torch.set_num_threads(1)
    # The address of the English home: where both languages hang. MkDocs too
    # takes a site without an address to stand at the root of its server.
    root = config.extra["roots"][config.theme["language"]]
    config.extra["home_url"] = (config.site_url or "/").removesuffix(root)
    if config.plugins["material/offline"].config.enabled:
        config.extra["polyfills"] = ["assets/iframe-worker.js"]
    if config.nav and not _is_english(config):
        config.nav = nav.translated(config.nav, config.extra["navigation"])
    plugin = config.plugins["material/search"]
    plugin.search_index = search.Index(plugin.config)
    return config


def on_files(files: Any, config: Any) -> Any:
    from attnref.check.catalogue import catalogue
    from sitekit import answers
    from sitekit import files as downloads
    from sitekit.check import mistakes
    from sitekit.drawn import calculator, compare, trained, your_model
    from sitekit.released import released

    for stem in released.stems():
        files.append(adapter.written_page(f"{stem}.md", config))

    def add(place: str, make: Callable[[], str | bytes]) -> None:
        files.append(adapter.MadeFile(config, place, make))

    _sites[config.theme["language"]] = downloads.site(
        files.documentation_pages(), config
    )
    add("assets/record.js", your_model.script)
    add("assets/configs.js", your_model.configs)
    add("assets/calculated.js", calculator.script)
    add("assets/compared.js", compare.script)
    add("assets/weights.js", trained.script)
    here = downloads.stubs(config.theme["language"])
    if _is_english(config):
        here |= downloads.texts()
        place = f"files/{downloads.wheel_name()}"
        add(place, downloads.wheel)
        for name, id in released.files().items():
            made = partial(released.text_of, id)
            add(f"files/released/{name}", made)
        for name in answers.names():
            add(f"files/answers/{name}", partial(answers.file, name))
        add(f"files/{answers.ZIP}", answers.archive)
        papers = Path(config.docs_dir).with_name(downloads.BIB)
        add(f"files/{papers.name}", papers.read_bytes)
    for name, text in here.items():
        add(f"files/{name}", partial(str, text))
    if config.use_directory_urls:
        home = config.extra["home_url"] if config.site_url else ""
        for id in catalogue():
            language = config.theme["language"]
            made = partial(mistakes.stub, id, language, home)
            add(f"mistakes/{id}/index.html", made)
    if _is_english(config) and config.site_url:
        from sitekit import preview

        for page in files.documentation_pages():
            stem = page.src_uri.removesuffix(".md")
            add(preview.place(stem), partial(preview.of_page, stem))
        for id in catalogue():
            place = preview.place(f"mistakes/{id}")
            add(place, partial(preview.of_mistake, id))
    for script in files.javascript_files():
        if (OWN / script.src_uri).exists() and "worker" not in script.name:
            script.content_string = REMARK.sub("", script.content_string)
    style = files.get_file_from_path("assets/attnref.css")
    style.content_string = _short(style.content_string)
    theme = next(f for f in files.css_files() if THEME.match(f.src_uri))
    theme.content_string = FURTHER_TABS.sub("", theme.content_string)
    return files


def _short(style: str) -> str:
    """Without comments and spaces: each page loads it."""
    style = re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", style, flags=re.S))
    return re.sub(r" ?([{};,]) ?", r"\1", style)


def on_nav(nav: Any, config: Any, files: Any) -> Any:
    from sitekit.markdown import pages
    from sitekit.nav import door_of, name_of

    every = [file.page for file in files.documentation_pages()]
    for page in every:
        if not page.parent and not page.is_homepage:
            page.parent = door_of(page, nav.pages).parent
    hidden = [
        p for p in every if p not in nav.pages and not p.file.generated_by
    ]
    _navs[config.theme["language"]] = [*nav.pages, *hidden]
    for page in _navs[config.theme["language"]]:
        matter = pages.front_matter(Path(page.file.abs_src_path))
        if "title" not in vars(page) and "title" in matter:
            page.title = name_of(matter["title"])
    return nav


def on_page_read_source(page: Any, config: Any) -> str:
    from sitekit.markdown import source
    from sitekit.released import released

    if page.file.generated_by:
        stem = page.file.src_uri.removesuffix(".md")
        return released.markdown(stem, str(config.theme["language"]))
    return source.text_of(Path(page.file.abs_src_path))


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    from sitekit import api, nav
    from sitekit import files as downloads
    from sitekit.check import exercise, find, mistakes
    from sitekit.markdown import checks, folds, notes, numbers, ran
    from sitekit.released import released

    language = str(config.theme["language"])
    if not page.file.generated_by:
        markdown = numbers.computed(markdown, Path(page.file.abs_src_path))
    markdown = ran.expanded(downloads.with_wheel(markdown), language)
    markdown = folds.counted(markdown, config)
    markdown = nav.with_lists(markdown, page, _navs[language], config)
    markdown = released.expanded(
        markdown, page.file.src_uri, language, _sites[language].urls
    )
    markdown = api.expanded(notes.expanded(markdown), language)
    markdown = checks.expanded(markdown, language)
    markdown = find.expanded(markdown, page.file.src_uri, language)
    markdown = exercise.expanded(markdown, page.file.src_uri, language)
    return mistakes.expanded(markdown, page.file.src_uri, language)


def on_page_context(context: Any, page: Any, config: Any, nav: Any) -> Any:
    """After the search has read the page: its index holds none of this."""
    from sitekit import files as downloads
    from sitekit import moved
    from sitekit.check import mistakes
    from sitekit.markdown import glossary, legend, pages

    language = str(config.theme["language"])
    page.content = mistakes.with_pictures(page.content, language)
    path = Path(page.file.abs_src_path)
    stem = pages.stem_of(path)
    page.content = glossary.linked(
        page.content, stem, language, _sites[language].urls
    )
    page.content = downloads.with_files(page.content, path, _sites[language])
    page.content += legend.card(
        page.content, stem, language, _sites[language].urls
    )
    page.content += moved.script(stem, config)
    return context


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """What is wrong with the page has been told by now."""
    from sitekit.markdown import folds, notebooks, notes

    notebooks.add(page, config, files)
    language = str(config.theme["language"])
    html = folds.addressed(html)
    return notes.placed(html, page.file.src_uri, language)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Chinese where the theme has none, and its script."""
    if config.theme["language"] == "zh":
        output = output.replace("Bases: <code>", "基类：<code>")
    return output.replace('<html lang="zh"', '<html lang="zh-CN"', 1)


def on_env(env: Any, config: Any, files: Any) -> Any:
    # The theme's templates are compiled once, not twice a build.
    env.bytecode_cache = FileSystemBytecodeCache()
    return env


def on_post_build(config: Any) -> None:
    """The Chinese half comes after the English one, into its folder. A server
    makes both as they are asked for."""
    from sitekit import moved

    moved.write_stubs(config, built=not _serves)
    if _serves:
        return
    index = config.plugins["material/search"].search_index
    adapter.MadeFile(config, index.PLACE, index.script).copy_file()
    if _is_english(config):
        root = config.extra["roots"]["zh"]
        adapter.build_site(
            CONFIGS["zh"],
            site_dir=str(Path(config.site_dir, root)),
            site_url=f"{config.site_url}{root}" if config.site_url else "",
            strict=bool(config.strict),
        )
