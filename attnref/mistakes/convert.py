"""Mistakes in converting weights: heads in another order, scales left out."""

from typing import Any

import torch
from torch import Tensor, nn

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.laws import (
    equal_heads_pool,
    equals_multihead_attention,
    float8_is_near,
    layouts_agree,
)
from attnref.mistakes.mha import filled, tokens


@torch.no_grad()
def pooled(package: Any) -> Tensor:
    """Which of four key heads are in which of two after pooling."""
    mha = package.MultiHeadAttention(d_model=8, n_heads=4)
    mha.k_proj.weight.copy_(torch.eye(8))
    weight: Tensor = package.mha_to_gqa(mha, 2).k_proj.weight
    return weight[::2, ::2].clone()


@torch.no_grad()
def fused_rows(package: Any) -> Tensor:
    """Which rows of the fused weight become queries, keys and values."""
    theirs = nn.MultiheadAttention(4, 2, bias=False)
    theirs.in_proj_weight.copy_(torch.arange(12.0)[:, None])
    weights = package.weights_of_torch_mha(theirs)
    names = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
    return torch.stack([weights[name][:, 0] for name in names])


def load_torch(package: Any) -> tuple[Any, ...]:
    def load(theirs: nn.MultiheadAttention) -> Any:
        ours = package.MultiHeadAttention(
            d_model=24, n_heads=6, bias=True, causal=False
        )
        ours.load_state_dict(package.weights_of_torch_mha(theirs))
        return ours

    return (load,)


def in_halves(package: Any) -> Tensor:
    """The old places of the rows of two heads of width 4."""
    rows: Tensor = package.rope_rows(torch.arange(8.0), 4, to="half")
    return rows


def reorder_and_rotate(package: Any) -> tuple[Any, ...]:
    def rotate(x: Tensor, layout: str) -> Any:
        tables = package.rope_table(torch.arange(x.shape[2]), x.shape[3])
        return package.apply_rope(x, *tables, layout=layout)

    return lambda weight, dim: package.rope_rows(weight, dim, to="half"), rotate


def dequantised(package: Any, weight: Tensor, scales: Tensor, n: int) -> Tensor:
    checkpoint = {"x": weight, "x_scale_inv": scales}
    wide = package.dequantised(checkpoint, block=n, dtype=torch.float32)
    out: Tensor = wide["x"]
    return out


def largest(package: Any) -> Tensor:
    """The largest element of a float8 weight that was 0.05 at most."""
    weight = torch.tensor([[448.0, -3.0], [20.0, 100.0]])
    scales = torch.tensor([[0.05 / 448]])
    narrow = weight.to(torch.float8_e4m3fn)
    return dequantised(package, narrow, scales, 2).max()


MISTAKES = (
    Mistake(
        id="pooling-across-groups",
        title=Text(
            en="MHA to GQA pools heads of different groups",
            zh="MHA 转 GQA 时，把不同组的头平均到了一起",
        ),
        lines=(
            Lines(
                module="models.convert",
                right="""
            groups = heads.unflatten(0, (n_kv_heads, -1))
            weights[name] = groups.mean(dim=1).flatten(0, 1)
""",
                wrong="""
            groups = heads.unflatten(0, (-1, n_kv_heads))
            weights[name] = groups.mean(dim=0).flatten(0, 1)
""",
            ),
        ),
        symptom="heads",
        shown=pooled,
        seen=Text(
            en="The new key/value head 0 is the mean of the old heads 0 and "
            "2. It is read by the query heads 0 and 1, so that it should be "
            "the mean of the old heads 0 and 1.",
            zh="新的键值头 0 成了旧头 0 和 2 的平均。读它的是查询头 0 和 1，所"
            "以该取旧头 0 和 1 的平均。",
        ),
        notice=Text(
            en="Make the heads of each group equal: then the converted layer "
            "must compute exactly the same. Further training hides the "
            "mistake, but starts from a worse point. Whoever adds query heads "
            "to a GQA model by copying old ones has to watch the same order.",
            zh="让每组之内的头完全相同，转换前后的输出就必须一模一样。继续训练"
            "会掩盖这个错误，只是起点更差。复制旧的查询头来加宽 GQA 模型时，也"
            "要注意同样的顺序。",
        ),
        same_shape=True,
        found=("https://github.com/apple/ml-hypercloning/issues/1",),
        tests=(
            "tests/models/test_convert.py::"
            "test_a_mean_is_over_the_heads_that_stand_together[2-means1]",
        ),
        law=equal_heads_pool,
        of=lambda package: (
            lambda mha: package.mha_to_gqa(mha, 2),
            filled(package.MultiHeadAttention(d_model=8, n_heads=4)),
            tokens(2, 5, 8),
            2,
        ),
        axes=(Text("new head", "新头"), Text("old head", "旧头")),
    ),
    Mistake(
        id="fused-weights-split-by-head",
        title=Text(
            en="Fused QKV weights are split in the wrong layout",
            zh="拆分融合的 QKV 权重时弄错了布局",
        ),
        lines=(
            Lines(
                module="models.convert",
                right="""
        projections = mha.in_proj_weight.chunk(3)
""",
                wrong="""
        heads = mha.in_proj_weight.unflatten(0, (mha.num_heads, 3, -1))
        projections = heads.transpose(0, 1).flatten(1, 2)
""",
            ),
        ),
        symptom="heads",
        shown=fused_rows,
        seen=Text(
            en="The fused weight holds all queries, then all keys, then all "
            "values. It is read as q, k and v of head 0, followed by those of "
            "head 1. Of twelve rows, the three projections then get {wrong}: "
            "there are keys and values among the queries.",
            zh="融合的权重里依次是全部查询、全部键、全部值；这里却当成先放头 "
            "0 的 q、k、v，再放头 1 的。共十二行，三个投影依次拿到 {wrong}：查"
            "询里混进了键和值的行。",
        ),
        notice=Text(
            en="Both layouts exist: PyTorch and GPT-2 store [Q | K | V], "
            "GPT-NeoX and BLOOM store q, k and v per head. Load the weights, "
            "and compare the outputs with those of the library that wrote "
            "them.",
            zh="两种布局都有人用：PyTorch 和 GPT-2 是 [Q | K | V]，GPT-NeoX 和"
            " BLOOM 是逐个头的 q、k、v。加载之后，要和产生这些权重的库对比输"
            "出。",
        ),
        same_shape=True,
        found=(
            "https://github.com/awslabs/slapo/pull/46",
            "https://github.com/NVIDIA-NeMo/Automodel/pull/1324",
            "https://github.com/JieShibo/MoLE/issues/9",
        ),
        tests=("tests/layers/test_mha.py::test_mha_with_the_weights_of_torch",),
        law=equals_multihead_attention,
        of=load_torch,
        axes=(Text("q, k, v", "q、k、v"), Text("row", "行")),
    ),
    Mistake(
        id="fused-slice-taken-twice",
        title=Text(
            en="Two projections are cut from the same rows of fused QKV",
            zh="拆分 QKV 权重时，两个投影切到了同一段",
        ),
        lines=(
            Lines(
                module="models.convert",
                right="""
        projections = mha.in_proj_weight.chunk(3)
""",
                wrong="""
        n, fused = mha.embed_dim, mha.in_proj_weight
        projections = (fused[:n], fused[2 * n :], fused[2 * n :])
""",
            ),
        ),
        symptom="heads",
        shown=fused_rows,
        seen=Text(
            en="Of the twelve rows of a fused weight, the three projections "
            "get {wrong}: the keys are those of the values, and the rows of "
            "the keys are lost.",
            zh="融合的权重有十二行，三个投影依次拿到 {wrong}：键拿了值的行，键"
            "自己的行丢了。",
        ),
        notice=Text(
            en="Put the parts together again: the result must be the fused "
            "weight. Use `chunk`, or `split` with the sizes, instead of "
            "slices with offsets.",
            zh="把拆开的各段再拼起来，必须和原来的融合权重一样。与其自己写下"
            "标，不如用 `chunk`，或者用 `split` 给出各段大小。",
        ),
        same_shape=True,
        found=("https://github.com/huggingface/transformers/pull/40257",),
        tests=("tests/layers/test_mha.py::test_mha_with_the_weights_of_torch",),
        law=equals_multihead_attention,
        of=load_torch,
        axes=(Text("q, k, v", "q、k、v"), Text("row", "行")),
    ),
    Mistake(
        id="rope-rows-with-other-heads",
        title=Text(
            en="RoPE rows are reordered with the wrong number of heads",
            zh="重排 RoPE 的行时用错了头数",
        ),
        lines=(
            Lines(
                module="models.convert",
                right="""
        pairs = weight.reshape(-1, head_dim // 2, 2, *columns)
""",
                wrong="""
        pairs = weight.reshape(1, -1, 2, *columns)  # as if of one head
""",
            ),
        ),
        symptom="heads",
        shown=in_halves,
        seen=Text(
            en="The rows of two heads of width 4 are put into the order "
            "{wrong} instead of {right}, as if they were one head of width 8: "
            "each head gets rows of the other.",
            zh="两个维度为 4 的头，行的顺序成了 {wrong}，应为 {right}：它们被"
            "当成一个维度为 8 的头来重排，每个头都混进了另一个头的行。",
        ),
        notice=Text(
            en="With GQA, `q_proj` has H heads and `k_proj` only K. "
            "Reordering both as H heads is right for MHA checkpoints and "
            "wrong for all others. Compare the scores before and after.",
            zh="GQA 里 `q_proj` 有 H 个头，`k_proj` 只有 K 个：都按 H 个头来重"
            "排，只有 MHA 的权重没问题。要比较重排前后的分数。",
        ),
        same_shape=True,
        found=(
            "https://github.com/Dao-AILab/flash-attention/pull/546",
            "https://github.com/huggingface/transformers/pull/31788",
        ),
        tests=(
            "tests/models/test_convert.py::test_rows_move_within_their_head",
        ),
        law=layouts_agree,
        of=reorder_and_rotate,
    ),
    Mistake(
        id="float8-scales-left-out",
        title=Text(
            en="Float8 weights are used without their scales",
            zh="用了 float8 权重，却漏掉缩放因子",
        ),
        lines=(
            Lines(
                module="models.convert",
                right="""
            wide[name] = (weight.float() * each).to(dtype)
""",
                wrong="""
            wide[name] = weight.to(dtype)
""",
            ),
        ),
        symptom="worse",
        shown=largest,
        seen=Text(
            en="The largest weight is {wrong} and should be {right}: each "
            "element that is stored in float8 has to be multiplied by the "
            "scale of its block.",
            zh="最大的权重成了 {wrong}，本该是 {right}：float8 里存的每个元"
            "素，还要乘上所在块的缩放因子。",
        ),
        notice=Text(
            en="Look at the names that loading reports as unexpected: "
            "`weight_scale_inv` among them means that the scales are dropped. "
            "In spite of its name, the weight is multiplied by it.",
            zh="看加载时报告了哪些多余的名字：其中有 `weight_scale_inv`，就说"
            "明缩放因子被丢掉了。名字里虽有 inv，用的时候却是乘。",
        ),
        same_shape=True,
        found=(
            "https://github.com/unslothai/unsloth/issues/6200",
            "https://github.com/leejet/stable-diffusion.cpp/pull/1898",
        ),
        tests=(
            "tests/models/test_convert.py::"
            "test_a_float8_checkpoint_of_deepseek_loads_and_is_right",
        ),
        law=float8_is_near,
        of=lambda package: (
            lambda weight, scales, n: dequantised(package, weight, scales, n),
        ),
    ),
)
