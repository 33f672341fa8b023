"""HTML from templates: one way to write texts, tables and drawings."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown import Markdown
from markdown.blockprocessors import ParagraphProcessor
from markdown.util import Registry
from markupsafe import Markup

from attnref.words import Text


class Word(NamedTuple):
    """A cell that is looked up in the page's own words, in which {0} is the
    first of its numbers."""

    key: str
    numbers: tuple[str, ...] = ()


class Sorted(NamedTuple):
    """A cell that a script sorts by its value."""

    value: float
    text: str
    kind: str = ""

    @property
    def is_read(self) -> bool:
        """Whether the script can read the value from the text."""
        text = re.sub(r"^\[(.*)\]\(.*\)$", r"\1", self.text)
        return bool(re.fullmatch(r"–|[\d,.]+( ?[KMGT]?i?B)?", text))


# A list: by lines. A Text: in the language of the page.
Cell = str | Word | Sorted | Text | list[str] | list[str | Word]
Row = list[Cell]
Rows = list[Row]


class Words(dict[str, str]):
    """The words of a page, which know what was asked for."""

    def __init__(self, words: dict[str, Any] | None):
        super().__init__({k: str(text) for k, text in (words or {}).items()})
        self.used: set[str] = set()

    def __getitem__(self, key: str) -> str:
        self.used.add(key)
        return self.get(key, "")

    def check(self, name: str = "words") -> None:
        """All are there and none too many, once everything is written."""
        if missing := self.used - set(self):
            raise ValueError(f"{name} are missing: {sorted(missing)}")
        if extra := set(self) - self.used:
            raise ValueError(f"{name} never used: {sorted(extra)}")


@cache
def _markdown() -> Markdown:
    """The site's, for what stands in a line: no blocks, no HTML."""
    md = Markdown(
        extensions=["pymdownx.arithmatex", "sitekit.markdown.mathml"],
        extension_configs={"pymdownx.arithmatex": {"generic": True}},
    )
    md.preprocessors = Registry()
    md.parser.blockprocessors = Registry()
    paragraph = ParagraphProcessor(md.parser)
    md.parser.blockprocessors.register(paragraph, "paragraph", 10)
    md.inlinePatterns.deregister("html")
    return md


# Most cells: numbers, or a few words, which Markdown leaves as they are.
PLAIN = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z.,;%()/+=-]| (?=[0-9A-Za-z]))*")


@cache
def inline(text: object) -> Markup:
    """With `code`, $formulas$ and [links](to); all else is escaped."""
    if PLAIN.fullmatch(str(text)):
        return Markup(text)
    html = _markdown().reset().convert(str(text))
    return Markup(html.removeprefix("<p>").removesuffix("</p>"))


def filled(text: str, numbers: Sequence[str]) -> str:
    """Put each number in the place of `{0}`, `{1}`, ..., once or more."""
    for n, number in enumerate(numbers):
        if text and f"{{{n}}}" not in text:
            raise ValueError(f"{{{n}}}, {number}, is missing in {text!r}")
        text = text.replace(f"{{{n}}}", number)
    return text


def plain(text: object) -> str:
    """A text for `inline` as any Markdown reads it: < begins no tag."""
    literal = r"(`[^`]*`|\$[^$]*\$)|<"
    return re.sub(literal, lambda match: match[1] or "&lt;", str(text))


def as_markdown(head: list[object], rows: Rows, words: Words) -> str:
    """A table of Markdown."""

    def text(cell: object) -> str:
        if isinstance(cell, list):
            return "<br>".join(map(text, cell))
        if isinstance(cell, Word):
            cell = filled(words[cell.key], cell.numbers)
        elif isinstance(cell, Sorted):
            cell = cell.text
        return plain(cell).replace("|", r"\|")

    lines: list[Sequence[object]] = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(text, row))} |" for row in lines)


@cache
def _templates() -> Environment:
    env = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["inline"] = inline
    env.filters["filled"] = filled
    env.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return env


def render(name: str, **context: Any) -> str:
    """Fill a template. Columns have heads, and no word of the page is left."""
    head = context.get("head", ())
    for row in context.get("rows", ()):
        if len(row) != len(head):
            raise ValueError(f"{len(head)} heads for {len(row)} columns")
    html = _templates().get_template(f"{name}.html").render(context)
    if "words" in context:
        context["words"].check()
    return html
