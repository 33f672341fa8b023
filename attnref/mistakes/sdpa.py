"""Mistakes in scaled dot-product attention and in its use of masks."""

from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.laws import (
    empty_rows_are_zero,
    equals_torch,
    half_is_exact,
)


def causal_weights(package: Any) -> Tensor:
    """The weights of four tokens under a causal mask, in one of four heads."""
    seed = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 4, 4, 8, generator=seed)
    weights: Tensor = package.attention_weights(q, k, package.causal_mask(4))
    return weights[0, 0]


def outputs(package: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    """The outputs of three queries that see no key, the first, and the first
    two, of the values 1, 3 and 8."""
    q, k = torch.zeros(2, 1, 1, 3, 4, dtype=dtype)
    v = torch.tensor([1.0, 3.0, 8.0], dtype=dtype)[None, None, :, None]
    mask = torch.ones(3, 3, dtype=torch.bool).tril(-1)
    out: Tensor = package.sdpa(q, k, v, mask)
    return out.flatten()


def empty_row(package: Any) -> Tensor:
    """The weights of a query that sees no key, in float32 and in float64."""
    k = torch.eye(4, dtype=torch.float64)[None, None]
    q = torch.tensor([[[[0.0, 1.0, 2.0, 3.0]]]], dtype=torch.float64)
    none = torch.zeros(1, 4, dtype=torch.bool)
    rows = [
        package.attention_weights(q.to(dtype), k.to(dtype), none).double()
        for dtype in (torch.float32, torch.float64)
    ]
    return torch.cat(rows)[:, 0, 0]


def outputs_in_half(package: Any) -> Tensor:
    """The same in float16."""
    return outputs(package, torch.float16).double()


def weights_in_half(package: Any) -> Tensor:
    """The weights of four keys in float16; the scores are 792.5 to 793.6."""
    q = torch.full((1, 1, 1, 64), 10.0, dtype=torch.float16)
    k = torch.full((1, 1, 4, 64), 9.90625, dtype=torch.float16)
    k[..., 0] += torch.arange(4) * 0.3
    weights: Tensor = package.attention_weights(q, k)
    return weights.double().flatten()


def digits(package: Any) -> Tensor:
    """To how many digits the weights of float64 inputs are right."""
    seed = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, 4, 80, generator=seed, dtype=torch.float64)
    right = torch.softmax(q @ k.mT / 80**0.5, -1)
    wrong = (package.attention_weights(q, k) / right - 1).abs().max()
    found: Tensor = -wrong.clamp(min=1e-16).log10()
    return found


def heads_read(package: Any) -> Tensor:
    """How much of each of two key/value heads each of four query heads gets."""
    q, k = torch.zeros(1, 4, 1, 8), torch.zeros(1, 2, 1, 8)
    v = torch.eye(2)[None, :, None]
    out: Tensor = package.sdpa(q, k, v)
    return out[0, :, 0]


def mixed_weights(package: Any) -> Tensor:
    """The weights with which four values are mixed, in one of four heads,
    under a causal mask: the outputs of values that are unit vectors."""
    seed = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 4, 4, 8, generator=seed)
    v = torch.eye(4).expand(1, 4, 4, 4)
    out: Tensor = package.sdpa(q, k, v, package.causal_mask(4))
    return out[0, 0]


def core(package: Any) -> tuple[Any]:
    return (package.sdpa,)


SDPA, MASKS = "tests/core/test_sdpa.py::", "tests/core/test_masks.py::"
FILLED = """
        scores = scores.masked_fill(~mask, -torch.inf)  # (B, H, T, S)
"""
SCALED = """
    q = q.to(wide) * (D**-0.5 if scale is None else scale)  # (B, H, T, D)
"""
FUTURE = Text(
    en="Change the last token: no output before it may move.",
    zh="改掉最后一个 token，它前面的输出一个都不该变。",
)


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
                right=FILLED,
                wrong="""
        scores = scores + ~mask * -1e-9  # (B, H, T, S)
""",
            ),
        ),
        symptom="inert",
        shown=causal_weights,
        seen=Text(
            en="-1e-9 is almost 0, and each token attends to the tokens "
            "after it as if there were no mask: the weight of {where} is "
            "{there}.",
            zh="-1e-9 几乎就是 0，每个 token 照样看到它后面的 token，就像没有"
            "掩码一样：{where} 的权重是 {there}。",
        ),
        notice=FUTURE,
        same_shape=True,
        found=(
            "https://github.com/Shujun-He/RibonanzaNet/issues/5",
            "https://github.com/wdndev/llm_interview_note/issues/11",
            "https://github.com/awslabs/gluonts/pull/1401",
        ),
        tests=(
            SDPA + "test_a_row_without_any_key_gives_zeros_and_zero_gradients",
            SDPA + "test_the_future_cannot_be_seen",
        ),
        law=equals_torch,
        of=core,
    ),
    Mistake(
        id="mask-times-scores",
        title=Text(
            en="The scores are multiplied by the mask",
            zh="把掩码乘到了分数上",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right=FILLED,
                wrong="""
        scores = scores * mask  # (B, H, T, S)
""",
            ),
        ),
        symptom="future",
        shown=causal_weights,
        seen=Text(
            en="The score of a hidden key becomes 0, and exp(0) is 1, so "
            "that it keeps a weight: the weight of {where} is {there}.",
            zh="被遮住的键分数变成 0，而 exp(0) 等于 1，于是它照样分到权重："
            "{where} 的权重是 {there}。",
        ),
        notice=Text(
            en="Look at the weights of hidden keys: they must be exactly 0. "
            "`masked_fill(mask == 0, 0)` is the same mistake.",
            zh="看看被遮住的键的权重，必须恰好是 0。"
            "`masked_fill(mask == 0, 0)` 是同样的错误。",
        ),
        same_shape=True,
        found=("https://github.com/georg-wolflein/good-features/pull/1",),
        tests=(SDPA + "test_the_future_cannot_be_seen",),
        law=equals_torch,
        of=core,
    ),
    Mistake(
        id="mask-added-as-ones",
        title=Text(
            en="A mask of 0 and 1 is added to the scores",
            zh="把 0/1 掩码直接加到分数上",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right=FILLED,
                wrong="""
        scores = scores + mask  # (B, H, T, S)
""",
            ),
        ),
        symptom="inert",
        shown=causal_weights,
        seen=Text(
            en="The scores of visible keys become larger by 1, and nothing "
            "is hidden: the weight of {where} is {there}.",
            zh="可见的键只是分数多了 1，什么也没有遮住：{where} 的权重是 "
            "{there}。",
        ),
        notice=Text(
            en="A mask that is added holds 0 and -inf. A mask of 0 and 1 must "
            "become bool first, and a mask of bools must not be added.",
            zh="用来相加的掩码只含 0 和 -inf。0/1 掩码要先转成 bool，而 bool "
            "掩码不能拿来相加。",
        ),
        same_shape=True,
        found=(
            "https://github.com/pytorch/pytorch/issues/21518",
            "https://github.com/huggingface/transformers/pull/41443",
            "https://github.com/open-mmlab/mmdetection/issues/12351",
        ),
        tests=(SDPA + "test_the_future_cannot_be_seen",),
        law=equals_torch,
        of=core,
    ),
    Mistake(
        id="mask-inverted",
        title=Text(
            en="The mask is inverted: True is read as hidden",
            zh="掩码反了：True 被当成遮住",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right=FILLED,
                wrong="""
        scores = scores.masked_fill(mask, -torch.inf)  # (B, H, T, S)
""",
            ),
        ),
        symptom="future",
        shown=causal_weights,
        seen=Text(
            en="Each token sees the tokens after it and nothing else. The "
            "last one sees no key at all.",
            zh="每个 token 只看到后面的 token，最后一个什么键也看不到。",
        ),
        notice=Text(
            en="In `F.scaled_dot_product_attention` True means may attend, in "
            "`nn.MultiheadAttention` True means hidden, and a tokenizer "
            "writes 1 for real tokens. Try a mask that hides all keys but one.",
            zh="`F.scaled_dot_product_attention` 里 True 表示可见，"
            "`nn.MultiheadAttention` 里 True 表示遮住，分词器给真实 token 写 "
            "1。用一个只留一个键的掩码试一下。",
        ),
        same_shape=True,
        found=(
            "https://github.com/rasbt/LLMs-from-scratch/pull/1062",
            "https://github.com/harvard-edge/cs249r_book/pull/1785",
            "https://github.com/nyu-mll/jiant/pull/465",
        ),
        tests=(SDPA + "test_the_future_cannot_be_seen",),
        law=equals_torch,
        of=core,
    ),
    Mistake(
        id="mask-after-softmax",
        title=Text(
            en="The mask is applied after softmax",
            zh="softmax 之后才用掩码",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right=FILLED + "    return softmax(scores)  # (B, H, T, S)\n",
                wrong="""
        return softmax(scores) * mask  # (B, H, T, S)
    return softmax(scores)  # (B, H, T, S)
""",
            ),
        ),
        symptom="future",
        shown=causal_weights,
        seen=Text(
            en="Hidden keys have the weight 0, but they were counted in the "
            "sum: the rows no longer sum to 1, and the weight of {where} is "
            "{there}.",
            zh="被遮住的键权重是 0，却已经算进了分母：每行加起来不再是 1，"
            "{where} 的权重是 {there}。",
        ),
        notice=Text(
            en="Each row of weights must sum to 1. The future leaks through "
            "the sum: change the last token, and earlier outputs change with "
            "it.",
            zh="每一行权重加起来应为 1。未来会从分母里漏出来：改掉最后一个 "
            "token，前面的输出也跟着变。",
        ),
        same_shape=True,
        found=(
            "https://github.com/huggingface/pytorch-image-models/pull/2236",
        ),
        tests=(SDPA + "test_the_future_cannot_be_seen",),
        law=equals_torch,
        of=core,
    ),
    Mistake(
        id="mask-minus-1e9",
        title=Text(
            en="-1e9 instead of -inf: an empty row is the mean of V",
            zh="用 -1e9 代替 -inf：空行变成了 V 的均值",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right=FILLED,
                wrong="""
        scores = scores.masked_fill(~mask, -1e9)  # (B, H, T, S)
""",
            ),
        ),
        symptom="worse",
        shown=outputs,
        seen=Text(
            en="Of three queries, the first sees no key. They get {wrong} "
            "instead of {right}: the first one gets the mean of all values.",
            zh="三个查询里，第一个看不到任何键。输出是 {wrong}，应为 {right}："
            "第一个成了所有值的均值。",
        ),
        notice=Text(
            en="Hide all keys from a query, as left padding does, and look at "
            "its output. If two such masks are added, a key with -1e9 counts "
            "as visible beside one with -2e9.",
            zh="像左填充那样把一个查询的所有键都遮住，看它的输出。两个这样的掩"
            "码相加时，-1e9 的键在 -2e9 的键旁边就成了可见的。",
        ),
        same_shape=True,
        found=("https://github.com/YutaroOgawa/pytorch_advanced/issues/175",),
        tests=(
            SDPA + "test_a_row_without_any_key_gives_zeros_and_zero_gradients",
            MASKS + "test_left_padding_leaves_the_first_rows_with_nothing",
        ),
        law=empty_rows_are_zero,
        of=core,
    ),
    Mistake(
        id="mask-minus-1e9-added",
        title=Text(
            en="-1e9 is added to masked scores: an empty row ignores the mask",
            zh="给被遮住的分数加上 -1e9：空行等于没有掩码",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right=FILLED,
                wrong="""
        scores = scores + ~mask * -1e9  # (B, H, T, S)
""",
            ),
        ),
        symptom="worse",
        shown=empty_row,
        axes=(
            Text("float32, then float64", "先 float32，后 float64"),
            Text("key", "键"),
        ),
        seen=Text(
            en="A query sees no key, and the same number is added to all its "
            "scores. In float64 its weights are those without a mask; in "
            "float32 the scores are lost beside that number, and all weights "
            "are equal. They should be 0.",
            zh="一个查询看不到任何键，它的每个分数都加了同一个数。float64 下"
            "权重与没有掩码时一样；float32 下分数被这个大数淹没，各键权重相等。"
            "它们本该都是 0。",
        ),
        notice=Text(
            en="Hide all keys from a query, as left padding does, and compare "
            "float64 with float32: the two differ.",
            zh="像左填充那样把一个查询的所有键都遮住，再比较 float64 与 "
            "float32：两个结果不一样。",
        ),
        same_shape=True,
        found=(),
        tests=(
            SDPA + "test_a_row_without_any_key_gives_zeros_and_zero_gradients",
            MASKS + "test_left_padding_leaves_the_first_rows_with_nothing",
        ),
        law=empty_rows_are_zero,
        of=core,
    ),
    Mistake(
        id="mask-minus-1e9-in-half",
        title=Text(
            en="-1e9 does not fit into float16",
            zh="-1e9 超出了 float16 的范围",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right=FILLED,
                wrong="""
        scores = scores.to(k.dtype)  # as autocast has them
        scores = scores.masked_fill(~mask, -1e9)  # (B, H, T, S)
""",
            ),
        ),
        symptom="error",
        shown=outputs_in_half,
        seen=Text(
            en="The largest number of float16 is 65504, so that filling in "
            "-1e9 raises an error: {wrong}.",
            zh="float16 最大只到 65504，填入 -1e9 就报错：{wrong}。",
        ),
        notice=Text(
            en="The code runs in float32 and in bfloat16, and fails under "
            "float16 autocast. A mask of -1e9 that is converted to float16 "
            "and added raises no error: it becomes -inf, and rows without a "
            "key become NaN.",
            zh="float32 和 bfloat16 下能跑，float16 自动混合精度下就报错。如果"
            "不是填入，而是把 -1e9 的掩码转成 float16 再相加，就不会报错："
            "-1e9 变成 -inf，看不到任何键的行成了 NaN。",
        ),
        same_shape=True,
        found=(
            "https://github.com/NVIDIA/apex/issues/1052",
            "https://github.com/unit8co/darts/pull/3087",
        ),
        tests=(
            SDPA + "test_an_empty_row_gives_zeros_in_every_dtype"
            "[torch.float16]",
        ),
        law=half_is_exact,
        of=core,
    ),
    Mistake(
        id="empty-row-nan",
        title=Text(
            en="The softmax of a fully masked row is NaN",
            zh="整行被遮住，softmax 得到 NaN",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right="""
    return softmax(scores)  # (B, H, T, S)
""",
                wrong="""
    return F.softmax(scores, dim=-1)  # (B, H, T, S)
""",
            ),
        ),
        symptom="nan",
        shown=outputs,
        seen=Text(
            en="Of three queries, the first sees no key. They get {wrong} "
            "instead of {right}: a row of -inf becomes 0 / 0.",
            zh="三个查询里，第一个看不到任何键。输出是 {wrong}，应为 {right}："
            "整行 -inf 变成了 0 / 0。",
        ),
        notice=Text(
            en="Pad on the left under a causal mask: the first rows see no "
            "key. In the next layer a weight of 0 times a value of NaN is "
            "NaN, and so the real tokens become NaN too.",
            zh="在因果掩码下做左填充，前几行就看不到任何键。到了下一层，权重 0"
            " 乘以值 NaN 还是 NaN，真实 token 也跟着变成 NaN。",
        ),
        same_shape=True,
        found=(
            "https://github.com/pytorch/pytorch/issues/41508",
            "https://github.com/tracel-ai/burn/pull/4697",
        ),
        tests=(
            SDPA + "test_a_row_without_any_key_gives_zeros_and_zero_gradients",
            MASKS + "test_left_padding_leaves_the_first_rows_with_nothing",
        ),
        law=empty_rows_are_zero,
        of=core,
    ),
    Mistake(
        id="softmax-over-queries",
        title=Text(
            en="Softmax over the queries instead of the keys",
            zh="softmax 沿着查询轴，而不是键轴",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right="""
    return softmax(scores)  # (B, H, T, S)
""",
                wrong="""
    return softmax(scores, dim=2)  # (B, H, T, S)
""",
            ),
        ),
        symptom="future",
        shown=causal_weights,
        seen=Text(
            en="The columns sum to 1 instead of the rows, so that the weights "
            "of a query depend on later queries.",
            zh="加起来等于 1 的是列，不是行：一个查询的权重取决于后面的查询。",
        ),
        notice=Text(
            en="`weights.sum(-1)` must be 1 everywhere. With a single query, "
            "as in decoding, all weights are 1.",
            zh="`weights.sum(-1)` 处处应为 1。如果只有一个查询，例如解码时，所"
            "有权重都是 1。",
        ),
        same_shape=True,
        found=(
            "https://github.com/labmlai/"
            "annotated_deep_learning_paper_implementations/issues/146",
            "https://github.com/FudanNLP/fastNLP/issues/254",
        ),
        tests=(SDPA + "test_the_future_cannot_be_seen",),
        law=equals_torch,
        of=core,
    ),
    Mistake(
        id="scale-model-width",
        title=Text(
            en="The scores are divided by the root of the model width",
            zh="分数除以了模型维度的平方根",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right=SCALED,
                wrong="""
    d_model = H * D
    q = q.to(wide) * (d_model**-0.5 if scale is None else scale)
""",
            ),
        ),
        symptom="worse",
        shown=causal_weights,
        seen=Text(
            en="With four heads, the scores are half as large as they should "
            "be and the weights too uniform: that of {where} is {there}.",
            zh="四个头时，分数只有应有的一半，权重过于均匀：{where} 处是 "
            "{there}。",
        ),
        notice=Text(
            en="Compare with `F.scaled_dot_product_attention`. A model that "
            "is trained with this scale learns all the same, and nothing "
            "looks broken; with weights that were trained elsewhere, the "
            "results are wrong.",
            zh="和 `F.scaled_dot_product_attention` 对比。从头训练时模型照样能"
            "学，看不出哪里坏了；换上别处训练的权重，结果就是错的。",
        ),
        same_shape=True,
        found=(
            "https://github.com/karpathy/ng-video-lecture/pull/6",
            "https://github.com/chelsea0x3b/dfdx/issues/171",
            "https://github.com/FareedKhan-dev/train-llm-from-scratch/pull/3",
        ),
        tests=(SDPA + "test_the_scale_is_one_over_the_root_of_the_width",),
        law=equals_torch,
        of=core,
    ),
    Mistake(
        id="scale-missing",
        title=Text(
            en="The scores are not divided by sqrt(d_k)",
            zh="分数没有除以 sqrt(d_k)",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right=SCALED,
                wrong="""
    q = q.to(wide) * (1.0 if scale is None else scale)  # (B, H, T, D)
""",
            ),
        ),
        symptom="worse",
        shown=causal_weights,
        seen=Text(
            en="The scores are too large by a factor of sqrt(D), where D is "
            "the width of a head, and the weights too sharp: that of {where} "
            "is {there}.",
            zh="分数是应有的 sqrt(D) 倍（D 是头维度），权重过于尖锐："
            "{where} 处是 {there}。",
        ),
        notice=Text(
            en="Compare with `F.scaled_dot_product_attention`. It is a sign "
            "if weights are near 0 and 1 right after initialisation.",
            zh="和 `F.scaled_dot_product_attention` 对比。如果刚初始化，权重就"
            "接近 0 和 1，多半是这个原因。",
        ),
        same_shape=True,
        found=(
            "https://github.com/mlc-ai/mlc-llm/pull/3426",
            "https://github.com/delzac/cntkx/issues/10",
        ),
        tests=(SDPA + "test_the_scale_is_one_over_the_root_of_the_width",),
        law=equals_torch,
        of=core,
    ),
    Mistake(
        id="scale-inverted",
        title=Text(
            en="The scores are multiplied by sqrt(d_k), not divided by it",
            zh="分数乘了 sqrt(d_k)，本该除以它",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right=SCALED,
                wrong="""
    q = q.to(wide) / (D**-0.5 if scale is None else scale)  # (B, H, T, D)
""",
            ),
        ),
        symptom="worse",
        shown=causal_weights,
        seen=Text(
            en="The scores are too large by a factor of D, the width of a "
            "head. Each query gives almost all its weight to one key: the "
            "weight of {where} is {there}.",
            zh="分数是应有的 D 倍（D 是头维度）：每个查询的权重几乎全给了"
            "一个键，{where} 处是 {there}。",
        ),
        notice=Text(
            en="Dividing by `D ** -0.5` is multiplying by sqrt(D). The "
            "weights are almost 0 or 1, and the gradients vanish.",
            zh="除以 `D ** -0.5`，就是乘以 sqrt(D)。权重几乎非 0 即 1，梯度随"
            "之消失。",
        ),
        same_shape=True,
        found=("https://github.com/esceptico/perceiver-io/issues/9",),
        tests=(SDPA + "test_equals_torch",),
        law=equals_torch,
        of=core,
    ),
    Mistake(
        id="scale-in-float32",
        title=Text(
            en="The scale is a float32 tensor",
            zh="缩放系数是一个 float32 张量",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right=SCALED,
                wrong="""
    root = torch.sqrt(torch.tensor(D))
    q = q.to(wide) * (1 / root if scale is None else scale)  # (B, H, T, D)
""",
            ),
        ),
        symptom="worse",
        shown=digits,
        seen=Text(
            en="The weights of float64 inputs are right to {wrong} decimal "
            "digits instead of {right}.",
            zh="输入是 float64，权重却只有 {wrong} 位十进制数字正确，本该有 "
            "{right} 位。",
        ),
        notice=Text(
            en="Compare in float64 with a tolerance of 1e-12. `math.sqrt` and "
            "`**` give a Python float, with which nothing is lost.",
            zh="用 float64 对比，容差设为 1e-12。`math.sqrt` 和 `**` 得到的是 "
            "Python 浮点数，不损失精度。",
        ),
        same_shape=True,
        found=("https://github.com/unit8co/darts/pull/3087",),
        tests=(SDPA + "test_the_scale_is_one_over_the_root_of_the_width",),
        law=equals_torch,
        of=core,
    ),
    Mistake(
        id="keys-viewed-not-transposed",
        title=Text(
            en="The keys are reshaped instead of transposed",
            zh="K 用了 reshape/view，而不是转置",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right="""
        scores = rows @ k.to(wide).mT  # (B, K, H // K * T, S)
""",
                wrong="""
        scores = rows @ k.to(wide).reshape(B, K, D, S)
""",
            ),
        ),
        symptom="future",
        shown=causal_weights,
        seen=Text(
            en="What is multiplied as one key is made of pieces of several: "
            "the weight of {where} is {there}.",
            zh="参与点积的“一个键”其实是几个键的碎片：{where} 的权重是 "
            "{there}。",
        ),
        notice=Text(
            en="Change the last token: earlier outputs change in spite of the "
            "mask. `view` and `reshape` keep the order of the elements in "
            "memory, and `transpose` does not.",
            zh="改掉最后一个 token，即使有掩码，前面的输出也会变。`view` 和 "
            "`reshape` 保持元素在内存里的顺序，`transpose` 则不然。",
        ),
        same_shape=True,
        found=("https://github.com/rish-16/tokenlearner-pytorch/issues/1",),
        tests=(SDPA + "test_the_future_cannot_be_seen",),
        law=equals_torch,
        of=core,
    ),
    Mistake(
        id="weights-transposed",
        title=Text(
            en="The weights are transposed before they meet the values",
            zh="权重在乘 V 之前被转置了",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right="""
    rows = _fold(weights, K)  # (B, K, H // K * T, S)
""",
                wrong="""
    rows = _fold(weights.mT, K)
""",
            ),
        ),
        symptom="future",
        shown=mixed_weights,
        seen=Text(
            en="Output i takes from value j what query j gave to key i. Rows "
            "and columns are exchanged, and the triangle of the causal mask "
            "is turned over with them.",
            zh="输出 i 从值 j 拿到的，是查询 j 给键 i 的权重。行和列对调了，因"
            "果掩码的三角形也跟着翻了过来。",
        ),
        notice=Text(
            en="In self-attention T = S, and the product does not fail. With "
            "more keys than queries it is an error.",
            zh="自注意力里 T = S，乘法不会报错。让键多于查询，就会报错。",
        ),
        same_shape=False,
        found=("https://github.com/heykeetae/Self-Attention-GAN/issues/11",),
        tests=(SDPA + "test_the_future_cannot_be_seen",),
        law=equals_torch,
        of=core,
        axes=(Text("output", "输出"), Text("value", "值")),
    ),
    Mistake(
        id="groups-tiled",
        title=Text(
            en="repeat instead of repeat_interleave for key/value heads",
            zh="键值头用了 repeat，而不是 repeat_interleave",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right="""
    rows = _fold(q, K)  # (B, K, H // K * T, D)
""",
                wrong="""
    k = k.repeat(1, H // K, 1, 1)  # (B, H, S, D)
    rows = q  # (B, H, T, D)
""",
            ),
            Lines(
                module="core.sdpa",
                right="""
    rows = _fold(weights, K)  # (B, K, H // K * T, S)
""",
                wrong="""
    v = v.repeat(1, H // K, 1, 1)  # (B, H, S, Dv)
    rows = weights  # (B, H, T, S)
""",
            ),
        ),
        symptom="heads",
        shown=heads_read,
        seen=Text(
            en="There are four query heads and two key/value heads. Query "
            "heads 0 and 2 read key/value head 0; it should be query heads 0 "
            "and 1.",
            zh="四个查询头，两个键值头：读键值头 0 的成了查询头 0 和 2，本该是"
            " 0 和 1。",
        ),
        notice=Text(
            en="`repeat` and `tile` give the order 0, 1, 0, 1, and "
            "`repeat_interleave` gives 0, 0, 1, 1. With MHA and MQA both are "
            "right.",
            zh="`repeat` 和 `tile` 得到 0, 1, 0, 1，`repeat_interleave` 得到 "
            "0, 0, 1, 1。MHA 和 MQA 用哪个都对。",
        ),
        same_shape=True,
        found=(
            "https://github.com/onnx/onnx/pull/7274",
            "https://github.com/ekzhang/jax-js/pull/180",
            "https://github.com/apple/axlearn/pull/842",
        ),
        tests=(SDPA + "test_query_head_h_reads_key_head_h_over_group",),
        law=equals_torch,
        of=core,
        axes=(Text("query head", "查询头"), Text("key/value head", "键值头")),
    ),
    Mistake(
        id="scores-in-half",
        title=Text(
            en="The scores are computed in half precision",
            zh="分数用半精度计算",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right="""
    wide = torch.promote_types(q.dtype, torch.float32)
""",
                wrong="""
    wide = q.dtype
""",
            ),
        ),
        symptom="worse",
        shown=weights_in_half,
        seen=Text(
            en="Scores of 792.5 to 793.6 in float16 give the weights {wrong} "
            "instead of {right}: at this size, neighbouring numbers of "
            "float16 are 0.5 apart.",
            zh="float16 下 792.5 到 793.6 的分数，权重算成 {wrong}，应为 "
            "{right}：在这个大小，float16 相邻两个数相差 0.5。",
        ),
        notice=Text(
            en="Compare with float64 on inputs that have a large mean. Scores "
            "above 65504 become infinite in float16, and then NaN.",
            zh="用均值较大的输入，和 float64 对比。float16 下分数超过 65504 会"
            "变成无穷大，随后就是 NaN。",
        ),
        same_shape=True,
        found=(
            "https://github.com/Stability-AI/stablediffusion/pull/89",
            "https://github.com/tinygrad/tinygrad/pull/4985",
        ),
        tests=(
            SDPA + "test_half_precision_is_as_exact_as_torch"
            "[16.0-torch.float16]",
        ),
        law=half_is_exact,
        of=core,
    ),
)
