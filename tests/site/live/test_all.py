"""Every live figure: what it draws first is recorded, it is moved by mouse and
keys, its address keeps what it shows, and it has words in both languages."""

import gzip

import pytest

from tests.kit import live

NAMES = [*live.figures()]
# What a page may load for its figures: the helper and all of them.
MOST = 12 * 1024


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_still_is_what_the_figure_draws_first(show, name, language):
    """`python -m tests.kit.live NAME` records it."""
    page = show(name, language)
    assert page.faults == []
    assert live.drawn(page) == live.still(name, language)


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_light_and_has_words_in_both_languages(name):
    english, chinese = (live.figures(lang)[name] for lang in ("en", "zh"))
    assert english.spec.keys() == chinese.spec.keys()
    assert english.spec["words"].keys() == chinese.spec["words"].keys()
    assert english.scripts == chinese.scripts
    own = [s for s in english.scripts if s == "live" or s.startswith("live/")]
    size = sum(
        len(gzip.compress((live.ASSETS / f"{script}.js").read_bytes()))
        for script in own
    )
    assert size <= MOST


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_moved_by_hand_and_its_address_keeps_it(show, name):
    """Each handle by mouse and by arrows, each field by keys: something
    changes, the address says it, a reload shows it, "Start again" ends it."""
    page = show(name)
    figure, still = page.locator(".live"), live.drawn(page)

    def changed(what, *, back=True):
        after = live.drawn(page)
        assert after != still, what
        # The address follows a while after the last key, not the first.
        page.evaluate("new Promise((done) => setTimeout(done, 300))")
        page.wait_for_function(f"location.search.includes('{name}.')")
        page.reload()
        assert live.drawn(page) == after, f"{what}: not kept over a reload"
        if back:
            figure.locator(".again").click()
            assert live.drawn(page) == still, what
            page.wait_for_function(f"!location.search.includes('{name}.')")

    handles = figure.locator(".hit")
    for index in range(handles.count()):
        handle = handles.nth(index)
        label = handle.get_attribute("aria-label")
        handle.scroll_into_view_if_needed()
        box = handle.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - 17, y + 23, steps=3)
        page.mouse.up()
        held = "mark => mark === document.activeElement"
        assert handle.evaluate(held), f"another than {label} lies above it"
        changed(f"{label} by mouse")
        before = live.drawn(page)
        handle.focus()
        for key in ("ArrowLeft", "ArrowDown", "Shift+ArrowRight"):
            handle.press(key)
        assert live.drawn(page) != before, f"{label} by arrows"
        assert handle.evaluate("mark => mark === document.activeElement")
        figure.locator(".again").click()
        page.wait_for_function(f"!location.search.includes('{name}.')")
    for name_of_field in {
        c[kind]
        for c in live.figures()[name].spec.get("controls", [])
        for kind in c
        if kind in live.CONTROLS and kind != "press"
    }:
        field = figure.locator(f'[name="{name_of_field}"]').first
        kind = field.evaluate("field => field.type")
        if kind == "checkbox":
            field.click()
        elif kind == "radio":
            figure.locator(
                f'[name="{name_of_field}"]:not(:checked)'
            ).first.evaluate("field => field.click()")
        elif kind == "select-one":
            field.select_option(
                index=field.evaluate(
                    "f => (f.selectedIndex + 1) % f.options.length"
                )
            )
        else:
            for _ in range(3):
                field.press("ArrowUp")
            if live.drawn(page) == still:
                for _ in range(3):
                    field.press("ArrowDown")
        changed(f"the field {name_of_field}")
    for button in figure.locator(".holds button").all():
        button.click()
        changed(f"the button {button.text_content()}")
    assert page.faults == []


@pytest.mark.parametrize("name", NAMES)
def test_home_and_end_lead_to_the_ends_that_a_handle_names(show, name):
    """And never scroll the page away."""
    page = show(name)
    page.set_viewport_size({"width": 1440, "height": 300})
    handles = page.locator(".live .hit")

    def value(handle, which="now"):
        return float(handle.get_attribute(f"aria-value{which}"))

    for handle in handles.all():
        handle.focus()
        page.evaluate("scrollTo(0, 100)")
        for key, end in (("End", "max"), ("Home", "min")):
            assert value(handle, "min") <= value(handle) <= value(handle, "max")
            want = value(handle, end)
            handle.press(key)
            label = handle.get_attribute("aria-label")
            # A step of another size may stop short of an end.
            assert value(handle) == pytest.approx(want, abs=0.05), label
            assert page.evaluate("scrollY") == 100
    assert page.faults == []


@pytest.mark.parametrize(
    ("name", "state", "off"),
    [
        ("state", {"rule": "linear"}, {"beta", "decay"}),
        ("state", {"rule": "decay"}, {"beta"}),
        ("state", {"rule": "delta"}, {"decay"}),
        ("state", {"rule": "gated"}, set()),
        ("bits", {"bits": "fp8"}, {"along", "group"}),
        ("bits", {"bits": "8"}, set()),
    ],
)
def test_a_field_without_an_effect_is_off(show, name, state, off):
    page = show(name)
    page.evaluate(
        "([name, state]) => "
        'document.querySelector(`[data-live="${name}"]`).figure.change(state)',
        [name, state],
    )
    names = "fields => fields.map((field) => field.name)"
    found = page.locator(".live :disabled").evaluate_all(names)
    assert {*found} == off


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [1440, 390, 320])
def test_a_figure_fits(show, name, width):
    page = show(name, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", NAMES)
def test_an_address_that_makes_no_sense_is_the_usual_state(show, name):
    page = show(name)
    keys = page.evaluate(f"Object.keys(live.figures['{name}'].usual)")
    for nonsense in ("NaN", "1,2,3,4,5,6,7,8,9,1e999", "", "<b>"):
        query = "&".join(
            f"{name}.{key}={nonsense}" for key in keys if not key[0].isupper()
        )
        page.goto(page.url.partition("?")[0] + "?" + query)
        assert page.faults == []
        assert page.locator(".live .stage > *").count()
