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

from attnref import (
    DynamicNtk,
    Llama3,
    LongRope,
    PositionInterpolation,
    Proportional,
    Yarn,
)
from sitekit.drawn import scaling as drawn
from tests.kit.compare import relative_error
from tests.kit.oracles import BOUND, WRONG, B, sharpened

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
