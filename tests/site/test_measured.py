"""The page Measured shows what the file says, and says what it shows."""

import json
import re
from ast import literal_eval
from math import log2

import pytest
from torch.autograd.graph import saved_tensors_hooks

from attnref.numbers.cost import mla_cost
from benchmarks.cores import CAUSAL, prompt
from sitekit import ROOT
from sitekit.drawn import measured
from sitekit.pages import body_of
from sitekit.render import Word
from tests.kit.pages import fences, section

KEPT = json.loads((ROOT / "benchmarks/measured.json").read_text("utf-8"))
CASES = KEPT["cases"]
# How a goal's reason begins on the page.
REASONS = {
    "decode core, float32, MHA": "Decode, share of the limit",
    "decode core, float32, GQA-8": "Decode, share of the limit",
    "decode core, float32, MQA": "Decode, share of the limit",
    "decode step of Llama-3-8B's layer, bfloat16": "A layer in bfloat16",
    "prompt through flash, float32": "A prompt through `flash`",
    "prompt through flash, bfloat16": "A prompt through `flash`",
    "prompt through flash, widths of MLA": "A prompt through `flash`",
    "forward and backward through flash, against sdpa": "Forward and backward",
    "generation with KVCache": "A generation",
    "one token through a tiny layer": "A tiny layer",
}


def ways(case, *at):
    return CASES[case]["at"][", ".join(map(str, at))]["ways"]


def took(case, *at, way):
    return ways(case, *at)[way]["value"][1]


def numbers(text):
    """Those of a cell, without its commas."""
    return [float(n) for n in re.findall(r"\d[\d.]*", text.replace(",", ""))]


def near(value):
    return pytest.approx(value, rel=0.06)


def test_each_cell_is_of_the_file():
    calls = [s["table"] for kind, s in fences("measured") if "table" in s]
    timed = [c for c in calls if c.startswith("times")]
    assert len(timed) > 10
    for call in timed:
        case, at, *names = literal_eval(call.removeprefix("times"))
        rows = [*measured.times(case, at, *names)]
        (shown,) = names or [[w for x in at for w in ways(case, x)]]
        keys = {re.sub(r"\W+", "_", w): w for w in shown}
        assert [row[0].key for row in rows] == [*keys]
        for head, *cells in rows:
            way = keys[head.key]
            for cell, size in zip(cells, at, strict=True):
                if way not in ways(case, size):
                    assert cell == "–"
                    continue
                found = ways(case, size)[way]
                assert numbers(cell[0])[0] == near(found["value"][1])
                assert cell[0].endswith(CASES[case]["unit"])
                low, median, high = found["ratio"]
                if way != next(iter(ways(case, at[0]))) and high > low:
                    assert numbers(cell[1]) == near([median, low, high])
                if "share" in found:
                    assert numbers(cell[2])[0] == near(100 * found["share"][1])


def test_the_findings_are_ratios_of_medians():
    f = "float32"
    by_hand = {
        "heads": took("decode", f, "MHA", 32768, way="fused")
        / took("decode", f, "MQA", 32768, way="fused"),
        "repeated": took(
            "decode", f, "GQA-8", 32768, way="torch, repeat_interleave"
        )
        / took("decode", f, "GQA-8", 32768, way="fused"),
        "growing": took("append", 32768, way="torch.cat")
        / took("append", 32768, way="KVCache"),
        "expanded": took("mla", f, 8192, way="transformers sdpa, StaticCache")
        / took("mla", f, 8192, way="fused"),
        "scores": took("memory", f, "GQA", 4096, way="sdpa")
        / took("memory", f, "GQA", 4096, way="flash"),
    }
    for times, _, (key, _) in measured.findings():
        number = float(times.rstrip("×").replace(",", ""))
        assert number == near(by_hand.pop(key.key))
    assert by_hand == {}


def test_each_goal_is_shown_with_its_bound_and_what_came_of_it():
    lines = iter(KEPT["goals"])
    for words, tokens, bound, cells, results in measured.goals():
        for at, cell, result in zip(tokens, cells, results, strict=True):
            goal = next(lines)
            assert words[0].key == re.sub(r"\W+", "_", goal["goal"])
            percent = 100 if goal["what"] == "share" else 1
            ends = [goal[k] * percent for k in ("least", "most") if k in goal]
            assert numbers(bound) == ends
            assert bound.startswith("≥") == ("most" not in goal)
            assert numbers(cell)[0] == near(goal["found"][1] * percent)
            low, _, high = (x * percent for x in goal["found"])
            tie = any(low <= end <= high for end in ends)
            want = "met" if goal["met"] else "missed"
            assert result == Word("tie" if tie else want)
            assert at.replace(",", "") in goal["at"] or at == "–"
    assert next(lines, None) is None


def test_each_missed_goal_has_its_reason():
    said = section("goals", body_of(ROOT / "docs/en/numbers/measured.md"))
    for goal in KEPT["goals"]:
        if not goal["met"]:
            assert f"- **{REASONS[goal['goal']]}" in said, goal["goal"]


def test_what_limits_a_step_is_computed_from_the_probes():
    rows = {row[0].key: row[1:] for row in measured.variants("float32", 32768)}
    for name, K in (("MHA", 32), ("GQA-8", 8), ("MQA", 1)):
        at = CASES["decode"]["at"][f"float32, {name}, 32768"]
        mib = 2 * K * 16  # 32,768 rows of 128 floats are 16 MiB
        share, of_byte, read, compute, *cells = rows[name.replace("-", "_")]
        assert float(share) == near(K / 32)
        assert float(of_byte) == 16 / K
        rates = at["probes"]
        assert float(read) == near(mib * 2**20 / rates["GB/s"][1] / 1e6)
        assert float(compute) == near(2**29 / rates["GFLOP/s"][1] / 1e6)
        for way, cell in zip(("fused", "sdpa"), cells, strict=True):
            value = at["ways"][way]["value"][1]
            base = took("decode", "float32, MHA, 32768", way=way)
            assert [*map(float, cell)] == near([value, value / base])
    limits = {n: (float(row[2]), float(row[3])) for n, row in rows.items()}
    assert limits["MHA"][0] > 1.5 * limits["MHA"][1], "memory-bound"
    assert limits["MQA"][1] > 1.5 * limits["MQA"][0], "compute-bound"
    assert 0.5 < limits["GQA_8"][0] / limits["GQA_8"][1] < 2, "about as long"


def test_errors_curves_and_the_machine_are_of_the_file():
    for case, size in measured.ERRORS.items():
        for name, *cells in measured.errors(case):
            for cell, dtype in zip(cells, ("float32", "bfloat16"), strict=True):
                found = ways(case, size.format(dtype))
                (way,) = (w for w in found if measured.slug(w) == name.key)
                assert float(cell) == near(found[way]["error"])
    shown = {row[0].key: row[1] for row in measured.machine()}
    assert shown["torch"] == KEPT["torch"]
    assert all(case["date"] in shown["date"] for case in CASES.values())
    plot = measured.growth("append", "", ("KVCache", "torch.cat"))
    assert "{KVCache}" in plot.wide and "{torch_cat}" in plot.narrow
    for row, way in zip(plot.rows, ("KVCache", "torch.cat"), strict=True):
        for cell, size in zip(row[1:], CASES["append"]["at"], strict=True):
            assert float(cell) == near(took("append", size, way=way))
    for line in plot.wide, plot.narrow:
        assert line.count("<path") > 2


def test_what_the_page_says_of_decoding_is_so():
    for dtype in ("float32", "bfloat16"):
        mha, gqa, mqa = (
            ways("decode", dtype, heads, 32_768)
            for heads in ("MHA", "GQA-8", "MQA")
        )
        base = mha["fused"]["value"][1]
        copied = gqa["torch, repeat_interleave"]["value"][1]
        assert copied > base, "slower than MHA"
        enabled = [x["torch, enable_gqa"]["value"][1] for x in (mha, gqa, mqa)]
        assert min(enabled) > 0.7 * enabled[0], "hardly gains"
        einsum = "x-transformers, einsum"
        assert mqa[einsum]["ratio"][1] < 2 < gqa[einsum]["ratio"][1]
        for found in (mha, gqa, mqa):
            for way in ("flash", "split_kv"):
                assert found[way]["ratio"][1] > 0.9, "gains nothing"
        assert mqa["fused"]["share"][1] > mqa["sdpa"]["share"][1]
    for heads in ("MHA", "GQA-8", "MQA"):
        long, short = (
            took("decode", dtype, heads, 32_768, way="fused")
            for dtype in ("float32", "bfloat16")
        )
        assert short > 0.6 * long, "half the bytes, but not half the time"


def test_what_the_page_says_of_layers_and_prompts_is_so():
    static, dynamic, eager = (
        f"transformers {x}Cache"
        for x in ("sdpa, Static", "sdpa, Dynamic", "eager, Static")
    )
    for dtype in ("float32", "bfloat16"):
        few = ways("layer", dtype, "Llama-3-8B", 2048)
        assert 0.7 < few[static]["ratio"][1] < 1.4, "about the same time"
        many = ways("layer", dtype, "Llama-3-8B", 32_768)
        ratio = many["fused"]["value"][1] / many[static]["value"][1]
        assert 0.8 < ratio < 1.25, "both fold the heads"
        for slow in (dynamic, eager, "repeated heads"):
            least = 2 * many[static]["value"][1]
            assert many[slow]["value"][1] > least
        low, high = {"float32": (1.15, 1.25), "bfloat16": (4.5, 5.5)}[dtype]
        assert low < many["sdpa"]["ratio"][1] < high, "a fifth, five times"
    tiny = ways("layer", "float32, tiny, 64")
    assert tiny["sdpa"]["ratio"][1] > 1, "more calls than fused"
    torch = "torch, is_causal"
    causal = ways("prefill", "float32, GQA, 2048")
    for slow in ("torch, bool mask", "eager", "sdpa"):
        assert causal[slow]["ratio"][1] > 1.3
    assert 0.8 < causal["fused"]["ratio"][1] < 1.2
    for way in causal:
        shorter = took("prefill", "float32, GQA, 1024", way=way)
        assert 1.5 < log2(causal[way]["value"][1] / shorter) < 2.4, "quadratic"
    wide = ways("prefill", "float32, MLA, 4096")
    for way in ("torch, padded values", "flash"):
        assert wide[way]["ratio"][1] < 0.7
        memory = ways("memory", "float32, MLA, 4096")
        assert memory[way]["ratio"][1] < 0.1
    for dtype in ("float32", "bfloat16"):
        for tokens in (1024, 2048, 4096):
            found = ways("prefill", dtype, "GQA", tokens)
            assert 0.7 < found["flash"]["ratio"][1] < 1.5, "about as long"
    same = ways("decode", "bfloat16, GQA-8, 32768")["torch, folded"]
    assert 0.85 < same["ratio"][1] < 1.2, "attention takes about as long"
    for tiles in (8, 16):  # per side; 7 products of a tile, 6 of all scores
        left = 7 * (tiles + 1) / 2 / (6 * tiles)
        assert 0.6 < left < 2 / 3, "saves a little over a third"
    inputs = [x.requires_grad_() for x in prompt("float32", "GQA", 160)]
    sizes = {}
    with saved_tensors_hooks(
        lambda x: sizes.update({x.data_ptr(): x.numel()}), lambda _: None
    ):
        CAUSAL["sdpa"](*inputs)
    assert [*sizes.values()].count(16 * 160 * 160) == 2, "kept by autograd"
    both = ways("backward", "float32, GQA, 2048")
    assert both["sdpa"]["value"][1] > 1.5 * both[torch]["value"][1]
    assert both["flash"]["ratio"][1] < 1.3


def test_what_the_page_says_of_caches_and_mla_is_so():
    lengths = [*CASES["append"]["at"]]
    flat = [took("append", n, way="KVCache") for n in lengths]
    assert max(flat) < 2 * min(flat)
    jump = took("append", 8192, way="torch.cat")
    assert jump > 4 * took("append", 4096, way="torch.cat")
    assert 2 * 8 * 4097 * 128 * 4 < 2 * 2**25 < 2 * 8 * 8193 * 128 * 4
    for tokens in (2048, 8192):
        assert ways("generate", tokens)["torch.cat"]["ratio"][1] > 1
    static = "transformers sdpa, StaticCache"
    factors = [
        ways("mla", "float32", n)[static]["ratio"][1]
        for n in (512, 2048, 8192, 16_384)
    ]
    assert factors == sorted(factors), "grows with the cache"
    assert factors[2] > 10, "many times as long"
    latent = CASES["latent"]["at"].values()
    for found in latent:
        assert found["ways"]["flash"]["ratio"][1] > 1, "nothing"
    sizes = {"d_model": 2048, "n_heads": 16, "kv_lora_rank": 512}
    sizes |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    sizes |= {"v_head_dim": 128, "past": 8191}
    latent, absorbed = (
        mla_cost(**sizes, q_lora_rank=None, form=form)
        for form in ("latent", "absorbed")
    )
    flops = [c.projections + c.scores + c.values for c in (latent, absorbed)]
    assert flops[0] / flops[1] > factors[2], "FLOPs differ by more"
    cores = [
        CASES["latent"]["at"][f"{dtype}, 32768"]
        for dtype in ("float32", "bfloat16")
    ]
    of_byte = 2 * 16 * (576 + 512) / (576 * 4)
    rates = [core["probes"] for core in cores]
    ridge = rates[0]["GFLOP/s"][1] / rates[0]["GB/s"][1]
    assert of_byte > ridge, "compute-bound"
    assert rates[1]["GFLOP/s"][1] > 2 * rates[0]["GFLOP/s"][1]
    shares = [core["ways"]["fused"]["share"][1] for core in cores]
    assert shares[0] > shares[1]


def test_what_the_page_says_of_threads_is_so():
    at = json.loads((ROOT / "benchmarks/threads.json").read_text("utf-8"))["at"]
    for dtype in ("float32", "bfloat16"):
        for words, names, *cells in measured.threads(dtype):
            (counts,) = (
                at[size]
                for size in at
                if size == f"{dtype}, {words.key.replace('_', ' ')}"
                or size == f"{dtype}, {words.key.replace('_', '-')}"
            )
            assert [*counts] == ["1", "2", "8", "32"]
            for cell, ways in zip(cells, counts.values(), strict=True):
                assert [float(x) for x in cell] == [
                    near(x[1]) for x in ways.values()
                ]
            one, *_, most = (dict(zip(names, x, strict=True)) for x in cells)
            folded, enabled = names[:2]
            assert float(one[enabled]) > 2.5 * float(one[folded])
            if dtype == "float32":
                assert max(map(float, [most[n] for n in names[1:]])) < float(
                    most[folded]
                )


def test_what_the_page_says_of_memory_and_errors_is_so():
    scores = 16 * 4096**2 * 4 / 1e6
    found = ways("memory", "float32, GQA, 4096")
    for way, matrices in (("eager", 2), ("sdpa", 3)):
        assert found[way]["value"][1] == pytest.approx(
            matrices * scores, rel=0.15
        )
    one = 4096**2 * 5 / 1e6  # a byte, and a float
    assert found["torch, bool mask"]["value"][1] == pytest.approx(one, rel=0.2)
    for way in ("torch, is_causal", "flash", "fused"):
        assert took("memory", "float32, GQA, 16384", way=way) < 7
    prompt = ways("prefill", "bfloat16, GQA, 1024")
    exact = prompt["sdpa"]["error"]
    assert 1.5 < prompt["eager"]["error"] / exact < 3, "about twice"
    assert prompt["flash"]["error"] < 1.3 * exact
    layer = ways("layer", "float32, Llama-3-8B, 8192")
    for cache in ("Static", "Dynamic"):
        theirs = layer[f"transformers sdpa, {cache}Cache"]["error"]
        assert theirs > 10 * layer["sdpa"]["error"], "the angles of RoPE"
