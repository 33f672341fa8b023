"""Mistakes around the layers: residuals, norms and a stack of caches."""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.laws import (
    every_weight_is_used,
    refusal_changes_nothing,
    residual_passes,
)
from attnref.mistakes.mha import filled, tokens


def block(package: Any) -> Any:
    layer = package.MultiHeadAttention(d_model=8, n_heads=2)
    return package.Block(layer, d_model=8, d_ff=12)


@torch.no_grad()
def passed(package: Any) -> Tensor:
    """What a silent block leaves of a token with a mean square of 100."""
    layer = block(package).double()
    layer.self_attn.o_proj.weight.zero_()
    layer.mlp.down_proj.weight.zero_()
    x = tokens(1, 1, 8)
    x *= 10 / x.square().mean().sqrt()
    left: Tensor = layer(x).square().mean().sqrt()
    return left


@torch.no_grad()
def norm_doubled(package: Any) -> Tensor:
    """How far outputs move if the weight of the second norm is doubled."""
    layer, x = filled(block(package)), tokens(1, 6, 8)
    before = layer(x)
    layer.post_attention_layernorm.weight *= 2
    change: Tensor = (layer(x) - before).abs().max()
    return change


def output_and_weights(package: Any) -> tuple[Any, ...]:
    layer = filled(block(package))
    return lambda: layer(tokens(2, 5, 8)), layer.parameters()


def decoder(package: Any, layers: int) -> Any:
    blocks = [block(package) for _ in range(layers)]
    return filled(package.Decoder(blocks, n_tokens=29, d_model=8))


@torch.no_grad()
def largest_logit(package: Any) -> Tensor:
    logits: Tensor = decoder(package, 2)(torch.arange(6)[None])
    return logits.abs().max()


def logits_and_norm(package: Any) -> tuple[Any, ...]:
    model = decoder(package, 2)
    return lambda: model(torch.arange(6)[None]), model.norm.parameters()


def refused_call(package: Any) -> tuple[Any, ...]:
    """Six tokens for three caches, the last of which has room for four."""
    model, prompt = decoder(package, 3), torch.arange(6)[None]
    caches = [package.KVCache(room) for room in (8, 8, 4)]

    @torch.no_grad()
    def call() -> None:
        model(prompt, caches=caches)

    return call, lambda: [cache.length for cache in caches]


def lengths(package: Any) -> Tensor:
    """What three caches hold after a call that is refused."""
    call, state = refused_call(package)
    with suppress(ValueError):
        call()
    return torch.tensor(state()).double()


MISTAKES = (
    Mistake(
        id="residual-after-the-norm",
        title=Text(
            en="The residual is taken after the norm",
            zh="残差取自归一化之后",
        ),
        lines=(
            Lines(
                module="models.block",
                right="""
        x = x + self.self_attn(self.input_layernorm(x), **attention)
""",
                wrong="""
        x = self.input_layernorm(x)
        x = x + self.self_attn(x, **attention)
""",
            ),
        ),
        symptom="worse",
        shown=passed,
        seen=Text(
            en="Attention and MLP are made to give zeros here, so that a "
            "token with a root mean square of {right} should pass unchanged. "
            "It leaves with {wrong}: each block normalises the residual "
            "stream.",
            zh="这里让注意力和 MLP 都输出 0，均方根为 {right} 的 token 本该原"
            "样通过，出来却成了 {wrong}：每个块都把残差流归一化了一遍。",
        ),
        notice=Text(
            en="Set the last weights of attention and MLP to zero: the block "
            "must return its input. Training still works, only worse, and "
            "with weights that were trained elsewhere the results are wrong.",
            zh="把注意力和 MLP 最后一层的权重置零，块的输出就必须等于输入。训"
            "练照样能进行，只是更差；加载别处训练的权重，结果就是错的。",
        ),
        same_shape=True,
        found=(
            "https://github.com/pytorch/pytorch/issues/61165",
            "https://github.com/Howuhh/faster-trajectory-transformer/issues/3",
            "https://github.com/SHI-Labs/Compact-Transformers/issues/25",
        ),
        tests=(
            "tests/models/test_block.py::"
            "test_what_attention_says_is_added_to_the_stream",
        ),
        law=residual_passes,
        of=lambda package: (filled(block(package)), tokens(2, 5, 8)),
    ),
    Mistake(
        id="residual-of-the-result",
        title=Text(
            en="The result is added to itself: x = attention(x); x + x",
            zh="结果加到了自己身上：x = attention(x)，再 x + x",
        ),
        lines=(
            Lines(
                module="models.block",
                right="""
        x = x + self.self_attn(self.input_layernorm(x), **attention)
""",
                wrong="""
        x = self.self_attn(self.input_layernorm(x), **attention)
        x = x + x
""",
            ),
        ),
        symptom="worse",
        shown=passed,
        seen=Text(
            en="Attention and MLP are made to give zeros here, so that a "
            "token with a root mean square of {right} should pass unchanged. "
            "It leaves with {wrong}: the result overwrites the input before "
            "the two are added.",
            zh="这里让注意力和 MLP 都输出 0，均方根为 {right} 的 token 本该原"
            "样通过，出来却成了 {wrong}：还没相加，输入就被结果覆盖了。",
        ),
        notice=Text(
            en="Set the last weights of attention and MLP to zero: the block "
            "must return its input.",
            zh="把注意力和 MLP 最后一层的权重置零，块的输出就必须等于输入。",
        ),
        same_shape=True,
        found=("https://github.com/kyegomez/BitNet/issues/32",),
        tests=(
            "tests/models/test_block.py::"
            "test_what_attention_says_is_added_to_the_stream",
        ),
        law=residual_passes,
        of=lambda package: (filled(block(package)), tokens(2, 5, 8)),
    ),
    Mistake(
        id="one-norm-used-twice",
        title=Text(
            en="Attention and MLP share one norm",
            zh="注意力和 MLP 共用一个归一化层",
        ),
        lines=(
            Lines(
                module="models.block",
                right="""
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
""",
                wrong="""
        out: Tensor = x + self.mlp(self.input_layernorm(x))
""",
            ),
        ),
        symptom="worse",
        shown=norm_doubled,
        seen=Text(
            en="If the weight of the second norm is doubled, the outputs "
            "should change by up to {right}. They change by {wrong}: this "
            "norm is never called.",
            zh="把第二个归一化层的权重加倍，输出最多应变化 {right}，这里却变化"
            " {wrong}：它根本没有被调用。",
        ),
        notice=Text(
            en="Look for parameters that have no gradient after a backward "
            "pass. If only one norm was built to begin with, the checkpoint "
            "of a Llama does not load.",
            zh="反向传播之后，找一找没有梯度的参数。如果从一开始就只建了一个归"
            "一化层，Llama 的权重就加载不进来。",
        ),
        same_shape=True,
        found=(
            "https://github.com/allenai/OLMo/issues/222",
            "https://github.com/ml-explore/mlx-swift/pull/171",
            "https://github.com/bentrevett/pytorch-seq2seq/pull/100",
        ),
        tests=(
            "tests/models/test_block.py::"
            "test_a_block_normalises_before_and_adds_after[mqa, room]",
        ),
        law=every_weight_is_used,
        of=output_and_weights,
    ),
    Mistake(
        id="last-norm-missing",
        title=Text(
            en="The norm before the output layer is missing",
            zh="输出层之前少了最后一次归一化",
        ),
        lines=(
            Lines(
                module="models.block",
                right="""
        logits: Tensor = self.lm_head(self.norm(x))
""",
                wrong="""
        logits: Tensor = self.lm_head(x)
""",
            ),
        ),
        symptom="worse",
        shown=largest_logit,
        seen=Text(
            en="The largest logit is {wrong} instead of {right}: the output "
            "layer reads the residual stream as it is, however large it has "
            "become.",
            zh="最大的 logit 是 {wrong}，应为 {right}：输出层直接读残差流，不"
            "管它已经变得多大。",
        ),
        notice=Text(
            en="Look for parameters that have no gradient after a backward "
            "pass. In a pre-norm model each sublayer normalises its own "
            "input, so that their sum needs one more norm at the end.",
            zh="反向传播之后，找一找没有梯度的参数。pre-norm 模型里，每个子层"
            "只归一化自己的输入，所以最后的总和还需要再归一化一次。",
        ),
        same_shape=True,
        found=(
            "https://github.com/vllm-project/speculators/pull/313",
            "https://github.com/NVIDIA-NeMo/Speech/pull/2197",
        ),
        tests=(
            "tests/models/test_block.py::"
            "test_a_decoder_is_its_blocks_between_two_tables[0-{}]",
        ),
        law=every_weight_is_used,
        of=logits_and_norm,
    ),
    Mistake(
        id="caches-written-in-part",
        title=Text(
            en="A refused call leaves some caches written",
            zh="调用被拒绝，一部分缓存却已经写入",
        ),
        lines=(
            Lines(
                module="models.block",
                right="""
        if caches is not None:
            self._check(caches, tokens.shape[1], attention.get("context"))
        x = self.embed_tokens(tokens)  # (B, T, E)
""",
                wrong="""
        x = self.embed_tokens(tokens)  # (B, T, E)
""",
            ),
        ),
        symptom="decoding",
        shown=lengths,
        seen=Text(
            en="Six tokens do not fit into the third cache, and the call is "
            "refused. The three caches then hold {wrong} tokens instead of "
            "{right}: the first two layers had stored them already.",
            zh="六个 token 放不进第三层的缓存，调用被拒绝。这时三个缓存里的 "
            "token 数是 {wrong}，应为 {right}：前两层已经把它们存了进去。",
        ),
        notice=Text(
            en="Catch the error and look at the lengths of all caches. If the "
            "call is repeated with a larger third cache and the others have "
            "room, it succeeds, and the first layers see each token twice.",
            zh="捕获这个错误，看看各层缓存的长度。换一个更大的第三层缓存再试，"
            "只要前两层还放得下，就不会报错，但它们会把每个 token 看到两遍。",
        ),
        same_shape=True,
        found=("https://github.com/ggml-org/llama.cpp/pull/9525",),
        tests=(
            "tests/models/test_block.py::"
            "test_a_decoder_looks_at_all_caches_before_it_writes_to_one",
        ),
        law=refusal_changes_nothing,
        of=refused_call,
    ),
)
