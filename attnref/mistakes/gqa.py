"""Mistakes in grouped-query attention: which head reads which."""

from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.laws import (
    every_weight_is_used,
    head_width_is_free,
    layer_equals_torch,
    pads_are_unseen,
    past_is_seen,
)
from attnref.mistakes.mha import TOKENS, effects, filled, moved, reached, tokens
from attnref.mistakes.mqa import matrices


def gqa(package: Any, n_heads: int = 4, n_kv_heads: int = 2) -> Any:
    return filled(
        package.GroupedQueryAttention(
            d_model=8, n_heads=n_heads, n_kv_heads=n_kv_heads
        )
    )


@torch.no_grad()
def heads_read(package: Any) -> Tensor:
    """Which of eight query heads reads which of four key/value heads."""
    layer, x = gqa(package, 8, 4), tokens(1, 6, 8)
    layer.o_proj.weight.copy_(torch.eye(8))  # the heads, side by side
    return reached(layer, x, 4)


def query_rows(package: Any) -> Tensor:
    layer = package.GroupedQueryAttention(
        d_model=24, n_heads=4, n_kv_heads=2, head_dim=5
    )
    return torch.tensor(float(layer.q_proj.out_features))


def query_heads(package: Any) -> Tensor:
    """Which of the four query matrices has an effect on the output."""
    run, (wq,) = loop_and_queries(package)
    return effects(run, wq)


def loop_and_queries(package: Any) -> tuple[Any, ...]:
    wq, *rest = matrices((4, 8, 2), (2, 8, 2), (2, 8, 2), (8, 8))

    def run(wq: Tensor = wq) -> Tensor:
        out: Tensor = package.grouped_query_loop(tokens(1, 6, 8), wq, *rest)
        return out

    return run, [wq]


def dependence(package: Any) -> Tensor:
    """Which of six outputs depends on which of six tokens."""
    return moved(gqa(package), tokens(1, 6, 8))


def with_pads(package: Any) -> Any:
    """The layer as a function of its input and of what is no pad."""
    layer = gqa(package)
    return lambda x, valid: layer(x, mask=package.padding_mask(valid))


def padded(package: Any) -> Tensor:
    """Which output depends on which token, if the first two are pads."""
    valid, run = torch.arange(6)[None] >= 2, with_pads(package)
    return moved(lambda x: run(x, valid), tokens(1, 6, 8))


@torch.no_grad()
def exchanged(package: Any) -> Tensor:
    """How far outputs move if two query heads of a group change places."""
    layer, x = gqa(package), tokens(1, 6, 8)
    before = layer(x)
    layer.q_proj.weight.copy_(layer.q_proj.weight[[2, 3, 0, 1, 4, 5, 6, 7]])
    change: Tensor = (layer(x) - before).abs().max()
    return change


MISTAKES = (
    Mistake(
        id="group-found-by-number",
        title=Text(
            en="The key/value head is h // K instead of h // (H // K)",
            zh="键值头的下标写成 h // K，而不是 h // (H // K)",
        ),
        lines=(
            Lines(
                module="layers.gqa",
                right="""
        heads = self_attention(
            self, q, k, v, mask=mask, cache=cache, positions=positions
        )  # (B, H, T, D)
""",
                wrong="""
        groups = [h // K for h in range(H)]
        k, v = k[:, groups], v[:, groups]
        heads = self_attention(
            self, q, k, v, mask=mask, cache=cache, positions=positions
        )  # (B, H, T, D)
""",
            ),
        ),
        symptom="heads",
        shown=heads_read,
        seen=Text(
            en="Each of four key/value heads should be read by two of eight "
            "query heads. Here four query heads read the first, four read the "
            "second, and none reads the other two.",
            zh="八个查询头、四个键值头，本该每两个查询头读一个。这里却是四个读"
            "第一个，四个读第二个，另外两个键值头没有查询头来读。",
        ),
        notice=Text(
            en="Test with fewer query heads per group than groups. If both "
            "numbers are equal, as for 64 and 8 heads, the formula gives the "
            "right result by chance; if a group is larger, it raises an index "
            "error.",
            zh="用组内头数少于组数的配置来测。两者相等时（比如 64 个查询头、8 "
            "个键值头）恰好是对的，组内头数更多时则会下标越界。",
        ),
        same_shape=False,
        found=(
            "https://github.com/PSAL-POSTECH/ONNXim/issues/33",
            "https://github.com/HazyResearch/HipKittens/pull/22",
        ),
        tests=("tests/layers/test_gqa.py::test_the_loop_of_gqa_is_the_layer",),
        law=layer_equals_torch,
        of=lambda package: (gqa(package, 8, 4), tokens(3, 5, 8), 8, 4),
        axes=(Text("query head", "查询头"), Text("key/value head", "键值头")),
    ),
    Mistake(
        id="head-width-from-the-model",
        title=Text(
            en="head_dim is always d_model // n_heads",
            zh="head_dim 一律取 d_model // n_heads",
        ),
        lines=(
            Lines(
                module="layers.gqa",
                right="""
            d_model, n_heads, n_kv_heads, head_dim, dropout, rope_theta, attend
        )
""",
                wrong="""
            d_model, n_heads, n_kv_heads, None, dropout, rope_theta, attend
        )  # d_model // n_heads
""",
            ),
        ),
        symptom="error",
        shown=query_rows,
        seen=Text(
            en="For 4 heads of width 5, `q_proj` has {wrong} rows instead of "
            "{right}, and the weights of such a model do not load.",
            zh="4 个维度为 5 的头，`q_proj` 却是 {wrong} 行，而不是 {right} "
            "行：这种模型的权重加载不进来。",
        ),
        notice=Text(
            en="Look for `head_dim` in the configuration of the checkpoint: "
            "for Qwen3-32B it is 128, while 5120 / 64 is 80.",
            zh="看权重的配置里有没有 `head_dim`：Qwen3-32B 是 128，而 5120 / "
            "64 是 80。",
        ),
        same_shape=True,
        found=(
            "https://github.com/NVIDIA/TensorRT-LLM/issues/5912",
            "https://github.com/vllm-project/speculators/pull/134",
        ),
        tests=(
            "tests/models/test_convert.py::"
            "test_queries_and_output_are_kept[2-False]",
        ),
        law=head_width_is_free,
        of=lambda package: (
            lambda head_dim: package.GroupedQueryAttention(
                d_model=24, n_heads=6, n_kv_heads=2, head_dim=head_dim
            ),
            6,
        ),
    ),
    Mistake(
        id="queries-of-the-first-group",
        title=Text(
            en="Every group uses the query heads of the first group",
            zh="每一组用的都是第一组的查询头",
        ),
        lines=(
            Lines(
                module="layers.gqa",
                right="""
        for h in range(g * H // K, (g + 1) * H // K):
            q = x @ wq[h]  # (B, T, D)
""",
                wrong="""
        for i in range(H // K):
            q = x @ wq[i]  # (B, T, D)
""",
            ),
        ),
        symptom="heads",
        shown=query_heads,
        seen=Text(
            en="The query matrices of the second group have no effect: both "
            "groups use those of the first.",
            zh="第二组的查询矩阵不起作用：两组用的都是第一组的。",
        ),
        notice=Text(
            en="Look for query weights without a gradient after backward.",
            zh="反向传播之后，找一找没有梯度的查询权重。",
        ),
        same_shape=True,
        found=(),
        tests=("tests/layers/test_gqa.py::test_the_loop_of_gqa_is_the_layer",),
        law=every_weight_is_used,
        of=loop_and_queries,
    ),
    Mistake(
        id="attention-across-heads",
        title=Text(
            en="Attention runs across heads: the transpose is missing",
            zh="在头之间做了注意力：漏了转置",
        ),
        lines=(
            Lines(
                module="layers.gqa",
                right="""
        q = split_heads(self.q_proj(x), H)  # (B, H, T, D)
        k = split_heads(self.k_proj(x), K)  # (B, K, T, D)
        v = split_heads(self.v_proj(x), K)  # (B, K, T, D)
""",
                wrong="""
        q = self.q_proj(x).unflatten(2, (H, -1))  # (B, T, H, D)
        k = self.k_proj(x).unflatten(2, (K, -1))  # (B, T, K, D)
        v = self.v_proj(x).unflatten(2, (K, -1))  # (B, T, K, D)
""",
            ),
            Lines(
                module="layers.gqa",
                right="""
        heads = self_attention(
            self, q, k, v, mask=mask, cache=cache, positions=positions
        )  # (B, H, T, D)
        out: Tensor = self.o_proj(merge_heads(heads))
""",
                wrong="""
        k = k.repeat_interleave(H // K, dim=2)
        v = v.repeat_interleave(H // K, dim=2)
        heads = self.attend(q, k, v)  # (B, T, H, D)
        out: Tensor = self.o_proj(heads.flatten(2))
""",
            ),
        ),
        symptom="heads",
        shown=dependence,
        seen=Text(
            en="Each output depends on its own token alone: the softmax runs "
            "over the heads of one token instead of over the tokens.",
            zh="每个输出只依赖自己那个 token：softmax 不是在 token 之间做的，"
            "而是在同一个 token 的各个头之间做的。",
        ),
        notice=Text(
            en="Change the first token: every output must change, with a "
            "causal mask and without one.",
            zh="改动第一个 token：不管有没有因果掩码，所有输出都应当跟着变。",
        ),
        same_shape=False,
        found=(),
        tests=("tests/layers/test_gqa.py::test_the_loop_of_gqa_is_the_layer",),
        law=past_is_seen,
        of=lambda package: (gqa(package), tokens(3, 5, 8)),
        axes=TOKENS,
    ),
    Mistake(
        id="mask-argument-ignored",
        title=Text(
            en="forward takes a mask and never uses it",
            zh="forward 收了掩码，却从来没有用",
        ),
        lines=(
            Lines(
                module="caches.past",
                right="""
    seen = decoder_mask(
        mask,
""",
                wrong="""
    seen = decoder_mask(
        None,
""",
            ),
        ),
        symptom="inert",
        shown=padded,
        seen=Text(
            en="The first two tokens are padding, and yet every output after "
            "them depends on them.",
            zh="前两个 token 是填充，后面所有输出却都依赖它们。",
        ),
        notice=Text(
            en="Change the content of a padded position: no output of a real "
            "token may change. Tests without padding never notice the mistake.",
            zh="改动填充位置上的内容，真实 token 的输出一个都不该变。没有填充"
            "的测试永远发现不了。",
        ),
        same_shape=True,
        found=(
            "https://github.com/facebookresearch/fairseq/issues/1682",
            "https://github.com/huggingface/transformers/pull/47946",
            "https://github.com/TransformerLensOrg/TransformerLens/issues/467",
        ),
        tests=(
            "tests/laws/test_laws.py::"
            "test_a_padded_row_is_the_row_alone[gqa, room]",
        ),
        law=pads_are_unseen,
        of=lambda package: (with_pads(package), tokens(3, 5, 8)),
        axes=TOKENS,
    ),
    Mistake(
        id="queries-of-a-group-summed",
        title=Text(
            en="The queries of a group are summed",
            zh="同一组的查询被加在了一起",
        ),
        lines=(
            Lines(
                module="layers.gqa",
                right="""
        self.o_proj = nn.Linear(q_width, d_model, bias=o_bias)
""",
                wrong="""
        self.o_proj = nn.Linear(kv_width, d_model, bias=o_bias)
""",
            ),
            Lines(
                module="layers.gqa",
                right="""
        heads = self_attention(
            self, q, k, v, mask=mask, cache=cache, positions=positions
        )  # (B, H, T, D)
""",
                wrong="""
        q = q.unflatten(1, (K, H // K))  # "b (h g) n d -> b g h n d"
        q = q.sum(dim=2)  # "b g h n d, b h s d -> b h n s"
        heads = self_attention(
            self, q, k, v, mask=mask, cache=cache, positions=positions
        )  # (B, K, T, D)
""",
            ),
        ),
        symptom="worse",
        shown=exchanged,
        seen=Text(
            en="When two query heads of a group change places, the outputs "
            "should change by {right}. Here they change by {wrong}, since "
            "only the sum of the two queries counts.",
            zh="把同一组的两个查询头对调，输出本该变化 {right}；这里的变化是 "
            "{wrong}，因为起作用的只有两个查询之和。",
        ),
        notice=Text(
            en="Look at the output projection: its input must be H heads, not "
            "K. `einsum` sums over every letter that its result does not name.",
            zh="看输出投影的输入维度：应当是 H 个头，而不是 K 个。`einsum` 会"
            "对结果里没有写出的字母求和。",
        ),
        same_shape=False,
        found=(
            "https://github.com/fkodom/grouped-query-attention-pytorch/"
            "issues/5",
        ),
        tests=("tests/layers/test_gqa.py::test_the_loop_of_gqa_is_the_layer",),
        law=layer_equals_torch,
        of=lambda package: (gqa(package), tokens(3, 5, 8), 4, 2),
    ),
)
