"""The catalogue of mistakes, as its pages tell it."""

import html
import re

import pytest
from playwright.sync_api import expect

from attnref.check.catalogue import (
    PAGES,
    Lines,
    catalogue,
    files,
)
from attnref.check.tasks import TASKS
from attnref.commands import check
from sitekit.check import exercise, mistakes
from sitekit.check.evidence import SYMPTOMS, evidence
from sitekit.markdown import pages
from tests.kit import sampled

ROOTS = {"en": "", "zh": "zh/"}
each_language = pytest.mark.parametrize("language", ROOTS)


@pytest.fixture(scope="module")
def entries(site):
    """By language: the page and the HTML of each entry, by its id."""
    result = {}
    for language, root in ROOTS.items():
        for page in set(PAGES.values()):
            path = site.folder / root / page / "index.html"
            text = path.read_text(encoding="utf-8")
            article = text.partition("</article>")[0]
            for part in re.split(r'(?=<h2 id=")', article)[1:]:
                name = re.match(r'<h2 id="([\w-]+)"', part)[1]
                assert (language, name) not in result
                result[language, name] = page, part
    return result


@each_language
def test_each_mistake_has_an_entry_and_nothing_else_has(entries, language):
    named = {name for its, name in entries if its == language}
    assert named == {*catalogue()}


@pytest.mark.parametrize("language", sampled(ROOTS, ["zh"]))
def test_an_entry_says_all_that_the_catalogue_does(entries, language):
    for name, mistake in catalogue().items():
        page, part = entries[language, name]
        text = html.unescape(re.sub(r"<[^>]+>", "", part))
        assert getattr(mistake.title, language) in text.replace("¶", "")
        assert "{" not in text.partition("attnref/")[0], "a number is missing"
        for lines in mistake.variants[0]:
            for line in mistakes.diff(lines).splitlines():
                assert line.rstrip() in text, (name, line)
        for address in evidence()[name].met:
            assert f'href="{address}"' in part
        caught = mistakes.kills()[name]
        for test in caught["tests"]:
            assert test.partition("[")[0] in text
        for prop in caught["properties"]:
            to = f"../{mistakes.TESTS.rpartition('/')[2]}/#{prop}"
            assert f'href="{to}"' in part
        right, wrong = mistakes.seen(name)
        drawn = right.dim() == 2 and not isinstance(wrong, str)
        cells = (right.dim() == 2) + drawn  # an error is shown as its words
        assert part.count("class=thumbnail") == part.count("<svg") == cells
        _, _, pair = part.partition('class="pair"')
        pair, _, rest = pair.partition("<details")
        assert f'data-to="../{name}/"' in rest
        if isinstance(wrong, str):
            assert html.escape(wrong.splitlines()[0]) in pair
        else:
            off = "class=[cd]" if drawn else "class=off"
            first, _, second = pair.partition("</div>")
            assert re.search(off, first)
            assert not re.search(off, second)


@each_language
def test_the_address_of_a_mistake_leads_to_its_entry(site, entries, language):
    for name in catalogue():
        folder = site.folder / ROOTS[language] / "mistakes"
        text = (folder / name / "index.html").read_text(encoding="utf-8")
        (place,) = re.findall('href="../([^"]+)"', text)[:1]
        page, _, id = place.partition("#")
        assert f"mistakes/{page}" == f"{entries[language, name][0]}/"
        assert id == name and "og:" not in text


@each_language
def test_each_mistake_stands_below_its_symptom(site, language):
    path = site.folder / ROOTS[language] / "mistakes/by-symptom/index.html"
    article = path.read_text(encoding="utf-8").partition("</article>")[0]
    parts = re.split(r'<h2 id="', article)[1:]
    below = {part.split('"')[0]: part for part in parts}
    assert [*below] == [*SYMPTOMS]
    for mistake in catalogue().values():
        (its,) = (k for k, part in below.items() if f'#{mistake.id}"' in part)
        assert its == evidence()[mistake.id].symptom


@pytest.mark.parametrize("language", sampled(ROOTS, ["zh"]))
def test_letters_narrow_the_list(visit, address, language):
    page = visit(f"{address}{ROOTS[language]}mistakes/by-symptom/")
    field, links = page.locator(".filter input"), ".filter ~ ul a"
    field.press_sequentially("window a")
    titled = {
        f"#{m.id}"
        for m in catalogue().values()
        if all(
            word in (getattr(m.title, language) + m.id).lower()
            for word in ("window", "a")
        )
    }
    shown = (
        "all => all.filter(e => e.checkVisibility()).map(e => e.hash ?? e.id)"
    )
    hashes = page.eval_on_selector_all(links, shown)
    assert titled <= {*hashes} and len(hashes) < len(catalogue()) / 4
    heads = page.eval_on_selector_all("article h2", shown)
    assert {*heads} == {evidence()[h[1:]].symptom for h in hashes}
    count = f"{len(hashes)} / {len(catalogue())}"
    expect(page.locator(".filter output")).to_have_text(count)
    assert page.url.endswith("?filter=window+a")
    page.reload()
    assert page.eval_on_selector_all(links, shown) == hashes
    field.fill("")
    assert len(page.eval_on_selector_all(links, shown)) == len(catalogue())
    assert "?" not in page.url
    # Nothing is left where nothing is found: no heading, no question.
    field.fill("zzz")
    expect(page.locator(".filter output")).to_contain_text("0 / ")
    assert page.eval_on_selector_all(".filter ~ *", shown) == []


# What one sees, in words that are in no title, and an entry that is meant.
SEEN = {
    "loss goes to zero": "causal-sees-next",
    "use_cache": "positions-restart",
    "logits transformers": "positions-count-pads",
    "bf16": "rope-half-precision",
    "left pad": "positions-count-pads",
    "garbage": "causal-top-left",
    "compile": "causal-top-left",
    "perplexity": "softcap-left-out",
    "Half but found Float": "softmax-stays-float32",
    "胡言乱语": "causal-top-left",
}


def test_the_list_is_found_by_what_one_sees(visit, address):
    page = visit(f"{address}mistakes/by-symptom/")
    for words, meant in SEEN.items():
        page.locator(".filter input").fill(words)
        assert page.locator(f".filter ~ ul a[href$='#{meant}']").is_visible()


def test_each_answer_is_an_address(visit, address):
    page = visit(f"{address}mistakes/find-your-bug/#worse-scale")
    entries = "details:has(> summary > #{}) > ul a"
    expect(page.locator(entries.format("worse-scale")).first).to_be_visible()
    assert page.locator("details[open]").count() == 3
    page.locator("#worse-sum").click()
    assert page.url.endswith("#worse-sum")
    page.evaluate("location.hash = 'heads-layer-rows'")
    first = page.locator(entries.format("heads-layer-rows")).first
    expect(first).to_be_visible()


def test_a_diff_stands_at_the_margin():
    lines = Lines("core.sdpa", ("     a", "-    b", "-", "+      c"))
    assert mistakes.diff(lines) == " a\n-b\n-\n+  c"
    assert (lines.right, lines.wrong) == (
        "    a\n      c\n",
        "    a\n    b\n\n",
    )
    numbers = mistakes.torch.tensor([0.125, 4096, 1234.56, float("nan")])
    assert mistakes.number(numbers) == "0.125, 4,096, 1.23e+03, nan"
    assert mistakes.number(numbers[:2], "zh") == "0.125、4,096"


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
    got = {
        match[1]: pages.stem_of(path)
        for path in pages.markdown_files(language)
        for match in mistakes.ENTRIES.finditer(pages.body_of(path))
    }
    assert got == {m.id: PAGES[s] for s, held in files().items() for m in held}
    assert PAGES.keys() == files().keys()


@each_language
def test_each_exercise_is_listed_and_on_a_page_that_explains(site, language):
    """With the file that the command writes."""
    root = site.folder / ROOTS[language]
    listed = html.unescape((root / "learn/exercises/index.html").read_text())
    on = exercise.places()
    assert sorted(on) == sorted(TASKS) and len(on) > 20
    for name, stem in on.items():
        assert f'href="../../{stem}/#exercise"><code>{name}</code>' in listed
        assert getattr(TASKS[name].title, language) in listed
        assert all(
            f"<code>{s}</code>" in listed for s in TASKS[name].signatures
        )
        page = root / stem / "index.html"
        _, _, part = page.read_text().partition('<h2 id="exercise"')
        part = part.partition("<h2")[0]
        text = html.unescape(re.sub(r"<[^>]+>", "", part))
        assert check.stubbed(name, "-", language) in text
        assert f"attnref check {name} {name}.py" in text
        place = f"files/exercises/{name}.py"
        assert f'href="../../{place}" download>' in part
        written = (root / place).read_text(encoding="utf-8")
        assert written == check.stubbed(name, "-", language) + "\n"
