"""Strips of frames: how they are stepped, and what their numbers equal."""

import cmath
import math
import re

import pytest
import torch
from playwright.sync_api import expect
from torch.nn import functional as F

from sitekit.drawn import (
    absorption,
    compressed,
    flash,
    kv_cache,
    mha,
    paged,
    rope,
    sdpa,
    softmax,
)
from sitekit.markdown import pages
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
        frames, output = strip.locator(".frame"), strip.locator("output")
        back, on = strip.get_by_role("button").all()
        high = strip.bounding_box()["height"]

        def shows(n, frames=frames, output=output, count=count):
            page.wait_for_url(f"**#frame-{n + 1}")
            seen = [frame.is_visible() for frame in frames.all()]
            assert seen == [i == n for i in range(count)]
            text = frames.nth(n).locator(".said").text_content()
            expect(output).to_have_text(f"{n + 1} / {count}{text}")

        on.click()
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


def test_only_differences_of_scores_count():
    one, more, *others = softmax.temperatures().frames
    assert one.facts["weights"] == more.facts["weights"]
    parts, whole = vector(one.facts["exponentials"]), float(one.facts["sum"])
    assert torch.allclose(parts, torch.tensor([2.0, 1, 0]).exp(), atol=0.005)
    assert abs(whole - parts.sum()) < 0.01
    for frame, temperature in zip((one, *others), (1, 0.5, 2), strict=True):
        want = (torch.tensor([2.0, 1.0, 0.0]) / temperature).softmax(0)
        assert torch.allclose(vector(frame.facts["weights"]), want, atol=0.005)
        assert drawn(frame)[3::2] == frame.facts["weights"].split(", ")


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


def test_hands_of_rope_and_their_score():
    for frame in rope.turning().frames:
        at = {k: int(frame.facts[k]) for k in ("query", "key", "far")}
        assert at["far"] == at["query"] - at["key"]
        angles = [at["far"] * 10**-p for p in range(4)]
        written = [float(x[:-1]) for x in drawn(frame) if x.endswith("\u00b0")]
        for angle, degrees in zip(angles, written, strict=True):
            assert math.cos(math.radians(degrees)) == pytest.approx(
                math.cos(angle), abs=1e-3
            )
        score = sum(map(math.cos, angles)) / 4
        assert frame.facts["score"] == f"{score:.2f}"
        hands = re.findall(
            r'arrow (\w+)" d="M(.+?) (.+?)L(.+?) (.+?)M', "".join(frame.marks)
        )
        for n, (kind, *ends) in enumerate(hands):
            x, y, to_x, to_y = map(float, ends)
            want = 36 * cmath.exp(1j * at[kind] * 10 ** -(n // 2))
            assert abs(complex(to_x - x, y - to_y) - want) < 0.2
    lowest = rope.turning().frames[2].facts["score"]
    scores = [
        (sum(math.cos(d * 10**-p) for p in range(4)) / 4) for d in range(7)
    ]
    assert f"{min(scores):.2f}" == lowest


def test_slots_of_the_cache_after_each_call():
    """Prefill, decode, a chunk, roll back, reorder: what is stored, how much
    of it is new, and how much a model without a cache computes again."""
    lengths, news, rows = (
        (4, 5, 7, 5, 5),
        (4, 1, 2, 0, 0),
        ("ab",) * 4 + ("bb",),
    )
    frames = kv_cache.stages().frames
    for frame, held, new, row in zip(frames, lengths, news, rows, strict=True):
        slots = [x for x in drawn(frame) if re.fullmatch(r"[ab]\d", x)]
        assert slots == [f"{r}{i}" for r in row for i in range(held)]
        html = "".join(frame.marks)
        assert html.count('class="fresh"') == 3 * new  # two rows, and below
        again = held - new if new else 0
        assert html.count('<rect class="recomputed"') == again
        facts = {"new": new, "held": held, "again": held - new}
        assert frame.facts == {k: str(n) for k, n in facts.items()}


def test_blocks_that_texts_share():
    """What the tables list after each call, and that each text is there."""
    texts = {"A": "bot", "B": "bad"}, {"A": "bot", "B": "bad", "C": "bot"}
    texts = {"A": "bot"}, *texts, {"A": "bot", "B": "bad", "C": "bots"}
    texts += {"A": "both", "B": "bad", "C": "bots"}, {}, {"D": "wild"}
    counted = zip(["11", *"301104"], "3221163", strict=True)
    for frame, ends, (new, left) in zip(
        paged.blocks().frames, texts, counted, strict=True
    ):
        message = " ".join(drawn(frame))
        pool, *_ = re.split(r" [A-D]:", message)
        held = r"(\d) (?:\{free\}|[A-D](?: [A-D])*)((?: [a-z_])*)"
        blocks = {n: x.replace(" ", "") for n, x in re.findall(held, pool)}
        tables = dict(re.findall(r"([A-D]): ([\d ]+)", message))
        assert {name: "you_are_" + end for name, end in ends.items()} == {
            name: "".join(blocks[n] for n in table.split())
            for name, table in tables.items()
        }
        assert frame.facts == {"new": new, "left": left}
        assert message.count("{free}") == int(left)


def test_the_last_tile_gives_what_softmax_gives():
    q, k = (torch.tensor(x).double() for x in (flash.Q, flash.K))
    v = flash.VALUES[:, None]
    out = F.scaled_dot_product_attention(q[5:], k, v, scale=1.0).item()
    *tiles, end = flash.one_row().frames
    assert end.facts["out"] == tiles[-1].facts["out"] == f"{out:.2f}"
    weights = ((q[5] @ k.T).softmax(0)).tolist()
    assert drawn(end)[4::3][:6] == [f"{w:.2f}" for w in weights]
    for n, frame in enumerate(tiles, 1):
        scores = (q[5] @ k.T)[: 2 * n]
        m = scores.max()
        p = (scores - m).exp()
        assert float(frame.facts["m"]) == m
        assert frame.facts["\u2113"] == f"{p.sum():.3f}"
        assert frame.facts["o"] == f"{p @ v[: 2 * n, 0]:.2f}"


def test_where_the_matrix_stands_decides_what_a_step_reads():
    """The sizes of DeepSeek-V3, in bfloat16, after 4096 tokens and one more."""
    frames = absorption.sliding().frames
    orders = [
        [x for x in drawn(f) if x in ("q", "k", "c", "\u00b7", "W\u1d41\u1d37")]
        for f in frames
    ]
    assert ["".join(x)[:4] for x in orders[1:]] == [
        "q\u00b7kW",
        "qW\u1d41\u1d37",
    ]
    bars = [
        float(re.findall(r'y="168" width="([\d.]+)"', "".join(f.marks))[-1])
        for f in frames
    ]
    times = 128 * (128 + 64 + 128) / (512 + 64)
    assert bars[0] / bars[1] == pytest.approx(times, rel=1e-3)


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
