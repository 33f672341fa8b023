"""The site in a browser: what a reader sees, hears, copies and searches."""

import functools
import gzip
import http.server
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from sitekit import ROOT
from sitekit.pages import body_of, markdown_files, python_blocks

CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update "
    "--disable-sync --disable-dev-shm-usage"
)
PATHS = [
    ("" if language == "en" else "zh/")
    + ("" if path.stem == "index" else f"{path.stem}/")
    for language in ("en", "zh")
    for path in markdown_files(language)
]

if not CHROMIUM and not os.environ.get("CI"):
    pytest.skip(
        "no Chromium here: the browser tests are left out",
        allow_module_level=True,
    )


@pytest.fixture(scope="module")
def chromium():
    assert CHROMIUM, "CI needs Chromium"
    with sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path=CHROMIUM, args=FLAGS.split()
        )
        yield browser
        browser.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(site):
    """The built site on localhost."""
    handler = functools.partial(_Quiet, directory=site.folder)
    server = http.server.ThreadingHTTPServer(("localhost", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}/"
    server.shutdown()
    server.server_close()


@contextmanager
def opened(chromium, url, *, width=1440, scheme="light", **options):
    """A page that keeps what it asked for and what went wrong."""
    context = chromium.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        **options,
    )
    page = context.new_page()
    page.urls, page.faults = [], []

    def blame(wrong, what):
        if wrong:
            page.faults.append(what)

    page.on("request", lambda r: page.urls.append(r.url))
    page.on("requestfailed", lambda r: blame(True, r.url))
    page.on("pageerror", lambda e: blame(True, str(e)))
    page.on("console", lambda m: blame(m.type in ("error", "warning"), m.text))
    page.on("response", lambda r: blame(r.status >= 400, r.url))
    page.goto(url, wait_until="networkidle")
    try:
        yield page
    finally:
        context.close()


@pytest.fixture
def visit(chromium):
    """Open pages that stay open until the test ends."""
    with ExitStack() as stack:

        def open_page(url, **options):
            return stack.enter_context(opened(chromium, url, **options))

        yield open_page


class Seen(NamedTuple):
    """What two visits to a page found, 1440 and 390 px wide."""

    urls: list[str]
    faults: list[str]
    wide: list[str]
    scrolling: list[str]
    axe: list[tuple[str, str]]


OVERFLOW = """() => [
  ...(document.documentElement.scrollWidth > innerWidth ? ['the page'] : []),
  ...[...document.querySelectorAll('.md-content *')]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1
        && !e.closest('.scroll, pre, svg, math'))
    .map(e => e.outerHTML.slice(0, 80))]"""
SCROLLING = """() => [...document.querySelectorAll('pre > code')]
    .filter(e => e.scrollWidth > e.clientWidth)
    .map(e => e.innerText.slice(0, 80))"""


@pytest.fixture(scope="module", params=PATHS)
def seen(request, chromium, address):
    """Both widths for each page. axe takes seconds: the English pages are
    read wide and light, their Chinese twins narrow and dark."""
    wide, axe = [], []
    for width, scheme in ((1440, "light"), (390, "dark")):
        with opened(
            chromium, address + request.param, width=width, scheme=scheme
        ) as page:
            if width == 1440:
                urls, faults = list(page.urls), page.faults
                scrolling = page.evaluate(SCROLLING)
            wide += [f"{width}: {e}" for e in page.evaluate(OVERFLOW)]
            if request.param.startswith("zh/") == (width == 390):
                page.evaluate(
                    "document.querySelectorAll('details').forEach("
                    "d => d.open = true)"
                )
                for v in Axe().run(page).response["violations"]:
                    axe.append((v["id"], v["nodes"][0]["html"][:200]))
    return Seen(urls, faults, wide, scrolling, axe)


def test_a_page_asks_nobody_else_for_anything(seen, address):
    assert seen.faults == []
    assert [u for u in seen.urls if not u.startswith(address)] == []
    assert len(seen.urls) > 3


def test_nothing_is_wider_than_the_window(seen):
    assert seen.wide == []


def test_no_code_scrolls_on_a_wide_screen(seen):
    assert seen.scrolling == []


def test_axe_finds_nothing(seen):
    assert seen.axe == []


def test_a_page_with_all_it_loads_is_light(seen, address, site):
    weight = 0
    for url in set(seen.urls):
        file = site.folder / url.removeprefix(address).split("?")[0]
        file = file / "index.html" if file.is_dir() else file
        data = file.read_bytes()
        packed = file.suffix == ".woff2"
        weight += len(data if packed else gzip.compress(data, 6))
    assert weight <= 160_000, f"{weight} bytes"


def test_the_language_switch_stays_on_the_page(visit, address):
    page = visit(address + "masks/")
    page.click("a.language")
    assert page.url == address + "zh/masks/"
    assert page.locator("h1").inner_text().startswith("掩码")
    page.click("a.language")
    assert page.url == address + "masks/"
    page.goto(address + "zh/")
    page.click("a.language")
    assert page.url == address


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        ("zh/", "注意力", "sdpa"),
        ("zh/", "因果掩码", "masks"),
        ("zh/", "填充", "masks"),
        ("zh/", "softmax", "softmax"),
        ("zh/", "causal_mask", "api"),
        ("", "padding", "masks"),
        ("", "overflow", "softmax"),
        ("", "variance", "sdpa"),
    ],
)
def test_the_search_finds(visit, address, path, query, expected):
    page = visit(address + path)
    assert expected in search(page, query)


def search(page, query):
    page.locator(".md-search__input").focus()
    page.keyboard.insert_text(query)
    page.keyboard.press("Shift")  # the theme listens to keys coming up
    page.wait_for_selector(".md-search-result__item", timeout=10_000)
    page.wait_for_timeout(200)
    return " ".join(
        link.get_attribute("href")
        for link in page.locator(".md-search-result__link").all()
    )


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_copy_button_gives_what_ran(visit, address, language):
    root = "" if language == "en" else "zh/"
    page = visit(
        f"{address}{root}softmax/",
        permissions=["clipboard-read", "clipboard-write"],
    )
    ran = python_blocks(body_of(ROOT / "docs" / language / "softmax.md"))
    buttons = page.locator(".language-python .md-code__button")
    assert buttons.count() == len(ran)
    for button, text in zip(buttons.all(), ran, strict=True):
        button.click()
        page.wait_for_timeout(50)
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize("path", ["sdpa/", "zh/masks/"])
def test_without_javascript_everything_is_there(visit, address, path):
    def sizes(page):
        boxes = "boxes => boxes.map(b => b.getBoundingClientRect().width)"
        return page.eval_on_selector_all("article math, article svg", boxes)

    without = visit(address + path, java_script_enabled=False)
    assert without.faults == []
    shown = without.locator("article").inner_text()
    page = visit(address + path)
    assert page.locator("article").inner_text().split() == shown.split()
    assert min(sizes(page)) > 0
    without_sizes = [
        box.bounding_box()
        for box in without.locator("article math, article figure svg").all()
    ]
    assert all(box and box["width"] > 0 for box in without_sizes)
    assert len(without_sizes) > 5


def test_figures_follow_light_and_dark(visit, address):
    def colours(page):
        return page.evaluate(
            """() => ['rect.on', 'rect.off', 'text.label'].map(s =>
            getComputedStyle(document.querySelector('.drawn ' + s)).fill)"""
        )

    page = visit(address + "masks/")
    light = colours(page)
    page.locator("label[title='Switch to dark']").click()
    dark = colours(page)
    assert all(a != b for a, b in zip(light, dark, strict=True))
    assert visit(address + "masks/", scheme="dark").evaluate(
        "document.body.dataset.mdColorScheme"
    ) == "slate"  # fmt: skip


def test_formulas_are_drawn_with_the_math_font(visit, address):
    page = visit(address + "zh/sdpa/")
    assert page.evaluate("document.fonts.check('16px \"STIX Two Math\"')")
    fonts = [u for u in page.urls if u.endswith(".woff2")]
    assert len(fonts) == 1
    # A delimiter that stretches is much taller than a letter.
    assert page.evaluate(
        """() => Math.max(...[...document.querySelectorAll('.formula mo')]
        .map(e => e.getBoundingClientRect().height))"""
    ) > 40  # fmt: skip


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The zip of `make offline`, unpacked."""
    subprocess.run(
        [sys.executable, "-m", "sitekit", "offline"], cwd=ROOT, check=True
    )
    folder = tmp_path_factory.mktemp("a folder")
    with zipfile.ZipFile(ROOT / "dist" / "attnref-site.zip") as archive:
        archive.extractall(folder)
    return folder / "attnref"


def test_the_zip_is_read_from_the_disk(visit, unpacked):
    page = visit((unpacked / "index.html").as_uri())
    page.locator("article a", has_text="Masks").first.click()
    assert page.url.endswith("/masks.html")
    assert page.locator("article svg").count() >= 4
    page.click("a.language")
    assert page.url.endswith("/zh/masks.html")
    assert page.faults == []
    assert all(u.startswith(("file:", "blob:", "about:")) for u in page.urls)


@pytest.mark.parametrize(
    ("path", "query"), [("index.html", "padding"), ("zh/index.html", "掩码")]
)
def test_the_zip_can_be_searched(visit, unpacked, path, query):
    page = visit((unpacked / path).as_uri())
    assert "masks.html" in search(page, query)
    assert all(u.startswith(("file:", "blob:", "about:")) for u in page.urls)
