"""The notebook of a page: its text, and its blocks as cells that run.

Made of the page's Markdown in each build. Jupyter, Colab and VS Code read
CommonMark, in which some things of the site's Markdown are written otherwise.
"""

import ast
import json
import posixpath
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from html import escape
from typing import Any, NamedTuple
from urllib.parse import urljoin

import attnref
from attnref.commands import copy
from attnref.words import version
from sitekit import adapter
from sitekit.markdown import notes
from sitekit.markdown.fences import Fence, drawn
from sitekit.markdown.folds import with_includes
from sitekit.markdown.source import DRAWN, fence_at
from sitekit.released import released

BOX = re.compile(
    r'(?:\?\?\?\+?|!!!) [\w ]+ "(?:<span[^>]*>)?(?P<title>.+?)(?:</span>)?"'
)
ID = re.compile(r"\s*\{ #[\w-]+ \}")  # of the paragraph above
TAB = re.compile(r'===\+? ".+"')
HEADING = re.compile(r"(?P<text>#+ .+?) \{ #(?P<id>[\w-]+) \}")
LEAD = re.compile(r'<p class="lead" markdown>(?P<text>.+)</p>')
# What stands first where two of these begin: code holds no links.
VERBATIM = r"(?ms:^```.*?^```$)|(?P<ticks>`+).+?(?P=ticks)"
LINK = re.compile(
    VERBATIM + r"|\[(?P<text>(?:`[^`]*`|[^\[\]`]|\[[^\]]*\])+)\]"
    r"\((?P<to>[^()\s]+)\)(?:\{[^{}]*\})?"
)
CODE = re.compile(r"`([^`]+)`")
STRONG = re.compile(VERBATIM + r"|\*\*(?P<text>[^*\n]+)\*\*")

SETUP = '''\
def _import_attnref(version, files):
    """Use the attnref that is installed; without one, write these files into
    a temporary folder and import from there."""
    import importlib.util
    import pathlib
    import sys
    import tempfile
    import warnings

    mark = "attnref-of-a-notebook-"
    spec = importlib.util.find_spec("attnref")
    if spec is None or spec.origin is None:
        folder = pathlib.Path(tempfile.mkdtemp(prefix=mark))
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\\n")
        sys.path.insert(0, str(folder))
    import attnref

    place = pathlib.Path(attnref.__file__).parent
    how = "written by this notebook" if mark in str(place) else "installed"
    print(f"attnref {attnref.__version__}, {how}: {place}")
    if attnref.__version__ != version:
        warnings.warn(f"this notebook was made for attnref {version}")


_import_attnref(
    "VERSION",
    {
'''


class Cell(NamedTuple):
    text: str
    code: bool = False
    folded: bool = False  # its code is shown when one asks for it


def add(page: Any, config: Any, files: Any) -> None:
    """The notebook of a page with Python becomes a file of the site, unless it
    says `notebook: false`, since it needs the whole package. That of a model
    is its file and a few lines to try it."""
    whole = page.meta.get("notebook", True)
    if "model" in page.meta or ("```python" in page.markdown and whole):
        place = f"notebooks/{page.file.src_uri.removesuffix('.md')}.ipynb"
        if place not in files.src_uris:  # a server renders a page again
            files.append(
                adapter.MadeFile(
                    config, place, lambda: written(cells(page, config, files))
                )
            )
        page.meta["notebook"] = place


def cells(page: Any, config: Any, files: Any) -> list[Cell]:
    """Those of the page, below its title those that make it run."""
    words = config.extra["notebook"]
    source = page.file.src_uri
    if id := page.meta.get("model"):
        both = released.notebook(id, config.theme["language"])
        return [Cell(text, bool(n % 2)) for n, text in enumerate(both)]
    fence = Fence(
        posixpath.basename(source).removesuffix(".md"),
        config.theme["language"],
    )
    first, *others = _cells(
        with_includes(page.markdown.split("\n"), config), fence, words
    )
    match = HEADING.match(first.text)
    assert match is not None, f"{source} begins without a title"
    title = match["text"].removeprefix("# ")
    program = "\n".join(cell.text for cell in others if cell.code)
    link = f"[{title}]({posixpath.basename(source)})"
    result = [first, *_before(program, words, link), *others]
    linked = {m["to"] for cell in result for m in LINK.finditer(cell.text)}

    def address(link: str) -> str:
        if link.startswith(("http:", "https:", "#")):
            return link
        to, _, anchor = link.partition("#")
        there = posixpath.normpath(posixpath.join(source, "..", to))
        file = files.get_file_from_path(there)
        if file is None or not config.site_url:
            return ""
        place = urljoin(config.site_url, file.url)
        return f"{place}#{anchor}" if anchor else place

    return [
        cell
        if cell.code
        else cell._replace(text=common(cell.text, linked, address))
        for cell in result
    ]


def _cells(lines: list[str], fence: Fence, words: Any) -> Iterator[Cell]:
    """A heading begins a cell, and each block of Python is one."""
    prose: list[str] = []

    def so_far() -> Iterator[Cell]:
        text = "\n".join(prose).strip("\n")
        prose.clear()
        if text:
            yield Cell(re.sub(r"\n{3,}", "\n\n", text))

    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if block := fence_at(lines, at - 1):
            at = block.end
            prose += _titled(block.title)
            if block.language == "python":
                yield from so_far()
                yield Cell(block.text.strip("\n"), code=True)
            elif block.language in DRAWN:
                prose += _drawn(block.text, block.language, fence, words)
            else:
                prose += [f"```{block.language}", block.text, "```"]
        elif (match := BOX.fullmatch(line)) or TAB.fullmatch(line):
            end = at
            while end < len(lines) and lines[end][:4].strip() == "":
                end += 1
            inside = list(_cells([x[4:] for x in lines[at:end]], fence, words))
            at = end
            if match is None:  # all states of what a page shows one of
                yield from so_far()
                yield from inside
            elif any(cell.code for cell in inside):
                prose += ["", f"**{match['title']}**", ""]
                yield from so_far()
                yield from (cell._replace(folded=cell.code) for cell in inside)
            else:
                # Within a tag, Markdown is not read.
                title = CODE.sub(r"<code>\1</code>", escape(match["title"]))
                prose += [
                    "",
                    f"<details><summary>{title}</summary>",
                    "",
                    *(f"{cell.text}\n" for cell in inside),
                    "</details>",
                    "",
                ]
        elif line != notes.HERE and not ID.fullmatch(line):
            if HEADING.fullmatch(line):
                yield from so_far()
            lead = LEAD.fullmatch(line)
            prose.append(lead["text"] if lead else line)
    yield from so_far()


def _titled(title: str | None) -> list[str]:
    """The line above a block: usually its file."""
    if title is None:
        return []
    return ["", f"`{title}`" if title.endswith(".py") else title, ""]


def _drawn(source: str, kind: str, fence: Fence, words: Any) -> list[str]:
    """A table as Markdown; of what is drawn, the caption."""
    result = drawn(source, kind, fence)
    if kind == "table":
        return [result.table, "", result.caption]
    if not result.caption:
        return [result.table]
    text = words["drawn"].format(caption=result.caption)
    return [text, "", result.table]


def _before(program: str, words: Any, link: str) -> Iterator[Cell]:
    """What the notebook is, what it needs, and attnref."""
    packages, setup = _needs(program)
    texts = [words["about"].format(page=link, version=version())]
    texts += [words["needs"].format(packages=packages)]
    texts += [words["attnref"]] if setup else []
    yield Cell("\n\n".join(texts))
    if setup:
        yield Cell(setup, code=True, folded=True)


@cache
def _needs(program: str) -> tuple[str, str]:
    """What pip installs for a program, and the code that imports attnref."""
    names, modules = _imported(program)
    packages = {"torch"} | names - {"attnref"} - sys.stdlib_module_names
    texts = "".join(
        f'        "{name}": {_quoted(text)},\n'
        for name, text in _files(modules).items()
    )
    setup = SETUP.replace("VERSION", version())
    setup = f"{setup}{texts}    }}\n)" if modules else ""
    return " ".join(sorted(packages)), setup


def _imported(program: str) -> tuple[set[str], dict[str, list[str]]]:
    """The packages that a program imports, and of attnref each module with
    the names that `attnref` itself has to give."""
    packages: set[str] = set()
    modules: dict[str, list[str]] = {}
    tools = vars(attnref)["_TOOLS"].items()  # with the files that these read
    homes = copy.public() | {n: home for home, names in tools for n in names}
    for node in ast.walk(ast.parse(program)):
        imports: dict[str, list[str]] = {}
        if isinstance(node, ast.Import):
            imports = {alias.name: list(copy.public()) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imports = {node.module or "": [alias.name for alias in node.names]}
        for module, names in imports.items():
            packages.add(module.partition(".")[0])
            if module.startswith(copy.OURS):
                inner = module.removeprefix(copy.OURS)
                for name in names:  # a file of a folder, or a name of a file
                    folder = (copy.PACKAGE / inner).is_dir()
                    file = f"{inner}.{name}" if folder else inner
                    modules.setdefault(file, [])
            for name in names if module == "attnref" else []:
                modules.setdefault(homes[name], []).append(name)
    return packages, modules


def _files(modules: dict[str, list[str]]) -> dict[str, str]:
    """The files of attnref that hold these names, as they are, with those
    that they import and the data that they read."""
    lines = [
        f"from attnref.{module} import {name}\n"
        for module in sorted(modules)
        for name in sorted(set(modules[module]))
    ]
    first = f'"""The part of attnref {version()} that a notebook needs."""'
    init = [first, "", "".join(lines), f'__version__ = "{version()}"', ""]
    files = {"attnref/__init__.py": "\n".join(init)}
    for module in copy.with_imported(sorted(modules)):
        source, text = copy.source_of(module), copy.text_of(module)
        files[source] = text
        path = copy.path_of(module)
        for data in path.parent.iterdir():
            if data.suffix in (".json", ".toml", ".txt", ".jinja") and (
                data.name in text or data.stem == path.stem
            ):
                place = f"{posixpath.dirname(source)}/{data.name}"
                files[place] = data.read_text(encoding="utf-8")
    return files


def _quoted(text: str) -> str:
    """As Python code, whatever quotes it holds."""
    return repr(text) if "'''" in text else f"r'''{text}'''"


def common(text: str, linked: set[str], address: Callable[[str], str]) -> str:
    """As CommonMark, with links that lead somewhere from anywhere."""

    def heading(match: re.Match[str]) -> str:
        wanted = f"#{match['id']}" in linked
        anchor = f' <a id="{match["id"]}"></a>' if wanted else ""
        return match["text"] + anchor

    def link(match: re.Match[str]) -> str:
        if match["to"] is None:
            return match[0]
        to = address(match["to"])
        return f"[{match['text']}]({to})" if to else match["text"]

    def strong(match: re.Match[str]) -> str:
        """Beside punctuation, ** is not read as one would in Chinese."""
        inside = match["text"]
        if inside is None:
            return match[0]
        before, after = text[: match.start()][-1:], text[match.end() :][:1]
        torn = (_is_mark(inside[0]) and _is_word(before)) or (
            _is_mark(inside[-1]) and _is_word(after)
        )
        return f"<strong>{inside}</strong>" if torn else match[0]

    text = re.sub(rf"(?m)^{HEADING.pattern}$", heading, text)
    text = LINK.sub(link, text)
    return STRONG.sub(strong, text)


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def _is_word(character: str) -> bool:
    return bool(character) and not (character.isspace() or _is_mark(character))


def written(cells: list[Cell]) -> str:
    """Format 4.5, as Jupyter itself writes it."""
    notebook = {
        "cells": [_written(n, cell) for n, cell in enumerate(cells)],
        "metadata": {
            "kernelspec": {
                "display_name": "Python 3",
                "language": "python",
                "name": "python3",
            },
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    text = json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True)
    return text + "\n"


def _written(number: int, cell: Cell) -> dict[str, Any]:
    # JupyterLab and Colab each have a name of their own for code that is
    # folded.
    folded = {"cellView": "form", "jupyter": {"source_hidden": True}}
    common = {
        "id": f"cell-{number}",
        "metadata": folded if cell.folded else {},
        "source": cell.text.splitlines(keepends=True),
    }
    if not cell.code:
        return {"cell_type": "markdown", **common}
    return {
        "cell_type": "code",
        "execution_count": None,
        "outputs": [],
        **common,
    }
