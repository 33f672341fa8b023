"""The catalogue of mistakes, as its pages tell it."""

import html
import re

import pytest

from attnref.mistakes.catalogue import (
    PAGES,
    SYMPTOMS,
    Lines,
    catalogue,
    files,
)
from attnref.mistakes.tasks import TASKS
from sitekit import mistakes, pages
from tests.kit import sampled

ROOTS = {"en": "", "zh": "zh/"}
each_language = pytest.mark.parametrize("language", ROOTS)


@pytest.fixture(scope="module")
def entries(site):
    """By language: the page and the HTML of each entry, by its id."""
    found = {}
    for language, root in ROOTS.items():
        for page in set(PAGES.values()):
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


@pytest.mark.parametrize("language", sampled(ROOTS, ["zh"]))
def test_an_entry_says_all_that_the_catalogue_does(entries, language):
    for name, mistake in catalogue().items():
        page, part = entries[language, name]
        text = html.unescape(re.sub(r"<[^>]+>", "", part))
        assert getattr(mistake.title, language) in text.replace("¶", "")
        assert "{" not in text.partition("attnref/")[0], "a number is missing"
        for lines in mistake.lines:
            for line in mistakes.diff(lines).splitlines():
                assert line.rstrip() in text, (name, line)
        for address in mistake.found:
            assert f'href="{address}"' in part
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
    deeper = Lines("core.sdpa", "    a\n", "    a\n  b\n  c\n")
    assert mistakes.diff(deeper) == "   a\n-b\n-c"
    other = Lines("core.sdpa", "ab = cd\n", "a = c\nab = cde\n")
    assert mistakes.diff(other) == "-a = c\n-ab = cde\n+ab = cd"
    numbers = mistakes.torch.tensor([0.125, 4096, 1234.56, float("nan")])
    assert mistakes.number(numbers) == "0.125, 4,096, 1.23e+03, nan"


def test_a_source_is_named_by_its_thread_or_its_repository():
    github = "https://github.com/a/b"
    named = {
        f"{github}/issues/36": "a/b #36",
        f"{github}/pull/6": "a/b #6",
        f"{github}/blob/448aff/c.md": "a/b",
        "https://www.example.org/c/1": "example.org",
    }
    for address, name in named.items():
        assert mistakes.source(address) == f"[{name}]({address})"


@each_language
def test_each_file_of_mistakes_has_a_page(language):
    told = [
        (name, pages.stem_of(path))
        for path in pages.markdown_files(language)
        for names in mistakes.ENTRIES.findall(pages.body_of(path))
        for name in names.split()
    ]
    assert sorted(told) == sorted(PAGES.items())
    assert PAGES.keys() == files().keys()


def test_the_exercises_are_listed(site):
    for root, language in (("", "en"), ("zh/", "zh")):
        path = site.folder / root / "mistakes/check/index.html"
        text = html.unescape(path.read_text(encoding="utf-8"))
        for name, asked in TASKS.items():
            assert f"<code>{name}</code>" in text
            assert getattr(asked.title, language) in text
            assert all(f"<code>{s}</code>" in text for s in asked.signatures)
