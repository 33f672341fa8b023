"""Every page in a browser, wide and narrow: no request elsewhere, nothing
that overflows, nothing for axe to find, and not too heavy."""

import gzip
from typing import NamedTuple

import pytest
from axe_playwright_python.sync_playwright import Axe

from sitekit.pages import markdown_files
from tests.conftest import opened

PATHS = [
    ("" if language == "en" else "zh/")
    + ("" if path.stem == "index" else f"{path.stem}/")
    for language in ("en", "zh")
    for path in markdown_files(language)
]


ONLY = {"resultTypes": ["violations"]}  # the rest takes half the time


class Seen(NamedTuple):
    """What two visits to a page found, 1440 and 390 px wide."""

    urls: list[str]
    faults: list[str]
    wide: list[str]
    torn: list[str]
    scrolling: list[str]
    axe: list[tuple[str, str]]


OVERFLOW = """() => document.fonts.ready.then(() => [
  ...(document.documentElement.scrollWidth > innerWidth ? ['the page'] : []),
  ...[...document.querySelectorAll('.md-content *')]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1
        && !e.closest('.scroll, pre, svg, math'))
    .map(e => e.outerHTML.slice(0, 80)),
  ...[...document.querySelectorAll('.formula')]
    .filter(e => e.scrollWidth > e.clientWidth)
    .map(e => 'a formula: ' + e.textContent.slice(0, 80)),
  ...[...document.querySelectorAll('.plots')].flatMap(plot => {
    const box = plot.getBoundingClientRect();
    const shown = [...plot.children].filter(e => e.checkVisibility());
    return [
      ...(shown.length === 1 ? [] : [shown.length + ' plots']),
      ...shown.flatMap(e => [...e.querySelectorAll('text')])
        .map(e => [e.getBoundingClientRect(), e.textContent])
        .filter(([r]) => r.left < box.left || r.right > box.right)
        .map(([, words]) => 'in a plot: ' + words)];
  })])"""
TORN = r"""() => [...document.querySelectorAll('article math')]
    .filter(m => /^[-,.:;!?)，。、：；！？）”]/.test(m.nextSibling?.data))
    .filter(m => {
      const mark = document.createRange();
      mark.setStart(m.nextSibling, 0);
      mark.setEnd(m.nextSibling, 1);
      return mark.getBoundingClientRect().left
        < m.getBoundingClientRect().left;
    })
    .map(m => m.textContent + m.nextSibling.data.slice(0, 20))"""
SCROLLING = """() => [...document.querySelectorAll('pre > code')]
    .filter(e => e.scrollWidth > e.clientWidth)
    .map(e => e.innerText.slice(0, 80))"""


@pytest.fixture(scope="module", params=PATHS)
def seen(request, chromium, address):
    """Both widths for each page. axe takes seconds: the English pages are
    read wide and light, their Chinese twins narrow and dark."""
    wide, torn, axe = [], [], []
    for width, scheme, until in (
        (1440, "light", "networkidle"),
        (390, "dark", "load"),
    ):
        with opened(
            chromium,
            address + request.param,
            width=width,
            scheme=scheme,
            until=until,
        ) as page:
            if width == 1440:
                urls, faults = list(page.urls), page.faults
                scrolling = page.evaluate(SCROLLING)
            wide += [f"{width}: {e}" for e in page.evaluate(OVERFLOW)]
            torn += page.evaluate(TORN)
            if request.param.startswith("zh/") == (width == 390):
                page.evaluate(
                    "document.querySelectorAll('details').forEach("
                    "d => d.open = true)"
                )
                for v in Axe().run(page, options=ONLY).response["violations"]:
                    axe.append((v["id"], v["nodes"][0]["html"][:200]))
    return Seen(urls, faults, wide, torn, scrolling, axe)


def test_a_page_asks_nobody_else_for_anything(seen, address):
    assert seen.faults == []
    assert [u for u in seen.urls if not u.startswith(address)] == []
    assert len(seen.urls) > 3


def test_nothing_is_wider_than_the_window(seen):
    assert seen.wide == []


def test_no_line_begins_with_the_mark_after_a_formula(seen):
    assert seen.torn == []


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
