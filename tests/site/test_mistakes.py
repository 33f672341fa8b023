"""The catalogue of mistakes, as its pages tell it."""

import html
import re

import pytest

from attnref.mistakes.catalogue import SYMPTOMS, Lines, catalogue, files
from sitekit import mistakes, pages

ROOTS = {"en": "", "zh": "zh/"}
each_language = pytest.mark.parametrize("language", ROOTS)


@pytest.fixture(scope="module")
def entries(site):
    """By language: the page and the HTML of each entry, by its id."""
    found = {}
    for language, root in ROOTS.items():
        for page in set(mistakes.places(language).values()):
            path = site.folder / root / page / "index.html"
            text = path.read_text(encoding="utf-8")
            article = text.partition("</article>")[0]
            for part in re.split(r'(?=<h2 id=")', article)[1:]:
                name = re.match(r'<h2 id="([\w-]+)"', part)[1]
                assert (language, name) not in found
                found[language, name] = page, part
    return found


@each_language
def test_each_mistake_has_an_entry_and_nothing_else_has(entries, language):
    named = {name for told, name in entries if told == language}
    assert named == {*catalogue()}


@each_language
def test_an_entry_says_all_that_the_catalogue_does(entries, language):
    for name, mistake in catalogue().items():
        page, part = entries[language, name]
        text = html.unescape(re.sub(r"<[^>]+>", "", part))
        assert getattr(mistake.title, language) in text.replace("¶", "")
        assert "{" not in text.partition("attnref/")[0], "a number is missing"
        for lines in mistake.lines:
            for line in mistakes.diff(lines).splitlines():
                assert line in text, (name, line)
        for address in mistake.found:
            assert address == "notes" or f'href="{address}"' in part
        for test in mistake.tests:
            assert test.partition("[")[0] in text
        law = mistake.law.__name__
        assert f'href="../{mistakes.TESTS.rpartition("/")[2]}/#{law}"' in part
        right, wrong = mistakes.seen(name)
        drawn = right.dim() == 2 and not isinstance(wrong, str)
        assert part.count("<svg") == 2 * drawn, name


@each_language
def test_each_mistake_stands_below_its_symptom(site, language):
    path = site.folder / ROOTS[language] / "mistakes/by-symptom/index.html"
    article = path.read_text(encoding="utf-8").partition("</article>")[0]
    parts = re.split(r'<h2 id="', article)[1:]
    told = {part.split('"')[0]: part for part in parts}
    assert [*told] == [*SYMPTOMS]
    for mistake in catalogue().values():
        (found,) = (k for k, part in told.items() if f'#{mistake.id}"' in part)
        assert found == mistake.symptom


def test_a_diff_turns_the_wrong_lines_into_the_right_ones():
    lines = Lines("core.sdpa", "  a\n  b\n", "  a\n    c\n  b\n\n  d\n")
    assert mistakes.diff(lines) == " a\n-  c\n b\n-\n-d"
    assert mistakes.number(mistakes.torch.tensor([0.1251, 4096, 7e7])) == (
        "0.125, 4096, 7e+07"
    )


def test_each_file_of_mistakes_has_a_page():
    for language in ROOTS:
        assert mistakes.places(language).keys() == files().keys()
    held = [pages.stem_of(p) for p in pages.markdown_files("en")]
    assert mistakes.TESTS in held
