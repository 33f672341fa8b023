"""Mistakes in scaled dot-product attention and in its use of masks."""

from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import NOTES, Lines, Mistake, Text
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
    zh="改掉最后一个词元，它前面的输出一个都不该变。",
)
BROADCAST = Text(
    en="The mask broadcasts as it should, so every size is right.",
    zh="掩码照常广播，所有尺寸都对。",
)
NUMBER = Text(
    en="A scale is a single number and has no shape.",
    zh="缩放因子只是一个标量，没有形状可言。",
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
            en="Each token attends to the tokens after it as if there were no "
            "mask: the weights differ by up to {change}.",
            zh="每个词元照样看到它后面的词元，就像没有掩码一样：权重最多差 "
            "{change}。",
        ),
        notice=FUTURE,
        hidden=BROADCAST,
        found=(
            NOTES,
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
            en="A hidden key has the score 0, and exp(0) is 1: it keeps a "
            "weight, and the others differ by up to {change}.",
            zh="被遮住的键分数是 0，而 exp(0) 等于 1：它照样分到权重，"
            "权重最多差 {change}。",
        ),
        notice=Text(
            en="Look at the weights of hidden keys: they must be exactly 0. "
            "masked_fill(mask == 0, 0) is the same mistake.",
            zh="看看被遮住的键的权重，必须恰好是 0。masked_fill(mask == 0, 0) "
            "也是同样的错误。",
        ),
        hidden=BROADCAST,
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
            en="Visible keys get a score that is higher by 1, and nothing is "
            "hidden: the weights differ by up to {change}.",
            zh="可见的键分数只多了 1，什么也没有遮住：权重最多差 {change}。",
        ),
        notice=Text(
            en="An additive mask holds 0 and -inf. A mask of 0 and 1 must "
            "become bool first, or it shifts the visible scores by 1.",
            zh="相加的掩码只含 0 和 -inf。0/1 掩码要先转成 bool，否则"
            "只是给可见的分数加了 1。",
        ),
        hidden=BROADCAST,
        found=(
            "https://github.com/timeseriesAI/tsai/issues/171",
            "https://github.com/pytorch/pytorch/issues/21518",
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
            en="Each token sees the tokens after it and nothing else, the last "
            "one no key at all.",
            zh="每个词元只看到后面的词元，最后一个什么键也看不到。",
        ),
        notice=Text(
            en="In F.scaled_dot_product_attention True may attend, in "
            "nn.MultiheadAttention True is hidden, and a tokenizer writes 1 "
            "for real tokens. Try a mask that hides all keys but one.",
            zh="F.scaled_dot_product_attention 里 True 表示可见，"
            "nn.MultiheadAttention 里 True 表示遮住，分词器给真实词元写 1。"
            "用一个只留一个键的掩码试一下。",
        ),
        hidden=BROADCAST,
        found=(
            NOTES,
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
            zh="softmax 之后才加掩码",
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
            en="Hidden keys have the weight 0, but they were in the sum: rows "
            "no longer sum to 1, and the weights differ by up to {change}.",
            zh="被遮住的键权重是 0，却已经算进了分母：每行加起来不再是 1，"
            "权重最多差 {change}。",
        ),
        notice=Text(
            en="Each row of weights must sum to 1. The future leaks through "
            "the sum: an earlier output moves with the last token.",
            zh="每一行权重加起来应为 1。未来会从分母里漏出来：改掉最后一个"
            "词元，前面的输出也跟着变。",
        ),
        hidden=BROADCAST,
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
            en="Three queries, the first of which sees no key, get {wrong} "
            "instead of {right}: the first gets the mean of all values.",
            zh="三个查询里第一个看不到任何键，得到 {wrong}，应为 {right}："
            "第一个成了所有值的均值。",
        ),
        notice=Text(
            en="Hide all keys from a query, as left padding does, and look at "
            "its output. Two such masks that are added compete with each "
            "other.",
            zh="像左填充那样把一个查询的所有键都遮住，看它的输出。两个这样的"
            "掩码相加时，还会互相竞争。",
        ),
        hidden=BROADCAST,
        found=(
            NOTES,
            "https://github.com/YutaroOgawa/pytorch_advanced/issues/175",
        ),
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
        hidden=BROADCAST,
        found=(NOTES,),
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
        symptom="nan",
        shown=outputs_in_half,
        seen=Text(
            en="In float16, whose largest number is 65504: {wrong}.",
            zh="float16 最大只到 65504，于是报错：{wrong}。",
        ),
        notice=Text(
            en="It runs in float32 and in bfloat16, and fails under float16 "
            "autocast. Added instead of filled, -1e9 becomes -inf.",
            zh="float32 和 bfloat16 下能跑，float16 自动混合精度下就报错。"
            "如果不是填充而是相加，-1e9 会变成 -inf。",
        ),
        hidden=Text(
            en="In float32, in which shapes are tested, it runs.",
            zh="检查形状时用的是 float32，那里跑得通。",
        ),
        found=(
            NOTES,
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
            en="A query that may see no key gives NaN",
            zh="看不到任何键的查询输出 NaN",
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
            en="Three queries, the first of which sees no key, get {wrong} "
            "instead of {right}: its row of -inf becomes 0 / 0.",
            zh="三个查询里第一个看不到任何键，得到 {wrong}，应为 {right}："
            "整行 -inf 变成了 0 / 0。",
        ),
        notice=Text(
            en="Pad on the left under a causal mask: the first rows are empty. "
            "In the next layer, 0 * NaN reaches the real tokens.",
            zh="在因果掩码下做左填充，前几行就是空的。到了下一层，0 * NaN 会"
            "污染真实词元。",
        ),
        hidden=Text(
            en="NaN has the shape of any other number.",
            zh="NaN 的形状和别的数没有两样。",
        ),
        found=(
            NOTES,
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
            en="It is the columns that sum to 1, not the rows: the weights of "
            "a key depend on later queries.",
            zh="加起来等于 1 的是列，不是行：一个键的权重取决于后面的查询。",
        ),
        notice=Text(
            en="weights.sum(-1) must be 1 everywhere. With a single query, as "
            "in decoding, all weights are 1.",
            zh="weights.sum(-1) 处处应为 1。如果只有一个查询，例如解码时，"
            "所有权重都是 1。",
        ),
        hidden=Text(
            en="Softmax over any axis has the shape of the scores.",
            zh="softmax 沿哪个轴，形状都和分数一样。",
        ),
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
            zh="分数除以了模型宽度的平方根",
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
            en="With four heads the scores are half as large as they should "
            "be, and the weights too uniform: up to {change} off.",
            zh="四个头时，分数只有应有的一半，权重过于均匀：最多差 {change}。",
        ),
        notice=Text(
            en="Compare with F.scaled_dot_product_attention. A model that is "
            "trained like this learns all the same, so that nothing looks "
            "broken; with weights that were trained elsewhere, it is wrong.",
            zh="和 F.scaled_dot_product_attention 对比。这样训练模型照样能学，"
            "看不出哪里坏了；换上别处训练的权重，结果就是错的。",
        ),
        hidden=NUMBER,
        found=(
            "https://github.com/chelsea0x3b/dfdx/issues/171",
            "https://github.com/brightmart/bert_language_understanding/"
            "issues/9",
            "https://github.com/FareedKhan-dev/train-llm-from-scratch/pull/3",
        ),
        tests=(SDPA + "test_the_scale_is_one_over_the_root_of_the_width",),
        law=equals_torch,
        of=core,
    ),
    Mistake(
        id="scale-missing",
        title=Text(
            en="The scores are not scaled",
            zh="分数没有缩放",
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
            en="The scores are too large by a factor of sqrt(D), with D the "
            "head width, and the weights too sharp: up to {change} off.",
            zh="分数是应有的 sqrt(D) 倍（D 是头宽），权重过于尖锐："
            "最多差 {change}。",
        ),
        notice=Text(
            en="Compare with F.scaled_dot_product_attention. Weights near 0 "
            "and 1 right after initialisation are a sign.",
            zh="和 F.scaled_dot_product_attention 对比。刚初始化，权重就接近 "
            "0 和 1，是一个征兆。",
        ),
        hidden=NUMBER,
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
            en="The scores are multiplied by the root of the width",
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
            en="The scores are too large by a factor of D, the head width: "
            "each query takes nearly one key alone, up to {change} off.",
            zh="分数是应有的 D 倍（D 是头宽）：每个查询几乎只取一个键，"
            "权重最多差 {change}。",
        ),
        notice=Text(
            en="Dividing by D ** -0.5 is multiplying by sqrt(D). The weights "
            "are nearly 0 or 1, and gradients vanish.",
            zh="除以 D ** -0.5，就是乘以 sqrt(D)。权重几乎非 0 即 1，"
            "梯度随之消失。",
        ),
        hidden=NUMBER,
        found=("https://github.com/esceptico/perceiver-io/issues/9",),
        tests=(SDPA + "test_equals_torch",),
        law=equals_torch,
        of=core,
    ),
    Mistake(
        id="scale-in-float32",
        title=Text(
            en="The scale is a float32 tensor",
            zh="缩放因子是一个 float32 张量",
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
            en="Weights of float64 inputs are right to {wrong} digits instead "
            "of {right}.",
            zh="float64 输入的权重只有 {wrong} 位数字正确，本来有 {right} 位。",
        ),
        notice=Text(
            en="Compare in float64 with a tolerance of 1e-12. math.sqrt and "
            "** give a Python float, which keeps all digits.",
            zh="用 float64 对比，容差设为 1e-12。math.sqrt 和 ** 得到的是 "
            "Python 浮点数，所有数字都保得住。",
        ),
        hidden=NUMBER,
        found=(NOTES,),
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
        if few:  # the large matrix first: it is read as it lies in memory
            found.append(_matmul(part, rows.mT).mT)
        else:
            found.append(_matmul(rows, part.mT))
""",
                wrong="""
        B, K, S, D = part.shape
        found.append(_matmul(rows, part.reshape(B, K, D, S)))
""",
            ),
        ),
        symptom="future",
        shown=causal_weights,
        seen=Text(
            en="Each column of scores is made of pieces of several keys: the "
            "weights differ by up to {change}.",
            zh="分数的每一列都由好几个键的碎片拼成：权重最多差 {change}。",
        ),
        notice=Text(
            en="Change the last token: earlier outputs move in spite of the "
            "mask. view and reshape keep the order in memory; transpose "
            "changes it.",
            zh="改掉最后一个词元，即使有掩码，前面的输出也会变。view 和 "
            "reshape 不改变内存里的顺序，转置才会。",
        ),
        hidden=Text(
            en="(B, K, D, S) has the same number of elements as (B, K, S, D), "
            "so no product fails.",
            zh="(B, K, D, S) 和 (B, K, S, D) 元素个数相同，矩阵乘法不会报错。",
        ),
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
            en="Output i takes of value j what query j gave to key i: rows "
            "and columns are exchanged, and with them the triangle.",
            zh="输出 i 从值 j 拿到的，是查询 j 给键 i 的权重：行列对调，掩码的"
            "三角形也跟着颠倒了。",
        ),
        notice=Text(
            en="In self-attention T = S and no product fails. Take more keys "
            "than queries, and it is an error.",
            zh="自注意力里 T = S，乘法不会报错。让键多于查询，就会报错。",
        ),
        hidden=None,
        found=("https://github.com/heykeetae/Self-Attention-GAN/issues/11",),
        tests=(SDPA + "test_the_future_cannot_be_seen",),
        law=equals_torch,
        of=core,
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
    scores = _scores(rows, k, T)  # (B, K, H // K * T, S)
""",
                wrong="""
    k = k.repeat(1, H // K, 1, 1)  # (B, H, S, D)
    scores = _scores(q, k, T)  # (B, H, T, S)
""",
            ),
            Lines(
                module="core.sdpa",
                right="""
    rows = _fold(weights, K)  # (B, K, H // K * T, S)
    mixed = _mixed(rows, v)  # (B, K, H // K * T, Dv)
""",
                wrong="""
    v = v.repeat(1, H // K, 1, 1)  # (B, H, S, Dv)
    mixed = _mixed(weights, v)  # (B, H, T, Dv)
""",
            ),
        ),
        symptom="heads",
        shown=heads_read,
        seen=Text(
            en="Of four query heads and two key/value heads, query heads 0 "
            "and 2 read head 0; it should be 0 and 1.",
            zh="四个查询头、两个键值头：读键值头 0 的成了查询头 0 和 2，"
            "本该是 0 和 1。",
        ),
        notice=Text(
            en="repeat and tile give 0, 1, 0, 1; repeat_interleave gives "
            "0, 0, 1, 1. MHA and MQA are right either way.",
            zh="repeat 和 tile 得到 0, 1, 0, 1；repeat_interleave 得到 "
            "0, 0, 1, 1。MHA 和 MQA 用哪个都对。",
        ),
        hidden=Text(
            en="Both orders have as many heads.",
            zh="两种顺序的头数一样多。",
        ),
        found=(
            "https://github.com/onnx/onnx/pull/7274",
            "https://github.com/ekzhang/jax-js/pull/180",
            "https://github.com/apple/axlearn/pull/842",
        ),
        tests=(SDPA + "test_query_head_h_reads_key_head_h_over_group",),
        law=equals_torch,
        of=core,
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
            "instead of {right}: at this size, float16 has steps of 0.5.",
            zh="float16 下 792.5 到 793.6 的分数，权重算成 {wrong}，应为 "
            "{right}：这么大的数，float16 的间隔是 0.5。",
        ),
        notice=Text(
            en="Compare with float64 on inputs that have a large mean. Scores "
            "above 65504 become infinite in float16, and NaN follows.",
            zh="用均值较大的输入，和 float64 对比。float16 下分数超过 65504 "
            "会变成无穷大，随后就是 NaN。",
        ),
        hidden=Text(
            en="Shape and dtype are as they should be.",
            zh="形状和 dtype 都没有问题。",
        ),
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
