"""Figures and computed tables hold what the pages say of them."""

import pytest
import torch

from sitekit import fences, figures, tables
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


def test_a_table_whose_words_do_not_fit_stops_the_build():
    def draw(source):
        return fences.table(source, "table", "", {}, None)

    head = "head: [a, b, c, d, e, f]\ncaption: c\n"
    with pytest.raises(ValueError, match="words never used"):
        draw(f"table: exp_range\n{head}words: {{nan: NaN}}\n")
    with pytest.raises(KeyError, match="add"):
        draw(f"table: fully_masked\n{head}")
    with pytest.raises(ValueError, match="2 heads for 6 columns"):
        draw("table: exp_range\nhead: [a, b]\ncaption: c\n")
    out = draw(f"table: exp_range\n{head.replace('[a', '[$d_k$')}")
    assert "<math" in out


def test_an_unknown_command_stops_the_build():
    with pytest.raises(ValueError, match=r"formula '\\\\foo x'"):
        mathml(r"\foo x", display=False)
