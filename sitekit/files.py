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

from attnref.check.tasks import TASKS, stub
from attnref.commands import copy
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
WHEEL = "attnref-VERSION-py3-none-any.whl"  # on a page
LINK = re.compile(r'<a href="(files|page):([^"#]*)(#[^"]*)?">(.*?)</a>')


class Whole(NamedTuple):
    """A file of the package and all that it needs, in one file."""

    source: str  # attnref/layers/gqa.py
    text: str
    imported: list[str]  # what one imports from it
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
NO_COPY = {
    "released.configured",
    "released.generate",
    "released.record",
}


def name_in(source: str) -> str:
    """What a file of the package is called in `/files/`."""
    folder, name = source.split("/")[-2:]
    return f"plain/{name}" if folder == "plain" else name


@cache
def everything() -> dict[str, Whole]:
    """All that can be downloaded, by the file of the package: the plain forms,
    and what some page shows."""
    out: dict[str, Whole] = {}
    english = pages.markdown_files("en")
    shown = {block.source for path in english for block in blocks_of(path)}
    for path in copy.plain().values():
        source, text = str(path.relative_to(ROOT)), text_of(path)
        names = [n for n in _defined_in(text) if n[0] != "_"]
        out[source] = Whole(source, text, names, [(source, n) for n in names])
    public = copy.files()
    for folder in FOLDERS:
        for path in sorted((ROOT / "attnref" / folder).glob("[!_.]*.py")):
            module = f"{folder}.{path.stem}"
            if (
                module in NO_COPY
                or f"attnref/{folder}/{path.name}" not in shown
            ):
                continue
            whole = _copied(module, public.get(path.stem))
            if whole.name in {other.name for other in out.values()}:
                why = f"{whole.source}: another file is called {whole.name}"
                raise BuildError(f"{why}, and /files/ has one of each name")
            out[whole.source] = whole
    return out


def other_form(whole: Whole) -> Whole | None:
    """Of a plain form the full one, and of a full one the plain."""
    stem = Path(whole.source).stem
    if "/plain/" not in whole.source:
        stem = PLAIN.get(stem, stem)
        return everything().get(f"attnref/plain/{stem}.py")
    full = (w for s, w in everything().items() if "/plain/" not in s)
    by_stem = {Path(w.source).stem: w for w in full}
    for other in (stem, *(f for f, p in PLAIN.items() if p == stem)):
        if other in by_stem:
            return by_stem[other]
    return None


def _copied(module: str, public: list[str] | None) -> Whole:
    """With the address of the download, if the site has one."""
    source = copy.source_of(module)
    names = public or [n for n in copy.read(module).definitions if n[0] != "_"]
    place = f"files/{Path(source).name}"
    try:
        needed = copy.needed(names, "" if public else module)
        text = copy.one_file(names, address(place), "" if public else module)
    except ValueError as error:
        raise BuildError(f"{source} cannot become /{place}: {error}") from error
    contents = [(copy.source_of(d.module), d.name) for d in needed]
    return Whole(source, text, names, contents)


def address(place: str) -> str:
    """Of a file of the site; without an address of the site, ""."""
    site = os.environ.get("SITE_URL")
    return f"{site.rstrip('/')}/{place}" if site else ""


def wheel_name() -> str:
    return WHEEL.replace("VERSION", version())


@cache
def wheel() -> bytes:
    """As `python -m build` makes it. Of the same sources, it is the same."""
    from hatchling.builders.wheel import WheelBuilder

    with tempfile.TemporaryDirectory() as folder:
        (made,) = WheelBuilder(str(ROOT)).build(
            directory=folder, versions=["standard"]
        )
        if Path(made).name != wheel_name():
            raise BuildError(f"{Path(made).name} should be {wheel_name()}")
        return Path(made).read_bytes()


def with_wheel(markdown: str) -> str:
    """The Markdown of a page, with what stands for the wheel."""
    name = wheel_name()
    markdown = markdown.replace(f"files:{WHEEL}", f"files:{name}")
    return markdown.replace(WHEEL, address(f"files/{name}") or name)


def _defined_in(text: str) -> list[str]:
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
    return {whole.name: whole.text for whole in everything().values()}


@cache
def _defined(code: str) -> dict[str, list[str]]:
    """The sections of a file, each with the names that it defines; "" is all
    of it."""
    parts = {"": code, **sections(code)}
    return {name: _defined_in(text) for name, text in parts.items()}


def stubs(language: str) -> dict[str, str]:
    """The files to fill in, by their place below `/files/`."""
    return {f"exercises/{name}.py": stub(name, language) for name in TASKS}


class Shown(NamedTuple):
    """A block of a page: what it shows of which file."""

    page: str  # layers/gqa
    source: str
    section: str
    defined: list[str]

    @property
    def id(self) -> str:
        """Where it stands on its page: `#gqa.py:module`."""
        return f"{name_in(self.source)}:{self.section or 'whole'}"


def blocks_of(path: Path) -> list[Shown]:
    """The blocks of the package's files that a page shows, in its order."""
    shown: list[Shown] = []
    if not path.exists():  # the build alone has it
        return shown
    for fence in fences(text_of(path)):
        title = fence.title or ""
        if not (title.startswith("attnref/") and fence.includes):
            continue
        source, section = fence.includes[0]
        where = f"{path.relative_to(ROOT)}:{fence.line}"
        if title != source:
            why = f"the block is titled {title} and includes {source}"
            raise BuildError(f"{where}: {why}; give it the title {source}")
        if not (ROOT / source).exists():
            known = [p.relative_to(ROOT) for p in ROOT.glob("attnref/*/*.py")]
            hint = near(source, map(str, known))
            raise BuildError(f"{where}: there is no {source}{hint}")
        defined = _defined(text_of(ROOT / source))
        if section not in defined:
            hint = near(section, defined)
            raise BuildError(f"{where}: {source} has no {section!r}{hint}")
        page = pages.stem_of(path)
        shown.append(Shown(page, source, section, defined[section]))
    return shown


class Where:
    """Where each file, and each name in it, is shown. Both languages show the
    same: it is read from the English pages."""

    def __init__(self) -> None:
        self.shown: dict[str, list[Shown]] = {}
        for path in pages.markdown_files("en"):
            for block in blocks_of(path):
                self.shown.setdefault(block.source, []).append(block)

    def home(self, source: str) -> str:
        """The page that explains a file: it has its name, or shows most."""
        pages = [block.page for block in self.shown.get(source, [])]
        name = Path(source).stem.replace("_", "-")
        named = [page for page in pages if page.rpartition("/")[2] == name]
        return max(named or pages, key=pages.count, default="files")

    def block_of(self, source: str, name: str | None = None) -> Shown | None:
        """The first block on the page that explains a file; of a name, the
        block that defines it, on another page if need be."""
        own = self.home(source)
        blocks = sorted(self.shown.get(source, []), key=lambda b: b.page != own)
        if name is not None:
            blocks = [block for block in blocks if name in block.defined]
        return blocks[0] if blocks else None

    def anchor_of(self, source: str) -> tuple[str, str] | None:
        """Page and id of a file: of its bar, or else of its first block."""
        block = self.block_of(source)
        if block is None:
            return None
        whole = everything().get(source)
        return block.page, whole.name if whole else block.id


class Site(NamedTuple):
    """One language of the site, while it is built."""

    where: Where
    urls: dict[str, str]  # of the pages, below the English root
    words: dict[str, str]
    root: str  # "" or "zh/"


def site(files: Iterable[Any], config: Any) -> Site:
    root = config.extra["roots"][config.theme["language"]]
    words = dict(config.extra["words"]["files"])
    if config.plugins["material/offline"].config.enabled:
        words["copy"] = ""  # from file://, no script may read a file
    return Site(
        Where(),
        {file.src_uri.removesuffix(".md"): root + file.url for file in files},
        words,
        root,
    )


class Here(NamedTuple):
    """A page while it is written."""

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
        urls = {n: f"files/{n}" for n in (*texts(), BIB, wheel_name())}
        known = (answers.ZIP, *(f"answers/{n}" for n in answers.names()))
        urls |= {n: f"files/{n}" for n in known}
        urls |= {
            f"released/{n}": f"files/released/{n}" for n in released.files()
        }
        exercises = (f"files/exercises/{n}.py" for n in TASKS)
        urls |= {
            n.removeprefix("files/"): self.site.root + n for n in exercises
        }
        return self._to("files", name, urls)

    def to_page(self, page: str, id: str = "") -> str:
        link = self._to("page", page, self.site.urls)
        link = "" if id and page == self.page else link
        return f"{link}#{id}" if id else link

    def name_of(self, page: str) -> str:
        language = self.path.relative_to(ROOT).parts[1]
        return name_of(str(pages.front_matter(twin(page, language))["title"]))


def with_files(html: str, path: Path, site: Site) -> str:
    """The HTML of a page, with the ways to all files that it shows."""
    here, blocks = Here(path, site), blocks_of(path)
    written, shown = [b.source for b in blocks], BLOCK.findall(html)
    if written != shown:
        why = f"the blocks of {written} came out as blocks of {shown}"
        raise BuildError(f"{path.relative_to(ROOT)}: {why}")
    coming, seen = iter(blocks), set[str]()

    def dress(match: re.Match[str]) -> str:
        block = next(coming)
        whole = everything().get(block.source)
        parts = [_linked(match[0], block, whole, here, block.id in seen)]
        if block.section == "imports":
            parts.append(_imports(block.source, here))
        seen.add(block.id)
        return "\n".join(filter(None, parts))

    return _links(BLOCK.sub(dress, _with_bars(html, here)), here)


def _with_bars(html: str, here: Here) -> str:
    """Above the first block of each file; of the first in a fold, above it."""
    first: dict[str, int] = {}
    for match in BLOCK.finditer(html):
        if match[1] in first:
            continue
        at = match.start()
        fold = html.rfind("<details", 0, at)
        if fold > html.rfind("</details>", 0, at):
            at = at if fold in first.values() else fold
        first[match[1]] = at
    for source, at in reversed(first.items()):
        if whole := everything().get(source):
            html = f"{html[:at]}{_bar(whole, here, first)}\n{html[at:]}"
    return html


def _linked(
    html: str, block: Shown, whole: Whole | None, here: Here, again: bool
) -> str:
    """A block, with a link for its caption, and an id where it has none yet."""
    link = f'<a href="{here.to_page("files", "data")}">'
    if whole:
        title = here.site.words["caption"].format(whole.file)
        link = f'<a href="{here.to_file(whole.name)}" title="{title}" download>'
    name = f'<span class="filename">{block.source}</span>'
    to = f'<span class="filename">{link}{block.source}</a></span>'
    html = html.replace(name, to, 1)
    return html if again else html.replace("<div", f'<div id="{block.id}"', 1)


def _bar(whole: Whole, here: Here, shown: Iterable[str]) -> str:
    """Where a file is explained, or on that page how it is downloaded and what
    it holds. A plain form of the files shown leads to its full one too."""
    own, other = here.site.where.home(whole.source), other_form(whole)
    twice = other and "plain/" in other.name and other.source in shown
    downloads = [] if twice else [each for each in (whole, other) if each]
    contents: dict[str, list[tuple[str, str]]] = {}
    for source, name in reversed(whole.contents):  # its own come last
        block = here.site.where.block_of(source, name)
        link = here.to_page(block.page, block.id) if block else ""
        contents.setdefault(source, []).insert(0, (name, link))
    return render(
        "file",
        whole=whole,
        downloads=[(each, here.to_file(each.name)) for each in downloads],
        explained=here.to_page(own, whole.name) if own != here.page else "",
        title=here.name_of(own),
        contents=contents,
        told=here.site.words,
    ).strip()


def _imports(source: str, here: Here) -> str:
    """Links to the files of the package that a file imports."""
    links = []
    module = ".".join(Path(source).with_suffix("").parts[1:])
    for other in map(copy.source_of, copy.imported_by(module)):
        anchor = here.site.where.anchor_of(other)
        link = f"<code>{other.removeprefix('attnref/')}</code>"
        if anchor:
            link = f'<a href="{here.to_page(*anchor)}">{link}</a>'
        links.append(link)
    if not links:
        return ""
    text = here.site.words["imports"] + " ".join(links)
    return f'<div class="imported">{text}</div>'


def _links(html: str, here: Here) -> str:
    def lead(match: re.Match[str]) -> str:
        kind, target, fragment, text = match.groups()
        if kind == "files":
            link, more = here.to_file(target), " download"
        else:
            link, more = here.to_page(target, (fragment or "#")[1:]), ""
            text = text or escape(here.name_of(target))
        return f'<a href="{link}"{more}>{text}</a>'

    html = LINK.sub(lead, html)
    if left := re.search(r'href="(?:files|page):[^"]*"', html):
        where = here.path.relative_to(ROOT)
        raise BuildError(f"{where}: {left[0]} is no plain link: [](...) alone")
    return html
