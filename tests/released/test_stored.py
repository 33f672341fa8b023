"""The bytes of weights, against published files and what libraries make of
them."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from attnref.__main__ import main
from attnref.numbers.kv_memory import size
from attnref.numbers.weights import device_bytes
from attnref.released.generate import file_of
from attnref.released.record import read_config
from attnref.released.specs import configs
from attnref.released.stored import (
    ALGORITHMS,
    both_formats,
    reader_of,
    stored_bytes,
    stored_shares,
)
from attnref.released.weights import matrices_of
from tests.kit.families import config_of, model_of

SIZES = {
    "hidden_size": 384,
    "intermediate_size": 640,
    "head_dim": 64,
    "vocab_size": 1009,
}


def size_of(source):
    """The bytes of the weights of a config, or of the file of one."""
    return stored_bytes(read_config(source))


def config_with(config, quant=None):
    """A config of transformers as a dict, with a format of its weights."""
    fields = json.loads(json.dumps(config.to_dict()))
    fields["torch_dtype"] = "bfloat16"
    return fields | ({"quantization_config": quant} if quant else {})


def bytes_in(model):
    return sum(w.numel() * w.element_size() for w in model.parameters())


@pytest.mark.parametrize("blocks", [None, [128, 128]])
def test_weights_in_fp8_take_what_those_of_transformers_take(blocks):
    config = config_of("qwen3", **SIZES)
    model = model_of(config).to(torch.bfloat16)
    assert size_of(config_with(config)) == bytes_in(model)
    options = FineGrainedFP8Config(weight_block_size=blocks)
    replace_with_fp8_linear(model, ["lm_head"], options)
    quant = {"quant_method": "fp8", "weight_block_size": blocks}
    ours = size_of(config_with(config, quant))
    norms = sum(w.numel() for n, w in model.named_parameters() if "norm" in n)
    assert 0 <= bytes_in(model) - ours <= norms + 4 * 28  # a scale per matrix


def test_experts_in_mxfp4_take_17_bytes_for_32_weights():
    config = config_of("gpt_oss", **SIZES)
    model = model_of(config)
    quant = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            *("model.layers.*.self_attn", "model.layers.*.mlp.router"),
            *("model.embed_tokens", "lm_head"),
        ],
    }
    blocks = torch.zeros(4, 640, 12, 16, dtype=torch.uint8)
    scales = torch.zeros(4, 640, 12, dtype=torch.uint8)
    weights = convert_moe_packed_tensors(blocks, scales)
    share = (blocks.numel() + scales.numel()) / weights.numel()
    experts = rest = 0
    for name, weight in model.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts += weight.numel()
        else:
            rest += weight.numel()
    ours = size_of(config_with(config, quant))
    assert ours == pytest.approx(experts * share + 2 * rest, rel=0.01)


@pytest.mark.parametrize("bits, group", [(4, None), (4, 64), (8, 32)])
def test_weights_of_mlx_have_a_scale_and_a_bias_for_each_group(bits, group):
    """Embeddings have them too; norms stay as they are."""
    config = config_of("qwen3", **SIZES)
    weights = dict(model_of(config).named_parameters())
    norms = sum(w.numel() for n, w in weights.items() if "norm" in n)
    matrices = sum(w.numel() for w in weights.values()) - norms
    exact = matrices * bits // 8 + matrices // (group or 64) * 4 + 2 * norms
    quant = {"bits": bits} | ({"group_size": group} if group else {})
    for name in ("quantization", "quantization_config"):
        fields = config_with(config) | {name: quant}
        assert size_of(fields) == exact
        outer = {"model_type": "x", "text_config": config_with(config)}
        assert size_of(outer | {name: quant}) == size_of(fields)
        assert "The weights are quantised" in file_of(fields)
    narrow = fields | {name: quant | {"model.layers.0.mlp.up_proj": False}}
    more = weights["model.layers.0.mlp.up_proj.weight"].numel()
    kept = 2 * more - (more * bits // 8 + more // (group or 64) * 4)
    assert size_of(narrow) == size_of(fields) + kept


def released(id, quant=None, **changes):
    """A released config, in bfloat16 or in a format."""
    fields = {"torch_dtype": "bfloat16", **configs()[id], **changes}
    return fields | ({"quantization_config": quant} if quant else {})


MLX, MXFP4 = {"group_size": 64, "bits": 4}, {"quant_method": "mxfp4"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64}
FALCON = {
    **{"hidden_size": 14848, "num_attention_heads": 232},
    **{"num_kv_heads": 8, "num_hidden_layers": 80, "vocab_size": 65024},
    **{"new_decoder_architecture": True, "tie_word_embeddings": False},
}
MIXTRAL = {
    **{"num_key_value_heads": 8, "intermediate_size": 14336},
    **{"num_local_experts": 8, "vocab_size": 32_000},
    "tie_word_embeddings": False,
}
GPT_OSS = {"vocab_size": 201_088, "num_local_experts": 32}
GPT_OSS |= {"num_key_value_heads": 8, "intermediate_size": 2880}
GPT_OSS |= {"tie_word_embeddings": False}
BLOOM = {
    **{"model_type": "bloom", "hidden_size": 14336, "n_head": 112},
    **{"n_layer": 70, "vocab_size": 250_880, "torch_dtype": "bfloat16"},
}
# The `total_size` of published indices of safetensors.
PUBLISHED = {
    16_060_522_496: released("llama-3.1-8b"),
    141_107_412_992: released("llama-3.1-70b"),
    93_405_585_408: released("mixtral-8x7b", **MIXTRAL),
    281_241_268_224: released("mixtral-8x22b", vocab_size=32_000),
    3_441_149_952: released("qwen3-1.7b"),
    16_381_470_720: released("qwen3-8b"),
    359_045_130_240: released("falcon-7b", **FALCON),
    352_494_542_848: BLOOM,
    8_307_783_680: released("qwen3-14b", MLX),
    13_761_264_768: released("gpt-oss-20b", MXFP4, **GPT_OSS),
    65_248_815_744: released("gpt-oss-120b", MXFP4),
    364_589_799_936: released("deepseek-v3", AWQ, torch_dtype="float16"),
}


@pytest.mark.parametrize("total", PUBLISHED)
def test_weights_take_the_bytes_that_published_files_have(total):
    assert size_of(PUBLISHED[total]) == total


def test_what_the_files_of_deepseek_v3_have_beside_is_a_draft_layer():
    """One more layer, with embeddings, a head and a projection of both."""
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    ours = size_of(released("deepseek-v3", fp8))
    layer = size_of(released("deepseek-v3", fp8, num_hidden_layers=62)) - ours
    ends = 2 * 2 * 129_280 * 7168 + 2 * 2 * 7168**2
    assert ours + layer + ends == pytest.approx(688_586_727_753, rel=2e-5)


@pytest.mark.parametrize("algorithm", ["NVFP4", "MXFP8", "W4A8_MXFP4_FP8"])
def test_matrices_take_what_those_of_torchao_take(algorithm):
    weight = torch.randn(384, 256, dtype=torch.bfloat16)
    if algorithm == "NVFP4":
        theirs = NVFP4Tensor.to_nvfp4(weight)
    else:
        kind = {"MXFP8": torch.float8_e4m3fn}.get(
            algorithm, torch.float4_e2m1fn_x2
        )
        theirs = MXTensor.to_mx(weight, kind, block_size=32)
    parts = theirs.qdata, theirs.scale
    form = ALGORITHMS[algorithm]
    size = sum(t.numel() * t.element_size() for t in parts)
    assert form.bytes_for(384, 256) == size + form.extra


# The same exclusion as different files write it.
LEFT_OUT = {
    "modules": [f"model.layers.{n}.self_attn" for n in range(4)],
    "matrices": [
        f"layers.{n}.self_attn.{m}_proj" for n in range(4) for m in "qkvo"
    ],
    "stars": [f"model.language_model.layers.{n}.self_attn*" for n in range(4)],
    "star": ["*.self_attn.*"],
    "expression": ["re:.*self_attn.*"],
}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
GROUP = {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"}
GROUPS = {"group_0": {"targets": ["Linear"], "weights": GROUP}}
PACKED = {"quant_method": "compressed-tensors", "config_groups": GROUPS}


@pytest.mark.parametrize("quant", [MODELOPT, PACKED, AWQ])
@pytest.mark.parametrize("names", LEFT_OUT)
def test_what_is_left_out_keeps_its_dtype_however_it_is_written(quant, names):
    fields = config_with(config_of("qwen3", **SIZES))
    config = read_config(fields)
    matrices = [
        m
        for m in matrices_of(config)
        if ".self_attn." in m.name and not m.name.endswith("norms")
    ]
    assert len(matrices) == 4 * 4
    form = reader_of(config, quant, matrices)
    more = [2 * m.params - form(m).bytes_for(*m[1:3]) for m in matrices]
    whole = size_of(fields | {"quantization_config": quant})
    for key in ("ignore", "exclude_modules", "modules_to_not_convert"):
        left_out = quant | {key: LEFT_OUT[names]}
        size = size_of(fields | {"quantization_config": left_out})
        assert size == whole + sum(more) > whole


def test_each_expert_may_be_listed_by_the_name_that_its_family_gives_it():
    fields = config_with(config_of("mixtral", **SIZES))
    experts = [
        m for m in matrices_of(read_config(fields)) if ".experts." in m.name
    ]
    assert len(experts) == 3 * 4
    listed = {
        f"language_model.model.layers.{n}.block_sparse_moe.experts.{e}.w{w}": {
            "quant_algo": "FP8"
        }
        for n in range(4)
        for e in range(experts[0].copies)
        for w in (1, 2, 3)
    }
    less = sum(m.params - 8 * m.copies for m in experts)
    quant = {"quant_algo": "MIXED_PRECISION", "quantized_layers": listed}
    quantised = fields | {"quantization_config": quant}
    assert size_of(quantised) == size_of(fields) - less
    listed["model.layers.1.mlp.strange"] = {"quant_algo": "FP8"}
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.strange is quan"):
        size_of(quantised)
    del listed["model.layers.1.mlp.strange"]
    listed["model.layers.4.mlp.gate_proj"] = {"quant_algo": "FP8"}
    assert size_of(quantised) == size_of(fields) - less, "a draft layer"


def test_what_nvidias_file_does_not_list_is_stored_as_the_config_says():
    """Experts of DeepSeek-V4 in NVFP4, and the rest in FP8, as it was."""
    fields = config_with(config_of("mixtral", **SIZES))
    own = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = read_config(fields | {"quantization_config": own})
    listed = {
        f"layers.{n}.block_sparse_moe.experts": {"quant_algo": "NVFP4"}
        for n in range(4)
    }
    quant = {"quant_algo": "MIXED_PRECISION", "quantized_layers": listed}
    sizes = {"alone": {"quantization": quant}}
    sizes["both"] = both_formats(config, sizes["alone"])
    for name, form in sizes.items():
        sizes[name] = size_of(fields | {"quantization_config": form})
    experts, rest = 0, 0
    for m in matrices_of(config):
        is_linear = m.rows > 1 and "embed" not in m.name
        if ".experts." in m.name:
            experts += m.params
        elif is_linear and not m.name.endswith(("gate", "lm_head")):
            blocks = -(-m.rows // 128) * -(-m.columns // 128)
            rest += m.params - 4 * blocks
    assert experts and rest
    assert sizes["alone"] - sizes["both"] == rest
    form = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    assert both_formats(config, form) == form


def test_devices_split_heads_and_have_copies_of_the_rest():
    """As tensor parallelism cuts the matrices of transformers."""
    config = config_of(
        "llama",
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    fields = config_with(config) | {"tie_word_embeddings": False}
    shares = stored_shares(read_config(fields))
    weights = dict(model_of(config).named_parameters())
    for ranks in (1, 2, 4):
        size = 0
        for name, weight in weights.items():
            heads = 2 if "k_proj" in name or "v_proj" in name else ranks
            times = min(heads, ranks) if weight.dim() > 1 else 1
            size += 2 * weight.numel() // times
        assert device_bytes(shares, ranks) == pytest.approx(size, abs=8)
    attention = sum(w.numel() for n, w in weights.items() if "self_attn" in n)
    both = device_bytes(shares, 4, dp_attention=True)
    norms = sum(w.numel() for w in weights.values() if w.dim() == 1)
    rest = sum(w.numel() for w in weights.values()) - attention - norms
    assert both == pytest.approx(2 * (attention + norms + rest / 4), abs=8)


@pytest.mark.parametrize(
    "family",
    [
        *("llama", "qwen3_moe", "deepseek_v3", "glm4_moe", "qwen3_next"),
        *("qwen3_5_text", "gemma3_text", "llama4_text", "nemotron_h", "bamba"),
        "inkling2_text",
    ],
)
def test_matrices_have_the_names_and_shapes_of_transformers(family):
    """Experts, of which files have one tensor each, are stacked there."""
    config = config_of(family)
    fields = config_with(config)
    tied = getattr(config, "tie_word_embeddings", False)
    fields["tie_word_embeddings"] = bool(tied)
    theirs = {
        re.sub(r"^\w+\.(?=layers|embed)", "", name.removesuffix(".weight")): w
        for name, w in model_of(config).named_parameters()
    }
    compared = 0
    for m in matrices_of(read_config(fields)):
        if re.search(r"norms?$|\.experts\.|norm_buffer|lm_head|embed", m.name):
            continue
        shape = tuple(theirs[re.sub(r"^model\.", "", m.name)].shape)
        assert shape == (m.rows, m.columns), m.name
        compared += 1
    assert compared > 10


def test_single_layers_may_have_other_bits():
    """GPTQ's `dynamic` and the `extra_config` of auto-round."""
    config = read_config(config_with(config_of("qwen3", **SIZES)))
    four = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    whole = four | {
        "dynamic": {"+:.*down_proj": {"bits": 8}, "-:.*up_proj": {}}
    }
    rounded = four | {"quant_method": "auto-round"}
    rounded["extra_config"] = {
        f"model.layers.{n}.mlp.up_proj": {"bits": 16} for n in range(4)
    }
    for quant in (whole, rounded):
        form = reader_of(config, quant, [])
        bits = {
            m.name.rpartition(".")[2]: form(m).bits
            for m in matrices_of(config)
            if "mlp" in m.name
        }
        down = 8 if quant is whole else 4
        assert bits == {"gate_proj": 4, "up_proj": 16, "down_proj": down}


REFUSED = {
    r"quantised by \['algorithm'\] are not": {"algorithm": "new"},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "cannot be read: fp8": "fp8",
    "is not a regular expression": AWQ | {"ignore": ["re:("]},
    "cannot be read": {"quant_method": "awq", "bits": "4", "group_size": 128},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_known_of_the_weights_is_refused(message):
    with pytest.raises(ValueError, match=message):
        size_of(config_with(config_of("qwen3"), REFUSED[message]))


def test_the_format_of_a_text_model_may_stand_outside_of_it():
    inner = config_with(config_of("qwen3", **SIZES))
    outer = {"model_type": "qwen3_vl", "torch_dtype": "bfloat16"}
    outer |= {"text_config": {**inner, "torch_dtype": None}}
    assert size_of(outer) == size_of(inner)
    quant = {"quantization_config": {"quant_method": "fp8"}}
    assert size_of(outer | quant) == size_of(inner | quant)


def test_a_dtype_that_is_assumed_is_named(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config_with(config_of("qwen3", **SIZES))))
    args = ["kv", "--config", str(file), "--budget", "100MiB"]
    args += ["--weights", "config", "--lang"]
    assert "weights: counted as bfloat16, as the" in main([*args, "en"])
    assert "权重按 bfloat16 算" in main([*args, "zh"])


def test_a_folder_says_more_than_its_config(tmp_path, capsys):
    """NVIDIA's flat configs have the format in a file of its own."""
    fields = config_with(config_of("qwen3", **SIZES))
    (tmp_path / "config.json").write_text(json.dumps(fields))
    quant = tmp_path / "hf_quant_config.json"
    quant.write_text(json.dumps({"quantization": MODELOPT}))
    args = ["kv", "--weights", "config", "--json", "--config", str(tmp_path)]
    size = size_of(fields | {"quantization_config": MODELOPT})
    assert size < size_of(fields) / 2

    def total(*more):
        [row] = json.loads(main([*args, *more]))
        return row["total_weight_bytes"]

    assert total() == size
    moved = str(quant.rename(tmp_path / "elsewhere.json"))
    assert total() == size_of(fields)
    assert total("--quant", moved) == size
    with pytest.raises(SystemExit):
        total(str(tmp_path), "--quant", moved)
    assert "--quant goes with one file" in capsys.readouterr().err


def test_files_of_weights_say_their_size_to_the_byte(tmp_path):
    """A draft layer is in them, of which the config tells nothing."""
    config, file = config_of("qwen3", **SIZES), tmp_path / "config.json"
    fields = config_with(config) | {"tie_word_embeddings": False}
    file.write_text(json.dumps(fields))
    weights = {
        name: weight.detach().bfloat16()
        for name, weight in model_of(config).named_parameters()
    }
    weights["mtp.weight"] = torch.zeros(7, 11)
    save_file(weights, tmp_path / "model.safetensors")
    size = sum(w.numel() * w.element_size() for w in weights.values())
    args = ["kv", "--weights", "config", "--config", str(tmp_path)]
    assert size_of(file) == size == size_of(fields) + 4 * 7 * 11
    assert "as large as the safetensors" in main([*args, "--lang", "en"])
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": size + 1}}))
    [row] = json.loads(main([*args, "--json"]))
    assert row["total_weight_bytes"] == size + 1
    index.write_text(json.dumps({"metadata": {"total_size": 0}}))
    assert size_of(file) == size_of(fields), "an index may say nothing"


def test_the_command_takes_the_weights_from_the_config(tmp_path):
    config, file = config_of("qwen3", **SIZES), tmp_path / "config.json"
    quant = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    file.write_text(json.dumps(config_with(config, quant)))
    args = ["kv", "--config", str(file), "--budget", "100MiB", "--json"]
    size = size_of(file)
    assert size < size_of(config_with(config)) / 2
    text = main([*args, "--weights", "config"])
    assert json.loads(text) == json.loads(
        main([*args, "--weights", f"{size}B"])
    )


def test_without_a_budget_the_command_prints_the_weights(tmp_path):
    config, file = config_of("qwen3", **SIZES), tmp_path / "config.json"
    file.write_text(json.dumps(config_with(config)))
    weights = bytes_in(model_of(config).to(torch.bfloat16))
    share = device_bytes(stored_shares(read_config(file)), 3)
    args = ["kv", "--config", str(file), "--weights", "config"]
    for lang, word, split in (
        ("en", "all weights: ", "on each of 3 devices"),
        ("zh", "全部权重：", "分到 3 个设备"),
    ):
        lines = main([*args, "--lang", lang]).splitlines()
        (line,) = [x for x in lines if x.startswith(word)]
        assert f"{weights:,} B" in line
        (line,) = [
            x
            for x in main([*args, "--tp", "3", "--lang", lang]).splitlines()
            if x.startswith(word)
        ]
        assert f"{weights:,} B" in line and split in line
        assert size(share) in line
    text = main([*args, "--model", "gpt2", "--lang", "en"])
    assert "left out: --weights config reads a file" in text
    twice = [*args[:2], str(file), *args[2:], "--lang", "en"]
    assert f"{file}: all weights: {weights:,} B" in main(twice)
    (row,) = json.loads(main([*args, "--tp", "3", "--json"]))
    assert row["total_weight_bytes"] == weights
    assert row["weight_bytes"] == share > weights / 3
    assert "left_bytes" not in row
