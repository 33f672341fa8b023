"""The text of each page, llms.txt and mistakes.json, as they are built: they
say what the pages say, and each of their links leads somewhere."""

import html
import json
import re

import pytest
from jsonschema import Draft202012Validator, ValidationError

from attnref.judge.catalogue import catalogue, sources
from sitekit import CONFIGS, ROOT, adapter, published
from sitekit import texts as llms
from sitekit.check import table
from sitekit.markdown import pages, source
from sitekit.released import released
from tests.kit import words
from tests.kit.pages import PAGES, Reader, built

ROOTS = {"en": "", "zh": "zh/"}
LINK = re.compile(r"\]\((?!https?:)([^()\s]+)\)")
ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
FORMULA = re.compile(r"(?s)\$\$.*?\$\$|\$[^$\n]*\$")
FILLED = re.compile(r"\{[a-z]\w+\}")  # a number that was not filled in
CODE = re.compile(r"(?ms)^( *)```.*?^\1```$|(`+).+?\2(?!`)")


def text_of(site, path):
    root = ROOTS[path.relative_to(ROOT / "docs").parts[0]]
    place = site.folder / root / f"{pages.stem_of(path)}.md"
    return place.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def texts(site):
    return {
        path: path.read_text(encoding="utf-8")
        for path in (*site.folder.rglob("*.md"), *site.folder.rglob("llms.txt"))
    }


@pytest.mark.whole
def test_each_page_leads_to_its_text_and_no_text_is_alone(site, texts):
    places = set()
    for path in site.folder.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        if "<article" not in page or path.name == "404.html":
            continue  # what has moved
        (to,) = re.findall(r'type="text/markdown" href="([^"]+)"', page)
        places.add((path.parent / to).resolve())
    stems = {f"{stem}.md" for stem in released.stems()}
    stems |= {f"mistakes/{id}.md" for id in catalogue()}
    stems |= {f"{pages.stem_of(path)}.md" for path in PAGES}
    there = {site.folder / root / x for root in ROOTS.values() for x in stems}
    assert places == there == {path for path in texts if path.suffix == ".md"}


@pytest.mark.whole
def test_every_link_of_a_text_leads_to_a_text_or_a_file(texts):
    ids = {path: {*ANCHOR.findall(text)} for path, text in texts.items()}
    dead, count = [], 0
    for path, text in texts.items():
        for link in LINK.findall(CODE.sub("`code`", text)):
            to, _, anchor = link.partition("#")
            target = (path.parent / to).resolve() if to else path
            is_there = anchor in ids[target] if anchor else target.is_file()
            dead += [] if is_there else [f"{path}: {link}"]
            count += 1
    assert dead == []
    assert count > 9000


@pytest.mark.whole
def test_a_text_is_short_and_plain_markdown(texts):
    """No figure, no markup of the site, and the program as it ran."""
    for path, text in texts.items():
        assert 300 < len(text.encode()) < 100_000, path
        prose = CODE.sub("", text)
        assert not FILLED.search(FORMULA.sub("", prose)), path
        tags = {*re.findall(r"</?[a-z]+", ANCHOR.sub("", prose))}
        assert tags <= {"<br", "<strong", "</strong"}, path
        assert not re.search(
            r"(?m)^ *:::|^---$|\{\{|--8<--|^ *\?\?\?", prose
        ), path


@pytest.mark.parametrize(
    "path", PAGES, ids=lambda p: str(p.relative_to(ROOT / "docs"))
)
def test_a_text_has_the_code_and_the_words_of_its_page(site, path):
    text, body = text_of(site, path), pages.body_of(path)
    tokens = words.COMMONMARK.parse(text)
    blocks = [
        t.content for t in tokens if t.type == "fence" and t.info == "python"
    ]
    assert blocks == pages.python_blocks(body)
    fences = {fence.language for fence in source.fences(body)}
    # Of mistakes and of tables of one page, the texts say more or less.
    written = re.search(r"(?m)^ *::: (attnref|mistake|door)", body)
    if not written and not fences & {*source.OF_ONE_PAGE}:
        assert words.of_html(words.read(text)) == words.of_page(
            built(site, path)
        )


@pytest.mark.parametrize("language", ROOTS)
def test_llms_txt_lists_every_page_in_a_section_with_a_sentence(site, language):
    """In the form of llmstxt.org: a title, a quote, and lists of links."""
    text = (site.folder / ROOTS[language] / "llms.txt").read_text("utf-8")
    assert len(text.encode()) < 40_000
    head, *sections = re.split(r"(?m)^## ", text)
    assert re.fullmatch(r"# attnref\n\n> [^\n]+\n\n[^\n]+\n\n", head)
    links = {}
    for section in sections:
        title, items = section.split("\n\n", 1)
        for item in items.strip().split("\n"):
            match = re.fullmatch(
                r"- \[(.+)\]\((.+?)\)(?:[:：]\s?(\S.+))?", item
            )
            name, to, sentence = match.groups()
            assert name and bool(sentence) == (title != "Optional")
            links.setdefault(to, []).append(title)
    models = {f"{stem}.md" for stem in released.stems()}
    assert {
        to for to, titles in links.items() if titles == ["Optional"]
    } == models
    assert links.keys() >= {
        f"{pages.stem_of(path)}.md" for path in pages.markdown_files(language)
    } - {"index.md"}
    assert all(
        len(titles) == 1 for to, titles in links.items() if to != "files.md"
    )


def test_mistakes_json_is_what_its_schema_and_the_catalogue_say(site):
    file = site.folder / "mistakes.json"
    assert file.stat().st_size < 500_000
    content = json.loads(file.read_text(encoding="utf-8"))
    schema = json.loads((site.folder / content["$schema"]).read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    validator.validate(content)
    for key in schema["$defs"]["mistake"]["required"]:
        short = {k: v for k, v in content["mistakes"][0].items() if k != key}
        with pytest.raises(ValidationError, match=f"'{key}' is a required"):
            validator.validate(content | {"mistakes": [short]})
    assert [entry["id"] for entry in content["mistakes"]] == [*catalogue()]
    tests = Reader(site.folder / "mistakes/tests/index.html").ids
    for entry in content["mistakes"]:
        assert entry.keys() == schema["$defs"]["mistake"]["properties"].keys()
        assert entry["symptom"] in content["symptoms"]
        assert {*entry["properties"]} <= tests
        for language in ROOTS:
            page = site.folder / entry["page"][language] / "index.html"
            text = html.unescape(page.read_text(encoding="utf-8"))
            assert f">{entry['title'][language]}</h1>" in text
        for name in entry["tests"]:
            path, _, test = name.partition("[")[0].partition("::")
            assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")


def test_the_lines_of_mistakes_json_plant_each_mistake(site):
    """In the files of the package as they are, by what stands in it alone."""
    content = json.loads((site.folder / "mistakes.json").read_text("utf-8"))
    for entry in content["mistakes"]:
        texts = {}
        for lines in entry["lines"]:
            file = lines["file"]
            text = texts.get(file) or (ROOT / file).read_text(encoding="utf-8")
            assert text.count(lines["right"]) == 1, entry["id"]
            texts[file] = text.replace(lines["right"], lines["wrong"])
        planted = sources(catalogue()[entry["id"]].variants[0])
        names = [f"attnref/{x.replace('.', '/')}.py" for x in planted]
        assert texts == dict(zip(names, planted.values(), strict=True))


@pytest.mark.parametrize("home", ["https://example.org/", "https://x.org/a/"])
def test_with_an_address_links_are_whole_and_robots_txt_names_sitemaps(home):
    """The sitemaps themselves: tests/site/test_site.py."""
    for language, root in ROOTS.items():
        config = adapter.config_of(CONFIGS[language], site_url=f"{home}{root}")
        config = config.plugins.on_config(config)
        entry = next(table.entries(config))
        assert entry["page"]["en"].startswith(f"{home}mistakes/")
        files = adapter.get_files(config)
        nav = adapter.get_navigation(files, config)
        site_pages = [file.page for file in files.documentation_pages()]
        for page in site_pages:
            page.parent = page.parent or nav.items[-1]
        text = llms.index(site_pages, config, nav)
        links = re.findall(r"(?m)^- \[.+?\]\((.+?)\)", text)
        assert all(link.startswith(home) for link in links)
        assert f"{home}mistakes.json" in links
        assert f"{home}{root}layers/gqa.md" in links
        assert published.robots(config).splitlines() == [
            "User-agent: *",
            "Allow: /",
            "",
            f"Sitemap: {home}sitemap.xml",
            f"Sitemap: {home}zh/sitemap.xml",
        ]


def test_the_script_of_the_theme_asks_for_no_sitemap_of_a_text(visit, address):
    page = visit(f"{address}layers/gqa/")
    assert page.faults == []
    assert [url for url in page.urls if url.endswith("sitemap.xml")] == []
