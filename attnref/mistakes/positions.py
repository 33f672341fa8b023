"""Mistakes in the positions of tokens: which are rotated, and by how much."""

from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.kv_cache import (
    EQUAL,
    cached,
    decoded,
    gqa,
    seeded,
)
from attnref.mistakes.laws import (
    decoding_is_the_full_pass,
    distances_alone_count,
    positions_count_tokens,
)


def placed(package: Any) -> tuple[Any, Tensor]:
    """A layer that is told positions, and an input."""
    layer = gqa(package)

    def call(x: Tensor, positions: Tensor) -> Tensor:
        with torch.no_grad():
            out: Tensor = layer(x, positions=positions)
        return out

    return call, seeded(3, 6, 16)


def shifted(package: Any) -> Tensor:
    """How far the outputs move when all positions are shifted by 0 to 7."""
    layer, x = placed(package)
    at = torch.arange(6)
    moved = [(layer(x, at + n) - layer(x, at)).abs().max() for n in range(8)]
    return torch.stack(moved)


def rows_alone(package: Any) -> Tensor:
    """How far each of three rows is from itself alone, if their tokens stand
    1, 2 and 3 apart."""
    layer, x = placed(package)
    at = torch.arange(6) * torch.arange(1, 4)[:, None]
    together: Tensor = layer(x, at)
    alone = [layer(row[None], p) for row, p in zip(x, at, strict=True)]
    return (together - torch.cat(alone)).abs().amax((1, 2))


def weights(package: Any) -> Tensor:
    """Of one head, as six tokens are read in chunks of 3, 1, 1 and 1."""
    return decoded(package)[:, :6]


def padded_positions(package: Any) -> Tensor:
    """Of four rows with 0 to 3 pads before their tokens."""
    valid = torch.arange(6) >= torch.arange(4)[:, None]
    found: Tensor = package.token_positions(valid)
    return found.double()


FOLLOW = "tests/core/test_rope.py::test_new_tokens_follow_the_past"
COMPARE = Text(
    en="Decode token by token and compare with one pass over the whole "
    "sequence.",
    zh="逐个 token 解码，再和一次算完整个序列的结果对比。",
)

MISTAKES = (
    Mistake(
        id="rope-queries-only",
        title=Text(
            en="RoPE rotates the queries and not the keys",
            zh="RoPE 只转了查询，没转键",
        ),
        lines=(
            Lines(
                module="core.rope",
                right="""
    q = apply_rope(q, cos, sin, layout=layout)
    return q, apply_rope(k, cos, sin, layout=layout)
""",
                wrong="""
    q = apply_rope(q, cos, sin, layout=layout)
    return q, k
""",
            ),
        ),
        symptom="worse",
        shown=shifted,
        seen=Text(
            en="The scores depend on the position of the query, and not on "
            "its distance from the key. When all positions are shifted by 0 "
            "to 7, the outputs should stay as they are, but they change by up "
            "to {change}.",
            zh="分数取决于查询所在的位置，而不是它和键的距离。所有位置一起平"
            "移 0 到 7，输出本该不变，却变了最多 {change}。",
        ),
        notice=Text(
            en="Shift all positions by the same number: no output may change.",
            zh="所有位置加上同一个数，输出不该有任何变化。",
        ),
        same_shape=True,
        found=("https://github.com/kvcache-ai/sglang/pull/66",),
        tests=(f"{FOLLOW}[5]",),
        law=distances_alone_count,
        of=placed,
    ),
    Mistake(
        id="rope-on-values",
        title=Text(
            en="RoPE rotates the values too",
            zh="RoPE 把值也转了",
        ),
        lines=(
            Lines(
                module="caches.past",
                right="""
    q, k = rotate(q, k, theta=layer.rope_theta, past=past, positions=positions)
""",
                wrong="""
    q, k = rotate(q, k, theta=layer.rope_theta, past=past, positions=positions)
    _, v = rotate(q, v, theta=layer.rope_theta, past=past, positions=positions)
""",
            ),
        ),
        symptom="worse",
        shown=shifted,
        seen=Text(
            en="The attention weights are right, but each value has been "
            "rotated by the absolute position of its token. When all "
            "positions are shifted by 0 to 7, the outputs should stay as they "
            "are, but they change by up to {change}.",
            zh="注意力权重没错，但加权求和的值已经按各自的绝对位置转过了。所有"
            "位置一起平移 0 到 7，输出本该不变，却变了最多 {change}。",
        ),
        notice=Text(
            en="Shift all positions by the same number: no output may change. "
            "Models that rotate the values on purpose turn the output back by "
            "the position of the query.",
            zh="所有位置加上同一个数，输出不该有任何变化。有意旋转值的模型，会"
            "再按查询的位置把输出转回来。",
        ),
        same_shape=True,
        found=("https://github.com/lucidrains/x-transformers/issues/182",),
        tests=(
            "tests/laws/test_laws.py::test_all_positions_may_be_shifted[gqa]",
        ),
        law=distances_alone_count,
        of=placed,
    ),
    Mistake(
        id="positions-of-one-row",
        title=Text(
            en="All rows of a batch get the positions of the first",
            zh="整批都用第一行的位置",
        ),
        lines=(
            Lines(
                module="core.rope",
                right="""
        cos, sin = rope_table(positions, D, theta=theta, yarn=yarn)
""",
                wrong="""
        positions = positions.view(-1, T)[0]
        cos, sin = rope_table(positions, D, theta=theta, yarn=yarn)
""",
            ),
        ),
        symptom="worse",
        shown=rows_alone,
        seen=Text(
            en="In three rows, the tokens stand 1, 2 and 3 positions apart. "
            "The first row gives the same as alone; the other two are off by "
            "up to {change}.",
            zh="三行的 token 分别相隔 1、2、3 个位置。第一行和单独算时一样，另"
            "外两行最多差 {change}。",
        ),
        notice=Text(
            en="Compare each row with the same row alone. RoPE sees distances "
            "only, so left padding does not show the mistake as long as "
            "prefill and decoding count alike. It shows when prefill uses the "
            "positions of each row, and decoding one position for all rows.",
            zh="每一行都和它单独计算的结果对比。RoPE 只看距离，所以预填充和解"
            "码的数法一致时，左填充看不出问题；要是预填充用各行自己的位置，解"
            "码时整批共用一个位置，就会出错。",
        ),
        same_shape=True,
        found=(
            "https://github.com/unslothai/unsloth/pull/4078",
            "https://github.com/rasbt/reasoning-from-scratch/issues/33",
        ),
        tests=(
            "tests/core/test_rope.py::"
            "test_positions_that_are_given_take_the_place_of_the_past"
            "[of each row]",
        ),
        law=distances_alone_count,
        of=placed,
    ),
    Mistake(
        id="positions-restart",
        title=Text(
            en="Each decode step counts positions from 0 again",
            zh="每个解码步的位置都从 0 重新数",
        ),
        lines=(
            Lines(
                module="core.rope",
                right="""
        cos, sin = _tables(q, past, theta, yarn)
""",
                wrong="""
        cos, sin = _tables(q, 0, theta, yarn)
""",
            ),
        ),
        symptom="decoding",
        shown=weights,
        seen=Text(
            en="Three tokens are read at once, and they are right. Three "
            "more are decoded, each as if it stood at position 0, before the "
            "rest of the prompt: the attention weight of {where} is {there}.",
            zh="前三个 token 一次读入，没有问题。后三个逐个解码，每个都被当成"
            "在位置 0，排到了提示词其余 token 的前面：{where} 的注意力权重是 "
            "{there}。",
        ),
        notice=COMPARE,
        same_shape=True,
        found=(
            "https://github.com/Blaizzy/mlx-vlm/issues/1983",
            "https://github.com/RobertCsordas/moeut/pull/6",
        ),
        tests=(f"{FOLLOW}[5]",),
        law=decoding_is_the_full_pass,
        of=cached,
    ),
    Mistake(
        id="positions-off-by-one",
        title=Text(
            en="After the prompt, positions are one too large",
            zh="提示词之后，位置都多了 1",
        ),
        lines=(
            Lines(
                module="core.rope",
                right="""
        cos, sin = _tables(q, past, theta, yarn)
""",
                wrong="""
        if past:
            past = past + 1  # the new token is counted already
        cos, sin = _tables(q, past, theta, yarn)
""",
            ),
        ),
        symptom="decoding",
        shown=weights,
        seen=Text(
            en="One position is left out between the prompt and the first "
            "new token. The three decoded tokens are at the right distance "
            "from each other, but one too far from the prompt: the attention "
            "weight of {where} is {there}.",
            zh="提示词和第一个新 token 之间空了一个位置。解码出的三个 token "
            "之间距离正确，但离提示词都远了一格：{where} 的注意力权重是 "
            "{there}。",
        ),
        notice=Text(
            en="Decode token by token and compare the numbers with those of "
            "one pass over the whole sequence. The text stays fluent, so "
            "reading it does not help.",
            zh="逐个 token 解码，和一次算完整个序列的结果逐个数值对比。文本照"
            "样通顺，光看输出发现不了。",
        ),
        same_shape=True,
        found=(
            "https://github.com/microsoft/onnxruntime-genai/pull/2354",
            "https://github.com/GeeeekExplorer/nano-vllm/pull/67",
        ),
        tests=(f"{FOLLOW}[5]",),
        law=decoding_is_the_full_pass,
        of=cached,
    ),
    Mistake(
        id="positions-after-append",
        title=Text(
            en="The position of a query is read after the cache has grown",
            zh="先写缓存，再按变长了的缓存取查询的位置",
        ),
        lines=(
            Lines(
                module="caches.past",
                right="""
    q, k = rotate(q, k, theta=layer.rope_theta, past=past, positions=positions)
""",
                wrong="""
    k, _ = rotate(k, k, theta=layer.rope_theta, past=past, positions=positions)
""",
            ),
            Lines(
                module="caches.past",
                right="""
        check_kept(cache, k, numbers, at)
""",
                wrong="""
        check_kept(cache, k, numbers, at)
    offset = 0 if cache is None else cache.length
    q, _ = rotate(
        q, q, theta=layer.rope_theta, past=offset, positions=positions
    )
""",
            ),
        ),
        symptom="decoding",
        shown=weights,
        seen=Text(
            en="With a cache, the position of each query is too large by the "
            "number of new tokens: by three in the prompt, and by one in each "
            "step after it. The attention weight of {where} is {there}.",
            zh="一用缓存，查询的位置就偏大，多出的正好是新 token 的个数：读提"
            "示词时多 3，之后每步多 1。{where} 的注意力权重是 {there}。",
        ),
        notice=COMPARE,
        same_shape=True,
        found=(
            "https://github.com/ml-explore/mlx-swift-lm/pull/234",
            "https://github.com/fla-org/flash-linear-attention/issues/477",
        ),
        tests=(f"{EQUAL}::test_cached_in_any_chunks_is_the_full_pass",),
        law=decoding_is_the_full_pass,
        of=cached,
    ),
    Mistake(
        id="keys-rotated-twice",
        title=Text(
            en="Cached keys are stored rotated and rotated again",
            zh="缓存里的键已经转过，取出来又转一遍",
        ),
        lines=(
            Lines(
                module="caches.past",
                right="""
        k, v = cache.append(k, v)  # (B, K, S, D); keys are stored rotated
""",
                wrong="""
        k, v = cache.append(k, v)  # (B, K, S, D)
        _, k = rotate(k, k, theta=layer.rope_theta)  # from position 0 on
""",
            ),
        ),
        symptom="decoding",
        shown=weights,
        seen=Text(
            en="The key of position j is rotated to position 2j, so that the "
            "later half of the keys stand after their query. The attention "
            "weight of {where} is {there}.",
            zh="位置 j 的键被转到了 2j，每个查询能看到的键里，后一半都跑到了"
            "它的后面：{where} 的注意力权重是 {there}。",
        ),
        notice=Text(
            en="Read a prompt with a cache and without one: the outputs must "
            "be the same. Either store rotated keys and do not rotate them "
            "again, or store them unrotated and rotate all of them at each "
            "step.",
            zh="同一个提示词，用缓存和不用缓存各读一遍，输出必须相同。要么存转"
            "好的键，取出后不再动；要么存没转的键，每一步全部转一遍。",
        ),
        same_shape=True,
        found=("https://github.com/NeuraLegion/shainet/pull/110",),
        tests=(f"{EQUAL}::test_cached_in_any_chunks_is_the_full_pass",),
        law=decoding_is_the_full_pass,
        of=cached,
    ),
    Mistake(
        id="positions-count-pads",
        title=Text(
            en="Positions count the pads before the text",
            zh="位置把文本前面的填充也数进去了",
        ),
        lines=(
            Lines(
                module="core.rope",
                right="""
    counted = valid.cumsum(dim=-1) - 1
    return counted.clamp(min=0)  # (B, S)
""",
                wrong="""
    S = valid.shape[1]
    return torch.arange(S, device=valid.device).expand(valid.shape)  # (B, S)
""",
            ),
        ),
        symptom="worse",
        shown=padded_positions,
        seen=Text(
            en="In four rows, 0 to 3 pads stand before the tokens. The first "
            "token of each row should have position 0, but it has a position "
            "of up to {change}.",
            zh="四行，token 前面分别有 0 到 3 个填充。每行第一个 token 的位置"
            "本该是 0，却最大到了 {change}。",
        ),
        notice=Text(
            en="Compare each row of a left-padded batch with the same row "
            "alone. With learned positions, as in GPT-2, all padded rows are "
            "wrong. With RoPE, pads before the text do no harm, but pads "
            "inside it do, such as those after the shorter prompts of a chat.",
            zh="左填充的批次，每一行都和它单独计算的结果对比。用可学习的位置编"
            "码（如 GPT-2）时，有填充的行全错。用 RoPE 时，文本前面的填充没有"
            "影响，夹在中间的（例如多轮对话里较短的提示词后面）才有。",
        ),
        same_shape=True,
        found=(
            "https://github.com/huggingface/transformers/issues/3021",
            "https://github.com/huggingface/transformers/pull/7552",
        ),
        tests=(
            "tests/core/test_rope.py::test_tokens_are_counted_and_pads_are_not",
        ),
        law=positions_count_tokens,
        of=lambda package: (package.token_positions,),
        axes=(Text("row", "行"), Text("token", "token")),
    ),
)
