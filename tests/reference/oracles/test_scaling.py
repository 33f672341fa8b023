"""Every kind of RoPE against the functions and the layers of transformers.

In float32, as transformers computes its angles.
"""

import pytest
import torch
from transformers import (
    DynamicCache,
    Gemma4TextConfig,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3Config,
    Phi3Config,
    Phi3ForCausalLM,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama import modeling_llama as llama
from transformers.models.phi3 import modeling_phi3 as phi3

from attnref import (
    DynamicNtk,
    GroupedQueryAttention,
    KVCache,
    Llama3,
    LongRope,
    PositionInterpolation,
    Proportional,
    Rope,
    Yarn,
)
from sitekit.drawn import scaling as drawn
from tests.kit.compare import relative_error
from tests.kit.oracles import (
    BOUND,
    LENGTH,
    SIZES,
    WRONG,
    B,
    E,
    H,
    K,
    in_ours,
    in_theirs,
    sharpened,
)

D = 64
SHORT = tuple(1 + 0.01 * p for p in range(D // 2))
LONG = tuple(1 + 2.0 * p for p in range(D // 2))
OLD = "original_max_position_embeddings"
# Ours; then what transformers calls it, with its own numbers.
KINDS = {
    "linear": (PositionInterpolation(8.0), {"factor": 8.0}),
    "llama3": (  # Llama 3.1
        Llama3(8.0, 1.0, 4.0, 8192),
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {OLD: 8192},
    ),
    "llama3 of 3.2": (
        Llama3(32.0, 1.0, 4.0, 8192),
        {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {OLD: 8192},
    ),
    "yarn": (Yarn(4.0, 32768), {"factor": 4.0, OLD: 32768}),  # Qwen 2.5
    "yarn of gpt-oss": (
        Yarn(32.0, 4096, truncate=False),
        {"factor": 32.0, "truncate": False, OLD: 4096},
    ),
    "yarn with one beta, not truncated": (
        Yarn(32.0, 4096, 1.0, 1.0, truncate=False, attention_factor=1.5),
        {"factor": 32.0, "truncate": False, OLD: 4096}
        | {"beta_fast": 1.0, "beta_slow": 1.0, "attention_factor": 1.5},
    ),
    "proportional": (Proportional(0.3), {"partial_rotary_factor": 0.3}),
    "longrope": (
        LongRope(SHORT, LONG, 4096, factor=32.0),
        {"short_factor": SHORT, "long_factor": LONG, "factor": 32.0}
        | {OLD: 4096},
    ),
    "longrope with its own scale": (
        LongRope(SHORT, LONG, 4096, attention_factor=1.25),
        {"short_factor": SHORT, "long_factor": LONG, "factor": 32.0}
        | {OLD: 4096, "attention_factor": 1.25},
    ),
    "dynamic": (DynamicNtk(8.0, 4096), {"factor": 8.0}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("theta", [1e4, 5e5])
def test_frequencies_are_those_of_transformers(kind, theta):
    ours, theirs = KINDS[kind]
    name = kind.split()[0]
    config = LlamaConfig(
        head_dim=D,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": name, "rope_theta": theta, **theirs},
    )
    plain = theta ** (-torch.arange(0, D, 2).double() / D)
    for length in 17, 4096, 4097, 30011:
        want, scale = ROPE_INIT_FUNCTIONS[name](
            config, torch.device("cpu"), seq_len=length
        )
        now = ours.at(length)
        got = now.slowed(plain, theta)
        assert torch.equal(got == 0, want == 0)
        turning = want != 0
        assert (got / want - 1)[turning].abs().max() <= BOUND, length
        assert now.table_scale == pytest.approx(scale, rel=1e-12)
    by_length = name in ("dynamic", "longrope")
    assert (ours.at(4096) != ours.at(4097)) == by_length


@pytest.mark.parametrize(
    ("name", "config", "more"),
    [
        ("gpt-oss", GptOssConfig(), {}),
        ("Ministral 3", Ministral3Config(), {}),
        ("Gemma 4", Gemma4TextConfig(), {"layer_type": "full_attention"}),
    ],
)
def test_numbers_of_models_are_the_defaults_of_transformers(name, config, more):
    known, given = drawn.MODELS[name], config.rope_parameters
    given = given.get(more.get("layer_type"), given)
    assert known.theta == given["rope_theta"]
    init = ROPE_INIT_FUNCTIONS[given["rope_type"]]
    want, scale = init(config, torch.device("cpu"), **more)
    before = drawn.plain(known.theta, known.width)
    got = known.scaling.slowed(before, known.theta)
    assert relative_error(got, want) <= BOUND
    assert known.scaling.table_scale == pytest.approx(scale, rel=1e-12)


BASE, L0 = 500.0, 16
FACTORS = {"short_factor": [1.0, 1.1], "long_factor": [1.0, 9.0]}
# Those that depend on the length of the text; the others are compared by
# layers, in tests/released/oracles/test_layers.py.
MODELS = {
    "dynamic": (
        llama,
        "Llama",
        {"rope_type": "dynamic", "factor": 3.0},
        Rope(BASE, scaling=DynamicNtk(3.0, L0)),
    ),
    "Phi-3": (
        phi3,
        "Phi3",
        {"rope_type": "longrope", "partial_rotary_factor": 2 / 3, OLD: L0}
        | FACTORS,
        Rope(BASE, width=4, scaling=LongRope(*FACTORS.values(), L0, 4.0)),
    ),
}
models = pytest.mark.parametrize("model", MODELS)


@torch.no_grad()
def pair(model):
    """Ours, theirs, and their tables."""
    file, name, parameters, rope = MODELS[model]
    # The longest text of LongRoPE; where dynamic frequencies begin to change.
    longest = 4 * L0 if model == "Phi-3" else L0
    D = E // H if model == "Phi-3" else 12
    config = getattr(file, f"{name}Config")(
        **SIZES
        | {"num_key_value_heads": K, "head_dim": D, "pad_token_id": 0}
        | {"max_position_embeddings": longest, "attn_implementation": "eager"}
        | {"rope_parameters": {"rope_theta": BASE, **parameters}}
        | ({OLD: L0} if model == "Phi-3" else {})
    )
    theirs = sharpened(getattr(file, f"{name}Attention")(config, 0))
    weights = theirs.state_dict()
    if "qkv_proj.weight" in weights:
        parts = weights.pop("qkv_proj.weight").split((D * H, D * K, D * K))
        for n, part in zip("qkv", parts, strict=True):
            weights[f"{n}_proj.weight"] = part
    ours = GroupedQueryAttention(
        d_model=E, n_heads=H, n_kv_heads=K, head_dim=D, rope=rope
    )
    ours.load_state_dict(weights)
    rotary = getattr(file, f"{name}RotaryEmbedding")(config)
    return ours.eval().requires_grad_(False), theirs, rotary


@models
@torch.no_grad()
def test_a_whole_text_gives_what_transformers_gives(model):
    ours, theirs, rotary = pair(model)
    for length in LENGTH, L0 - 1:
        x = torch.randn(B, length, E)
        want = in_theirs(theirs, theirs.config, x, (length,), rotary=rotary)
        got = ours(x)
        assert relative_error(got, want) <= BOUND, length
    plain = GroupedQueryAttention(
        d_model=E,
        n_heads=H,
        n_kv_heads=K,
        head_dim=ours.head_dim,
        rope_theta=BASE,
    )
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(B, LENGTH, E)
    want = in_theirs(theirs, theirs.config, x, rotary=rotary)
    assert relative_error(plain(x), want) > WRONG


@models
@torch.no_grad()
def test_up_to_the_trained_length_chunks_are_those_of_transformers(model):
    """And beyond it, transformers attends to keys of two lengths."""
    ours, theirs, rotary = pair(model)
    x, config = torch.randn(B, LENGTH, E), theirs.config
    cache, own = DynamicCache(config=config), KVCache(LENGTH)
    chunks = (9, 4, *[1] * (L0 - 13))
    want = in_theirs(theirs, config, x, chunks, cache, rotary=rotary)
    got = in_ours(ours, x, chunks, own)
    assert relative_error(got, want) <= BOUND
    with pytest.raises(ValueError, match=f"a text of {L0} tokens, and .* 17"):
        ours(x[:, L0 : L0 + 1], cache=own)
    chunks = (*chunks, *[1] * (LENGTH - L0))
    cache = DynamicCache(config=config)
    stale = in_theirs(theirs, config, x, chunks, cache, rotary=rotary)
    whole = in_theirs(theirs, config, x, rotary=rotary)
    assert relative_error(ours(x), whole) <= BOUND
    assert relative_error(stale[:, -1], whole[:, -1]) > WRONG


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 8.0}
BY_LISTS = {"rope_type": "longrope", "rope_theta": 100.0, "factor": 4.0}
BY_LISTS |= {"short_factor": [1.0] * 8, "long_factor": [*range(1, 40, 5)]}
BY_LISTS[OLD] = 16


@pytest.mark.parametrize(
    ("kind", "config", "rope", "same"),
    [
        (Phi3ForCausalLM, Phi3Config, BY_LISTS, True),
        (LlamaForCausalLM, LlamaConfig, DYNAMIC, False),
    ],
)
@torch.no_grad()
def test_which_generate_reads_a_longer_text_again(kind, config, rope, same):
    """That of `longrope` drops the cache, where a call of the model errs."""
    options = {"rope_parameters": rope, "vocab_size": 101, "hidden_size": 64}
    options |= {"num_attention_heads": 4, "num_key_value_heads": 4}
    options |= {"num_hidden_layers": 2, "intermediate_size": 64}
    options |= {"max_position_embeddings": 64 if same else 16}
    options |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    if same:
        options[OLD] = 16
    model = sharpened(kind(config(**options))).eval()
    ids, how = torch.randint(101, (B, 12)), {"max_new_tokens": 12}
    how |= {"do_sample": False, "pad_token_id": 0}
    got, want = (model.generate(ids, **how, use_cache=c) for c in (True, False))
    assert torch.equal(got, want) is same
    cache = DynamicCache(config=model.config)
    model(got[:, :12], cache=cache)
    stale = model(got[:, 12:17], cache=cache).logits[:, -1]
    whole = model(got[:, :17]).logits[:, -1]
    assert relative_error(stale, whole) > WRONG
