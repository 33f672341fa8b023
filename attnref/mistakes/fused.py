"""Mistakes in calling PyTorch's own kernels."""

from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.laws import causal_at_the_end, equals_torch, wide_values


def weights_of(package: Any, T: int, H: int, mask: Any, D: int = 6) -> Tensor:
    """The weights of the last head for `T` queries over six keys: with values
    that are the rows of a unit matrix, the output is the weights."""
    g = torch.Generator().manual_seed(9)
    q = 2 * torch.randn(1, H, T, 6, generator=g)[..., :D]
    k = torch.randn(1, 1, 6, 6, generator=g)[..., :D]
    out: Tensor = package.fused(q, k, torch.eye(6)[None, None], mask)
    return out[0, -1]


def chunk_weights(package: Any) -> Tensor:
    """Of three tokens after three in a cache."""
    mask = package.RuleMask(package.Causal(), 3, 6, 3)
    return weights_of(package, 3, 1, mask)


def prompt_weights(package: Any) -> Tensor:
    """Of the second of two heads that share keys, over a causal prompt."""
    mask = package.RuleMask(package.Causal(), 6, 6, 0)
    return weights_of(package, 6, 2, mask)


def masked_weights(package: Any) -> Tensor:
    """With a causal mask as a tensor."""
    return weights_of(package, 6, 1, package.causal_mask(6))


def narrow_weights(package: Any) -> Tensor:
    """Of queries and keys that are narrower than the values."""
    return weights_of(package, 6, 1, None, D=2)


def causal(package: Any) -> tuple[Any]:
    def core(q: Tensor, k: Tensor, v: Tensor) -> Any:
        T, S = q.shape[2], k.shape[2]
        mask = package.RuleMask(package.Causal(), T, S, S - T)
        return package.fused(q, k, v, mask)

    return (core,)


MISTAKES = (
    Mistake(
        id="is-causal-with-a-cache",
        title=Text(
            en="is_causal=True for a chunk after cached keys",
            zh="缓存里已有键，后面的分块还用 is_causal=True",
        ),
        lines=(
            Lines(
                module="core.fused",
                right="""
from attnref.core.masks import Mask, dense
""",
                wrong="""
from attnref.core.masks import Causal, Mask, dense
""",
            ),
            Lines(
                module="core.fused",
                right="""
    if lazy is not None and lazy.is_triangle() and (H == K or HAS_GQA):
""",
                wrong="""
    causal = lazy is not None and lazy.mask is None and lazy.rule == Causal()
    if causal and (H == K or HAS_GQA):
""",
            ),
        ),
        symptom="decoding",
        shown=chunk_weights,
        seen=Text(
            en="PyTorch aligns its triangle at the top left: the first of "
            "three new tokens sees key 0 alone, and none sees itself. The "
            "weight of {where} is {there}.",
            zh="PyTorch 的三角对齐左上角：三个新 token 里的第一个只看到键 0，"
            "谁也看不到自己。{where} 的权重是 {there}。",
        ),
        notice=Text(
            en="A prompt is right, and so is training. Decode it in chunks: "
            "the outputs must be those of the whole prompt.",
            zh="整段提示词是对的，训练也是对的。把提示词分块解码，输出应该和"
            "一次算完相同。",
        ),
        same_shape=True,
        found=(
            "https://github.com/pytorch/pytorch/issues/144858",
            "https://github.com/pytorch/executorch/pull/21749",
        ),
        tests=(
            "tests/core/test_fused.py::"
            "test_a_cached_chunk_is_aligned_at_the_right",
        ),
        law=causal_at_the_end,
        of=causal,
    ),
    Mistake(
        id="is-causal-with-stacked-heads",
        title=Text(
            en="A group's heads are stacked on the query axis with is_causal",
            zh="把一组查询头折叠到查询轴上，却仍用 is_causal",
        ),
        lines=(
            Lines(
                module="core.fused",
                right="""
        how["is_causal"] = True
        if H > K:
            how["enable_gqa"] = True
""",
                wrong="""
        how["is_causal"] = True
        q = q.reshape(B, K, H // K * T, q.shape[3])
""",
            ),
        ),
        symptom="future",
        shown=prompt_weights,
        seen=Text(
            en="The kernel takes the queries of the second head for later "
            "tokens, and each of them sees all keys: the weight of {where} is "
            "{there}.",
            zh="kernel 把第二个头的查询当成了更靠后的 token，每个都看得到全部"
            "的键：{where} 的权重是 {there}。",
        ),
        notice=Text(
            en="Change the last token and look at all heads: the first head of "
            "each group is right, the others see the future.",
            zh="改掉最后一个 token，逐个头检查：每组的第一个头是对的，其余的头"
            "看到了未来。",
        ),
        same_shape=True,
        found=("https://github.com/facebookresearch/xformers/pull/1239",),
        tests=("tests/core/test_fused.py::test_a_causal_prompt_needs_no_mask",),
        law=causal_at_the_end,
        of=causal,
    ),
    Mistake(
        id="mask-as-floats",
        title=Text(
            en="A mask of 0 and 1 is passed as floats, which PyTorch adds",
            zh="0/1 掩码以浮点数传入，PyTorch 把它加到了分数上",
        ),
        lines=(
            Lines(
                module="core.fused",
                right="""
        seen = seen[(None,) * (4 - seen.dim())]
""",
                wrong="""
        seen = seen[(None,) * (4 - seen.dim())].to(q.dtype)
""",
            ),
        ),
        symptom="inert",
        shown=masked_weights,
        seen=Text(
            en="Nothing is hidden: keys that may be seen only have 1 added "
            "to their scores. The weight of {where} is {there}.",
            zh="什么都没有遮住，允许看的键只是分数加了 1：{where} 的权重是 "
            "{there}。",
        ),
        notice=Text(
            en="Change a token that the mask hides: no output may move. Print "
            "the dtype of the mask: it must be bool, or the mask must hold 0 "
            "and -inf.",
            zh="改掉一个被遮住的 token，输出一个都不该变。打印掩码的 dtype：要"
            "么是 bool，要么里面只有 0 和 -inf。",
        ),
        same_shape=True,
        found=("https://github.com/wfondrie/depthcharge/pull/38",),
        tests=(
            "tests/core/test_fused.py::test_it_is_sdpa_under_every_mask"
            "[None-3-causal]",
        ),
        law=equals_torch,
        of=lambda package: (package.fused,),
    ),
    Mistake(
        id="scale-of-the-padded-width",
        title=Text(
            en="The scale is computed after the heads were padded",
            zh="头补零加宽之后才算缩放系数",
        ),
        lines=(
            Lines(
                module="core.fused",
                right="""
    how["scale"] = D**-0.5 if scale is None else scale
    q, k, v = _of_one_width(q, k, v, dropout)
""",
                wrong="""
    q, k, v = _of_one_width(q, k, v, dropout)
    how["scale"] = q.shape[3] ** -0.5 if scale is None else scale
""",
            ),
        ),
        symptom="worse",
        shown=narrow_weights,
        seen=Text(
            en="Zeros do not change a dot product, but they change the width "
            "from which the scale is computed: scores are too small, and the "
            "weight of {where} is {there}.",
            zh="补零不改变点积，却改变了算缩放系数用的维度：分数偏小，"
            "{where} 的权重是 {there}。",
        ),
        notice=Text(
            en="Pad heads by zeros yourself: the result must not change. Pass "
            "`scale` wherever a kernel wants other widths.",
            zh="自己给头补几个零，结果不该变。凡是 kernel 要求别的维度，就把 "
            "`scale` 明确传进去。",
        ),
        same_shape=True,
        found=("https://github.com/intel/ipex-llm/pull/12619",),
        tests=(
            "tests/core/test_fused.py::test_it_is_sdpa_under_every_mask"
            "[None-3-none]",
        ),
        law=wide_values,
        of=lambda package: (package.fused,),
    ),
)
