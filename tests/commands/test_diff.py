"""`attnref diff`: what differs is named, and what is equal is not accused."""

import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from attnref.__main__ import main
from attnref.released import difference as module
from attnref.released.difference import changes, difference, kind_of, tensor
from attnref.released.mixers import RECORDS
from attnref.released.record import read_config
from attnref.released.specs import configs, models
from tests.kit.families import config_of

FIRST = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 6,
    "num_key_value_heads": 8,
}
OLD = FIRST | {"rope_theta": 1e4}
QWEN, GEMMA = FIRST | {"model_type": "qwen3"}, configs()["gemma-2-2b"]
MIMO, SCOUT = configs()["mimo-v2-flash"], configs()["llama-4-scout"]
PHI, DEEPSEEK = configs()["phi-3-mini"], configs()["deepseek-v3.2"]
LINEAR = {"type": "linear", "factor": 8.0}
SHORTER = PHI["rope_scaling"] | {"short_factor": 48 * [2.0]}
# A config, its change, the fields that differ, and words of its sentences.
CASES = [
    (FIRST, {"rope_theta": 5e5}, "rope_theta", ""),
    (FIRST, {"num_key_value_heads": 4}, "n_kv_heads", "8 query heads share"),
    (FIRST, {"attention_bias": True}, "qkv_bias o_bias", "have biases"),
    (FIRST, {"rope_scaling": LINEAR}, "rope_kind rope_factor", "linear scal"),
    (FIRST, {"model_type": "qwen3"}, "norm", "QK-norm"),
    (FIRST, {"model_type": "phi3"}, "fused", "One projection"),
    (
        FIRST | {"rope_theta": 1e4},
        {"model_type": "cohere"},
        "rope_layout",
        "(0",
    ),
    (QWEN, {"rms_norm_eps": 1e-5}, "norm_eps", ""),
    (GEMMA, {"sliding_window": 2048}, "window", "sees 2,048 tokens"),
    (GEMMA, {"attn_logit_softcapping": 30.0}, "softcap", "30·tanh"),
    (GEMMA, {"attn_logit_softcapping": None}, "softcap", "50·tanh"),
    (GEMMA, {"query_pre_attn_scalar": 144}, "scale", "softmax scale"),
    (MIMO, {"add_swa_attention_sink_bias": False}, "with_sinks", "Sinks"),
    (PHI, {"rope_scaling": SHORTER}, "rope_short", ""),
    (DEEPSEEK, {"index_topk": 1024}, "index_topk", "the 1,024 best"),
    (SCOUT, {"attention_chunk_size": 4096}, "chunk", "Chunks of 4,096"),
    (SCOUT, {"attn_scale": 0.2}, "q_growth", ""),
]
SHAPES = {"n_kv_heads": "k_proj.weight", "fused": "qkv_proj.weight"}


def compare(first, second):
    return difference(read_config(first), read_config(second))


@pytest.mark.parametrize(
    ("config", "change", "names", "phrase"),
    CASES,
    ids=[f"{names} {n}" for n, (_, _, names, _) in enumerate(CASES)],
)
def test_what_differs_is_named_and_shown(config, change, names, phrase):
    result = compare(config, config | change)
    assert not result["equal"] and result["order"] is None and result["kinds"]
    for kinds in result["kinds"]:
        assert {*kinds["fields"]} == {*names.split()}
        # What both have in the same way is not said.
        said = "\n".join(kinds["words"])
        assert phrase in said and bool(phrase) is bool(said)
        if names in SHAPES:
            first, second = kinds["tensor"]["shapes"][SHAPES[names]]
            assert first != second
        else:
            assert kinds["tensor"]["largest"] > 1e-7


# Of the same sizes in transformers: the family, and what is changed.
THEIRS = {
    "theta": ("mistral", {"rope_parameters": {"rope_theta": 500.0}}),
    "window": ("mistral", {"sliding_window": 9}),
    "softcap": ("gemma2", {"attn_logit_softcapping": 3.0}),
    "scale": ("gemma2", {"query_pre_attn_scalar": 30}),
    "norm": ("qwen3", {"rms_norm_eps": 0.5}),
}


def theirs(config, weights, x):
    """What transformers computes with the weights of a layer of ours."""
    family, n = config.model_type, torch.arange(x.shape[1])
    code = import_module(f"transformers.models.{family}.modeling_{family}")
    name = type(config).__name__.removesuffix("Config")
    layer = vars(code)[f"{name}Attention"](config, 0).to(x.dtype)
    layer.load_state_dict(weights)
    rope = vars(code)[f"{name}RotaryEmbedding"](config)(x, n[None])
    hidden = n > n[:, None]
    if family != "qwen3":
        hidden |= n <= n[:, None] - config.sliding_window
    mask = torch.zeros_like(hidden, dtype=x.dtype)
    return layer(x, rope, mask.masked_fill(hidden, -torch.inf)[None, None])[0]


@pytest.mark.parametrize("name", THEIRS)
@torch.no_grad()
def test_the_tensor_is_what_transformers_computes(name, monkeypatch):
    """The small layers of a small model have its sizes."""
    family, change = THEIRS[name]
    both = [config_of(family), config_of(family, **change)]
    built, inputs, build = [], [], module._module

    def record(*layer):
        built.append(build(*layer))
        built[-1].register_forward_hook(lambda _, x, __: inputs.append(x[0]))
        return built[-1]

    monkeypatch.setattr(module, "_module", record)
    shown = compare(*(x.to_dict() for x in both))["kinds"][0]["tensor"]
    weights, other = (layer.state_dict() for layer in built[-2:])
    assert all(other[n].equal(weight) for n, weight in weights.items())
    for dtype, bound in ((torch.float64, 1e-5), (torch.bfloat16, 0.1)):
        x = inputs[-1].to(dtype)
        a, b = (theirs(config, weights, x).double() for config in both)
        gaps, most = (a - b).abs(), a.abs().max()
        assert float(gaps.max() / most) == pytest.approx(
            shown["largest"], rel=bound
        )
        for out, value in zip((a, b), shown["values"], strict=True):
            assert abs(float(out[shown["place"]]) - value) <= bound * most
        assert len(x) == 3 and not gaps[:, : shown["place"][1]].any()


UNREAD = {
    "vocab_size": 99,
    "intermediate_size": 77,
    "hidden_act": "gelu",
    "torch_dtype": "float16",
    "quantization_config": {"quant_method": "fp8"},
    "max_position_embeddings": 4096,
    "rope_scaling": {"type": "default", "factor": 4.0},
    "head_dim": 128,
}


def test_what_attention_does_not_read_is_equal():
    """Nor does it read the name of a family with the same attention."""
    for name, value in UNREAD.items():
        assert compare(FIRST, FIRST | {name: value})["equal"], name
    first = FIRST | {"rope_scaling": LINEAR, "max_position_embeddings": 9999}
    other = first | {"model_type": "mistral", "sliding_window": None}
    result = compare(first, other | {"max_position_embeddings": 8888})
    assert result["equal"] and not result["kinds"] and result["lines"]


def test_the_order_and_the_number_of_layers_count():
    kinds = ["full_attention"] + 5 * ["sliding_attention"]
    first = FIRST | {"model_type": "gpt_oss", "layer_types": kinds}
    result = compare(first, first | {"layer_types": kinds[::-1]})
    assert (result["equal"], result["order"]) == (False, 0)
    result = compare(FIRST, FIRST | {"num_hidden_layers": 7})
    assert (result["equal"], result["layers"]) == (False, (6, 7))
    assert not result["kinds"]


def test_what_one_layer_does_not_show_is_no_equality():
    """Whose keys it reads; and with images, RoPE turns by height and width."""
    config = configs()["gemma-4-e2b"]
    result = compare(config, config | {"num_kv_shared_layers": 15})
    assert any("shares" in kinds["fields"] for kinds in result["kinds"])
    config = configs()["qwen2.5-vl-7b"]
    rope = {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
    result = compare(config, config | rope)
    assert not result["equal"] and not result["kinds"] and result["lines"]


IDS = [*configs()]


@pytest.mark.parametrize("n", range(0, len(IDS), 9))
def test_a_model_is_equal_to_itself_and_differs_from_the_next(n):
    first, second = configs()[IDS[n]], configs()[IDS[n - 1]]
    assert compare(first, first)["equal"]
    result = compare(first, second)
    assert not result["equal"]
    assert result["kinds"] or result["layers"][0] != result["layers"][1]


# Of each kind of layer: a family, and a field that its code reads.
HYBRIDS = {
    "GatedDeltaNet": ("qwen3_next", "eps"),
    "KimiDeltaAttention": ("kimi_linear", "eps"),
    "LightningAttention": ("minimax", "n_layers"),
    "Mamba": ("jamba", "eps"),
    "Mamba2": ("falcon_h1", "out_factor"),
    "ShortConv": ("lfm2", "kernel"),
    "MLSTM": ("xlstm", "cap"),
    "RGLRU": ("recurrent_gemma", "kernel"),
    "RoutedAttention": ("jetmoe", "scale"),
    "CCA": ("zaya", "scale"),
    "ConvolvedAttention": ("inkling_text", "scale"),
    "GatedConvolvedAttention": ("inkling2_text", "scale"),
    "CompressedAttention": ("deepseek_v4", "scale"),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_each_kind_of_layer_runs_beside_one_that_differs(kind):
    family, name = HYBRIDS[kind]
    config = read_config(config_of(family))
    n, mixer = next(iter(config.mixers.items()))
    first = config.records.get(n), mixer
    second = first[0], replace(mixer, **{name: 3 * getattr(mixer, name)})
    assert kind_of(first) == ("Both" if first[0] else kind)
    assert [*changes(first, second)] == [f"{kind}.{name}"]
    shown = tensor(first, second, 1)
    assert "shapes" in shown or shown["largest"] > 1e-8


def test_attention_that_reads_another_input_than_its_mixer_runs_alone():
    config = read_config(config_of("zamba2"))
    n, r = next(iter(config.records.items()))
    first = r, config.mixers[n]
    for other in (
        (replace(r, scale=3 * r.scale), first[1]),
        (r, replace(first[1], eps=3.0)),
    ):
        assert tensor(first, other, n)["largest"] > 1e-3


@pytest.mark.parametrize("name", ["longest", "rel_longest", "q_growth_from"])
def test_a_layer_whose_keys_read_other_inputs_runs_with_such(name):
    """A bound so large that nothing exceeds it would show no difference."""
    mixer = read_config(config_of("inkling2_text")).mixers[1]
    assert mixer.dynamic
    first = None, replace(mixer, longest=22.6, rel_longest=8.0)
    second = None, replace(first[1], **{name: 3 * getattr(first[1], name)})
    assert tensor(first, second, 1)["largest"] > 1e-8


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two files, one of them in a folder."""
    monkeypatch.chdir(tmp_path)
    Path("b").mkdir()
    Path("a.json").write_text(json.dumps(FIRST))
    other = FIRST | {"num_key_value_heads": 4, "rope_theta": 2e4}
    Path("b/config.json").write_text(json.dumps(other))


def ended(*words):
    with pytest.raises(SystemExit) as end:
        main([*words])
    return end.value.code


def test_the_exit_code_is_that_of_diff(files, capsys):
    text = main(["diff", "a.json", "a.json"])
    assert text.startswith("equal: all 6 layers")
    assert ended("diff", "a.json", "b") == 1
    assert capsys.readouterr().out.splitlines()[:12] == [
        "layers 0-5 | 0-5",
        "  - Grouped heads: 4 query heads share a key head.",
        "  + Grouped heads: 8 query heads share a key head.",
        "  n_kv_heads: 8 | 4",
        "  rope_theta: 10000.0 | 20000.0",
        "  weights that do not fit:",
        "    k_proj.weight: (1024, 4096) | (512, 4096)",
        "    v_proj.weight: (1024, 4096) | (512, 4096)",
        "KV cache per token: 24 KiB | 12 KiB",
        "KV cache of 131,072 tokens: 3 GiB | 1.5 GiB",
        "--- first",
        "+++ second",
    ]
    assert ended("diff", "a.json", "c.json") == 2
    Path("c.json").write_text("{")
    assert ended("diff", "a.json", "c.json") == 2
    assert "error: c.json: the file is not JSON" in capsys.readouterr().err


def test_what_copy_refuses_is_refused_in_the_same_words(files, capsys):
    """Also where both have the field, and the same value."""
    config = FIRST | {"use_new_attention": True}
    Path("a.json").write_text(json.dumps(config))
    assert ended("diff", "a.json", "a.json") == 2
    words = capsys.readouterr().err.partition("error: ")[2]
    assert ended("copy", "--config", "a.json") == 2
    assert words == capsys.readouterr().err.partition("error: ")[2]
    assert "unknown fields may change attention" in words


def test_programs_get_all_of_it_in_english(files, capsys):
    options = ["--json", "--lang", "zh", "--tokens", "4K"]
    assert ended("diff", "a.json", "b", *options) == 1
    row = json.loads(capsys.readouterr().out)
    assert row["bytes"]["cache"] == [6 * 2**24, 6 * 2**23]
    assert row["kinds"][0]["words"][0].startswith("- Grouped heads: 4")
    assert "+        E, H, K, D = 4096, 32, 4, 128" in row["lines"]


def test_models_have_names_and_chinese_has_its_words(capsys):
    text = main(["diff", "gpt2", "gpt2", "--lang", "zh"]) + "\n"
    for pair in ("Llama-3-8B llama-3.1-8b", "qwen3-next-80b gemma-4-e2b"):
        assert ended("diff", *pair.split(), "--lang", "zh") == 1
        text += capsys.readouterr().out
    assert "\n权重相同的两个小层：output[0, 1, " in text.replace("\n  ", "\n")
    for line in text.splitlines():
        if line[:1] not in (*"+-@ ", "") or re.match("  [-+] ", line):
            assert re.search("[一-鿿]", line), line
    unknown = next(id for id in models() if id not in configs())
    for name, says in ((unknown, "is not known"), ("lama-3", "did you mean")):
        assert ended("diff", "gpt2", name) == 2
        assert says in capsys.readouterr().err
