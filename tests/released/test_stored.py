"""The bytes of quantised weights, against what transformers makes of them."""

import json

import pytest
import torch
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from attnref.__main__ import main
from attnref.released.stored import stored_bytes
from tests.kit.families import config_of, model_of

SIZES = {
    "hidden_size": 384,
    "intermediate_size": 640,
    "head_dim": 64,
    "vocab_size": 1009,
}


def written(config, quant=None):
    given = json.loads(json.dumps(config.to_dict()))
    given["torch_dtype"] = "bfloat16"
    return given | ({"quantization_config": quant} if quant else {})


def taken(model):
    return sum(w.numel() * w.element_size() for w in model.parameters())


@pytest.mark.parametrize("blocks", [None, [128, 128]])
def test_weights_in_fp8_take_what_those_of_transformers_take(blocks):
    config = config_of("qwen3", **SIZES)
    model = model_of(config).to(torch.bfloat16)
    assert stored_bytes(written(config)) == taken(model)
    how = FineGrainedFP8Config(weight_block_size=blocks)
    replace_with_fp8_linear(model, ["lm_head"], how)
    quant = {"quant_method": "fp8", "weight_block_size": blocks}
    ours = stored_bytes(written(config, quant))
    norms = sum(w.numel() for n, w in model.named_parameters() if "norm" in n)
    assert 0 <= taken(model) - ours <= norms + 4 * 28  # a scale per matrix


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
    experts = other = 0
    for name, weight in model.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts += weight.numel()
        else:
            other += weight.numel()
    ours = stored_bytes(written(config, quant))
    assert ours == pytest.approx(experts * share + 2 * other, rel=0.01)


OTHERS = {
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "layers.0.mlp.down_proj is not quantised": {
        "quant_method": "fp8",
        "modules_to_not_convert": ["model.layers.0.mlp.down_proj"],
    },
    "cannot be read": {"quant_method": "awq", "bits": "4", "group_size": 128},
}


@pytest.mark.parametrize("message", OTHERS)
def test_what_is_not_known_of_the_weights_is_refused(message):
    with pytest.raises(ValueError, match=message):
        stored_bytes(written(config_of("qwen3"), OTHERS[message]))


def test_the_format_of_a_text_model_may_stand_outside_of_it():
    whole = written(config_of("qwen3", **SIZES))
    nested = {"model_type": "qwen3_vl", "torch_dtype": "bfloat16"}
    nested |= {"text_config": {**whole, "torch_dtype": None}}
    assert stored_bytes(nested) == stored_bytes(whole)
    quant = {"quantization_config": {"quant_method": "fp8"}}
    assert stored_bytes(nested | quant) == stored_bytes(whole | quant)
    quant["quantization_config"]["quant_method"] = "modelopt"
    with pytest.raises(ValueError, match="quantised by 'modelopt' are not"):
        stored_bytes(nested | quant)


def test_a_dtype_that_is_assumed_is_named(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(written(config_of("qwen3", **SIZES))))
    args = ["kv", "--config", str(file), "--budget", "100MiB"]
    args += ["--weights", "config", "--lang"]
    assert "weights: counted as bfloat16, as the" in main([*args, "en"])
    assert "权重按 bfloat16 算" in main([*args, "zh"])
    # NVIDIA's flat configs say the format in a file of its own.
    (tmp_path / "hf_quant_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"as hf_quant_config\.json says are"):
        stored_bytes(file)


def test_the_command_takes_the_weights_from_the_config(tmp_path):
    config, file = config_of("qwen3", **SIZES), tmp_path / "config.json"
    quant = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    file.write_text(json.dumps(written(config, quant)))
    args = ["kv", "--config", str(file), "--budget", "100MiB", "--json"]
    size = stored_bytes(file)
    assert size < stored_bytes(written(config)) / 2
    given = main([*args, "--weights", "config"])
    assert json.loads(given) == json.loads(
        main([*args, "--weights", f"{size}B"])
    )
