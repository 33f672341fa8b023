"""Mistakes in merging attention over parts of the keys."""

from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.laws import parts_make_the_whole


def merged_weights(package: Any) -> Tensor:
    """The weights of six causal tokens, from three parts of two keys each,
    merged from the last to the first: with values that are the rows of a unit
    matrix, the output is the weights."""
    g = torch.Generator().manual_seed(96)
    q, k = 1.5 * torch.randn(2, 1, 1, 6, 4, generator=g)
    v, seen = torch.eye(6)[None, None], package.causal_mask(6)
    parts = [
        package.flash_lse(q, k[:, :, i], v[:, :, i], seen[:, i])
        for i in (slice(4, 6), slice(2, 4), slice(0, 2))
    ]
    out, lse = parts[0]
    for more, its_lse in parts[1:]:
        out, lse = package.merge([out, more], [lse, its_lse])
    weights: Tensor = out[0, 0]
    return weights


def parts_of(package: Any) -> tuple[Any, Any]:
    return package.flash_lse, package.merge


MISTAKES = (
    Mistake(
        id="merge-plain-mean",
        title=Text(
            en="Outputs of parts are averaged without their log-sum-exps",
            zh="各部分的输出直接平均，没有按 log-sum-exp 加权",
        ),
        lines=(
            Lines(
                module="core.merge",
                right="""
    mixed = (weights * counted).sum(dim=0)  # (B, H, T, Dv)
""",
                wrong="""
    mixed = torch.stack([*outs]).mean(dim=0)  # (B, H, T, Dv)
""",
            ),
        ),
        symptom="worse",
        shown=merged_weights,
        seen=Text(
            en="A part counts as much as another, however low its scores "
            "are, and so does a part in which nothing is seen: the weight of "
            "{where} is {there}.",
            zh="分数再低的部分也和别的一样重要，一个键都看不到的部分也算在"
            "内：{where} 的权重是 {there}。",
        ),
        notice=Text(
            en="Split the keys elsewhere: the result must not change.",
            zh="换个位置切分，结果不该变。",
        ),
        same_shape=True,
        found=(),
        tests=(
            "tests/core/test_merge.py::test_a_decode_step_in_parts",
            "tests/core/test_merge.py::test_mla_in_parts",
        ),
        law=parts_make_the_whole,
        of=parts_of,
    ),
    Mistake(
        id="merge-in-base-2",
        title=Text(
            en="Log-sum-exps in base e are merged in base 2, or vice versa",
            zh="合并时 log-sum-exp 的底弄混了：一边是 e，一边是 2",
        ),
        lines=(
            Lines(
                module="core.merge",
                right="""
    exponentials = (stacked - base).exp()  # (..., B, H, T)
""",
                wrong="""
    exponentials = (stacked - base).exp2()  # (..., B, H, T)
""",
            ),
            Lines(
                module="core.merge",
                right="""
    lse = (base + total.log()).masked_fill(none, -torch.inf)  # (B, H, T)
""",
                wrong="""
    lse = (base + total.log2()).masked_fill(none, -torch.inf)  # (B, H, T)
""",
            ),
        ),
        symptom="worse",
        shown=merged_weights,
        seen=Text(
            en="Within a part, the proportions are right, but the parts "
            "count too equally: the weight of {where} is {there}. The other "
            "way round, they count too unequally.",
            zh="每一部分内部都对，但各部分的权重太接近，{where} 处是 "
            "{there}。反过来弄混，权重就拉得太开。",
        ),
        notice=Text(
            en="Compare the kernel's log-sum-exp with `torch.logsumexp` of the "
            "scores: a factor of 1.44 or 0.69 is a matter of the base.",
            zh="把 kernel 给出的 log-sum-exp 和 `torch.logsumexp` 对比：相差 "
            "1.44 倍或 0.69 倍，就是底不同。",
        ),
        same_shape=True,
        found=(
            "https://github.com/sgl-project/sglang/issues/40903",
            "https://github.com/vllm-project/vllm/pull/47079",
        ),
        tests=(
            "tests/core/test_merge.py::"
            "test_parts_of_torchs_kernel_are_merged_into_its_own_attention",
        ),
        law=parts_make_the_whole,
        of=parts_of,
    ),
    Mistake(
        id="merge-lse-added",
        title=Text(
            en="The merged log-sum-exp is the sum of those of the parts",
            zh="合并后的 log-sum-exp 写成了各部分之和",
        ),
        lines=(
            Lines(
                module="core.merge",
                right="""
    lse = (base + total.log()).masked_fill(none, -torch.inf)  # (B, H, T)
""",
                wrong="""
    lse = stacked.sum(dim=0)  # (B, H, T)
""",
            ),
        ),
        symptom="worse",
        shown=merged_weights,
        seen=Text(
            en="Two parts are merged correctly. As soon as a third one is "
            "added, as around a ring of devices, the weight of {where} is "
            "{there}.",
            zh="只合并两部分时是对的；一旦再并入第三部分（比如在一圈设备之间"
            "传递），{where} 的权重是 {there}。",
        ),
        notice=Text(
            en="Merge at least three parts one by one, in two orders: the "
            "results must be equal.",
            zh="至少取三部分逐个合并，换个次序再来一遍，两次结果应该相同。",
        ),
        same_shape=True,
        found=("https://github.com/zhuzilin/ring-flash-attention/issues/20",),
        tests=(
            "tests/core/test_merge.py::"
            "test_parts_of_torchs_kernel_are_merged_into_its_own_attention",
        ),
        law=parts_make_the_whole,
        of=parts_of,
    ),
    Mistake(
        id="merge-empty-parts-nan",
        title=Text(
            en="Merging two empty parts subtracts -inf from -inf",
            zh="合并两个空的部分时，用 -inf 减了 -inf",
        ),
        lines=(
            Lines(
                module="core.merge",
                right="""
    base = peak.clamp(min=torch.finfo(peak.dtype).min)
""",
                wrong="""
    base = peak
""",
            ),
        ),
        symptom="nan",
        shown=merged_weights,
        seen=Text(
            en="The first two tokens see nothing in the last two parts, which "
            "are merged first: `-inf - (-inf)` is NaN, and both rows stay "
            "NaN, although the first part has keys for them.",
            zh="前两个 token 在后两部分里一个键都看不到，而这两部分最先合并："
            "`-inf - (-inf)` 得到 NaN，这两行从此都是 NaN，尽管第一部分里有它"
            "们的键。",
        ),
        notice=Text(
            en="Merge two parts of zeros whose log-sum-exps are minus "
            "infinity: the result must be the same again.",
            zh="合并两个空的部分（输出为 0，log-sum-exp 为负无穷），结果应该"
            "还是空的部分。",
        ),
        same_shape=True,
        found=(
            "https://github.com/flashinfer-ai/flashinfer/issues/4051",
            "https://github.com/vllm-project/vllm/pull/39148",
        ),
        tests=("tests/core/test_merge.py::test_a_part_without_keys",),
        law=parts_make_the_whole,
        of=parts_of,
    ),
    Mistake(
        id="empty-part-plus-infinity",
        title=Text(
            en="A part without keys has the log-sum-exp plus infinity",
            zh="没有键的部分，log-sum-exp 写成了正无穷",
        ),
        lines=(
            Lines(
                module="core.flash",
                right="""
        m.add_(total.masked_fill(total == 0, 1).log())
""",
                wrong="""
        m.add_(total.masked_fill(total == 0, 1).log())
        m.masked_fill_(total == 0, torch.inf)
""",
            ),
        ),
        symptom="nan",
        shown=merged_weights,
        seen=Text(
            en="The outputs of the parts are right. Merged, the parts in which "
            "a token sees nothing outweigh all others, and its row is NaN.",
            zh="各部分的输出都对。可是一合并，全被遮住的那部分反而占满权重，"
            "那一行就成了 NaN。",
        ),
        notice=Text(
            en="Ask the kernel for the log-sum-exp of a query that sees no key "
            "before you merge: the sum is 0, and its logarithm minus infinity.",
            zh="合并之前，先看 kernel 对一个键都看不到的查询返回什么：和是 0，"
            "对数应该是负无穷。",
        ),
        same_shape=True,
        found=("https://github.com/Dao-AILab/flash-attention/pull/978",),
        tests=("tests/core/test_flash.py::test_the_log_sum_exp_in_words",),
        law=parts_make_the_whole,
        of=parts_of,
    ),
)
