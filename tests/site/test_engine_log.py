"""What engines printed, as the page says, is what attnref counts."""

import re

import pytest

from attnref.numbers.kv_memory import kv_bytes
from attnref.released.specs import find_model
from sitekit.drawn import memory

GIB = 2**30
CASES = {(case.model, case.why): case for case in memory.log_cases()}


def numbers(text):
    result = re.findall(r"\d[\d,]*(?:\.\d+)?", text)
    return [float(n.replace(",", "")) for n in result]


@pytest.mark.parametrize(
    "model, why, bound",
    [
        ("gpt-oss-120b", "windows", 0.001),
        ("Qwen3-235B-A22B", "exact", 0.001),
        ("Qwen3-235B-A22B", "workers", 0.012),
        ("Qwen3-30B-A3B", "unnamed", 0.0005),
        ("OLMo 3 7B", "ratio", 0.001),
        ("DeepSeek-V4-Flash", "product", 0.001),
        ("DeepSeek-V4-Flash", "fitted", 0.07),
        ("GLM-5.2", "draft", 0),
    ],
)
def test_what_was_printed_is_what_is_counted(model, why, bound):
    """With the reason that the page gives for the rest."""
    case = CASES[model, why]
    printed, ours = numbers(case.printed), sum(numbers(case.ours))
    want = {
        "exact": sum(printed[1:]),
        "fitted": printed[0],
        "draft": printed[0],
    }.get(why, printed[-1])
    if why == "product":
        want = printed[1]
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
    block = memory.attention_block(model)
    state, token = memory._page(model)
    counted = kv_bytes(model, 32_768, block=block)
    padded = 48 * (block * token - state)
    assert counted + padded == 45 * 16 * block * token


@pytest.mark.parametrize(
    "name, share, block, padding",
    [
        ("qwen3.5-27b", 1, 784, "0.13%"),  # vLLM 0.19.1
        ("qwen3.5-35b-a3b", 1, 1056, "0.76%"),
        ("qwen3.5-9b", 1, 528, None),
        ("qwen3.5-9b", 2, 1056, None),  # FP8
    ],
)
def test_blocks_of_attention_are_as_large_as_states(
    name, share, block, padding
):
    """As logs have them: "Setting attention block size to ... tokens"."""
    model = find_model(name)
    assert memory.attention_block(model, share) == block
    state, token = memory._page(model)
    if padding:
        assert f"{block * token / state - 1:.2%}" == padding


def test_what_is_not_reconciled_is_said_to_be():
    """More blocks than 12 tokens fill, fewer than the report's 23 groups."""
    case = CASES["GLM-5.3-Flash", "open"]
    tokens, share, pool, block = numbers(case.printed)
    assert numbers(case.ours) == [round(share / 100 * pool / block, 1)]
    assert 1 < float(case.ours) < 23 and tokens < block
