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
from sitekit.markdown.fences import Fence, draw_fence
from sitekit.markdown.folds import with_includes
from sitekit.markdown.source import DRAWN, OF_ONE_PAGE, fence_at
from sitekit.markdown.unmarked import unmarked
from sitekit.released import released

BOX = re.compile(r'(?:\?\?\?\+?|!!!) [\w ]+ "(?:<span[^>]*>)?(?P<title>.+?)(?:</span>)?"')
ID = re.compile(r"\s*\{ #[\w-]+ \}")  # belongs to the paragraph above
TAB = re.compile(r'===\+? ".+"')
HEADING = re.compile(r"(?P<text>#+ .+?) \{ #(?P<id>[\w-]+)[ \w-]* \}")
LEAD = re.compile(r'<p class="lead"[ \w-]*>(?P<text>.+)</p>')
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
    folded: bool = False  # the code is hidden until a reader opens it


def add(page: Any, config: Any, files: Any) -> None:
    """The notebook of a page with Python becomes a file of the site, unless it
    says `notebook: false`, since it needs the whole package. That of a model
    is its file and a few lines to try it."""
    is_wanted = page.meta.get("notebook", True)
    if "model" in page.meta or ("```python" in page.markdown and is_wanted):
        place = f"notebooks/{page.file.src_uri.removesuffix('.md')}.ipynb"
        if place not in files.src_uris:  # a server renders a page again
            files.append(
                adapter.GeneratedFile(config, place, lambda: to_json(cells(page, config, files)))
            )
        page.meta["notebook"] = place


def cells(page: Any, config: Any, files: Any) -> list[Cell]:
    """The cells of the page; those that make it run come below its title."""
    words = config.extra["notebook"]
    source = page.file.src_uri
    if id := page.meta.get("model"):
        texts = released.notebook(id, config.theme["language"])
        return [Cell(text, bool(n % 2)) for n, text in enumerate(texts)]
    fence = Fence(posixpath.basename(source).removesuffix(".md"), config.theme["language"])
    first, *other_cells = split(with_includes(page.markdown.split("\n"), config), fence, words)
    heading = HEADING.match(first.text)
    assert heading is not None, f"{source} begins without a title"
    title = heading["text"].removeprefix("# ")
    program = "\n".join(cell.text for cell in other_cells if cell.code)
    link = f"[{title}]({posixpath.basename(source)})"
    result = [first, *_first_cells(program, words, link), *other_cells]
    targets = {m["to"] for cell in result for m in LINK.finditer(cell.text)}

    def address(link: str) -> str:
        if link.startswith(("http:", "https:", "#")):
            return link
        to, _, anchor = link.partition("#")
        path = posixpath.normpath(posixpath.join(source, "..", to))
        file = files.get_file_from_path(path)
        if file is None or not config.site_url:
            return ""
        place = urljoin(config.site_url, file.url)
        return f"{place}#{anchor}" if anchor else place

    return [
        cell if cell.code else cell._replace(text=common(cell.text, targets, address))
        for cell in result
    ]


def split(lines: list[str], fence: Fence, words: Any, is_text: bool = False) -> Iterator[Cell]:
    """Begin a cell at each heading, and make one of each block of Python. A
    text has no folds, and the words of what one page alone draws."""
    prose: list[str] = []

    def prose_cell() -> Iterator[Cell]:
        text = "\n".join(prose).strip("\n")
        prose.clear()
        if text:
            yield Cell(re.sub(r"\n{3,}", "\n\n", text))

    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        if block := fence_at(lines, index - 1):
            index = block.end
            prose += _title_lines(block.title)
            if block.language == "python":
                yield from prose_cell()
                yield Cell(block.text.strip("\n"), code=True)
            elif block.language in DRAWN:
                prose += _drawing(block.text, block.language, fence, words, is_text)
            else:
                prose += [f"```{block.language}", block.text, "```"]
        elif (match := BOX.fullmatch(line)) or TAB.fullmatch(line):
            end = index
            while end < len(lines) and lines[end][:4].strip() == "":
                end += 1
            inner = [*split([x[4:] for x in lines[index:end]], fence, words, is_text)]
            index = end
            if match is None:  # all states of what a page shows one of
                yield from prose_cell()
                yield from inner
            elif is_text or any(cell.code for cell in inner):
                prose += ["", f"**{match['title']}**", ""]
                yield from prose_cell()
                yield from (cell._replace(folded=cell.code) for cell in inner)
            else:
                # Within a tag, Markdown is not read.
                title = CODE.sub(r"<code>\1</code>", escape(match["title"]))
                prose += [
                    "",
                    f"<details><summary>{title}</summary>",
                    "",
                    *(f"{cell.text}\n" for cell in inner),
                    "</details>",
                    "",
                ]
        elif line != notes.COMMENT and not ID.fullmatch(line):
            if HEADING.fullmatch(line):
                yield from prose_cell()
            lead = LEAD.fullmatch(line)
            prose.append(lead["text"] if lead else line)
    yield from prose_cell()


def _title_lines(title: str | None) -> list[str]:
    """The title of a block, usually its file, as a line above it."""
    if title is None:
        return []
    return ["", f"`{title}`" if title.endswith(".py") else title, ""]


def _drawing(source: str, kind: str, fence: Fence, words: Any, is_text: bool) -> list[str]:
    """A table as Markdown, and of a drawing the caption."""
    result = draw_fence(source, kind, fence)
    if is_text and kind in OF_ONE_PAGE:
        return ["", unmarked(result.html), "", result.caption]
    if kind == "table":
        return [result.table, "", result.caption]
    if not result.caption:
        return [result.table]
    text = words["drawn"].format(caption=result.caption)
    return [text, "", result.table]


def _first_cells(program: str, words: Any, link: str) -> Iterator[Cell]:
    """The cells that say what the notebook is and needs, and import attnref."""
    packages, setup = _needs(program)
    texts = [words["about"].format(page=link, version=version())]
    texts += [words["needs"].format(packages=packages)]
    texts += [words["attnref"]] if setup else []
    yield Cell("\n\n".join(texts))
    if setup:
        yield Cell(setup, code=True, folded=True)


@cache
def _needs(program: str) -> tuple[str, str]:
    """The packages that a program needs, and the code that imports attnref."""
    names, modules = _imports(program)
    packages = {"torch"} | names - {"attnref"} - sys.stdlib_module_names
    texts = "".join(
        f'        "{name}": {_literal(text)},\n' for name, text in _files(modules).items()
    )
    setup = SETUP.replace("VERSION", version())
    setup = f"{setup}{texts}    }}\n)" if modules else ""
    return " ".join(sorted(packages)), setup


def _imports(program: str) -> tuple[set[str], dict[str, list[str]]]:
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


def _literal(text: str) -> str:
    """A text as a literal of Python, whatever quotes it holds."""
    return repr(text) if "'''" in text else f"r'''{text}'''"


def common(text: str, targets: set[str], address: Callable[[str], str]) -> str:
    """The text of a cell as CommonMark, with links that work anywhere."""

    def heading(match: re.Match[str]) -> str:
        is_target = f"#{match['id']}" in targets
        anchor = f' <a id="{match["id"]}"></a>' if is_target else ""
        return match["text"] + anchor

    def link(match: re.Match[str]) -> str:
        if match["to"] is None:
            return match[0]
        href = address(match["to"])
        return f"[{match['text']}]({href})" if href else match["text"]

    def strong(match: re.Match[str]) -> str:
        """Write <strong> where CommonMark would not read ** beside Chinese."""
        words = match["text"]
        if words is None:
            return match[0]
        previous = text[: match.start()][-1:]
        following = text[match.end() :][:1]
        is_misread = (_is_mark(words[0]) and _is_word(previous)) or (
            _is_mark(words[-1]) and _is_word(following)
        )
        return f"<strong>{words}</strong>" if is_misread else match[0]

    text = re.sub(rf"(?m)^{HEADING.pattern}$", heading, text)
    text = LINK.sub(link, text)
    return STRONG.sub(strong, text)


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def _is_word(character: str) -> bool:
    return bool(character) and not (character.isspace() or _is_mark(character))


def to_json(cells: list[Cell]) -> str:
    """The notebook in format 4.5, as Jupyter itself writes it."""
    notebook = {
        "cells": [_to_json(n, cell) for n, cell in enumerate(cells)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    text = json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True)
    return text + "\n"


def _to_json(number: int, cell: Cell) -> dict[str, Any]:
    # JupyterLab and Colab each have a name of their own for code that is
    # folded.
    fold = {"cellView": "form", "jupyter": {"source_hidden": True}}
    common = {
        "id": f"cell-{number}",
        "metadata": fold if cell.folded else {},
        "source": cell.text.splitlines(keepends=True),
    }
    if not cell.code:
        return {"cell_type": "markdown", **common}
    return {"cell_type": "code", "execution_count": None, "outputs": [], **common}
