"""What pages on parts of attention and on states draw, done again."""

import math
import re

import pytest

from attnref.released.specs import find_model
from sitekit.drawn import biases, recurrent, scaling, sinks, windows


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
    rows = dict(cells(biases.classes()))
    step = math.log(8) / 16  # 16 classes from 16 to 128, in equal steps
    assert rows["16"] == f"16-{math.ceil(16 * math.exp(step)) - 1}"
    assert rows["31"] == f"≥ {math.ceil(16 * math.exp(15 * step))}"


def test_each_mistake_changes_the_output():
    for rows in (sinks.mistaken(), biases.mistaken()):
        assert all(float(row[1]) > 0.1 for row in cells(rows))


def test_which_model_has_which_step_and_what_exchanges_cost():
    llama, *_, gated = biases.steps_of_models().int().tolist()
    assert llama == [0, 1, 0, 0, 0, 1, 0, 0]
    assert gated == [1, 1, 0, 0, 0, 1, 0, 1]
    *rows, bare = [float(row[1]) for row in cells(biases.exchanges())]
    assert rows.pop(4) == bare == 0  # the sink, which no mask hides
    assert len(rows) == 7 and min(rows) > 0.1


def test_what_layers_of_rings_see():
    for row in cells(windows.reach()):
        window, layers, seen, product = map(int, row)
        assert seen == layers * (window - 1) + 1 <= product
    for _, layers, *_, ratio in cells(windows.saved()):
        assert float(ratio) > 1 and "×" in layers


def test_which_lines_of_a_recurrent_layer_change():
    shown = recurrent.difference(titles=["kda", "mamba2"], caption="")
    to_kda, to_mamba = re.sub("<.*?>", "", shown).split("mamba2")
    assert "-known" in to_mamba and "+state = state + k" in to_mamba
    assert "gate.sigmoid()" in to_kda and "known" not in to_kda


def test_how_much_slower_the_pairs_of_models_turn():
    names = dict(zip(scaling.MODELS, scaling.curves().rows, strict=True))
    for name, row in ((n, r[2:]) for n, r in cells(names.items())):
        factor = getattr(scaling.MODELS[name].scaling, "factor", 0)
        if name not in ("Phi-3.5-mini", "Gemma 4"):
            assert float(row[-1].replace(",", "")) == factor
    turns = 8192 * 5e5 ** (-64 / 128) / (2 * math.pi)  # of pair 32 of 64
    share = (turns - 1) / 3
    ratio = scaling.slower(scaling.MODELS["Llama 3.1"])
    assert ratio[32] == pytest.approx(1 / (share + (1 - share) / 8))
    assert (
        scaling.LONG.split()[-1] == "6484" and "64.8" in names["Phi-3.5-mini"]
    )
    assert cells([names["Gemma 4"]])[0][2:] == ["1", *["still"] * 4]


def test_widths_of_scaled_models_are_those_of_their_specs():
    for name, model in (
        ("Gemma 3", "gemma-3-4b"),
        ("Llama 3.1", "llama-3.1-8b"),
        ("gpt-oss", "gpt-oss-120b"),
        ("DeepSeek-V3", "deepseek-v3"),
        ("Kimi K2", "kimi-k2"),
    ):
        group = vars(find_model(model).groups[-1])
        width = group.get("qk_rope_head_dim") or group["head_dim"]
        assert scaling.MODELS[name].width == width
        assert scaling.MODELS[name].mla == ("kv_lora_rank" in group)


def test_scores_by_distance():
    rows = {
        row[0]: [float(x) for x in row[1:]]
        for row in cells(scaling.scores().rows)
    }
    within, beyond = rows["none"][:5], rows["none"][5:]
    assert max(beyond) < min(within)  # in the prose, as what follows
    assert (
        {rows[f"`{kind}`"][5] for kind in ("llama3", "yarn", "linear")}
        == {within[-1]}
        == {0.26}
    )
    for kind in ("`llama3`", "`yarn`"):
        for near, far in ((rows["none"][:3], 0), (rows["`linear`"][5:], 5)):
            got = rows[kind][far : far + len(near)]
            assert got == pytest.approx(near, abs=0.02)


def test_stale_keys_late_queries_and_mistakes():
    (_, *fit), *stale = scaling.stale()
    assert fit == ["0.00", "0.00"]  # up to the trained length
    dynamic, longrope = zip(
        *(map(float, row[1:]) for row in stale), strict=True
    )
    assert 0.01 < dynamic[0] < dynamic[1] < dynamic[2]
    assert min(longrope) > 0.5
    assert all(float(row[2]) > 0.3 for row in scaling.mistaken())
