"""Notes on the lines of a block: each at its line, and none in the code."""

import inspect
import re

import pytest

from sitekit import ROOT, adapter
from sitekit.markdown import notes, pages
from tests.kit.pages import PAGES
from tests.variants import LAYERS

BLOCK = re.compile(
    r'^```python title="attnref/plain/(\w+)\.py"\n.*?^```\n+::: notes\n\n'
    r"((?:- [^\n]+\n)+)",
    re.M | re.S,
)
FOLDED = re.compile(r'^ +```python title="attnref/plain/(\w+)\.py"', re.M)


def noted(path):
    """The notes of a page: of each plain form the pieces of its code."""
    return {
        form: re.findall("^- `(.+?)`[:：]", items, re.M)
        for form, items in BLOCK.findall(pages.body_of(path))
    }


@pytest.mark.whole
def test_each_plain_form_has_notes_on_the_page_that_explains_it():
    by_language = {
        language: {
            form: pieces
            for path in PAGES
            if path.is_relative_to(ROOT / "docs" / language)
            for form, pieces in noted(path).items()
        }
        for language in ("en", "zh")
    }
    forms = {f.stem for f in ROOT.glob("attnref/plain/[!_]*.py")}
    without = {  # of layers that no page explains yet
        inspect.getmodule(each.layer).__name__.rpartition(".")[2]
        for each in LAYERS.values()
        if not each.page
    }
    for path in PAGES:  # and what is told by its difference from another
        without.update(FOLDED.findall(pages.body_of(path)))
    assert forms - without <= by_language["en"].keys() <= forms
    assert all(3 <= len(pieces) <= 8 for pieces in by_language["en"].values())
    assert by_language["en"] == by_language["zh"]


def html_of(code, items):
    lines = "".join(f"<li><code>{piece}</code>: why</li>" for piece in items)
    return (
        '<div class="language-python highlight"><span class="filename">'
        f"attnref/plain/x.py</span><pre><code>{code}\n</code>"
        f'</pre><button class="copy"></button></div>\n{notes.COMMENT}\n'
        f"<ul>\n{lines}\n</ul>"
    )


CODE = 'a = <span class="mi">1</span>\nb = a &lt; 2\na = b'


def test_a_mark_at_the_end_of_a_line_leads_to_its_note():
    made = notes.place(html_of(CODE, ["a = 1", "a &lt; 2"]), "page.md", "en")
    (code,) = re.findall("<code>(a =.*?)</code></pre>", made, re.S)
    assert re.sub("<a [^>]*></a>", "", code) == f"{CODE}\n"
    marks = re.findall('id="(mark-x-.)" href="#(note-x-.)"', code)
    assert marks == [(f"mark-x-{n}", f"note-x-{n}") for n in (1, 2)]
    assert ['id="mark' in line for line in code.split("\n")] == [1, 1, 0, 0]
    for mark, note in marks:
        assert made.count(f'id="{note}"') == made.count(f'="#{mark}"') == 1


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (["a = 3"], r"page.md.*attnref/plain/x.py: `a = 3`.*on \[\]"),
        (["a"], r"`a` .*on \[1, 2, 3\]"),
        (["= a", "a = 1"], "`a = 1` is not below"),
        (["a</code> and <code>b"], "is no note"),
    ],
)
def test_a_note_on_code_that_is_not_there_once_stops_the_build(items, why):
    with pytest.raises(adapter.BuildError, match=why):
        notes.place(html_of(CODE, items), "page.md", "en")
    with pytest.raises(adapter.BuildError, match="not below a block"):
        notes.place(f"<p>x</p>\n{notes.COMMENT}\n", "page.md", "en")


PLACES = """() => [...document.querySelectorAll('code .mark')].map(mark => {
  const note = document.querySelector(mark.hash + ' p'), box = e =>
    (({top, bottom, left, right}) => ({top, bottom, left, right}))(
      e.getBoundingClientRect());
  return {mark: box(mark), note: box(note),
    block: box(mark.closest('.highlight'))};
})"""


@pytest.mark.parametrize("path", ["layers/gqa/", "zh/core/flash/"])
def test_notes_stand_beside_their_lines_or_below_the_block(
    visit, address, path
):
    wide = visit(address + path).evaluate(PLACES)
    assert len(wide) == 8
    below = 0
    for place in wide:
        mark, note, block = place["mark"], place["note"], place["block"]
        assert block["right"] < note["left"], "in the margin"
        assert note["right"] < 1440, "on the screen"
        assert mark["right"] < block["right"], "the code need not scroll"
        line = mark["top"] - 4
        assert note["top"] >= max(line, below), "none above its line"
        assert note["top"] <= max(line + 8, below + 1), "or later than needed"
        below = note["bottom"]
    narrow = visit(address + path, width=390)
    below = 0
    for place in narrow.evaluate(PLACES):
        assert place["note"]["top"] >= max(place["block"]["bottom"], below)
        assert 0 <= place["mark"]["left"] <= 16, "in sight of what scrolls"
        below = place["note"]["bottom"]
    mark = narrow.locator("code .mark").nth(4)
    mark.press("Enter")
    assert narrow.url.endswith(mark.get_attribute("href"))
    narrow.keyboard.press("Tab")  # the way back is the note's first link
    narrow.keyboard.press("Enter")
    assert narrow.url.endswith(f"#{mark.get_attribute('id')}")
