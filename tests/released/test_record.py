"""What is read of a config.json, and what is refused."""

import json
import math
import random
import re
from contextlib import suppress
from dataclasses import fields
from inspect import getmodule, getsource

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attnref import AttentionRecord, attention_of
from attnref.released.expression import FUNCTIONS, names_in, value_of
from attnref.released.from_config import STATE
from attnref.released.generate import file_of
from attnref.released.record import (
    OF_ROPE,
    families,
    read_by,
    read_config,
)
from attnref.released.specs import configs
from attnref.released.weights import LAST
from tests.kit.families import (
    FAMILIES,
    HOSTILE,
    class_of,
    config_of,
    mixers_of,
    records_of,
    shape_of,
    spoiled,
)

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
}
RELEASED = configs()
MIMO = {
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, *7 * [1, 1, 1, 1, 1, 0]],
    "sliding_window": 128,
    "sliding_window_size": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "swa_rope_theta": 10000,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "attention_chunk_size": 128,
    "partial_rotary_factor": 0.334,
    "rope_theta": 5000000,
}
NEMOTRON = dict(RELEASED["nemotron-3-nano"])
NEMOTRON["attention_head_dim"] = NEMOTRON.pop("head_dim")
LFM2 = {"layer_types": None, "full_attn_idxs": [2, 5, 8], "block_dim": 2048}
MROPE = {"type": "mrope", "mrope_section": [16, 24, 24]}
# Fields from before transformers 5 that no config of specs.json has.
OLD = {
    "Gemma 3 with a scaling": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "num_attention_heads": 8,
        "num_hidden_layers": 7,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "GPT-NeoX": {
        "model_type": "gpt_neox",
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_hidden_layers": 2,
        "rotary_pct": 0.5,
        "rotary_emb_base": 20000,
        "max_position_embeddings": 2048,
    },
    "Qwen2 with windows": RELEASED["qwen2.5-7b"]
    | {"use_sliding_window": True, "max_window_layers": 2},
    "Qwen2.5-VL": RELEASED["qwen2.5-vl-7b"]
    | {"rope_scaling": MROPE, "vision_config": {"depth": 2}},
    "MiMo-V2-Flash": RELEASED["mimo-v2-flash"] | MIMO,
    "MiniMax-M2": RELEASED["minimax-m2"]
    | {"use_qk_norm": True, "qk_norm_type": "per_layer"}
    | {"attn_type_list": 62 * [1]},
    "LFM2": RELEASED["lfm2-1.2b"] | LFM2,
    "Nemotron 3 Nano": NEMOTRON,
}


@pytest.mark.parametrize(
    "config",
    [*OLD.values(), *RELEASED.values()],
    ids=[*OLD, *RELEASED],
)
def test_both_schemas_give_one_record(config):
    """transformers reads the file and writes it with the fields of today."""
    family = read_config(config).family
    kind = CONFIG_MAPPING[family]
    copied = json.loads(json.dumps(config | {"model_type": family}))
    today = kind.from_dict(copied)  # which changes what it is given
    today = json.loads(today.to_json_string(False))
    assert both(config) == both(today)


def both(config):
    """The records of all layers, of whatever kind."""
    return records_of(config), mixers_of(config)


ATTENDS = {  # by default, all layers are recurrent
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": 32 * ["full_attention"]},
    "minimax_m3_vl_text": {"rotary_dim": 128},
    "qwen4_exp_text": {
        "indexer_n_heads": 8,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_field_left_out_means_what_transformers_takes(family):
    kind = CONFIG_MAPPING[family]
    defaults = kind().to_dict()
    changes = dict(ATTENDS.get(family, {}))
    if {"hidden_size", "num_attention_heads"} <= defaults.keys():
        changes["hidden_size"] = 64 * defaults["num_attention_heads"]
    full = kind(**changes).to_dict()
    for name in families()[family].defaults:
        names = {name, "rope_parameters"} if name in OF_ROPE else {name}
        short = {k: v for k, v in full.items() if k not in names}
        assert records_of(short) == records_of(full), f"without {names}"
    # Of other fields, that or a refusal.
    fields = config_of(family).to_dict()
    reads = families()[family].reads | read_by(families()[family].mixer)
    for name in sorted(reads & fields.keys()):
        short = {k: v for k, v in fields.items() if k != name}
        with suppress(ValueError, StrictDataclassError):
            ours = both(short)
            theirs = kind.from_dict(short).to_dict()
            assert ours == both(theirs), f"without {name}"


def test_kimi_k2_is_read_as_what_it_repeats():
    """Its makers call it so to tell the two apart; the code is the same."""
    base = RELEASED["deepseek-v3"]
    assert records_of(base | {"model_type": "kimi_k2"}) == records_of(base)
    nested = {"model_type": "kimi_k25", "text_config": base}
    nested["text_config"] = base | {"model_type": "kimi_k2"}
    assert records_of(nested) == records_of(base)


def test_a_field_within_another_is_read_or_refused():
    """As `gate_lower_bound`, without which Kimi K3 decays otherwise."""
    config = RELEASED["kimi-linear-48b"]
    inner = config["linear_attn_config"]
    bounded = inner | {"gate_lower_bound": -5.0}
    assert mixers_of(config | {"linear_attn_config": bounded})[0].bound == -5
    for name, value in {"beta_max": 2.0, "kda_lower_bound": -5.0}.items():
        changed = config | {"linear_attn_config": inner | {name: value}}
        message = f"attention does not read linear_attn_config.{name}={value}"
        with pytest.raises(ValueError, match=message):
            attention_of(changed, 3)
        assert mixers_of(config | {"linear_attn_config": inner | {name: None}})


def test_a_file_of_images_too_says_its_family_outside():
    nested = {"model_type": "llama9", "text_config": {"hidden_size": 64}}
    with pytest.raises(ValueError, match="model_type='llama9' is none of"):
        attention_of(nested)
    nested = {"model_type": "llama", "text_config": dict(LLAMA)}
    del nested["text_config"]["model_type"]
    assert attention_of(nested) == attention_of(LLAMA)


THINKERS = "qwen2_5_omni", "qwen3_omni_moe", "qwen3_asr"


@pytest.mark.parametrize("family", THINKERS)
def test_of_a_model_that_hears_the_text_model_is_read(family):
    """Its file has it in that of the thinker, which one of them has alone."""
    text = AutoConfig.for_model(family).to_json_string(use_diff=False)
    fields = json.loads(text)
    thinker = fields.get("thinker_config", fields)
    thinker["text_config"]["head_dim"] = 128
    text = thinker["text_config"]
    assert len(records_of(text)) == text["num_hidden_layers"] >= 28
    assert records_of(fields) == records_of(text)
    assert records_of({"thinker_config": thinker}) == records_of(text)
    quant = {"quantization_config": {"quant_method": "fp8"}}
    outer = {"model_type": family, "thinker_config": thinker, **quant}
    fields = read_config(text).fields | quant
    assert read_config(outer).fields.items() >= fields.items()
    if family == "qwen3_asr":
        audio = {"use_qk_norm": True, "audio_config": {"d_model": 64}}
        for name in ("qwen3_asr_text", "qwen3_asr_thinker", None):
            flat = {"thinker_config": text | audio | {"model_type": name}}
            flat["model_type"] = family
            assert read_config(flat).family == "qwen3"
            assert [*records_of(flat)] == [*records_of(text)]


@pytest.mark.parametrize(
    ("name", "family"),
    [("minimax_m3", "minimax_m3_vl_text"), ("deepseek_ref", "deepseek_v4")],
)
def test_a_family_has_other_names_in_files_of_engines(name, family):
    fields = config_of(family).to_dict()
    assert both(fields | {"model_type": name}) == both(fields)


def test_the_first_lines_say_what_else_weights_and_positions_need():
    quantised = {"quantization_config": {"quant_method": "fp8"}}
    header = file_of(LLAMA | quantised).split('"""')[1]
    assert "quantised by fp8, as published; load refuses them.\n" in header
    images = config_of("qwen2_5_vl_text").to_dict()
    assert "them.\nWith images, forward" in file_of(images | quantised)
    hunyuan = config_of("hunyuan_vl_text").to_dict()
    assert "them.\nFor text: a token" in file_of(hunyuan | quantised)
    assert "For text" not in file_of(LLAMA)


# Where the tokens of an image see each other, in transformers, and a family
# of which no file has it.
SEEN_BY_EACH_OTHER = {"gemma3_text", "gemma4_unified_text", "molmo2_text"}
OTHERS = "molmo2_text"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_says_what_it_takes_with_images_or_that_it_is_for_text(family):
    config = config_of(family)
    header = file_of(config).split('"""')[1]
    source = getsource(getmodule(class_of(config)))
    text = "For text: a token of an image has three positions" in header
    takes = "forward takes places= (3, B, T)" in header
    assert takes == ("places=None" in file_of(config))
    assert (text or takes) == ("def get_rope_index" in source)
    assert not (text and takes)
    text = "For text: the tokens of an image see each other" in header
    assert text == (family == OTHERS)
    takes = "forward takes blocks= (B, S)" in header
    assert takes == ("blocks=None" in file_of(config))
    assert (text or takes) == (family in SEEN_BY_EACH_OTHER)


def test_of_gemma_4_only_files_with_images_take_their_numbers():
    config = config_of("gemma4_text").to_dict()
    assert "blocks" not in file_of(config)
    vision = config | {"use_bidirectional_attention": "vision"}
    assert "blocks=None" in file_of(vision)


def test_layers_are_called_as_earlier_versions_wrote_them():
    config = config_of("glm_moe_dsa").to_dict()
    config["layer_types"] = 4 * ["indexed_attention"]
    old_names = config | {"layer_types": 4 * ["deepseek_sparse_attention"]}
    assert records_of(old_names) == records_of(config)
    unknown = config | {"layer_types": 4 * ["sparser_attention"]}
    with pytest.raises(
        ValueError, match="attention; all are sparser_attention"
    ):
        records_of(unknown)


IGNORES = "cohere2_moe"  # transformers drops its rope_scaling


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {IGNORES}))
def test_the_base_of_rope_may_stand_within_its_scaling(family):
    fields = json.loads(json.dumps(config_of(family).to_dict()))
    rope = fields.pop("rope_parameters", None) or {}
    if rope and not any(isinstance(part, dict) for part in rope.values()):
        fields["rope_scaling"] = rope | {"rope_theta": 123456.0}
        for changes in ({}, {"rope_theta": 777.0}):
            copy = json.loads(json.dumps(fields | changes))
            theirs = CONFIG_MAPPING[family].from_dict(copy).to_dict()
            assert records_of(fields | changes) == records_of(theirs)


def test_a_record_is_frozen_and_hashable():
    record = attention_of(LLAMA)
    assert isinstance(record, AttentionRecord)
    assert len({record, attention_of(dict(LLAMA))}) == 1


TRAINED = {"original_max_position_embeddings": 64, "factor": 2.0}
REFUSED = {
    "family": ({"model_type": "llama9"}, "model_type='llama9' is none of"),
    "no family": ({"model_type": None}, "no model_type"),
    "parent of families": ({"model_type": "_rope"}, "is none of"),
    "kind of others": (
        {"layer_types": 2 * ["indexed_attention"]},
        "layer 0 is indexed_attention, not softmax attention",
    ),
    "mysteries": (
        {"use_mystery": True, "mystery_rank": 7, "vocab_size": 9},
        "remove those that do not: use_mystery=True, mystery_rank=7$",
    ),
    "an object": (  # which nobody is told to remove
        {"use_mystery": True, "speaker_config": {"a": 1}},
        "change attention, or hold the text model: use_mystery=True, speak",
    ),
    "all at once": (
        {"qkv_clip": 3, "use_mystery": True},
        "attention does not read qkv_clip=3, use_mystery=True$",
    ),
    "logarithm of 0": (
        {"rope_scaling": {"type": "yarn", "beta_fast": -2, **TRAINED}},
        "YaRN cannot take the logarithm",
    ),
    "draft": ({"architectures": ["LlamaForCausalLMEagle3"]}, "a draft model"),
    "its words": ({"draft_vocab_size": 32000}, "llama: this is a draft model"),
    "of others": ({"qk_layernorm": True}, "does not read qk_layernorm=True"),
    "softcap": ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    "no rotation": ({"use_rope": False}, "does not read use_rope=False$"),
    "no RoPE": ({"rotary": False}, "does not read rotary=False$"),
    "no positions": ({"use_pos_enc": False}, "read use_pos_enc=False$"),
    "no scale": ({"scale_attn_weights": False}, "read scale_attn_weights=Fal"),
    "later tokens": (
        {"is_causal": False},
        "^llama: with is_causal=False each token sees all others",
    ),
    "shared": ({"num_kv_shared_layers": 2}, "num_kv_shared_layers=2"),
    "RoPE": ({"rope_scaling": {"type": "su"}}, "kind 'su'"),
    "RoPE's field": (
        {"rope_scaling": {"type": "linear", "factor": 2.0, "extra": 1}},
        "unknown field 'extra'",
    ),
    # The key of the config, and what stands there.
    "truncated": ({"num_attention_heads": None}, "num_attention_heads=None is"),
    "zero": ({"num_attention_heads": 0}, "num_attention_heads=0 is no"),
    "negative": ({"hidden_size": -64}, "hidden_size=-64 is no"),
    "text": ({"hidden_size": "64"}, "hidden_size='64' is no"),
    "heads in text": ({"num_key_value_heads": "2"}, "num_key_value_heads='2'"),
    "huge": ({"head_dim": 1e300}, r"head_dim=1e\+300 is no"),
    "no divisor": ({"num_key_value_heads": 3}, "does not divide"),
    "odd": ({"head_dim": 13}, "13 channels"),
    "backwards": (
        {"partial_rotary_factor": -1},
        "rotates -128 channels of 128",
    ),
    "too many": ({"partial_rotary_factor": 2}, "rotates 256 channels of 128"),
    "layers": ({"num_hidden_layers": "many"}, "num_hidden_layers='many'"),
    "window": (
        {"model_type": "qwen3", "sliding_window": -5},
        "qwen3: sliding_window=-5 is not positive",
    ),
    "other name": (
        {"num_hidden_layers": None, "n_layer": 0},
        "llama: n_layer=0 is no",
    ),
    "few kinds": (
        {"layer_types": ["full_attention"]},
        "^llama: layer_types has 1 entries for 2 layers$",
    ),
    "kinds in text": (
        {"layer_types": "full"},
        "^llama: layer_types='full' is not a valid value$",
    ),
    "RoPE in text": (
        {"rope_scaling": "yarn"},
        "^llama: rope_scaling='yarn' is not a valid value$",
    ),
    "RoPE's number in text": (
        {"rope_scaling": {"type": "yarn", "factor": "4"}},
        "^llama: factor='4' is not a valid value$",
    ),
    "kinds": ({"layer_types": ["linear_attention"] * 2}, "linear_attention"),
}


@pytest.mark.parametrize("change, message", REFUSED.values(), ids=REFUSED)
def test_what_is_not_known_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        attention_of(LLAMA | change)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"kv_source_layers": [0, 0, 2, 2, 2, 5]}, "3 cannot read .* layer 2$"),
        ({"kv_source_layers": [0, 0, 2, 1, 2, 5]}, "3 cannot read .* layer 1$"),
        ({"kv_source_layers": [0, 1, 2, 0, 2, 1]}, "3 cannot read .* layer 0$"),
        ({"kv_source_layers": [0, 0, 2, 4, 4, 5]}, "3 cannot read .* layer 4$"),
        ({"kv_source_layers": [0, 0, 2]}, "0 cannot read .* layer 0$"),
        ({"kv_source_layers": 3}, "a value of a wrong type$"),
        ({"layer_types": 6 * ["full_attention"]}, "known for layer_types="),
        ({"partial_rotary_factor": 0.5}, "known for .*partial_rotary_factor="),
        ({"q_lora_rank": 7}, "attention does not read q_lora_rank=7$"),
        ({"rope_interleave": False}, "computed from rope_interleave=False$"),
        ({"ssmax_eps": 1}, "remove those that do not: ssmax_eps=1$"),
    ],
    ids=str,
)
def test_latents_that_transformers_does_not_hand_on_are_refused(
    change, message
):
    """It hands on those of the last layer with RoPE, and of the last without,
    that have readers; and what else Mistral Large 4 cannot have."""
    fields = config_of("mistral_large4_text").to_dict()
    with pytest.raises(ValueError, match=message):
        [*read_config(fields | change).records]


def test_mistral_large_4_leaves_rope_out_of_every_fourth_layer():
    fields = config_of("mistral_large4_text").to_dict()
    names = "no_rope_layers", "kv_source_layers", "indexer_types"
    plain = {n: x for n, x in fields.items() if n not in names}
    records = records_of(plain | {"index_topk_freq": 3}).values()
    theirs = CONFIG_MAPPING["mistral_large4_text"](
        num_hidden_layers=6, index_topk_freq=3
    )
    turns = [int(r.rope_theta is not None) for r in records]
    chooses = ["full" if r.index_own else "shared" for r in records]
    assert turns == theirs.no_rope_layers
    assert chooses == theirs.indexer_types
    assert all(r.shares is None and not r.is_shared for r in records)


LACKING = {
    "qwen4_exp_text": (
        {"num_hidden_layers": 4},
        "the config has no indexer_kv_heads$",
    ),
    "qwen3_next": (
        {"linear_conv_kernel_dim": None},
        "the config has no linear_conv_kernel_dim$",
    ),
    "minimax_m3_vl_text": (
        {"rotary_dim": 64, "head_dim": 128},
        "attention is not known for head_dim=128, .*rotary_dim=64$",
    ),
}


@pytest.mark.parametrize("family", LACKING)
def test_a_refusal_names_fields_of_the_config(family):
    """By what the table calls its entries, nobody finds them."""
    change, message = LACKING[family]
    fields = CONFIG_MAPPING[family]().to_dict() | change
    for read in (both, shape_of):
        with pytest.raises(ValueError, match=f"^{family}: {message}"):
            read(fields)
    if family == "qwen4_exp_text":
        partial = {**ATTENDS[family], "indexer_budget": None}
        with pytest.raises(ValueError, match=r"indexer_budget=None$"):
            records_of(fields | partial)


@pytest.mark.parametrize(
    "change",
    [
        {"use_sparse_attention": False},
        {"sparse_disable_index_value": [0] * 60},
    ],
)
def test_an_indexer_of_minimax_m3_has_no_values(change):
    """Its published config has a flag for each layer, and one for all."""
    fields = RELEASED["minimax-m3"]
    sparse = fields["sparse_attention_config"]
    assert {*change} <= {*sparse} and len(records_of(fields)) == 60
    fields = fields | {"sparse_attention_config": sparse | change}
    with pytest.raises(ValueError, match="attention is not known for"):
        records_of(fields)


@pytest.mark.parametrize("read", [file_of, shape_of])
def test_a_folder_is_read_by_its_config(tmp_path, read):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA), encoding="utf-8")
    assert read(str(tmp_path)) == read(str(file))


def test_a_draft_model_is_called_one_by_its_sizes_too():
    draft = {"architectures": ["LlamaForCausalLMEagle3"], "markov_rank": 4}
    for read in (attention_of, shape_of):
        with pytest.raises(ValueError, match="llama: this is a draft model"):
            read(LLAMA | draft)


def test_a_pattern_in_letters_gives_way_to_the_types_of_layers():
    """EXAONE 4 as released: the pattern is no number."""
    config = config_of("exaone4").to_dict()
    config |= {"sliding_window_pattern": "LLLG"}
    kinds = [record.kind for record in records_of(config).values()]
    assert kinds == config["layer_types"]


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"layer=2, but the model has 2"):
        attention_of(LLAMA, 2)


def test_a_file_is_read(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"text_config": LLAMA, "model_type": "x"}))
    assert attention_of(file) == attention_of(LLAMA)
    file.write_text('{"model_type": "llama", "hidd')
    with pytest.raises(ValueError, match="not JSON"):
        attention_of(file)


@pytest.mark.parametrize(
    "seed",
    [0, *(pytest.param(n, marks=pytest.mark.audit) for n in range(1, 9))],
)
def test_hostile_configs_are_read_or_refused_in_a_sentence(seed):
    chance, read, refused = random.Random(seed), 0, 0
    for family in FAMILIES:
        config = spoiled(family, chance)
        try:
            records = records_of(config)
            if family in ("gemma3_text", "gpt_oss", "deepseek_v3", "bloom"):
                compile(file_of(config), family, "exec")
            assert all(math.isfinite(r.scale) for r in records.values())
            read += 1
        except ValueError as error:
            assert str(error).startswith((f"{family}: ", "the config has no"))
            assert "\n" not in str(error)
            refused += 1
    assert read > 60 and refused > 10


INKLING = "inkling_text", "inkling2_text", "inkling2_loop_text"


@pytest.mark.parametrize("family", INKLING)
def test_fields_of_inkling_are_read_by_both_names(family):
    """A file may have other names of them than transformers saves."""
    names = {"sliding_window_size": "sliding_window"}
    names |= {"conv_kernel_size": "sconv_kernel_size"}
    fields = config_of(family, conv_kernel_size=2).to_dict()
    renamed = {names.get(name, name): x for name, x in fields.items()}
    theirs = CONFIG_MAPPING[family].from_dict(renamed).to_dict()
    assert all(theirs[name] == fields[name] for name in names)
    assert read_config(renamed).mixers == read_config(fields).mixers


def test_the_loop_of_inkling_2_is_read_and_what_is_new_in_it_refused():
    kinds = 3 * ["hybrid_sliding", "hybrid"]
    sizes = {"num_hidden_layers": 6, "layer_types": kinds}
    config = config_of("inkling2_loop_text", **sizes)
    loop = {"core_start": 2, "core_end": 5, "num_passes": 4, "gate_rank": 3}
    fields = config.to_dict() | {"loop_config": loop}
    theirs = CONFIG_MAPPING["inkling2_loop_text"].from_dict(fields)
    passes = [r.passes for r in read_config(fields).mixers.values()]
    assert passes == [1, 1, 4, 4, 4, 1]
    assert sum(passes) == theirs.total_num_hidden_layers
    for name, change in {
        "loop_config.halt": {"loop_config": loop | {"halt": 0.5}},
        "use_sconv=False": {"use_sconv": False},
    }.items():
        with pytest.raises(ValueError, match=name):
            file_of(fields | change)
    plain = config_of("inkling2_text").to_dict()
    with pytest.raises(ValueError, match="loop_num_passes=3"):
        file_of(plain | {"loop_num_passes": 3})


def test_how_large_a_config_may_be():
    """Ten megabytes of what is not read, and a million layers."""
    with pytest.raises(ValueError, match="1000000 layers are more than"):
        attention_of(LLAMA | {"num_hidden_layers": 10**6})
    large = LLAMA | {"architectures": ["x" * 10**7]}
    assert attention_of(large) == attention_of(LLAMA)


# Entries that let a field be there, some with one value alone.
LET = {
    "called",
    "unused",
    "as_types",
    "images",
    "local",
    "own_sizes",
    *("pattern", "patterns"),
}
ENTRIES = {
    "fields": {
        "kind",
        "sources",
        "note",
        *LET,
        *(f.name for f in fields(AttentionRecord)),
    },
    "weights": {"d", "module", *LAST},
    "state": {"beside", "nothing", *STATE},
}


@pytest.mark.parametrize("part", ENTRIES)
def test_each_entry_of_the_table_is_read(part):
    """One that is misspelled would change nothing, and no test would fail."""
    rows = [getattr(family, part) for family in families().values()]
    names = ENTRIES[part].union(*map(read_by, rows))
    # A matrix is named by where it is.
    places = r"(mlp|mixer|layer|model)\..*"
    written = {name for row in rows for name in row} - names
    assert {name for name in written if not re.fullmatch(places, name)} == set()
    for family in families().values():
        reads = family.reads | read_by(family.state) | OF_ROPE
        assert family.defaults.keys() <= reads


def outcome(call, *args):
    """What a call returns, as text, or the type of its error."""
    try:
        return repr(call(*args))
    except Exception as error:
        return type(error)


def test_expressions_of_the_table_mean_what_they_mean_in_python():
    chance = random.Random(0)
    expressions = {
        entry
        for family in families().values()
        for part in (family.fields, family.weights, family.state)
        for entry in part.values()
        if isinstance(entry, str)
    }
    for text in sorted(expressions):
        code = compile(f"({text})", "", "eval")
        functions = {*FUNCTIONS, "get"}
        names = [name for name in code.co_names if name not in functions]
        assert names_in(text) == names
        for _ in range(20):
            config = {name: chance.choice([*HOSTILE, 2, 3]) for name in names}
            expected = outcome(eval, code, {**FUNCTIONS}, config)
            assert outcome(value_of, text, config) == expected, (text, config)
    with pytest.raises(ValueError, match="no expression of a family: open"):
        value_of("open('/etc/hosts')", {})


@pytest.mark.parametrize("family", ["falcon_mamba", "mamba", "mamba2"])
def test_a_default_size_of_a_state_may_be_left_out(family):
    """What the layers keep is counted as in transformers."""
    full = CONFIG_MAPPING[family]().to_dict()
    for name in families()[family].defaults:
        short = {k: v for k, v in full.items() if k != name}
        assert shape_of(short).groups == shape_of(full).groups, name
