"""What is counted from a config.json, against the models of transformers."""

import json
import tomllib
from pathlib import Path

import pytest
import torch

from attnref.numbers.kv_memory import kv_bytes, state_bytes
from attnref.numbers.shapes import Compressed
from attnref.released import specs
from attnref.released.record import families, sized
from attnref.released.specs import configs, find_model
from tests.kit.families import FAMILIES, SIZED, config_of, model_of, shape_of

# Have no cache to count, or do not return it.
UNLIKE = {"granite4_vision_text", "openai-gpt", "recurrent_gemma", "xlstm"}


def shape_of_theirs(config):
    """The shape of a config of transformers, as if read from a file."""
    return shape_of(json.loads(json.dumps(config.to_dict())))


# Every run compares one family of each kind, and the audit all families.
QUICK = {
    *("deepseek_v4", "dory", "inkling2_loop_text", "mistral_large4_text"),
    "deepseek_v3",
    "gemma3_text",
    "gpt2",
    "gpt_oss",
    "jamba",
    "llama4_text",
}
ATTENTION_FAMILIES, SIZED_FAMILIES = (
    [
        pytest.param(f, marks=() if f in QUICK else pytest.mark.audit)
        for f in names
    ]
    for names in (FAMILIES, SIZED)
)


# Fields that change the parameters, with values that are not the default.
FLAGS = {
    "bamba": {"mamba_proj_bias": True, "mamba_conv_bias": False},
    "falcon": {"new_decoder_architecture": False, "parallel_attn": False},
    "falcon_h1": {"mamba_rms_norm": True, "projectors_bias": True},
    "gemma4_text": {
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 16,
        "use_double_wide_mlp": True,
    },
    "granitemoehybrid": {"num_local_experts": 0},
    "jamba": {"mamba_dt_rank": "auto"},
    "lfm2": {"block_auto_adjust_ff_dim": False, "conv_bias": True},
    "mistral_large4_text": {"attention_bias": True},
    "nemotron_h": {"moe_latent_size": 20},
    "opt": {"enable_bias": False},
}


@pytest.mark.parametrize(
    ("family", "changes"),
    [pytest.param(*p.values, {}, marks=p.marks) for p in ATTENTION_FAMILIES]
    + [*FLAGS.items()],
)
def test_the_parameters_of_a_family_are_those_of_transformers(family, changes):
    """A family of which not every module is known has no count."""
    config = config_of(family, **changes)
    tied = getattr(config, "tie_word_embeddings", None)
    fields = json.loads(json.dumps(config.to_dict()))  # the model with the head
    fields["tie_word_embeddings"] = bool(tied)  # says so, if the text does not
    params = shape_of(fields).params
    assert (params is not None) == bool(families()[family].weights)
    if params is not None:
        model = model_of(config)
        count = sum(weight.numel() for weight in model.parameters())
        heads = {"lm_head", "embed_out"} & model._modules.keys()
        if not heads and not tied:
            count += config.vocab_size * config.hidden_size
        if family == "longcat_flash":  # theirs has matrices of experts that
            c = config  # only pass x on, which no file has
            width = c.expert_ffn_hidden_size * c.hidden_size
            count -= c.num_layers * c.zero_expert_num * 2 * width
        assert params == count


def test_each_family_of_sizes_is_compared_and_has_no_other_row():
    assert {*SIZED} == {*sized()}
    folder = Path(specs.__file__).parent
    rows, other_rows = (
        {*tomllib.loads((folder / name).read_text("utf-8"))}
        for name in ("sizes.toml", "families.toml")
    )
    assert not rows & other_rows, "delete the rows of sizes.toml"


TENSORS = "keys", "values", "indexer_keys", "idx_keys"


@pytest.mark.parametrize(
    "family",
    [p for p in ATTENTION_FAMILIES if p.values[0] not in UNLIKE]
    + SIZED_FAMILIES,
)
def test_the_cache_of_every_family_is_that_of_transformers(family):
    config = config_of(family)
    model, tokens = shape_of_theirs(config), 5
    out = model_of(config)(torch.randint(3, 41, (3, tokens)), use_cache=True)
    past = out.cache
    # One vector is key and value: transformers stores it twice in a window.
    is_compressed = isinstance(model.groups[0], Compressed)
    elements = sum(
        getattr(layer, name).numel()
        for layer in past.layers
        for name in TENSORS
        if isinstance(getattr(layer, name, None), torch.Tensor)
        and not (is_compressed and name == "values")
    )
    elements += sum(
        entries.numel()
        for layer in past.layers
        for entries in getattr(layer, "compressed_kv", {}).values()
        if entries is not None
    )
    if family == "falcon":  # it stores each head for every query head
        elements //= model.groups[0].q_heads // model.groups[0].kv_heads
    if family == "glm5_next_text":  # it stores whether each token is a pad
        keys = [getattr(layer, "indexer_keys", None) for layer in past.layers]
        elements -= sum(3 * tokens for key in keys if key is not None)
    size = kv_bytes(model, tokens, batch=3) - state_bytes(model, batch=3)
    assert size == 2 * elements
    if "not counted" in model.note:
        return
    states = [states_of(layer) for layer in past.layers]
    if family == "zaya":  # all inputs are read again, and a value is no state
        kinds = "recurrent_states", "conv_states"
        kept = [getattr(x, kind)[0] for x in past.layers for kind in kinds]
        states = [2 * t.numel() for t in kept]
    lightning = getattr(past, "linear_cache", [])
    states += [4 * t.numel() for t in lightning if len(t)]
    assert state_bytes(model, batch=3) == sum(states)


def states_of(layer):
    """The bytes of states in float32, and of the inputs of a convolution in
    bfloat16, but for the newest one: the next step does not read it."""
    states = getattr(layer, "recurrent_states", {}).values()
    inputs = getattr(layer, "conv_states", {}).values()
    return sum(4 * t.numel() for t in states if t is not None) + sum(
        2 * t[..., 1:].numel() for t in inputs if t is not None
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"indexer_types": ["full", "full", "shared", "full"]},
        {"index_topk_pattern": "FSSF"},
        {"index_topk_freq": 3, "index_skip_topk_offset": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_layers_that_share_an_indexer_store_no_key_of_their_own(changes):
    config = config_of("glm_moe_dsa", **changes)
    fields = json.loads(json.dumps(config.to_dict()))
    if "indexer_types" not in changes:  # as the Hub has it
        del fields["indexer_types"]
    model = shape_of(fields | changes)
    widths = [g.index_dim for g in model.groups for _ in range(g.layers)]
    theirs = model_of(config)
    assert model.params == sum(w.numel() for w in theirs.parameters())
    past = theirs(torch.randint(3, 41, (3, 5)), use_cache=True).cache
    indexer_keys = [layer.indexer_keys for layer in past.layers]
    total = sum(keys.shape[-1] for keys in indexer_keys if keys is not None)
    assert sum(widths) == total < 4 * config.index_head_dim


def test_a_file_without_the_number_of_tokens_has_a_cache_to_count():
    model = shape_of(config_of("gpt2").to_dict() | {"vocab_size": None})
    assert model.params is None and kv_bytes(model, 5)


def test_layers_whose_state_is_not_known_are_refused():
    config = config_of("llama").to_dict()
    message = "layers of the kind linear_attention store .* counted too small"
    with pytest.raises(ValueError, match=message):
        shape_of(config | {"layer_types": 4 * ["linear_attention"]})
    config = config_of("lfm2").to_dict()
    with pytest.raises(
        ValueError, match="lfm2: kernel cannot be computed from conv_L_cache=0"
    ):
        shape_of(config | {"conv_L_cache": 0})
    with pytest.raises(
        ValueError, match="lfm2: the config has no conv_L_cache"
    ):
        shape_of(config | {"conv_L_cache": None})


def test_a_field_that_is_not_known_is_refused_if_it_may_change_bytes():
    """Its name decides. All such fields are named; other fields are noted."""
    config = config_of("llama").to_dict()
    changes = {"qkv_clip": 3, "use_mystery": 1, "rope_parameters": None}
    changes |= {"rope_scaling": {"type": "su", "mystery": 2}}
    lenient = shape_of(config | changes)
    assert lenient.unread == ("qkv_clip", "use_mystery")
    assert lenient.groups == shape_of(config).groups and lenient.params is None
    wrong = {"num_kv_shared_layers": 2, "mystery_rank": 7, "use_mystery": 1}
    message = r"stored: num_kv_shared_layers=2, mystery_rank=7$"
    with pytest.raises(ValueError, match=message):
        shape_of(config | wrong)
    with pytest.raises(ValueError, match=r"stored: mystery_window=7$"):
        shape_of(config_of("dory").to_dict() | {"mystery_window": 7})


def test_what_tokens_see_and_rotate_changes_no_bytes():
    """What `copy` refuses, since it changes attention, `kv` counts."""
    config = config_of("llama").to_dict()
    off = config | {"is_causal": False, "use_rope": False}
    assert shape_of(off).groups == shape_of(config).groups
    assert shape_of(off).unread == ("use_rope",)
    assert shape_of(config | {"is_causal": False}) == shape_of(config)


def test_loops_have_a_cache_for_each_run():
    """36 layers, of which the 20 in the middle run twice: 56 caches, or 36
    where only the last run writes."""
    dory = {"model_type": "dory", "hidden_size": 2560, "head_dim": 256}
    dory |= {"num_attention_heads": 16, "num_key_value_heads": 4}
    assert shape_of(dory).layers == 56
    last = {"recurrent_kv_cache_mode": "last_loop"}
    assert shape_of(dory | last).layers == 36


def test_parameters_of_a_file_of_images_too_are_those_of_its_text():
    """Qwen2.5-VL-7B has the text model of Qwen2.5-7B, which has 7.62B."""
    config = {"model_type": "qwen2_5_vl", "num_hidden_layers": 28}
    config |= {"hidden_size": 3584, "intermediate_size": 18944}
    config |= {"num_attention_heads": 28, "num_key_value_heads": 4}
    config |= {"vocab_size": 152064, "tie_word_embeddings": False}
    model = shape_of(config | {"use_sliding_window": False})
    assert model.params == 7_615_616_512


def test_makers_round_what_the_released_config_gives():
    """Their number of parameters differs from the count by at most 2%."""
    errors = {}
    for id, config in configs().items():
        count, published = shape_of(config).params, find_model(id).params
        if count and count != published:
            errors[id] = abs(count / published - 1)
    assert len(errors) >= 8 and max(errors.values()) < 0.02, errors
