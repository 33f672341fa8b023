"""A calm page: its figure or tool is on the first screen, wide and on a phone,
and its text has few sizes."""

from statistics import median

import pytest

from sitekit import ROOT
from sitekit.markdown.pages import address_of, stem_of
from tests.kit import budget
from tests.kit.pages import PAGES
from tests.kit.site import a_reader, opened, page_of

# What one looks at or takes hold of.
FIRST = """() => {
  const what = `figure, .calculator, .comparison, .card, .yours, .play,
    .filter, .blanks, .explorer`;
  const found = [...document.querySelectorAll(`article :is(${what})`)]
    .filter(e => e.checkVisibility() && !e.closest('details'));
  return found.length ? Math.round(found[0].getBoundingClientRect().top) : 0;
}"""
SCREENS = {1440: 600, 390: 844}  # a width, and the last y

# Here the first figure belongs to a section further down.
LATER = {
    "caches/same-output": "a check to copy comes first; tables are results",
    "conventions/names": "which code was read, then tables of its names",
    "learn/choose": "the answer is a list of cases",
    "mistakes/tests": "how a test is called comes first",
    "use/project": "steps; the only figure is of the last one",
}


@pytest.fixture(scope="module")
def tops(chromium, address):
    """Of each page with a figure, by width: where the first one begins."""
    found = {}
    with a_reader(chromium) as reader:
        page = page_of(reader, "about:blank")
        for path in PAGES:
            root = "zh/" if path.is_relative_to(ROOT / "docs/zh") else ""
            page.goto(address + root + address_of(path))
            page.add_style_tag(content=budget.FONTS)
            for width in SCREENS:
                page.set_viewport_size({"width": width, "height": 900})
                if top := page.evaluate(FIRST):
                    found[root + stem_of(path), width] = top
    return found


def test_the_first_figure_is_on_the_first_screen(tops):
    low = {place: top for place, top in tops.items() if top > SCREENS[place[1]]}
    assert {
        place: top
        for place, top in low.items()
        if place[0].removeprefix("zh/") not in LATER
    } == {}


@pytest.mark.parametrize(
    ("path", "what", "last"),
    [
        ("numbers/calculator/", ".calculator .facts", 600),
        ("numbers/calculator/", ".calculator .bars", 800),
        ("learn/compare/", ".comparison [name=heads]", 600),
        ("learn/trained/", ".play [name=text]", 600),
    ],
)
def test_a_tool_is_open_before_the_text(chromium, address, path, what, last):
    for width, room in ((1440, last - 100), (390, last)):
        with opened(chromium, address + path, width=width) as page:
            page.evaluate(budget.FORCE, "DejaVu Sans")  # the widest
            box = page.locator(what).first.bounding_box()
            assert box and box["y"] <= room, width


# Of each text outside code, drawings and formulas: its size, folds opened.
# Layout shifts since the page began, as browsers report them.
SHIFTS = """() => {
  window.shifts = [];
  new PerformanceObserver((list) => window.shifts.push(...list.getEntries()))
    .observe({ type: 'layout-shift', buffered: true });
}"""
MOVED = "() => window.shifts.reduce((sum, { value }) => sum + value, 0)"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "core/masks/",
        "layers/mla/",
        "learn/compare/",
        "learn/course/",
        "learn/trained/",
        "mistakes/engines/",
        "mistakes/find-your-bug/",
        "models/released/",
        "models/your-model/",
        "numbers/calculator/",
        "numbers/operations/",
    ],
)
@pytest.mark.parametrize("width", SCREENS)
def test_nothing_moves_while_a_page_loads(chromium, address, path, width):
    with a_reader(chromium, width=width) as reader:
        reader.add_init_script(f"({SHIFTS})()")
        page = page_of(reader, address + path, "networkidle")
        page.wait_for_timeout(300)
        assert page.evaluate(MOVED) <= 0.01


SIZES = """() => {
  document.querySelectorAll('details').forEach(e => e.open = true);
  const texts = document.createTreeWalker(
    document.querySelector('article'), NodeFilter.SHOW_TEXT);
  const sizes = new Set();
  while (texts.nextNode()) {
    const {data, parentElement: e} = texts.currentNode;
    if (data.trim() && e.checkVisibility()
        && !e.closest('svg, math, script, style, .headerlink'))
      sizes.add(parseFloat(getComputedStyle(e).fontSize).toFixed(1));
  }
  return [...sizes];
}"""


@pytest.mark.parametrize(
    "path",
    [
        "",
        "layers/gqa/",
        "core/sdpa/",
        "numbers/memory/",
        "api/layers/",
        "mistakes/cache-mistakes/",
        "models/released/llama-4-scout/",
        "learn/questions/",
        "zh/layers/mla/",
        "zh/models/your-model/",
    ],
)
def test_a_page_has_few_sizes_of_text(chromium, address, path):
    with opened(chromium, address + path) as page:
        page.add_style_tag(content=budget.FONTS)
        sizes = page.evaluate(SIZES)
        assert len(sizes) <= 8, sorted(sizes, key=float)
        assert min(map(float, sizes)) >= 12
    with opened(chromium, address + path, width=390) as page:
        title = page.locator("h1").evaluate("e => getComputedStyle(e).fontSize")
        assert 28 <= float(title.removesuffix("px")) <= 32


# In a browser: how many letters each line of a paragraph has, but the last one.
LETTERS = """() => {
  const counts = [], range = document.createRange();
  for (const e of document.querySelectorAll('.md-content__inner > p')) {
    const words = document.createTreeWalker(e, NodeFilter.SHOW_TEXT);
    if (e.querySelector('math, .math') || !e.checkVisibility()) continue;
    for (let text, bottom = 0, n = 0; (text = words.nextNode());)
      for (let i = 0; i < text.length; i++, n++) {
        range.setStart(text, i);
        range.setEnd(text, i + 1);
        const box = range.getBoundingClientRect();
        if (!box.height || box.bottom < bottom + 10) continue;
        if (bottom) counts.push(n);
        [bottom, n] = [box.bottom, 0];
      }
  }
  return counts;
}"""


@pytest.mark.parametrize(
    "path", ["layers/gqa/", "core/masks/", "caches/kv-cache/", "core/flash/"]
)
def test_a_line_has_at_most_some_80_letters(chromium, address, path):
    with opened(chromium, address + path) as page:
        page.add_style_tag(content=budget.FONTS)
        counts = page.evaluate(LETTERS)
        assert len(counts) > 9
        assert 60 <= median(counts) <= 80
        assert max(counts) <= 96  # many a narrow letter


@pytest.mark.parametrize(
    "place", ["layers/gqa/#cost", "mistakes/cache-mistakes/#rope-over-heads"]
)
def test_the_table_of_contents_marks_what_was_linked(chromium, address, place):
    with opened(chromium, address + place) as page:
        id = place.partition("#")[2]
        active = ".md-nav--secondary .md-nav__link--active"
        page.locator(f"{active}[href$='#{id}']:visible").first.wait_for()
        top = page.locator(f"[id='{id}']").bounding_box()["y"]
        assert 40 < top < 70, "below the header, not under it"


# A colour of the palette, as the browser computes it.
COLOUR = """name => {
  const e = document.body.appendChild(document.createElement('i'));
  e.style.color = `var(--${name})`;
  const { color } = getComputedStyle(e);
  e.remove();
  return color;
}"""


@pytest.mark.parametrize(
    ("path", "what", "kind", "name"),
    [
        ("models/released/deepseek-v3/", ".card .sizes i", "image", "ink"),
        ("models/released/gpt2/", ".damage", "image", "recomputed"),
        ("numbers/calculator/", ".bar .fill:not(.over)", "color", "ink"),
        ("numbers/calculator/?batch=9", ".over", "color", "recomputed"),
    ],
)
def test_a_colour_means_one_thing(chromium, address, path, what, kind, name):
    with opened(chromium, address + path) as page:
        style = f"e => getComputedStyle(e)['background-{kind}']"
        seen = page.locator(what).first.evaluate(style)
        assert page.evaluate(COLOUR, name) in seen


@pytest.mark.parametrize(
    "path",
    [
        "models/released/gpt2/",
        "models/released/deepseek-v3/",
        "models/your-model/",
        "numbers/calculator/",
    ],
)
def test_a_slider_says_its_value_and_has_more_than_one(chromium, address, path):
    with opened(chromium, address + path) as page:
        for slider in page.locator("article [type=range]:visible").all():
            assert slider.get_attribute("max") != slider.get_attribute("min")
            value = "e => e.parentElement.querySelector('output').value"
            assert slider.evaluate(value)


def test_paper_has_no_controls_and_no_files(chromium, address):
    controls = "input, select, button, .link, .copy, .take"
    for path in ("layers/mla/", "numbers/calculator/", "learn/compare/"):
        with opened(chromium, address + path) as page:
            page.emulate_media(media="print")
            seen = page.locator(f"article :is({controls}):visible")
            assert seen.evaluate_all("all => all.map(e => e.outerHTML)") == []
            files = page.locator("details:not([open]) .filename:visible")
            assert files.count() == 0


def test_released_begins_with_models_that_have_numbers(chromium, address):
    with opened(chromium, address + "models/released/") as page:
        rows = page.locator(".released tbody tr")
        names = rows.locator("th a").count()
        first = rows.nth(names - 1).locator("th a").count()
        assert names > 90 and first == 1, "all links, then all others"


def test_back_to_top_is_a_button_that_covers_little(chromium, address):
    """The theme fixes its upper end, ours the lower one: not both at once."""
    url = address + "core/sdpa/"
    with opened(chromium, url, width=390, until="load") as page:
        page.evaluate("scrollTo(0, 1800)")
        page.wait_for_timeout(200)
        page.evaluate("scrollTo(0, 1500)")
        button = page.locator(".md-top")
        button.wait_for(state="visible")
        box = button.bounding_box()
        assert box["height"] < 60 and box["y"] > 600


def test_the_second_link_skips_to_the_figure(chromium, address):
    with opened(chromium, address + "core/sdpa/", until="load") as page:
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        figure = "document.activeElement.closest('#live-sdpa') !== null"
        assert page.evaluate(figure)
