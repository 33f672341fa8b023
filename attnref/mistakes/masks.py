"""Mistakes in masks: which key a query may see, and how masks are joined."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.laws import (
    documents_are_apart,
    future_is_hidden,
    is_causal,
    is_window,
    pads_change_nothing,
)


def square(package: Any) -> Tensor:
    """The causal mask of five tokens."""
    mask: Tensor = package.causal_mask(5)
    return mask.double()


def chunk(package: Any) -> Tensor:
    """The causal mask of two new tokens after three in a cache."""
    mask: Tensor = package.causal_mask(2, 5)
    return mask.double()


def from_a_tokenizer(package: Any) -> Tensor:
    """The mask of three real tokens and a pad, of which a tokenizer made
    whole numbers."""
    mask: Tensor = package.padding_mask_from_hf(torch.tensor([[1, 1, 1, 0]]))
    return mask.double().flatten()


def rule_mask(package: Any, rule: Any, T: int, mask: Any = None) -> Tensor:
    """Which of `T` tokens sees which, by a rule and a mask beside it."""
    seen: Tensor = package.RuleMask(rule, T, T, 0, mask=mask).dense()
    return seen


def window(package: Any) -> Tensor:
    """What six tokens see of each other through a window of three."""
    return rule_mask(package, package.Window(3), 6).double()


def documents(package: Any) -> Tensor:
    """What the tokens of two packed documents see of each other."""
    ids = torch.tensor([0, 0, 0, 1, 1])
    rule = package.Causal() & package.Documents(ids)
    return rule_mask(package, rule, 5).double()


def prefix(package: Any) -> Tensor:
    """What five tokens see of each other, two of which are the prefix."""
    return rule_mask(package, package.Prefix(2), 5).double()


def causal_and_padding(package: Any) -> Tensor:
    """What five tokens see of each other, the last of which is a pad."""
    valid = torch.arange(5)[None] < 4
    return rule_mask(package, package.Causal(), 5, valid).double()


def padded_weights(package: Any) -> Tensor:
    """Of four sentences in four heads, of lengths 4, 3, 2 and 1: the weights
    of the third sentence in the first head."""
    q, k = torch.randn(
        2, 4, 4, 4, 8, generator=torch.Generator().manual_seed(1)
    )
    mask = package.padding_mask(torch.ones(4, 4).tril().flip(0) > 0)
    weights: Tensor = package.attention_weights(q, k, mask)
    return weights[2, 0]


def after_decoding(package: Any) -> Tensor:
    """How far the last output of a left-padded row, decoded token by token,
    is from that of the row alone."""
    (attend,) = decoded(package)
    x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(1))
    valid = torch.arange(5)[None] >= 2
    far = attend(x, valid)[:, -1] - attend(x[:, 2:], valid[:, 2:])[:, -1]
    return far.abs().max()


def padded(
    package: Any, whole_numbers: bool = False
) -> tuple[Callable[[Tensor, Tensor], Tensor]]:
    """Attention in four heads, under the padding mask alone."""

    def attend(x: Tensor, valid: Tensor) -> Tensor:
        heads = x.view(*x.shape[:2], 4, -1).transpose(1, 2)
        if whole_numbers:
            mask = package.padding_mask_from_hf(valid.long())
        else:
            mask = package.padding_mask(valid)
        out: Tensor = package.sdpa(heads, heads, heads, mask)
        return out.transpose(1, 2).flatten(2)

    return (attend,)


@torch.no_grad()
def decoded(package: Any) -> tuple[Callable[[Tensor, Tensor], Tensor]]:
    """A decoder layer that reads token by token into a cache."""
    torch.manual_seed(0)
    layer = package.MultiHeadAttention(d_model=8, n_heads=2).requires_grad_(
        False
    )
    for weight in layer.parameters():
        weight.mul_(3)

    def attend(x: Tensor, valid: Tensor) -> Tensor:
        cache = package.GrowingKVCache()
        outs = []
        for t in range(x.shape[1]):
            mask = package.padding_mask(valid[:, : t + 1])
            outs.append(layer(x[:, t : t + 1], mask=mask, cache=cache))
        return torch.cat(outs, 1)

    return (attend,)


def packed(package: Any) -> tuple[Callable[[Tensor, Tensor], Tensor]]:
    """Attention of packed documents."""

    def attend(x: Tensor, ids: Tensor) -> Tensor:
        T, rule = len(ids), package.Causal() & package.Documents(ids)
        mask = package.RuleMask(rule, T, T, 0)
        out: Tensor = package.sdpa(x[:, None], x[:, None], x[:, None], mask)
        return out[:, 0]

    return (attend,)


def masked(package: Any) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Attention under a causal mask and one of padding on the left."""

    def attend(x: Tensor) -> Tensor:
        mask = package.RuleMask(package.Causal(), 5, 5, 0, mask=valid)
        out: Tensor = package.sdpa(x[:, None], x[:, None], x[:, None], mask)
        return out[:, 0]

    valid = torch.arange(5)[None] > 0
    return attend, torch.randn(2, 5, 8)


def prefixed(package: Any) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A decoder layer with a prefix of two tokens."""
    torch.manual_seed(0)
    layer = package.MultiHeadAttention(
        d_model=8, n_heads=2, causal=package.Prefix(2)
    )
    return layer, torch.randn(2, 5, 8)


def causal(package: Any) -> tuple[Any]:
    return (package.causal_mask,)


def windowed(package: Any) -> tuple[Callable[[int, int], Tensor]]:
    return (lambda W, T: rule_mask(package, package.Window(W), T),)


MASKS = "tests/core/test_masks.py::"


MISTAKES = (
    Mistake(
        id="causal-upside-down",
        title=Text(
            en="triu instead of tril: only the future is seen",
            zh="tril 写成了 triu：只看得到未来",
        ),
        lines=(
            Lines(
                module="core.masks",
                right="""
    return full.tril(S - T)  # (T, S)
""",
                wrong="""
    return full.triu(S - T)  # (T, S)
""",
            ),
        ),
        symptom="future",
        shown=square,
        seen=Text(
            en="Each token sees itself and the tokens after it, and none "
            "before it.",
            zh="每个 token 看到自己和后面的 token，前面的一个也看不到。",
        ),
        notice=Text(
            en="Print the mask of three tokens. If True means may attend, its "
            "last row must be all True.",
            zh="打印三个 token 的掩码：如果 True 表示可见，最后一行就应当全是 "
            "True。",
        ),
        same_shape=True,
        found=(
            "https://github.com/pytorch/examples/issues/649",
            "https://github.com/marin-community/levanter/pull/102",
        ),
        tests=(MASKS + "test_causal_mask_is_the_lower_triangle",),
        law=is_causal,
        of=causal,
    ),
    Mistake(
        id="causal-without-itself",
        title=Text(
            en="The causal mask hides the token itself",
            zh="因果掩码把 token 自己也挡住了",
        ),
        lines=(
            Lines(
                module="core.masks",
                right="""
    return full.tril(S - T)  # (T, S)
""",
                wrong="""
    return full.tril(S - T - 1)  # (T, S)
""",
            ),
        ),
        symptom="nan",
        shown=square,
        seen=Text(
            en="The diagonal is hidden too. The first token sees no key at "
            "all: its output is zero here, and NaN in code that passes a row "
            "of -inf to softmax.",
            zh="对角线也被挡住了。第一个 token 什么键都看不到：这里输出零，而"
            "把整行 -inf 直接交给 softmax 的代码会得到 NaN。",
        ),
        notice=Text(
            en="Only the first row is NaN, or an output does not change with "
            "the token at its own position.",
            zh="只有第一行是 NaN；或者改掉某个 token，它自己位置上的输出却不"
            "变。",
        ),
        same_shape=True,
        found=("https://github.com/pbloem/former/issues/10",),
        tests=(MASKS + "test_causal_mask_is_the_lower_triangle",),
        law=is_causal,
        of=causal,
    ),
    Mistake(
        id="causal-sees-next",
        title=Text(
            en="The causal mask shows the next token",
            zh="因果掩码多露出了下一个 token",
        ),
        lines=(
            Lines(
                module="core.masks",
                right="""
    return full.tril(S - T)  # (T, S)
""",
                wrong="""
    return full.tril(S - T + 1)  # (T, S)
""",
            ),
        ),
        symptom="future",
        shown=square,
        seen=Text(
            en="Each token sees one token too many: the one that it should "
            "predict.",
            zh="每个 token 都多看到一个 token，而那正是它要预测的那个。",
        ),
        notice=Text(
            en="The training loss falls towards 0, and yet the generated text "
            "is nonsense. Change the last token: no output before it may "
            "change.",
            zh="训练损失一路降到接近 0，生成的文本却不知所云。改掉最后一个 "
            "token，前面的输出一个都不该变。",
        ),
        same_shape=True,
        found=(),
        tests=(MASKS + "test_causal_mask_is_the_lower_triangle",),
        law=is_causal,
        of=causal,
    ),
    Mistake(
        id="causal-top-left",
        title=Text(
            en="The causal mask of a chunk is aligned at the top left",
            zh="有缓存时，因果掩码按左上角对齐",
        ),
        lines=(
            Lines(
                module="core.masks",
                right="""
    return full.tril(S - T)  # (T, S)
""",
                wrong="""
    return full.tril()  # (T, S)
""",
            ),
        ),
        symptom="decoding",
        shown=chunk,
        seen=Text(
            en="Two new tokens come after three in the cache. The first of "
            "them sees key 0 alone, as if it were the first token of the text.",
            zh="缓存里有三个 token，又来两个新的：第一个新 token 只看得到键 "
            "0，就像它是全文的第一个 token。",
        ),
        notice=Text(
            en="With as many keys as queries the mask is right. Decode token "
            "by token, and compare with a single pass over the whole text.",
            zh="键和查询一样多时掩码是对的。逐个 token 解码，再和一次读完全文"
            "的结果比较。",
        ),
        same_shape=True,
        found=(
            "https://github.com/pytorch/pytorch/issues/144858",
            "https://github.com/pytorch/executorch/pull/21749",
        ),
        tests=(
            MASKS + "test_causal_mask_of_a_chunk_is_aligned_at_"
            "the_bottom_right",
        ),
        law=is_causal,
        of=causal,
    ),
    Mistake(
        id="padding-of-queries",
        title=Text(
            en="The padding mask hides queries, not keys",
            zh="填充掩码挡住的是查询，而不是键",
        ),
        lines=(
            Lines(
                module="core.masks",
                right="""
    return valid[:, None, None, :]  # (B, 1, 1, S)
""",
                wrong="""
    return valid[:, None, :, None]  # (B, 1, T, 1)
""",
            ),
        ),
        symptom="inert",
        shown=padded_weights,
        seen=Text(
            en="The two real tokens attend to the two pads behind them. "
            "Instead, the rows of the pads are empty.",
            zh="两个真实 token 照样关注后面的两个填充符；被清空的反而是填充符"
            "自己的行。",
        ),
        notice=Text(
            en="Put other values in the place of the pads: no output of a "
            "real token may change. With `torch.softmax`, the rows of the "
            "pads become NaN.",
            zh="换掉填充符上的内容，真实 token 的输出不应改变。如果用的是 "
            "`torch.softmax`，填充符的行会变成 NaN。",
        ),
        same_shape=False,
        found=(
            "https://github.com/hyunwoongko/transformer/pull/40",
            "https://github.com/bentrevett/pytorch-seq2seq/issues/96",
        ),
        tests=(
            MASKS + "test_padding_mask_of_two_sentences",
            MASKS + "test_a_padded_row_equals_the_row_alone",
        ),
        law=pads_change_nothing,
        of=padded,
    ),
    Mistake(
        id="padding-without-axes",
        title=Text(
            en="A (B, S) padding mask is read as (T, S)",
            zh="(B, S) 的填充掩码被当成了 (T, S)",
        ),
        lines=(
            Lines(
                module="core.masks",
                right="""
    return valid[:, None, None, :]  # (B, 1, 1, S)
""",
                wrong="""
    return valid
""",
            ),
        ),
        symptom="sizes",
        shown=padded_weights,
        seen=Text(
            en="With four sentences of four tokens, the mask of sentence n is "
            "applied to query n of every sentence. The third sentence has two "
            "real tokens, and its queries see 4, 3, 2 and 1 keys.",
            zh="四个句子、每句四个 token 时，第 n 句的掩码被用到了每一句的第 n"
            " 个查询上。第三句只有两个真实 token，它的四个查询却分别看到 4、"
            "3、2、1 个键。",
        ),
        notice=Text(
            en="With as many sentences as tokens it is wrong without an "
            "error, and with a single sentence it is right. All other sizes "
            "raise an error. Test a batch that is as large as the sentences "
            "are long.",
            zh="批大小恰好等于序列长度时，不报错，结果却是错的；只有一句时是对"
            "的；其他尺寸都会报错。要专门测一次批大小等于序列长度的情况。",
        ),
        same_shape=False,
        found=("https://github.com/idiap/fast-transformers/issues/101",),
        tests=(
            MASKS + "test_padding_mask_of_two_sentences",
            MASKS + "test_a_hugging_face_mask_becomes_ours",
        ),
        law=pads_change_nothing,
        of=padded,
    ),
    Mistake(
        id="padding-on-heads",
        title=Text(
            en="The batch axis of a mask lands on the heads",
            zh="掩码的批次轴落到了头的轴上",
        ),
        lines=(
            Lines(
                module="core.masks",
                right="""
    return valid[:, None, None, :]  # (B, 1, 1, S)
""",
                wrong="""
    return valid[None, :, None, :]
""",
            ),
        ),
        symptom="sizes",
        shown=padded_weights,
        seen=Text(
            en="With four sentences and four heads, head n of every sentence "
            "gets the mask of sentence n. In the third sentence, which ends "
            "with two pads, the first head gets the mask of the first "
            "sentence, which has none.",
            zh="四个句子、四个头时，每一句的第 n 个头用的都是第 n 句的掩码。第"
            "三句末尾有两个填充符，它的第一个头用的却是第一句的掩码，而第一句"
            "没有填充符。",
        ),
        notice=Text(
            en="A mask with three axes, (B, T, S) or (B, 1, S), is broadcast "
            "in this way. Test with a batch that is as large as the number of "
            "heads; most other sizes raise an error.",
            zh="三个轴的掩码，(B, T, S) 或 (B, 1, S)，就会这样广播。测试时让批"
            "大小等于头数；换成别的尺寸，多半会报错。",
        ),
        same_shape=False,
        found=(),
        tests=(
            MASKS + "test_padding_mask_of_two_sentences",
            MASKS + "test_a_hugging_face_mask_becomes_ours",
        ),
        law=pads_change_nothing,
        of=padded,
    ),
    Mistake(
        id="mask-integer-not",
        title=Text(
            en="~ of an integer mask is true everywhere",
            zh="对整数掩码取 ~，处处都为真",
        ),
        lines=(
            Lines(
                module="core.masks",
                right="""
    return padding_mask(real)  # (B, 1, 1, S)
""",
                wrong="""
    hidden = (~attention_mask).bool()
    return padding_mask(~hidden)  # (B, 1, 1, S)
""",
            ),
        ),
        symptom="nan",
        shown=from_a_tokenizer,
        seen=Text(
            en="A tokenizer's 1, 1, 1, 0 becomes {wrong} instead of {right}: "
            "`~1` is -2 and `~0` is -1. Both count as true, so that all keys "
            "are hidden.",
            zh="分词器给的 1, 1, 1, 0 变成 {wrong}，应为 {right}：`~1` 是 -2，"
            "`~0` 是 -1，都算真，于是所有键都被遮住。",
        ),
        notice=Text(
            en="All outputs are NaN or zero, or all are the mean of all "
            "values. Convert to bool first: `mask.bool()` for the real "
            "tokens, or `mask == 0` for the pads.",
            zh="所有输出都是 NaN、零，或者所有值的均值。先转成 bool：真实 "
            "token 用 `mask.bool()`，填充符用 `mask == 0`。",
        ),
        same_shape=True,
        found=("https://github.com/PaddlePaddle/PaddleFormers/pull/4033",),
        tests=(MASKS + "test_a_hugging_face_mask_becomes_ours",),
        law=pads_change_nothing,
        of=partial(padded, whole_numbers=True),
    ),
    Mistake(
        id="masks-joined-by-or",
        title=Text(
            en="Masks are joined by | instead of &",
            zh="两个掩码用 | 合并，本该用 &",
        ),
        lines=(
            Lines(
                module="core.masks",
                right="""
        return seen if beside is None else beside & seen
""",
                wrong="""
        return seen if beside is None else beside | seen
""",
            ),
        ),
        symptom="future",
        shown=causal_and_padding,
        seen=Text(
            en="A key is seen if either mask shows it. Real tokens of the "
            "future are no pads, so that every token sees all of them.",
            zh="只要有一个掩码放行，键就可见。未来的真实 token 不是填充符，于"
            "是全都看得到。",
        ),
        notice=Text(
            en="Masks in which True means may attend are joined by &, those "
            "in which True means hidden by |. With the wrong one, each mask "
            "alone is right and both together are not.",
            zh="True 表示可见的掩码用 & 合并，True 表示遮住的用 |。用反了的"
            "话，单独用哪个掩码都对，合起来就错。",
        ),
        same_shape=True,
        found=(
            "https://github.com/lucidrains/local-attention/issues/5",
            "https://github.com/NVIDIA/TransformerEngine/pull/1271",
        ),
        tests=(MASKS + "test_a_rule_holds_wherever_the_keys_are",),
        law=future_is_hidden,
        of=masked,
    ),
    Mistake(
        id="window-one-more",
        title=Text(
            en="A window of W tokens holds W + 1",
            zh="大小为 W 的窗口里有 W + 1 个 token",
        ),
        lines=(
            Lines(
                module="core.masks",
                right="""
        return (j <= i) & (j > i - self.size)
""",
                wrong="""
        return (j <= i) & (j >= i - self.size)
""",
            ),
        ),
        symptom="worse",
        shown=window,
        seen=Text(
            en="Through a window of three, a token sees up to four: itself "
            "and three before it.",
            zh="窗口大小为 3，一个 token 却能看到 4 个：它自己和前面 3 个。",
        ),
        notice=Text(
            en="Count the keys that a late query sees. Libraries differ: in "
            "flash-attn, both ends of `window_size=(a, b)` are included, so "
            "that W tokens are `(W - 1, 0)`.",
            zh="数一数靠后的查询能看到几个键。各个库的约定不同：flash-attn 的 "
            "`window_size=(a, b)` 两端都算，W 个 token 要写成 `(W - 1, 0)`。",
        ),
        same_shape=True,
        found=(
            "https://github.com/huggingface/transformers/issues/39408",
            "https://github.com/mistralai/mistral-inference/issues/60",
            "https://github.com/ml-explore/mlx-lm/pull/390",
        ),
        tests=(MASKS + "test_a_rule_holds_wherever_the_keys_are",),
        law=is_window,
        of=windowed,
    ),
    Mistake(
        id="window-not-causal",
        title=Text(
            en="A sliding window mask that is not causal",
            zh="滑动窗口没有加上因果条件",
        ),
        lines=(
            Lines(
                module="core.masks",
                right="""
        return (j <= i) & (j > i - self.size)
""",
                wrong="""
        return (i - j).abs() < self.size
""",
            ),
        ),
        symptom="future",
        shown=window,
        seen=Text(
            en="The window looks both ways: with a width of three, each token "
            "sees up to two tokens before it and two after it.",
            zh="窗口往两边都看：大小为 3 时，每个 token 既看到前面两个，也看到"
            "后面两个。",
        ),
        notice=Text(
            en="Change the last token: no output before it may change. In "
            "decoding token by token with a cache there is no future to be "
            "seen, so that all looks well.",
            zh="改掉最后一个 token，前面的输出都不该变。带缓存逐个 token 解码"
            "时没有未来可看，一切看上去正常。",
        ),
        same_shape=True,
        found=("https://github.com/google/gemma_pytorch/issues/73",),
        tests=(MASKS + "test_a_rule_holds_wherever_the_keys_are",),
        law=is_window,
        of=windowed,
    ),
    Mistake(
        id="documents-leak",
        title=Text(
            en="Packed documents attend to the documents before them",
            zh="打包的文档看得到前面的文档",
        ),
        lines=(
            Lines(
                module="core.masks",
                right="""
            return ids[i] == ids[j]
""",
                wrong="""
            return ids[i] >= ids[j]
""",
            ),
            Lines(
                module="core.masks",
                right="""
        return ids[row, i] == ids[row, j]
""",
                wrong="""
        return ids[row, i] >= ids[row, j]
""",
            ),
        ),
        symptom="worse",
        shown=documents,
        seen=Text(
            en="The mask is causal over the whole row, so that the second "
            "document attends to the first.",
            zh="掩码只管整行的先后，第二篇文档照样关注第一篇。",
        ),
        notice=Text(
            en="Change the first document: no output of the second may "
            "change. Positions that restart at 0 are no substitute for the "
            "mask.",
            zh="改掉第一篇文档，第二篇的输出不应改变。位置从 0 重新编号，并不"
            "能代替掩码。",
        ),
        same_shape=True,
        found=(
            "https://github.com/huggingface/transformers/pull/46634",
            "https://github.com/unslothai/unsloth/issues/1207",
        ),
        tests=(MASKS + "test_packed_documents_are_computed_as_if_alone",),
        law=documents_are_apart,
        of=packed,
    ),
    Mistake(
        id="prefix-sees-all",
        title=Text(
            en="A prefix LM unmasks the rows of the prefix, not its columns",
            zh="前缀语言模型放开的是前缀的行，而不是列",
        ),
        lines=(
            Lines(
                module="core.masks",
                right="""
        return (j < length) | (j <= i)
""",
                wrong="""
        return (i < length) | (j <= i)
""",
            ),
        ),
        symptom="future",
        shown=prefix,
        seen=Text(
            en="The two tokens of the prefix see the whole text, including "
            "what is to be predicted. In the next layer, all later tokens "
            "learn it from the prefix.",
            zh="前缀的两个 token 看到了全文，包括待预测的部分；到了下一层，后"
            "面的 token 就能从前缀那里得知。",
        ),
        notice=Text(
            en="Change a token behind the prefix: no output before that token "
            "may change.",
            zh="改掉前缀之后的一个 token，它之前的输出都不该变。",
        ),
        same_shape=True,
        found=("https://github.com/dphnAI/sonar/pull/1526",),
        tests=(MASKS + "test_a_prefix_is_seen_by_all",),
        law=future_is_hidden,
        of=prefixed,
    ),
    Mistake(
        id="padding-lost-in-decoding",
        title=Text(
            en="A decode step of one token drops the padding mask",
            zh="单 token 解码时丢掉了填充掩码",
        ),
        lines=(
            Lines(
                module="core.masks",
                right="""
    if positions is None and counted and rule.hides_nothing(T, S):
        return mask
""",
                wrong="""
    if T == 1:  # a single query is the last token: it sees everything
        return None
""",
            ),
        ),
        symptom="decoding",
        shown=after_decoding,
        seen=Text(
            en="A row begins with two pads and is decoded token by token. Its "
            "last output is {wrong} away from that of the row without pads; "
            "with the mask it is {right}, which is rounding.",
            zh="一行开头有两个填充符，逐个 token 解码。它最后的输出和不带填充"
            "符时相差 {wrong}；有掩码时相差 {right}，只是舍入误差。",
        ),
        notice=Text(
            en="Generate from a short prompt alone, and in a batch with a "
            "longer one: the text must be the same.",
            zh="把一个短提示单独生成一遍，再和一个长提示放在同一批里生成：文本"
            "应当一样。",
        ),
        same_shape=True,
        found=(
            "https://github.com/ml-explore/mlx-lm/issues/1906",
            "https://github.com/OpenNMT/OpenNMT-py/pull/2532",
        ),
        tests=(MASKS + "test_a_single_query_keeps_the_padding_mask",),
        law=pads_change_nothing,
        of=decoded,
    ),
)
