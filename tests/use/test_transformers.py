"""Weights from transformers, adapters of PEFT, and our attention in both."""

# --8<-- [start:imports]
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.masking_utils import sdpa_mask

from attnref import (
    Block,
    Cache,
    Decoder,
    Everything,
    GroupedQueryAttention,
    KVCache,
    MultiHeadLatentAttention,
    Yarn,
    cheaper_form,
    dequantised,
    greedy,
    sdpa,
)

# --8<-- [end:imports]
import pytest
from transformers import DynamicCache, StaticCache
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from attnref.layers import mla
from sitekit import ROOT
from sitekit.pages import body_of
from tests.conftest import relative_error
from tests.variants import VARIANTS, built


# --8<-- [start:models]
SIZES = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.3,  # large, so that softmax is far from uniform
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DEEPSEEK = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "head_dim": 8,  # the width that RoPE rotates
    "v_head_dim": 10,
    "first_k_dense_replace": 2,  # no experts: MLA is the subject here
}


def downloaded(model_type: str, **changed: object) -> PreTrainedModel:
    """Stands for `AutoModelForCausalLM.from_pretrained(...)`."""
    torch.manual_seed(0)
    sizes = SIZES | (DEEPSEEK if model_type == "deepseek_v3" else {})
    config = AutoConfig.for_model(model_type, **sizes | changed)
    return AutoModelForCausalLM.from_config(config).eval()


def prompts() -> dict[str, Tensor]:
    """As a tokenizer returns them; the first row has 4 pads on the left."""
    tokens = torch.randint(3, 100, (3, 9))
    attention_mask = torch.ones_like(tokens)
    attention_mask[0, :4] = 0
    return {"input_ids": tokens, "attention_mask": attention_mask}


# --8<-- [end:models]


# --8<-- [start:decoder]
def decoder_of(config: PreTrainedConfig) -> Decoder:
    """A decoder for the weights of a `LlamaForCausalLM`."""
    rope = config.rope_parameters
    for name, value, known in (
        ("model_type", config.model_type, "llama"),
        ("rope_type", rope["rope_type"], "default"),
        ("hidden_act", config.hidden_act, "silu"),
    ):
        if value != known:
            raise ValueError(f"{name} is {value!r}, not {known!r}")
    blocks = [
        Block(
            GroupedQueryAttention(
                d_model=config.hidden_size,
                n_heads=config.num_attention_heads,
                n_kv_heads=config.num_key_value_heads,
                head_dim=config.head_dim,
                bias=config.attention_bias,
                rope_theta=rope["rope_theta"],
            ),
            d_model=config.hidden_size,
            d_ff=config.intermediate_size,
            eps=config.rms_norm_eps,
        )
        for _ in range(config.num_hidden_layers)
    ]
    return Decoder(
        blocks,
        n_tokens=config.vocab_size,
        d_model=config.hidden_size,
        eps=config.rms_norm_eps,
    )


def weights_in(folder: str | Path) -> dict[str, Tensor]:
    """All weights of a checkpoint, which may be split into several files."""
    weights: dict[str, Tensor] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        weights |= load_file(file)
    return {name.removeprefix("model."): w for name, w in weights.items()}


# --8<-- [end:decoder]


@pytest.mark.parametrize("changed", [{}, {"attention_bias": True}], ids=str)
def test_a_llama_in_files_is_this_decoder(changed):
    # --8<-- [start:llama]
    theirs = downloaded("llama", tie_word_embeddings=True)
    ours = decoder_of(theirs.config)
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(folder, max_shard_size="100KB")
        weights = weights_in(folder)
    assert "lm_head.weight" not in weights  # tied: it is stored only once
    weights.setdefault("lm_head.weight", weights["embed_tokens.weight"])
    ours.load_state_dict(weights)
    ours.eval()

    batch = prompts()
    with torch.no_grad():
        real = batch["attention_mask"].bool()
        want = theirs(**batch).logits[real]
        got = ours(batch["input_ids"], mask=real[:, None, None])[real]
    assert (got - want).abs().max() < 1e-5 * want.abs().max()

    want = theirs.generate(**batch, max_new_tokens=20, do_sample=False)
    got = greedy(
        ours,
        batch["input_ids"],
        20,
        valid=batch["attention_mask"],
        caches=[KVCache(max_len=9 + 19) for _ in ours.layers],
        eos=theirs.config.eos_token_id,
        pad=theirs.config.pad_token_id,
    )
    assert torch.equal(got, want)
    # --8<-- [end:llama]
    assert len(got[:, 9:].unique()) > 12
    theirs = downloaded("llama", **changed)
    for name, p in theirs.named_parameters():
        if "bias" in name:
            nn.init.normal_(p, std=0.3)
    ours = decoder_of(theirs.config)
    weights = theirs.state_dict()
    ours.load_state_dict({n.removeprefix("model."): weights[n] for n in weights})
    with torch.no_grad():
        got, want = ours(batch["input_ids"]), theirs(batch["input_ids"]).logits
    assert relative_error(got, want) <= 1e-5


# --8<-- [start:compare]
@torch.no_grad()
def difference(
    ours: nn.Module,
    theirs: nn.Module,
    model: PreTrainedModel,
    tokens: Tensor,
) -> float:
    """Relative error of our layer, on what `theirs` reads within `model`."""
    calls = []
    hook = theirs.register_forward_hook(
        lambda _, args, options, out: calls.append((args, options, out[0])),
        with_kwargs=True,
    )
    model(tokens, use_cache=False)
    hook.remove()
    ((args, options, want),) = calls
    got = ours(args[0] if args else options["hidden_states"])
    return float((got - want).abs().max() / want.abs().max())


# --8<-- [end:compare]


def test_a_difference_that_no_name_shows_is_found():
    # --8<-- [start:compared]
    plain = {"rope_type": "default", "rope_theta": 500_000.0}
    scaled = plain | {  # those of Llama 3.1
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    tokens = torch.randint(3, 100, (1, 512))
    errors = []
    for rope in (plain, scaled):
        model = downloaded("llama", rope_parameters=rope)
        theirs = model.model.layers[0].self_attn
        ours = GroupedQueryAttention(
            d_model=64, n_heads=4, n_kv_heads=2, rope_theta=rope["rope_theta"]
        )
        ours.load_state_dict(theirs.state_dict())  # no error for either
        errors.append(difference(ours, theirs, model, tokens))
    assert errors[0] < 1e-5  # right
    assert errors[1] > 0.1  # all keys matched, and the output is wrong
    # --8<-- [end:compared]


# --8<-- [start:mla]
def mla_of(config: PreTrainedConfig) -> MultiHeadLatentAttention:
    """A layer for the weights of a `DeepseekV3Attention`."""
    rope, yarn = config.rope_parameters, None
    if rope["rope_type"] == "yarn":
        names = "factor beta_fast beta_slow mscale mscale_all_dim".split()
        given = {n: rope[n] for n in names if rope.get(n) is not None}
        yarn = Yarn(
            original_max_len=rope["original_max_position_embeddings"], **given
        )
    elif rope["rope_type"] != "default":
        raise ValueError(f"rope_type is {rope['rope_type']!r}")
    return MultiHeadLatentAttention(
        d_model=config.hidden_size,
        n_heads=config.num_attention_heads,
        kv_lora_rank=config.kv_lora_rank,
        qk_nope_head_dim=config.qk_nope_head_dim,
        qk_rope_head_dim=config.qk_rope_head_dim,
        v_head_dim=config.v_head_dim,
        q_lora_rank=config.q_lora_rank,
        bias=config.attention_bias,
        rope_theta=rope["rope_theta"],
        rope_layout="interleaved" if config.rope_interleave else "half",
        yarn=yarn,
    )


# --8<-- [end:mla]


@pytest.mark.parametrize(
    "changed", [{}, {"rope_interleave": False, "q_lora_rank": None}], ids=str
)
def test_mla_of_deepseek_is_this_layer(changed):
    # --8<-- [start:deepseek]
    yarn = {  # as DeepSeek-V3 has it, for a shorter training length
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 40.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
    }
    model = downloaded("deepseek_v3", rope_parameters=yarn)
    theirs = model.model.layers[1].self_attn
    ours = mla_of(model.config).eval()
    ours.load_state_dict(theirs.state_dict())
    tokens = torch.randint(3, 100, (3, 70))
    assert difference(ours, theirs, model, tokens) < 1e-5

    ours.rope_layout = "half"  # loads just as well
    assert difference(ours, theirs, model, tokens) > 0.1
    # --8<-- [end:deepseek]
    for rope in ({"rope_parameters": yarn}, {}):
        model = downloaded("deepseek_v3", **rope | changed)
        theirs = model.model.layers[1].self_attn
        ours = mla_of(model.config).eval()
        ours.load_state_dict(theirs.state_dict())
        assert difference(ours, theirs, model, tokens) < 1e-5


# --8<-- [start:shipped]
def in_float8(weight: Tensor, block: int = 128) -> tuple[Tensor, Tensor]:
    """As DeepSeek ships a matrix: float8, and one scale for each block."""
    rows, columns = (-(-size // block) for size in weight.shape)
    narrow = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
    scales = torch.empty(rows, columns)
    for i in range(rows):
        for j in range(columns):
            down = slice(i * block, (i + 1) * block)
            along = slice(j * block, (j + 1) * block)
            scales[i, j] = weight[down, along].abs().max() / 448  # its largest
            narrow[down, along] = (weight[down, along] / scales[i, j]).to(
                narrow.dtype
            )
    return narrow, scales


# --8<-- [end:shipped]


@torch.no_grad()
def test_a_float8_layer_in_a_file_is_read_and_dequantised():
    # --8<-- [start:fp8]
    wide = {"hidden_size": 160, "num_attention_heads": 16}
    model = downloaded("deepseek_v3", num_key_value_heads=16, **wide)
    prefix = "model.layers.1.self_attn."
    theirs = model.get_submodule(prefix.removesuffix("."))
    shipped = {}
    for name, weight in theirs.state_dict().items():
        shipped[prefix + name] = weight
        if weight.dim() == 2:
            narrow, scales = in_float8(weight)
            shipped[prefix + name] = narrow
            shipped[f"{prefix}{name}_scale_inv"] = scales

    with TemporaryDirectory() as folder:
        save_file(shipped, Path(folder) / "model.safetensors")
        stored = load_file(Path(folder) / "model.safetensors")
    layer = {
        name.removeprefix(prefix): tensor
        for name, tensor in stored.items()
        if name.startswith(prefix)
    }
    assert layer["kv_b_proj.weight"].dtype == torch.float8_e4m3fn
    assert layer["kv_b_proj.weight_scale_inv"].shape == (3, 1)
    ours = mla_of(model.config).eval()
    ours.load_state_dict(dequantised(layer, dtype=torch.float32))
    tokens = torch.randint(3, 100, (3, 9))
    assert difference(ours, theirs, model, tokens) < 0.2  # 8 bits per weight
    # --8<-- [end:fp8]
    assert difference(ours, theirs, model, tokens) > 1e-3
    # The rounded weights in their layer: nothing but rounding is left.
    wide = dequantised(layer, dtype=torch.float32)
    for name in wide:
        if name + "_scale_inv" in layer:
            narrow, scales = layer[name], layer[name + "_scale_inv"]
            n, m = (128 * size for size in scales.shape)
            whole = torch.zeros(n, m).to(narrow.dtype)
            whole[: len(narrow), : narrow.shape[1]] = narrow
            want = Fp8Dequantize(None)._dequantize_one(whole, scales)
            rows, columns = narrow.shape
            assert torch.equal(wide[name], want[:rows, :columns])
    theirs.load_state_dict(wide)
    assert difference(ours, theirs, model, tokens) < 1e-5
    with pytest.raises(RuntimeError, match=r"Unexpected .*weight_scale_inv"):
        ours.load_state_dict(layer)
    ours.load_state_dict(layer, strict=False)  # the trap that the page names
    assert difference(ours, theirs, model, tokens) > 1


REFUSED = {
    "qwen3": "model_type is 'qwen3', not 'llama'",
    "llama": "rope_type is 'llama3', not 'default'",
}


def test_what_the_decoder_of_the_page_refuses():
    scaled = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    for kind, changed, message in (
        ("qwen3", {}, REFUSED["qwen3"]),
        ("llama", {"rope_parameters": scaled}, REFUSED["llama"]),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu', not 'silu'"),
    ):
        with pytest.raises(ValueError, match=message):
            decoder_of(downloaded(kind, **changed).config)
    # --8<-- [start:refused]
    model = downloaded("qwen3")
    theirs = model.model.layers[0].self_attn
    ours = GroupedQueryAttention(
        d_model=64, n_heads=4, n_kv_heads=2, rope_theta=10_000.0
    )
    try:
        ours.load_state_dict(theirs.state_dict())
    except RuntimeError as error:
        message = str(error)
    assert 'Unexpected key(s) in state_dict: "q_norm.weight"' in message
    # --8<-- [end:refused]


def test_tied_weights_that_are_left_out_are_told():
    theirs = downloaded("llama", tie_word_embeddings=True)
    weights = theirs.model.state_dict()
    with pytest.raises(RuntimeError, match=r'Missing key.* "lm_head.weight"'):
        decoder_of(theirs.config).load_state_dict(weights)
