"""Published checkpoints: the file of each family gets their weights, by the
names that they have there, bit for bit."""

import json
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers.core_model_loading import revert_weight_conversion

from attnref.released.checkpoint import load
from attnref.released.configured import attention_from_config
from attnref.released.generate import file_of
from attnref.released.published import names_of
from attnref.released.record import read_config
from tests.kit import sampled
from tests.kit.checkpoints import (
    CAUGHT,
    file,
    published,
    theirs,
    wrapped,
    wrappers,
    write,
)
from tests.kit.compare import relative_error
from tests.kit.families import FAMILIES, FLAGS, config_of, model_of, seen

# One of each way in which names differ; the audit takes all families.
QUICK = {
    *("deepseek_v4", "exaone", "gpt2", "kimi_linear", "lara_mini"),
    *("llama", "lfm3", "molmo2_text", "nemotron_h", "sarvam_moe"),
}
AUDIT = [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.audit])
    for name in FAMILIES
]


def module_of(fields, layer, kind="mixer"):
    """The module of a layer from the model's written file, without memory."""
    space = {}
    exec(compile(file_of(fields), fields["model_type"], "exec"), space)
    with torch.device("meta"):
        return space[kind](layer)


@pytest.mark.parametrize("family", AUDIT)
def test_a_file_gets_the_weights_of_a_published_checkpoint(family, tmp_path):
    config = config_of(family)
    model, fields = model_of(config), config.to_dict()
    folder = write(tmp_path, config, published(model, family), shards=2)
    read = read_config(fields)
    layers = sorted({*read.records} | {*read.mixers})
    assert layers
    for layer in layers:
        module = load(folder, module_of(fields, layer), layer)
        weights = dict(theirs(model, read, layer).named_parameters())
        loaded = module.state_dict()
        assert loaded
        for name, weight in loaded.items():
            assert torch.equal(weight, weights[name]), f"{layer}: {name}"
    names = {theirs: ours for ours, theirs in read.row.names.items()}
    for layer in read.records:
        ours = load(folder, attention_from_config(fields, layer), layer)
        attention = module_of(fields, layer, "Attention")
        weights = load(folder, attention, layer).state_dict()
        for name, weight in weights.items():
            part, dot, rest = name.partition(".")
            own = names.get(part, part) + dot + rest
            assert torch.equal(ours.state_dict()[own], weight)


def tiny(tmp_path, family="llama", **quant):
    """A folder with a tiny model, its module and its tensors."""
    config = config_of(family)
    tensors = published(model_of(config), family)
    fields = config.to_dict() | quant
    return fields, tensors


def by_package(folder, fields, layer, **options):
    return load(folder, module_of(fields, layer), layer, **options)


def by_file(folder, fields, layer, **options):
    """As the file of the model does it."""
    return file(fields)["load"](folder, layer, **options)


def by_longer_file(folder, fields, layer, **options):
    return file(fields, dequantise=True)["load"](folder, layer, **options)


READERS = pytest.mark.parametrize("read", [by_package, by_file])


@READERS
def test_rows_of_zeros_after_those_of_kimi_k3_are_left(tmp_path, read):
    """It is published with 128 decays of 96 heads."""
    config = config_of("kimi_linear", **FLAGS["kimi_linear"])
    model = model_of(config)
    fields = {"model_type": "kimi_k3", "text_config": config.to_dict()}
    tensors = {
        f"language_model.{name}": F.pad(w, (0, 3)) if "A_log" in name else w
        for name, w in published(model, "kimi_linear").items()
    }
    folder = write(tmp_path, fields, tensors)
    for layer in range(config.num_hidden_layers):
        loaded = read(folder, fields, layer).state_dict()
        wanted = dict(model.model.layers[layer].self_attn.named_parameters())
        assert loaded.keys() == wanted.keys()
        assert all(torch.equal(w, wanted[n]) for n, w in loaded.items())
    name = next(name for name in tensors if "A_log" in name)
    tensors[name][-1] = 1  # a head more than the config has
    with pytest.raises(ValueError, match="A_log"):
        read(write(tmp_path, fields, tensors), fields, 0)


@READERS
def test_the_factors_of_lerope_stand_once_and_stay_exact(tmp_path, read):
    """In bfloat16, they would turn a late token by other angles."""
    fields, tensors = tiny(tmp_path, "mistral_large4_text")
    alpha = tensors.pop("rotary_emb.alpha")
    published = {"lerope.alpha": alpha}
    folder = write(tmp_path, fields, tensors | published)
    for dtype in (torch.bfloat16, None):
        layer = read(folder, fields, 0, dtype=dtype).to(torch.bfloat16)
        assert layer.o_proj.weight.dtype == torch.bfloat16
        assert torch.equal(layer.alpha, alpha)
    assert "alpha" not in read(folder, fields, 2).state_dict()  # has no RoPE
    twice = published | {"model.rotary_emb.alpha": alpha.clone()}
    wrong = {"alpha stands in 2|two alpha": twice, "in 0 places|no alpha": {}}
    for message, others in wrong.items():
        write(tmp_path, fields, tensors | others)
        with pytest.raises(ValueError, match=message):
            read(folder, fields, 0)


def quantise(tensors, module, block=(16, 16)):
    """In FP8 with a scale per block; what it means, by name."""
    meant = {}
    for name in [n for n in tensors if module in n]:
        weight = tensors[name].to(torch.float8_e4m3fn)
        sizes = zip(weight.shape, block, strict=True)
        scale = torch.rand([-(-size // length) for size, length in sizes])
        tensors |= {name: weight, f"{name}_scale_inv": scale}
        spread = scale.repeat_interleave(block[0], 0)
        spread = spread.repeat_interleave(block[1], 1)
        spread = spread[: weight.shape[0], : weight.shape[1]]
        meant[name] = weight.float() * spread
    return meant


FP8 = {"quant_method": "fp8", "weight_block_size": [16, 16]}
OBLONG = FP8 | {"weight_block_size": [16, 32]}


@pytest.mark.parametrize("read", [by_package, by_longer_file])
def test_fp8_blocks_are_multiplied_out(tmp_path, read):
    fields, tensors = tiny(tmp_path, quantization_config=FP8)
    meant = quantise(tensors, "self_attn")
    folder = write(tmp_path, fields, tensors)
    module = read(folder, fields, 1, dtype=torch.bfloat16)
    for name, weight in module.state_dict().items():
        assert weight.dtype == torch.bfloat16
        want = meant[f"model.layers.1.self_attn.{name}"]
        assert torch.equal(weight, want.bfloat16())


def test_the_short_file_refuses_quantised_weights_by_name(tmp_path):
    fields, tensors = tiny(tmp_path, quantization_config=FP8)
    quantise(tensors, "o_proj")
    folder = write(tmp_path, fields, tensors)
    message = "^o_proj.weight is quantised by fp8: .* --dequantise writes"
    with pytest.raises(ValueError, match=message):
        by_file(folder, fields, 1)
    assert "quantised by fp8, as published; load refuses them" in file_of(
        fields
    )
    assert "load dequantises them" in file_of(fields, dequantise=True)


GIVE = "    module.load_state_dict("
SWAP = """\
    pair = "q_proj.weight", "k_proj.weight"
    weights |= {a: weights[b] for a, b in zip(pair, pair[::-1])}
"""
SPREAD = "_spread(weight.float(), _factor(scale), block)"
STACK = "torch.stack([t.to(x.dtype) for t in both], dim=-1).flatten(-2)"
# A family, and lines of its file with what a fault makes of them.
FAULTS = {
    "two projections are swapped": ("llama", {GIVE: SWAP + GIVE}),
    "a fused weight is split in another order": (
        "molmo2_text",
        {
            '        "q_proj.weight",\n        "k_proj.weight",\n': (
                '        "k_proj.weight",\n        "q_proj.weight",\n'
            )
        },
    ),
    "rows of pairs that are neighbours are read as halves": (
        "cohere",
        {
            "x.unflatten(-1, (-1, 2)).unbind(-1)": "x.chunk(2, dim=-1)",
            STACK: "torch.cat([t.to(x.dtype) for t in both], dim=-1)",
        },
    ),
    "a scale is transposed": (
        "llama",
        {SPREAD: SPREAD.replace("(scale)", "(scale.mT)")},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@torch.no_grad()
def test_a_fault_of_loading_changes_what_a_layer_gives(fault, tmp_path):
    """Of heads and scales so many that no shape tells of it."""
    family, lines = FAULTS[fault]
    config = config_of(family, num_key_value_heads=6)
    model, fields = model_of(config), config.to_dict()
    tensors = published(model, family)
    if "scale" in fault:
        fields |= {"quantization_config": FP8}
        model.load_state_dict(quantise(tensors, "self_attn"), strict=False)
    folder = write(tmp_path, fields, tensors)
    theirs = seen(model, family, (24,), None)[1]
    [(x, expected)] = theirs.calls
    text, errors = file_of(fields, dequantise="scale" in fault), []
    for replaced in ({}, lines):
        for line, other in replaced.items():
            assert text.count(line) == 1, line
            text = text.replace(line, other)
        space = {}
        exec(text, space)
        layer = space["load"](folder, theirs.layer)
        errors.append(relative_error(layer(x), expected))
    assert errors[0] < 2e-6
    assert errors[1] > 0.1


def test_a_transposed_scale_of_oblong_blocks_is_refused(tmp_path):
    fields, tensors = tiny(tmp_path, quantization_config=OBLONG)
    quantise(tensors, "self_attn", (16, 32))
    for name in [n for n in tensors if "scale_inv" in n]:
        tensors[name] = tensors[name].T.contiguous()
    folder = write(tmp_path, fields, tensors)
    for read in (by_package, by_longer_file):
        with pytest.raises(ValueError, match=r"2 scales for 60 rows .* of 16"):
            read(folder, fields, 1)


@READERS
def test_what_does_not_fit_is_refused_by_name(tmp_path, read):
    fields, tensors = tiny(tmp_path)
    place = "model.layers.2.self_attn"
    folder = write(
        tmp_path, fields, tensors | {f"{place}.stranger": torch.ones(3)}
    )
    errors = ValueError, RuntimeError  # of the package, and of PyTorch
    with pytest.raises(errors, match=r"(no place for|Unexpected).*stranger"):
        read(folder, fields, 2)
    write(
        tmp_path, fields, {n: t for n, t in tensors.items() if "v_pr" not in n}
    )
    with pytest.raises(errors, match=r"(nothing for|Missing).*v_proj.weight"):
        read(folder, fields, 2)
    swapped = dict(tensors)
    pair = f"{place}.q_proj.weight", f"{place}.k_proj.weight"
    swapped |= zip(
        pair, (tensors[name] for name in reversed(pair)), strict=True
    )
    write(tmp_path, fields, swapped)
    with pytest.raises(errors, match=r"(no place|mismatch) for .*q_proj.weig"):
        read(folder, fields, 2)


def test_a_layer_that_is_not_there_is_refused(tmp_path):
    fields, tensors = tiny(tmp_path)
    folder = write(tmp_path, fields, tensors)
    with pytest.raises(ValueError, match="0 places"):
        by_package(folder, fields, 77)
    with pytest.raises(ValueError, match=r"has no layers\.77\.self_attn\.\*"):
        by_file(folder, fields, 77)
    others = {n.replace("model", "llm"): 2 * t for n, t in tensors.items()}
    folder = write(tmp_path, fields, tensors | others)
    with pytest.raises(ValueError, match="2 places"):
        by_package(folder, fields, 1)
    with pytest.raises(ValueError, match=r"has two layers\.1\.self_attn\."):
        by_file(folder, fields, 1)


@READERS
def test_layers_of_encoders_and_drafters_are_not_taken(tmp_path, read):
    """Other towers have layers of the same number."""
    fields, tensors = tiny(tmp_path)
    others = {}
    for tower in ("vision_tower.", "model.audio_tower.", "mtp.", "draft."):
        others |= {
            tower + name: torch.zeros_like(weight)
            for name, weight in tensors.items()
        }
    wrapped = {
        name.replace("model.", "model.language_model.", 1): weight
        for name, weight in tensors.items()
    }
    folder = write(tmp_path, fields, wrapped | others)
    module = read(folder, fields, 3)
    name = "model.layers.3.self_attn.q_proj.weight"
    assert torch.equal(module.q_proj.weight, tensors[name])


@READERS
def test_buffers_and_scales_of_caches_are_no_weights(tmp_path, read):
    fields, tensors = tiny(tmp_path)
    place = "model.layers.1.self_attn."
    names = "rotary_emb.inv_freq", "masked_bias", "k_proj.k_scale", "v_scale"
    others = {place + name: torch.ones(2, dtype=torch.uint8) for name in names}
    module = read(write(tmp_path, fields, tensors | others), fields, 1)
    assert torch.equal(module.v_proj.weight, tensors[f"{place}v_proj.weight"])


@READERS
def test_only_the_tensors_of_the_layer_are_read(tmp_path, read):
    """The others stand in a file that is not there."""
    fields, tensors = tiny(tmp_path)
    folder = write(tmp_path, fields, tensors, shards=2)
    index = folder / "model.safetensors.index.json"
    homes = json.loads(index.read_text())["weight_map"]
    inside = {n: t for n, t in tensors.items() if "layers.2.self_attn" in n}
    save_file(inside, folder / "model-0.safetensors")
    homes = dict.fromkeys(homes, "elsewhere.safetensors")
    homes |= dict.fromkeys(inside, "model-0.safetensors")
    index.write_text(json.dumps({"weight_map": homes}))
    assert read(folder, fields, 2, device="cpu").q_proj.weight.abs().sum() > 0
    with pytest.raises(FileNotFoundError):
        read(folder, fields, 1)


def test_a_file_as_a_program_says_what_it_has_found(tmp_path):
    """Layers of two kinds, one of which a file of a model may leave out."""
    config = config_of("qwen3_next")
    fields = config.to_dict()
    tensors = published(model_of(config), "qwen3_next")
    tensors = {n: t.bfloat16() for n, t in tensors.items()}
    folder = write(tmp_path, fields, tensors)
    program = tmp_path / "attention.py"
    program.write_text(file_of(fields), encoding="utf-8")
    process = subprocess.run(
        [sys.executable, program, folder], capture_output=True, text=True
    )
    lines = process.stdout.splitlines()
    assert len(lines) == fields["num_hidden_layers"], process.stderr
    for line, kind in zip(lines, fields["layer_types"], strict=True):
        layer = lines.index(line)
        place = "self_attn" if kind == "full_attention" else "linear_attn"
        weights = sum(
            t.numel() for n, t in tensors.items() if f".{layer}.{place}." in n
        )
        name = "Attention" if place == "self_attn" else "GatedDeltaNet"
        assert line == f"{layer} {name} {weights:,} weights torch.bfloat16"


WRAPPERS = wrappers()
# Cannot be built here, by reason; or its text is refused by name.
UNBUILT = {
    "timm is not installed": {"fast_vlm", "gemma3n", "perception_lm"},
    "its parts do not fit a tiny text model": {
        *("apertus1p5", "aya_vision", "dots3_note"),
    },
    "it is a draft model, or has no class": {"gemma4_unified_assistant", "jev"},
    "its text sees what comes later": {"paligemma"},
}
# Names of its own; other prefixes; layers of two kinds.
QUICK_WRAPPERS = (
    *("cosmos3_omni", "gemma3", "inkling2_loop", "inkling_mm_model"),
    "qwen3_5",
)


@pytest.mark.parametrize("name", sampled(WRAPPERS, QUICK_WRAPPERS))
def test_the_text_of_a_model_of_images_is_loaded_as_published(name, tmp_path):
    """All that is not of its text has the same names, and no weights."""
    reasons = [why for why, names in UNBUILT.items() if name in names]
    if reasons:
        pytest.skip(reasons[0])
    family = WRAPPERS[name]
    config, model = wrapped(name, family)
    text = config_of(family)
    read, tiny = read_config(text.to_dict()), model_of(text)
    layers = {*read.records} | {*read.mixers}
    kinds = {type(theirs(tiny, read, layer)) for layer in layers}
    weights, meant = dict(model.state_dict()), {}
    for place, module in model.named_modules():
        numbers = [int(part) for part in place.split(".") if part.isdigit()]
        if type(module) in kinds and numbers:
            for part, weight in module.named_parameters():
                new = torch.randn(weight.shape)
                weights[f"{place}.{part}"] = new
                meant.setdefault(numbers[0], {})[part] = new
    assert meant.keys() == layers
    outside = names_of(read_config(config.to_dict())).get("outside", "-")
    for place in [place for place in weights if place.endswith(outside)]:
        weights[place] = torch.randn(weights[place].shape)
        for layer in layers:  # those with RoPE have it
            if read.records[layer].rope_theta:
                meant[layer][outside] = weights[place]
    caught, by = CAUGHT.get(name, ("", ""))
    tensors = {
        n.replace(caught, by): torch.zeros(1) if w.is_meta else w.contiguous()
        for n, w in revert_weight_conversion(model, weights).items()
    }
    folder = write(tmp_path, config, tensors)
    for layer, wanted in meant.items():
        for read_by in (by_file, by_package):
            loaded = read_by(folder, config.to_dict(), layer).state_dict()
            assert loaded.keys() == wanted.keys()
            for part, weight in loaded.items():
                assert torch.equal(weight, wanted[part]), f"{layer}: {part}"
