"""The site in a browser: what a reader sees, copies, searches, takes home."""

import io
import re
import subprocess
import sys
import zipfile

import pytest
from PIL import Image
from playwright.sync_api import expect

from sitekit import ROOT, files
from sitekit.markdown.pages import body_of, python_blocks
from tests.kit import sampled
from tests.kit.site import a_reader, page_of

# But for what a tab that is not chosen hides.
DRAWN = "article :is(math, figure svg):not(.tabbed-block *)"
OPEN = "all => all.forEach(fold => (fold.open = true))"  # all folds


def test_the_language_switch_stays_on_the_page(visit, address):
    page = visit(address + "core/masks/?h=padding#left")
    page.click("a.language")
    page.wait_for_url(address + "zh/core/masks/?h=padding#left")
    page.goto(address + "zh/core/masks/")
    assert page.locator("h1").inner_text().startswith("掩码")
    page.click("a.language")
    page.wait_for_url(address + "core/masks/")
    page.goto(address + "zh/")
    page.click("a.language")
    page.wait_for_url(address)


@pytest.mark.parametrize("language", sampled(["en", "zh"], ["zh"]))
def test_the_copy_button_gives_what_ran(visit, address, language):
    root = "" if language == "en" else "zh/"
    page = visit(
        f"{address}{root}core/softmax/",
        permissions=["clipboard-read", "clipboard-write"],
    )
    ran = python_blocks(
        body_of(ROOT / "docs" / language / "core" / "softmax.md")
    )
    label, done = {"en": ("Copy", "Copied"), "zh": ("复制", "已复制")}[language]
    page.eval_on_selector_all("details", OPEN)
    buttons = page.locator("article .language-python button.copy")
    assert buttons.count() == len(ran)
    for button, text in zip(buttons.all(), ran, strict=True):
        expect(button).to_have_attribute("aria-label", label)
        button.click()
        expect(button).to_have_attribute("aria-label", done)
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.rstrip("\n") == text.rstrip("\n")
    # What is neither Python nor titled: seen, and copied as one would run it.
    for kind, shown, text in (
        ("bash", "ls\n", "ls\n"),
        ("pycon", ">>> f(\n... 1)\n2\n>>> g()\n", "f(\n1)\ng()"),
        ("diff", " a\n-b\n+c\n", "a\nc\n"),
    ):
        page.evaluate(
            """([kind, shown]) => {
              const made = document.createElement("div");
              made.className = `language-${kind} highlight`;
              made.innerHTML = "<pre><code></code></pre>" +
                document.querySelector("button.copy").outerHTML;
              made.querySelector("code").textContent = shown;
              document.querySelector("article").prepend(made);
            }""",
            [kind, shown],
        )
        button = page.locator("article button.copy").first
        page.mouse.move(0, 0)
        assert button.evaluate("e => getComputedStyle(e).opacity") == "1"
        button.focus()
        button.press("Enter")
        expect(button).to_have_attribute("aria-label", done)
        assert page.evaluate("navigator.clipboard.readText()") == text


@pytest.mark.parametrize(
    ("root", "letters"),
    [
        ("", ["B: batch size", "K: number of key/value heads"]),
        ("zh/", ["B: 批大小", "K: 键值头（KV 头）数"]),
    ],
)
def test_a_pointer_on_a_shape_is_given_its_letters(
    visit, address, root, letters
):
    page = visit(f"{address}{root}layers/gqa/")
    page.eval_on_selector_all("details", OPEN)
    for code in ("# (B, K, T, D)", "(B, K, S, D)"):
        whole = re.compile(f"^{re.escape(code)}$")
        shapes = page.locator("article :is(td code, .c1)")
        shape = shapes.filter(has_text=whole).first
        shape.hover()
        title = shape.get_attribute("title").split("\n")
        assert title[::2] == letters, "and T or S, and D"
    first = page.locator("article code:visible").first
    first.hover()
    assert not first.get_attribute("title")


def test_a_box_of_a_data_flow_and_its_lines_light_up_together(visit, address):
    page = visit(f"{address}layers/mha/")
    box = page.locator("svg.flow [data-lines='22 24']")  # scores
    code = page.locator("code", has_text="class MHA").first
    marks = "code => code.style.backgroundPosition.split(',').length"
    for leave in (box.click, box.hover):  # a click leaves them lit
        leave()
        assert code.evaluate(marks) == 2
        assert page.locator("svg.flow .lit").count() == 1
    code.hover(position={"x": 40, "y": 40})  # no box has the second line
    assert page.locator("svg.flow .lit").count() == 0


@pytest.mark.parametrize("path", ["layers/mha/", "zh/core/masks/"])
def test_without_javascript_everything_is_there(visit, address, path):
    def sizes(page):
        boxes = "boxes => boxes.map(b => b.getBoundingClientRect().width)"
        return page.eval_on_selector_all(DRAWN, boxes)

    without = visit(address + path, java_script_enabled=False)
    page = visit(address + path)
    for each in (without, page):  # where scripts run, one frame is shown
        assert each.locator(".steps .frame").count() == 4 * ("mha" in path)
        moving = (
            ".steps, .live, form, .legend"  # shapes say their letters on hover
        )
        each.eval_on_selector_all(moving, "all => all.map(s => s.remove())")
    assert without.faults == []
    shown = without.locator("article").inner_text()
    assert page.locator("article").inner_text().split() == shown.split()
    assert min(sizes(page)) > 0
    without.eval_on_selector_all("details", OPEN)
    without_sizes = [box.bounding_box() for box in without.locator(DRAWN).all()]
    assert all(box and box["width"] > 0 for box in without_sizes)
    assert len(without_sizes) > 5


def test_figures_follow_light_and_dark(visit, address):
    def colours(page):
        return page.evaluate(
            """() => ['rect.on', 'rect.off', 'text.label'].map(s =>
            getComputedStyle(document.querySelector('.drawn ' + s)).fill)"""
        )

    page = visit(address + "core/masks/")
    light = colours(page)
    page.get_by_role("button", name="Switch to dark").click()
    dark = colours(page)
    assert all(a != b for a, b in zip(light, dark, strict=True))


def scheme_of(page):
    return page.evaluate(
        """() => [document.body.dataset.mdColorScheme,
        document.querySelector("[name=color-scheme]").content,
        document.querySelector("[name=theme-color]").content,
        getComputedStyle(document.body).backgroundColor]"""
    )


LIGHT = ["default", "light", *["rgb(253, 252, 249)"] * 2]
DARK = ["slate", "dark", *["rgb(22, 25, 26)"] * 2]


@pytest.mark.parametrize(("scheme", "seen"), [("light", LIGHT), ("dark", DARK)])
def test_no_reader_sees_the_other_scheme_first(chromium, address, scheme, seen):
    """It is there before the script of the theme."""
    with a_reader(chromium, scheme=scheme) as context:
        context.route("**/bundle.*.js", lambda route: route.abort())
        page = page_of(context, address + "core/masks/")
        assert scheme_of(page) == seen
        other = DARK if seen == LIGHT else LIGHT
        page.emulate_media(color_scheme=other[1])
        body = page.locator("body")
        expect(body).to_have_attribute("data-md-color-scheme", other[0])
        assert scheme_of(page) == other


def test_a_chosen_scheme_holds_in_both_languages(visit, address):
    page = visit(address + "core/masks/")
    there = page.get_by_role("button", name="Switch to dark")
    back = page.get_by_role("button", name="Switch to light")
    expect(there).to_be_visible()
    expect(back).to_be_hidden()
    there.press("Enter")
    expect(back).to_be_focused()
    expect(there).to_be_hidden()
    for _ in range(2):
        assert scheme_of(page) == DARK
        page.goto(address + "zh/core/masks/")
    page.get_by_role("button", name="切换到浅色").click()
    page.goto(address)
    assert scheme_of(page) == LIGHT
    page.evaluate(
        """() => matchMedia('(prefers-color-scheme: dark)').addEventListener(
        'change', () => document.body.dataset.told = 'dark')"""
    )
    page.emulate_media(color_scheme="dark")
    # Our listener is the last: those of the page have been called before it.
    expect(page.locator("body")).to_have_attribute("data-told", "dark")
    assert scheme_of(page) == LIGHT, "chosen is chosen"


def test_a_scheme_can_be_chosen_where_nothing_is_stored(chromium, address):
    with a_reader(chromium) as context:
        context.add_init_script(
            "Object.defineProperty(window, 'localStorage',"
            " { get() { throw new DOMException('no', 'SecurityError') } })"
        )
        page = page_of(context, address + "core/masks/")
        page.get_by_role("button", name="Switch to dark").click()
        assert scheme_of(page) == DARK


@pytest.mark.parametrize("scheme", sampled(["light", "dark"], ["dark"]))
def test_a_table_has_a_shadow_where_it_goes_on(visit, address, scheme):
    """To the right, on both sides, to the left; nowhere once it is whole."""

    def ends(box):
        """Whether the first and the last column of pixels are paper."""
        picture = Image.open(io.BytesIO(box.screenshot())).convert("RGB")
        paper = picture.getpixel((picture.width // 2, 1))
        return [
            picture.getpixel((x, picture.height // 2)) == paper
            for x in (0, picture.width - 1)
        ]

    page = visit(address + "files/", width=390, scheme=scheme)
    box = page.locator(".scroll:has(> table)").first
    # The words go, so that any pixel shows what is behind them.
    page.add_style_tag(content=".scroll * { visibility: hidden }")
    for at, seen in (
        (0, [True, False]),
        (60, [False] * 2),
        (9999, [False, True]),
    ):
        box.evaluate("(box, at) => (box.scrollLeft = at)", at)
        assert ends(box) == seen, at
    page.set_viewport_size({"width": 1440, "height": 900})
    assert ends(box) == [True, True]


def test_words_in_a_formula_are_never_broken(visit, address):
    """Laid out again, for a picture of the whole page, Chromium breaks them
    into letters, of which it draws the first, where words may be broken."""
    page = visit(address + "numbers/memory/", width=390)
    widths = """() => [...document.querySelectorAll(".formula mtext")].map(e =>
    {
      const range = document.createRange();
      range.selectNodeContents(e);
      return range.getBoundingClientRect().width;
    })"""
    before = page.evaluate(widths)
    page.screenshot(full_page=True)
    assert page.evaluate(widths) == before
    assert min(before) > 20
    # On paper it is light and whole, from a dark screen too.
    page.get_by_role("button", name="Switch to dark").click()
    page.evaluate(
        """() => document.querySelector("article").insertAdjacentHTML(
        "beforeend", "<details class=question><summary>?</summary>"
        + "<p id=folded>unfolded</p></details>")"""
    )
    page.set_viewport_size({"width": 718, "height": 900})
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(
        """() => [document.body, document.querySelector("th")].map(e =>
        getComputedStyle(e)).map(({ backgroundColor, color }) =>
        [backgroundColor, color])"""
    )[0] == ["rgb(253, 252, 249)", "rgb(33, 35, 31)"]
    cut = page.eval_on_selector_all(
        "article :is(.scroll, pre > code)",
        """all => all.filter(e => e.getBoundingClientRect().height)
        .filter(e => getComputedStyle(e).overflowX !== "visible"
          || e.scrollWidth > e.clientWidth + 1)
        .map(e => e.textContent.slice(0, 40))""",
    )
    assert cut == []
    assert page.locator("#folded").bounding_box()["height"] > 10


def test_a_phone_of_320_px_has_room(visit, address):
    """For the name of the site, for fields, and for names of models."""
    page = visit(address + "models/your-model/", width=320)
    inside = """all => all.filter(e => e.checkVisibility())
        .map(e => [e.getBoundingClientRect().right, e.scrollWidth -
          e.clientWidth]).filter(([right, cut]) => right > 304 || cut > 0)"""
    fields = ":is(.yours, .card) :is(select, input:not([type=file]), textarea)"
    for what in (fields, ".md-header__topic:first-child .md-ellipsis"):
        assert page.locator(what).first.is_visible()
        assert page.eval_on_selector_all(what, inside) == [], what
    page.goto(address + "models/released/")
    cells = page.locator(".released tbody th")
    assert cells.count() > 100
    cut = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert cells.evaluate_all(cut) == 0


def test_code_that_scrolls_is_reached_by_keys_on_a_phone(visit, address):
    """The theme sees to it where there is a pointer that hovers."""
    page = visit(
        address + "zh/layers/gqa/", width=390, has_touch=True, is_mobile=True
    )
    page.eval_on_selector_all("details", OPEN)
    page.wait_for_function(
        """() => {
          const all = [...document.querySelectorAll("pre > code")]
            .filter(e => e.scrollWidth > e.clientWidth);
          return all.length > 3 && all.every(e => e.tabIndex === 0);
        }"""
    )


# Two frames after a key: what has the focus, and whether a reader sees it.
FOCUS = """() => new Promise((go) => requestAnimationFrame(() =>
  requestAnimationFrame(() => {
    const e = document.activeElement, box = e.getBoundingClientRect();
    const x = (box.left + box.right) / 2;
    const y = (box.top + Math.min(box.bottom, innerHeight)) / 2;
    const top = document.elementFromPoint(x, y);
    go({
      name: `${e.tagName} ${e.textContent.trim().slice(0, 40)}`,
      seen: box.left >= 0 && box.right <= innerWidth && box.width > 0
        && box.height > 0 && Boolean(top)
        && (e.contains(top) || top.contains(e))
        && e.checkVisibility({opacityProperty: true, visibilityProperty: true}),
      part: ["article", ".md-sidebar--primary"].find(
        (part) => e.matches(`${part} *`)) ?? "",
    });
  })))"""


def stops(page, until):
    """What Tab leads to, up to the first for which `until` holds."""
    found = []
    while not found or not until(found[-1]):
        page.keyboard.press("Tab")
        found.append(page.evaluate(FOCUS))
        assert found[-1]["seen"], found[-1]
        assert len(found) < 60
    return found


@pytest.mark.parametrize("width", [390, 1024])
def test_tab_leads_to_what_is_seen_alone(visit, address, width):
    page = visit(address + "layers/mla/", width=width, reduced_motion="reduce")
    before = stops(page, lambda stop: stop["part"] == "article")
    assert not any("Compare" in stop["name"] for stop in before)
    # The drawer is opened, read, left and closed by keys.
    drawer = page.locator("#__drawer")
    button = page.get_by_role("button", name="Navigation", exact=True)
    side = ".md-sidebar--primary"
    button.focus()
    page.keyboard.press("Space")
    assert page.evaluate(FOCUS)["part"] == side
    assert drawer.is_checked()
    inside = stops(page, lambda stop: stop["part"] != side)
    assert [stop["name"] for stop in inside].count("A Compare") == 1
    assert len(inside) == 8
    assert not drawer.is_checked()
    # What is chosen there hides the list that it covers.
    button.focus()
    for key in ("Enter", "Enter", "Shift+Tab", "Enter"):
        page.keyboard.press(key)
    assert page.evaluate(FOCUS)["name"] == "LABEL Variants"
    above = stops(page, lambda stop: "Models" in stop["name"])
    assert not any("Compare" in stop["name"] for stop in above)
    page.keyboard.press("Enter")
    below = stops(page, lambda stop: "Your model" in stop["name"])
    assert len(below) < 5
    page.keyboard.press("Escape")
    assert not drawer.is_checked()
    assert button.evaluate("e => e === document.activeElement")
    # The table of contents is a list of the drawer where it has no room.
    if width == 390:
        page.reload()
        button.focus()
        page.keyboard.press("Enter")
        stops(page, lambda stop: "LABEL Multi-head latent" in stop["name"])
        page.keyboard.press("Enter")
        contents = stops(page, lambda stop: stop["part"] != side)
        assert "A The plain form" in [stop["name"] for stop in contents]


def test_a_choice_is_seen_in_forced_colours(visit, address):
    """Where the colour of a background says nothing."""
    page = visit(address + "core/rules/", forced_colors="active")
    labels = page.locator(".explorer").first.locator(".tabbed-labels > label")
    inputs = page.locator(".explorer input")

    def ink():
        """Pixels of the second label that are not those of its background."""
        file = io.BytesIO(labels.nth(1).screenshot())
        picture = Image.open(file).convert("L").point(lambda x: 255 * (x < 128))
        return picture.histogram()[255]

    before = ink()
    inputs.nth(1).evaluate("e => e.click()")
    assert ink() > 1.2 * before


def test_a_choice_in_a_picture_is_in_the_address(visit, address):
    page = visit(address + "core/rules/")
    page.locator(".explorer input").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.url.endswith("core/rules/#__tabbed_1_2")
    again = visit(page.url)
    assert again.locator(".explorer input").nth(1).is_checked()


# A page, one of its fields, and what is typed there.
LEFT = {
    "numbers/calculator/": (".calculator [name=tokens]", "777", "tokens=777"),
    "learn/compare/": (".comparison [name=tokens]", "777", "tokens=777"),
    "models/your-model/": ("textarea", '{"a": 777}', "777"),
}


@pytest.mark.parametrize("path", LEFT)
def test_what_was_typed_last_is_there_on_the_way_back(visit, address, path):
    """At once, when the pause that the address waits for has not passed."""
    field, text, query = LEFT[path]
    page = visit(address + path)
    page.clock.install()
    page.goto(address + path)
    page.clock.pause_at(page.evaluate("Date.now() + 1000"))
    page.eval_on_selector_all("details", OPEN)
    page.locator(field).fill(text)
    assert query not in page.url
    page.goto(address + "core/masks/")
    page.go_back()
    assert query in page.url
    expect(page.locator(field)).to_have_value(text)


def test_boxes_are_drawn_in_forced_colours(visit, address):
    page = visit(address + "learn/compare/", forced_colors="active")
    box = page.locator(".comparison .state").first.locator(".scaled i").first
    colour = "e => getComputedStyle(e).backgroundColor"
    assert box.evaluate(colour) != page.locator("body").evaluate(colour)


def test_the_head_of_a_table_is_on_each_sheet_of_paper(visit, address):
    """Chromium repeats the words of a head, but no buttons."""
    page = visit(address + "models/released/")
    page.emulate_media(media="print")
    buttons = page.locator(".models thead button")
    display = "all => all.map(e => getComputedStyle(e).display)"
    assert {*buttons.evaluate_all(display)} == {"contents"}


def test_formulas_are_drawn_with_the_math_font(visit, address):
    page = visit(address + "zh/core/sdpa/")
    assert page.evaluate("document.fonts.check('16px \"STIX Two Math\"')")
    fonts = [u for u in page.urls if u.endswith(".woff2")]
    assert len(fonts) == 1
    # A delimiter that stretches is much taller than a letter.
    assert page.evaluate(
        """() => Math.max(...[...document.querySelectorAll('.formula mo')]
        .map(e => e.getBoundingClientRect().height))"""
    ) > 40  # fmt: skip


# Built once more, as files: in `make audit`.
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


@pytest.mark.audit
def test_the_zip_is_read_from_the_disk(visit, unpacked):
    page = visit((unpacked / "index.html").as_uri())
    page.locator("article details.more > summary").first.click()
    page.locator("article a", has_text="Masks").first.click()
    page.wait_for_url("**/core/masks.html")
    assert page.locator("article svg").count() >= 4
    page.click("a.language")
    page.wait_for_url("**/zh/core/masks.html")
    assert page.faults == []
    assert all(u.startswith(("file:", "blob:", "about:")) for u in page.urls)


@pytest.mark.audit
def test_the_zip_holds_the_files_and_leads_to_them(visit, unpacked):
    for name, text in files.texts().items():
        path = unpacked / "files" / name
        assert path.read_text(encoding="utf-8") == text
    page = visit((unpacked / "zh" / "layers" / "gqa.html").as_uri())
    for way in (".filename a", ".whole .download"):
        link = page.locator(way).first.evaluate("link => link.href")
        assert link == (unpacked / "files" / "plain" / "gqa.py").as_uri()
    assert page.locator("button.take").count() == 0  # it may not read files


@pytest.mark.audit
@pytest.mark.parametrize(
    ("path", "query", "first"),
    [
        ("index.html", "gqa", "/gqa.html"),
        ("zh/index.html", "KV 缓存", "/zh/caches/kv-cache.html"),
    ],
)
def test_the_zip_can_be_searched(visit, unpacked, path, query, first):
    page = visit((unpacked / path).as_uri())
    page.locator(".md-search__input").focus()
    page.keyboard.insert_text(query)
    link = page.locator(".md-search-result__link").first
    expect(link).to_have_attribute("href", re.compile(re.escape(first)))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{first}*")
    assert page.faults == []
    assert all(u.startswith(("file:", "blob:", "about:")) for u in page.urls)


@pytest.mark.audit
def test_the_calculator_runs_from_the_disk(visit, unpacked):
    page = visit((unpacked / "zh" / "numbers/calculator.html").as_uri())
    result = page.locator(".calculator .said")
    page.locator("[name=model]").select_option("gpt2")
    page.locator("[name=tokens]").fill("1024")
    assert "36 MiB" in result.inner_text()
    assert page.faults == []
    assert all(u.startswith(("file:", "blob:", "about:")) for u in page.urls)
    page.wait_for_url("**model=gpt2&tokens=1024")
    again = visit(page.url).locator(".calculator .said")
    assert again.inner_text() == result.inner_text()
