"""Of the layers, of converted weights and of a whole model."""

from typing import Any

import torch
from torch import Tensor, nn

from attnref.check.properties import (
    cache_is_small,
    context_is_seen,
    decoding_is_the_full_pass,
    equal_heads_pool,
    equals_multihead_attention,
    evaluation_repeats,
    every_weight_is_used,
    float8_is_near,
    full_cache_refuses,
    future_is_hidden,
    generation_is_the_same,
    head_width_is_free,
    layer_equals_torch,
    layouts_agree,
    new_context_is_read,
    order_is_seen,
    pads_are_unseen,
    pads_change_nothing,
    past_is_seen,
    refusal_changes_nothing,
    residual_passes,
    rope_is_as_published,
    rows_are_apart,
)


def tokens(*shape: int) -> Tensor:
    """Inputs, the same each time."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator)


def filled(module: Any) -> Any:
    """With the same weights each time, so large that softmax decides."""
    generator = torch.Generator().manual_seed(2)
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.5, generator=generator)
    return module.requires_grad_(False)


def mha(p: Any) -> Any:
    return filled(p.mha.MHA(8, 2))


def mqa(p: Any) -> Any:
    return filled(p.mqa.MQA(8, 4))


def mqa_and_weights(p: Any) -> tuple[Any, ...]:
    layer, x = mqa(p), tokens(3, 5, 8)
    return lambda: layer(x), layer.parameters()


def gqa(form: Any, *, rope: bool = True) -> Any:
    """GQA of eight heads and four key/value heads; without RoPE it is what
    PyTorch computes."""
    if not rope:
        form.rope = lambda x, *_: x
    return filled(form.GQA(8, 8, 4, head_dim=2))


def step_by_step(form: Any, layer: Any = None) -> tuple[Any]:
    """GQA that reads token by token into a cache, with pads on the left."""
    layer = layer or gqa(form)

    def attend(x: Tensor, valid: Tensor) -> Tensor:
        cache = form.KVCache(x.shape[1])
        outs = [
            layer(x[:, t : t + 1], cache, valid[:, : t + 1])
            for t in range(x.shape[1])
        ]
        return torch.cat(outs, dim=1)

    return (attend,)


def counted(form: Any) -> Any:
    """A cache that says how many bytes it holds."""

    class Counted(form.KVCache):  # type: ignore[misc]
        @property
        def nbytes(self) -> Any:
            return self.stored.nbytes

    return Counted


def refused_append(kind: Any) -> tuple[Any, ...]:
    cache, tokens = kind(2), torch.ones(3, 1, 3, 1)
    return lambda: cache.append(tokens, tokens), lambda: cache.length


def of_gqa(get: Any) -> tuple[Any, ...]:
    """What holds for GQA in the module that `get` takes from the plain forms:
    it stands in the whole model too."""

    def causal(p: Any) -> tuple[Any, ...]:
        return gqa(get(p)).eval(), tokens(3, 5, 8)

    def padded(p: Any) -> tuple[Any, ...]:
        layer, x = causal(p)
        return lambda x: layer(x, valid=torch.ones(3, x.shape[1]) > 0), x

    return (
        (
            layer_equals_torch,
            lambda p: (gqa(get(p), rope=False), tokens(3, 5, 8), 8, 4),
        ),
        (future_is_hidden, causal),
        (future_is_hidden, padded),
        (past_is_seen, causal),
        (evaluation_repeats, causal),
        (
            pads_are_unseen,
            lambda p: (
                lambda x, valid: gqa(get(p))(x, valid=valid),
                tokens(3, 5, 8),
            ),
        ),
        (pads_change_nothing, lambda p: step_by_step(get(p))),
        (
            decoding_is_the_full_pass,
            lambda p: (gqa(get(p)), lambda: get(p).KVCache(6), tokens(3, 6, 8)),
        ),
        (
            head_width_is_free,
            lambda p: (lambda d: get(p).GQA(24, 6, 2, head_dim=d), 6),
        ),
        (
            rope_is_as_published,
            lambda p: (lambda x, at: get(p).rope(x, at, 5e5), 5e5),
        ),
        (order_is_seen, causal),
        (
            cache_is_small,
            lambda p: (
                gqa(get(p)).bfloat16(),
                counted(get(p)),
                tokens(3, 6, 8).bfloat16(),
                *(4, 2),
            ),
        ),
        (full_cache_refuses, lambda p: (get(p).KVCache,)),
        (refusal_changes_nothing, lambda p: refused_append(get(p).KVCache)),
    )


def cross(p: Any) -> Any:
    return filled(p.cross.CrossAttention(8, 2))


def block(p: Any) -> Any:
    return filled(p.llama.Block(8, 12, 1e-6, n_heads=2, n_kv_heads=1))


def model_and_weights(p: Any) -> tuple[Any, ...]:
    llama, prompt = model(p), torch.arange(6)[None]
    parts = llama.model["layers"], llama.model["norm"]
    used = [weight for part in parts for weight in part.parameters()]
    return lambda: llama(prompt), used


def model(p: Any) -> Any:
    return filled(p.llama.Llama(50, 2, 8, 12, n_heads=2, n_kv_heads=1))


def model_and_caches(p: Any) -> tuple[Any, ...]:
    prompt = torch.arange(12).view(2, 6)
    return model(p), lambda: [p.llama.KVCache(9) for _ in range(2)], prompt


def generator(p: Any) -> tuple[Any]:
    llama = model(p)

    def generate(prompt: Tensor, valid: Tensor, cached: bool) -> Any:
        if cached:
            return llama.generate(prompt, 8, valid)
        for _ in range(8):
            new = llama(prompt, valid=valid)[:, -1:].argmax(-1)
            prompt = torch.cat((prompt, new), dim=1)
            valid = torch.cat((valid, new >= 0), dim=1)
        return prompt

    return (generate,)


def loop_and_queries(name: str, n_kv_heads: int) -> Any:
    """A loop over heads, and its matrices of queries."""

    def of(package: Any) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(3)
        small = (n_kv_heads, 8, 2)[n_kv_heads == 1 :]
        wq, *rest = (
            torch.randn(shape, generator=generator).double() / 2
            for shape in ((4, 8, 2), small, small, (8, 8))
        )
        x, run = tokens(2, 6, 8).double(), getattr(package, name)
        return lambda: run(x, wq, *rest), [wq]

    return of


def second_context(package: Any) -> tuple[Any, ...]:
    layer = filled(package.CrossAttention(d_model=8, n_heads=2))
    x, context = tokens(2, 3, 8), tokens(2, 5, 8)
    return layer, x, context, package.GrowingKVCache()


def pooled(package: Any) -> tuple[Any, ...]:
    mha = filled(package.MultiHeadAttention(d_model=8, n_heads=4))
    return lambda m: package.mha_to_gqa(m, 2), mha, tokens(2, 5, 8), 2


def load_torch(package: Any) -> tuple[Any]:
    def load(theirs: nn.MultiheadAttention) -> Any:
        sizes = {"d_model": 24, "n_heads": 6}
        ours = package.MultiHeadAttention(**sizes, bias=True, causal=False)
        ours.load_state_dict(package.weights_of_torch_mha(theirs))
        return ours

    return (load,)


def reorder_and_rotate(package: Any) -> tuple[Any, ...]:
    def rotate(x: Tensor, layout: str) -> Any:
        tables = package.rope_table(torch.arange(x.shape[2]), x.shape[3])
        return package.apply_rope(x, *tables, layout=layout)

    return lambda weight, dim: package.rope_rows(weight, dim, to="half"), rotate


def dequantised(package: Any) -> tuple[Any]:
    def run(weight: Tensor, scales: Tensor, n: int) -> Any:
        checkpoint = {"x": weight, "x_scale_inv": scales}
        wide = package.dequantised(checkpoint, block=n, dtype=torch.float32)
        return wide["x"]

    return (run,)


def refused_call(package: Any) -> tuple[Any, ...]:
    """Six tokens for three caches, the last of which has room for four."""
    sizes = {"d_model": 8}
    blocks = [
        package.Block(
            package.MultiHeadAttention(**sizes, n_heads=2), **sizes, d_ff=12
        )
        for _ in range(3)
    ]
    model = filled(package.Decoder(blocks, n_tokens=29, **sizes))
    caches = [package.KVCache(room) for room in (8, 8, 4)]
    return (
        lambda: model(torch.arange(6)[None], caches=caches),
        lambda: [cache.length for cache in caches],
    )


SUITES = {
    "plain.mha": (
        (layer_equals_torch, lambda p: (mha(p), tokens(3, 5, 8), 2, 2)),
        (future_is_hidden, lambda p: (mha(p).eval(), tokens(3, 5, 8))),
        (past_is_seen, lambda p: (mha(p), tokens(3, 5, 8))),
        (rows_are_apart, lambda p: (mha(p), tokens(3, 5, 8))),
        (evaluation_repeats, lambda p: (mha(p), tokens(3, 5, 8))),
    ),
    "plain.mqa": (
        (layer_equals_torch, lambda p: (mqa(p), tokens(3, 5, 8), 4, 1)),
        (future_is_hidden, lambda p: (mqa(p).eval(), tokens(3, 5, 8))),
        (past_is_seen, lambda p: (mqa(p), tokens(3, 5, 8))),
        (rows_are_apart, lambda p: (mqa(p), tokens(3, 5, 8))),
        (every_weight_is_used, mqa_and_weights),
        (
            decoding_is_the_full_pass,
            lambda p: (
                mqa(p),
                lambda: p.kv_cache.KVCache(6),
                tokens(3, 6, 8),
            ),
        ),
    ),
    "plain.gqa": of_gqa(lambda p: p.gqa),
    "plain.llama": (
        *of_gqa(lambda p: p.llama),
        (residual_passes, lambda p: (block(p), tokens(3, 5, 8))),
        (every_weight_is_used, model_and_weights),
        (decoding_is_the_full_pass, model_and_caches),
        (generation_is_the_same, generator),
    ),
    "plain.cross": (
        (
            layer_equals_torch,
            lambda p: (cross(p), tokens(3, 5, 8), 2, 2, tokens(3, 4, 8)),
        ),
        (
            context_is_seen,
            lambda p: (cross(p), tokens(3, 5, 8), tokens(3, 4, 8)),
        ),
        (
            pads_are_unseen,
            lambda p: (
                lambda x, valid: cross(p)(tokens(3, 4, 8), x, valid).repeat(
                    1, 2, 1
                )[:, :5],
                tokens(3, 5, 8),
            ),
        ),
    ),
    "layers.mqa": (
        (every_weight_is_used, loop_and_queries("multi_query_loop", 1)),
    ),
    "layers.gqa": (
        (every_weight_is_used, loop_and_queries("grouped_query_loop", 2)),
    ),
    "layers.cross": ((new_context_is_read, second_context),),
    "layers.convert": (
        (equal_heads_pool, pooled),
        (equals_multihead_attention, load_torch),
        (layouts_agree, reorder_and_rotate),
        (float8_is_near, dequantised),
    ),
    "layers.block": ((refusal_changes_nothing, refused_call),),
}
