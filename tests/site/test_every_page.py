"""Every page in a browser, in the widest font, wide and narrow: no request
elsewhere, nothing that overflows, and not too heavy. Of each type of page one
is also seen in all fonts, read by axe and seen in Chinese; `make audit` does
this with all."""

import gzip
import os
import re
from functools import cache
from itertools import product

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe

from sitekit import ROOT
from sitekit.drawing import flow, traced
from sitekit.drawing.heatmap import heatmap
from sitekit.markdown.pages import address_of, stem_of
from sitekit.released import released
from tests.kit import budget, sampled
from tests.kit.pages import PAGES
from tests.kit.site import opened

PATHS = {
    ("zh/" if path.is_relative_to(ROOT / "docs/zh") else "")
    + address_of(path): stem_of(path)
    for path in PAGES
}
# A page per released model, which the build alone writes.
MODELS = {
    f"{root}{stem}/": stem for root in ("", "zh/") for stem in released.stems()
}
# And one per mistake, of which two are seen.
MISTAKES = {
    f"{root}mistakes/{id}/": f"mistakes/{id}"
    for root in ("", "zh/")
    for id in ("scale-missing", "view-after-the-transpose")
}
PATHS |= MODELS | MISTAKES
# They are of one template, so some stand for all: in every font and for axe,
# and in Chinese, whose words are those of the template.
SOME = {*released.stems()[::10], "models/released/llama-4-scout"}
NARROWED = [path for path in PATHS if MODELS.get(path, "") in {"", *SOME}]
# The types of pages.
REPRESENTATIVES = {
    "",  # home
    "layers/gqa/",  # figures, formulas, code with a file to download
    "numbers/memory/",  # wide tables and plots
    "mistakes/cache-mistakes/",
    "mistakes/find-your-bug/",
    "mistakes/scale-missing/",
    "numbers/calculator/",
    "api/released/",
    "files/",
    "learn/exercises/",
    "models/released/llama-4-scout/",
}
# What a page of the API may break, two show: the others wait for the audit.
FEW = {path for path in PATHS if path.startswith("api/")} | {*MODELS}
WIDTHS = {"light": 1440, "dark": 390}


SEEN = {"zh/models/released/llama-4-scout/", "zh/mistakes/find-your-bug/"}


def in_test(place):
    """Of a type the English page is seen wide and light, and some of their
    twins narrow and dark: axe takes seconds."""
    path, scheme = place
    if scheme == "light":
        return path in REPRESENTATIVES
    return path in ("zh/", "zh/layers/gqa/", "zh/numbers/calculator/")


ONLY = {
    "resultTypes": ["violations"],  # the rest takes half the time
    "rules": {"target-size": {"enabled": True}},  # WCAG 2.2, off by itself
}


# What readers have; the first is the widest.
FONTS = ("DejaVu Sans", "Liberation Sans", "Noto Sans", "Noto Sans CJK SC")

# In SVG, a text's box is as high as its font: what is looked at is its ink.
OVERFLOW = """font => {
  const found = [];
  const all = (what, from = document) => [...from.querySelectorAll(what)]
    .filter(e => e.checkVisibility());
  const say = (is, e) =>
    found.push(is + ': ' + (e.textContent.trim() || e.outerHTML).slice(0, 80));
  const pen = new OffscreenCanvas(1, 1).getContext('2d');
  const ink = text => {
    const style = getComputedStyle(text), box = text.getBBox();
    pen.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    const m = pen.measureText(text.textContent.trim());
    box.y += m.fontBoundingBoxAscent - m.actualBoundingBoxAscent;
    box.height = m.actualBoundingBoxAscent + m.actualBoundingBoxDescent;
    const turned = text.getScreenCTM();
    const ends = [[0, 0], [0, 1], [1, 0], [1, 1]].map(([right, down]) =>
      new DOMPoint(box.x + right * box.width, box.y + down * box.height)
        .matrixTransform(turned));
    const [x, y] = [ends.map(p => p.x), ends.map(p => p.y)];
    return {left: Math.min(...x), right: Math.max(...x),
            top: Math.min(...y), bottom: Math.max(...y)};
  };
  const holds = (outer, inner, room) =>
    outer.left + room <= inner.left && inner.right <= outer.right - room &&
    outer.top + room <= inner.top && inner.bottom <= outer.bottom - room;
  const meet = (a, b) =>
    a.left < b.right + 1 && b.left < a.right + 1 &&
    a.top < b.bottom && b.top < a.bottom;
  for (const svg of all('.drawn svg')) {
    const frame = svg.getBoundingClientRect();
    if (!svg.closest('.panel .scroll') && frame.right
        > svg.closest('.drawn').getBoundingClientRect().right + 0.5)
      say('leaves its figure', svg);
    const boxes = all('rect', svg).map(e => e.getBoundingClientRect());
    const texts = all('text', svg).map(e => [e, ink(e)]);
    texts.forEach(([text, box], i) => {
      if (!holds(frame, box, 0)) say('leaves its drawing', text);
      const x = (box.left + box.right) / 2, y = (box.top + box.bottom) / 2;
      if (boxes.some(r => holds(r, {left: x, right: x, top: y, bottom: y}, 0)
          && !holds(r, box, 1)))
        say('leaves its rectangle', text);
      for (const [other, its] of texts.slice(i + 1))
        if (meet(box, its)) say('meets ' + other.textContent.trim(), text);
    });
  }
  for (const plots of all('.plots')) {
    const shown = [...plots.children].filter(e => e.checkVisibility());
    if (shown.length !== 1) say(shown.length + ' plots', plots);
  }
  for (const button of all('.filename ~ .copy')) {
    const name = document.createRange(), its = button.getBoundingClientRect();
    name.selectNodeContents(button.parentElement.querySelector('.filename'));
    if ([...name.getClientRects()].some(line => meet(line, its)))
      say('below its button', button.parentElement);
  }
  if (document.documentElement.scrollWidth > innerWidth)
    say('wider than the window', document.querySelector('title'));
  const blocks = `h1, h2, h3, h4, h5, h6, th, td, summary, legend, label,
    figcaption, button, .bar > *, .formula`;
  for (const e of all('.md-content *')) {
    if (e.closest('pre, svg, math')) continue;
    if (!e.closest('.scroll')
        && e.getBoundingClientRect().right > innerWidth + 1)
      say('leaves the window', e);
    if (e.matches(blocks) && e.clientWidth && e.scrollWidth > e.clientWidth + 1
        && !e.querySelector('.scroll, .headerlink'))
      say('wider than its box', e);
  }
  const set = '.drawn text:not(.shape, .token), h1, h2, h3, th, td, p, mtext';
  for (const e of all(set))
    if (getComputedStyle(e).fontFamily !== `"${font}"`)
      say('not in ' + font, e);
  return found;
}"""
# How high headings are, and how high without the link that nobody sees.
HOLES = """() => {
  const headings = [...document.querySelectorAll('.headerlink')]
    .map(link => link.parentElement);
  const high = () => headings.map(e => e.getBoundingClientRect().height);
  const before = high(), style = document.createElement('style');
  style.textContent = '.headerlink { display: none !important }';
  document.head.append(style);
  const after = high();
  const found = headings.filter((e, i) => before[i] !== after[i])
    .map(e => e.textContent)
    .concat(headings.filter(e => e.scrollWidth > e.clientWidth + 1)
      .map(e => 'wider than its box: ' + e.textContent));
  style.remove();
  return found;
}"""
ROWS = """() => [...document.querySelectorAll('.panels')]
    .filter(e => !e.querySelector('.scroll'))
    .map(e => [e, [...e.querySelectorAll('svg')].slice(0, 3)
      .map(svg => Math.round(svg.getBoundingClientRect().top))])
    .filter(([_, tops]) => Math.max(...tops) - Math.min(...tops) > 1)
    .map(([e, tops]) => e.parentElement.textContent.trim().slice(0, 60)
      + ': its drawings begin at ' + tops.join(', ') + ' px: with shorter '
      + 'titles or labels they share a row')"""
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

# Words of code and signs of formulas that look like others on this page: of
# each style and background axe reads one, and has half of its time.
READ_BEFORE = """() => {
  const seen = new Set(), again = [], below = new Map();
  const behind = e => {
    if (!e) return '';
    if (!below.has(e)) {
      const s = getComputedStyle(e);
      below.set(e, [s.backgroundColor, s.backgroundImage, s.opacity, s.filter,
        behind(e.parentElement)].join());
    }
    return below.get(e);
  };
  for (const e of document.querySelectorAll('pre code span, math *')) {
    if (e.children.length) continue;
    const s = getComputedStyle(e);
    const key = [s.color, s.fontSize, s.fontWeight, s.textShadow, behind(e)]
      .join();
    if (seen.has(key)) again.push(e);
    seen.add(key);
  }
  again.forEach(e => e.style.visibility = 'hidden');
  return again.length;
}"""


# Boxes that scroll get the focus with the frame in which they are observed.
FRAME = """() => new Promise(go =>
  requestAnimationFrame(() => requestAnimationFrame(go)))"""


def violations(page):
    """What axe finds: each rule, and the elements that break it."""
    page.evaluate(FRAME)
    page.evaluate(READ_BEFORE)
    return [
        (violation["id"], node["html"][:200])
        for violation in Axe().run(page, options=ONLY).response["violations"]
        for node in violation["nodes"]
    ]


@pytest.fixture(scope="module")
def fonts(chromium, address):
    """Those of the fonts that a text really gets when it asks for them."""
    every = []
    with opened(chromium, f"{address}numbers/memory/") as page:
        page.evaluate("document.querySelector('details').open = true")
        client = page.context.new_cdp_session(page)
        for font in FONTS:
            page.evaluate(budget.FORCE, font)
            client.send("DOM.enable")
            client.send("CSS.enable")
            root = client.send("DOM.getDocument")["root"]["nodeId"]
            got = set()
            for text in ("h1", ".wide.plot text", ".drawn td", "mtext"):
                node = client.send(
                    "DOM.querySelector", {"nodeId": root, "selector": text}
                )
                used = client.send(
                    "CSS.getPlatformFontsForNode", {"nodeId": node["nodeId"]}
                )
                got |= {each["familyName"] for each in used["fonts"]}
            if got == {font}:
                every.append(font)
    return every


OPEN = "document.querySelectorAll('details').forEach(d => d.open = true)"
# All in one call: each call has its price.
LOOK = f"""async font => {{
  const budget = ({budget.MEASURE})(), wide = innerWidth > 1000;
  if (!font) return {{budget, found: {{}}}};
  await ({budget.FORCE})(font);
  const rows = wide ? ({ROWS})() : [], torn = ({TORN})();
  {OPEN};
  const scrolling = wide ? ({SCROLLING})() : [];
  return {{budget, found: {{rows, torn, scrolling, boxes: ({OVERFLOW})(font),
    holes: ({HOLES})()}}}};
}}"""


# What a page fetches last: the settings of the search. (Chromium's own word for
# a quiet network does not come on a starved machine.)
LAST = """() => new Promise(go => new PerformanceObserver(list =>
  list.getEntries().some(e => e.name.endsWith('/search_index.json')) && go()
).observe({type: 'resource', buffered: true}))"""


@pytest.fixture(scope="module")
def tab(chromium):
    """One for all pages: to open one takes as much as to load a page."""
    with opened(chromium, "about:blank", until="load") as page:
        yield page


@cache
def weight(file):
    data = file.read_bytes()
    return len(data if file.suffix == ".woff2" else gzip.compress(data, 6))


@pytest.mark.parametrize(
    "path",
    sampled(
        [p for p in PATHS if p in NARROWED or not p.startswith("zh/")],
        lambda path: (
            path.removeprefix("zh/") in {path, *REPRESENTATIVES}
            and path not in FEW - {"api/core/", *REPRESENTATIVES, *SEEN}
        ),
    ),
)
def test_a_page_is_right_and_light(tab, address, site, fonts, path):
    """Nothing leaves its box, 1440 or 390 px wide, no line begins with the
    mark after a formula (torn), no heading is higher for its permalink
    (holes); on a wide screen panels stand in rows, and no code scrolls. It
    asks nobody else for anything, is within its budget, without an exception
    that is no longer needed, and light with all that it loads. What depends on
    a font is left to those who have it."""
    tab.goto("about:blank")  # else the last page follows the width
    tab.urls.clear()
    tab.faults.clear()
    looks = {}
    for width in (1440, 390):
        tab.set_viewport_size({"width": width, "height": 900})
        if not looks:
            tab.goto(address + path)
        looks[width] = tab.evaluate(LOOK, fonts[0] if fonts else None)
    tab.evaluate(LAST)
    faults = {
        f"{what}, {width} px": these
        for width, look in looks.items()
        for what, these in look["found"].items()
    }
    faults["faults"] = tab.faults
    faults["elsewhere"] = [u for u in tab.urls if not u.startswith(address)]
    assert {what: these for what, these in faults.items() if these} == {}
    measured = budget.Measure(**looks[1440]["budget"])
    exceeded, allowed = measured.excess(PATHS[path]), budget.allowed(path)
    if fonts != [*FONTS]:
        exceeded, allowed = ({*b} & {"block"} for b in (exceeded, allowed))
    assert exceeded == allowed, measured
    weights = {}
    for url in set(tab.urls):
        file = site.folder / url.removeprefix(address).split("?")[0]
        weights[url] = weight(file / "index.html" if file.is_dir() else file)
    heaviest = sorted(weights.items(), key=lambda item: -item[1])[:4]
    total = sum(weights.values())
    assert len(weights) > 3
    assert total <= 160_000, f"{total} bytes, of which {dict(heaviest)}"


def test_the_fonts_of_readers_are_there(fonts):
    missing = [font for font in FONTS if font not in fonts]
    if missing and not os.environ.get("CI"):
        pytest.skip(
            f"{', '.join(missing)}: not here, so no page is seen in it, nor is "
            "the height of any in pixels"
        )
    assert missing == []


def test_the_sheet_by_hand_has_two_pages(visit, address, fonts):
    if fonts != [*FONTS]:
        pytest.skip("the sheet by hand is not printed: a font is not here")
    for root in ("", "zh/"):
        page = visit(f"{address}{root}learn/by-hand/")
        page.add_style_tag(content=budget.FONTS)
        sides = "top", "right", "bottom", "left"
        paper = page.pdf(format="A4", margin=dict.fromkeys(sides, "12mm"))
        assert len(re.findall(rb"/Type /Page\b", paper)) == 2


def test_a_drawing_holds_whatever_its_words_are(chromium, fonts):
    long = "a name of many words, WWW"
    style = (ROOT / "overrides/assets/attnref.css").read_text(encoding="utf-8")
    words = [long, "注意力 attention", "<pad>", "<a token>"]
    wide = traced.Node(long, [1], f"({long}, B)", (16384,) * 4, "latent")
    steps = [("weights", long), ("op", "cache")]
    inputs = [wide, traced.Node("v", [2], "(B, T, D)", (3, 1, 1), "value")]
    last = traced.Node("return", [3], "(B,)", (1,), "mask", steps, inputs)
    nodes = traced.Traced("gqa", [*inputs, last], {})
    axes = long, long
    drawn = [
        heatmap(torch.eye(4), axes, title="", rows=words),
        heatmap(torch.ones(1, 1) > 0, axes, title="", rows=[""]),
        flow.draw(nodes, ""),
    ]
    with opened(chromium, "about:blank", width=2000) as page:
        page.set_content(
            "<title>drawn</title><body class='md-typeset'>"
            f"<style>{style} svg text {{ fill: red }}</style><figure "
            f"class='drawn'>{'<br>'.join(each.svg for each in drawn)}</figure>"
        )
        for font in fonts:
            page.evaluate(budget.FORCE, font)
            assert page.evaluate(OVERFLOW, font) == [], font


@pytest.mark.parametrize(
    ("path", "scheme"),
    sampled(product(NARROWED, WIDTHS), in_test),
)
def test_a_page_is_right_in_every_font_and_for_axe(
    chromium, address, fonts, path, scheme
):
    """Wide and light, narrow and dark."""
    faults, width = [], WIDTHS[scheme]
    with opened(
        chromium, address + path, width=width, scheme=scheme, until="load"
    ) as page:
        page.evaluate(OPEN)
        for font in fonts[1:] or fonts:  # the first is in the test above
            page.evaluate(budget.FORCE, font)
            faults += [f"{font}: {e}" for e in page.evaluate(OVERFLOW, font)]
        if fonts:
            faults += page.evaluate(HOLES) + page.evaluate(TORN)
        assert faults == []
        assert page.faults + violations(page) == []


def test_axe_finds_each_pale_word_in_code(chromium, address):
    """The last of its kind on the page; its style is met there alone."""
    pale = {".kn": "#ddd", ".k": "#dde", "span:last-child": "#ded"}
    with opened(chromium, f"{address}core/softmax/", until="load") as page:
        page.evaluate(OPEN)
        for which, colour in pale.items():
            last = page.locator(f"pre code {which}").last
            last.evaluate("(e, colour) => e.style.color = colour", colour)
        faults = violations(page)
        assert [rule for rule, _ in faults] == ["color-contrast"] * len(pale)
        assert page.evaluate(READ_BEFORE) > 100
