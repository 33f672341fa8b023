"""What engines printed, as the page says, is what attnref counts."""

import re

import pytest

from attnref.numbers.engines import allocated
from attnref.numbers.kv_memory import kv_bytes, state_bytes
from attnref.numbers.shapes import Recurrent
from attnref.released.specs import find_model
from sitekit.drawn import memory

CASES = {(case.model, case.why): case for case in memory.log_cases()}


def numbers(text):
    result = re.findall(r"\d[\d,]*(?:\.\d+)?", text)
    return [float(n.replace(",", "")) for n in result]


@pytest.mark.parametrize(
    "model, why, bound",
    [
        ("gpt-oss-120b", "windows", 0.001),
        ("Qwen3-235B-A22B", "exact", 0.001),
        ("DeepSeek-V4-Flash", "product", 0.001),
        ("GLM-5.2", "draft", 0),
        ("Gemma 3 27B", "cells", 0),
        ("MiMo-V2-Flash", "pool", 0.001),
    ],
)
def test_what_was_printed_is_what_is_counted(model, why, bound):
    """With the reason that the page gives for the rest."""
    case = CASES[model, why]
    printed, ours = numbers(case.printed), sum(numbers(case.ours))
    want = printed[1] if why == "product" else printed[-1]
    if why in ("exact", "pool"):
        want = sum(printed[1:])
    assert abs(ours / want - 1) <= bound


def test_a_hybrid_model_is_what_vllm_019_printed():
    """Both lines, from one number of blocks, which no other number gives."""
    case = CASES["Qwen3.5-27B", "groups"]
    model = find_model("qwen3.5-27b")
    assert numbers(case.printed) == [290_864, 33.04, 32_768]
    fits = [
        blocks
        for blocks in range(1000, 2000)
        for result in [memory.hybrid(model, blocks, 32_768)]
        if result.tokens == 290_864 and f"{result.concurrency:.2f}" == "33.04"
    ]
    assert fits == [1487]
    assert case.ours == "290,864; 33.04"
    # What one request takes is what `attnref kv --block-size 784` counts, if
    # states are padded to a block.
    served, block = allocated(model, "vllm")
    counted = kv_bytes(served, 32_768, block=block)
    assert counted == 45 * 16 * block * 4096


@pytest.mark.parametrize(
    "name, dtype, block, padding",
    [
        ("qwen3.5-27b", "bf16", 784, "0.13%"),  # vLLM 0.19.1
        ("qwen3.5-35b-a3b", "bf16", 1056, "0.76%"),
        ("qwen3.5-9b", "bf16", 528, None),
        ("qwen3.5-9b", "fp8", 1056, None),
    ],
)
def test_blocks_of_attention_are_as_large_as_states(
    name, dtype, block, padding
):
    """As logs have them: "Setting attention block size to ... tokens"."""
    model = find_model(name)
    served = allocated(model, "vllm", dtype=dtype)
    assert served.block == block
    layers = sum(g.layers for g in model.groups if isinstance(g, Recurrent))
    state = state_bytes(model) / layers
    if padding:
        page = state_bytes(served.model) / layers
        assert f"{page / state - 1:.2%}" == padding


def test_vllm_keeps_two_states_of_a_prefix():
    """Its blocks have 1,568 tokens, of which 4.99 GiB hold 208."""
    case = CASES["Qwen3.8-27B", "pairs"]
    model, options = find_model("qwen3.8-27b"), {"dtype": "fp8", "ranks": 2}
    assert allocated(model, "vllm", **options).block == 1568
    assert numbers(case.printed)[0] == sum(numbers(case.ours))
    one = memory.hybrid(model, 208, 131_072, **options)
    assert f"{one.concurrency:.2f}" != "2.31"


def test_llama_cpp_keeps_states_in_float32():
    case = CASES["Qwen3.5-9B", "floats"]
    units = {"MiB": 1, "GiB": 1024}
    ours = [
        float(n) * units[u] for n, u in map(str.split, case.ours.split(", "))
    ]
    assert [int(n) for n in ours[:2]] == numbers(case.printed)[:2]
    assert ours[2] == pytest.approx(4146, rel=1e-3)
