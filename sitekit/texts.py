"""Each page as Markdown beside it, layers/gqa.md beside layers/gqa/, and
llms.txt, which lists them.

A text has the path that the file of its page has below docs/, so that a link
from page to page leads from text to text. It is made of what a notebook is made
of; HTML is read for its words.
"""

import posixpath
import re
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

from attnref.judge.catalogue import PAGES, catalogue
from attnref.words import Text
from sitekit import adapter, api
from sitekit import files as downloads
from sitekit.check import entries, mistakes
from sitekit.check.evidence import evidence
from sitekit.markdown import docstrings, notebooks, pages, parity
from sitekit.markdown.fences import Fence
from sitekit.markdown.folds import with_includes
from sitekit.markdown.unmarked import unmarked
from sitekit.nav import COLON, name_of
from sitekit.released import released

PICTURE = re.compile(r"(?m)^( *)<!-- (\w+) of ([\w-]+) -->$")
NAME = re.compile(r"(?m)^::: (attnref\.[\w.]+)$")
TO_NAME = re.compile(r"(?<=\])\[(attnref\.[\w.]+)\]")
IN_FILES = re.compile(r"(?:\.\./)+(files/.+)")
ATTRIBUTES = re.compile(r"\{ lang=\w+ \}")
NAMELESS = re.compile(r"\[\](?=\(page:([^()#]+))")
ID = re.compile(r"(?m)^( *)\{ #([\w-]+) \}$")
HTML = re.compile(rf"{notebooks.VERBATIM}|(?m:^ *(?P<html><(?!a id|br)/?[a-z].*(?:\n.+)*))")
DOOR = Text(
    "*On the page only:* a field for an error or a symptom, and questions. "
    "As text, choose a heading of [All mistakes by symptom](#all).",
    "*网页上才有：*输入报错或现象的框，以及一步步的提问。看文字版，"
    "请到[按症状列出的全部错误](#all)里挑一条。",
)
_texts: dict[str, tuple[str, str]] = {}  # of a page, with what it was made of


def enter(config: Any, nav: Any, files: Any) -> None:
    """Add the texts of one language to its files."""
    site_pages = [file.page for file in files.documentation_pages()]
    made = {page.file.src_uri: partial(text, page, config, files) for page in site_pages}
    for id in catalogue():
        made[f"{entries.FOLDER}/{id}.md"] = partial(of_mistake, id, config, files)
    made[downloads.LLMS] = partial(index, site_pages, config, nav)
    for address, make in made.items():
        files.append(adapter.GeneratedFile(config, address, make))


def text(page: Any, config: Any, files: Any) -> str:
    """A page as Markdown, without front matter."""
    if page.markdown is None:  # `mkdocs serve` has not come to it
        adapter.populate_page(page, config, files)
    made_of, result = _texts.get(page.file.abs_dest_path, ("", ""))
    if made_of == page.markdown:
        return result
    language = config.theme["language"]
    source = PICTURE.sub(partial(_picture, language), page.markdown)
    source = NAME.sub(partial(_documented, language), source)
    lines = with_includes(ID.sub(r'\1<a id="\2"></a>', source).split("\n"), config)
    fence = Fence(Path(page.file.src_uri).stem, language)
    cells = notebooks.split(lines, fence, config.extra["notebook"], is_text=True)
    address = partial(_address, page.file.src_uri, config.extra["roots"][language])
    ids = {f"#{match['id']}" for match in notebooks.HEADING.finditer(source)}
    parts = (
        f"```python\n{cell.text}\n```"
        if cell.code
        else notebooks.common(_prose(cell.text, language), ids, address)
        for cell in cells
    )
    result = "\n\n".join(parts) + "\n"
    _texts[page.file.abs_dest_path] = page.markdown, result
    return result


def of_mistake(id: str, config: Any, files: Any) -> str:
    """What the text of a page of mistakes says of one, as a text."""
    source = f"{PAGES[entries.subject_of()[id]]}.md"
    listed = text(files.get_file_from_path(source).page, config, files)
    section = re.search(rf'(?ms)^#(# [^\n]+ <a id="{id}"></a>$.*?)(?=^## |\Z)', listed)
    assert section is not None, id
    return section[1].replace("](#", f"]({posixpath.basename(source)}#").strip() + "\n"


def _picture(language: str, match: re.Match[str]) -> str:
    """The lines of a mistake, or all mistakes with a symptom."""
    space, kind, name = match.groups()
    lines: list[str] = []
    if kind == "door":
        lines = [getattr(DOOR, language)]
    elif kind == "all":
        ids = (id for id in catalogue() if evidence()[id].symptom == name)
        lines = [f"- [{getattr(catalogue()[id].title, language)}]({id}.md)" for id in ids]
    elif kind in ("diffs", "others"):
        variants = catalogue()[name].variants
        for part in chain(*(variants[:1] if kind == "diffs" else variants[1:3])):
            lines += [f"`{part.file}`", "", "```diff", mistakes.diff(part), "```", ""]
    return indent("\n".join(lines), space)


def _documented(language: str, match: re.Match[str]) -> str:
    """What a page of the API says of a name, from its docstrings."""
    definition = docstrings.package()[match[1].removeprefix("attnref.")]
    members = definition.members.values() if definition.is_class else ()
    lines = [f'### `{definition.name}` <a id="{match[1]}"></a>', ""]
    for item in (definition, *members):
        if item.docstring is None or (item is not definition and item.name[0] == "_"):
            continue
        name = docstrings.name_of(item)
        lines += [f"#### `{name}`", ""] if item is not definition else []
        if item.is_class or item.is_function:
            lines += ["```py", item.signature(), "```", ""]
        prose, *examples = docstrings.EXAMPLES.split(item.docstring.value)
        lines += [docstrings.chinese()[name]["zh"] if language == "zh" else prose, ""]
        for example in examples:
            code = dedent(example.partition("\n")[2]).strip("\n")
            lines += ["```pycon", code, "```", ""]
    return "\n".join(lines)


def _prose(markdown: str, language: str) -> str:
    """Without HTML, and with the links that have no words yet."""

    def read(match: re.Match[str]) -> str:
        return unmarked(match["html"]) if match["html"] else match[0]

    def named(match: re.Match[str]) -> str:
        matter = pages.front_matter(parity.twin(match[1], language))
        return f"[{name_of(matter['title'])}]"

    bare = re.sub(r"\n{3,}", "\n\n", ATTRIBUTES.sub("", HTML.sub(read, markdown))).strip()
    return TO_NAME.sub(r"(\1)", NAMELESS.sub(named, bare))


def _address(source: str, root: str, link: str) -> str:
    """Where a link leads from the text of a page."""
    to, _, anchor = link.partition("#")
    kind, _, name = to.rpartition(":")
    here = posixpath.dirname(root + source)
    if kind in ("http", "https") or not to:
        return link
    place = downloads.places(root)[name] if kind == "files" else ""
    if found := IN_FILES.fullmatch(to):  # as a page leads there, from its folder
        place = found[1]
    if place:
        return posixpath.relpath(place, here or ".")
    if to.startswith("attnref."):
        kind, name, anchor = "page", api.page_of(to), to
    elif "." in anchor:  # of a file on a page, or a fold
        anchor = ""
    if kind == "page":
        to = posixpath.relpath(f"{root}{name}.md", here or ".")
    return "#".join(filter(None, (to.partition("?")[0], anchor)))


def index(site_pages: list[Any], config: Any, nav: Any) -> str:
    """llms.txt, in the form of llmstxt.org: the sections of the navigation."""
    return "\n".join(_index(site_pages, config, nav)) + "\n"


def _index(site_pages: list[Any], config: Any, nav: Any) -> Iterator[str]:
    language, words = config.theme["language"], config.extra["llms"]
    # Without an address of the site, links are relative to this file.
    here = config.site_url or ""
    home = config.extra["home_url"] if here else "../" * (language != "en")
    yield f"# {config.site_name}\n\n> {config.site_description}\n\n{words['about']}"
    in_order = nav.pages + [page for page in site_pages if page not in nav.pages]
    for section in nav.items:
        if section.is_page:
            continue
        yield f"\n## {section.title}\n"
        for page in in_order:
            if section in page.ancestors and not adapter.is_model_page(page):
                matter = pages.front_matter(Path(page.file.abs_src_path))
                link = f"[{name_of(matter['title'])}]({here}{page.file.src_uri})"
                yield f"- {link}{COLON[language]}{matter['description']}"
    yield f"\n## {words['data']}\n"
    yield from (f"- {line.format(home=home)}" for line in words["files"])
    yield "\n## Optional\n"
    for model in released.released().values():
        yield f"- [{model.name}]({here}{released.FOLDER}/{model.id}.md)"
