"""MLA and YaRN against DeepSeek-V2 and V3, as transformers has them.

In float32, since transformers computes its RoPE tables and norms in it.
"""

from functools import cache, partial
from itertools import cycle

import pytest
import torch
from torch import nn
from transformers import DynamicCache
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss

from attnref import (
    KVCache,
    MultiHeadLatentAttention,
    Rope,
    Scores,
    Yarn,
    absorbed_weights,
    token_positions,
)
from tests.kit.compare import relative_error
from tests.kit.families import gate_output
from tests.kit.oracles import (
    BOUND,
    CHUNKS,
    DN,
    DR,
    LATENT,
    LENGTH,
    ROOM,
    SIZES,
    THEIRS,
    THETA,
    WAYS,
    WRONG,
    B,
    E,
    H,
    Q,
    R,
    in_ours,
    padded,
    positions_of,
    sharpened,
)
from tests.kit.oracles import (
    in_theirs as attended,
)
from tests.variants import VARIANTS

MODELS = {
    "V2": (v2.DeepseekV2Attention, v2.DeepseekV2Config, {}),
    "V3": (v3.DeepseekV3Attention, v3.DeepseekV3Config, {}),
    "V3 in halves": (
        v3.DeepseekV3Attention,
        v3.DeepseekV3Config,
        {"rope_interleave": False},
    ),
}
SHORT = {"factor": 4.0, "original_max_position_embeddings": 64}
LONG = {"factor": 40.0, "original_max_position_embeddings": 4096}
ROPES = {
    "plain": {},
    "both mscales 1": {**SHORT, "mscale": 1.0, "mscale_all_dim": 1.0},
    "two mscales": {**SHORT, "mscale": 0.707, "mscale_all_dim": 0.5},
    "neither mscales nor betas": LONG,
    "mscale alone": {**SHORT, "mscale": 0.707},
    "mscale_all_dim alone": {**SHORT, "mscale_all_dim": 0.5},
    "that of V3": {
        **LONG,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "other betas": {**LONG, "beta_fast": 300.0, "beta_slow": 20.0},
    "that of Kimi K2": {
        **LONG,
        "factor": 32.0,
        "beta_fast": 1.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}

models = pytest.mark.parametrize("model", MODELS)
ropes = pytest.mark.parametrize("rope", ROPES)
FORMS = [name.split()[1] for name in VARIANTS if name.startswith("mla ")]
SHAPES = [
    {"q_lora_rank": rank, "attention_bias": bias}
    for rank in (None, Q)
    for bias in (False, True)
]


@cache
def config_of(model, rope="two mscales", inner="sdpa", theta=THETA, **more):
    _, config, extra = MODELS[model]
    rope = ROPES[rope]
    kind = {"rope_type": "yarn" if rope else "default", "rope_theta": theta}
    trained = rope.get("original_max_position_embeddings", 64)
    sizes = {
        "q_lora_rank": Q,
        "max_position_embeddings": int(trained * rope.get("factor", 1)),
        "rope_parameters": {**kind, **rope},
        "attn_implementation": inner,
    }
    return config(**SIZES | LATENT | sizes | extra | more)


def yarn_of(rope):
    renamed = {"original_max_position_embeddings": "original_max_len"}
    ours = {renamed.get(k, k): value for k, value in ROPES[rope].items()}
    return Yarn(**ours) if ours else None


def rotary_of(config):
    kinds = {
        "deepseek_v2": v2.DeepseekV2RotaryEmbedding,
        "deepseek_v3": v3.DeepseekV3RotaryEmbedding,
    }
    return kinds[config.model_type](config)


def layer_for(config, rope, **options):
    interleaved = getattr(config, "rope_interleave", True)
    layer = MultiHeadLatentAttention(
        d_model=E,
        n_heads=H,
        **LATENT,
        q_lora_rank=config.q_lora_rank,
        bias=config.attention_bias,
        rope=Rope(
            THETA,
            layout="interleaved" if interleaved else "half",
            scaling=yarn_of(rope),
        ),
        **options,
    )
    return layer.eval().requires_grad_(False)


def pair(model, rope="two mscales", inner="sdpa", **more):
    config = config_of(model, rope, inner, **more)
    theirs = sharpened(MODELS[model][0](config, layer_idx=0))
    ours = layer_for(config, rope)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def in_theirs(module, x, chunks=(LENGTH,), cache=None, valid=None):
    """A layer of DeepSeek has its config, and its tables of another kind."""
    return attended(
        module,
        module.config,
        x,
        chunks,
        cache,
        valid,
        None if valid is None else positions_of(valid),
        rotary_of(module.config),
    )


def every_form(ours):
    return [partial(ours, form=form) for form in FORMS]


@models
@ropes
def test_a_whole_prompt_gives_what_transformers_gives(model, rope):
    for shape in SHAPES:
        ours, theirs = pair(model, rope, **shape)
        x = torch.randn(B, LENGTH, E)
        for given in (x, x / 1000):  # so small that the eps of norms is felt
            want = in_theirs(theirs, given)
            for form in every_form(ours):
                got = in_ours(form, given)
                assert relative_error(got, want) <= BOUND, shape


@models
@pytest.mark.parametrize("where", [None, "left", "amid"])
def test_cached_chunks_give_what_transformers_gives(model, where):
    """Without pads, and with some."""
    valid = padded(where or "left") | (where is None)
    for (chunks, inner), make in zip(WAYS, cycle(THEIRS.values())):
        ours, theirs = pair(model, inner=inner)
        x = torch.randn(B, LENGTH, E)
        want = in_theirs(theirs, x, chunks, make(theirs.config), valid)
        for form in every_form(ours):
            cache, places = KVCache(ROOM), token_positions(valid)
            got = in_ours(form, x, chunks, cache, valid, places)
            assert relative_error(got[valid], want[valid]) <= BOUND


@models
@pytest.mark.parametrize("form", ["latent", "absorbed"])
def test_the_cache_holds_what_that_of_transformers_holds(model, form):
    ours, theirs = pair(model)
    config, x = theirs.config, torch.randn(B, LENGTH, E)
    cache, their_cache = KVCache(ROOM), DynamicCache(config=config)
    in_ours(partial(ours, form=form), x, CHUNKS["ragged"], cache)
    in_theirs(theirs, x, CHUNKS["ragged"], their_cache)
    (entry,), (held,) = cache.stored, their_cache.layers
    c, k_rope = entry.split((R, DR), dim=-1)
    if model == "V3":  # which turns pairs into halves as it turns them
        k_rope = k_rope.unflatten(-1, (-1, 2)).mT.flatten(-2)
    assert relative_error(c, held.keys) <= BOUND
    assert relative_error(k_rope, held.values) <= BOUND


def test_a_gate_of_the_output_in_each_form():
    """As in Kimi K3: of the input, one for each channel, before `o_proj`."""
    _, theirs = pair("V3")
    gate_output(theirs, E)
    sharpened(theirs.g_proj)
    theirs.to(theirs.o_proj.weight)
    ours = layer_for(theirs.config, "two mscales", output_gate=True)
    ours.to(theirs.o_proj.weight).load_state_dict(theirs.state_dict())
    x, valid = torch.randn(B, LENGTH, E), padded("left")
    want = in_theirs(theirs, x, valid=valid)
    options = {"valid": valid, "positions": token_positions(valid)}
    for form in every_form(ours):
        for chunks in CHUNKS.values():
            got = in_ours(form, x, chunks, KVCache(ROOM), **options)
            assert relative_error(got[valid], want[valid]) <= BOUND
    with pytest.raises(ValueError, match="an output gate stands between"):
        absorbed_weights(ours)
    ours.g_proj = None
    got = in_ours(ours, x, **options)
    assert relative_error(got[valid], want[valid]) >= WRONG


SCORES = {  # and whose function attends within DeepSeek's layer
    "scale and softcap": (
        Scores(scale=0.4, softcap=2.0),
        gemma2.eager_attention_forward,
    ),
    "sinks": (Scores(sinks=True), gpt_oss.eager_attention_forward),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_of_other_models_in_each_form(name, monkeypatch):
    scores, other = SCORES[name]
    _, theirs = pair("V3", inner="eager")
    ours = layer_for(theirs.config, "two mscales", scores=scores)
    sharpened(ours).load_state_dict(theirs.state_dict(), strict=False)
    if scores.sinks:
        theirs.sinks = nn.Parameter(ours.sinks.clone())
    else:
        theirs.scaling = scores.scale
        other = partial(other, softcap=scores.softcap)
    monkeypatch.setattr(v3, "eager_attention_forward", other)
    x, valid = torch.randn(B, LENGTH, E), padded("left")
    want = in_theirs(theirs, x, valid=valid)
    options = {"valid": valid, "positions": token_positions(valid)}
    for form in every_form(ours):
        for chunks in CHUNKS.values():
            got = in_ours(form, x, chunks, KVCache(ROOM), **options)
            assert relative_error(got[valid], want[valid]) <= BOUND
    ours.scores, ours.sinks = Scores(), None
    ours.scale = (DN + DR) ** -0.5 * ours.rope.scaling.softmax_scale
    got = in_ours(ours, x, **options)
    assert relative_error(got[valid], want[valid]) >= WRONG
