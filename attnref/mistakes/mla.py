"""Mistakes in multi-head latent attention (MLA)."""

from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.laws import (
    is_mla,
    latent_is_cached,
    module_is_called,
    yarn_scales_scores,
)

# As in a released model, the width of the model is not that of all heads.
SIZES = {"d_model": 12, "n_heads": 3, "kv_lora_rank": 24, "v_head_dim": 5}
SIZES |= {"qk_nope_head_dim": 6, "qk_rope_head_dim": 8}


def built(package: Any, **options: Any) -> Any:
    """A layer with weights with which softmax decides."""
    layer = package.MultiHeadLatentAttention(**SIZES, **options)
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            weight.copy_(torch.randn(weight.shape, generator=g))
            weight.mul_(0.4).add_(float("norm" in name))
    return layer.double().eval()


def tokens() -> Tensor:
    g = torch.Generator().manual_seed(55)
    return torch.randn(6, 12, generator=g).double()


@torch.no_grad()
def head_weights(package: Any, form: str = "expanded") -> Tensor:
    """The weights of one head of six tokens, as its core of attention gets
    them."""
    found = []

    def attend(q: Any, k: Any, v: Any, mask: Any, **how: Any) -> Any:
        scale = how["scale"]
        found.append(package.attention_weights(q, k, mask, scale=scale)[0, 1])
        return package.sdpa(q, k, v, mask, **how)

    built(package, attend=attend)(tokens()[None], form=form)
    weights: Tensor = found[0]
    return weights


@torch.no_grad()
def cached_elements(package: Any) -> Tensor:
    """The elements that a cache holds per token."""
    cache = package.KVCache(6)
    built(package)(tokens()[None], cache=cache)
    return torch.tensor([sum(t.numel() for t in cache.stored) / 6.0])


@torch.no_grad()
def change_by_a_hook(package: Any) -> Tensor:
    """By how much the output moves where a hook doubles keys and values."""
    layer = built(package)
    before = layer(tokens()[None])
    layer.kv_b_proj.register_forward_hook(lambda module, given, out: 2 * out)
    after = layer(tokens()[None])
    moved: Tensor = (after - before).abs().max()
    return moved[None]


def yarn_scale(package: Any) -> Tensor:
    """The scale of the scores of a layer stretched 40 times by YaRN."""
    yarn = package.Yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
    return torch.tensor([built(package, yarn=yarn).scale], dtype=torch.float64)


def by_hand(form: str | None = None) -> Any:
    """What the law `is_mla` needs."""

    def of(package: Any) -> tuple[Any, ...]:
        layer = built(package)
        given = dict(layer.state_dict())
        sizes = (3, 24, 6, 8, 5)
        return lambda x: layer(x, form=form), given, tokens(), sizes

    return of


def hooked(package: Any) -> tuple[Any, ...]:
    layer = built(package)
    return layer, layer.kv_b_proj, tokens()[None]


def stored(package: Any) -> tuple[Any, ...]:
    def after(x: Tensor) -> Any:
        cache = package.KVCache(x.shape[1])
        with torch.no_grad():
            built(package)(x, cache=cache)
        return cache.stored

    return after, tokens()[None], 24 + 8


def stretched(package: Any) -> tuple[Any, ...]:
    return yarn_scale(package).item(), 6 + 8, 40.0, 1.0


BY_HAND = "tests/layers/test_mla.py::test_the_forms_by_hand"


MISTAKES = (
    Mistake(
        id="mla-scale-of-the-model-width",
        title=Text(
            en="MLA's scale is computed from d_model / n_heads",
            zh="MLA 的缩放系数按 d_model / n_heads 算",
        ),
        lines=(
            Lines(
                module="layers.mla",
                right="""
        self.scale = qk_head_dim**-0.5
""",
                wrong="""
        self.scale = (d_model // n_heads) ** -0.5
""",
            ),
        ),
        symptom="worse",
        shown=head_weights,
        seen=Text(
            en="In MLA, the width of a key is chosen freely and is usually "
            "larger than d_model / n_heads, 192 and not 40 in DeepSeek-V2: "
            "scores are too large, and the weight of {where} is {there}.",
            zh="MLA 的键维度是另外定的，一般比 d_model / n_heads 大（"
            "DeepSeek-V2 里是 192，不是 40）：分数因此偏大，{where} 的权重是 "
            "{there}。",
        ),
        notice=Text(
            en="A model that is trained and run with this scale works, but "
            "with another library or with the weights of a checkpoint the "
            "results differ. Compare at sizes where d_model is not n_heads "
            "times the width of a key.",
            zh="训练和推理都用这个系数，模型自己能用；换一个库，或者装上现成的"
            "权重，结果就不对。要挑 d_model 不等于头数乘键维度的尺寸来对比。",
        ),
        same_shape=True,
        found=("https://github.com/NVIDIA/Megatron-LM/issues/1501",),
        tests=(BY_HAND,),
        law=is_mla,
        of=by_hand(),
    ),
    Mistake(
        id="mla-yarn-scale-left-out",
        title=Text(
            en="YaRN changes RoPE, but not the scale of the scores",
            zh="YaRN 只改了 RoPE，没有改分数的缩放系数",
        ),
        lines=(
            Lines(
                module="layers.mla",
                right="""
        if yarn is not None:
            self.scale *= yarn.softmax_scale
        q_width = n_heads * qk_head_dim
""",
                wrong="""
        q_width = n_heads * qk_head_dim
""",
            ),
        ),
        symptom="worse",
        shown=yarn_scale,
        seen=Text(
            en="With YaRN as in DeepSeek-V3, with a factor of 40, the scale "
            "of this small layer is {wrong} instead of {right}: all scores "
            "are too small.",
            zh="按 DeepSeek-V3 的 YaRN 设置（40 倍），这个小层的缩放系数本应"
            "是 {right}，却成了 {wrong}：分数全都偏小。",
        ),
        notice=Text(
            en="The first token is right, since it sees itself alone. Compare "
            "the others with the library from which the checkpoint comes.",
            zh="第一个 token 只看自己，所以总是对的。要拿后面的 token 和权重出"
            "处的那个库对比。",
        ),
        same_shape=True,
        found=(
            "https://github.com/huggingface/transformers/pull/47435",
            "https://github.com/onnxruntime/mobius/pull/548",
        ),
        tests=("tests/layers/test_mla.py::test_yarn_scales_a_layer",),
        law=yarn_scales_scores,
        of=stretched,
    ),
    Mistake(
        id="mla-norm-left-out",
        title=Text(
            en="The latent is cached and expanded without its RMSNorm",
            zh="潜在向量没有过 RMSNorm 就缓存和展开",
        ),
        lines=(
            Lines(
                module="layers.mla",
                right="""
        c = self.kv_a_layernorm(c)  # (B, 1, T, R)
        q_rope, k_rope = rotate(
""",
                wrong="""
        q_rope, k_rope = rotate(
""",
            ),
        ),
        symptom="worse",
        shown=head_weights,
        seen=Text(
            en="The equations of the paper do not show the norm, and the "
            "layer runs without it. But checkpoints were trained with it: "
            "without it, the attention weight of {where} is {there}.",
            zh="论文的公式里没有写这个归一化，不加也能跑。可是现成的权重是带"
            "着它训练的：少了它，{where} 的注意力权重是 {there}。",
        ),
        notice=Text(
            en="The norm removes the length of the latent: multiply the rows "
            "of `kv_a_proj_with_mqa` that give the latent by 10, and the "
            "output must hardly change.",
            zh="归一化会消去潜在向量的长度：把 `kv_a_proj_with_mqa` 中产生潜在"
            "向量的那些行乘以 10，输出应该几乎不变。",
        ),
        same_shape=True,
        found=(),
        tests=(
            BY_HAND,
            "tests/layers/test_mla.py::"
            "test_the_latent_is_normalised_before_it_is_cached",
        ),
        law=is_mla,
        of=by_hand(),
    ),
    Mistake(
        id="mla-rope-left-out",
        title=Text(
            en="The RoPE parts of queries and keys are not rotated",
            zh="查询和键的 RoPE 部分没有旋转",
        ),
        lines=(
            Lines(
                module="layers.mla",
                right="""
        c = self.kv_a_layernorm(c)  # (B, 1, T, R)
        q_rope, k_rope = rotate(
            q_rope,
            k_rope,
            theta=self.rope_theta,
            past=past,
            positions=positions,
            layout=self.rope_layout,
            yarn=self.yarn,
        )
""",
                wrong="""
        c = self.kv_a_layernorm(c)  # (B, 1, T, R)
""",
            ),
        ),
        symptom="worse",
        shown=head_weights,
        seen=Text(
            en="The RoPE parts are split off and joined again without being "
            "rotated, so the scores do not depend on positions: the weight of "
            "{where} is {there}.",
            zh="RoPE 部分拆出来又原样拼了回去，分数里没有位置信息：{where} 的"
            "权重是 {there}。",
        ),
        notice=Text(
            en="In a single layer, swap two earlier tokens: the output of the "
            "last one must change.",
            zh="只用一层，把前面两个 token 对调，最后一个 token 的输出应该变。",
        ),
        same_shape=True,
        found=("https://github.com/sqliteai/warp/pull/27",),
        tests=(
            BY_HAND,
            "tests/layers/test_mla.py::"
            "test_the_latent_is_normalised_before_it_is_cached",
        ),
        law=is_mla,
        of=by_hand(),
    ),
    Mistake(
        id="mla-rope-by-halves",
        title=Text(
            en="DeepSeek's RoPE is computed with the half layout",
            zh="把 DeepSeek 的 RoPE 当成了前后两半的排布",
        ),
        lines=(
            Lines(
                module="layers.mla",
                right="""
        rope_layout: Literal["half", "interleaved"] = "interleaved",
""",
                wrong="""
        rope_layout: Literal["half", "interleaved"] = "half",
""",
            ),
        ),
        symptom="worse",
        shown=head_weights,
        seen=Text(
            en="DeepSeek's checkpoints pair neighbouring elements; those of "
            "Llama in Hugging Face format pair the first half with the "
            "second. With the wrong pairs, the weight of {where} is {there}.",
            zh="DeepSeek 的权重是相邻两个元素一对，Hugging Face 格式的 Llama "
            "则是前一半和后一半配对。配错了，{where} 的注意力权重是 {there}。",
        ),
        notice=Text(
            en="A model that is trained from scratch works with either "
            "layout; only the weights of a checkpoint show the mistake. "
            "Compare with the library that they come from, at the second "
            "token or later.",
            zh="从头训练的话，两种排布都行，只有装上现成的权重才看得出错。从第"
            "二个 token 起，和权重出处的那个库对比。",
        ),
        same_shape=True,
        found=("https://github.com/hw-native-sys/pypto-lib/pull/244",),
        tests=(BY_HAND,),
        law=is_mla,
        of=by_hand(),
    ),
    Mistake(
        id="mla-caches-expanded-keys",
        title=Text(
            en="MLA caches expanded keys and values, not the latent",
            zh="MLA 缓存了展开后的键和值，没有缓存潜在向量",
        ),
        lines=(
            Lines(
                module="layers.mla",
                right="""
    cheaper = absorbed <= latent and _is_matrix(layer.kv_b_proj)
    return "absorbed" if cheaper else "latent"
""",
                wrong="""
    return "expanded"
""",
            ),
        ),
        symptom="memory",
        shown=cached_elements,
        seen=Text(
            en="The keys and values of all heads are cached. Outputs are "
            "right, but there are {wrong} elements per token and layer "
            "instead of {right}, as many as with multi-head attention.",
            zh="缓存的是所有头的键和值。输出没错，但每层每个 token 要存 "
            "{wrong} 个元素，而不是 {right} 个：和多头注意力一样大。",
        ),
        notice=Text(
            en="Count the elements in the cache. They must not depend on the "
            "number of heads.",
            zh="数一数缓存里的元素，个数应该和头数无关。",
        ),
        same_shape=True,
        found=(
            "https://github.com/huggingface/transformers/pull/47761",
            "https://github.com/deepseek-ai/DeepSeek-R1/issues/238",
        ),
        tests=(
            "tests/layers/test_absorption.py::"
            "test_prefill_and_decode_take_turns_on_one_cache",
        ),
        law=latent_is_cached,
        of=stored,
    ),
    Mistake(
        id="kv-b-proj-not-called",
        title=Text(
            en="The weight of kv_b_proj is read, its module is not called",
            zh="只读了 kv_b_proj 的权重，没有调用这个模块",
        ),
        lines=(
            Lines(
                module="layers.mla",
                right="""
    up = p.up(c)  # (B, 1, S, H * (Dn + Dv))
""",
                wrong="""
    up = c @ p.up.weight.mT  # (B, 1, S, H * (Dn + Dv))
""",
            ),
        ),
        symptom="worse",
        shown=change_by_a_hook,
        seen=Text(
            en="A hook that doubles keys and values changes the output by "
            "{wrong} instead of {right}. A LoRA adapter is ignored in the "
            "same way.",
            zh="挂一个把键和值翻倍的 hook，输出变化 {wrong}，本应是 {right}。"
            "LoRA 适配器也一样被忽略。",
        ),
        notice=Text(
            en="Add an adapter with large weights: the output must change, and "
            "the adapter must get gradients.",
            zh="加一个权重很大的适配器：输出应该变，适配器也应该有梯度。",
        ),
        same_shape=True,
        found=(
            "https://github.com/vllm-project/vllm/issues/48974",
            "https://github.com/sgl-project/sglang/pull/25001",
        ),
        tests=(
            "tests/layers/test_absorption.py::"
            "test_what_absorbing_would_pass_by_is_not_absorbed",
        ),
        law=module_is_called,
        of=hooked,
    ),
)
