"""Terms are explained once, and the first use of one leads there."""

import re

import pytest

from sitekit import ROOT
from sitekit.markdown import glossary
from sitekit.markdown.pages import body_of, markdown_files, stem_of
from sitekit.markdown.parity import twin
from tests.kit.pages import PAGES, built
from tests.kit.search import entries

URLS = {"core/x": "core/x/", glossary.PLACE: "learn/glossary/"}
LINK = re.compile(r'<a class="term" href="([^"]+)">([^<]+)</a>')


def linked(html, language="en"):
    after = glossary.link_terms(html, "core/x", language, URLS)
    assert re.sub(LINK, r"\2", after) == html, "only links are added"
    return LINK.findall(after)


def test_the_first_use_in_prose_is_a_link_and_nothing_else_is():
    unlinked = """
    <h2>Queries</h2><pre><code>a query</code></pre><code>query</code>
    <a href="/">the query</a><table><tr><td>query</td></tr></table>
    <details><summary>query</summary></details><div>query</div>
    <svg><text>query</text></svg><p><math>query</math></p>
    """
    assert linked(unlinked) == []
    (link,) = linked(
        f"{unlinked}<p>No subquery or query.py: Queries and a query.</p>"
    )
    assert link == ("../../learn/glossary/#query", "Queries")
    (link,) = linked("<ul><li>a causal mask, one causal mask</li></ul>")
    assert link[1] == "causal mask", "the longest term"


def test_a_chinese_term_of_one_character_is_no_part_of_a_word():
    assert linked("<p>关键在于数值，键值头。</p>", "zh") == []
    links = linked("<p>键和值，因果掩码，键、值。</p>", "zh")
    assert [text for _, text in links] == ["键", "因果掩码"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("分组查询注意力（GQA）靠共用键值头", "分组查询注意力"),
        ("多查询注意力，查询头，多查询", "多查询注意力"),
        ("滑动窗口注意力，门控注意力", "滑动窗口注意力"),
        ("稀疏注意力和全注意力", "稀疏注意力"),
        ("对一段键做注意力", "注意力"),
    ],
)
def test_a_compound_is_one_link_or_none(text, words):
    assert [t for _, t in linked(f"<p>{text}</p>", "zh")] == words.split()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_each_term_has_a_place_and_is_explained_elsewhere(language):
    every = glossary.terms(language)
    items = re.findall(
        "^- ", body_of(twin(glossary.PLACE, language)), re.MULTILINE
    )
    assert len(every) > len(items) > 45
    assert len({term.id for term in every.values()}) == len(items)
    stems = {stem_of(path) for path in markdown_files(language)}
    assert {term.page for term in every.values()} <= stems
    # What letters mean is on the page of conventions alone.
    assert not [name for name in every if re.fullmatch("[a-z]{1,2}", name)]


def test_links_are_on_the_pages_and_not_in_the_index(site):
    of_terms = 0
    for path in PAGES:
        html = built(site, path).read_text(encoding="utf-8")
        links = LINK.findall(html)
        of_terms += len(links)
        assert len(links) == len({to for to, _ in links}) < 45, path
        added = len("".join(link[0] for link in LINK.finditer(html)))
        assert added < 2500, path.relative_to(ROOT)
    assert of_terms > 500
    for language in ("en", "zh"):
        for entry in entries(site.folder, language):
            assert 'class="term"' not in entry["text"]
