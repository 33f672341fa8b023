"""The script for a GPU, tried on a CPU: all but its clock and the memory."""

import json
import re

import pytest
import torch
from torch.nn.attention import flex_attention

from benchmarks import __main__ as cpu_script
from benchmarks import gpu
from tests.kit import kernels


def test_on_a_cpu_it_writes_what_a_gpu_would(tmp_path, monkeypatch):
    kernels.prepare()
    goals = [
        goal._replace(at=(("bfloat16", goal.name.split()[-1], 3, 16),))
        if goal.case == "decode"
        else goal._replace(at=(("bfloat16", "GQA", 16),))
        for goal in gpu.GOALS
        if goal.ours != "kernel" or not kernels.ABSENT
    ]
    monkeypatch.setattr(gpu, "GOALS", goals)
    eager = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    monkeypatch.setattr(flex_attention, eager, True)  # else it is traced
    out = tmp_path / "gpu.json"
    gpu.main(["--device", "cpu", "--seconds", "0", "--out", str(out)])
    result = json.loads(out.read_text())
    like = json.loads(cpu_script.MEASURED.read_text(encoding="utf-8"))
    assert {*result} - {*like} == {"gpu", "left_out"} and not result["left_out"]
    lines, others = result["goals"], like["goals"]
    assert sorted((x["goal"], x["at"]) for x in lines) == sorted(
        (g.name, ", ".join(map(str, g.at[0]))) for g in goals
    )
    assert {*lines[0]} <= {*others[0]} | {"least"}
    cases = result["cases"]
    assert {*cases["decode"]} == {*like["cases"]["decode"]} - {"busy"}
    for case, at in gpu.SIZES["cpu"]:
        size = cases[case]["at"][", ".join(map(str, at))]
        ways = size["ways"]
        assert {"sdpa", "fused", "flex"} <= {*ways}
        assert {*size["kernels"]} == {*ways}
        # Each computes the same; those that this device lacks say so.
        assert max(way["error"] for way in ways.values()) <= 2**-6
        skipped = size["skipped"]
        assert (skipped.pop("kernel", "") != "") == bool(kernels.ABSENT)
        assert {name.split(", ")[-1] for name in skipped} == {
            "efficient",
            "cudnn",
        } | ({"flash"} if "ML" in at[1] else set())
        for reason in skipped.values():
            assert re.match("No (viable|available) ", reason)
        for way in ways.values():
            low, middle, high = way["share"]
            assert 0 < low <= middle <= high
    heads = {at[1] for case, at in gpu.SIZES["cpu"] if case == "decode"}
    assert heads == {"MHA", "GQA-8", "MQA", "MLA-16", "MLA-128"}
    (name,) = [
        name
        for name in cases["decode"]["at"]["bfloat16, MHA, 3, 16"]["kernels"][
            "folded, flash"
        ]
        if "flash" in name
    ]
    assert name == "aten::_scaled_dot_product_flash_attention_for_cpu"


def test_it_stops_in_time_and_says_what_it_left_out(tmp_path, capsys):
    out = tmp_path / "gpu.json"
    gpu.main(["--device", "cpu", "--minutes", "0", "--out", str(out)])
    result = json.loads(out.read_text())
    assert result["cases"] == {} and result["goals"] == []
    assert len(result["left_out"]) == len(gpu.SIZES["cpu"])
    assert {*result["left_out"].values()} == {"no time left"}
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit):
            gpu.main([])
        assert "sees no GPU" in capsys.readouterr().err


def test_the_sizes_that_do_not_fit_are_known_before_they_are_made():
    for case, at in gpu.SIZES["cpu"]:
        _, *made = gpu.MAKE[case]("cpu", *at).pool[0]
        assert gpu.bytes_of(case, at) == sum(x.nbytes for x in made)
    for goal in gpu.GOALS:
        assert {(goal.case, at) for at in goal.at} <= {*gpu.SIZES["cuda"]}
    most = ("bfloat16", "MHA", 64, 131_072)
    assert gpu.bytes_of("decode", most) == 2**37  # 137 GB
