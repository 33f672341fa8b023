"""What the pages on sinks, biases and the order draw, in another way."""

import math

import pytest

from sitekit.drawn import biases, order, sinks, windows


def cells(rows):
    return [[getattr(cell, "key", cell) for cell in row] for row in rows]


def test_the_weights_beside_a_sink():
    e = [math.exp(s) for s in (1, 2, 3)]
    for row, logit in zip(sinks.shares().tolist(), sinks.FORMS, strict=True):
        whole = sum(e) + math.exp(logit)
        assert row[:3] == pytest.approx([x / whole for x in e])
    column, sigmoid, key, none = cells(sinks.three_forms())
    assert column[1:] == sigmoid[1:] == key[1:]
    mixed = sum(x * y for x, y in zip(e, (10, 20, 30), strict=True))
    assert column[2] == f"{mixed / (sum(e) + math.exp(2)):.3f}"
    assert none[2] == f"{mixed / sum(e):.3f}"


def test_what_streaming_keeps():
    mask = sinks.streaming(9, first=2, window=3).int().tolist()
    assert mask[8] == [1, 1, 0, 0, 0, 0, 1, 1, 1]
    assert mask[2] == [1, 1, 1, 0, 0, 0, 0, 0, 0]
    rows = cells(sinks.two_positions())
    assert [row[0:4] for row in rows[:2]] == [
        ["64", "64", "63", "63"],
        ["128", "68", "127", "67"],
    ]
    assert rows[0][4] == "0.00"
    assert all(float(row[4]) > 0.1 for row in rows[1:])


def test_biases_of_equal_scores():
    for row, slope in zip(
        biases.decays(8).tolist(), (1 / 2, 1 / 8, 1 / 32), strict=True
    ):
        assert row[7] / row[3] == pytest.approx(math.exp(4 * slope))
    assert cells(biases.slope_list())[1] == [
        "12",
        "-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5",
    ]
    assert cells(biases.capped())[2] == ["50", f"{50 * math.tanh(1):.2f}"]
    found = dict(cells(biases.classes()))
    step = math.log(8) / 16  # 16 classes from 16 to 128, in equal steps
    assert found["16"] == f"16-{math.ceil(16 * math.exp(step)) - 1}"
    assert found["31"] == f"≥ {math.ceil(16 * math.exp(15 * step))}"


def test_each_mistake_changes_the_output():
    for rows in (sinks.mistaken(), biases.mistaken()):
        assert all(float(row[1]) > 0.1 for row in cells(rows))


def test_which_model_has_which_step_and_what_exchanges_cost():
    llama, *_, gated = order.steps_of_models().int().tolist()
    assert llama == [0, 1, 0, 0, 0, 1, 0, 0]
    assert gated == [1, 1, 0, 0, 0, 1, 0, 1]
    *rows, bare = [float(row[1]) for row in cells(order.exchanges())]
    assert rows.pop(4) == bare == 0  # the sink, which no mask hides
    assert len(rows) == 7 and min(rows) > 0.1


def test_what_a_ring_and_its_layers_see():
    frames = windows.ring().frames
    assert len(frames) == 7
    drawn = ["".join(map(str, frame.marks)) for frame in frames]
    assert "k0" in drawn[0] and "k0" not in drawn[-1]
    for row in cells(windows.reach()):
        window, layers, seen, product = map(int, row)
        assert seen == layers * (window - 1) + 1 <= product
    for _, layers, *_, ratio in cells(windows.saved()):
        assert float(ratio) > 1 and "×" in layers
