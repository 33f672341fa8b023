"""Mistakes in cross-attention: which side gives what, and which context."""

from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.laws import (
    context_is_seen,
    layer_equals_torch,
    new_context_is_read,
)
from attnref.mistakes.mha import TOKENS, filled, moved, tokens


def cross(package: Any) -> Any:
    return filled(package.CrossAttention(d_model=8, n_heads=2))


def of_context(package: Any) -> Tensor:
    """Which of three outputs depends on which of five context tokens."""
    layer, x = cross(package), tokens(1, 3, 8)
    return moved(lambda context: layer(x, context), tokens(1, 5, 8))


def of_sequence(package: Any) -> Tensor:
    """Which of four outputs depends on which of the four tokens of `x`."""
    layer, context = cross(package), tokens(1, 4, 8).flip(1)
    return moved(lambda x: layer(x, context), tokens(1, 4, 8))


@torch.no_grad()
def second_context(package: Any) -> Tensor:
    """How far the answer for a second context is from the right one."""
    layer, x, context = cross(package), tokens(1, 3, 8), tokens(1, 5, 8)
    cache = package.GrowingKVCache()
    layer(x, context, cache=cache)
    try:
        got = layer(x, -context, cache=cache)
    except ValueError:  # refused: the caller resets the cache
        cache.reset()
        got = layer(x, -context, cache=cache)
    gap: Tensor = (got - layer(x, -context)).abs().max()
    return gap


def layer_and_context(package: Any) -> tuple[Any, ...]:
    return cross(package), tokens(2, 3, 8), tokens(2, 5, 8)


CONTEXT = Text("output", "输出"), Text("token of the context", "上下文的 token")

MISTAKES = (
    Mistake(
        id="context-ignored",
        title=Text(
            en="Cross-attention takes keys and values from the decoder",
            zh="交叉注意力的键和值取自解码器自身",
        ),
        lines=(
            Lines(
                module="layers.cross",
                right="""
            k = split_heads(self.k_proj(context), K)  # (B, K, S, D)
            v = split_heads(self.v_proj(context), K)  # (B, K, S, D)
""",
                wrong="""
            k = split_heads(self.k_proj(x), K)  # (B, K, T, D)
            v = split_heads(self.v_proj(x), K)  # (B, K, T, D)
""",
            ),
        ),
        symptom="worse",
        shown=of_context,
        seen=Text(
            en="No output depends on the context: the layer computes "
            "self-attention.",
            zh="没有一个输出依赖上下文：这其实是自注意力。",
        ),
        notice=Text(
            en="Change the context: every output must change. If the two "
            "widths differ, the projection raises an error instead.",
            zh="改动上下文，所有输出都应当跟着变。两边的维度不同时，投影会直接"
            "报错。",
        ),
        same_shape=True,
        found=(
            "https://github.com/keitakurita/Practical_NLP_in_PyTorch/issues/1",
        ),
        tests=(
            "tests/layers/test_cross.py::test_cross_attention_is_that_of_torch",
        ),
        law=context_is_seen,
        of=layer_and_context,
        axes=CONTEXT,
    ),
    Mistake(
        id="queries-from-the-context",
        title=Text(
            en="Cross-attention takes the queries from the encoder",
            zh="交叉注意力的查询取自编码器的输出",
        ),
        lines=(
            Lines(
                module="layers.cross",
                right="""
        q = split_heads(self.q_proj(x), H)  # (B, H, T, D)
""",
                wrong="""
        q = self.q_proj(context).view(B, T, H, -1).transpose(1, 2)
""",
            ),
        ),
        symptom="error",
        shown=of_sequence,
        seen=Text(
            en="If the two lengths differ, this raises an error. If they are "
            "equal, it raises none, and no output depends on the decoder's "
            "own tokens.",
            zh="两边长度不同时会报错；长度相等时不报错，但没有一个输出依赖解码"
            "器自己的 token。",
        ),
        notice=Text(
            en="Test with two different lengths. The queries come from the "
            "decoder, one per output; keys and values come from the encoder.",
            zh="两边用不同的长度来试。查询来自解码器，每个输出对应一个；键和值"
            "来自编码器。",
        ),
        same_shape=False,
        found=(
            "https://github.com/humza909/LLM_Survey/issues/2",
            "https://github.com/datawhalechina/happy-llm/issues/5",
        ),
        tests=(
            "tests/layers/test_cross.py::test_cross_attention_is_that_of_torch",
        ),
        law=layer_equals_torch,
        of=lambda package: (
            cross(package),
            tokens(2, 5, 8),
            2,
            2,
            tokens(2, 5, 8).flip(1),
        ),
        axes=TOKENS,
    ),
    Mistake(
        id="causal-cross-attention",
        title=Text(
            en="Cross-attention has a causal mask",
            zh="交叉注意力加了因果掩码",
        ),
        lines=(
            Lines(
                module="layers.cross",
                right="""
            causal=False,
""",
                wrong="""
            causal=True,
""",
            ),
        ),
        symptom="worse",
        shown=of_context,
        seen=Text(
            en="The earlier an output, the more tokens at the end of the "
            "context are hidden from it.",
            zh="越靠前的输出，看不到的上下文结尾越多。",
        ),
        notice=Text(
            en="Change the last token of the context: every output must "
            "change. If the mask is aligned bottom-right, a single query sees "
            "the whole context, so decoding token by token hides the mistake.",
            zh="改动上下文的最后一个 token，所有输出都应当跟着变。掩码按右下角"
            "对齐时，单个查询看得到全部上下文，所以逐 token 解码时看不出来。",
        ),
        same_shape=True,
        found=(
            "https://github.com/onlybooks/llm/issues/4",
            "https://github.com/floriankark/cs224n-win2223/issues/5",
        ),
        tests=(
            "tests/layers/test_cross.py::test_cross_attention_is_that_of_torch",
        ),
        law=context_is_seen,
        of=layer_and_context,
        axes=CONTEXT,
    ),
    Mistake(
        id="stale-context",
        title=Text(
            en="The cache of an old context is read for a new one",
            zh="换了上下文，读的还是缓存里旧的",
        ),
        lines=(
            Lines(
                module="layers.cross",
                right="""
        if context is not None:
            raise ValueError(
                f"the cache already holds a context of {cache.length} tokens: "
                "pass no context, or call cache.reset() first"
            )
        stored = cache.stored
""",
                wrong="""
        stored = cache.stored
""",
            ),
        ),
        symptom="decoding",
        shown=second_context,
        seen=Text(
            en="A second context is passed together with a cache that holds "
            "the first. The layer reads the first one: the output is {wrong} "
            "away from the right one.",
            zh="传入第二个上下文时，缓存里存的还是第一个。这一层读的是第一个，"
            "输出和正确结果相差 {wrong}。",
        ),
        notice=Text(
            en="Ask about two documents in a row with one cache. A filled "
            "cache must refuse a new context, or be reset first.",
            zh="用同一个缓存连着问两篇文档。缓存已经填好时，要么拒绝新的上下"
            "文，要么先清空。",
        ),
        same_shape=True,
        found=(),
        tests=(
            "tests/models/test_block.py::"
            "test_a_decoder_stores_a_context_once[11-cross, room]",
        ),
        law=new_context_is_read,
        of=lambda package: (
            *layer_and_context(package),
            package.GrowingKVCache(),
        ),
    ),
)
