"""The catalogue of mistakes, as its pages tell it."""

import html
import re
from textwrap import dedent

import pytest
from playwright.sync_api import expect

import attnref
from attnref.judge import checker
from attnref.judge import solution as solution_file
from attnref.judge.catalogue import (
    PAGES,
    Lines,
    Plain,
    catalogue,
    mistakes_by_file,
)
from attnref.judge.exercises import EXERCISES
from attnref.judge.gradients import backward
from attnref.judge.tasks import TASKS, file_to_fill
from sitekit import ROOT, search
from sitekit.check import entries, exercise, find, mistakes
from sitekit.check.evidence import SYMPTOMS, evidence
from sitekit.markdown import pages, parity
from tests.kit import budget, sampled
from tests.kit.site import opened

ROOTS = {"en": "", "zh": "zh/"}
each_language = pytest.mark.parametrize("language", ROOTS)


@pytest.fixture(scope="module")
def listed(site):
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
def test_each_mistake_has_an_entry_and_nothing_else_has(listed, language):
    named = {name for its, name in listed if its == language}
    assert named == {*catalogue()}


@pytest.mark.parametrize("language", sampled(ROOTS, ["zh"]))
def test_an_entry_says_all_that_the_catalogue_does(listed, language):
    for name, mistake in catalogue().items():
        page, part = listed[language, name]
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
        right, wrong = mistakes.outputs(name)
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
def test_each_mistake_has_a_page_that_search_engines_read(site, language):
    """Title, lines, pictures, tests, where it was met, and what it concerns."""
    root = site.folder / ROOTS[language]
    for name, mistake in catalogue().items():
        path = root / "mistakes" / name / "index.html"
        text = path.read_text(encoding="utf-8")
        assert "noindex" not in text and "of-mistake" not in text
        head, _, body = text.partition("<article")
        body = body.partition("</article>")[0]
        title = html.escape(getattr(mistake.title, language))
        symptom = getattr(SYMPTOMS[evidence()[name].symptom], language)
        (tag,) = re.findall("<title>(.*) - attnref</title>", head)
        assert tag.lower().startswith(symptom.lower()) and tag.endswith(title)
        assert f'<h1 id="{name}">{title}</h1>' in body
        plain = html.unescape(re.sub(r"<[^>]+>", "", body))
        for lines in mistake.variants[0]:
            for line in mistakes.diff(lines).splitlines():
                assert line.rstrip() in plain, (name, line)
        right, wrong = mistakes.outputs(name)
        cells = (right.dim() == 2) * (2 - isinstance(wrong, str))
        assert body.count("class=thumbnail") == cells
        for test in mistakes.kills()[name]["tests"]:
            assert test.partition("[")[0] in body
        for address in evidence()[name].met:
            assert f'href="{address}"' in body
        links = {*re.findall(r'href="(\.\.[^"]*)"', body)}
        page = PAGES[entries.subject_of()[name]].rpartition("/")[2]
        assert f"../{page}/#{name}" in links
        assert {f"../{other}/" for other in entries.siblings(name)} <= links
        for other in entries.exercises().get(name, [])[:6]:
            assert f"../../{exercise.places()[other]}/#exercise" in links
        twin = {"en": "zh/", "zh": "../"}[language]
        assert f'href="../../{twin}mistakes/{name}/"' in head + text


def test_a_page_names_the_models_with_the_part_that_is_wrong():
    def named(id):
        models = entries.concerned(id)
        return models if models is None else {model.id for model in models}

    every = {model.id for model in entries.released().values()}
    assert named("softmax-overflow") is None and named("alibi-sign") == set()
    sinks = named("sinks-scaled")
    assert "gpt-oss-20b" in sinks and len(sinks) < len(every) / 4
    assert "deepseek-v3" in named("absorbed-scale")
    assert "gemma-2-9b" in named("softcap-left-out") < every
    assert "llama-3-8b" in named("group-found-by-number")


@each_language
def test_each_mistake_is_listed_below_its_symptom(site, language):
    path = site.folder / ROOTS[language] / "mistakes/find-your-bug/index.html"
    article = path.read_text(encoding="utf-8").partition("</article>")[0]
    parts = re.split(r'<h3 id="', article.partition('<h2 id="all"')[2])[1:]
    below = {part.split('"')[0]: part for part in parts}
    assert [*below] == [*SYMPTOMS]
    for mistake in catalogue().values():
        link = f'href="../{mistake.id}/"'
        (its,) = (key for key, part in below.items() if link in part)
        assert its == evidence()[mistake.id].symptom


# What one sees, in words that are in no title, and an entry that is meant.
SEEN = {
    "loss goes to zero": "causal-sees-next",
    "bf16": "rope-half-precision",
    "left pad": "positions-count-pads",
    "Half but found Float": "softmax-stays-float32",
    "expected scalar type Float but found BFloat16": "softmax-stays-float32",
    "scores.masked_fill(~mask, -1e9)": "mask-minus-1e9",
}
FIRST = 3  # among so many one finds what one has asked for


def asked(language):
    """What finds an entry: its title, what one notices, what readers call it
    and the error that it raises; and the mistakes that are meant."""
    queries = []
    for name, mistake in catalogue().items():
        texts = [getattr(mistake.title, language)]
        texts.append(getattr(mistake.notice, language))
        texts += search.sections_of(PAGES[entries.subject_of()[name]]).get(
            name, []
        )
        _, wrong = mistakes.outputs(name)
        texts += wrong.splitlines()[:1] if isinstance(wrong, str) else []
        queries += [(text, name) for text in texts]
    return queries


@pytest.mark.parametrize("language", sampled(ROOTS, ["en", "zh"]))
def test_an_entry_is_among_the_first_for_what_one_would_type(
    visit, address, language
):
    page = visit(f"{address}{ROOTS[language]}mistakes/find-your-bug/?find=a")
    page.wait_for_function("globalThis.known")
    ask = """queries => queries.map(query =>
      findMistakes(query).slice(0, N).map(({id}) => id))""".replace("N", "9")
    queries = asked(language)
    found = page.evaluate(ask, [text for text, _ in queries])
    pairs = [*zip(queries, found, strict=True)]
    # Errors and what libraries say in common are raised by several.
    lost = [q for q, ids in pairs if q[1] not in ids[:FIRST]]
    assert len(queries) > 2 * len(catalogue())
    assert len(lost) <= 0.05 * len(queries), lost
    if language == "en":
        seen = page.evaluate(ask, [*SEEN])
        missed = {
            text: ids
            for (text, name), ids in zip(SEEN.items(), seen, strict=True)
            if name not in ids
        }
        assert missed == {}
    # What a symptom is called leads to mistakes with that symptom.
    names = [
        (text, key)
        for key, texts in search.sections_of(find.DOOR).items()
        for text in texts
        if key in SYMPTOMS
        and (language == "zh") == bool(re.search("[\u4e00-\u9fff]", text))
    ]
    results = page.evaluate(ask, [text for text, _ in names])
    symptoms = [{evidence()[x].symptom for x in ids} for ids in results]
    wrong = [
        name
        for name, its in zip(names, symptoms, strict=True)
        if name[1] not in its
    ]
    assert len(wrong) <= 0.05 * len(names), wrong


@pytest.mark.parametrize("language", ROOTS)
@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_the_field_and_all_symptoms_are_on_the_first_screen(
    visit, address, language, size
):
    page = visit(f"{address}{ROOTS[language]}mistakes/find-your-bug/")
    page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
    page.evaluate(budget.FORCE, "DejaVu Sans")  # the widest
    links = page.locator(".door nav a")
    assert links.count() == len(SYMPTOMS) == 10
    for part in (page.locator(".door input"), links.last):
        box = part.bounding_box()
        assert box["y"] > 0
        assert box["y"] + box["height"] <= size[1]


def test_entries_come_with_the_first_key_and_stay_in_the_address(
    visit, address
):
    page = visit(f"{address}mistakes/find-your-bug/")
    page.wait_for_load_state("networkidle")
    data = [url for url in page.urls if "known-mistakes" in url]
    cards = page.locator(".found")
    assert data == [] and cards.count() == 0
    page.locator(".door input").press_sequentially("loss goes to zero but")
    expect(cards.first).to_be_visible()
    assert page.url.endswith("?find=loss+goes+to+zero+but")
    assert cards.first.locator(".gd, .gi").count() > 1
    first = cards.first.locator("h3 a")
    assert first.get_attribute("href").startswith("../")
    titles = cards.locator("h3").all_inner_texts()
    page.reload()
    expect(cards.first).to_be_visible()
    assert cards.locator("h3").all_inner_texts() == titles
    page.locator(".door input").fill("zzz")
    expect(page.locator(".door output")).to_contain_text("No entry")
    assert cards.count() == 0
    page.locator(".door input").fill("")
    expect(page.locator(".door output")).to_be_empty()
    assert "?" not in page.url


def test_a_symptom_is_chosen_by_key_and_questions_narrow_it(visit, address):
    page = visit(f"{address}mistakes/find-your-bug/")
    page.locator(".door input").focus()
    for _ in range(4):  # future, heads, inert, nan
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    cards = page.locator(".found")
    expect(cards.first).to_be_visible()
    assert page.url.endswith("#nan")
    nan = [x for x in evidence() if evidence()[x].symptom == "nan"]
    said = page.locator(".door output")
    expect(said).to_have_text(f"{len(nan)} of {len(catalogue())} mistakes")
    page.locator(".door .rest").click()
    assert cards.count() == len(nan)
    page.locator(".answers a").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".answers")).to_have_count(2)
    chosen = page.locator(".answers [aria-current]")
    assert chosen.count() == 1 and cards.count() < len(nan)
    chosen.press("Enter")  # the answer takes itself back
    expect(page.locator(".answers")).to_have_count(1)
    assert page.url.endswith("#nan")
    page.go_back()
    expect(page.locator(".answers")).to_have_count(2)
    page.go_back()
    expect(page.locator(".answers")).to_have_count(1)


def test_words_of_a_symptom_offer_it_and_its_answer_is_on_the_screen(
    visit, address
):
    page = visit(f"{address}mistakes/find-your-bug/")
    page.locator(".door input").fill("cached output differs from uncached")
    offered = page.locator(".asked .answers a")
    expect(offered).to_have_attribute("href", "#decoding")
    offered.click()
    expect(page.locator(".answers")).to_have_count(1)
    page.locator(".answers a").first.click()
    expect(page.locator(".answers")).not_to_have_count(1)
    page.wait_for_timeout(300)
    card = page.locator(".found").first.bounding_box()
    assert card["y"] + card["height"] / 2 < 900
    page.locator(".door input").fill("zzz")
    expect(page.locator(".asked")).to_be_hidden()


def test_each_answer_is_an_address(visit, address):
    page = visit(f"{address}mistakes/find-your-bug/#worse-scale")
    cards = page.locator(".found h3 a")
    expect(cards.first).to_be_visible()
    hrefs = "all => all.map(e => e.getAttribute('href'))"
    likely = {f"../{x}/" for x in answer_of("worse", "scale")}
    assert likely and {*cards.evaluate_all(hrefs)} <= likely
    page.evaluate("location.hash = 'heads-layer-rows'")
    likely = {f"../{x}/" for x in answer_of("heads", "layer-rows")}
    name = next(iter(likely))
    expect(page.locator(f".found a[href='{name}']")).to_be_visible()
    assert {*cards.evaluate_all(hrefs)} == likely


def answer_of(symptom, word):
    """The mistakes to which an answer leads."""

    def below(question):
        if "likely" in question:
            return [*question["likely"]]
        return [x for answer in question["answers"] for x in below(answer)]

    def walk(question):
        for answer in question.get("answers", ()):
            if answer["if"][0] == word:
                return below(answer)
            if found := walk(answer):
                return found

    return walk(find.tree()[symptom])


def test_without_a_script_the_symptoms_lead_to_lists(chromium, address):
    with opened(
        chromium,
        f"{address}mistakes/find-your-bug/",
        until="load",
        java_script_enabled=False,
    ) as page:
        assert not page.locator(".door input").is_visible()
        links = page.locator(".door nav a")
        for link in links.all():
            anchor = link.get_attribute("href")
            assert page.locator(f"h3{anchor} + details a").count() > 2


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


def test_a_mistake_of_two_parts_concerns_models_that_have_both():
    """Seventeen have MLA, and ten a gate."""
    models = entries.concerned("mla-output-gate-without-sigmoid")
    assert [model.id for model in models] == ["kimi-k3"]


def test_a_source_is_named_by_its_thread_or_its_repository():
    github = "https://github.com/a/b"
    named = {
        f"{github}/issues/36": "a/b #36",
        f"{github}/pull/6": "a/b #6",
        f"{github}/blob/448aff/c.md": "a/b",
        "https://www.example.org/c/1": "example.org",
    }
    for address, name in named.items():
        assert mistakes.source_link(address) == f"[{name}]({address})"


@each_language
def test_each_file_of_mistakes_has_a_page(language):
    got = {
        match[1]: pages.stem_of(path)
        for path in pages.markdown_files(language)
        for match in mistakes.ENTRIES.finditer(pages.body_of(path))
    }
    assert got == {
        m.id: PAGES[s] for s, held in mistakes_by_file().items() for m in held
    }
    assert PAGES.keys() == mistakes_by_file().keys()


def printed_solution(name):
    """The file that the page of an exercise prints as a solution: the code of
    a fold, or the file that it links, in which it may rename a function."""
    page = exercise.places()[name]
    body = pages.body_of(parity.twin(page, "en"))
    part = "\n".join(exercise.solution(name, body, f"{page}.md", "en"))
    if fold := re.search(r"```py\n(.*?)```", part, re.DOTALL):
        return dedent(fold[1])
    file = re.search(r"A solution: \[`([\w/.]+)`\]", part)[1]
    code = "".join(p.read_text() for p in (ROOT / "attnref").glob(f"*/{file}"))
    if renamed := re.search(r"with `(\w+)` renamed `(\w+)`", part):
        code = re.sub(rf"\b{renamed[1]}\b", renamed[2], code)
    return code


QUICK = "mha_cached", "mqa", "rope", "sdpa"  # of the others, in the audit


@pytest.mark.parametrize("name", sampled(TASKS, QUICK))
def test_what_a_page_prints_as_a_solution_passes(name, tmp_path):
    file = tmp_path / f"{name}.py"
    file.write_text(printed_solution(name), encoding="utf-8")
    solution = solution_file.module_of(str(file), TASKS[name].names)
    assert checker.check(name, solution).passed


@pytest.mark.parametrize("name", sampled(TASKS, ["mqa"]))
def test_the_file_named_beside_an_exercise_does_what_it_asks(name):
    file = exercise.module_of(name)
    form = next(f for f in EXERCISES[name].forms if file in f.modules)
    solution = form.make(attnref if form.package else Plain())
    assert checker.check(name, solution).passed


def test_a_solution_is_the_file_of_the_form_not_of_a_more_general_one():
    for name in ("mha", "mha_cached", "mqa", "gqa", "cross", "gated_delta"):
        assert exercise.module_of(name) == f"plain.{name}"


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
        assert file_to_fill(name, language).removesuffix("\n") in text
        assert f"attnref check {name} {name}.py" in text
        place = f"files/exercises/{name}.py"
        assert f'href="../../{place}" download>' in part
        written = (root / place).read_text(encoding="utf-8")
        assert written == file_to_fill(name, language)


def test_mistakes_of_the_backward_pass_are_in_the_language_of_the_page(site):
    for language, root in ROOTS.items():
        page = site.folder / root / "mistakes/known-answers/index.html"
        text = re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))
        for mistake in backward().values():
            title = getattr(mistake.title, language).replace("`", "")
            assert title in html.unescape(text)
