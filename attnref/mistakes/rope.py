"""Mistakes in RoPE itself: frequencies, pairs, angles and the axis."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.kv_cache import filled, seeded
from attnref.mistakes.laws import order_is_seen, rope_is_as_published


def scores(package: Any) -> Tensor:
    """Of one query and one key, each at positions 2000 to 2007."""
    table = package.rope_table(torch.arange(2000, 2008), 8, theta=100.0)
    q, k = seeded(2, 1, 1, 1, 8).expand(-1, -1, -1, 8, -1)
    q, k = (package.apply_rope(x, *table) for x in (q, k))
    found: Tensor = (q @ k.mT)[0, 0]
    return found


def rope_of(package: Any, theta: float, x: Tensor, at: Tensor) -> Tensor:
    table = package.rope_table(at, x.shape[-1], theta=theta)
    turned: Tensor = package.apply_rope(x, *table)
    return turned


def rope_and_base(package: Any) -> tuple[Any, ...]:
    return partial(rope_of, package, 500000.0), 500000.0


def mha(package: Any) -> Any:
    sizes = {"d_model": 16, "n_heads": 4}
    return filled(package.MultiHeadAttention(**sizes, rope_theta=100.0))


def without_order(package: Any) -> Tensor:
    """How far the last of six outputs moves when two tokens are exchanged:
    a row and a column for each of the five before it."""
    layer, x = mha(package), seeded(1, 6, 16)
    moved = torch.zeros(5, 5)
    for i in range(5):
        for j in range(i):
            order = torch.arange(6)
            order[[i, j]] = torch.tensor([j, i])
            with torch.no_grad():
                change = (layer(x[:, order]) - layer(x))[0, -1].abs().max()
            moved[i, j] = moved[j, i] = change
    return moved.round(decimals=6)  # 0 and not what rounding leaves


FAR = (
    Text("query, from position 2000 on", "查询，位置从 2000 起"),
    Text("key, from position 2000 on", "键，位置从 2000 起"),
)
HALF = """
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
"""
TABLES = "tests/core/test_rope.py::test_tables_are_the_parts_of_a_turn"
TURNS = (
    "tests/core/test_rope.py::test_turning_is_complex_multiplication"
    "[from 0-half]",
)
FREQUENCIES = (f"{TABLES}[0.5-from 0]",)

MISTAKES = (
    Mistake(
        id="rope-other-layout",
        title=Text(
            en="Interleaved RoPE with weights trained for rotate_half",
            zh="权重按前后两半（rotate_half）训练，RoPE 却把相邻元素配对",
        ),
        lines=(
            Lines(
                module="core.rope",
                right="""
        a, b = x.chunk(2, dim=-1)  # (..., T, D // 2)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
""",
                wrong="""
        a, b = x[..., 0::2], x[..., 1::2]  # (..., T, D // 2)
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1)
        turned = turned.flatten(-2)
""",
            ),
        ),
        symptom="worse",
        shown=scores,
        seen=Text(
            en="The scores still depend on the distance alone, but they are "
            "not those for which the weights were trained: the score of "
            "{where} is {there}.",
            zh="分数仍然只取决于距离，但已经不是训练这些权重时的分数："
            "{where} 处是 {there}。",
        ),
        notice=Text(
            en="Load the weights, and compare the output with that of the "
            "library in which they were trained. A model that is trained from "
            "scratch works with either layout.",
            zh="装入权重后，和训练它的那个库的输出对比。从头训练的模型用哪种排"
            "布都行。",
        ),
        same_shape=True,
        found=(
            "https://github.com/huggingface/transformers/issues/25199",
            "https://github.com/rasbt/LLMs-from-scratch/pull/747",
            "https://github.com/ooples/AiDotNet/pull/2074",
        ),
        tests=TURNS,
        law=rope_is_as_published,
        of=rope_and_base,
        axes=FAR,
    ),
    Mistake(
        id="rope-mixed-layouts",
        title=Text(
            en="RoPE mixes two layouts: rotate_half with repeat_interleave",
            zh="RoPE 两种排布混用：rotate_half 配了 repeat_interleave",
        ),
        lines=(
            Lines(
                module="core.rope",
                right="""
        a, b = x.chunk(2, dim=-1)  # (..., T, D // 2)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
""",
                wrong="""
        cos = cos.repeat_interleave(2, dim=-1)
        sin = sin.repeat_interleave(2, dim=-1)
        a, b = x.chunk(2, dim=-1)  # (..., T, D // 2)
        turned = x * cos + torch.cat((-b, a), dim=-1) * sin
""",
            ),
        ),
        symptom="worse",
        shown=scores,
        seen=Text(
            en="The two elements of a pair are rotated by different angles, "
            "so the scores no longer depend on the distance alone: they vary "
            "along each diagonal. The score of {where} is {there}.",
            zh="同一对的两个元素转的角度不同，分数不再只取决于距离：同一条对"
            "角线上的值也不一样，{where} 处是 {there}。",
        ),
        notice=Text(
            en="Shift all positions by the same number: the scores must not "
            "change. `rotate_half` needs tables widened by `cat`, and "
            "interleaved pairs need `repeat_interleave`; the opposite mix is "
            "wrong too.",
            zh="所有位置加上同一个数，分数必须不变。`rotate_half` 要把同一张"
            "表 `cat` 两遍，相邻元素配对才用 `repeat_interleave`；反过来混用也"
            "是错的。",
        ),
        same_shape=True,
        found=(
            "https://github.com/raiyanyahya/how-to-train-your-gpt/issues/6",
            "https://github.com/xiangking/ark-nlp/issues/47",
            "https://github.com/Tongjilibo/bert4torch/issues/1",
        ),
        tests=TURNS,
        law=rope_is_as_published,
        of=rope_and_base,
        axes=FAR,
    ),
    Mistake(
        id="rope-no-minus",
        title=Text(
            en="The minus sign of the rotation is missing",
            zh="旋转公式里漏了负号",
        ),
        lines=(
            Lines(
                module="core.rope",
                right=HALF,
                wrong="""
        turned = torch.cat((a * cos + b * sin, b * cos + a * sin), dim=-1)
""",
            ),
        ),
        symptom="worse",
        shown=scores,
        seen=Text(
            en="This is not a rotation: the length of a vector changes with "
            "its position, and the scores depend on where the two tokens "
            "stand. The score of {where} is {there}.",
            zh="这不是旋转：向量的长度随位置变化，分数也取决于两个 token 各自"
            "所在的位置，{where} 处是 {there}。",
        ),
        notice=Text(
            en="A rotation keeps the length of every vector: compare the "
            "norms before and after, at several positions.",
            zh="旋转不改变向量的长度：在几个位置上比较旋转前后的范数。",
        ),
        same_shape=True,
        found=(
            "https://github.com/labmlai/"
            "annotated_deep_learning_paper_implementations/pull/193",
        ),
        tests=TURNS,
        law=rope_is_as_published,
        of=rope_and_base,
        axes=FAR,
    ),
    Mistake(
        id="rope-sign",
        title=Text(
            en="RoPE rotates in the opposite direction",
            zh="RoPE 的旋转方向反了",
        ),
        lines=(
            Lines(
                module="core.rope",
                right=HALF,
                wrong="""
        turned = torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)
""",
            ),
        ),
        symptom="worse",
        shown=scores,
        seen=Text(
            en="The scores are those of the opposite distance: a key n "
            "tokens back gets the score of a key n tokens ahead. The score of "
            "{where} is {there}.",
            zh="距离反号：前面第 n 个键算成了后面第 n 个，{where} 的分数是 "
            "{there}。",
        ),
        notice=Text(
            en="A model that is trained from scratch works, since the "
            "direction is a convention. Weights that were trained with the "
            "other direction do not, and nearly all published ones use the "
            "standard direction. Compare with the code of the model, and with "
            "two different vectors: the score of a vector with itself is the "
            "same in both directions.",
            zh="从头训练的话，方向只是约定，不会出错；装入按另一种方向训练的权"
            "重才会错，而公开的权重几乎都按标准方向训练。要和模型自己的代码对"
            "比，而且要用两个不同的向量：向量和它自己的分数，两个方向算出来一"
            "样。",
        ),
        same_shape=True,
        found=("https://github.com/karpathy/nanochat/pull/489",),
        tests=TURNS,
        law=rope_is_as_published,
        of=rope_and_base,
        axes=FAR,
    ),
    Mistake(
        id="rope-pair-index",
        title=Text(
            en="The exponent of a frequency has p / d instead of 2p / d",
            zh="频率的指数写成 p / d，而不是 2p / d",
        ),
        lines=(
            Lines(
                module="core.rope",
                right="""
    pairs = torch.arange(0, dim, 2, device=positions.device, dtype=wide)
""",
                wrong="""
    pairs = torch.arange(dim // 2, device=positions.device, dtype=wide)
""",
            ),
        ),
        symptom="worse",
        shown=scores,
        seen=Text(
            en="The frequencies fall too slowly, as if the base were 10 "
            "instead of 100, so the slow pairs are missing. The score of "
            "{where} is {there}.",
            zh="频率降得太慢，好像底数是 10 而不是 100，转得慢的那些对都没有"
            "了。{where} 的分数是 {there}。",
        ),
        notice=Text(
            en="Compare your function with multiplication by complex numbers "
            "at a few positions. It is not enough to test that the scores "
            "depend on the distance alone: they still do.",
            zh="取几个位置，和复数乘法的结果对比。只检查分数是否只取决于距离是"
            "不够的：这一点仍然成立。",
        ),
        same_shape=True,
        found=("https://github.com/rasbt/LLMs-from-scratch/issues/410",),
        tests=FREQUENCIES,
        law=rope_is_as_published,
        of=rope_and_base,
        axes=FAR,
    ),
    Mistake(
        id="rope-exponent",
        title=Text(
            en="The exponent of a frequency is 2p - 1 instead of 2(p - 1)",
            zh="频率的指数写成 2p - 1，而不是 2(p - 1)",
        ),
        lines=(
            Lines(
                module="core.rope",
                right="""
    frequencies = theta ** (-pairs / dim)
""",
                wrong="""
    p = pairs / 2 + 1  # the paper counts from 1
    frequencies = theta ** (-(2 * p - 1) / dim)
""",
            ),
        ),
        symptom="worse",
        shown=scores,
        seen=Text(
            en="Every frequency is too small by the same factor, so each "
            "distance is taken for a shorter one. The score of {where} is "
            "{there}.",
            zh="所有频率都小了同样的倍数，每段距离都被当成更短的距离。"
            "{where} 的分数是 {there}。",
        ),
        notice=Text(
            en="The first pair turns by one radian per token, whatever the "
            "base is: look at the first column of the cosines. The paper "
            "counts pairs from 1, where the exponent is 2(p - 1) / d; counted "
            "from 0, it is 2p / d.",
            zh="不管底数是多少，第一对每个 token 都转 1 弧度：看余弦表的第一列"
            "就知道。论文里的对从 1 数起，指数是 2(p - 1) / d；从 0 数起则是 "
            "2p / d。",
        ),
        same_shape=True,
        found=(
            "https://github.com/stanford-cs336/assignment1-basics/issues/22",
        ),
        tests=FREQUENCIES,
        law=rope_is_as_published,
        of=rope_and_base,
        axes=FAR,
    ),
    Mistake(
        id="rope-theta-ignored",
        title=Text(
            en="The base of RoPE is always 10000",
            zh="RoPE 的底数写死为 10000",
        ),
        lines=(
            Lines(
                module="core.rope",
                right="""
    frequencies = theta ** (-pairs / dim)
""",
                wrong="""
    frequencies = 10000.0 ** (-pairs / dim)
""",
            ),
        ),
        symptom="worse",
        shown=scores,
        seen=Text(
            en="The model has a base of 100, and the code uses 10000: the "
            "score of {where} is {there}.",
            zh="模型的底数是 100，代码里却写着 10000：{where} 的分数是 "
            "{there}。",
        ),
        notice=Text(
            en="Llama 2 works, since its base is 10000. Code Llama (1000000) "
            "and Llama 3 (500000) do not, although short texts look fluent "
            "all the same. Test with a base that is not the default.",
            zh="Llama 2 的底数正好是 10000，结果没错；Code Llama（1000000）和 "
            "Llama 3（500000）就错了，短文本看上去照样通顺。测试时要用非默认的"
            "底数。",
        ),
        same_shape=True,
        found=(
            "https://github.com/karpathy/llama2.c/issues/356",
            "https://github.com/young-geng/EasyLM/pull/117",
        ),
        tests=FREQUENCIES,
        law=rope_is_as_published,
        of=rope_and_base,
        axes=FAR,
    ),
    Mistake(
        id="rope-half-precision",
        title=Text(
            en="The angles of RoPE are computed in bfloat16",
            zh="RoPE 的角度用 bfloat16 计算",
        ),
        lines=(
            Lines(
                module="core.rope",
                right="""
    wide = torch.float32 if mps else torch.float64
""",
                wrong="""
    wide = torch.bfloat16  # as the model
""",
            ),
        ),
        symptom="worse",
        shown=scores,
        seen=Text(
            en="Near position 2000, neighbouring bfloat16 numbers are 8 "
            "apart, so several tokens get the same position. The score of "
            "{where} is {there}.",
            zh="在 2000 附近，bfloat16 相邻两个数相差 8，好几个相邻的位置变成"
            "了同一个。{where} 的分数是 {there}。",
        ),
        notice=Text(
            en="Test at large positions: up to 256, bfloat16 represents every "
            "whole number exactly. `model.to(torch.bfloat16)` also rounds a "
            "buffer of frequencies. Rounding the finished cosines does far "
            "less harm.",
            zh="要在大的位置上测试：256 以内的整数 bfloat16 都能精确表示。"
            "`model.to(torch.bfloat16)` 也会把存频率的缓冲区舍入。相比之下，把"
            "算好的余弦舍入，影响要小得多。",
        ),
        same_shape=True,
        found=(
            "https://github.com/EleutherAI/gpt-neox/issues/1003",
            "https://github.com/huggingface/transformers/pull/29285",
            "https://github.com/sgl-project/sglang-jax/issues/1472",
        ),
        tests=(
            "tests/core/test_rope.py::"
            "test_far_positions_keep_the_digits_that_float32_loses",
        ),
        law=rope_is_as_published,
        of=rope_and_base,
        axes=FAR,
    ),
    Mistake(
        id="rope-over-heads",
        title=Text(
            en="RoPE before the transpose rotates along the heads",
            zh="RoPE 放在 transpose 之前，沿着头的轴转",
        ),
        lines=(
            Lines(
                module="caches.past",
                right="""
    q, k = rotate(q, k, theta=layer.rope_theta, past=past, positions=positions)
""",
                wrong="""
    q, k = (
        rotate(x, x, theta=layer.rope_theta, past=past)[0].transpose(1, 2)
        for x in (q.transpose(1, 2), k.transpose(1, 2))  # before the transpose
    )
""",
            ),
        ),
        symptom="worse",
        shown=without_order,
        seen=Text(
            en="Queries and keys are rotated by the number of their head "
            "instead of their position. Both get the same angle, which "
            "cancels, so the layer does not see the order of its tokens. "
            "Exchanging two earlier tokens should change the last output, by "
            "up to {change} here, but does not.",
            zh="查询和键按头的编号旋转，而不是按位置。同一个头里两者的角度一"
            "样，正好抵消，于是这一层看不到 token 的顺序。交换前面两个 token，"
            "最后的输出本该变化（这里最多 {change}），现在却纹丝不动。",
        ),
        notice=Text(
            en="Exchange two earlier tokens: the last output must change. "
            "Training raises no error, and only ends with a worse model.",
            zh="交换前面的两个 token，最后的输出必须跟着变。训练不会报错，只是"
            "结果更差。",
        ),
        same_shape=True,
        found=(
            "https://github.com/mlfoundations/open_lm/issues/4",
            "https://github.com/facebookresearch/xformers/issues/841",
            "https://github.com/tensorgi/TPA/issues/4",
        ),
        tests=(
            "tests/laws/test_laws.py::test_where_nothing_has_a_position_"
            "keys_may_change_places[mha]",
        ),
        law=order_is_seen,
        of=lambda package: (mha(package), seeded(2, 5, 16)),
        axes=(
            Text("token", "token"),
            Text("exchanged with", "与之交换的 token"),
        ),
    ),
)
