"""Mistakes in attention tile by tile, forward and backward."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.laws import (
    equals_torch,
    far_scores,
    gradients_are_slopes,
    gradients_equal_torch,
    parts_make_the_whole,
)

TILE = (2, 3)
OF_QUERIES = Text("query", "查询"), Text("element", "元素")


def tiled_weights(package: Any) -> Tensor:
    """The weights of seven tokens in tiles of 2 by 3: with values that are the
    rows of a unit matrix, the output is the weights."""
    g = torch.Generator().manual_seed(22)
    q, k = 1.5 * torch.randn(2, 1, 1, 7, 4, generator=g)
    v, mask = torch.eye(7)[None, None], package.causal_mask(7)
    out: Tensor = package.flash(q, k, v, mask, tile=TILE)
    return out[0, 0]


def far_weights(package: Any) -> Tensor:
    """The weights of four queries over six keys, in tiles of three keys: of
    scores near -20000; of the same with the first three keys hidden; of scores
    that fall from 500 to 0; and of scores that rise, the last three hidden."""
    low = [-20000.0, -20001, -20000, -20000, -20001, -20002]
    falling, rising = [500, 499, 500, 2, 1, 0], [0, 1, 2, 498, 499, 500]
    scores = torch.tensor([low, low, falling, rising])[None, None]
    unit, mask = torch.eye(6)[None, None], torch.ones(4, 6).bool()
    mask[1, :3] = mask[3, 3:] = False
    told = {"scale": 1.0, "tile": (4, 3)}
    out: Tensor = package.flash(scores, unit, unit, mask, **told)
    return out[0, 0]


def query_gradients(package: Any) -> Tensor:
    """The gradients of the queries of six tokens."""
    g = torch.Generator().manual_seed(4)
    q, k, v, above = torch.randn(4, 1, 1, 6, 4, generator=g)
    q.requires_grad_()
    out = package.flash(3 * q, k, v, tile=TILE)
    found: Tensor = torch.autograd.grad((out * above).sum(), q)[0]
    return found[0, 0]


def dropped_gradients(package: Any) -> Tensor:
    """Those of the queries where dropout leaves out half of the weights."""
    g = torch.Generator().manual_seed(4)
    q, k, v, above = torch.randn(4, 1, 1, 6, 4, generator=g)
    q.requires_grad_()
    out = seeded(package)(q, k, v)
    found: Tensor = torch.autograd.grad((out * above).sum(), q)[0]
    return found[0, 0]


def seeded(package: Any) -> Any:
    """Attention with the same dropout at each call."""

    def core(q: Tensor, k: Tensor, v: Tensor) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return package.flash(q, k, v, dropout=0.5, tile=TILE)

    return core


def log_sum_exps(package: Any) -> Tensor:
    """The log-sum-exp of each of seven queries' scores."""
    g = torch.Generator().manual_seed(22)
    q, k = 1.5 * torch.randn(2, 1, 1, 7, 4, generator=g)
    found: Tensor = package.flash_lse(q, k, k, tile=TILE)[1]
    return found[0, 0]


def in_tiles(package: Any) -> tuple[Any]:
    return (partial(package.flash, tile=TILE),)


def rows_together(package: Any) -> tuple[Any]:
    return (partial(package.flash, tile=(4, 3)),)


MISTAKES = (
    Mistake(
        id="flash-no-rescaling",
        title=Text(
            en="Online softmax without rescaling the earlier sums",
            zh="在线 softmax 的最大值变大后，没有缩放之前的和",
        ),
        lines=(
            Lines(
                module="core.flash",
                right="""
            total.mul_(rescale).add_(p.sum(-1, keepdim=True))
            acc.mul_(rescale).baddbmm_(how.dropped(p, tile), values)
""",
                wrong="""
            total.add_(p.sum(-1, keepdim=True))
            acc.baddbmm_(how.dropped(p, tile), values)
""",
            ),
        ),
        symptom="worse",
        shown=tiled_weights,
        seen=Text(
            en="The weights of a row still sum to 1, but those of tiles "
            "before a new maximum are too large: that of {where} is {there}.",
            zh="每行的权重加起来仍然是 1，可是出现新的最大值之前的那些块，权"
            "重偏大了，{where} 处是 {there}。",
        ),
        notice=Text(
            en="Compare with a tile that holds all keys. Sort the keys so that "
            "scores rise: where they fall, the factor is 1 and nothing is "
            "wrong.",
            zh="和一块装下全部键的结果对比，并让分数从左到右递增：递减的话，"
            "系数总是 1，看不出错。",
        ),
        same_shape=True,
        found=("https://github.com/ROCm/rocm-libraries/pull/6498",),
        tests=(
            "tests/core/test_flash.py::test_equals_torch_and_no_score_is_kept",
        ),
        law=equals_torch,
        of=in_tiles,
    ),
    Mistake(
        id="flash-rescaling-inverted",
        title=Text(
            en="The accumulator is divided by the rescaling factor",
            zh="累加的输出除以了缩放系数，本该相乘",
        ),
        lines=(
            Lines(
                module="core.flash",
                right="""
            acc.mul_(rescale).baddbmm_(how.dropped(p, tile), values)
""",
                wrong="""
            acc.div_(rescale).baddbmm_(how.dropped(p, tile), values)
""",
            ),
        ),
        symptom="nan",
        shown=tiled_weights,
        seen=Text(
            en="Algorithm 1 of the FlashAttention-2 paper was printed like "
            "this. Everything is NaN: at the first tile, the maximum grows "
            "from minus infinity, so the factor is 0, and 0 / 0 is NaN.",
            zh="FlashAttention-2 论文的算法 1 就印成了这样。结果全是 NaN：第一"
            "块时最大值从负无穷变大，系数是 0，而 0 / 0 就是 NaN。",
        ),
        notice=Text(
            en="Follow one row of two tiles by hand. If the first tile is "
            "handled separately, there is no NaN but a wrong result.",
            zh="拿一行、两块手算一遍。如果第一块单独处理，就没有 NaN，但结果是"
            "错的。",
        ),
        same_shape=True,
        found=(
            "https://github.com/Dao-AILab/flash-attention/issues/991",
            "https://github.com/Dao-AILab/flash-attention/issues/333",
        ),
        tests=(
            "tests/core/test_flash.py::test_equals_torch_and_no_score_is_kept",
        ),
        law=equals_torch,
        of=in_tiles,
    ),
    Mistake(
        id="flash-maximum-too-high",
        title=Text(
            en="The running maximum becomes 0 after a hidden tile",
            zh="整块被遮住之后，最大值变成了 0",
        ),
        lines=(
            Lines(
                module="core.flash",
                right="""
            m = larger
""",
                wrong="""
            m = base
""",
            ),
        ),
        symptom="worse",
        shown=far_weights,
        seen=Text(
            en="The second query does not see the first three keys, and its "
            "maximum becomes 0. Its scores are near -20000, so all "
            "exponentials underflow and its weights are 0: that of {where} is "
            "{there}.",
            zh="第二个查询看不到前三个键，最大值变成 0。它的分数在 -20000 左"
            "右，指数全部下溢，权重都成了 0，{where} 处是 {there}。",
        ),
        notice=Text(
            en="Lower all scores by a large number: a softmax does not change. "
            "A maximum that starts at a finite number fails in the same way.",
            zh="把全部分数减去一个很大的数，softmax 的结果不该变。最大值如果从"
            "一个有限的数开始，也会这样出错。",
        ),
        same_shape=True,
        found=(
            "https://github.com/Dao-AILab/flash-attention/issues/2082",
            "https://github.com/flashinfer-ai/flashinfer/issues/4267",
        ),
        tests=("tests/core/test_flash.py::test_scores_far_from_zero",),
        law=far_scores,
        of=rows_together,
    ),
    Mistake(
        id="flash-maximum-of-the-tile",
        title=Text(
            en="The running maximum is that of the last tile only",
            zh="最大值只取当前块的，没有和之前的比较",
        ),
        lines=(
            Lines(
                module="core.flash",
                right="""
            larger = torch.maximum(m, scores.amax(-1, keepdim=True))
""",
                wrong="""
            larger = scores.amax(-1, keepdim=True)
""",
            ),
        ),
        symptom="nan",
        shown=far_weights,
        seen=Text(
            en="The scores of the third query fall from 500 to 0: the earlier "
            "sums are multiplied by the exponential of almost 500, which is "
            "infinite, and the result is NaN.",
            zh="第三个查询的分数从 500 降到 0：之前的和要乘以将近 500 的指数，"
            "得到无穷大，结果就是 NaN。",
        ),
        notice=Text(
            en="With moderate scores the result is right, since the shift "
            "cancels. Take scores that fall by more than 90 from one tile to "
            "the next.",
            zh="分数不大时结果是对的，因为平移会抵消。让分数从一块到下一块"
            "下降 90 以上，就能看出来。",
        ),
        same_shape=True,
        found=("https://github.com/tile-ai/tilelang/pull/1148",),
        tests=("tests/core/test_flash.py::test_scores_far_from_zero",),
        law=far_scores,
        of=rows_together,
    ),
    Mistake(
        id="flash-mask-after-maximum",
        title=Text(
            en="The mask is applied after the maximum was subtracted",
            zh="先减最大值，后加掩码",
        ),
        lines=(
            Lines(
                module="core.flash",
                right="""
            _hide(scores, tile, (B, H), -torch.inf)
            larger = torch.maximum(m, scores.amax(-1, keepdim=True))
""",
                wrong="""
            larger = torch.maximum(m, scores.amax(-1, keepdim=True))
            _hide(scores, tile, (B, H), -torch.inf)
""",
            ),
        ),
        symptom="worse",
        shown=far_weights,
        seen=Text(
            en="The largest scores of the last query are hidden, but still "
            "count for its maximum: the exponentials of the scores that it "
            "sees underflow, and its weights become 0. That of {where} is "
            "{there}.",
            zh="最后一个查询里最大的几个分数被遮住了，却仍被当作最大值：看得"
            "到的分数，指数全部下溢，权重成了 0，{where} 处是 {there}。",
        ),
        notice=Text(
            en="Multiply the keys that the mask hides by 1000: no output may "
            "move.",
            zh="把被遮住的键乘以 1000，输出一个都不该变。",
        ),
        same_shape=True,
        found=(),
        tests=("tests/core/test_flash.py::test_scores_far_from_zero",),
        law=far_scores,
        of=rows_together,
    ),
    Mistake(
        id="flash-mask-of-a-finite-number",
        title=Text(
            en="Hidden scores are set to -10000, not to minus infinity",
            zh="被遮住的分数设成 -10000，不是负无穷",
        ),
        lines=(
            Lines(
                module="core.flash",
                right="""
            _hide(scores, tile, (B, H), -torch.inf)
""",
                wrong="""
            _hide(scores, tile, (B, H), -10_000.0)
""",
            ),
        ),
        symptom="worse",
        shown=far_weights,
        seen=Text(
            en="The scores of the second query are below -10000, so the keys "
            "that are hidden from it get all the weight: the weight of "
            "{where} is {there}.",
            zh="第二个查询的分数比 -10000 还小，被遮住的键反而拿走了全部权"
            "重：{where} 的权重是 {there}。",
        ),
        notice=Text(
            en="Lower all scores by a large number: a softmax does not change. "
            "A row in which all is hidden shows it, too: it must be 0.",
            zh="把全部分数减去一个很大的数，softmax 的结果不该变。整行都遮住时"
            "也看得出来：结果应该是 0。",
        ),
        same_shape=True,
        found=("https://github.com/ohdearquant/lattice/issues/361",),
        tests=("tests/core/test_flash.py::test_scores_far_from_zero",),
        law=far_scores,
        of=rows_together,
    ),
    Mistake(
        id="flash-hidden-tile-nan",
        title=Text(
            en="In a fully hidden tile, -inf is subtracted from -inf",
            zh="整块被遮住时，用 -inf 减了 -inf",
        ),
        lines=(
            Lines(
                module="core.flash",
                right="""
            base = larger.masked_fill(larger == -torch.inf, 0)
""",
                wrong="""
            base = larger
""",
            ),
        ),
        symptom="nan",
        shown=far_weights,
        seen=Text(
            en="The second query does not see the first three keys. Its "
            "maximum is minus infinity there, `-inf - (-inf)` is NaN, and so "
            "is all that follows in this row.",
            zh="第二个查询看不到前三个键，这时最大值是负无穷，`-inf - (-inf)` "
            "得到 NaN，这一行后面的结果就全是 NaN。",
        ),
        notice=Text(
            en="Pad a batch on the left, or use a window: the first tiles of "
            "some rows are then empty.",
            zh="用左填充或者滑动窗口试：这时有些行开头的块是空的。",
        ),
        same_shape=True,
        found=(
            "https://github.com/pytorch/pytorch/pull/194154",
            "https://github.com/flashinfer-ai/flashinfer/pull/4401",
        ),
        tests=("tests/core/test_flash.py::test_a_first_tile_without_any_key",),
        law=far_scores,
        of=rows_together,
    ),
    Mistake(
        id="flash-half-hidden-tile",
        title=Text(
            en="Tiles that are only partly hidden are skipped",
            zh="只遮住一部分的块也被跳过了",
        ),
        lines=(
            Lines(
                module="core.flash",
                right="""
            if not seen.any():
""",
                wrong="""
            if not seen.all():
""",
            ),
        ),
        symptom="worse",
        shown=tiled_weights,
        seen=Text(
            en="The tiles on the diagonal are skipped, and most tokens do "
            "not see themselves: the weight of {where} is {there}.",
            zh="对角线上的块被跳过了，多数 token 连自己都看不到，{where} 的权"
            "重是 {there}。",
        ),
        notice=Text(
            en="Change a token: its own output must change. Compare with "
            "tiles of one query and one key, none of which is partly hidden.",
            zh="改掉一个 token，它自己的输出必须变。或者和 1×1 的块对比：那样"
            "没有哪一块是遮住一部分的。",
        ),
        same_shape=True,
        found=("https://github.com/openvinotoolkit/openvino/pull/35438",),
        tests=("tests/core/test_flash.py::test_hidden_tiles_are_not_computed",),
        law=equals_torch,
        of=in_tiles,
    ),
    Mistake(
        id="flash-last-keys-lost",
        title=Text(
            en="The last keys are lost unless tiles divide the length",
            zh="长度不是块大小的倍数时，最后几个键丢了",
        ),
        lines=(
            Lines(
                module="core.flash",
                right="""
        for columns in parts(self.S, self.width):
""",
                wrong="""
        for columns in parts(self.S // self.width * self.width, self.width):
""",
            ),
        ),
        symptom="worse",
        shown=tiled_weights,
        seen=Text(
            en="The seventh key has no weight, and the seventh token does "
            "not see itself: the weight of {where} is {there}.",
            zh="第 7 个键没有权重，第 7 个 token 看不到自己：{where} 的权重是"
            " {there}。",
        ),
        notice=Text(
            en="Test with lengths that are no multiple of the tile, such as "
            "prime numbers.",
            zh="长度不要取块大小的倍数，比如取质数。",
        ),
        same_shape=True,
        found=(
            "https://github.com/jax-ml/jax/issues/27224",
            "https://github.com/intel/sycl-tla/pull/489",
        ),
        tests=(
            "tests/core/test_flash.py::test_equals_torch_and_no_score_is_kept",
        ),
        law=equals_torch,
        of=in_tiles,
    ),
    Mistake(
        id="flash-lse-without-maximum",
        title=Text(
            en="The log-sum-exp lacks the maximum that was subtracted",
            zh="log-sum-exp 忘了加回减掉的最大值",
        ),
        lines=(
            Lines(
                module="core.flash",
                right="""
        m.add_(total.masked_fill(total == 0, 1).log())
""",
                wrong="""
        m = total.masked_fill(total == 0, 1).log()
""",
            ),
        ),
        symptom="worse",
        shown=log_sum_exps,
        seen=Text(
            en="Outputs are right, but the log-sum-exps differ by up to "
            "{change}: parts that are merged by them, and gradients computed "
            "from them, are wrong.",
            zh="输出是对的，log-sum-exp 却最多差 {change}：用它合并各部分、"
            "用它算梯度，就都错了。",
        ),
        notice=Text(
            en="Add 1 to all scores: each log-sum-exp must grow by 1.",
            zh="全部分数加 1，每个 log-sum-exp 都应该正好大 1。",
        ),
        same_shape=True,
        found=("https://github.com/Dao-AILab/flash-attention/issues/404",),
        tests=("tests/core/test_flash.py::test_the_log_sum_exp_in_words",),
        law=parts_make_the_whole,
        of=lambda package: (package.flash_lse, package.merge),
    ),
    Mistake(
        id="flash-backward-without-row-sum",
        title=Text(
            en="The backward pass does not subtract the row sum",
            zh="反向传播没有减去行和",
        ),
        lines=(
            Lines(
                module="core.flash",
                right="""
            d_scores = d_p.sub_(_folded(delta, tile.rows, K, wide)).mul_(p)
""",
                wrong="""
            d_scores = d_p.mul_(p)
""",
            ),
        ),
        symptom="gradients",
        shown=query_gradients,
        seen=Text(
            en="The gradient of {where} is {there}. Add a constant to all "
            "values, which should not change these gradients, and the error "
            "grows with it.",
            zh="{where} 的梯度是 {there}。所有值同加一个常数，本来没有影响，"
            "这时误差却跟着变大。",
        ),
        notice=Text(
            en="The gradients of the scores of a row must sum to 0. Those of "
            "the values are right.",
            zh="一行的分数，梯度之和必须是 0。值的梯度不受影响，是对的。",
        ),
        same_shape=True,
        found=(),
        tests=(
            "tests/core/test_flash.py::test_the_formulas_of_the_backward_pass",
        ),
        law=gradients_equal_torch,
        of=in_tiles,
        axes=OF_QUERIES,
    ),
    Mistake(
        id="softmax-gradient-diagonal",
        title=Text(
            en="Softmax's gradient taken element by element: p (1 - p)",
            zh="softmax 的梯度逐元素算成了 p(1 - p)",
        ),
        lines=(
            Lines(
                module="core.flash",
                right="""
            d_scores = d_p.sub_(_folded(delta, tile.rows, K, wide)).mul_(p)
""",
                wrong="""
            d_scores = d_p.mul_(p * (1 - p))
""",
            ),
        ),
        symptom="gradients",
        shown=query_gradients,
        seen=Text(
            en="The gradient of {where} is {there}, and some have the other "
            "sign.",
            zh="{where} 的梯度是 {there}，有的连符号都反了。",
        ),
        notice=Text(
            en="The gradients of the scores of a row must sum to 0, since "
            "adding a constant to the scores changes nothing. Run "
            "`torch.autograd.gradcheck`.",
            zh="一行的分数同加一个常数，结果不变，所以它们的梯度之和必须是 0。"
            "跑一遍 `torch.autograd.gradcheck`。",
        ),
        same_shape=True,
        found=(
            "https://github.com/deeplearning4j/libnd4j/issues/440",
            "https://github.com/Apiquet/DeepLearningFrameworkFromScratchCpp"
            "/issues/1",
        ),
        tests=(
            "tests/core/test_flash.py::test_the_formulas_of_the_backward_pass",
        ),
        law=gradients_equal_torch,
        of=in_tiles,
        axes=OF_QUERIES,
    ),
    Mistake(
        id="flash-gradient-scaled-twice",
        title=Text(
            en="The gradient of the queries is scaled twice",
            zh="查询的梯度乘了两次缩放系数",
        ),
        lines=(
            Lines(
                module="core.flash",
                right="""
            d_queries += torch.bmm(d_scores, keys).view_as(d_queries)
""",
                wrong="""
            change = torch.bmm(d_scores * how.scale, keys)
            d_queries += change.view_as(d_queries)
""",
            ),
        ),
        symptom="gradients",
        shown=query_gradients,
        seen=Text(
            en="The gradients of the queries are too small: that of {where} "
            "is {there}. Those of keys and values are right.",
            zh="查询的梯度偏小，{where} 处是 {there}。键和值的梯度是对的。",
        ),
        notice=Text(
            en="Compare gradients with those of autograd at a head width other "
            "than 1. An optimizer such as Adam hides a constant factor.",
            zh="头维度不要取 1，把梯度和 autograd 的对比。Adam 一类的优化器会"
            "掩盖常数倍的误差。",
        ),
        same_shape=True,
        found=("https://github.com/HKUSTDial/flash-sparse-attention/pull/203",),
        tests=(
            "tests/core/test_flash.py::test_the_formulas_of_the_backward_pass",
        ),
        law=gradients_equal_torch,
        of=in_tiles,
        axes=OF_QUERIES,
    ),
    Mistake(
        id="flash-gradient-without-dropout",
        title=Text(
            en="The backward pass forgets the dropout of the weights",
            zh="反向传播忘了前向时对权重做的 dropout",
        ),
        lines=(
            Lines(
                module="core.flash",
                right="""
            d_p = how.dropped(torch.bmm(above, values.mT), tile)
""",
                wrong="""
            d_p = torch.bmm(above, values.mT)
""",
            ),
        ),
        symptom="gradients",
        shown=dropped_gradients,
        seen=Text(
            en="Weights that were left out get gradients as if they had been "
            "used: the gradient of {where} is {there}.",
            zh="已经丢弃的权重也得到了梯度，好像用过一样：{where} 的梯度是 "
            "{there}。",
        ),
        notice=Text(
            en="Run `torch.autograd.gradcheck` on a function that sets the "
            "seed before it calls yours. Without dropout, nothing is wrong.",
            zh="写一个先设随机种子、再调用你的实现的函数，对它跑 "
            "`torch.autograd.gradcheck`。不开 dropout 时看不出错。",
        ),
        same_shape=True,
        found=("https://github.com/aws-neuron/nki-samples/pull/81",),
        tests=("tests/core/test_flash.py::test_gradients_through_dropout",),
        law=gradients_are_slopes,
        of=lambda package: (seeded(package),),
        axes=OF_QUERIES,
    ),
)
