"""The page Measured shows what the file says, and says what it shows."""

import json
import re

import pytest
from torch.autograd.graph import saved_tensors_hooks

from benchmarks.cores import CAUSAL, prompt
from sitekit import ROOT
from sitekit.drawn import measured
from tests.kit.pages import fences

MEASURED = json.loads((ROOT / "benchmarks/measured.json").read_text("utf-8"))
CASES = MEASURED["cases"]


def ways(case, *size):
    return CASES[case]["at"][", ".join(map(str, size))]["ways"]


def took(case, *size, way):
    return ways(case, *size)[way]["value"][1]


def numbers(text):
    """Those of a cell, without its commas."""
    return [float(n) for n in re.findall(r"\d[\d.]*", text.replace(",", ""))]


def near(value):
    return pytest.approx(value, rel=0.06)


def test_what_the_page_says_of_limits_is_so():
    rows = {row[0].key: row[1:] for row in measured.variants("float32", 32768)}
    limits = {n: (float(row[1]), float(row[2])) for n, row in rows.items()}
    assert limits["MHA"][0] > 1.5 * limits["MHA"][1], "memory-bound"
    assert limits["MQA"][1] > 1.5 * limits["MQA"][0], "compute-bound"
    assert 0.5 < limits["GQA_8"][0] / limits["GQA_8"][1] < 2, "about as long"
    scores = ways("layer", "bfloat16", "Llama-3-8B", 32768)["sdpa"]["ratio"]
    assert scores[1] > 2, "than the rest"


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
        for each in (mha, gqa, mqa):
            for way in ("flash", "split_kv"):
                assert each[way]["ratio"][1] > 0.9, "gains nothing"
    for heads in ("MHA", "GQA-8", "MQA"):
        long, short = (
            took("decode", dtype, heads, 32_768, way="fused")
            for dtype in ("float32", "bfloat16")
        )
        assert short > 0.9 * long, "half the bytes, but no less time"
    slow, fast = (
        took("decode", dtype, "MHA", 32_768, way="torch, folded")
        for dtype in ("bfloat16", "float32")
    )
    assert slow > 1.5 * fast, "even slower"


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
    for theirs in (static, dynamic):
        assert tiny[theirs]["ratio"][1] < 1, "faster"
    torch = "torch, is_causal"
    causal = ways("prefill", "float32, GQA, 2048")
    for slow in ("torch, bool mask", "eager", "sdpa"):
        assert causal[slow]["ratio"][1] > 1.3
    assert 0.8 < causal["fused"]["ratio"][1] < 1.2
    wide = ways("prefill", "float32, MLA, 4096")
    for way in ("torch, padded values", "flash"):
        assert wide[way]["ratio"][1] < 0.7
        memory = ways("memory", "float32, MLA, 4096")
        assert memory[way]["ratio"][1] < 0.1
    padded = wide["torch, padded values"]["value"][1]
    assert wide["fused"]["value"][1] == pytest.approx(padded, rel=0.1)
    for dtype in ("float32", "bfloat16"):
        for tokens in (1024, 2048, 4096):
            case = ways("prefill", dtype, "GQA", tokens)
            assert 0.7 < case["flash"]["ratio"][1] < 1.5, "about as long"
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
    for case in latent:
        assert case["ways"]["flash"]["ratio"][1] > 1, "nothing"


def test_what_the_page_says_of_threads_is_so():
    shapes = json.loads((ROOT / "benchmarks/threads.json").read_text("utf-8"))[
        "at"
    ]
    for shape in ("GQA-2", "GQA-8"):
        counts = [*shapes[f"float32, {shape}"].values()]
        folded, enabled, few = (
            [ways[name][1] for ways in counts] for name in counts[0]
        )
        assert enabled[0] > 2.5 * folded[0]
        assert max(enabled[-1], few[-1]) < folded[-1], "threads are idle"
    two = shapes["float32, GQA-2"]
    least = two["2"]["torch, folded"][1]
    assert two["32"]["torch, folded"][1] > 0.9 * least, "all but two are idle"
    assert two["8"]["few"][1] < 0.6 * least, "split over all"


def test_what_the_page_says_of_a_gpu_is_so():
    record = json.loads(measured.GPU.read_text("utf-8"))
    sizes = record["cases"]["decode"]["at"]
    captions = [s["caption"] for _, s in fences("measured") if "table" in s]
    machine = f"{record['gpu']['device']}, PyTorch {record['torch']}, bfloat16"
    assert sum(machine in caption for caption in captions) == 1
    fused, repeated = (
        {
            heads: sizes[f"bfloat16, {heads}, 16, 32768"]["ways"][way]
            for heads in ("MHA", "GQA-8", "MQA", "MLA-128")
            if way in sizes[f"bfloat16, {heads}, 16, 32768"]["ways"]
        }
        for way in ("fused", "torch, repeat_interleave")
    )
    took = {heads: way["value"][1] for heads, way in fused.items()}
    assert took["MHA"] / took["GQA-8"] == near(4)
    assert 20 < took["MHA"] / took["MQA"] < 32
    assert all(fused[n]["share"][1] > 0.9 for n in ("MHA", "GQA-8", "MQA"))
    assert fused["MLA-128"]["share"][1] < 0.1, "no good kernel"
    assert repeated["GQA-8"]["value"][1] / took["GQA-8"] > 20
    one = sizes["bfloat16, GQA-8, 1, 32768"]["ways"]
    for way in "fused", "torch, enable_gqa":
        assert one["folded, cudnn"]["value"][1] > 5 * one[way]["value"][1]


def test_what_the_page_says_of_memory_and_errors_is_so():
    scores = 16 * 4096**2 * 4 / 1e6
    case = ways("memory", "float32, GQA, 4096")
    for way, matrices in (("eager", 2), ("sdpa", 3)):
        assert case[way]["value"][1] == pytest.approx(
            matrices * scores, rel=0.15
        )
    one = 4096**2 * 5 / 1e6  # a byte, and a float
    assert case["torch, bool mask"]["value"][1] == pytest.approx(one, rel=0.2)
    for way in ("torch, is_causal", "flash", "fused"):
        assert took("memory", "float32, GQA, 16384", way=way) < 7
    in_bfloat16 = ways("layer", "bfloat16, Llama-3-8B, 8192")
    eager, exact = (
        in_bfloat16[f"transformers {way}, StaticCache"]["error"]
        for way in ("eager", "sdpa")
    )
    assert 1.5 < eager / exact < 3, "about twice"
    assert in_bfloat16["fused"]["error"] < 2 * 2**-8, "8 significant bits"
    layer = ways("layer", "float32, Llama-3-8B, 8192")
    for cache in ("Static", "Dynamic"):
        theirs = layer[f"transformers sdpa, {cache}Cache"]["error"]
        assert theirs > 10 * layer["sdpa"]["error"], "the angles of RoPE"
