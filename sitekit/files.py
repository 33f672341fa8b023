"""What can be downloaded, and how a page leads to it.

`/files/plain/gqa.py` is the plain form of a subject, as it is. `/files/gqa.py`
is `attnref copy --full` of the public names of layers/gqa.py: this file and all
that it needs, in one. Files without public names are there too; what reads
data, attnref/numbers, is left out. Beside them stands the wheel of the package.
`/files/exercises/gqa.py`, and the same below `/zh/`, is the file to fill in.

A page that shows code of a file gets, without a word of its author, a bar above
the first block, a link in each caption, and links to the files that it imports.

On a page, `[gqa.py](files:gqa.py)` leads to a download, as does
`[gqa.py](files:plain/gqa.py)`; `[](page:layers/gqa)`
leads to a page and goes by its name. Elsewhere on a page, the name of the wheel
is what pip is given: its address, if the site has one.
"""

import ast
import os
import re
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import escape

from attnref.commands import copy
from attnref.judge.tasks import TASKS, file_to_fill
from attnref.words import version
from sitekit import ROOT, answers
from sitekit.adapter import BuildError, get_relative_url
from sitekit.markdown import pages
from sitekit.markdown.calls import near
from sitekit.markdown.parity import twin
from sitekit.markdown.render import render
from sitekit.markdown.source import fences, sections, text_of
from sitekit.nav import name_of
from sitekit.released import released

BLOCK = re.compile(
    r'<div class="language-python highlight">'
    r'<span class="filename">(attnref/[\w/]+\.py)</span>(?:(?!</div>).)*</div>',
    re.DOTALL,
)
FOLDERS = ("core", "caches", "layers")
# What a file of the package is the full form of, if that has another name.
PLAIN = {"sdpa": "attention", "block": "llama"}
BIB = "references.bib"  # below docs/
LLMS, MISTAKES = "llms.txt", "mistakes.json"  # at the root, for other programs
WHEEL = "attnref-VERSION-py3-none-any.whl"  # on a page
LINK = re.compile(r'<a href="(files|page):([^"#]*)(#[^"]*)?">(.*?)</a>')


class Download(NamedTuple):
    """A file of the package and all that it needs, in one file."""

    source: str  # attnref/layers/gqa.py
    text: str
    imported: list[str]  # the names that a reader imports from it
    contents: list[tuple[str, str]]  # source and name of each definition

    @property
    def name(self) -> str:
        return name_in(self.source)

    @property
    def file(self) -> str:
        return Path(self.source).name

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def statement(self) -> str:
        names = ", ".join(self.imported)
        return f"from {Path(self.source).stem} import {names}"


# They read other files of the package, or are read by one of these.
NO_COPY = {"released.configured", "released.generate", "released.record"}


def name_in(source: str) -> str:
    """The name of a file of the package in `/files/`."""
    folder, name = source.split("/")[-2:]
    return f"plain/{name}" if folder == "plain" else name


@cache
def downloads() -> dict[str, Download]:
    """All downloads, by the file of the package: the plain forms, and each file
    that some page shows."""
    result: dict[str, Download] = {}
    english = pages.markdown_files("en")
    sources = {block.source for path in english for block in blocks_of(path)}
    for path in copy.plain().values():
        source, text = str(path.relative_to(ROOT)), text_of(path)
        names = [n for n in _definitions_in(text) if n[0] != "_"]
        contents = [(source, name) for name in names]
        result[source] = Download(source, text, names, contents)
    public = copy.files()
    for folder in FOLDERS:
        for path in sorted((ROOT / "attnref" / folder).glob("[!_.]*.py")):
            module = f"{folder}.{path.stem}"
            if module in NO_COPY or f"attnref/{folder}/{path.name}" not in sources:
                continue
            download = _copy(module, public.get(path.stem))
            if download.name in {known.name for known in result.values()}:
                why = f"another file is called {download.name}"
                why = f"{download.source}: {why}, and /files/ has one"
                raise BuildError(f"{why} of each name")
            result[download.source] = download
    return result


def other_form(download: Download) -> Download | None:
    """The full form of a plain one, or the plain form of a full one."""
    stem = Path(download.source).stem
    if "/plain/" not in download.source:
        stem = PLAIN.get(stem, stem)
        return downloads().get(f"attnref/plain/{stem}.py")
    full_forms = (w for s, w in downloads().items() if "/plain/" not in s)
    by_stem = {Path(w.source).stem: w for w in full_forms}
    for name in (stem, *(f for f, p in PLAIN.items() if p == stem)):
        if name in by_stem:
            return by_stem[name]
    return None


def _copy(module: str, public: list[str] | None) -> Download:
    """Copy a file with all that it needs. Its text names the address of the
    download, if the site has one."""
    source = copy.source_of(module)
    names = public or [n for n in copy.read(module).definitions if n[0] != "_"]
    place = f"files/{Path(source).name}"
    try:
        definitions = copy.definitions_for(names, "" if public else module)
        text = copy.one_file(names, address(place), "" if public else module)
    except ValueError as error:
        raise BuildError(f"{source} cannot become /{place}: {error}") from error
    contents = [(copy.source_of(d.module), d.name) for d in definitions]
    return Download(source, text, names, contents)


def address(place: str) -> str:
    """The address of a file, or "" if the site does not know its own."""
    site = os.environ.get("SITE_URL")
    return f"{site.rstrip('/')}/{place}" if site else ""


def wheel_name() -> str:
    return WHEEL.replace("VERSION", version())


@cache
def wheel() -> bytes:
    """The wheel, as `python -m build` makes it. Equal sources: equal bytes."""
    from hatchling.builders.wheel import WheelBuilder

    with tempfile.TemporaryDirectory() as folder:
        (path,) = WheelBuilder(str(ROOT)).build(directory=folder, versions=["standard"])
        if Path(path).name != wheel_name():
            raise BuildError(f"{Path(path).name} should be {wheel_name()}")
        return Path(path).read_bytes()


def fill_wheel(markdown: str) -> str:
    """Put what pip is given in the place of WHEEL."""
    name = wheel_name()
    markdown = markdown.replace(f"files:{WHEEL}", f"files:{name}")
    return markdown.replace(WHEEL, address(f"files/{name}") or name)


def _definitions_in(text: str) -> list[str]:
    names = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        for target in getattr(node, "targets", []):
            names.append(ast.unparse(target))
        if isinstance(node, ast.AnnAssign):
            names.append(ast.unparse(node.target))
    return names


@cache
def texts() -> dict[str, str]:
    """The files of `/files/`."""
    return {download.name: download.text for download in downloads().values()}


@cache
def _definitions_by_section(code: str) -> dict[str, list[str]]:
    """The names that each section of a file defines; "" is the whole file."""
    parts = {"": code, **sections(code)}
    return {name: _definitions_in(text) for name, text in parts.items()}


def stubs(language: str) -> dict[str, str]:
    """The files to fill in, by their place below `/files/`."""
    return {f"exercises/{name}.py": file_to_fill(name, language) for name in TASKS}


class Block(NamedTuple):
    """A block of a page, which shows a section of a file of the package."""

    page: str  # layers/gqa
    source: str
    section: str
    names: list[str]  # that it defines

    @property
    def id(self) -> str:
        """The id of the block on its page: `#gqa.py:module`."""
        return f"{name_in(self.source)}:{self.section or 'whole'}"


def blocks_of(path: Path) -> list[Block]:
    """The blocks of the package's files that a page shows, in its order."""
    blocks: list[Block] = []
    if not path.exists():  # the build alone has it
        return blocks
    for fence in fences(text_of(path)):
        title = fence.title or ""
        if not (title.startswith("attnref/") and fence.includes):
            continue
        source, section = fence.includes[0]
        place = f"{path.relative_to(ROOT)}:{fence.line}"
        if title != source:
            problem = f"the block is titled {title} and includes {source}"
            raise BuildError(f"{place}: {problem}; give it the title {source}")
        if not (ROOT / source).exists():
            files = [p.relative_to(ROOT) for p in ROOT.glob("attnref/*/*.py")]
            hint = near(source, map(str, files))
            raise BuildError(f"{place}: there is no {source}{hint}")
        sections_of_file = _definitions_by_section(text_of(ROOT / source))
        if section not in sections_of_file:
            hint = near(section, sections_of_file)
            raise BuildError(f"{place}: {source} has no {section!r}{hint}")
        page = pages.stem_of(path)
        blocks.append(Block(page, source, section, sections_of_file[section]))
    return blocks


class CodeIndex:
    """Which page shows each file, and each name in it. Both languages show the
    same, so it is read from the English pages."""

    def __init__(self) -> None:
        self.blocks: dict[str, list[Block]] = {}
        for path in pages.markdown_files("en"):
            for block in blocks_of(path):
                self.blocks.setdefault(block.source, []).append(block)

    def home(self, source: str) -> str:
        """The page that explains a file: it has its name, or shows most."""
        pages = [block.page for block in self.blocks.get(source, [])]
        name = Path(source).stem.replace("_", "-")
        namesakes = [page for page in pages if page.rpartition("/")[2] == name]
        return max(namesakes or pages, key=pages.count, default="files")

    def block_of(self, source: str, name: str | None = None) -> Block | None:
        """The first block on the page that explains a file. With a name: the
        block that defines it, on another page if need be."""
        home = self.home(source)
        blocks = self.blocks.get(source, [])
        blocks = sorted(blocks, key=lambda block: block.page != home)
        if name is not None:
            blocks = [block for block in blocks if name in block.names]
        return blocks[0] if blocks else None

    def anchor_of(self, source: str) -> tuple[str, str] | None:
        """Page and id of a file: of its bar, or else of its first block."""
        block = self.block_of(source)
        if block is None:
            return None
        download = downloads().get(source)
        return block.page, download.name if download else block.id


class Site(NamedTuple):
    """One language of the site, while it is built."""

    code: CodeIndex
    urls: dict[str, str]  # of the pages, below the English root
    words: dict[str, str]
    root: str  # "" or "zh/"


def site(files: Iterable[Any], config: Any) -> Site:
    root = config.extra["roots"][config.theme["language"]]
    words = dict(config.extra["words"]["files"])
    if config.plugins["material/offline"].config.enabled:
        words["copy"] = ""  # from file://, no script may read a file
    return Site(
        CodeIndex(),
        {file.src_uri.removesuffix(".md"): root + file.url for file in files},
        words,
        root,
    )


@cache
def places(root: str) -> dict[str, str]:
    """Where the downloads of a language stand, by the names that links give."""
    known = (answers.ZIP, *(f"answers/{n}" for n in answers.names()))
    models = (f"released/{n}" for n in released.files())
    names = (*texts(), BIB, wheel_name(), *known, *models)
    exercises = (f"exercises/{n}.py" for n in TASKS)
    result = {n: f"files/{n}" for n in names} | {n: f"{root}files/{n}" for n in exercises}
    return result | {LLMS: f"{root}{LLMS}", MISTAKES: MISTAKES}


class Links(NamedTuple):
    """The links from one page to others and to downloads."""

    path: Path
    site: Site

    @property
    def page(self) -> str:
        return pages.stem_of(self.path)

    def _to(self, kind: str, name: str, urls: dict[str, str]) -> str:
        if name not in urls:
            where = self.path.relative_to(ROOT)
            hint = near(name, urls)
            raise BuildError(f"{where}: there is no {kind}:{name}{hint}")
        return get_relative_url(urls[name], self.site.urls[self.page])

    def to_file(self, name: str) -> str:
        return self._to("files", name, places(self.site.root))

    def to_page(self, page: str, id: str = "") -> str:
        link = self._to("page", page, self.site.urls)
        link = "" if id and page == self.page else link
        return f"{link}#{id}" if id else link

    def name_of(self, page: str) -> str:
        language = self.path.relative_to(ROOT).parts[1]
        return name_of(str(pages.front_matter(twin(page, language))["title"]))


def add_links(html: str, path: Path, site: Site) -> str:
    """Put bars and links to downloads into the HTML of a page."""
    links, blocks = Links(path, site), blocks_of(path)
    expected, rendered = [b.source for b in blocks], BLOCK.findall(html)
    if expected != rendered:
        problem = f"the blocks of {expected} came out as blocks of {rendered}"
        raise BuildError(f"{path.relative_to(ROOT)}: {problem}")
    next_blocks, ids = iter(blocks), set[str]()

    def add(match: re.Match[str]) -> str:
        block = next(next_blocks)
        download = downloads().get(block.source)
        parts = [_add_link(match[0], block, download, links, block.id in ids)]
        if block.section == "imports":
            parts.append(_imports(block.source, links))
        ids.add(block.id)
        return "\n".join(filter(None, parts))

    return _links(BLOCK.sub(add, _with_bars(html, links)), links)


def _with_bars(html: str, links: Links) -> str:
    """Put a bar above the first block of each file, or above the fold that
    holds it."""
    places: dict[str, int] = {}
    for match in BLOCK.finditer(html):
        if match[1] in places:
            continue
        start = match.start()
        fold = html.rfind("<details", 0, start)
        if fold > html.rfind("</details>", 0, start):
            start = start if fold in places.values() else fold
        places[match[1]] = start
    for source, start in reversed(places.items()):
        if download := downloads().get(source):
            bar = _bar(download, links, places)
            html = f"{html[:start]}{bar}\n{html[start:]}"
    return html


def _add_link(html: str, block: Block, file: Download | None, links: Links, has_id: bool) -> str:
    """Make a link of the caption of a block, and give it its id once."""
    link = f'<a href="{links.to_page("files", "data")}">'
    if file:
        title = links.site.words["caption"].format(file.file)
        address = links.to_file(file.name)
        link = f'<a href="{address}" title="{title}" download>'
    name = f'<span class="filename">{block.source}</span>'
    linked_name = f'<span class="filename">{link}{block.source}</a></span>'
    html = html.replace(name, linked_name, 1)
    return html if has_id else html.replace("<div", f'<div id="{block.id}"', 1)


def _bar(download: Download, links: Links, sources: Iterable[str]) -> str:
    """The bar of a file. On the page that explains it: the downloads, and what
    it holds; on others, a link to that page."""
    home, other = links.site.code.home(download.source), other_form(download)
    # The bar of the plain form, on the same page, leads to both.
    is_second = other and "plain/" in other.name and other.source in sources
    files = [] if is_second else [file for file in (download, other) if file]
    is_home = home == links.page
    contents: dict[str, list[tuple[str, str]]] = {}
    for source, name in reversed(download.contents):  # its own come last
        block = links.site.code.block_of(source, name)
        link = links.to_page(block.page, block.id) if block else ""
        contents.setdefault(source, []).insert(0, (name, link))
    return render(
        "file",
        whole=download,
        downloads=[(file, links.to_file(file.name)) for file in files],
        explained="" if is_home else links.to_page(home, download.name),
        title=links.name_of(home),
        contents=contents,
        told=links.site.words,
    ).strip()


def _imports(source: str, page_links: Links) -> str:
    """Links to the files of the package that a file imports."""
    links = []
    module = ".".join(Path(source).with_suffix("").parts[1:])
    for imported in map(copy.source_of, copy.imported_by(module)):
        anchor = page_links.site.code.anchor_of(imported)
        link = f"<code>{imported.removeprefix('attnref/')}</code>"
        if anchor:
            link = f'<a href="{page_links.to_page(*anchor)}">{link}</a>'
        links.append(link)
    if not links:
        return ""
    text = page_links.site.words["imports"] + " ".join(links)
    return f'<div class="imported">{text}</div>'


def _links(html: str, page_links: Links) -> str:
    def lead(match: re.Match[str]) -> str:
        kind, target, fragment, text = match.groups()
        if kind == "files":
            link, attribute = page_links.to_file(target), " download"
        else:
            link = page_links.to_page(target, (fragment or "#")[1:])
            attribute = ""
            text = text or escape(page_links.name_of(target))
        return f'<a href="{link}"{attribute}>{text}</a>'

    html = LINK.sub(lead, html)
    if rest := re.search(r'href="(?:files|page):[^"]*"', html):
        place = page_links.path.relative_to(ROOT)
        raise BuildError(f"{place}: {rest[0]} is no plain link: [](...) alone")
    return html
