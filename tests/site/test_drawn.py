"""Figures and computed tables hold what the pages say of them."""

import re

import pytest
import torch

import attnref
from attnref.numbers.kv_memory import size
from sitekit import fences, figures, latent, numbers, tables
from sitekit.mathml import mathml
from sitekit.tables import Word


def test_what_a_fully_masked_row_gives():
    rows = {
        tuple(
            c.key if isinstance(c, Word) else c.strip("`") for c in row[:2]
        ): [c.key for c in row[2:]]
        for row in tables.fully_masked()
    }
    f16, bf16, f32, f64 = range(4)
    assert rows["add", "-1e9"] == ["nan", "uniform", "uniform", "ignored"]
    assert rows["add", "-1e20"] == ["nan", "uniform", "uniform", "uniform"]
    assert rows["add", "finfo.min"] == ["uniform"] * 4
    assert rows["add", "-inf"] == ["nan"] * 4
    assert rows["add2", "finfo.min"] == ["nan"] * 4
    assert rows["fill", "-1e9"][f16] == "refused"
    assert rows["fill", "-1e9"][bf16:] == ["uniform"] * 3
    assert rows["fill", "-inf"] == ["nan"] * 4
    assert rows["ours", "False"] == ["zeros"] * 4
    assert len(rows) == 10


def test_what_others_give_for_an_empty_row():
    assert {who: word.key for who, word in tables.empty_rows()} == {
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


def test_a_filler_does_what_it_should_while_a_key_is_left():
    # The page says: as long as one key is allowed, it nearly does.
    scores = torch.tensor(tables.SCORES)
    keep = torch.tensor([True, True, False, False])
    want = torch.softmax(scores.masked_fill(~keep, -torch.inf), -1)
    for dtype in tables.DTYPES:
        for filler in (-1e9, -1e20, torch.finfo(dtype).min):
            s = scores.to(dtype)
            got = torch.softmax(s + (~keep).to(dtype) * filler, -1)
            assert torch.allclose(got.float(), want, atol=1e-2)


def test_a_score_that_stands_out_does_not_drown_in_the_filler():
    scores = torch.tensor([40.0, 2.0, 3.0, 0.5])
    weights = torch.softmax(scores + torch.ones(4) * -1e9, -1)
    assert weights[0] > 0.999


def test_where_exp_overflows():
    rows = {row[0].strip("`"): row for row in tables.exp_range()}
    assert rows["float16"][1:4] == ["65504", "11.1", "inf"]
    assert rows["float32"][1:3] == ["3.40e38", "88.7"]
    for row in rows.values():
        assert row[4:] == ["`[nan, 0.0]`", "`[1.0, 0.0]`"]


def test_dot_products_spread_like_the_root_of_the_width():
    for row in tables.dot_products():
        root, spread, scaled, top, top_scaled = map(float, row[1:])
        assert abs(spread / root - 1) < 0.05
        assert abs(scaled - 1) < 0.05
        assert top_scaled < 0.2 < top


def test_the_four_masks_are_those_of_the_functions():
    literal = {
        "padding": [[1, 1, 1, 0]] * 4,
        "causal": [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]],
        "combined": [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]],
        "cross": [[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]],
        "chunk": [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]],
        "left": [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]],
    }
    for name, rows in literal.items():
        assert figures.SCENES[name]().int().tolist() == rows
    weights = figures.SCENES["weights"]()
    assert torch.allclose(weights.sum(-1), torch.ones(4))
    assert (weights[:, 3] == 0).all()


def test_the_stages_of_a_cache_are_one_function():
    assert figures.SCENES["prefill"]().int().sum(-1).tolist() == [1, 2, 3, 4]
    assert figures.SCENES["next_chunk"]().int().sum(-1).tolist() == [5, 6, 7]
    assert figures.SCENES["decode"]().int().sum(-1).tolist() == [8]


def test_rope_scores_are_alike_on_each_diagonal():
    scores = figures.SCENES["rope"]()
    for distance in range(6):
        diagonal = scores.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[0].expand(6 - distance))
    assert scores.min() > 0, "a heat map has no colour for less"


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("mha", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("gqa", [0, 0, 0, 0, 1, 1, 1, 1]),
        ("mqa", [0] * 8),
        ("cross", [0, 0, 1, 1, 2, 2, 3, 3]),
    ],
)
def test_the_wiring_is_found_in_the_layer(name, reads):
    found = figures.wirings()[name]
    assert found.int().argmax(1).tolist() == reads
    assert (found.sum(1) == 1).all()
    svg = figures.lines(found, ("query heads", "key heads"), "A & B")
    assert svg.count("<line") == 8
    assert svg.count("<rect") == 8 + len(set(reads))
    assert "#" not in svg


def test_the_wiring_sees_heads_in_another_order():
    class Scrambled(attnref.GroupedQueryAttention):
        def forward(self, x):
            v = self.v_proj(x).unflatten(-1, (self.n_kv_heads, -1))
            return self.o_proj(v.repeat(1, 1, 4, 1).flatten(2))

    layer = Scrambled(d_model=32, n_heads=8, n_kv_heads=2)
    assert figures.wiring(layer).int().argmax(1).tolist() == [0, 1] * 4


def test_a_walk_gives_letters_and_sizes():
    rows = tables.TABLES["walk_gqa"]()
    assert rows[0] == ["`q`", "`(B, H, T, D)`", "`(2, 6, 7, 16)`"]
    assert rows[1] == ["`k`", "`(B, K, T, D)`", "`(2, 3, 7, 16)`"]
    assert rows[3] == ["`k, v`", "`(B, K, S, D)`", "`(2, 3, 12, 16)`"]
    assert rows[-1] == ["`return`", "`(B, T, E)`", "`(2, 7, 96)`"]
    counts = {n: len(tables.TABLES[f"walk_{n}"]()) for n in ("mha", "mqa")}
    assert counts == {"mha": 7, "mqa": 7}
    assert len(tables.TABLES["walk_cross"]()) == 5


def test_growing_writes_the_triangle_of_what_room_writes():
    a_token = 2 * 8 * 128 * 2
    for row, N in zip(tables.growth(), (16, 64, 256), strict=True):
        assert row[0] == str(N)
        assert row[1] == size(N * a_token)
        assert row[2] == size(N * (N + 1) // 2 * a_token)
        assert row[3] == f"{(N + 1) / 2:.1f}"


def test_what_a_cache_saves_by_hand():
    E, inner, kv, N = 4096, 32 * 128, 8 * 128, 64
    weights = 2 * E * inner + 2 * E * kv
    step = [2 * weights + 4 * inner * t for t in range(1, N + 1)]
    again = [2 * weights * t + 4 * inner * t * t for t in range(1, N + 1)]
    last = numbers.saved()[-1]
    assert last[0] == str(N)
    assert float(last[1].replace(",", "")) == round(sum(again) / 1e9, 1)
    assert float(last[2]) == round(sum(step) / 1e9, 1)


def test_only_attention_keeps_its_flops():
    rows = numbers.compare()
    assert [row[1] for row in rows] == ["32", "8", "1"]
    assert len({row[4] for row in rows}) == 1
    assert rows[0][4] == f"{4 * 32 * 128 * 8192 / 1e6:.1f}"
    assert [row[5] for row in rows] == ["16 KiB", "4 KiB", "512 B"]
    assert [row[7] for row in rows] == ["1", "4", "32"]
    assert round(float(rows[2][2]) / float(rows[0][2]), 3) == 0.516


def test_a_figure_shows_every_number_and_label():
    svg = figures.heatmap(
        torch.tensor([[1.0, 0.0], [0.25, 0.75]]),
        ["<pad>", "b"],
        ["c", "d"],
        ("query", "key"),
        "A & B",
    )
    for text in (">1.00<", ">0<", ">0.25<", ">0.75<", "&lt;pad&gt;"):
        assert text in svg
    assert 'aria-label="A &amp; B"' in svg
    assert "#" not in svg, "a colour of its own would not follow the scheme"
    with pytest.raises(ValueError, match="1 x 2 labels for a 2 x 2 figure"):
        figures.heatmap(torch.ones(2, 2), ["a"], ["b", "c"], ("q", "k"), "t")


def test_an_unknown_command_stops_the_build():
    with pytest.raises(ValueError, match=r"formula '\\\\foo x'"):
        mathml(r"\foo x", display=False)


def cells(rows):
    return [[c.key if isinstance(c, Word) else c for c in row] for row in rows]


def test_what_the_forms_of_mla_store():
    rows = {row[0]: row[1:] for row in latent.mla_cache()}
    assert rows["expanded"][1:] == ["40,960", "81,920", "4,997,120"]
    assert rows["latent"] == rows["absorbed"]
    assert rows["absorbed"] == ["`(1, 576)`", "576", "1,152", "70,272"]


def test_what_mla_is_compared_with():
    rows = {row[0]: row[1:] for row in cells(latent.mla_budget())}
    assert rows["mha"] == ["32,768", "56.9"]
    assert rows["expanded"] == ["40,960", "71.1"]
    assert rows["gqa"] == rows["mla"] == ["576", "1"]
    assert rows["mqa"] == ["256", "0.444"]
    assert latent.budget().tolist() == [32768, 2048, 576, 256]
    assert round(2 * 32 * 128 / 576, 1) == 14.2  # LLaMA-7B's shape, in prose


def test_the_published_saving_needs_six_bits():
    assert cells(latent.mla_claim()) == [
        ["old", "389,120", ""],
        ["new", "69,120", "82.2%"],
        ["six", "25,920", "93.3%"],
    ]


def test_what_a_step_of_each_form_costs_by_hand():
    H, R, dn, dr, dv, S = 128, 512, 128, 64, 128, 4097
    narrow, wide = dn + dr + dv, 2 * R + dr
    by_hand = {
        "expanded": H * (R * (dn + dv) + S * narrow),
        "latent": H * S * (R * (dn + dv) + narrow),
        "absorbed": H * (R * (dn + dv) + S * wide),
    }
    for form, flops, held, _ in latent.mla_step():
        assert flops == f"{2 * by_hand[form] / 1e6:,.0f}"
        numbers = H * narrow if form == "expanded" else R + dr
        assert held == size(2 * S * numbers)


def test_absorbing_pays_below_the_crossover():
    ratio = {int(n): float(r) for n, r in latent.mla_chunks()}
    assert all(r < 1 for n, r in ratio.items() if n < 170)
    assert all(r > 1 for n, r in ratio.items() if n > 170)
    assert abs(ratio[171] - 1) < 0.05


def test_multiplied_matrices_are_larger_than_their_factors():
    assert cells(latent.mla_merged()) == [
        ["query", "46.1", "113.2"],
        ["output", "125.8", "469.8"],
    ]
    assert cells(latent.mla_wrong()) == [
        ["latent", "11.0", "512"],
        ["merged", "83.9", "16,384"],
    ]


def test_a_flow_shows_where_keys_are_made():
    flows = {form: latent.flow(form) for form in latent.FORMS}
    assert flows["expanded"]["cache"] == [(6, 6, 24), (6, 6, 10)]
    assert flows["latent"]["made"] == [(6, 6, 24), (6, 6, 10)]
    assert flows["absorbed"]["made"] == flows["expanded"]["made"] == []
    assert flows["absorbed"]["asked"] == [(6, 1, 28)]
    words = ["query", "cache", "keys", "attention", "heads"]
    drawn = {
        form: figures.stream(flow, words, "A & B")
        for form, flow in flows.items()
    }
    assert {form: svg.count("<rect") for form, svg in drawn.items()} == {
        "expanded": 4,
        "latent": 5,
        "absorbed": 4,
    }
    assert "W^UV" not in drawn["expanded"]
    assert "#" not in "".join(drawn.values())


def test_a_bar_is_as_long_as_its_number():
    svg = figures.bars(torch.tensor([400, 100]), ["a", "<b>"], "A & B")
    widths = [float(w) for w in re.findall(r'<rect.*?width="([\d.]+)"', svg)]
    assert widths[0] == 4 * widths[1]
    assert ">400<" in svg and "&lt;b&gt;" in svg and "#" not in svg
    with pytest.raises(ValueError, match="1 labels for 2 bars"):
        figures.bars(torch.tensor([400, 100]), ["a"], "t")


def test_a_cell_may_hold_code_a_formula_and_a_link():
    out = fences._inline("a `b` $c$ [d](https://e.org/?f&g) <h>")
    assert "<code>b</code>" in out and "<math" in out and "&lt;h&gt;" in out
    assert '<a href="https://e.org/?f&amp;g">d</a>' in out
