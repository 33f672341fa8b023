"""Strips of frames: how they are stepped, and what their numbers equal."""

import re

import pytest
from playwright.sync_api import expect

from sitekit.drawn import (
    compressed,
    mha,
)
from sitekit.markdown import pages
from tests.kit.pages import fences


def stepped():
    """Pages with a strip of frames, and its number of frames."""
    for path in pages.markdown_files("en"):
        if "```steps" in path.read_text(encoding="utf-8"):
            page_fences = fences(path.stem)
            strips = [spec for kind, spec in page_fences if kind == "steps"]
            yield pages.address_of(path), [len(s["frames"]) for s in strips]


@pytest.mark.parametrize(("path", "counts"), [*stepped()])
def test_a_strip_of_frames_is_whole_on_paper_and_stepped_on_a_screen(
    visit, address, path, counts
):
    """Without scripts and in print all frames are there; with them one at a
    time, moved by its buttons and by keys, and its words are told."""
    plain_page = visit(address + path, java_script_enabled=False, width=390)
    assert all(f.is_visible() for f in plain_page.locator(".frame").all())
    assert not plain_page.locator(".stepping button").first.is_visible()
    page = visit(address + path)
    strips = page.locator(".steps").all()
    assert [s.locator(".frame").count() for s in strips] == counts
    for strip, count in zip(strips, counts, strict=True):
        frames, output = strip.locator(".frame"), strip.locator("output")
        back, forth = strip.get_by_role("button").all()
        high = strip.bounding_box()["height"]

        def shows(n, frames=frames, output=output, count=count):
            page.wait_for_url(f"**#frame-{n + 1}")
            seen = [frame.is_visible() for frame in frames.all()]
            assert seen == [i == n for i in range(count)]
            text = frames.nth(n).locator(".said").text_content()
            expect(output).to_have_text(f"{n + 1} / {count}{text}")

        forth.click()
        shows(1)
        back.click()
        expect(back).to_have_attribute("aria-disabled", "true")
        shows(0)
        strip.get_by_role("slider").fill(f"{count - 1}")
        shows(count - 1)
        strip.locator(".frames").focus()
        page.keyboard.press("Home")
        for key, n in {
            "ArrowLeft": 0,
            "ArrowRight": 1,
            "End": count - 1,
        }.items():
            page.keyboard.press(key)
            shows(n)
        page.keyboard.press("ArrowRight")
        shows(count - 1)
        assert strip.bounding_box()["height"] == high, "nothing below moves"
        page.goto(f"{address}{path}#frame-2")
        shows(1)
        page.goto(f"{address}zh/{path}#frame-3")
        assert page.locator(".frame.now .count").inner_text() == "3"
    page.emulate_media(media="print")
    assert all(f.is_visible() for f in page.locator(".frame").all())


def drawn(frame):
    """The texts of a frame, in order."""
    return re.findall(r">([^<>]+)</text>", "".join(frame.marks))


def test_heads_that_are_transposed_hold_one_head_and_viewed_ones_do_not():
    """Read from the drawing: six rows of two on the left, then on the right."""
    whole, cut, apart, back = (
        [text for text in drawn(frame) if re.fullmatch("[0-2][ab]", text)]
        for frame in mha.reshapes().frames
    )
    assert (
        whole
        == cut
        == back[:12]
        == [f"{t}{h}" for t in range(3) for h in "aabb"]
    )
    right, wrong = apart[:12], apart[12:]
    assert right == [f"{t}{h}" for h in "ab" for t in range(3) for _ in "aa"]
    assert wrong == whole, "a view moves nothing"
    assert back[12:] == right, "nor does a reshape of what is transposed"


def test_entries_are_drawn_when_their_block_is_complete():
    """And of those the ones that a layer reads; the others wait."""
    ends, W, rate = (3, 4, 7, 12, 16), compressed.W, compressed.RATE
    for frame, end in zip(compressed.seen().frames, ends, strict=True):
        facts, drawn = frame.facts, "".join(frame.marks)
        assert facts["last"] == f"{end - 1}"
        assert facts["first"] == f"{max(0, end - W)}"
        assert facts["entries"] == f"{end // rate}"
        assert facts["waiting"] == f"{end % rate}"
        read = min(end // rate, compressed.TOPK)
        assert drawn.count('"latent"') == read
        assert len(facts["read"].split()) == read
        in_window = len(re.findall('"(?:kept|fresh)"', drawn))
        assert in_window == min(end, W)
        assert drawn.count('"recomputed"') == bool(end % rate)
