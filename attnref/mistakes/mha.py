"""Mistakes in multi-head attention: its heads, its mask, its dropout."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnref.mistakes.catalogue import NOTES, Lines, Mistake, Text
from attnref.mistakes.laws import (
    evaluation_repeats,
    every_weight_is_used,
    future_is_hidden,
    layer_equals_torch,
    rows_are_apart,
)


def tokens(*shape: int) -> Tensor:
    """Inputs, the same each time."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def filled(module: Any) -> Any:
    """With the same weights each time, so large that softmax decides."""
    generator = torch.Generator().manual_seed(2)
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.5, generator=generator)
    return module.double().eval()


def moved(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """1 where the output of the row moves with the input of the column."""
    before, columns = run(x), []
    for j in range(x.shape[1]):
        other = x.clone()
        other[:, j] += 1
        change = (run(other) - before).abs().amax(dim=(0, 2))
        columns.append((change > 1e-9).double())
    return torch.stack(columns, dim=1).detach()


def effects(run: Callable[[Tensor], Tensor], weights: Tensor) -> Tensor:
    """1 for each of the matrices that has an effect on the output."""
    before, found = run(weights), []
    for i in range(len(weights)):
        other = weights.clone()
        other[i] += 1
        found.append(bool((run(other) - before).abs().max() > 1e-9))
    return torch.tensor(found).double()


def mha(package: Any, **options: Any) -> Any:
    return filled(package.MultiHeadAttention(d_model=8, n_heads=2, **options))


def dependence(package: Any) -> Tensor:
    """Which of six outputs depends on which of six tokens."""
    return moved(mha(package), tokens(1, 6, 8))


def rows(package: Any) -> Tensor:
    """Which row of a batch of four has an effect on which."""
    layer = mha(package)
    return moved(
        lambda x: layer(x.transpose(0, 1)).transpose(0, 1), tokens(6, 4, 8)
    )


def outputs(package: Any) -> Tensor:
    """What the layer gives for six tokens."""
    out: Tensor = mha(package)(tokens(1, 6, 8))[0].detach()
    return out


def twice(package: Any) -> Tensor:
    """How far two calls in evaluation are apart."""
    torch.manual_seed(0)
    layer, x = mha(package, dropout=0.5), tokens(1, 6, 8)
    gap: Tensor = (layer(x) - layer(x)).abs().max().detach()
    return gap


def as_torch(package: Any) -> tuple[Any, ...]:
    return mha(package), tokens(3, 5, 8), 2, 2


def layer_and_tokens(package: Any) -> tuple[Any, ...]:
    return mha(package), tokens(3, 5, 8)


def output_and_weights(package: Any) -> tuple[Any, ...]:
    layer = mha(package)
    return lambda: layer(tokens(3, 5, 8)), layer.parameters()


MISTAKES = (
    Mistake(
        id="merge-swaps-length-and-width",
        title=Text(
            en="Heads are merged with transpose(-1, -2)",
            zh="合并各头时写成 transpose(-1, -2)",
        ),
        lines=(
            Lines(
                module="layers.mha",
                right="""
        merged = heads.transpose(1, 2).reshape(B, T, H * D)  # (B, T, H * D)
""",
                wrong="""
        merged = heads.transpose(-1, -2).contiguous().view(B, T, H * D)
""",
            ),
        ),
        symptom="heads",
        shown=dependence,
        seen=Text(
            en="The causal mask is right, and yet the first output depends on "
            "later tokens: a row of the merged tensor holds elements of many "
            "positions.",
            zh="因果掩码没有错，第一个输出却依赖后面的词元：合并之后，同一行里"
            "混进了许多位置的元素。",
        ),
        notice=Text(
            en="Change one token and look which outputs move. A sequence of "
            "one token gives the right values, so try at least two.",
            zh="改动一个词元，看哪些输出跟着变。序列只有一个词元时数值恰好是"
            "对的，所以至少用两个词元来试。",
        ),
        hidden=Text(
            en="view counts the elements. It does not know to which position "
            "or head each of them belongs.",
            zh="view 只看元素总数对不对，不管每个元素属于哪个位置、哪个头。",
        ),
        found=(
            NOTES,
            "https://github.com/wdndev/llm_interview_note/blob/"
            "448aff8139e71a20f15c1c5c570d98292b24ec9c/"
            "02.%E5%A4%A7%E8%AF%AD%E8%A8%80%E6%A8%A1%E5%9E%8B"
            "%E6%9E%B6%E6%9E%84/MHA_MQA_GQA/MHA_MQA_GQA.md",
        ),
        tests=(
            "tests/layers/test_mha.py::test_the_loop_of_mha_is_the_layer",
            "tests/layers/test_mha.py::test_mha_with_the_weights_of_torch",
        ),
        law=layer_equals_torch,
        of=as_torch,
    ),
    Mistake(
        id="merge-without-transpose",
        title=Text(
            en="Heads are merged without the transpose",
            zh="合并各头之前忘了转置",
        ),
        lines=(
            Lines(
                module="layers.mha",
                right="""
        merged = heads.transpose(1, 2).reshape(B, T, H * D)  # (B, T, H * D)
""",
                wrong="""
        merged = heads.reshape(B, T, H * D)  # (B, T, H * D)
""",
            ),
        ),
        symptom="heads",
        shown=dependence,
        seen=Text(
            en="The first outputs are made of the first head at several "
            "positions, the last ones of the last head: early outputs depend "
            "on later tokens, and one head never reaches them.",
            zh="前几个输出全由第一个头的好几个位置拼成，后几个全由最后一个头"
            "拼成：靠前的输出依赖后面的词元，另一个头则根本没有用上。",
        ),
        notice=Text(
            en="Change one token and look which outputs move. An easy training "
            "task does not show it: the output projection learns around it.",
            zh="改动一个词元，看哪些输出跟着变。简单的训练任务看不出问题：输出"
            "投影会学着适应打乱的顺序。",
        ),
        hidden=Text(
            en="(B, H, T, D) and (B, T, H * D) have the same number of "
            "elements, and reshape never refuses that.",
            zh="(B, H, T, D) 和 (B, T, H * D) 的元素个数相同，reshape 就不会"
            "报错。",
        ),
        found=(
            "https://github.com/jsbaan/transformer-from-scratch/pull/6",
            "https://github.com/ajhalthor/Transformer-Neural-Network/pull/4",
        ),
        tests=(
            "tests/layers/test_mha.py::test_the_loop_of_mha_is_the_layer",
            "tests/layers/test_mha.py::test_mha_with_the_weights_of_torch",
        ),
        law=layer_equals_torch,
        of=as_torch,
    ),
    Mistake(
        id="view-after-the-transpose",
        title=Text(
            en="view after a transpose or an expand",
            zh="转置或 expand 之后用 view",
        ),
        lines=tuple(
            Lines(
                module=f"layers.{layer}",
                right="""
        merged = heads.transpose(1, 2).reshape(B, T, H * D)  # (B, T, H * D)
""",
                wrong="""
        merged = heads.transpose(1, 2).view(B, T, H * D)  # (B, T, H * D)
""",
            )
            for layer in ("mha", "mqa", "gqa")
        ),
        symptom="error",
        shown=outputs,
        seen=Text(
            en="Six tokens are refused: {wrong}",
            zh="六个词元就报错：{wrong}",
        ),
        notice=Text(
            en="Try a prompt of several tokens with several heads: one token, "
            "or one head, passes, and so does a decode loop. In GQA, expand "
            "and view pass for K = 1 and K = H alone. reshape copies where it "
            "has to.",
            zh="用好几个词元、好几个头来试：只有一个词元或者只有一个头时不会报"
            "错，逐词元解码也不会。GQA 里 expand 之后再 view，只有 K = 1 和 "
            "K = H 能通过。reshape 会在必要时复制。",
        ),
        hidden=None,
        found=(
            NOTES,
            "https://github.com/facebookresearch/fairseq/issues/2598",
        ),
        tests=(
            "tests/layers/test_mha.py::test_the_loop_of_mha_is_the_layer",
            "tests/layers/test_mha.py::test_mha_with_the_weights_of_torch",
        ),
        law=layer_equals_torch,
        of=as_torch,
    ),
    Mistake(
        id="split-by-view-alone",
        title=Text(
            en="Heads are split by view(B, H, T, D) alone",
            zh="拆分各头只用 view(B, H, T, D)，没有转置",
        ),
        lines=(
            Lines(
                module="layers.mha",
                right="""
        q = self.q_proj(x).view(B, T, H, D).transpose(1, 2)  # (B, H, T, D)
        k = self.k_proj(x).view(B, T, H, D).transpose(1, 2)  # (B, H, T, D)
        v = self.v_proj(x).view(B, T, H, D).transpose(1, 2)  # (B, H, T, D)
""",
                wrong="""
        q = self.q_proj(x).view(B, H, T, D)
        k = self.k_proj(x).view(B, H, T, D)
        v = self.v_proj(x).view(B, H, T, D)
""",
            ),
        ),
        symptom="heads",
        shown=dependence,
        seen=Text(
            en="Each of the two heads sees half of the sequence, cut into "
            "pieces: the first output depends on tokens of both halves.",
            zh="两个头各自只看到半个序列，而且被切成了碎片：第一个输出同时依赖"
            "前后两半里的词元。",
        ),
        notice=Text(
            en="Change the last token: no output before it may move. Here the "
            "one before it does.",
            zh="改掉最后一个词元，它前面的输出一个都不该变；这里前一个输出也跟"
            "着变了。",
        ),
        hidden=Text(
            en="The sizes asked for are right. The view cuts up the sequence "
            "where the transpose would have cut up the width.",
            zh="要的尺寸都对。只是这个 view 切开的是序列，而先拆再转置切开的才"
            "是宽度。",
        ),
        found=(
            "https://github.com/reczoo/FuxiCTR/issues/30",
            "https://github.com/hyunwoongko/transformer/issues/15",
        ),
        tests=(
            "tests/layers/test_mha.py::test_the_loop_of_mha_is_the_layer",
            "tests/layers/test_mha.py::test_mha_with_the_weights_of_torch",
        ),
        law=future_is_hidden,
        of=layer_and_tokens,
    ),
    Mistake(
        id="batch-and-heads-swapped",
        title=Text(
            en="(B, H) is read as (H, B): rows of the batch are mixed",
            zh="把 (B, H) 当成 (H, B)，批次的各行串在了一起",
        ),
        lines=(
            Lines(
                module="layers.mha",
                right="""
        merged = heads.transpose(1, 2).reshape(B, T, H * D)  # (B, T, H * D)
""",
                wrong="""
        heads = heads.reshape(H, B, T, D)
        merged = heads.permute(1, 2, 0, 3).reshape(B, T, H * D)
""",
            ),
        ),
        symptom="heads",
        shown=rows,
        seen=Text(
            en="A row of the batch should depend on itself alone. Here its "
            "output is made of heads of other rows.",
            zh="批次里的每一行本该只依赖自己，这里它的输出却由别的行的头拼成。",
        ),
        notice=Text(
            en="Run each row alone and compare it with the batch. With one row "
            "or one head everything is right.",
            zh="把每一行单独跑一遍，和整个批次的结果对比。只有一行或者只有一个"
            "头时，一切都是对的。",
        ),
        hidden=Text(
            en="B * H is flattened into one axis and taken apart again in the "
            "other order: the products are equal.",
            zh="B * H 先压成一个轴，再按相反的顺序拆开：乘积相等，形状也就对。",
        ),
        found=(
            "https://github.com/gazelle93/"
            "Transformer-Various-Positional-Encoding/issues/1",
            "https://github.com/lsdefine/attention-is-all-you-need-keras/"
            "issues/36",
        ),
        tests=(
            "tests/layers/test_mha.py::test_the_loop_of_mha_is_the_layer",
            "tests/layers/test_mha.py::"
            "test_a_right_padded_row_is_the_row_alone",
        ),
        law=rows_are_apart,
        of=layer_and_tokens,
    ),
    Mistake(
        id="batch-read-as-sequence",
        title=Text(
            en="Attention runs across the batch: batch_first is not set",
            zh="在批次上做了注意力：漏了 batch_first",
        ),
        lines=(
            Lines(
                module="layers.mha",
                right="""
        B, T, E = x.shape
""",
                wrong="""
        x = x.transpose(0, 1)  # what comes first is read as the sequence
        B, T, E = x.shape
""",
            ),
            Lines(
                module="layers.mha",
                right="""
        return out  # (B, T, E)
""",
                wrong="""
        return out.transpose(0, 1)
""",
            ),
        ),
        symptom="heads",
        shown=rows,
        seen=Text(
            en="A row of the batch should depend on itself alone. Here it "
            "depends on the rows before it, as if they were tokens.",
            zh="批次里的每一行本该只依赖自己，这里却依赖排在前面的各行，就像它"
            "们是词元一样。",
        ),
        notice=Text(
            en="Run each row alone and compare it with the batch. "
            "nn.MultiheadAttention expects (T, B, E) unless it is built with "
            "batch_first=True. A mask raises an error, unless B = T.",
            zh="把每一行单独跑一遍，和整个批次的结果对比。"
            "nn.MultiheadAttention 默认要的是 (T, B, E)，构造时写了 "
            "batch_first=True 才是 (B, T, E)。传了掩码就会报错，除非 B = T。",
        ),
        hidden=None,
        found=(
            "https://github.com/om-ai-lab/OmDet/issues/19",
            "https://github.com/aipixel/AEMatter/issues/3",
        ),
        tests=(
            "tests/layers/test_mha.py::test_the_loop_of_mha_is_the_layer",
            "tests/layers/test_mha.py::"
            "test_a_right_padded_row_is_the_row_alone",
        ),
        law=rows_are_apart,
        of=layer_and_tokens,
    ),
    Mistake(
        id="output-projection-missing",
        title=Text(
            en="The output projection is forgotten",
            zh="忘了输出投影",
        ),
        lines=(
            Lines(
                module="layers.mha",
                right="""
        out: Tensor = self.o_proj(merged)
""",
                wrong="""
        out: Tensor = merged
""",
            ),
        ),
        symptom="worse",
        shown=outputs,
        seen=Text(
            en="The heads stand side by side and are never mixed: the outputs "
            "differ by up to {change}.",
            zh="各个头只是并排放着，从来没有混合过：输出最多差 {change}。",
        ),
        notice=Text(
            en="Look for parameters without a gradient after backward: the "
            "weight of the output projection has none.",
            zh="反向传播之后找一找哪些参数没有梯度：输出投影的权重就没有。",
        ),
        hidden=Text(
            en="H * D is usually equal to the model width, so the merged heads "
            "already have the shape of the output.",
            zh="H * D 通常正好等于模型维度，合并后的形状本来就和输出一样。",
        ),
        found=(
            NOTES,
            "https://github.com/Kyubyong/transformer/issues/117",
            "https://github.com/jwallbridge/translob/issues/4",
        ),
        tests=(
            "tests/layers/test_mha.py::test_the_loop_of_mha_is_the_layer",
            "tests/layers/test_mha.py::test_mha_with_the_weights_of_torch",
        ),
        law=every_weight_is_used,
        of=output_and_weights,
    ),
    Mistake(
        id="values-from-the-key-projection",
        title=Text(
            en="The values are projected with k_proj",
            zh="值用了 k_proj 来投影",
        ),
        lines=(
            Lines(
                module="layers.mha",
                right="""
        v = self.v_proj(x).view(B, T, H, D).transpose(1, 2)  # (B, H, T, D)
""",
                wrong="""
        v = self.k_proj(x).view(B, T, H, D).transpose(1, 2)  # (B, H, T, D)
""",
            ),
        ),
        symptom="worse",
        shown=outputs,
        seen=Text(
            en="Keys and values are the same tensor. The outputs differ by up "
            "to {change}.",
            zh="键和值成了同一个张量，输出最多差 {change}。",
        ),
        notice=Text(
            en="Compare with PyTorch's attention on the layer's own "
            "projections, or look for a parameter without a gradient.",
            zh="用这一层自己的投影，和 PyTorch 的注意力对比；或者找一找没有梯度"
            "的参数。",
        ),
        hidden=Text(
            en="Both projections have the same sizes.",
            zh="两个投影的尺寸完全一样。",
        ),
        found=("https://github.com/yflyzhang/AnnotatedTransformer/issues/1",),
        tests=(
            "tests/layers/test_mha.py::test_the_loop_of_mha_is_the_layer",
            "tests/layers/test_mha.py::test_mha_with_the_weights_of_torch",
        ),
        law=layer_equals_torch,
        of=as_torch,
    ),
    Mistake(
        id="dropout-in-evaluation",
        title=Text(
            en="Dropout is active in evaluation",
            zh="评估时 dropout 仍然生效",
        ),
        lines=(
            Lines(
                module="layers.mha",
                right="""
        dropout = self.dropout if self.training else 0.0
""",
                wrong="""
        dropout = self.dropout
""",
            ),
        ),
        symptom="worse",
        shown=twice,
        seen=Text(
            en="After eval(), two calls with the same input differ by {wrong}; "
            "they should differ by {right}.",
            zh="调用 eval() 之后，同一个输入跑两遍相差 {wrong}，本该相差 "
            "{right}。",
        ),
        notice=Text(
            en="Call the layer twice after eval() and compare the results bit "
            "for bit. F.scaled_dot_product_attention is a function: it does "
            "not know whether the module is in training.",
            zh="调用 eval() 之后跑两遍，结果应当逐比特相同。"
            "F.scaled_dot_product_attention 只是一个函数，它不知道模块是否处于"
            "训练模式。",
        ),
        hidden=Text(
            en="Dropout changes values, never sizes.",
            zh="dropout 只改数值，不改尺寸。",
        ),
        found=(
            "https://github.com/karpathy/nanoGPT/pull/240",
            "https://github.com/huggingface/pytorch-image-models/pull/1978",
            "https://github.com/meta-pytorch/torchtune/issues/1791",
        ),
        tests=("tests/layers/test_mha.py::test_dropout_is_for_training",),
        law=evaluation_repeats,
        of=lambda package: (mha(package, dropout=0.5), tokens(3, 5, 8)),
    ),
    Mistake(
        id="not-causal",
        title=Text(
            en="A decoder layer has no causal mask",
            zh="解码器层没有因果掩码",
        ),
        lines=(
            Lines(
                module="layers.mha",
                right="""
            causal=self.causal,
""",
                wrong="""
            causal=False,
""",
            ),
        ),
        symptom="future",
        shown=dependence,
        seen=Text(
            en="Every output depends on every token, those after it included.",
            zh="每个输出都依赖所有词元，包括排在它后面的。",
        ),
        notice=Text(
            en="The training loss falls far below what is possible, and the "
            "model generates nonsense. Change the last token: no output before "
            "it may move.",
            zh="训练损失低得不合理，生成的却是胡话。改掉最后一个词元，它前面的"
            "输出一个都不该变。",
        ),
        hidden=Text(
            en="A mask has no effect on any size.",
            zh="有没有掩码，尺寸都一样。",
        ),
        found=(
            NOTES,
            "https://github.com/paiml/entrenar/issues/310",
            "https://github.com/huggingface/transformers/issues/48745",
        ),
        tests=(
            "tests/layers/test_mha.py::test_the_loop_of_mha_is_the_layer",
            "tests/layers/test_mha.py::test_mha_with_the_weights_of_torch",
        ),
        law=future_is_hidden,
        of=layer_and_tokens,
    ),
    Mistake(
        id="causal-in-training-only",
        title=Text(
            en="The causal mask is left out in evaluation",
            zh="因果掩码只在训练时生效",
        ),
        lines=(
            Lines(
                module="layers.mha",
                right="""
            causal=self.causal,
""",
                wrong="""
            causal=self.causal if self.training else False,
""",
            ),
        ),
        symptom="future",
        shown=dependence,
        seen=Text(
            en="After eval(), every output depends on every token. In training "
            "the same layer is causal.",
            zh="调用 eval() 之后，每个输出都依赖所有词元；训练时同一层却遵守因"
            "果掩码。",
        ),
        notice=Text(
            en="Without dropout, train() and eval() have to give the same. "
            "Another sign is a validation loss far below the training loss.",
            zh="没有 dropout 时，train() 和 eval() 的结果必须一样。另一个迹象："
            "验证损失远低于训练损失。",
        ),
        hidden=Text(
            en="A mask has no effect on any size, and the tests of a layer "
            "that was just made run in training mode.",
            zh="有没有掩码，尺寸都一样；而且刚建好的层处于训练模式，测试跑的正"
            "是这一种。",
        ),
        found=(
            "https://github.com/shiyu-coder/Kronos/issues/199",
            "https://github.com/pytorch/tutorials/blob/"
            "1faab41b059aa60b24164a042ffde043fe8316db/intermediate_source/"
            "scaled_dot_product_attention_tutorial.py",
        ),
        tests=(
            "tests/laws/test_laws.py::"
            "test_a_token_reaches_those_that_see_it_and_no_other[mha, room]",
        ),
        law=future_is_hidden,
        of=layer_and_tokens,
    ),
)
