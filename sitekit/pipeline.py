"""The way of a page from its Markdown to the HTML of the site, in order.

MkDocs reads the page. The passes of MARKDOWN turn what only this site knows
into ordinary Markdown. MkDocs renders that with the extensions of mkdocs.yml,
which draw the fences (sitekit/markdown/fences.py), turn formulas into MathML
and trim the markup. The passes of HTML finish the article, which the search
then reads; the notebook is made of the Markdown, as the passes of MARKDOWN left
it. The passes of ARTICLE add what neither shall hold, and MkDocs puts the
article into the theme.

A pass is a function of the text and of its context. Its docstring says in a
line what it looks for and what it leaves there; the grammar itself is a regular
expression at the top of the file that it calls.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sitekit import adapter, api, moved, nav
from sitekit import files as downloads
from sitekit.check import entries, exercise, mistakes
from sitekit.markdown import (
    checks,
    docstrings,
    folds,
    glossary,
    legend,
    notes,
    numbers,
    ran,
    source,
)
from sitekit.released import released


class Context(NamedTuple):
    """What a pass may ask about the page and its site."""

    page: Any  # MkDocs' own
    config: Any
    site: downloads.Site
    navigation: Sequence[Any]  # all pages of this language, in order

    @property
    def path(self) -> Path:
        return Path(self.page.file.abs_src_path)

    @property
    def src_uri(self) -> str:
        return str(self.page.file.src_uri)  # layers/gqa.md

    @property
    def stem(self) -> str:
        return self.src_uri.removesuffix(".md")

    @property
    def language(self) -> str:
        return str(self.config.theme["language"])


Pass = Callable[[str, Context], str]


def run(passes: Sequence[Pass], text: str, context: Context) -> str:
    for replace in passes:
        text = replace(text, context)
    return text


def read(page: Any, language: str) -> str:
    """The Markdown of a page; that of a model stands in no file."""
    if adapter.is_model_page(page):
        return released.markdown(page.file.src_uri.removesuffix(".md"), language)
    return source.text_of(Path(page.file.abs_src_path))


def fill_numbers(text: str, context: Context) -> str:
    """`{{weights:.1f}}` becomes a number; a true `{{inherits(A, B)}}` goes."""
    if adapter.is_model_page(context.page):
        return text
    return numbers.fill(text, context.path)


def fill_wheel(text: str, context: Context) -> str:
    """`attnref-VERSION-py3-none-any.whl` becomes what pip is given."""
    return downloads.fill_wheel(text)


def fill_versions(text: str, context: Context) -> str:
    """`{ran}`, `{torch}`, `{transformers}`: with what the page last ran."""
    return ran.fill(text, context.language)


def count_lines(text: str, context: Context) -> str:
    """`??? note "The layer, {lines} lines"`: how much code the fold holds."""
    return folds.count_lines(text, context.config)


def list_pages(text: str, context: Context) -> str:
    """`::: pages Variants` becomes a list of the pages of that section."""
    return nav.list_pages(text, context.page, context.navigation, context.config)


def show_models(text: str, context: Context) -> str:
    """`::: released ID` becomes the file of that model, with a bar."""
    return released.show_files(text, context.src_uri, context.language, context.site.urls)


def mark_notes(text: str, context: Context) -> str:
    """`::: notes` becomes a comment in the HTML, which `place_notes` finds."""
    return notes.mark(text)


def document_names(text: str, context: Context) -> str:
    """`::: attnref.core.masks: dense, Rule` documents these two names."""
    return api.list_names(text, context.language)


def list_checks(text: str, context: Context) -> str:
    """`::: checks house` becomes a table of the tests in that folder."""
    return checks.list_tests(text, context.language, docstrings.chinese())


def set_exercises(text: str, context: Context) -> str:
    """`::: exercise gqa` becomes a section with what is to be written."""
    return exercise.write_exercises(text, context.src_uri, context.language)


def describe_mistakes(text: str, context: Context) -> str:
    """`::: mistake ID` becomes its entry; `::: marked` and `::: shapes` a
    sentence, `::: symptoms` a list, `::: exercises` a table; `::: door` and each
    picture a comment, which `draw_mistakes` finds."""
    return mistakes.write_entries(text, context.src_uri, context.language)


MARKDOWN: tuple[Pass, ...] = (
    fill_numbers,
    fill_wheel,
    fill_versions,
    count_lines,
    list_pages,
    show_models,
    mark_notes,
    document_names,
    list_checks,
    set_exercises,
    describe_mistakes,
)


def number_folds(html: str, context: Context) -> str:
    """`<details>`: the second one of a section gets the address `#ID.2`."""
    return folds.add_addresses(html)


def place_notes(html: str, context: Context) -> str:
    """`<!-- notes -->` and its list: each note goes to its line of the code."""
    return notes.place(html, context.src_uri, context.language)


HTML: tuple[Pass, ...] = (number_folds, place_notes)


def draw_mistakes(html: str, context: Context) -> str:
    """`<!-- diffs of ID -->` becomes the lines and the pictures of that mistake,
    and the comments like it (others, share, all, door) become HTML too."""
    link = partial(entries.address_of, context.config)
    return mistakes.with_pictures(html, context.language, link)


def link_terms(html: str, context: Context) -> str:
    """The first use of a term of the glossary leads there."""
    return glossary.link_terms(html, context.stem, context.language, context.site.urls)


def offer_files(html: str, context: Context) -> str:
    """Code of `attnref/` gets a bar and links, `files:gqa.py` an address."""
    return downloads.add_links(html, context.path, context.site)


def add_legend(html: str, context: Context) -> str:
    """The end of a page that explains code gets its letters of shapes."""
    return html + legend.card(html, context.stem, context.language, context.site.urls)


def lead_on(html: str, context: Context) -> str:
    """Sections that have left the page get a script that leads after them."""
    return html + moved.script(context.stem, context.config)


ARTICLE: tuple[Pass, ...] = (draw_mistakes, link_terms, offer_files, add_legend, lead_on)
