"""A page as the site's own Markdown sees it: its blocks and its program."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

from markdown import Markdown

from sitekit import CONFIGS, ROOT
from sitekit.adapter import config_of, front_matter_of
from sitekit.markdown import numbers, source
from sitekit.markdown.source import INCLUDE, LANGUAGES, opened, parts_of


class Block(NamedTuple):
    language: str
    text: str


class Page(NamedTuple):
    html: str  # each block stands as <pre data-block="0">, ...
    blocks: list[Block]


def markdown_files(language: str) -> list[Path]:
    return sorted((ROOT / "docs" / language).rglob("*.md"))


def stem_of(path: Path) -> str:
    """The name of a page: `layers/gqa` is docs/en/layers/gqa.md."""
    parts = path.relative_to(ROOT / "docs").parts[1:]
    return "/".join(parts).removesuffix(".md")


def address_of(path: Path) -> str:
    """The address of a page below the home page of its language."""
    return "" if stem_of(path) == "index" else f"{stem_of(path)}/"


def body_of(path: Path) -> str:
    """The text of a page without front matter, with numbers filled in."""
    return numbers.fill(parts_of(path)[0], path)


def front_matter(path: Path) -> dict[str, Any]:
    return parts_of(path)[1]


@cache
def _config() -> Any:
    return config_of(CONFIGS["en"])


def render(body: str, *, expand: bool = True) -> Page:
    """Render with the site's extensions, catching each fenced block.

    The blocks come in the order of the page. With `expand=False` includes
    are left as they are written.
    """
    blocks: list[Block] = []

    def catch(source: str, language: str, *_: object, **__: object) -> str:
        blocks.append(Block(language, source.strip("\n") + "\n"))
        return f'<pre data-block="{len(blocks) - 1}"></pre>'

    fence = {"name": "*", "class": "", "format": catch, "validator": _accept}
    skip = {"sitekit.markdown.mathml"} | (set() if expand else {"pymdownx.snippets"})
    config = _config()
    md = Markdown(
        extensions=[e for e in config.markdown_extensions if e not in skip],
        extension_configs={
            **config.mdx_configs,
            "pymdownx.superfences": {"custom_fences": [fence]},
        },
    )
    html = md.convert(body)
    # Superfences may see blocks out of order (nested ones first): the page's
    # order is that of the placeholders in the result.
    order = [int(i) for i in re.findall(r'<pre data-block="(\d+)">', html)]
    if sorted(order) != list(range(len(blocks))):
        raise ValueError(f"{len(blocks)} blocks seen, {len(order)} rendered")
    numbers = count()
    html = re.sub(r'(?<=<pre data-block=")\d+', lambda _: str(next(numbers)), html)
    return Page(html, [blocks[i] for i in order])


def _accept(*_: object) -> bool:
    return True


def python_blocks(body: str) -> list[str]:
    """The text of the Python blocks, as shown and as run: read without
    rendering the page, which takes longer than most pages run."""
    fences = source.fences(body)
    return [code_of(f) for f in fences if f.language == "python"]


def code_of(fence: source.Fence) -> str:
    """A block with what it includes."""
    lines = []
    for line in fence.body:
        for include in source.includes_of(line):
            text = source.text_of(ROOT / include.path)
            if include.section:
                text = dedent(source.sections(text)[include.section])
            line = text.removesuffix("\n")
        lines.append(line)
    return "\n".join(lines).strip("\n") + "\n"


def program(body: str) -> str:
    """The page as one program."""
    return "\n".join(python_blocks(body))


def faults(text: str) -> Iterator[str]:
    """What may not stand in a page, a line for each fault."""
    lines, fence_count, in_fence = text.splitlines(), 0, False
    for number, line in enumerate(lines, 1):
        mark = line.strip().lstrip("> ")
        if not mark.startswith(("```", "~~~")):
            continue
        if in_fence and mark == "```":
            in_fence = False
        elif not in_fence and (match := opened(mark)):
            in_fence, fence_count = True, fence_count + 1
            title = match["title"] or ""
            following = "".join(lines[number : number + 1])
            if title.endswith(".py") and f'"{title}' not in following:
                yield f"line {number}: the block is not of {title}, its title"
        else:
            languages = f"{', '.join(LANGUAGES)}, without options"
            yield f"line {number}: {mark!r} is no fence of {languages}"
    if in_fence:
        yield "the last fence is never closed"
    page = render(front_matter_of(text)[0], expand=False)
    if len(page.blocks) != fence_count:
        yield f"{fence_count} fences written, {len(page.blocks)} rendered"
    if len(re.findall(r"(?i)<pre\b", page.html)) != len(page.blocks):
        yield "a block that is no fence: indented code or raw HTML"
    if re.search(r'(?i)class="[^"]*highlight', page.html):
        yield "code in raw HTML: write a fence"
    if "--8&lt;--" in page.html:
        yield "an include outside a fence"
    for block in page.blocks:
        if block.language == "text" and "import " in block.text:
            yield f"Python as text: {block.text!r}"
        for line in block.text.splitlines():
            if block.language == "python" and not INCLUDE.fullmatch(line):
                found = [n for n, text in enumerate(lines, 1) if line in text]
                yield (
                    f"line {found[0]}: {line!r} is no include from attnref or "
                    'tests, like --8<-- "attnref/core/softmax.py:softmax"'
                )
