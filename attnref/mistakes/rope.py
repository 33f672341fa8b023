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
    return moved


HALF = """
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
"""
SHAPE = Text(
    en="A rotation by other angles is still a vector of the same width.",
    zh="转的角度不对，向量的宽度还是一样。",
)
DISTANCE = Text(
    en="Compare your function with multiplication by complex numbers at a few "
    "positions. That scores depend on the distance alone does not show this.",
    zh="取几个位置，和复数乘法的结果对比。只检查分数是否只取决于距离，发现"
    "不了这个错误。",
)
TABLES = "tests/core/test_rope.py::test_tables_are_the_parts_of_a_turn"
TURNS = (
    "tests/core/test_rope.py::test_turning_is_complex_multiplication"
    "[from 0-half]",
)
FREQUENCIES = (f"{TABLES}[2.0-from 0]",)

MISTAKES = (
    Mistake(
        id="rope-other-layout",
        title=Text(
            en="RoPE pairs neighbours, the weights were trained with halves",
            zh="RoPE 把相邻元素配成对，权重却是按前后两半配对训练的",
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
            "those of another model: they differ by up to {change}.",
            zh="分数仍然只取决于距离，但已经是另一个模型的分数了：最多差 "
            "{change}。",
        ),
        notice=Text(
            en="Load the weights, and compare the output with that of the "
            "library in which they were trained. A model that is trained "
            "from scratch works with either layout.",
            zh="装入权重后，和训练它的那个库的输出对比。从头训练的模型用"
            "哪种排布都行。",
        ),
        hidden=SHAPE,
        found=(
            "https://github.com/huggingface/transformers/issues/25199",
            "https://github.com/rasbt/LLMs-from-scratch/pull/747",
            "https://github.com/ooples/AiDotNet/pull/2074",
        ),
        tests=TURNS,
        law=rope_is_as_published,
        of=rope_and_base,
    ),
    Mistake(
        id="rope-mixed-layouts",
        title=Text(
            en="Halves are rotated with the angles of neighbours",
            zh="向量按前后两半旋转，角度表却按相邻元素排列",
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
            en="The two elements of a pair are turned by different angles, so "
            "that the scores no longer depend on the distance alone: within "
            "one diagonal they vary. They are wrong by up to {change}.",
            zh="同一对的两个元素转的角度不同，分数不再只取决于距离：同一条"
            "对角线上的值也不一样，最多错 {change}。",
        ),
        notice=Text(
            en="Shift all positions by the same number: the scores must not "
            "change. `repeat_interleave` belongs to neighbours, and `cat` of "
            "twice the same to halves.",
            zh="所有位置加上同一个数，分数必须不变。相邻配对用 "
            "`repeat_interleave`，前后两半配对则把同一张表 `cat` 两遍。",
        ),
        hidden=Text(
            en="Both ways to widen the tables from D / 2 to D give the same "
            "shape.",
            zh="把表从 D / 2 扩到 D，两种写法得到的形状一样。",
        ),
        found=(
            "https://github.com/raiyanyahya/how-to-train-your-gpt/issues/6",
            "https://github.com/xiangking/ark-nlp/issues/47",
            "https://github.com/Tongjilibo/bert4torch/issues/1",
        ),
        tests=TURNS,
        law=rope_is_as_published,
        of=rope_and_base,
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
            en="This is no rotation: lengths change with the position, and "
            "scores depend on where the two tokens stand. They are wrong by up "
            "to {change}.",
            zh="这不是旋转：向量的长度随位置变化，分数也取决于两个词元各自"
            "所在的位置，最多错 {change}。",
        ),
        notice=Text(
            en="A rotation keeps the length of each vector, whatever its "
            "position.",
            zh="旋转不改变向量的长度，在哪个位置都一样。",
        ),
        hidden=Text(en="A sign changes no shape.", zh="符号不影响任何形状。"),
        found=(
            "https://github.com/labmlai/"
            "annotated_deep_learning_paper_implementations/pull/193",
        ),
        tests=TURNS,
        law=rope_is_as_published,
        of=rope_and_base,
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
            en="The scores are those of the opposite distance: what lies n "
            "tokens back is scored as if it lay n tokens ahead. They differ by "
            "up to {change}.",
            zh="算出的是相反距离的分数：往前 n 个词元，得到的却是往后 n 个"
            "词元的分数，最多差 {change}。",
        ),
        notice=Text(
            en="Train from scratch and nothing is wrong, since the direction "
            "is a convention. It shows only with weights that were trained "
            "with the other one, as nearly all published ones were: compare "
            "with the code of the model, and not with a vector and itself.",
            zh="从头训练的话，方向只是约定，不会出错；只有装入按另一种方向"
            "训练的权重才会错，而公开的权重几乎都是按标准方向训练的。要和"
            "模型自己的代码对比，而且不能拿一个向量和它自己做内积。",
        ),
        hidden=Text(en="A sign changes no shape.", zh="符号不影响任何形状。"),
        found=("https://github.com/karpathy/nanochat/pull/489",),
        tests=TURNS,
        law=rope_is_as_published,
        of=rope_and_base,
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
            en="The frequencies go down to the square root of theirs only, as "
            "if the base were 10 instead of 100; the slow pairs are missing. "
            "The scores differ by up to {change}.",
            zh="频率只降到该有的平方根，好像底数是 10 而不是 100，转得慢的"
            "那些对都没有了。分数最多差 {change}。",
        ),
        notice=DISTANCE,
        hidden=Text(
            en="Both ways of counting give one number per pair, D / 2 of them.",
            zh="两种写法都是每对一个频率，共 D / 2 个。",
        ),
        found=("https://github.com/rasbt/LLMs-from-scratch/issues/410",),
        tests=FREQUENCIES,
        law=rope_is_as_published,
        of=rope_and_base,
    ),
    Mistake(
        id="rope-exponent",
        title=Text(
            en="The exponent of a frequency has 2p - 1 for 2(p - 1)",
            zh="频率的指数把 2(p - 1) 写成了 2p - 1",
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
            en="Every frequency is too small by the same factor, so that each "
            "distance is taken for a shorter one. The scores differ by up to "
            "{change}.",
            zh="所有频率都小了同样的倍数，每段距离都被当成更短的距离。分数"
            "最多差 {change}。",
        ),
        notice=Text(
            en="The first pair turns by one radian per token, whatever the "
            "base: look at the first column of the cosines. The paper counts "
            "pairs from 1 and has 2(p - 1) / d; from 0 it is 2p / d.",
            zh="不管底数是多少，第一对每个词元都转 1 弧度：看余弦表的第一列"
            "就知道。论文里的对从 1 数起，指数是 2(p - 1) / d；从 0 数起则是 "
            "2p / d。",
        ),
        hidden=SHAPE,
        found=(
            "https://github.com/stanford-cs336/assignment1-basics/issues/22",
        ),
        tests=FREQUENCIES,
        law=rope_is_as_published,
        of=rope_and_base,
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
            en="With a base of 100, and 10000 in the code, the scores differ "
            "by up to {change}.",
            zh="底数应为 100，代码里却是 10000：分数最多差 {change}。",
        ),
        notice=Text(
            en="Llama 2 is right, since its base is 10000; Code Llama "
            "(1000000) and Llama 3 (500000) are not. Short texts look fluent "
            "all the same. Test with a base that is not the default.",
            zh="Llama 2 的底数正好是 10000，结果没错；Code Llama（1000000）"
            "和 Llama 3（500000）就错了，短文本看上去照样通顺。测试时要用非"
            "默认的底数。",
        ),
        hidden=SHAPE,
        found=(
            "https://github.com/karpathy/llama2.c/issues/356",
            "https://github.com/young-geng/EasyLM/pull/117",
        ),
        tests=FREQUENCIES,
        law=rope_is_as_published,
        of=rope_and_base,
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
            en="bfloat16 has steps of 8 at 2000: several neighbours get the "
            "same position. The scores are wrong by up to {change}.",
            zh="在 2000 附近，bfloat16 的间隔是 8：相邻的好几个位置变成了同一"
            "个。分数最多错 {change}。",
        ),
        notice=Text(
            en="Test at large positions: up to 256, bfloat16 has all whole "
            "numbers. `model.to(torch.bfloat16)` also rounds a buffer of "
            "frequencies. Rounding the finished cosines does far less harm.",
            zh="要在大的位置上测试：256 以内的整数 bfloat16 都能精确表示。"
            "`model.to(torch.bfloat16)` 也会把存频率的缓冲区舍入。相比之下，"
            "把算好的余弦舍入，影响要小得多。",
        ),
        hidden=Text(
            en="A dtype is not part of a shape, and the tables are cast to "
            "that of the vectors anyway.",
            zh="dtype 不属于形状，而且表反正会转成向量的 dtype。",
        ),
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
    ),
    Mistake(
        id="rope-over-heads",
        title=Text(
            en="RoPE is applied before the transpose, along the heads",
            zh="RoPE 放在 transpose 之前，沿着头的轴转",
        ),
        lines=(
            Lines(
                module="layers.mha",
                right="""
        q = self.q_proj(x).view(B, T, H, D).transpose(1, 2)  # (B, H, T, D)
        k = self.k_proj(x).view(B, T, H, D).transpose(1, 2)  # (B, H, T, D)
        v = self.v_proj(x).view(B, T, H, D).transpose(1, 2)  # (B, H, T, D)
        q, k = rotate(
            q, k, theta=self.rope_theta, past=past, positions=positions
        )
""",
                wrong="""
        q = self.q_proj(x).view(B, T, H, D)  # (B, T, H, D)
        k = self.k_proj(x).view(B, T, H, D)  # (B, T, H, D)
        v = self.v_proj(x).view(B, T, H, D).transpose(1, 2)  # (B, H, T, D)
        q, k = rotate(
            q, k, theta=self.rope_theta, past=past, positions=positions
        )
        q, k = q.transpose(1, 2), k.transpose(1, 2)  # (B, H, T, D)
""",
            ),
        ),
        symptom="worse",
        shown=without_order,
        seen=Text(
            en="Each head is turned by its own number, queries and keys alike, "
            "which cancels: the layer does not see the order of its tokens. "
            "Exchanging two earlier tokens should move the last output, by up "
            "to {change} here, and leaves it where it is.",
            zh="每个头按自己的编号旋转，查询和键转得一样，正好抵消：这一层"
            "看不到词元的顺序。交换前面两个词元，最后的输出本该变化（这里"
            "最多 {change}），现在却纹丝不动。",
        ),
        notice=Text(
            en="Exchange two earlier tokens: the last output must move. "
            "Training goes on without an error, and ends worse.",
            zh="交换前面的两个词元，最后的输出必须跟着变。训练不会报错，只是"
            "结果更差。",
        ),
        hidden=Text(
            en="The tables are made for as many positions as the axis has, "
            "and a transpose afterwards makes the shapes right.",
            zh="表按那根轴的长度来建，之后再 transpose，形状就都对了。",
        ),
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
    ),
)
