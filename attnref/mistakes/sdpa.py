"""Mistakes in scaled dot-product attention and in its use of masks."""

from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import NOTES, Lines, Mistake, Text
from attnref.mistakes.laws import equals_torch


def causal_weights(package: Any) -> Tensor:
    """The weights of four tokens under a causal mask."""
    q, k = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))
    weights: Tensor = package.attention_weights(
        q[None, None], k[None, None], package.causal_mask(4)
    )
    return weights[0, 0]


MISTAKES = (
    Mistake(
        id="mask-times-tiny",
        title=Text(
            en="The mask is multiplied by -1e-9, not by -1e9",
            zh="掩码乘的是 -1e-9，不是 -1e9",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right="""
        scores = scores.masked_fill(~mask, -torch.inf)  # (B, H, T, S)
""",
                wrong="""
        scores = scores + ~mask * -1e-9  # (B, H, T, S)
""",
            ),
        ),
        symptom="inert",
        shown=causal_weights,
        seen=Text(
            en="Each token attends to the tokens after it as if there were no "
            "mask: the weights differ by up to {change}.",
            zh="每个词元照样看到它后面的词元，就像没有掩码一样：权重最多差 "
            "{change}。",
        ),
        notice=Text(
            en="Change the last token: no output before it may move.",
            zh="改掉最后一个词元，它前面的输出一个都不该变。",
        ),
        hidden=Text(
            en="The mask broadcasts as it should, so every size is right.",
            zh="掩码照常广播，所有尺寸都对。",
        ),
        found=(
            NOTES,
            "https://github.com/wdndev/llm_interview_note/issues/11",
        ),
        tests=(
            "tests/core/test_sdpa.py::test_equals_torch_over_shapes_and_masks",
        ),
        law=equals_torch,
        of=lambda package: (package.sdpa,),
    ),
)
