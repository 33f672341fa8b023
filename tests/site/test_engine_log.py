"""What engines printed, as the page says, is what attnref counts."""

import re

import pytest

from attnref.numbers.kv_memory import kv_bytes
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
    ],
)
def test_what_was_printed_is_what_is_counted(model, why, bound):
    """With the reason that the page gives for the rest."""
    case = CASES[model, why]
    printed, ours = numbers(case.printed), sum(numbers(case.ours))
    want = printed[1] if why == "product" else printed[-1]
    if why == "exact":
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
