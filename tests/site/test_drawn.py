"""Figures and computed tables hold what the pages say of them."""

import ast
import json
import math
import re

import pytest
import torch
import yaml

import attnref
from attnref.check.tasks import TASKS
from attnref.core.flash import flash_lse
from attnref.numbers.cost import attention_cost
from attnref.numbers.kv_memory import size
from attnref.released.specs import models
from sitekit import ROOT
from sitekit.drawing import svg
from sitekit.drawing.recorded import wiring
from sitekit.drawn import (
    absorption,
    checkpoints,
    decoder,
    flash,
    gqa,
    index,
    kv_cache,
    masks,
    merge,
    mha,
    mla,
    one_code,
    operations,
    rope,
    rules,
    scaling,
    sdpa,
    softmax,
)
from sitekit.markdown import calls
from sitekit.markdown.fences import Fence, drawing
from sitekit.markdown.mathml import mathml
from sitekit.markdown.pages import markdown_files
from sitekit.markdown.render import Word, inline
from sitekit.markdown.source import CALLS, DRAWN
from tests.kit.pages import fences

AXES = ("query", "key")


def shown(stem, number, language="en"):
    """The HTML of a fence as its page has it."""
    kind, spec = fences(stem, language)[number]
    return drawing(yaml.safe_dump(spec), kind, Fence(stem, language))


def panels(html):
    """The matrix of each heat map, as it is drawn."""
    for drawn in html.split("<svg")[1:]:
        number = r'class="(?:on|off|zero|weight)"[^>]*>([^<]+)<'
        cells = re.findall(number, drawn)
        width = len(set(re.findall(r'<rect [^>]*? x="([^"]+)"', drawn)))
        values = [float(cell) for cell in cells]
        yield [values[i : i + width] for i in range(0, len(cells), width)]


def words(folder):
    """What the Python files below name, and `file.name` for what is of one:
    definitions and strings do not count."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                file = (node.module or "").rpartition(".")[2]
                yield from (f"{file}.{name.name}" for name in node.names)
            elif isinstance(node, ast.Attribute):
                yield f"{ast.unparse(node.value)}.{node.attr}"
            elif isinstance(node, ast.Name):
                yield f"{path.stem}.{node.id}"


def drawn_by_pages():
    """`file.name` of what their fences call, and of kinds of fence."""
    for page in {path.stem for path in markdown_files("en")}:
        file = page.replace("-", "_")
        for kind, spec in fences(page):
            yield f"{file}.{kind}"
            for part in (spec, *spec.get("panels", ())):
                told = " ".join(str(part[key]) for key in CALLS if key in part)
                for name in re.findall(r"[a-z_][\w.]*", told):
                    yield name if "." in name else f"{file}.{name}"


@pytest.mark.whole
def test_what_a_file_draws_is_on_a_page_and_in_a_test():
    """What it defines is called by a fence or by what draws; what a fence calls
    is named in a test, which says what it should give."""
    called, used, tested = (
        {*drawn_by_pages()},
        {*words("sitekit")},
        {*words("tests")},
    )
    for page in calls.pages():
        file = page.replace("-", "_")
        for name in calls.drawn(page).keys() - {"numbers"}:  # of the text
            own = f"{file}.{name}"
            place = f"sitekit/drawn/{file}.py: {name}"
            assert own in called | used, (
                f"{place} is drawn by no page: delete it"
            )
            if own in called and name not in DRAWN:
                why = (
                    "is compared in no test: compare it, as test_drawn.py does"
                )
                assert own in tested, f"{place} {why}"


def test_what_a_fully_masked_row_gives():
    rows = {
        tuple(
            c.key if isinstance(c, Word) else c.strip("`") for c in row[:2]
        ): [c.key for c in row[2:]]
        for row in masks.fully_masked()
    }
    f16, bf16, f32, f64 = range(4)
    assert rows["add", "-1e9"] == ["nan", "uniform", "uniform", "ignored"]
    assert rows["add", "finfo.min"] == ["uniform"] * 4
    assert rows["add", "-inf"] == ["nan"] * 4
    assert rows["add2", "finfo.min"] == ["nan"] * 4
    assert rows["fill", "-1e9"][f16] == "refused"
    assert rows["fill", "-1e9"][bf16:] == ["uniform"] * 3
    assert rows["fill", "-inf"] == ["nan"] * 4
    assert rows["ours", "False"] == ["zeros"] * 4
    assert len(rows) == 8


def test_what_others_give_for_an_empty_row():
    assert {who: word.key for who, word in masks.empty_rows()} == {
        "`torch.softmax`, `masked_fill(-inf)`": "nan",
        "`F.scaled_dot_product_attention`, `bool`": "zeros",
        "`F.scaled_dot_product_attention`, `-inf`": "zeros",
        "`F.scaled_dot_product_attention`, `finfo.min`": "uniform",
        "`nn.MultiheadAttention`": "nan",
        "`nn.MultiheadAttention`, `need_weights=False`": "zeros",
        "transformers, `eager`": "uniform",
        "transformers, `sdpa`": "zeros",
        "`attnref.sdpa`": "zeros",
    }


def test_the_masks_of_rules():
    before = attnref.causal_mask(6)
    assert torch.equal(masks.window(6, 3), before.triu(-2))
    assert torch.equal(rules.prefix(6, 3), before | (torch.arange(6) < 3))
    slots = torch.tensor([3, 4, 2, -1])
    assert rules.slots(slots, 2).int().tolist() == [[1, 0, 1, 0], [1, 1, 0, 0]]
    ids = torch.tensor([0, 0, 0, 1, 1])
    packed = torch.block_diag(
        attnref.causal_mask(3), attnref.causal_mask(2)
    ).bool()
    assert torch.equal(masks.documents(ids), packed)


def test_a_filler_does_what_it_should_while_a_key_is_left():
    # The page says: as long as one key is allowed, it nearly does.
    scores = torch.tensor(masks.SCORES)
    keep = torch.tensor([True, True, False, False])
    want = torch.softmax(scores.masked_fill(~keep, -torch.inf), -1)
    for dtype in masks.DTYPES:
        for filler in (-1e9, -1e20, torch.finfo(dtype).min):
            s = scores.to(dtype)
            got = torch.softmax(s + (~keep).to(dtype) * filler, -1)
            assert torch.allclose(got.float(), want, atol=1e-2)


def test_a_score_that_stands_out_does_not_drown_in_the_filler():
    scores = torch.tensor([40.0, 2.0, 3.0, 0.5])
    weights = torch.softmax(scores + torch.ones(4) * -1e9, -1)
    assert weights[0] > 0.999


def test_the_table_of_checkpoints_is_what_was_recorded():
    text = checkpoints.ORACLES.read_text(encoding="utf-8")
    recorded = json.loads(text)["checkpoints"]
    for row, was in zip(checkpoints.checkpoints(), recorded, strict=True):
        model, verdict, error, found, cure, from_config = row
        assert model.startswith(f"`{was['model_type']}`")
        assert was["config"] in model and verdict.key == was["verdict"]
        assert all(f"`{each}`" in cure for each in was["cure"])
        assert from_config.key == was["from_config"]
        if verdict.key == "wrong":
            assert (float(error), found.key) == (was["found"], was["reason"])
        else:
            assert error == "" and found == ", ".join(
                f"`{name}`" for name in was["found"] or ()
            )


def test_weights_of_three_scores():
    for t in (0.5, 1.0, 2.0):
        want = [math.exp(score / t) for score in (2, 1, 0)]
        got = softmax.weights(temperature=t).tolist()
        assert got == [round(e / sum(want), 2) for e in want]
    assert softmax.weights(temperature=1.0).tolist() == [0.67, 0.24, 0.09]


def test_where_exp_overflows():
    rows = {row[0].strip("`"): row for row in softmax.exp_range()}
    assert rows["float16"][1:4] == ["65504", "11.1", "inf"]
    assert rows["float32"][1:3] == ["3.40e38", "88.7"]
    for row in rows.values():
        assert row[4:] == ["`[nan, 0.0]`", "`[1.0, 0.0]`"]


def test_the_online_form_chunk_by_chunk():
    scores, values = map(torch.tensor, (softmax.SCORES, softmax.VALUES))
    for seen, row in zip((2, 4, 5), softmax.chunks(), strict=True):
        x, largest = scores[:seen], scores[:seen].max()
        m, _, total, out, mean = map(float, row[1:])
        assert m == largest
        assert total == round((x - m).exp().sum().item(), 4)
        want = torch.softmax(x, -1) @ values[:seen]
        assert mean == round(want.item(), 2)
        assert abs(out / total - mean) < 0.01
    assert row[2] == "1.0000"  # in the prose


def test_the_tiles_of_flash_attention_one_after_another():
    """After each tile of keys, the state is that of attention up to there."""
    scores, values = flash.SCORES, flash.VALUES
    rows = iter(flash.states())
    for query in flash.QUERIES:
        total = 0.0
        for tile in range(1, 4):
            seen = slice(0, min(2 * tile, query + 1))
            x = scores[query, seen]
            m, factor, new, *sums = next(rows)[3:]
            m, factor = float(m), float(factor)
            new = [float(p) for p in new.split(", ")]
            before, (total, acc, out, lse) = total, map(float, sums)
            assert m == x.max()
            assert total == round((x - m).exp().sum().item(), 4)
            assert total == pytest.approx(before * factor + sum(new), abs=3e-4)
            mean = torch.softmax(x, -1) @ values[seen]
            assert out == pytest.approx(mean.item(), abs=6e-4)
            assert acc / total == pytest.approx(out, abs=2e-3)
            assert lse == round(x.logsumexp(-1).item(), 4)
            held = flash.held(tile)[query - flash.QUERIES[0]]
            assert held @ values == pytest.approx(acc, abs=6e-4)
            assert held.sum() == pytest.approx(total, abs=6e-5)
    assert [*rows] == []
    x = torch.tensor(flash.Q, dtype=torch.float64)[None, None]
    y = torch.tensor(flash.K, dtype=torch.float64)[None, None]
    out, lse = flash_lse(
        x, y, values[None, None, :, None], attnref.causal_mask(6), scale=1.0,
        tile=(2, 2),
    )  # fmt: skip
    ends = [[*flash.states()][i] for i in (2, 5)]
    assert [f"{n:.3f}" for n in out[0, 0, 4:, 0].tolist()] == [
        row[8] for row in ends
    ]
    assert [f"{n:.4f}" for n in lse[0, 0, 4:].tolist()] == [
        row[9] for row in ends
    ]


def test_tiles_that_are_hidden_have_no_number():
    numbers = [flash.order(w).numbers[::2, ::2].tolist() for w in (None, 3)]
    assert numbers == [
        [[1, 0, 0], [2, 3, 0], [4, 5, 6]],
        [[1, 0, 0], [2, 3, 0], [0, 4, 5]],
    ]
    for w in (None, 3):
        drawn = flash.order(w)
        assert drawn.numbers[drawn.seen].all()
    html = shown("flash", 0)
    assert html.count('class="made"') == 2 * (3 + 5)  # boxes and numbers


def test_bytes_that_flash_attention_moves_and_saves():
    rows = {row[0].key: row[1:] for row in flash.moved(8192, 128)}
    q, kv, scores = 2**26, 2**25, 2**32  # bytes
    for name, n in (
        ("eager", 2 * q + kv + 4 * scores),
        ("tiles", 2 * q + 256 * kv + 2**20),  # 128 queries of four heads
        ("once", 2 * q + kv + 2**20),
    ):
        cost = attention_cost(d_model=4096, n_heads=32, n_kv_heads=8, new=8192)
        flops = cost.scores + cost.values
        assert rows[name][:2] == [size(n), f"{flops / n:,.0f}"]
        assert rows[name][2] == f"{n / 3.35e9:.2f}"
        assert rows[name][3] == f"{flops / 989e9:.2f}" == "1.11"
    assert [*flash.saved()] == [
        ["2,048", "256 MiB", "16 MiB", "256 KiB"],
        ["8,192", "4 GiB", "64 MiB", "1 MiB"],
        ["32,768", "64 GiB", "256 MiB", "4 MiB"],
    ]


def test_tiles_that_are_skipped_are_counted():
    n, W, pads = 16, 4, 4  # tiles a side; of a window, of pads
    causal = n * (n + 1) // 2
    assert {row[0].key: row[1:] for row in flash.skipped(2048, 128, 512)} == {
        "all": ["0", "0", "256", "100%"],
        "causal": [str(n * n - causal), "16", "120", "53%"],
        # 12 rows of tiles see something, each its own tile in half
        "padded": ["178", "12", "66", "30%"],
        "window": ["186", "28", "42", "27%"],
    }
    assert (n - pads) * (n - pads + 1) // 2 == 12 + 66
    assert causal - (n - W) * (n - W - 1) // 2 == 28 + 42
    assert n + (n - W) == 28  # the triangle's edge, and the window's


def test_parts_are_merged_into_what_torch_computes():
    """Each row of the example, and the numbers that its figure repeats."""
    scores, values = merge.SCORES, merge.VALUES
    *own, whole, mean = cells(merge.merged())
    lse = scores.logsumexp(0)
    for row, x, v in zip(own, scores.split(2), values.split(2), strict=True):
        out, its = x.softmax(0) @ v, x.logsumexp(0)
        weight = (its - lse).exp()
        wanted = [x.item() for x in (out, its, weight, weight * out)]
        assert [*map(float, row[3:])] == pytest.approx(wanted, abs=6e-4)
    assert whole[3] == whole[6] == f"{scores.softmax(0) @ values:.3f}"
    assert whole[4] == f"{lse:.4f}" and float(mean[3]) < float(whole[3]) - 8
    assert float(own[2][5]) > 0.5  # in the caption: more than the other two
    texts = [texts for _, texts in merge.split().boxes]
    assert texts[1] == [row[0] for row in own] and texts[3] == [whole[3]]
    assert texts[2] == [f"{row[3]}; {row[4]}" for row in own]
    html = shown("merge", 0)
    assert all(f">{text}<" in html for text in texts[2])
    assert [len(texts) for _, texts in merge.cascade(3).boxes] == [3, 1, 3, 3]
    with pytest.raises(ValueError, match="1 words, 4 steps"):
        merge.split().drawing(("", ""), title="", words=[""])


def test_parts_that_keep_a_gpu_busy_and_their_bytes():
    assert merge.enough(12) == 11  # by FlashAttention's author, on an H100
    assert {row[0]: row[1:] for row in cells(merge.partial(8192, 16))} == {
        "mha": ["32", "32", "4", "1", "2"],
        "gqa": ["8", "8", "16", "1", "8"],
        "mqa": ["1", "1", "132", "8", "64"],
        "mla": ["1", "2", "66", "4", "456"],
    }
    # Output and log-sum-exp, there and back.
    assert round(2 * 32 * 129 * 4 / (8 * 2 * 128 * 2)) == 8
    assert 2 * 128 * 513 * 4 / (576 * 2) == 456


def test_a_prefix_that_is_read_once():
    rows = [*merge.bytes_read(256)]
    for prefix, batch, llama, once, v3, v3_once, ratio in rows:
        P, B = int(prefix.replace(",", "")), int(batch)
        for a_token, apart, shared in (
            (32 * 2 * 8 * 128 * 2, llama, once),
            (61 * 576 * 2, v3, v3_once),
        ):
            assert apart == size(B * (P + 256) * a_token)
            assert shared == size((P + B * 256) * a_token)
        assert ratio == f"{B * (P + 256) / (P + B * 256):.1f}x"
        assert float(ratio[:-1]) <= min(B, 1 + P / 256)
    assert rows[-1][-1] == "43.0x"


def test_attention_by_hand_is_what_torch_computes():
    x, mask = sdpa.EMBEDDED, torch.ones(4, 4).tril().bool() & sdpa.VALID
    out = torch.nn.functional.scaled_dot_product_attention(x, x, x, mask)

    def vector(text):
        return torch.tensor([float(n) for n in text.strip("()").split(",")])

    for i, row in enumerate(sdpa.outputs()):
        assert torch.allclose(vector(row[-1]), out[i], atol=0.005)
        assert len(row[2].split(",")) == len(row[3].split(",")) == mask[i].sum()


def test_two_heads_listen_to_different_tokens():
    future = torch.ones(3, 3, dtype=torch.bool).triu(1)
    for n in (0, 1):
        x = mha.EMBEDDED[:, 2 * n : 2 * n + 2]
        scores = (x @ x.T / 2**0.5).masked_fill(future, -torch.inf)
        assert torch.allclose(mha.head(n), scores.softmax(-1))
        # "you" listens to "I" in head 0, to "like" in head 1.
        assert mha.head(n)[2, n] > 0.4 > 0.1 > mha.head(n)[2, 1 - n]


def test_stacked_heads_are_those_of_one_group():
    assert [row[1] for row in gqa.fold(6, 3, 2)] == [
        "(0, 0), (0, 1), (1, 0), (1, 1)",
        "(2, 0), (2, 1), (3, 0), (3, 1)",
        "(4, 0), (4, 1), (5, 0), (5, 1)",
    ]


def test_what_is_left_of_a_score_beside_the_filler():
    assert [*masks.spacing()] == [
        ["`bfloat16`", "4,194,304", "0", "0"],
        ["`float32`", "64", "0", "64"],
        ["`float64`", "1.2e-07", "3", "40"],
    ]


def test_dot_products_spread_like_the_root_of_the_width():
    for row in sdpa.dot_products():
        width, spread, top, top_scaled, slope, slope_scaled = map(float, row)
        assert slope < slope_scaled
        assert 0.9 < slope_scaled < 1 - 1 / 32  # the most that 32 keys allow
        assert 4.5 < 32 * top_scaled < 5.5  # "about five times"
        assert abs(spread / width**0.5 - 1) < 0.05
        assert top_scaled < 0.2 < top


def test_the_masks_are_those_of_the_functions():
    triangle = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    literal = [
        triangle,
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]],
        triangle,
        [[1, 1, 1, 0], [1, 1, 1, 1]],
        [[1, 1, 1, 1]],
        [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]],
        [[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]],
    ]
    drawn = [m for i in range(4) for m in panels(shown("masks", i, "zh"))]
    assert drawn == literal
    explorer = [m for i in range(1, 9) for m in panels(shown("rules", i, "zh"))]
    prefix = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    cached, left, documents = literal[5], literal[7], literal[3]
    assert explorer == [
        *(triangle, cached, literal[2], prefix, literal[1], left),
        *(documents, masks.chunks(4, 2).int().tolist()),
    ]
    weights = sdpa.weights()
    assert torch.allclose(weights.sum(-1), torch.ones(4))
    assert (weights[:, 3] == 0).all()


def test_a_model_is_as_large_as_its_source_says():
    spec = models()["llama-3.1-8b"]
    rows = [*decoder.parameters()]
    assert rows[-1][1] == f"{spec.params:,}" and rows[0][1] == "1,342,177,280"
    assert [texts for _, texts in decoder.model().boxes] == [
        ["3 x 7"],
        *[["3 x 7 x 96"]] * 4,
        ["3 x 7 x 101"],
    ]
    assert [kind for kind, _ in decoder.block().boxes].index("on") == 1


def test_the_scores_by_distance_are_those_of_rope():
    x = torch.ones(1, 1, 6, 8).double() / 8**0.5
    turned = attnref.apply_rope(x, *attnref.rope_table(torch.arange(6), 8))
    scores = (turned @ turned.mT)[0, 0, 0].tolist()
    assert [row[-1] for row in rope.distances()] == [f"{s:.2f}" for s in scores]
    assert min(scores) == scores[3]  # in the prose


def test_after_its_wavelength_a_pair_is_where_it_was():
    for p, *waves in rope.wavelengths(128):
        for theta, wave in zip((1e4, 5e5), waves, strict=True):
            at = torch.tensor([float(wave.replace(",", ""))])
            cos, _ = attnref.rope_table(at, 128, theta=theta)
            assert cos[0, int(p)] > 0.995


def test_yarns_ramp_is_the_formula_of_the_page():
    def pair(turns):
        length = 4096 / (2 * math.pi * turns)
        return 64 * math.log(length) / (2 * math.log(10000))

    low, high = math.floor(pair(32)), math.ceil(pair(1))
    assert (low, high) == (10, 23)
    for row in scaling.yarn_ramp():
        p, turns, ramp, before, after = (
            float(cell.replace(",", "")) for cell in row
        )
        share = min(max((p - low) / (high - low), 0), 1)
        theta = 10000 ** (-2 * p / 64)
        assert ramp == round(share, 2)
        assert turns == round(4096 * theta / (2 * math.pi), 2)
        slowed = (1 - share) * theta + share * theta / 40
        for wave, frequency in ((before, theta), (after, slowed)):
            assert wave == pytest.approx(2 * math.pi / frequency, rel=5e-3)
    yarn = attnref.Yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
    assert yarn.table_scale == 1
    assert yarn.softmax_scale == (0.1 * math.log(40) + 1) ** 2


@pytest.mark.parametrize(
    ("stem", "panel", "reads"),
    [
        ("one-code", 0, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("one-code", 1, [0, 0, 0, 0, 1, 1, 1, 1]),
        ("one-code", 2, [0] * 8),
    ],
)
def test_the_wiring_is_found_in_the_layer(stem, panel, reads):
    spec = fences(stem)[0][1]["panels"][panel]
    found = wiring(calls.value(spec["wiring"], stem))
    assert found.int().argmax(1).tolist() == reads
    assert (found.sum(1) == 1).all()
    drawn = svg.lines(found, AXES, title="A & B").svg
    assert drawn.count("<line") == 8
    assert drawn.count("<rect") == 8 + len(set(reads))
    assert "#" not in drawn


def test_the_wiring_sees_heads_in_another_order():
    class Scrambled(attnref.GroupedQueryAttention):
        def forward(self, x):
            v = self.v_proj(x).unflatten(-1, (self.n_kv_heads, -1))
            return self.o_proj(v.repeat(1, 1, 4, 1).flatten(2))

    layer = Scrambled(d_model=32, n_heads=8, n_kv_heads=2)
    assert wiring(layer).int().argmax(1).tolist() == [0, 1] * 4


def test_growing_writes_the_triangle_of_what_room_writes():
    a_token = 2 * 8 * 128 * 2
    for row, N in zip(kv_cache.growth(), (16, 64, 256), strict=True):
        assert row[0] == str(N)
        assert row[1] == size(N * a_token)
        assert row[2] == size(N * (N + 1) // 2 * a_token)
        assert row[3] == f"{(N + 1) / 2:.1f}"


def test_what_a_cache_saves_by_hand():
    E, inner, kv = 4096, 32 * 128, 8 * 128
    weights = 2 * E * inner + 2 * E * kv
    for row, N in zip(kv_cache.saved(), (4, 16, 64, 1000), strict=True):
        step = [2 * weights + 4 * inner * t for t in range(1, N + 1)]
        again = [2 * weights * t + 4 * inner * t * t for t in range(1, N + 1)]
        ratio = sum(again) / sum(step)
        # As the page says, between that of projections and of attention.
        assert (N + 1) / 2 < ratio < (2 * N + 1) / 3
        assert row == [
            f"{N:,}",
            f"{sum(again) / 1e9:,.1f}",
            f"{sum(step) / 1e9:,.1f}",
            f"{ratio:,.1f}",
            f"{again[-1] / again[0]:,.0f}",
            f"{step[-1] / step[0]:.2f}",
        ]


RECT = re.compile(
    r'<rect class="([^"]+)" x="([^"]+)" y="([^"]+)" width="([^"]+)" '
    r'height="([^"]+)"'
)


def rects(drawn, *kinds):
    """x, y, width and height of those boxes."""
    found = [(k, [*map(float, at)]) for k, *at in RECT.findall(drawn)]
    return [at for kind, at in found if kind in kinds]


# Per token in bfloat16: 32 layers, 32 query heads of 128; MLA as DeepSeek-V3.
BYTES = {"MHA": 32 * 2 * 32, "GQA": 8 * 2 * 32, "MQA": 1 * 2 * 32}
BYTES = {name: n * 2 * 128 for name, n in BYTES.items()}
BYTES["MLA"] = 32 * (512 + 64) * 2


def test_the_cards_of_home_show_the_bytes_of_each_variant():
    words, boxes = ["{0}, {1}"], {}
    for name, n in BYTES.items():
        card = index.card(name, heads=8).drawing(AXES, title=name, words=words)
        (track,), (fill,) = rects(card.svg, "track"), rects(card.svg, "fill")
        assert fill[2] == pytest.approx(max(2, track[2] * n / BYTES["MHA"]))
        assert card.below == [f"{size(n)}, {size(n * 131_072)}"]
        kinds = ("key", "value", "latent", "key made", "value made")
        boxes[name] = [len(rects(card.svg, kind)) for kind in kinds]
        assert len(rects(card.svg, "query")) == 8
    assert boxes == {
        "MHA": [8, 8, 0, 0, 0],
        "GQA": [2, 2, 0, 0, 0],
        "MQA": [1, 1, 0, 0, 0],
        "MLA": [1, 0, 1, 8, 8],
    }


@pytest.mark.parametrize("narrow", [False, True])
def test_a_decode_step_is_drawn_to_scale(narrow):
    plot = index.step(slowed=200)
    drawn = plot.narrow if narrow else plot.wide
    strips = rects(drawn, "key", "value", "latent", "weights")
    (left, *_), wide = strips[0], strips[0][2]
    areas = [w * h for x, _, w, h in strips if x == left and w == wide]
    weights = 8_030_261_248 * 2 / 131_072
    k_and_v = [BYTES[name] / 2 for name in ("MHA", "GQA", "MQA") for _ in "kv"]
    read = [*k_and_v, BYTES["MLA"] * 8 / 9, BYTES["MLA"] / 9, weights]
    ratios = [area / n for area, n in zip(areas, read, strict=True)]
    assert ratios == pytest.approx([ratios[0]] * 9, rel=1e-4)
    times = re.findall(r"--time:([\d.]+)s", drawn)
    for time, row, n in zip(
        times, plot.rows, [*BYTES.values(), weights], strict=True
    ):
        ms = 131_072 * n / 3.35e9
        assert float(row[-1]) == pytest.approx(ms, rel=1e-2)
        assert float(time) == pytest.approx(0.2 * ms, rel=1e-2)
        assert row[3] == size(131_072 * n) and f">{row[3]} · " in drawn


def test_home_counts_what_is_checked():
    names = cells(index.checked())
    counts = {key: int(n) for n, key in names}
    catalogue = json.loads((ROOT / "tests/check/kills.json").read_text())
    assert counts["mistakes"] == len(catalogue)
    assert counts["released"] == len(models())
    assert counts["exercises"] == len(TASKS)
    assert counts["shapes"] > 100


def test_colours_of_a_meaning_are_read_on_paper_and_under_letters():
    style = (ROOT / "overrides/assets/attnref.css").read_text(encoding="utf-8")

    def luminance(colour):
        rgb = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in rgb
        ]
        return sum(
            a * b for a, b in zip(linear, (0.2126, 0.7152, 0.0722), strict=True)
        )

    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6});", part))
        for part in style.split("@media not print", 1)
    )
    meant = dict(re.findall(r"--(\w+): var\(--([\w-]+)\);", style))
    for scheme in (light, dark):

        def contrast(name, beside, scheme=scheme):
            both = sorted(
                luminance(scheme.get(n) or scheme[meant[n]])
                for n in (name, beside)
            )
            return (both[1] + 0.05) / (both[0] + 0.05)

        stored = "query", "rope", "latent", "key", "value"
        for name in (*stored, "mask"):  # text, also on a shelf
            assert contrast(name, "paper") >= 4.5, name
            assert contrast(name, "raised") >= 4.5, name
        for name in stored:  # letters on what is filled
            assert contrast(name, "on-green") >= 4.5, name
        for name in ("ink", "ink-soft"):  # letters of weights and sizes
            assert contrast(name, "raised") >= 4.5, name
        assert contrast("ink", "line") >= 4.5
        for name in ("recomputed", "ink-soft"):  # outlines, arrows
            assert contrast(name, "paper") >= 3, name


def test_only_attention_keeps_its_flops():
    rows = [*one_code.compare()]
    assert [row[0][-2:].strip() for row in rows] == ["32", "8", "1"]
    assert len({row[3] for row in rows}) == 1
    assert rows[0][3] == f"{4 * 32 * 128 * 8192 / 1e6:.1f}"
    assert [row[4] for row in rows] == ["128 MiB", "32 MiB", "4 MiB"]
    assert [row[5] for row in rows] == ["1", "4", "32"]


def test_a_figure_shows_every_number_and_label():
    matrix = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    labels = {"rows": ["<pad>", "b"], "columns": ["c", "d"]}
    drawn = svg.heatmap(matrix, AXES, title="A & B", **labels).svg
    for text in (">1.00<", ">0<", ">0.25<", ">0.75<", "&lt;pad&gt;"):
        assert text in drawn
    assert 'aria-label="A &amp; B"' in drawn
    assert "#" not in drawn, "a colour of its own would not follow the scheme"
    with pytest.raises(ValueError, match="1 x 2 labels for a 2 x 2 figure"):
        svg.heatmap(matrix, AXES, title="t", rows=["a"], columns=["b", "c"])


def test_an_unknown_command_stops_the_build():
    with pytest.raises(ValueError, match=r"formula '\\\\foo x'"):
        mathml(r"\foo x", display=False)


def cells(rows):
    return [[c.key if isinstance(c, Word) else c for c in row] for row in rows]


def test_what_the_forms_of_mla_store():
    rows = {row[0]: row[1:] for row in cells(mla.caches())}
    assert rows["expanded"][1:] == ["40,960", "81,920", "4,997,120"]
    assert rows["latent"] == rows["absorbed"]
    assert rows["absorbed"] == ["`(1, 576)`", "576", "1,152", "70,272"]


def test_what_mla_is_compared_with():
    rows = {row[0]: row[1:] for row in cells(mla.compared())}
    assert rows["mha"] == ["32,768", "56.9"]
    assert rows["expanded"] == ["40,960", "71.1"]
    assert rows["gqa"] == rows["mla"] == ["576", "1"]
    assert rows["mqa"] == ["256", "0.444"]
    assert rows["wide"] == ["640", "1.11"]
    assert mla.budget().tolist() == [32768, 2048, 576, 256]


def test_the_published_saving_needs_six_bits():
    assert cells(mla.claim()) == [
        ["old", "389,120", ""],
        ["new", "69,120", "82.2%"],
        ["six", "25,920", "93.3%"],
    ]


def test_what_a_step_of_each_form_costs_by_hand():
    H, R, dn, dr, dv, S = 128, 512, 128, 64, 128, 4097
    narrow, wide, up = dn + dr + dv, 2 * R + dr, R * (dn + dv)
    by_hand = {
        "expanded": (H * up, H * S * narrow),
        "latent": (H * S * up, H * S * narrow),
        "absorbed": (H * up, H * S * wide),
    }
    for word, *cells in absorption.step():
        form = word.key
        ups, attention = (2 * macs for macs in by_hand[form])
        held = 2 * S * (H * narrow if form == "expanded" else R + dr)
        assert cells == [
            f"{ups / 1e6:,.0f}",
            f"{attention / 1e6:,.0f}",
            size(held),
            f"{(ups + attention) / held:,.1f}",
        ]


def test_absorbing_pays_below_the_crossover():
    ratio = {int(n): float(r) for n, r in absorption.chunks()}
    assert all(r < 1 for n, r in ratio.items() if n < 170)
    assert all(r > 1 for n, r in ratio.items() if n > 170)
    assert abs(ratio[171] - 1) < 0.05


def test_the_form_and_the_widths_of_each_call():
    assert cells(absorption.calls()) == [
        ["training", "expanded", "192 / 128", "widened"],
        ["prompt", "latent", "192 / 128", "widened"],
        ["chunk", "latent", "192 / 128", "widened"],
        ["draft", "absorbed", "576 / 512", "keys"],
        ["step", "absorbed", "576 / 512", "keys"],
    ]


def test_multiplied_matrices_are_larger_than_their_factors():
    assert cells(absorption.merged()) == [
        ["query", "46.1", "113.2"],
        ["output", "125.8", "469.8"],
    ]
    assert cells(absorption.wrong()) == [
        ["latent", "11.0", "512"],
        ["merged", "83.9", "16,384"],
    ]


def test_a_bar_is_as_long_as_its_number():
    values = torch.tensor([400, 100])
    drawn = svg.bars(values, AXES, title="A & B", labels=["a", "<b>"]).svg
    widths = [float(w) for w in re.findall(r'<rect.*?width="([\d.]+)"', drawn)]
    assert widths[0] == 4 * widths[1]
    shares = svg.bars(values / 800, AXES, title="", labels=["a", "b"]).svg
    assert f'width="{widths[0] / 2:g}"' in shares  # 0.5, of one
    assert ">400<" in drawn and "&lt;b&gt;" in drawn and "#" not in drawn
    with pytest.raises(ValueError, match="1 labels for 2 bars"):
        svg.bars(values, AXES, title="t", labels=["a"])


def test_a_text_may_hold_code_a_formula_and_a_link():
    out = inline("a `b < c` $c$ [d](https://e.org/?f&g) <h> & 1. # x_y_z")
    assert "<code>b &lt; c</code>" in out and "<math" in out
    assert '<a href="https://e.org/?f&amp;g">d</a> &lt;h&gt;' in out
    assert out.endswith("&amp; 1. # x_y_z") and "<p>" not in out


def test_what_is_drawn_is_named_by_its_call():
    call = "causal_mask(2, S=3) & padding_mask([[True, True, False]])"
    mask = calls.value(call, "softmax")
    assert mask[0, 0].int().tolist() == [[1, 1, 0], [1, 1, 0]]
    assert calls.value("mla.budget", "kv-cache").tolist()[2] == 576
    assert calls.value("budget()", "mla").tolist()[2] == 576


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (
            "open('x')",
            "there is no 'open' in sitekit/drawn/mla.py or",
        ),
        ("torch.load('x')", "there is no sitekit/drawn/torch.py"),
        ("__import__('os').system('x')", "there is no sitekit/drawn/"),
        ("(lambda: 1)()", "there is no 'lambda: 1'"),
        ("causal_mask.__globals__", "there is no sitekit/drawn/causal_mask.py"),
        ("causal_mask(len([1]))", "'len([1])' is no literal"),
        ("_stored((1, 2))", "there is no '_stored'"),
        ("code(1)", "there is no 'code'"),
        ("mla.causal_mask(3)", "there is no 'mla.causal_mask'"),
        ("budged", "; did you mean 'budget' or 'fused' or 'greedy'?"),
        ("causal_mask(3", "is no call such as f(3)"),
    ],
)
def test_nothing_else_can_be_called(call, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        calls.value(call, "mla")


def test_a_name_that_stands_twice_is_refused(monkeypatch):
    monkeypatch.setattr(calls, "drawn", calls.drawn.__wrapped__)
    monkeypatch.setattr(masks, "causal_mask", masks.outcome, raising=False)
    why = r"masks.py defines \['causal_mask'\], as attnref does; give it"
    with pytest.raises(ValueError, match=why):
        calls.value("fully_masked", "masks")


@pytest.mark.whole
def test_each_file_draws_for_a_page_that_shows_it():
    stems = [path.stem for path in markdown_files("en")]
    named = []
    for stem in stems:
        for kind, spec in fences(stem):
            texts = [spec.get("table", kind), spec.get("plot", kind)]
            texts.append(spec.get("steps", kind))
            texts += [panel.get("draw", "") for panel in spec.get("panels", [])]
            named += [(stem, str(text).split("(")[0]) for text in texts]
    sources = "".join(p.read_text("utf-8") for p in calls.DRAWN.glob("*.py"))
    for page in calls.pages():
        assert page in stems
        for name in calls.drawn(page).keys() - {"numbers"}:
            used = len(re.findall(rf"\b{name}\b", sources)) > 1
            assert (page, name) in named or used, f"{page}.{name} is not shown"


def test_what_sharing_heads_costs():
    words = ["{0}", "{1}", "{2}"]
    for K in (8, 4, 2, 1):
        drawn = gqa.shared(n_kv_heads=K).drawing(AXES, title="K", words=words)
        weights = 2 * 1024 * 1024 + 2 * 1024 * K * 128
        taken = 2 * K * 128 * 2
        assert drawn.below == [f"{taken:,}", f"{weights:,}", f"{8 / K:g}"]
        assert drawn.svg.count("<line") == 8
        assert drawn.svg.count('rect class="key"') == K


def test_the_time_of_a_step_is_that_of_the_table():
    words = ["w", "c", "a", "{0}: {1} ms, {2}/s", "{0}: none"]
    drawn = operations.step_time(tokens=8192)
    for batch, weights, caches, done, fits in drawn.batches:
        ((_, read, multiply, cached, attend, least, *_),) = operations.steps(
            8192, (batch,)
        )
        assert [read, cached, least] == [
            f"{weights:.2f}",
            f"{caches:.2f}",
            f"{max(weights + caches, done):.1f}",
        ]
        assert done == pytest.approx(float(multiply) + float(attend), abs=0.011)
        assert fits == (batch < 128)
    svg = drawn.drawing(AXES, title="t", words=words).svg
    assert "32: 14.7 ms" in svg and "128: none" in svg
    assert svg.count('"value"') == 1 + 3, "and one in the legend"
