"""Mistakes in multi-query attention: what is shared, and what is stored."""

from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import NOTES, Lines, Mistake, Text
from attnref.mistakes.laws import cache_holds, every_weight_is_used
from attnref.mistakes.mha import effects, filled, tokens


def matrices(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Weights, the same each time."""
    generator = torch.Generator().manual_seed(3)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64) / 2
        for shape in shapes
    )


def query_heads(package: Any) -> Tensor:
    """Which of the four query matrices has an effect on the output."""
    x, (wq, *rest) = (
        tokens(1, 6, 8),
        matrices((4, 8, 2), (8, 2), (8, 2), (8, 8)),
    )
    return effects(lambda wq: package.multi_query_loop(x, wq, *rest), wq)


def loop_and_queries(package: Any) -> tuple[Any, ...]:
    x, (wq, *rest) = (
        tokens(2, 6, 8),
        matrices((4, 8, 2), (8, 2), (8, 2), (8, 8)),
    )
    return lambda: package.multi_query_loop(x, wq, *rest), [wq]


def mqa(package: Any) -> Any:
    return filled(package.MultiQueryAttention(d_model=8, n_heads=4))


@torch.no_grad()
def stored(package: Any) -> Tensor:
    """The elements that one token takes in the cache."""
    cache = package.GrowingKVCache()
    mqa(package)(tokens(1, 6, 8), cache=cache)
    return torch.tensor(sum(t.numel() for t in cache.stored) / 6)


def layer_and_cache(package: Any) -> tuple[Any, ...]:
    cache = package.GrowingKVCache()
    return mqa(package), tokens(3, 5, 8), cache, lambda: cache.stored


MISTAKES = (
    Mistake(
        id="one-query-for-all-heads",
        title=Text(
            en="All heads use the same query matrix",
            zh="所有头用了同一个查询矩阵",
        ),
        lines=(
            Lines(
                module="layers.mqa",
                right="""
        q = x @ wq[h]  # (B, T, D)
""",
                wrong="""
        q = x @ wq[0]  # (B, T, D)
""",
            ),
        ),
        symptom="heads",
        shown=query_heads,
        seen=Text(
            en="Only the first query matrix has an effect. All heads give the "
            "same, as they share keys and values too.",
            zh="只有第一个查询矩阵起作用。键和值本来就是共用的，于是所有头的结果"
            "都一样。",
        ),
        notice=Text(
            en="Compare the attention weights of two heads, or look for query "
            "weights without a gradient: in MQA, heads differ through their "
            "queries alone.",
            zh="比较两个头的注意力权重，或者找一找没有梯度的查询权重：MQA 的各"
            "个头只靠查询来区分。",
        ),
        hidden=Text(
            en="Each head gives (B, T, D), whatever its queries are.",
            zh="不管用哪个查询矩阵，每个头的结果都是 (B, T, D)。",
        ),
        found=(NOTES,),
        tests=("tests/layers/test_mqa.py::test_the_loop_of_mqa_is_the_layer",),
        law=every_weight_is_used,
        of=loop_and_queries,
    ),
    Mistake(
        id="cache-of-expanded-heads",
        title=Text(
            en="Shared heads are expanded before they are cached",
            zh="共用的头先展开，再写入缓存",
        ),
        lines=(
            Lines(
                module="layers.mqa",
                right="""
            k, v = cache.append(k, v)  # (B, 1, S, D); keys are stored rotated
""",
                wrong="""
            k, v = k.expand(B, H, T, D), v.expand(B, H, T, D)
            k, v = cache.append(k, v)  # (B, H, S, D)
""",
            ),
        ),
        symptom="memory",
        shown=stored,
        seen=Text(
            en="Each token takes {wrong} elements in the cache, not {right}: "
            "as many as in MHA. The results are right.",
            zh="每个词元在缓存里占 {wrong} 个元素，而不是 {right} 个，和 MHA "
            "一样多。结果倒是对的。",
        ),
        notice=Text(
            en="Count the bytes of the cache: per token, they are those of the "
            "outputs of k_proj and v_proj.",
            zh="数一数缓存的字节数：每个词元应当正好是 k_proj 和 v_proj 输出的"
            "大小。",
        ),
        hidden=Text(
            en="Every output has the right shape, and even the right values.",
            zh="所有输出的形状都对，连数值都对。",
        ),
        found=(
            "https://github.com/FasterDecoding/SnapKV/issues/16",
            "https://github.com/meta-pytorch/torchtune/issues/38",
        ),
        tests=(
            "tests/laws/test_laws.py::"
            "test_the_bytes_of_its_cache_are_those_predicted[mqa, room]",
        ),
        law=cache_holds,
        of=layer_and_cache,
    ),
)
