"""Mistakes in softmax, at once and chunk by chunk."""

from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.laws import is_softmax


def large_scores(package: Any) -> Tensor:
    """The weights of three scores, one of which is 100."""
    weights: Tensor = package.softmax(torch.tensor([10.0, 50.0, 100.0]))
    return weights


def rows_far_apart(package: Any) -> Tensor:
    """The weights of two rows: small scores, and scores around 200."""
    scores = torch.tensor([[0.0, 1.0, 2.0], [200.0, 201.0, 202.0]])
    weights: Tensor = package.softmax(scores)
    return weights


def many_weights(package: Any) -> Tensor:
    """What 70,000 equal weights in float16 sum to."""
    weights: Tensor = package.softmax(torch.zeros(70_000, dtype=torch.float16))
    return weights.double().sum()


def rising_scores(package: Any) -> Tensor:
    """The weights of four scores, read two at a time; the maximum rises."""
    scores = torch.tensor([1.0, 2.0, 3.0, 4.0])
    weights: Tensor = package.online_softmax(scores, chunk=2)
    return weights


def falling_scores(package: Any) -> Tensor:
    """The weights of four scores, read two at a time; the first are large."""
    scores = torch.tensor([100.0, 99.0, 0.0, 1.0])
    weights: Tensor = package.online_softmax(scores, chunk=2)
    return weights


def masked_first(package: Any) -> Tensor:
    """The weights of four scores, read two at a time; the first are masked."""
    scores = torch.tensor([-torch.inf, -torch.inf, 1.0, 2.0])
    weights: Tensor = package.online_softmax(scores, chunk=2)
    return weights


def at_once(package: Any) -> tuple[Any]:
    return (package.softmax,)


def in_chunks(package: Any) -> tuple[Any]:
    """In chunks of two scores, or in five of a long row."""
    return (
        lambda x: package.online_softmax(x, chunk=max(2, x.shape[-1] // 5)),
    )


EVERY = "tests/core/test_softmax.py::test_equals_torch_in_every_dtype"


MISTAKES = (
    Mistake(
        id="softmax-overflow",
        title=Text(
            en="Softmax without subtracting the maximum",
            zh="softmax 没有先减去最大值",
        ),
        lines=(
            Lines(
                module="core.softmax",
                right="""
    e = (wide - peak.clamp(min=torch.finfo(wide.dtype).min)).exp_()
""",
                wrong="""
    e = wide.exp()
""",
            ),
            Lines(
                module="core.softmax",
                right="""
    total = e.sum(dim, keepdim=True).clamp(min=1)
""",
                wrong="""
    total = e.sum(dim, keepdim=True)
""",
            ),
        ),
        symptom="nan",
        shown=large_scores,
        seen=Text(
            en="The weights of the scores 10, 50 and 100 are {wrong} instead "
            "of {right}: in float32, exp overflows above 88.7, and inf / inf "
            "is NaN.",
            zh="分数 10、50、100 的权重算成 {wrong}，应为 {right}：float32 的 "
            "exp 在自变量超过 88.7 时溢出成 inf，而 inf / inf 是 NaN。",
        ),
        notice=Text(
            en="The softmax of [1000, 1000] must be [0.5, 0.5], and adding a "
            "constant to all scores must not change the weights.",
            zh="softmax([1000, 1000]) 应为 [0.5, 0.5]；给所有分数加上同一个常"
            "数，权重不应改变。",
        ),
        same_shape=True,
        found=(
            "https://github.com/pyg-team/pytorch_geometric/issues/53",
            "https://github.com/NVIDIA/FasterTransformer/issues/43",
        ),
        tests=(
            EVERY + "[at-once-[10000.0, 10000.0, 10000.0]-torch.float32]",
            EVERY + "[at-once-[60000.0, -60000.0, 59000.0]-torch.float16]",
        ),
        law=is_softmax,
        of=at_once,
    ),
    Mistake(
        id="softmax-one-maximum",
        title=Text(
            en="Softmax subtracts one maximum from all rows",
            zh="softmax 给所有行减去同一个最大值",
        ),
        lines=(
            Lines(
                module="core.softmax",
                right="""
    peak = wide.detach().amax(dim, keepdim=True)
""",
                wrong="""
    peak = wide.detach().max()
""",
            ),
            Lines(
                module="core.softmax",
                right="""
    total = e.sum(dim, keepdim=True).clamp(min=1)
""",
                wrong="""
    total = e.sum(dim, keepdim=True)
""",
            ),
        ),
        symptom="nan",
        shown=rows_far_apart,
        seen=Text(
            en="The scores of the second row are 200 larger. In the first "
            "row, all exponentials underflow to 0, and its weights are 0 / 0, "
            "which is NaN. The second row is right.",
            zh="第二行的分数大 200，于是第一行的指数全部下溢成 0，权重是 0 / "
            "0，也就是 NaN。第二行是对的。",
        ),
        notice=Text(
            en="Compute each row of a batch on its own: its weights must not "
            "change. The NaN comes and goes with the other rows of the batch.",
            zh="把批次里的每一行单独算一遍，权重不应改变。这种 NaN 时有时无，"
            "取决于同一批里的其他行。",
        ),
        same_shape=True,
        found=(
            "https://github.com/amdegroot/ssd.pytorch/issues/483",
            "https://github.com/pyg-team/pytorch_geometric/issues/2013",
        ),
        tests=(
            "tests/core/test_softmax.py::"
            "test_the_checker_accepts_ours_and_refuses_wrong_ones",
        ),
        law=is_softmax,
        of=at_once,
        axes=(Text("row", "行"), Text("score", "分数")),
    ),
    Mistake(
        id="softmax-sum-in-half",
        title=Text(
            en="The sum of softmax is accumulated in half precision",
            zh="softmax 的分母用半精度累加",
        ),
        lines=(
            Lines(
                module="core.softmax",
                right="""
    return x.to(torch.promote_types(x.dtype, torch.float32))
""",
                wrong="""
    return x
""",
            ),
        ),
        symptom="worse",
        shown=many_weights,
        seen=Text(
            en="70,000 equal weights in float16 sum to {wrong} instead of "
            "{right}: the sum of the exponentials exceeds 65504, the largest "
            "number of float16, and becomes infinite.",
            zh="float16 下 70,000 个相等的权重，加起来是 {wrong}，应为 "
            "{right}：指数之和超过 float16 的最大值 65504，成了无穷大。",
        ),
        notice=Text(
            en="Add up the weights of a long row in float64: the sum must be "
            "about 1. Where the terms are added one by one in float16, the "
            "sum of ones stops growing at 2048 already, since 2049 is not a "
            "number of float16.",
            zh="用 float64 把一长行权重加起来，应约等于 1。如果是在 float16 里"
            "逐项累加，一串 1 加到 2048 就不再增长，因为 float16 里没有 2049。",
        ),
        same_shape=True,
        found=(
            "https://github.com/huggingface/candle/issues/3727",
            "https://github.com/sonos/tract/pull/2586",
        ),
        tests=(
            "tests/core/test_softmax.py::"
            "test_half_precision_sums_do_not_overflow",
        ),
        law=is_softmax,
        of=at_once,
    ),
    Mistake(
        id="online-sum-not-rescaled",
        title=Text(
            en="Online softmax: the old sum is not rescaled",
            zh="在线 softmax：最大值变了，旧的和却没有缩放",
        ),
        lines=(
            Lines(
                module="core.softmax",
                right="""
        # The sum so far is relative to the old maximum: rescale it.
        total = total * (peak - base).exp()
        total = total + (part - base).exp().sum(dim, keepdim=True)
""",
                wrong="""
        total = total + (part - base).exp().sum(dim, keepdim=True)
""",
            ),
        ),
        symptom="worse",
        shown=rising_scores,
        seen=Text(
            en="The maximum rises in the second chunk, and the weights are "
            "{wrong} instead of {right}: they no longer sum to 1.",
            zh="到第二块，最大值变大了，权重算成 {wrong}，应为 {right}：加起来"
            "不再是 1。",
        ),
        notice=Text(
            en="Compute scores that rise, once in chunks of 1 and once in a "
            "single chunk, and compare. With scores that fall, the mistake "
            "does not show.",
            zh="取一行递增的分数，一次每块 1 个，一次整行一块，比较两次的结"
            "果。分数递减时看不出这个错误。",
        ),
        same_shape=True,
        found=(),
        tests=(
            "tests/core/test_softmax.py::"
            "test_the_online_form_equals_softmax_for_every_chunk",
        ),
        law=is_softmax,
        of=in_chunks,
    ),
    Mistake(
        id="online-maximum-forgotten",
        title=Text(
            en="Online softmax forgets the maximum of earlier chunks",
            zh="在线 softmax 忘了前面各块的最大值",
        ),
        lines=(
            Lines(
                module="core.softmax",
                right="""
        new = torch.maximum(peak, part.detach().amax(dim, keepdim=True))
""",
                wrong="""
        new = part.detach().amax(dim, keepdim=True)
""",
            ),
        ),
        symptom="nan",
        shown=falling_scores,
        seen=Text(
            en="Scores that fall by about 100 from one chunk to the next give "
            "{wrong} instead of {right}: the factor exp(old - new) overflows.",
            zh="分数从一块到下一块下降约 100，就得到 {wrong}，应为 {right}：缩"
            "放因子 exp(旧最大值 - 新最大值) 溢出了。",
        ),
        notice=Text(
            en="Put the largest score first and make the others smaller by "
            "100. As long as the scores are moderate, the results are right.",
            zh="把最大的分数放在最前面，让其余的都小 100。只要分数不大，结果都"
            "是对的。",
        ),
        same_shape=True,
        found=("https://github.com/tile-ai/tilelang/pull/1148",),
        tests=(
            EVERY + "[in-chunks-of-1-"
            "[60000.0, -60000.0, 59000.0]-torch.float32]",
        ),
        law=is_softmax,
        of=in_chunks,
    ),
    Mistake(
        id="online-masked-chunk",
        title=Text(
            en="Online softmax without a guard for a fully masked chunk",
            zh="在线 softmax 没有处理整块都被遮住的情况",
        ),
        lines=(
            Lines(
                module="core.softmax",
                right="""
        base = new.clamp(min=low)  # not -inf, as above
""",
                wrong="""
        base = new
""",
            ),
        ),
        symptom="nan",
        shown=masked_first,
        seen=Text(
            en="The first chunk is masked, so the maximum is still -inf, and "
            "-inf - (-inf) is NaN: {wrong} instead of {right}.",
            zh="第一块全被遮住，最大值仍是 -inf，而 -inf - (-inf) 是 NaN：得到"
            " {wrong}，应为 {right}。",
        ),
        notice=Text(
            en="Let a row begin with -inf, as it does with left padding or a "
            "sliding window. With a causal mask alone it never happens, since "
            "the first key is always visible.",
            zh="让一行以 -inf 开头，左填充和滑动窗口都会这样。只有因果掩码时遇"
            "不到，因为第一个键总是可见的。",
        ),
        same_shape=True,
        found=(
            "https://github.com/gabrieldemarmiesse/torch-mojo-backend/pull/319",
            "https://github.com/vllm-project/vllm/pull/4405",
        ),
        tests=(
            EVERY + "[in-chunks-of-3-[-inf, -inf, -inf, 0.5]-torch.float32]",
        ),
        law=is_softmax,
        of=in_chunks,
    ),
)
