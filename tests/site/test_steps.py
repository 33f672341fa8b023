"""Strips of frames: how they are stepped, and what their numbers equal."""

import re

import pytest
import torch
from playwright.sync_api import expect
from torch.nn import functional as F

from sitekit import pages
from sitekit.drawn import sdpa
from tests.kit.pages import fences


def stepped():
    """Pages with a strip of frames, and its number of frames."""
    for path in pages.markdown_files("en"):
        if "```steps" in path.read_text(encoding="utf-8"):
            drawn = fences(path.stem)
            strips = [spec for kind, spec in drawn if kind == "steps"]
            yield pages.address_of(path), [len(s["frames"]) for s in strips]


@pytest.mark.parametrize(("path", "counts"), [*stepped()])
def test_a_strip_of_frames_is_whole_on_paper_and_stepped_on_a_screen(
    visit, address, path, counts
):
    """Without scripts and in print all frames are there; with them one at a
    time, moved by its buttons and by keys, and its words are told."""
    without = visit(address + path, java_script_enabled=False, width=390)
    assert all(f.is_visible() for f in without.locator(".frame").all())
    assert not without.locator(".stepping button").first.is_visible()
    page = visit(address + path)
    strips = page.locator(".steps").all()
    assert [s.locator(".frame").count() for s in strips] == counts
    for strip, count in zip(strips, counts, strict=True):
        frames, told = strip.locator(".frame"), strip.locator("output")
        back, on = strip.get_by_role("button").all()
        high = strip.bounding_box()["height"]

        def shows(n, frames=frames, told=told, count=count):
            seen = [frame.is_visible() for frame in frames.all()]
            assert seen == [i == n for i in range(count)]
            said = frames.nth(n).locator(".said").text_content()
            expect(told).to_have_text(f"{n + 1} / {count}{said}")

        on.click()
        shows(1)
        back.click()
        expect(back).to_have_attribute("aria-disabled", "true")
        shows(0)
        strip.locator(".frames").focus()
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
    page.emulate_media(media="print")
    assert all(f.is_visible() for f in page.locator(".frame").all())


def drawn(frame):
    """The texts of a frame, in order."""
    return re.findall(r">([^<>]+)</text>", "".join(frame.marks))


def vector(text):
    return torch.tensor([float(n) for n in re.findall(r"-?[\d.]+", text)])


def test_three_words_end_in_what_torch_gives():
    q, k, v = sdpa.QUERY[None, None], sdpa.KEYS[None], sdpa.OF_KEYS[None]
    out = F.scaled_dot_product_attention(q, k, v)[0, 0]
    frames = sdpa.three_words().frames
    facts = frames[-1].facts
    assert torch.allclose(vector(facts["output"]), out, atol=0.005)
    assert drawn(frames[1])[-9:][2::3] == facts["dots"].split(", ")
    dots, scores = vector(facts["dots"]), vector(facts["scores"])
    assert torch.allclose(scores, dots / 2**0.5, atol=0.005)
    weights = vector(facts["weights"])
    assert torch.allclose(weights, scores.softmax(0), atol=0.005)
    # Twice the area of the triangle is that of the three which the output
    # makes with its sides: it lies inside.
    sides = sdpa.OF_KEYS - out
    turns = torch.linalg.cross(
        F.pad(sides, (0, 1)), F.pad(sides.roll(-1, 0), (0, 1))
    )
    assert (turns[:, 2] > 0).all()
