"""Mistakes in the absorbed form of multi-head latent attention."""

from typing import Any

from torch import Tensor

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.laws import is_mla
from attnref.mistakes.mla import by_hand, head_weights


def absorbed_weights(package: Any) -> Tensor:
    """The weights of one head of six tokens in the absorbed form."""
    return head_weights(package, "absorbed")


MISTAKES = (
    Mistake(
        id="absorbed-scale",
        title=Text(
            en="The absorbed form is scaled by the width of the latent",
            zh="吸收形式的缩放系数按潜在向量的维度取",
        ),
        lines=(
            Lines(
                module="layers.mla",
                right="""
    mixed = p.attend(
        q, entry, c, p.mask, scale=p.scale, dropout=p.dropout
    )  # (B, H, T, R)
""",
                wrong="""
    mixed = p.attend(
        q, entry, c, p.mask, scale=q.shape[3] ** -0.5, dropout=p.dropout
    )  # (B, H, T, R)
""",
            ),
        ),
        symptom="decoding",
        shown=absorbed_weights,
        seen=Text(
            en="Absorbed queries and keys have R + Dr elements, those of the "
            "latent and of the RoPE key, but their dot products equal those "
            "of the Dn + Dr elements of the expanded form. So the scale is "
            "still that of Dn + Dr; with the other one, the weight of {where} "
            "is {there}.",
            zh="吸收形式的查询和键是 R + Dr 维（潜在向量加 RoPE 键），但点积"
            "和展开形式 Dn + Dr 维的相等，所以缩放系数仍要按 Dn + Dr 取。取错"
            "了，{where} 的权重是 {there}。",
        ),
        notice=Text(
            en="Compare the absorbed form with the expanded one in float64. "
            "In DeepSeek-V3 the widths are 576 and 192, so the scores are too "
            "small by a factor of 1.7.",
            zh="在 float64 下和展开形式对比。DeepSeek-V3 的这两个维度是 576 和 "
            "192，分数会小到原来的 1/1.7。",
        ),
        same_shape=True,
        found=(
            "https://github.com/ollama/ollama/pull/13893",
            "https://github.com/vllm-project/vllm/pull/48658",
        ),
        tests=(
            "tests/layers/test_mla.py::test_the_forms_by_hand",
            "tests/layers/test_mla.py::test_three_forms_one_result",
        ),
        law=is_mla,
        of=by_hand("absorbed"),
    ),
    Mistake(
        id="absorbed-without-mask",
        title=Text(
            en="The absorbed form has no causal mask",
            zh="吸收形式没有加因果掩码",
        ),
        lines=(
            Lines(
                module="layers.mla",
                right="""
    mixed = p.attend(
        q, entry, c, p.mask, scale=p.scale, dropout=p.dropout
    )  # (B, H, T, R)
""",
                wrong="""
    mixed = p.attend(
        q, entry, c, None, scale=p.scale, dropout=p.dropout
    )  # (B, H, T, R)
""",
            ),
        ),
        symptom="future",
        shown=absorbed_weights,
        seen=Text(
            en="A single new token may see everything, so steps of one token "
            "are right. In a chunk of several tokens, each sees those after "
            "it: the weight of {where} is {there}.",
            zh="只有一个新 token 时，它本来就可以看到全部，所以逐 token 解码"
            "是对的。一块里有几个 token 时，前面的看到了后面的：{where} 的权重"
            "是 {there}。",
        ),
        notice=Text(
            en="Decode in chunks of several tokens, as speculative decoding "
            "and chunked prefill do, and change the last token of a chunk: "
            "no other output may change.",
            zh="像投机解码、分块预填充那样，一次送进几个 token，改掉一块里的最"
            "后一个，其余的输出不该变。",
        ),
        same_shape=True,
        found=("https://github.com/ROCm/aiter/pull/3993",),
        tests=("tests/layers/test_mla.py::test_the_forms_by_hand",),
        law=is_mla,
        of=by_hand("absorbed"),
    ),
)
