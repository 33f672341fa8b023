"""The built site: no warning, no dead link, and it shows what was run."""

import gzip
import re
import struct
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from fontTools.ttLib import TTFont

import attnref
from attnref.judge.catalogue import catalogue
from sitekit import ROOT
from sitekit.markdown.pages import (
    address_of,
    body_of,
    markdown_files,
    python_blocks,
)
from sitekit.released import released
from tests.kit import sampled
from tests.kit.pages import PAGES, Reader, built
from tests.kit.site import build, html_files, opened

HOME = "https://example.org/some/path/"
REPOSITORY = "https://example.org/somebody/attnref"


@pytest.mark.whole
def test_both_languages_build_without_a_warning(site):
    assert site.log.count("Documentation built") == 2
    lines = filter(str.strip, site.log.splitlines())
    # A record may go on in lines that are indented.
    heads = [line for line in lines if not line.startswith("  ")]
    assert [line for line in heads if not line.startswith("INFO ")] == []
    for path in PAGES:
        assert "。</strong> " not in built(site, path).read_text("utf-8")


@pytest.mark.parametrize(
    "path", PAGES, ids=lambda p: str(p.relative_to(ROOT / "docs"))
)
def test_what_the_page_shows_is_what_ran(site, path):
    shown = Reader(built(site, path)).blocks
    ran = python_blocks(body_of(path))
    assert shown == ran


@pytest.mark.whole
def test_home_leads_to_every_page(site):
    """Whoever adds a section of the navigation adds its list there."""
    for path in PAGES:
        language = path.relative_to(ROOT / "docs").parts[0]
        home = built(site, ROOT / "docs" / language / "index.md")
        text = home.read_text(encoding="utf-8").partition("<article")[2]
        if address := address_of(path):
            assert f'href="{address}"' in text, f"{home}: not {address}"


# With an address every page, link and file is another: `make audit` builds it.
@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The site as it is built for an address, of a project with a host."""
    folder = tmp_path_factory.mktemp("published")
    return build(folder, SITE_URL=HOME, REPOSITORY_URL=f"{REPOSITORY}/")


@pytest.mark.parametrize("kind", sampled(["site", "published"], ["site"]))
def test_every_link_and_anchor_leads_somewhere(kind, request):
    site = request.getfixturevalue(kind)
    home = HOME if kind == "published" else "https://example.org/"
    html_pages = html_files(site.folder)
    readers = {path: Reader(path) for path in html_pages}
    dead = []
    for path, page in readers.items():
        here = home + path.relative_to(site.folder).as_posix()
        for link in page.links:
            url = urlsplit(urljoin(here, link))
            if url.netloc != "example.org" or REPOSITORY in link:
                continue
            inside = unquote(url.path).removeprefix(urlsplit(home).path)
            target = site.folder / inside
            if target.is_dir():
                target /= "index.html"
            where = f"{path.relative_to(site.folder)}: {link}"
            ids = readers[target].ids if target in readers else set()
            if not target.exists() or (
                url.fragment and unquote(url.fragment) not in ids
            ):
                dead.append(where)
    assert dead == []


@pytest.mark.audit
def test_each_page_knows_its_address(published):
    for path in PAGES:
        page = Reader(built(published, path))
        language = path.relative_to(ROOT / "docs").parts[0]
        address = address_of(path)
        assert page.lang == {"en": "en", "zh": "zh-CN"}[language]
        (canonical,) = (
            link["href"] for link in page.head if link["rel"] == "canonical"
        )
        assert canonical == {"en": HOME, "zh": f"{HOME}zh/"}[language] + address


@pytest.mark.audit
def test_each_page_has_a_preview_where_its_address_is_sent(published):
    for path in published.folder.rglob("index.html"):
        text = path.read_text(encoding="utf-8")
        if "<article" not in text and "og:title" not in text:
            continue  # the stub of what has moved
        tags = dict(
            re.findall(r'<meta property="(og:\S+)" content="(.*?)">', text)
        )
        assert tags["og:title"] and tags["og:description"], path
        assert tags["og:url"] == HOME + (
            path.parent.relative_to(published.folder).as_posix() + "/"
        ).removeprefix("./"), path
        place = unquote(tags["og:image"].removeprefix(HOME))
        picture = (published.folder / place).read_bytes()
        assert picture.startswith(b"\x89PNG") and len(picture) < 40_000, path
        size = (600, 315) if path.parent.name in catalogue() else (1200, 630)
        assert tags["og:image:width"] == str(size[0])
        assert picture[16:24] == struct.pack(">II", *size), path


def test_without_an_address_nothing_claims_one(site):
    """Nobody's address is named, and all links are relative."""
    for path in PAGES:
        page = Reader(built(site, path))
        assert not any(link["rel"] == "canonical" for link in page.head), path
    assert not list(site.folder.rglob("sitemap.xml*"))
    for path in site.folder.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for claim in ("/issues/new", "/blob/HEAD/docs", "attnref.github.io"):
            where = f"{path.relative_to(site.folder)} says {claim!r}"
            assert (claim in text) is False, where


@pytest.mark.audit
def test_each_page_leads_to_its_source_and_to_a_report(published):
    for path in PAGES:
        file = path.relative_to(ROOT).as_posix()
        links = Reader(built(published, path)).links
        assert f"{REPOSITORY}/blob/HEAD/{file}" in links
        (report,) = (link for link in links if "/issues/new?" in link)
        assert unquote(report).endswith(file)


@pytest.mark.audit
def test_links_of_notebooks_lead_to_the_site(published):
    """Whoever reads them is somewhere else: the addresses are absolute."""
    ids, seen = {}, 0
    for book in published.folder.rglob("*.ipynb"):
        text = book.read_text(encoding="utf-8")
        for link in re.findall(r"\]\((https://example\.org/[^)]*)\)", text):
            address, _, anchor = link.removeprefix(HOME).partition("#")
            page = published.folder / address / "index.html"
            if page not in ids:
                ids[page] = Reader(page).ids
            assert not anchor or unquote(anchor) in ids[page], link
            seen += 1
    assert seen > 500


@pytest.mark.audit
def test_a_download_says_where_it_is_from(site, published):
    """A line of its head, which each page counts; all else is the same."""
    for path in (published.folder / "files").glob("*.py"):
        plain, lines = (
            (folder / "files" / path.name).read_text("utf-8").splitlines()
            for folder in (site.folder, published.folder)
        )
        (at,) = (n for n, x in enumerate(plain) if x.startswith("Cut from "))
        assert lines.pop(at + 1) == f"Source: {HOME}files/{path.name}"
        assert lines == plain
        if path.name == "gqa.py":
            for root in ("", "zh/"):
                page = published.folder / root / "layers/gqa/index.html"
                text = page.read_text(encoding="utf-8")
                size = re.search(r"download>\D+([\d,]+) (lines|行)<", text)
                assert size[1] == f"{len(plain) + 1:,}"


@pytest.mark.audit
def test_pip_is_given_the_address_of_the_wheel(published):
    name = f"attnref-{attnref.__version__}-py3-none-any.whl"
    assert (published.folder / "files" / name).exists()
    for place in ("files", "use/project", "zh/files", "zh/use/project"):
        text = (published.folder / place / "index.html").read_text("utf-8")
        plain = re.sub("<[^>]+>", "", text)
        assert f"\npip install {HOME}files/{name}\n" in plain


@pytest.mark.audit
def test_the_sitemaps_name_every_page_and_its_twin(published):
    for language, root in (("en", ""), ("zh", "zh/")):
        text = (published.folder / root / "sitemap.xml").read_text()
        addresses = [address_of(p) for p in markdown_files(language)]
        addresses += [f"{stem}/" for stem in released.stems()]
        addresses += [f"mistakes/{id}/" for id in catalogue()]
        assert text.count("<loc>") == len(addresses)
        for address in addresses:
            assert f"<loc>{HOME}{root}{address}</loc>" in text
            for twin, twin_root in (("en", ""), ("zh", "zh/")):
                tag = {"en": "en", "zh": "zh-CN"}[twin]
                href = f'hreflang="{tag}" href="{HOME}{twin_root}{address}"'
                assert href in text
            usual = f'hreflang="x-default" href="{HOME}{address}"'
            assert usual in text


@pytest.mark.audit
def test_a_missing_page_below_a_path_leads_home(published):
    page = (published.folder / "404.html").read_text()
    assert f'href="{HOME}zh/"' in page
    assert 'src="/some/path/assets/' in page


def test_the_404_page_speaks_both_languages(site):
    text = (site.folder / "404.html").read_text(encoding="utf-8")
    assert "This page does not exist" in text
    assert "页面不存在" in text


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("layers/MLA/", "layers/mla/"),
        ("core/mask/", "core/masks/"),
        ("models/released/llama-3-70/", "models/released/llama-3-70b/"),
        ("zh/layers/gqa.html", "zh/layers/gqa/"),
        ("caches/flash-atention/", "core/flash/"),
    ],
)
def test_the_404_page_guesses(chromium, address, site, wrong, right):
    text = (site.folder / "404.html").read_text(encoding="utf-8")
    with opened(chromium, address) as page:
        page.route(f"**/{wrong}", lambda r: r.fulfill(body=text, status=404))
        page.goto(address + wrong)
        links = page.locator(".guess:visible a")
        links.first.wait_for()
        found = links.evaluate_all("all => all.map(link => link.href)")
        assert address + right in found


def drawn_in(math):
    """The characters of a formula that the font has to have."""
    used = {ord(c) for c in math if not c.isspace()}
    # An <mi> of one letter is drawn in mathematical italics.
    italic = {
        0x1D44E + ord(c) - ord("a") if c.islower() else 0x1D434 + ord(c) - 65
        for c in math
        if c.isascii() and c.isalpha() and c != "h"
    }
    chinese = {c for c in used if 0x2E7F < c < 0x1D000}
    return (used | italic) - chinese


@pytest.mark.whole
def test_the_math_font_has_every_character_of_every_formula(html_pages):
    fonts = ROOT / "overrides" / "assets" / "fonts"
    known = set(TTFont(fonts / "stix-two-math.woff2").getBestCmap())
    lacks = [
        f"{path.parent.name} has U+{c:04X} {chr(c)!r} in a formula: "
        "see overrides/assets/fonts/README.md"
        for path in html_pages
        for c in sorted(drawn_in(Reader(path).math) - known)
    ]
    assert lacks == []
    assert ord("√") in known  # <msqrt> draws it: no formula has it as text
    assert "MATH" in TTFont(fonts / "stix-two-math.woff2")


def test_math_works_without_javascript(html_pages):
    for path in html_pages:
        text = path.read_text(encoding="utf-8")
        assert "arithmatex" not in text, path
        prose = re.sub(r"<(code|script).*?</\1>", "", text, flags=re.S)
        left = re.findall(r"\\\(.{,40}", prose)
        assert left == [], f"{path} shows LaTeX as it is written"


def test_no_asset_is_heavy(site):
    for path in site.folder.glob("assets/**/*"):
        if path.suffix in {".js", ".css", ".woff2"} and "lunr" not in str(path):
            size = len(gzip.compress(path.read_bytes()))
            # The record of all families comes once a reader touches the form.
            bound = 66_000 if path.name == "record.js" else 64_000
            assert size < bound, f"{path.name} is {size} bytes with gzip"


def test_all_known_answers_are_one_small_file(site):
    assert (site.folder / "files/answers.zip").stat().st_size < 5_000_000


def test_every_block_of_code_can_be_copied(html_pages):
    """Those of examples and of mistakes too; a signature is no code to run."""
    block = re.compile(
        r'<div [^>]*class="language-(?:python|bash|pycon|diff) highlight">'
        r"(?:(?!</div>).)*</div>",
        re.DOTALL,
    )
    blocks = [b for page in html_pages for b in block.findall(page.read_text())]
    assert len(blocks) > 800
    assert [b[:99] for b in blocks if 'class="copy"' not in b] == []


def test_a_link_has_words_and_a_row_of_tabs_has_a_style(html_pages):
    for path in html_pages:
        text = path.read_text(encoding="utf-8")
        alone = re.findall(
            r"<a [^>]*>\s*<math(?:(?!</math>).)*</math></a>", text
        )
        assert alone == [], f"{path}: a formula alone is no name for a link"
        tabs = re.findall(r'data-tabs="\d+:(\d+)"', text)
        assert all(int(n) < 9 for n in tabs), f"{path}: sitekit/hook.py"


def test_one_is_no_plural(html_pages):
    summary = re.compile(r"<summary>What it contains: [^<]*")
    text = " ".join(
        each
        for page in html_pages
        for each in summary.findall(page.read_text())
    )
    assert text and " 1 " not in text


def test_a_page_that_explains_ends_with_its_letters_and_masks(site):
    for root, masks in (
        ("", "bool tensor, True = may attend"),
        ("zh/", "布尔张量，True 表示可见"),
    ):
        for page, want, masked in (
            ("layers/mla", "B T S E H K D Dv R Dn Dr", True),
            ("core/merge", "B T S H K D Dv", True),
            ("core/rope", "B T S H K D", False),
            ("learn/compare", "", False),
        ):
            text = (site.folder / root / page / "index.html").read_text("utf-8")
            _, _, card = text.partition('<dl class="legend">')
            card = card.partition("</dl>")[0]
            letters = re.findall(r"<dt><code>(\w+)</code></dt><dd>.", card)
            assert letters == want.split(), (page, letters)
            link = '<a href="../../conventions/#masks">'
            assert (link in card, masks in card) == (masked, masked)
