"""Mistakes in multi-query attention: what heads do not share."""

from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.laws import every_weight_is_used
from attnref.mistakes.mha import effects, tokens


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
            en="Only the first query matrix has an effect. Since the heads "
            "also share keys and values, all heads give the same output.",
            zh="只有第一个查询矩阵起作用。键和值本来就是共用的，于是所有头的输"
            "出都一样。",
        ),
        notice=Text(
            en="Compare the attention weights of two heads, or look for query "
            "weights without a gradient after backward. In MQA, the heads "
            "differ only in their queries.",
            zh="比较两个头的注意力权重，或者在反向传播之后找一找没有梯度的查询"
            "权重：MQA 的各个头只靠查询来区分。",
        ),
        same_shape=True,
        found=(),
        tests=("tests/layers/test_mqa.py::test_the_loop_of_mqa_is_the_layer",),
        law=every_weight_is_used,
        of=loop_and_queries,
    ),
)
