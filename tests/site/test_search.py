"""The search, asked in a browser what readers ask it.

What is right was decided before anything was tuned:

1. The name of a thing leads to its page: its abbreviation, its full name, its
   name in the other language, with or without hyphens and capitals. Pages say
   their names themselves, and each is asked: a new page needs no entry here.
2. A function or class leads to the page that shows its code, since that page
   explains it too; its entry in the API reference is among the first three.
3. A symptom or a question leads to the page whose section treats it. Where
   two pages treat it, both are right.
4. A released model leads to its own page, whatever else is asked about it. One
   that has none leads to the table of models on Memory, or to the page that
   describes its attention.
5. A comparison leads to the page that compares, or to one of the compared.
"""

import http.server
import re
import time
from collections import defaultdict
from functools import partial
from itertools import accumulate
from threading import Thread

import pytest
from playwright.sync_api import expect

import attnref
from sitekit import ROOT, files, search
from sitekit.markdown import source
from tests.kit.search import entries
from tests.kit.site import opened

# Our worker alone, as the theme's script speaks with it. On Enter, that script
# follows the link with the best score.
ASK = """async (queries) => {
  const { search } = JSON.parse(document.querySelector("#__config").innerText);
  const url = new URL(search, location);
  const settings = new URL("../search/search_index.json", url);
  const { config, docs } = await (await fetch(settings)).json();
  const worker = new Worker(url);
  const ask = (type, data) => new Promise((done, failed) => {
    worker.onmessage = ({ data }) => done(data.data);
    worker.onerror = failed;
    worker.postMessage({ type, data });
  });
  await ask(0, { config, docs });
  const answers = {};
  for (const query of queries) {
    const { items } = await ask(2, query);
    const all = items.flat().sort((a, b) => b.score - a.score);
    const links = items.map((item) => item.map(({ location }) => location));
    answers[query] = [links, all[0]?.location];
  }
  worker.terminate();
  return answers;
}"""


def typed_by_readers(language):
    """The queries of queries.toml, with the right page#section or folder/."""
    path = ROOT / "tests" / "site" / "queries.toml"
    kinds = source.table_of(path).items()
    return {
        query: right.split()
        for kind, rows in kinds
        if kind.startswith(language)
        for right, queries in rows.items()
        for query in queries
    }


def names(site, language):
    """Each title and alias of a page, in both languages, with the pages that
    have it."""
    pages = defaultdict(list)
    for entry in entries(site.folder, language):
        if "#" not in entry["location"]:
            for name in entry["names"]:
                pages[plain(name)].append(place([entry["location"]]))
    return pages


def plain(text):
    return text.replace("\u200b", "")


def objects(site, language):
    """Each public name that is no word of prose, with its entry in the API."""
    links = {
        entry["location"].rpartition(".")[2]: entry["location"]
        for entry in entries(site.folder, language)
        if re.match(r"api/\w+/#attnref\.", entry["location"])
    }
    return {
        name: links[name]
        for name in attnref.__all__
        if "_" in name or re.search("[a-z][A-Z]", name)
    }


@pytest.fixture(scope="module", params=["en", "zh"])
def reader(request, chromium, site):
    """A language, a page in it, and what that page asks of the server."""
    urls = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, _, line, *rest):
            urls.append(line.split()[1])

    serve = partial(Handler, directory=site.folder)
    server = http.server.ThreadingHTTPServer(("localhost", 0), serve)
    Thread(target=server.serve_forever, daemon=True).start()
    root = {"en": "", "zh": "zh/"}[request.param]
    url = f"http://localhost:{server.server_port}/{root}core/masks/"
    with opened(chromium, url) as page:
        yield request.param, page, urls
        assert page.faults == []
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def answers(reader, site):
    """Query -> the results, each a list of links on one page; and where Enter
    leads."""
    language, page, _ = reader
    queries = {
        **typed_by_readers(language),
        **names(site, language),
        **objects(site, language),
    }
    replies = page.evaluate(ASK, list(queries))
    return (
        language,
        {query: results for query, (results, _) in replies.items()},
        {query: link for query, (_, link) in replies.items() if link},
    )


def test_the_entries_come_once_when_a_reader_turns_to_the_search(reader):
    """Before that, only the settings, a few hundred bytes; after that, nothing
    more, whatever is typed. First of all tests, since the page is new."""
    language, page, urls = reader
    place = f"{'/zh' * (language == 'zh')}/search/"
    until(page, lambda: place + "search_index.json" in urls)
    page.wait_for_timeout(300)  # what comes too early would come by now
    searched = [path for path in urls if "search/" in path]
    assert searched == [place + "search_index.json"]
    assert (
        page.evaluate(f"""() => fetch("{place}search_index.json")
        .then(async (answer) => (await answer.text()).length)""")
        < 500
    )
    before = len(urls)
    page.locator(".md-search__input").focus()
    until(page, lambda: len(urls) > before)
    assert urls[before:] == [place + "entries.js"]
    for query in ("gqa", "softmax"):
        typed(page, query)
        first = page.locator(".md-search-result__item a").first
        expect(first).to_have_attribute("href", re.compile(f"/{query}/"))
    assert urls[before:] == [place + "entries.js"]
    # The second time out of the browser's cache.
    assert sum(url.endswith("entries.js") for url in page.urls) == 2
    assert not [path for path in urls if "lunr" in path or "/workers/" in path]


def until(page, condition):
    """Or until a minute has passed, for what takes some milliseconds."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        page.wait_for_timeout(20)


def typed(page, query):
    field = page.locator(".md-search__input")
    field.focus()
    field.select_text()
    page.keyboard.insert_text(query)  # no key comes up: as from a menu


def test_text_that_comes_without_a_key_is_searched_for(reader):
    """As from a menu, dictation, an input method or a form that is filled in:
    the field's value changes, and it says so."""
    language, page, _ = reader
    typed(page, "mla")
    first = page.locator(".md-search-result__item a").first
    expect(first).to_have_attribute("href", re.compile("/mla/"))
    page.evaluate("""() => {
      const field = document.querySelector(".md-search__input");
      field.value = "softmax";
      field.dispatchEvent(new InputEvent("input", { bubbles: true }));
    }""")
    expect(first).to_have_attribute("href", re.compile("/softmax/"))


def place(links):
    path = links[0].partition("#")[0].strip("/")
    return path.rpartition("/")[2] or "index"


def misses(hits, queries):
    """The queries that lead elsewhere, with what right is and what comes."""
    return {
        query: (right, [place(links) for links in hits[query][:3]])
        for query, right in queries.items()
        if not hits[query] or place(hits[query][0]) not in right
    }


@pytest.mark.whole
def test_each_name_of_a_page_leads_to_it(answers, site):
    """Or to another page of that name."""
    language, hits, _ = answers
    queries = names(site, language)
    assert len(queries) > 150
    missed = [
        f"{name!r} is a title or an alias of {', '.join(right)}, but first "
        f"comes {first[:1]}: if it is not what {', '.join(right)} explains, "
        "delete the alias there; otherwise give another alias"
        for name, (right, first) in misses(hits, queries).items()
    ]
    assert not missed, "\n".join(missed)


def test_what_readers_type_leads_to_its_page_and_section(answers):
    language, hits, _ = answers
    queries = typed_by_readers(language)
    assert len(queries) > 250
    missed = {}
    for query, right in queries.items():
        links = hits[query][0] if hits[query] else [""]
        first = [link.partition("#")[2] for link in links if "#" in link]
        reached = {place(links), f"{place(links)}#{''.join(first[:1])}"}
        reached.add(f"{links[0].partition('/')[0]}/")
        if not reached & set(right):
            missed[query] = (right, [place(x) for x in hits[query][:3]], first)
    assert len(missed) <= 4, f"of {len(queries)}, not: {missed}"
    # What readers asked for by name, and missed before.
    for part in ("of a model", "missed by readers"):
        assert not missed.keys() & typed_by_readers(f"{language}, {part}"), (
            missed
        )


def test_enter_leads_into_the_first_result(answers):
    _, hits, entered = answers
    assert len(entered) > 300
    assert [q for q, link in entered.items() if link not in hits[q][0]] == []


def test_a_file_is_found_on_its_page_and_among_all_files(answers):
    """By its name alone; the same word without .py is another."""
    _, hits, entered = answers
    for file in [name for name in files.texts() if "/" not in name]:
        pages = [place(links) for links in hits[file]]
        assert len(pages) == 2 and pages[1] == "files", file
        assert "files/#list" in hits[file][1] and "#" not in entered[file]
    assert "files" not in [place(links) for links in hits["gqa"][:4]]


def test_letters_of_a_chinese_keyboard_are_letters(answers):
    """Some keyboards are set to letters as wide as a Chinese character."""
    assert place(answers[1]["ｍｌａ"][0]) == "mla"


def test_a_function_leads_to_its_code_and_then_to_its_entry(answers, site):
    language, hits, _ = answers
    shown = defaultdict(set)  # name -> the pages with its code
    for entry in entries(site.folder, language):
        if "#" in entry["location"] and not entry["location"].startswith("api"):
            for name in entry["names"]:
                shown[name].add(place([entry["location"]]))
    names = objects(site, language)
    assert len(names) > 20
    right = {n: shown[n.lower()] or {place([to])} for n, to in names.items()}
    assert misses(hits, right) == {}
    for name, entry in names.items():
        assert any(entry in links for links in hits[name][:3]), name


@pytest.mark.whole
def test_chinese_names_are_words_of_the_index(site):
    """So that what somebody types is a word, as it is where it is explained."""
    terms = search.words()
    assert len(terms) > 60
    indexed, apart = set(), set()
    for entry in entries(site.folder, "zh"):
        for text in (entry["title"], entry["text"], *entry["names"]):
            for run in re.findall(r"[\u4e00-\u9fff\u200b]+", text):
                words = list(filter(None, run.split("\u200b")))
                indexed |= set(words)
                for i in range(len(words)):
                    joined = accumulate(words[i:])
                    apart |= terms & set(list(joined)[1:8])
    assert apart == set()
    assert terms - indexed == set()
    assert {"注意力", "掩码", "填充"} <= indexed, "ordinary words are cut too"


def test_cells_of_a_table_are_words_of_their_own(site):
    """The search's parser knows no cells: it would write sourceGPT-2."""
    for language in ("en", "zh"):
        text = " ".join(
            entry["text"] for entry in entries(site.folder, language)
        )
        assert re.search(r"(^|\s)GPT-2 small\s+36 KiB\s", text)
        assert "FalconGemma" not in text, "the choices of a menu"


def test_each_index_holds_its_own_language_and_no_names_of_marks(site):
    en = " ".join(d["text"] for d in entries(site.folder, "en"))
    zh = " ".join(d["text"] for d in entries(site.folder, "zh"))
    assert "Padding" in " ".join(d["title"] for d in entries(site.folder, "en"))
    assert "为什么" not in en
    assert "therefore" in en and "therefore" not in zh
    assert "ApplyFunction" not in en + zh


def test_the_index_has_nothing_of_the_bars_with_downloads(site):
    for language in ("en", "zh"):
        for entry in entries(site.folder, language):
            if not entry["location"].startswith(("files/", "./#", "#")):
                for word in ("from gqa import", "Copy the whole file"):
                    assert word not in entry["text"], entry["location"]


@pytest.mark.whole
def test_each_question_is_a_section_of_the_search(site):
    for language in ("en", "zh"):
        text = (ROOT / f"docs/{language}/learn/questions.md").read_text("utf-8")
        questions = re.findall(r'^\?\?\? question "(.*)"', text, re.MULTILINE)
        titles = [
            plain(entry["title"]).replace(" ", "")
            for entry in entries(site.folder, language)
            if re.match("learn/questions/#(q|more)-", entry["location"])
        ]
        for question in questions:
            start = re.split("[`*$<&]", question)[0].replace(" ", "")
            assert any(title.startswith(start) for title in titles), question
        assert len(questions) > 80


FOLDED = {
    "en": ("P/D disaggregation", "q-50", "TTFT"),
    "zh": ("PD 分离", "q-50", "TTFT"),
}


def test_a_result_opens_the_answer_that_says_it(reader):
    language, page, _ = reader
    query, fold, words = FOLDED[language]
    typed(page, query)
    first = page.locator(".md-search-result__item").first
    link = re.compile(rf"learn/questions/.*#{fold}$")
    expect(first.locator("a").nth(1)).to_have_attribute("href", link)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/learn/questions/?h=*#{fold}")
    answer = page.locator(f"details:has(#{fold})")
    expect(answer).to_have_attribute("open", "")
    expect(answer.locator("summary")).to_be_in_viewport()
    expect(answer).to_contain_text(words)
    assert page.locator("details.question[open]").count() == 1


MODELS = {"en": "Released models", "zh": "已发布模型"}


def test_a_result_shows_the_words_of_the_query(reader):
    language, page, _ = reader
    typed(page, "palm-540b deepseek-v4.1-flash arxiv")  # these have no pages
    first = page.locator(".md-search-result__item").first
    expect(first.locator("h1")).to_have_text(MODELS[language])
    shown = first.locator("article").first
    assert {"V4.1", "Flash"} <= set(shown.locator("mark").all_inner_texts())
    assert "Missing" not in first.inner_text(), "the page says all words"
    assert len(shown.inner_text()) < 800, "of a table, not all of it"
    page.keyboard.press("Enter")
    page.wait_for_url("**/models/released/?h=*")


ONCE = {
    "en": ("kv_c_normed", "conventions/names/"),
    "zh": ("笔记本", "use/project/"),
}


def test_what_only_a_section_says_leads_there_and_is_marked(reader):
    """A page has it among its aliases, and shows it in one section."""
    language, page, _ = reader
    query, path = ONCE[language]
    typed(page, query)
    first = page.locator(".md-search-result__item").first
    shown = first.locator("a").nth(1)
    expect(shown.locator("mark").first).to_have_text(query)
    section = shown.get_attribute("href").partition("#")[2]
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/{path}?h=*#{section}")
    expect(page.locator(f"#{section}")).to_be_in_viewport()
    marks = page.locator("article mark[data-md-highlight]")
    expect(marks.first).to_have_text(query)
    count = page.locator("article").inner_text().count(query)
    assert marks.count() == count >= 1
    page.goto(page.url.partition("?")[0])
    assert marks.count() == 0


def test_a_formula_of_a_sentence_is_found_as_text():
    math = "<math data-search-exclude>{}</math>"
    width = "<msub><mi>d</mi><mi>k</mi></msub>"
    share = f"<mfrac><mn>1</mn><msqrt>{width}</msqrt></mfrac>"
    turned = "<msubsup><mi>R</mi><mi>i</mi><mo>&lt;</mo></msubsup>"
    shown = math.format(f"{share}<mo>&InvisibleTimes;</mo>{turned}")
    block = '<math data-search-exclude display="block"><mi>x</mi></math>'
    assert search.readable(shown + block) == "1/√d_kR_i^&lt;"
