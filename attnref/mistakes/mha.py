"""Mistakes in multi-head attention: its heads, its mask, its dropout."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnref.mistakes.catalogue import Lines, Mistake, Text
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


@torch.no_grad()
def reached(layer: Any, x: Tensor, n_heads: int) -> Tensor:
    """1 where an element of the output depends on the values of a head."""
    before, columns = layer(x), []
    for weight in layer.v_proj.weight.chunk(n_heads):
        weight += 1
        columns.append((layer(x) - before).abs().amax(dim=(0, 1)) > 1e-9)
        weight -= 1
    return torch.stack(columns, dim=1).double()


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


def last_output(package: Any) -> Tensor:
    """What the layer gives for the last of six tokens."""
    out: Tensor = mha(package)(tokens(1, 6, 8))[0, -1].detach()
    return out


def heads_mixed(package: Any) -> Tensor:
    """Which of the two heads reaches which of eight elements of the output."""
    return reached(mha(package), tokens(1, 6, 8), 2).mT


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


TOKENS = Text("output", "输出"), Text("token", "token")
ROWS = (
    Text("row of the output", "输出的行"),
    Text("row of the input", "输入的行"),
)


def in_layers(
    *pairs: tuple[str, str],
    layers: tuple[str, ...] = ("mha", "mqa", "gqa", "cross"),
) -> tuple[Lines, ...]:
    """Right and wrong lines that several layers have."""
    return tuple(
        Lines(f"layers.{layer}", right, wrong)
        for layer in layers
        for right, wrong in pairs
    )


MISTAKES = (
    Mistake(
        id="merge-swaps-length-and-width",
        title=Text(
            en="Heads are merged with transpose(-1, -2)",
            zh="合并各头时写成 transpose(-1, -2)",
        ),
        lines=(
            Lines(
                module="core.heads",
                right="""
    return heads.transpose(1, 2).reshape(B, T, H * D)  # (B, T, H * D)
""",
                wrong="""
    return heads.transpose(-1, -2).contiguous().view(B, T, H * D)
""",
            ),
        ),
        symptom="heads",
        shown=dependence,
        seen=Text(
            en="The causal mask is right, and yet the first output depends on "
            "later tokens: each row of the merged tensor holds elements of "
            "many positions.",
            zh="因果掩码没有错，第一个输出却依赖后面的 token：合并之后，同一行"
            "里混进了许多位置的元素。",
        ),
        notice=Text(
            en="Change one token and see which outputs change. A sequence of "
            "one token gives the right values, so use at least two tokens.",
            zh="改动一个 token，看哪些输出跟着变。序列只有一个 token 时数值恰"
            "好是对的，所以至少用两个 token 来试。",
        ),
        same_shape=True,
        found=(
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
        axes=TOKENS,
    ),
    Mistake(
        id="merge-without-transpose",
        title=Text(
            en="Heads are merged without the transpose",
            zh="合并各头之前忘了转置",
        ),
        lines=(
            Lines(
                module="core.heads",
                right="""
    return heads.transpose(1, 2).reshape(B, T, H * D)  # (B, T, H * D)
""",
                wrong="""
    return heads.reshape(B, T, H * D)  # (B, T, H * D)
""",
            ),
        ),
        symptom="heads",
        shown=dependence,
        seen=Text(
            en="Each output consists of one head at two positions: the first "
            "three outputs come from the first head, the last three from the "
            "second. So early outputs depend on later tokens, and no output "
            "contains both heads.",
            zh="每个输出都由同一个头的两个位置拼成：前三个输出全来自第一个头，"
            "后三个全来自第二个头。于是靠前的输出依赖后面的 token，而且没有一"
            "个输出同时包含两个头。",
        ),
        notice=Text(
            en="Change one token and see which outputs change. An easy "
            "training task does not show the mistake, because the output "
            "projection learns to compensate for it.",
            zh="改动一个 token，看哪些输出跟着变。简单的训练任务看不出问题：输"
            "出投影会学着适应打乱的顺序。",
        ),
        same_shape=True,
        found=(
            "https://github.com/jsbaan/transformer-from-scratch/pull/6",
            "https://github.com/ajhalthor/Transformer-Neural-Network/pull/4",
            "https://github.com/649453932/"
            "Chinese-Text-Classification-Pytorch/issues/10",
        ),
        tests=(
            "tests/layers/test_mha.py::test_the_loop_of_mha_is_the_layer",
            "tests/layers/test_mha.py::test_mha_with_the_weights_of_torch",
        ),
        law=layer_equals_torch,
        of=as_torch,
        axes=TOKENS,
    ),
    Mistake(
        id="view-after-the-transpose",
        title=Text(
            en="view after a transpose or expand, without contiguous()",
            zh="转置或 expand 之后直接 view，没有 contiguous()",
        ),
        lines=(
            Lines(
                module="core.heads",
                right="""
    return heads.transpose(1, 2).reshape(B, T, H * D)  # (B, T, H * D)
""",
                wrong="""
    return heads.transpose(1, 2).view(B, T, H * D)  # (B, T, H * D)
""",
            ),
        ),
        symptom="error",
        shown=last_output,
        seen=Text(
            en="With six tokens and two heads, PyTorch raises an error: "
            "{wrong}",
            zh="六个 token、两个头就报错：{wrong}",
        ),
        notice=Text(
            en="Use a prompt of several tokens and several heads. With one "
            "head, or with one token as in a decode loop, `view` succeeds. In "
            "GQA, `expand` followed by `view` succeeds only for K = 1 and K = "
            "H. `reshape` copies where it has to.",
            zh="用好几个 token、好几个头来试：只有一个头，或者像逐 token 解码"
            "那样只有一个 token 时，`view` 不会报错。GQA 里 `expand` 之后再 "
            "`view`，只有 K = 1 和 K = H 时能通过。`reshape` 会在必要时复制。",
        ),
        same_shape=False,
        found=("https://github.com/facebookresearch/fairseq/issues/2598",),
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
                module="core.heads",
                right="""
    return x.view(B, T, H, D).transpose(1, 2)  # (B, H, T, D)
""",
                wrong="""
    return x.view(B, H, T, D)
""",
            ),
        ),
        symptom="heads",
        shown=dependence,
        seen=Text(
            en="Each head should get half the width of every token. Instead "
            "it gets half of the sequence, with each token cut in two. The "
            "first output depends on tokens of both halves.",
            zh="每个头本该分到所有 token 的一半维度，现在分到的却是半个序列，"
            "每个 token 还被切成两段。第一个输出同时依赖前后两半里的 token。",
        ),
        notice=Text(
            en="Change the last token: no output before it may change, but "
            "here the one before it does.",
            zh="改掉最后一个 token，它前面的输出一个都不该变；这里前一个输出也"
            "跟着变了。",
        ),
        same_shape=True,
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
        axes=TOKENS,
    ),
    Mistake(
        id="batch-and-heads-swapped",
        title=Text(
            en="(B, H) is read as (H, B): rows of the batch are mixed",
            zh="把 (B, H) 当成 (H, B)，批次的各行串在了一起",
        ),
        lines=(
            Lines(
                module="core.heads",
                right="""
    return heads.transpose(1, 2).reshape(B, T, H * D)  # (B, T, H * D)
""",
                wrong="""
    heads = heads.reshape(H, B, T, D)
    return heads.permute(1, 2, 0, 3).reshape(B, T, H * D)
""",
            ),
        ),
        symptom="heads",
        shown=rows,
        seen=Text(
            en="Each row of the batch should depend on itself alone. Here its "
            "output is put together from the heads of two rows.",
            zh="批次里的每一行本该只依赖自己，这里它的输出却由两行的头拼成。",
        ),
        notice=Text(
            en="Run each row alone and compare the result with that of the "
            "batch. With one row or one head, the result is right.",
            zh="把每一行单独跑一遍，和整个批次的结果对比。只有一行或者只有一个"
            "头时，结果是对的。",
        ),
        same_shape=True,
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
        axes=ROWS,
    ),
    Mistake(
        id="batch-read-as-sequence",
        title=Text(
            en="Attention runs across the batch: batch_first is not set",
            zh="在批次上做了注意力：漏了 batch_first",
        ),
        lines=in_layers(
            (
                """
        q = split_heads(self.q_proj(x), H)  # (B, H, T, D)
""",
                """
        x = x.transpose(0, 1)  # what comes first is read as the sequence
        q = split_heads(self.q_proj(x), H)  # (B, H, T, D)
""",
            ),
            (
                """
        return out  # (B, T, E)
""",
                """
        return out.transpose(0, 1)
""",
            ),
            layers=("mha", "mqa", "gqa"),
        ),
        symptom="heads",
        shown=rows,
        seen=Text(
            en="Each row of the batch should depend on itself alone. Here it "
            "also depends on the rows before it, as if the rows were tokens.",
            zh="批次里的每一行本该只依赖自己，这里却还依赖排在前面的各行：行被"
            "当成了 token。",
        ),
        notice=Text(
            en="Run each row alone and compare the result with that of the "
            "batch. `nn.MultiheadAttention` expects `(T, B, E)` unless it is "
            "built with `batch_first=True`. A mask raises an error unless B = "
            "T.",
            zh="把每一行单独跑一遍，和整个批次的结果对比。"
            "`nn.MultiheadAttention` 默认要的是 `(T, B, E)`，构造时写了 "
            "`batch_first=True` 才是 `(B, T, E)`。传了掩码就会报错，除非 B = "
            "T。",
        ),
        same_shape=False,
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
        axes=ROWS,
    ),
    Mistake(
        id="output-projection-missing",
        title=Text(
            en="The output projection is forgotten",
            zh="忘了输出投影",
        ),
        lines=in_layers(
            (
                """
        out: Tensor = self.o_proj(merge_heads(heads))
""",
                """
        out: Tensor = merge_heads(heads)
""",
            ),
        ),
        symptom="worse",
        shown=heads_mixed,
        seen=Text(
            en="The heads stand side by side and are never mixed: each "
            "element of the output depends on one head only. With the "
            "projection, each element depends on both.",
            zh="各个头只是并排放着，从来没有混合：输出的每个元素只依赖一个头。"
            "有输出投影时，每个元素两个头都依赖。",
        ),
        notice=Text(
            en="Look for parameters without a gradient after backward: the "
            "weight of `o_proj` has none.",
            zh="反向传播之后找一找哪些参数没有梯度：`o_proj` 的权重就没有。",
        ),
        same_shape=True,
        found=(
            "https://github.com/Kyubyong/transformer/issues/117",
            "https://github.com/jwallbridge/translob/issues/4",
        ),
        tests=(
            "tests/layers/test_mha.py::test_the_loop_of_mha_is_the_layer",
            "tests/layers/test_mha.py::test_mha_with_the_weights_of_torch",
        ),
        law=every_weight_is_used,
        of=output_and_weights,
        axes=(Text("head", "头"), Text("element of the output", "输出的元素")),
    ),
    Mistake(
        id="values-from-the-key-projection",
        title=Text(
            en="The values are projected with k_proj",
            zh="值用了 k_proj 来投影",
        ),
        lines=tuple(
            Lines(
                module=f"layers.{layer}",
                right=line.format("v_proj"),
                wrong=line.format("k_proj"),
            )
            for layer, line in {
                "mha": """
        v = split_heads(self.{}(x), H)  # (B, H, T, D)
""",
                "mqa": """
        v = self.{}(x).unsqueeze(1)  # (B, 1, T, D)
""",
                "gqa": """
        v = split_heads(self.{}(x), K)  # (B, K, T, D)
""",
                "cross": """
            v = split_heads(self.{}(context), K)  # (B, K, S, D)
""",
            }.items()
        ),
        symptom="worse",
        shown=last_output,
        seen=Text(
            en="Keys and values are the same tensor, and `v_proj` has no "
            "effect. The last output differs by up to {change}.",
            zh="键和值成了同一个张量，`v_proj` 不起作用。最后一个输出最多差 "
            "{change}。",
        ),
        notice=Text(
            en="Look for parameters without a gradient after backward: the "
            "weight of `v_proj` has none. Or compare with PyTorch's attention "
            "on the layer's own projections.",
            zh="反向传播之后找一找哪些参数没有梯度：`v_proj` 的权重就没有。也"
            "可以用这一层自己的投影，和 PyTorch 的注意力对比。",
        ),
        same_shape=True,
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
                module="caches.past",
                right="""
    dropout = layer.dropout if layer.training else 0.0
""",
                wrong="""
    dropout = layer.dropout
""",
            ),
        ),
        symptom="worse",
        shown=twice,
        seen=Text(
            en="After `eval()`, two calls with the same input differ by "
            "{wrong}. The difference should be {right}.",
            zh="调用 `eval()` 之后，同一个输入跑两遍，结果相差 {wrong}，本该相"
            "差 {right}。",
        ),
        notice=Text(
            en="Call the layer twice after `eval()` and compare the results "
            "bit for bit. `F.scaled_dot_product_attention` is a function: it "
            "does not know whether the module is in training.",
            zh="调用 `eval()` 之后跑两遍，结果应当逐比特相同。"
            "`F.scaled_dot_product_attention` 只是一个函数，它不知道模块是否处"
            "于训练模式。",
        ),
        same_shape=True,
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
                module="caches.past",
                right="""
        causal=layer.causal,
""",
                wrong="""
        causal=False,
""",
            ),
        ),
        symptom="future",
        shown=dependence,
        seen=Text(
            en="Every output depends on every token, including those after it.",
            zh="每个输出都依赖所有 token，包括排在它后面的。",
        ),
        notice=Text(
            en="The training loss falls far below what is possible, and the "
            "model generates nonsense. Change the last token: no output "
            "before it may change.",
            zh="训练损失低得不合理，生成的却是胡话。改掉最后一个 token，它前面"
            "的输出一个都不该变。",
        ),
        same_shape=True,
        found=(
            "https://github.com/paiml/entrenar/issues/310",
            "https://github.com/huggingface/transformers/issues/48745",
        ),
        tests=(
            "tests/layers/test_mha.py::test_the_loop_of_mha_is_the_layer",
            "tests/layers/test_mha.py::test_mha_with_the_weights_of_torch",
        ),
        law=future_is_hidden,
        of=layer_and_tokens,
        axes=TOKENS,
    ),
    Mistake(
        id="causal-in-training-only",
        title=Text(
            en="The causal mask is left out in evaluation",
            zh="因果掩码只在训练时生效",
        ),
        lines=(
            Lines(
                module="caches.past",
                right="""
        causal=layer.causal,
""",
                wrong="""
        causal=layer.causal if layer.training else False,
""",
            ),
        ),
        symptom="future",
        shown=dependence,
        seen=Text(
            en="After `eval()`, every output depends on every token. In "
            "training the same layer is causal.",
            zh="调用 `eval()` 之后，每个输出都依赖所有 token；训练时同一层却遵"
            "守因果掩码。",
        ),
        notice=Text(
            en="Without dropout, `train()` and `eval()` must give the same "
            "outputs. Another sign is a validation loss far below the "
            "training loss.",
            zh="没有 dropout 时，`train()` 和 `eval()` 的输出必须一样。另一个"
            "迹象：验证损失远低于训练损失。",
        ),
        same_shape=True,
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
        axes=TOKENS,
    ),
)
