"""What is read of a config.json, and what is refused."""

import json
import math
import random
from contextlib import suppress
from dataclasses import fields

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attnref import AttentionRecord, attention_of
from attnref.released.expression import FUNCTIONS, names_in, value_of
from attnref.released.from_config import STATE
from attnref.released.generate import file_of
from attnref.released.record import (
    OF_ROPE,
    families,
    fields_of,
    mixers_of,
    read_by,
    records_of,
)
from attnref.released.specs import configs
from attnref.released.weights import LAST
from tests.kit.families import FAMILIES, HOSTILE, config_of, spoiled

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
    family = fields_of(config)["model_type"]
    kind = CONFIG_MAPPING[family]
    copied = json.loads(json.dumps(config | {"model_type": family}))
    today = kind.from_dict(copied)  # which changes what it is given
    today = json.loads(today.to_json_string(False))
    assert both(config) == both(today)


def both(config):
    """The records of all layers, of whatever kind."""
    return records_of(config), mixers_of(fields_of(config))


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
    known = kind().to_dict()
    more = dict(ATTENDS.get(family, {}))
    if {"hidden_size", "num_attention_heads"} <= known.keys():
        more["hidden_size"] = 64 * known["num_attention_heads"]
    whole = kind(**more).to_dict()
    for name in families()[family].defaults:
        gone = {name, "rope_parameters"} if name in OF_ROPE else {name}
        short = {k: v for k, v in whole.items() if k not in gone}
        assert records_of(short) == records_of(whole), f"without {gone}"
    # Of other fields, that or a refusal.
    given = config_of(family).to_dict()
    reads = families()[family].reads | read_by(families()[family].mixer)
    for name in sorted(reads & given.keys()):
        short = {k: v for k, v in given.items() if k != name}
        with suppress(ValueError, StrictDataclassError):
            ours = both(short)
            theirs = kind.from_dict(short).to_dict()
            assert ours == both(theirs), f"without {name}"


def test_kimi_k2_is_read_as_what_it_repeats():
    """Its makers call it so to tell the two apart; the code is the same."""
    whole = RELEASED["deepseek-v3"]
    assert records_of(whole | {"model_type": "kimi_k2"}) == records_of(whole)
    nested = {"model_type": "kimi_k25", "text_config": whole}
    nested["text_config"] = whole | {"model_type": "kimi_k2"}
    assert records_of(nested) == records_of(whole)


def test_a_file_of_images_too_says_its_family_outside():
    nested = {"model_type": "llama9", "text_config": {"hidden_size": 64}}
    with pytest.raises(ValueError, match="model_type='llama9' is none of"):
        attention_of(nested)
    nested = {"model_type": "llama", "text_config": dict(LLAMA)}
    del nested["text_config"]["model_type"]
    assert attention_of(nested) == attention_of(LLAMA)


def test_the_first_lines_say_what_else_weights_and_positions_need():
    quantised = {"quantization_config": {"quant_method": "fp8"}}
    assert "dequantise them first.\nWritten by" in file_of(LLAMA | quantised)
    images = config_of("qwen2_5_vl_text").to_dict()
    assert "first.\nFor text: a token of an" in file_of(images | quantised)
    assert "For text" not in file_of(LLAMA)


def test_layers_are_called_as_earlier_versions_wrote_them():
    config = config_of("glm_moe_dsa").to_dict()
    config["layer_types"] = 4 * ["indexed_attention"]
    old = config | {"layer_types": 4 * ["deepseek_sparse_attention"]}
    assert records_of(old) == records_of(config)
    other = config | {"layer_types": 4 * ["sparser_attention"]}
    with pytest.raises(
        ValueError, match="attention; all are sparser_attention"
    ):
        records_of(other)


IGNORES = "cohere2_moe"  # transformers drops its rope_scaling


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {IGNORES}))
def test_the_base_of_rope_may_stand_within_its_scaling(family):
    given = json.loads(json.dumps(config_of(family).to_dict()))
    rope = given.pop("rope_parameters", None) or {}
    if rope and not any(isinstance(part, dict) for part in rope.values()):
        given["rope_scaling"] = rope | {"rope_theta": 123456.0}
        for more in ({}, {"rope_theta": 777.0}):
            copied = json.loads(json.dumps(given | more))
            theirs = CONFIG_MAPPING[family].from_dict(copied).to_dict()
            assert records_of(given | more) == records_of(theirs)


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
    "other name": (
        {"num_hidden_layers": None, "n_layer": 0},
        "llama: n_layer=0 is no",
    ),
    "kinds": ({"layer_types": ["linear_attention"] * 2}, "linear_attention"),
}


@pytest.mark.parametrize("change, message", REFUSED.values(), ids=REFUSED)
def test_what_is_not_known_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        attention_of(LLAMA | change)


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
    "patterns",
}
ENTRIES = {
    "fields": {"kind", *LET, *(f.name for f in fields(AttentionRecord))},
    "weights": {"d", *LAST},
    "state": {"beside", "nothing", *STATE},
}


@pytest.mark.parametrize("part", ENTRIES)
def test_each_entry_of_the_table_is_read(part):
    """One that is misspelled would change nothing, and no test would fail."""
    rows = [getattr(family, part) for family in families().values()]
    known = ENTRIES[part].union(*map(read_by, rows))
    assert {name for row in rows for name in row} - known == set()
    for family in families().values():
        assert family.defaults.keys() <= family.reads | OF_ROPE


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
        others = {*FUNCTIONS, "get"}
        names = [name for name in code.co_names if name not in others]
        assert names_in(text) == names
        for _ in range(20):
            config = {name: chance.choice([*HOSTILE, 2, 3]) for name in names}
            want = outcome(eval, code, {**FUNCTIONS}, config)
            assert outcome(value_of, text, config) == want, (text, config)
    with pytest.raises(ValueError, match="no expression of a family: open"):
        value_of("open('/etc/hosts')", {})
