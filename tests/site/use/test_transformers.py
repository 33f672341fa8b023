"""Weights from transformers, adapters of PEFT, and our attention in both."""

# --8<-- [start:imports]
from dataclasses import replace
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
    DynamicNtk,
    Everything,
    GroupedQueryAttention,
    KVCache,
    Llama3,
    LongRope,
    MultiHeadLatentAttention,
    PositionInterpolation,
    Rope,
    Scores,
    Window,
    Yarn,
    attention_from_config,
    dequantised,
    form_of,
    greedy,
    sdpa,
    split_qkv,
)

# --8<-- [end:imports]
# isort: split
import json
import re
from importlib.metadata import version

import pytest
from peft import LoraConfig, get_peft_model
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from attnref import causal_mask
from attnref.layers import mla
from sitekit import ROOT
from sitekit.drawn.transformers import ORACLES
from sitekit.markdown.pages import body_of
from tests.kit.compare import relative_error
from tests.kit.pages import section
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


# --8<-- [start:rope]
def rope_of(config: PreTrainedConfig) -> Rope:
    """What rotates in the layers of a model, and by how much."""
    rope, scaling = config.rope_parameters, None
    kind, factor = rope["rope_type"], rope.get("factor")
    trained = rope.get("original_max_position_embeddings")
    if kind == "linear":
        scaling = PositionInterpolation(factor)
    elif kind == "dynamic":
        scaling = DynamicNtk(factor, config.max_position_embeddings)
    elif kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        scaling = Llama3(factor, low, high, trained)
    elif kind == "yarn":
        names = ["beta_fast", "beta_slow", "mscale", "mscale_all_dim"]
        names += ["attention_factor", "truncate"]
        given = {n: rope[n] for n in names if rope.get(n) is not None}
        scaling = Yarn(factor, trained, **given)
    elif kind == "longrope":
        scaling = LongRope(
            rope["short_factor"],
            rope["long_factor"],
            trained,
            factor or config.max_position_embeddings / trained,
            rope.get("attention_factor"),
        )
    elif kind != "default":
        raise ValueError(f"rope_type is {kind!r}")
    width = getattr(config, "head_dim", None)  # None: all channels
    share = rope.get("partial_rotary_factor", 1.0)
    if share != 1:
        width = width or config.hidden_size // config.num_attention_heads
        width = int(width * share)
    return Rope(rope["rope_theta"], width, scaling=scaling)


# --8<-- [end:rope]


# --8<-- [start:decoder]
# A Llama under other names: what they add are windows and biases.
LLAMAS = ("llama", "internlm3", "mistral", "ministral", "qwen2", "seed_oss")


def decoder_of(config: PreTrainedConfig) -> Decoder:
    """A decoder for the weights of a Llama or of one of its namesakes."""
    kind = config.model_type
    for name, value, known in (
        ("model_type", kind, LLAMAS),
        ("hidden_act", config.hidden_act, ("silu",)),
    ):
        if value not in known:
            raise ValueError(f"{name} is {value!r}, not {', '.join(known)}")
    bias = getattr(config, "attention_bias", kind == "qwen2")
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)  # None: all are alike
    blocks = [
        Block(
            GroupedQueryAttention(
                d_model=config.hidden_size,
                n_heads=config.num_attention_heads,
                n_kv_heads=config.num_key_value_heads,
                head_dim=getattr(config, "head_dim", None),
                bias=bias,
                o_bias=getattr(
                    config, "attention_out_bias", bias and kind != "qwen2"
                ),
                causal=Window(window)
                if window and (not types or types[i] == "sliding_attention")
                else True,
                rope=rope_of(config),
            ),
            d_model=config.hidden_size,
            d_ff=config.intermediate_size,
            eps=config.rms_norm_eps,
        )
        for i in range(config.num_hidden_layers)
    ]
    return Decoder(
        blocks,
        n_tokens=config.vocab_size,
        d_model=config.hidden_size,
        eps=config.rms_norm_eps,
    )


def weights_of(model: PreTrainedModel) -> dict[str, Tensor]:
    """All weights of a model, under the names that `Decoder` has for them."""
    weights = model.state_dict()
    return {name.removeprefix("model."): weights[name] for name in weights}


def weights_in(folder: str | Path) -> dict[str, Tensor]:
    """The same for a checkpoint, which may be split into several files."""
    weights: dict[str, Tensor] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        weights |= load_file(file)
    return {name.removeprefix("model."): weights[name] for name in weights}


# --8<-- [end:decoder]


def test_a_llama_in_files_is_this_decoder():
    # --8<-- [start:llama]
    theirs = downloaded("llama", tie_word_embeddings=True)
    ours = decoder_of(theirs.config)
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(folder, max_shard_size="100KB")
        assert len([*Path(folder).glob("*.safetensors")]) > 1
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

    eos, pad = theirs.config.eos_token_id, theirs.config.pad_token_id
    length = {"max_new_tokens": 20, "do_sample": False}
    for _ in range(2):
        want = theirs.generate(**batch, **length, eos_token_id=eos)
        got = greedy(
            ours,
            batch["input_ids"],
            20,
            valid=batch["attention_mask"],
            caches=[KVCache(max_len=9 + 19) for _ in ours.layers],
            eos=eos,
            pad=pad,
        )
        assert torch.equal(got, want)
        eos = int(got[1, 12])  # the second time, this row ends early
    # --8<-- [end:llama]
    assert len(got[:, 9:].unique()) > 12
    assert (got[1] == pad).sum() == 9 + 20 - 13


OLD = {"rope_theta": 1e4, "original_max_position_embeddings": 4}
BANDS = {"low_freq_factor": 0.1, "high_freq_factor": 0.4}
LISTS = {"short_factor": [1.0] * 8, "long_factor": [3.0] * 8}
SCALED = [
    OLD | {"rope_type": "linear", "factor": 4.0},
    OLD | {"rope_type": "dynamic", "factor": 4.0},
    OLD | {"rope_type": "llama3", "factor": 8.0} | BANDS,
    OLD | {"rope_type": "yarn", "factor": 4.0, "truncate": False},
    OLD | {"rope_type": "longrope"} | LISTS,
]
NAMESAKES = [
    ("llama", {}),
    ("llama", {"attention_bias": True}),
    ("internlm3", {}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 5}),
    (
        "ministral",
        {
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    ("qwen2", {}),
    (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
        },
    ),
    ("seed_oss", {}),
    *(("llama", {"rope_parameters": rope}) for rope in SCALED),
    ("seed_oss", {"attention_bias": False, "attention_out_bias": True}),
]


@torch.no_grad()
@pytest.mark.parametrize(("kind", "changed"), NAMESAKES, ids=str)
def test_what_is_llama_by_another_name_is_this_decoder(kind, changed):
    theirs, tokens = downloaded(kind, **changed), prompts()["input_ids"]
    for name, p in theirs.named_parameters():
        if "bias" in name:
            p.normal_(std=0.3)
    ours = decoder_of(theirs.config)
    ours.load_state_dict(weights_of(theirs))
    assert relative_error(ours(tokens), theirs(tokens).logits) <= 1e-5
    assert kind in LLAMAS and {kind for kind, _ in NAMESAKES} == {*LLAMAS}


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
    for rope, given in ((plain, False), (scaled, False), (scaled, True)):
        model = downloaded(
            "llama", rope_parameters=rope, max_position_embeddings=131_072
        )
        theirs = model.model.layers[0].self_attn
        known = rope_of(model.config) if given else Rope(rope["rope_theta"])
        ours = GroupedQueryAttention(
            d_model=64, n_heads=4, n_kv_heads=2, rope=known
        )
        ours.load_state_dict(theirs.state_dict())  # no error for any
        errors.append(difference(ours, theirs, model, tokens))
    assert errors[0] < 1e-5  # right
    assert errors[1] > 0.1  # all keys matched, and the output is wrong
    assert errors[2] < 1e-5  # right again, with the frequencies of Llama 3.1
    # --8<-- [end:compared]


@torch.no_grad()
def test_options_or_the_config_make_these_checkpoints_right():
    # --8<-- [start:changed]
    sizes = {"d_model": 64, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16}
    narrow = {"causal": Window(5)}
    capped = Scores(scale=256**-0.5, softcap=50.0)  # 256: query_pre_attn_scalar
    tokens = torch.randint(3, 100, (2, 40))
    errors = {}
    for kind, options in (
        ("mistral", narrow),
        ("starcoder2", narrow | {"bias": True}),
        ("phi3", narrow),
        ("granite", {"scores": Scores(scale=1.0)}),
        ("gemma2", narrow | {"scores": capped}),
        ("gpt_oss", narrow | {"bias": True, "scores": Scores(sinks=True)}),
        ("qwen3", None),  # norms of queries and keys: from the config
        ("qwen3_moe", None),
        ("minimax_m2", None),
        ("olmo2", None),
        ("gemma3_text", None),
    ):
        windowed = kind == "gemma3_text" or "causal" in (options or {})
        model = downloaded(kind, **{"sliding_window": 5} if windowed else {})
        theirs = model.model.layers[0].self_attn
        for name, p in theirs.named_parameters():
            if "proj" not in name:  # norms and sinks, which all start alike
                nn.init.uniform_(p, 0.5, 1.5)
        weights = theirs.state_dict()
        if kind == "phi3":
            rows = split_qkv(weights.pop("qkv_proj.weight"), 4, 2, by="layer")
            for n, weight in zip("qkv", rows, strict=True):
                weights[f"{n}_proj.weight"] = weight
        if options is None:
            ours = attention_from_config(model.config, layer=0)
        else:
            rope = rope_of(model.config)
            ours = GroupedQueryAttention(**sizes, rope=rope, **options)
        ours.load_state_dict(weights)
        errors[kind] = difference(ours.eval(), theirs, model, tokens)
    assert max(errors.values()) < 1e-5, errors
    # --8<-- [end:changed]
    rows = json.loads(ORACLES.read_text(encoding="utf-8"))["checkpoints"]
    names = "scale=", "softcap=", "sinks=", "norm="
    of_heads = {
        r["model_type"] for r in rows for c in r["cure"] if c.startswith(names)
    }
    assert of_heads - {*errors} == {"llama4_text", "qwen3_next"}


# --8<-- [start:mla]
# Whether RoPE is interleaved; None: `rope_interleave` says so.
LATENT = {"deepseek_v2": True, "minicpm3": False}
LATENT |= dict.fromkeys(("deepseek_v3", "glm4_moe_lite", "youtu"))


def mla_of(config: PreTrainedConfig) -> MultiHeadLatentAttention:
    """A layer for the weights of DeepSeek-V3's attention, or of its kin's."""
    kind = config.model_type
    if kind not in LATENT:
        raise ValueError(f"model_type is {kind!r}, not {', '.join(LATENT)}")
    interleaved = LATENT[kind]
    if interleaved is None:
        interleaved = config.rope_interleave
    return MultiHeadLatentAttention(
        d_model=config.hidden_size,
        n_heads=config.num_attention_heads,
        kv_lora_rank=config.kv_lora_rank,
        qk_nope_head_dim=config.qk_nope_head_dim,
        qk_rope_head_dim=config.qk_rope_head_dim,
        v_head_dim=config.v_head_dim,
        q_lora_rank=config.q_lora_rank,
        bias=config.attention_bias,
        rope=replace(
            rope_of(config), layout="interleaved" if interleaved else "half"
        ),
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
    model = downloaded(
        "deepseek_v3", rope_parameters=yarn, max_position_embeddings=40 * 64
    )
    theirs = model.model.layers[1].self_attn
    ours = mla_of(model.config).eval()
    ours.load_state_dict(theirs.state_dict())
    tokens = torch.randint(3, 100, (3, 70))
    assert difference(ours, theirs, model, tokens) < 1e-5

    ours.rope = replace(ours.rope, layout="half")  # loads just as well
    assert difference(ours, theirs, model, tokens) > 0.1
    # --8<-- [end:deepseek]
    for rope in ({"rope_parameters": yarn}, {}):
        model = downloaded("deepseek_v3", **rope | changed)
        theirs = model.model.layers[1].self_attn
        ours = mla_of(model.config).eval()
        ours.load_state_dict(theirs.state_dict())
        assert difference(ours, theirs, model, tokens) < 1e-5
    for kind in LATENT:
        if changed or kind == "deepseek_v3":
            continue
        model = downloaded(kind, **DEEPSEEK, rope_parameters=yarn)
        theirs = model.model.layers[1].self_attn
        ours = mla_of(model.config).eval()
        ours.load_state_dict(theirs.state_dict())
        assert difference(ours, theirs, model, tokens) < 1e-5, kind
    with pytest.raises(ValueError, match="model_type is 'deepseek_v32', not"):
        mla_of(AutoConfig.for_model("deepseek_v32"))
    for more in ({"attention_factor": 0.5}, {"truncate": False}):
        model = downloaded("deepseek_v3", rope_parameters=yarn | more)
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
    "qwen3": "model_type is 'qwen3', not llama, internlm3, mistral, ",
    "llama": "hidden_act is 'gelu', not silu",
}


def test_what_the_decoder_of_the_page_refuses():
    for kind, changed, message in (
        ("qwen3", {}, REFUSED["qwen3"]),
        ("llama", {"hidden_act": "gelu"}, REFUSED["llama"]),
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


def test_tied_weights_that_are_left_out_are_reported():
    theirs = downloaded("llama", tie_word_embeddings=True)
    weights = theirs.model.state_dict()
    with pytest.raises(RuntimeError, match=r'Missing key.* "lm_head.weight"'):
        decoder_of(theirs.config).load_state_dict(weights)


# --8<-- [start:tuned]
def tuned(
    model: nn.Module, batch: dict[str, Tensor], steps: int
) -> list[float]:
    """Next-token losses while the trainable weights of `model` are trained."""
    tokens, real = batch["input_ids"], batch["attention_mask"].bool()
    both = real[:, :-1] & real[:, 1:]  # neither is a pad
    wanted = tokens[:, 1:].masked_fill(~both, -100)
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=0.01)
    losses = []
    for _ in range(steps):
        logits = model(tokens, mask=real[:, None, None])[:, :-1]
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), ignore_index=-100
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# --8<-- [end:tuned]


def test_adapters_of_peft_are_trained_and_merged():
    # --8<-- [start:lora]
    from peft import LoraConfig, PeftModel, get_peft_model

    theirs = downloaded("llama")
    base = decoder_of(theirs.config)
    base.load_state_dict(weights_of(theirs))
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    model = get_peft_model(base, lora)
    batch = prompts()
    losses = tuned(model, batch, steps=30)
    assert losses[-1] < losses[0] / 3

    model.eval()
    caches = [KVCache(max_len=28) for _ in base.layers]
    adapted = greedy(model, batch["input_ids"], 20, caches=caches)
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)  # the adapters alone
        merged = model.merge_and_unload()  # a Decoder again
        fresh = decoder_of(theirs.config)
        fresh.load_state_dict(weights_of(theirs))
        again = PeftModel.from_pretrained(fresh, folder)
    for model in (merged, again):
        caches = [KVCache(max_len=28) for _ in base.layers]
        tokens = greedy(model.eval(), batch["input_ids"], 20, caches=caches)
        assert torch.equal(tokens, adapted)
    # --8<-- [end:lora]
    assert len(adapted[:, 9:].unique()) > 12
    with pytest.raises(AttributeError, match="prepare_inputs_for_generation"):
        get_peft_model(
            decoder_of(theirs.config),
            LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"),
        )
    untuned = decoder_of(theirs.config).eval()
    untuned.load_state_dict(weights_of(theirs))
    assert not torch.equal(greedy(untuned, batch["input_ids"], 20), adapted)


@pytest.mark.parametrize("side", ["left", "right"])
def test_what_stands_at_a_pad_changes_no_loss(side):
    theirs, real = downloaded("llama"), torch.ones(3, 9, dtype=torch.bool)
    real[0, :4] = real[1, :1] = False
    real = real if side == "left" else real.flip(1)
    tokens, losses = torch.randint(3, 100, (3, 9)), []
    for noise in 7, 50:
        model = decoder_of(theirs.config)
        model.load_state_dict(weights_of(theirs))
        padded = tokens.masked_fill(~real, noise)
        batch = {"input_ids": padded, "attention_mask": real}
        losses += tuned(model, batch, steps=1)
    assert abs(losses[0] - losses[1]) < 1e-5


def test_adapters_on_kv_b_proj_are_trained_and_merged():
    # --8<-- [start:kv_b]
    theirs = downloaded("deepseek_v3")
    base = Decoder(
        [
            Block(mla_of(theirs.config), d_model=64, d_ff=80)
            for _ in theirs.model.layers
        ],
        n_tokens=100,
        d_model=64,
    )
    base.load_state_dict(weights_of(theirs))
    names = ["q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
    model = get_peft_model(base, LoraConfig(r=4, target_modules=names))
    losses = tuned(model, prompts(), steps=30)
    assert losses[-1] < losses[0] / 3
    for name, weight in model.named_parameters():
        if "lora_" in name:
            assert weight.grad.abs().max() > 0, name

    layer, x = base.layers[1].self_attn.eval(), torch.randn(3, 9, 64)
    with torch.no_grad():
        adapted = layer(x)
        cache = KVCache(max_len=9)
        steps = [layer(t, cache=cache) for t in x.split(1, dim=1)]  # "latent"
        assert (torch.cat(steps, dim=1) - adapted).abs().max() < 1e-4
        try:
            layer(x, form="absorbed")
        except TypeError as error:
            message = str(error)
        assert "kv_b_proj is peft.tuners.lora" in message

        layer = model.merge_and_unload().layers[1].self_attn
        cache = KVCache(max_len=9)
        steps = [layer(t, cache=cache, form="absorbed") for t in x.split(1, 1)]
        assert (torch.cat(steps, dim=1) - adapted).abs().max() < 1e-4
    # --8<-- [end:kv_b]


def spied(monkeypatch, used):
    """Notes which forms of MLA run."""
    for form, way in mla.FORMS.items():

        def noted(parts, form=form, way=way):
            heads = way(parts)  # or an error
            used.append(form)
            return heads

        monkeypatch.setitem(mla.FORMS, form, noted)


# By the state of an adapter: without a cache, decoding, form="absorbed".
STATES = {
    "get_peft_model": ("expanded", "latent", "TypeError"),
    "merge_adapter": ("expanded", "latent", "TypeError"),
    "merge_and_unload": ("expanded", "absorbed", "absorbed"),
}


def test_an_adapter_on_kv_b_proj_decides_which_form_runs(monkeypatch):
    used, x = [], torch.randn(3, 9, 64)
    layer = mla_of(downloaded("deepseek_v3").config).eval()
    model = get_peft_model(layer, LoraConfig(target_modules=["kv_b_proj"]))
    spied(monkeypatch, used)
    forms = {}
    for state in STATES:
        if state == "merge_adapter":
            model.merge_adapter()
        if state == "merge_and_unload":
            model.unmerge_adapter()
            model = model.merge_and_unload()
        with torch.no_grad():
            model(x)
            cache = KVCache(9)
            model(x[:, :8], cache=cache)
            model(x[:, 8:], cache=cache)
            try:
                model(x, form="absorbed")
            except TypeError:
                used.append("TypeError")
        first, _, *rest = used
        forms[state] = (first, *rest)
        used.clear()
    assert forms == STATES


KINDS = {
    "LoRA": {},
    "DoRA": {"use_dora": True},
    "rsLoRA": {"use_rslora": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_adapter_reaches_each_projection_of_each_layer(kind):
    """Merged, it is what it was; without it, the output is another one."""
    for name in VARIANTS:
        layer = built(name).double()
        for p in layer.parameters():
            nn.init.normal_(p, std=0.5)
        read = [torch.randn(3, 7, layer.d_model).double()]
        if hasattr(layer, "d_context"):
            read.append(torch.randn(3, 5, layer.d_context).double())
        every = {"target_modules": "all-linear", **KINDS[kind]}
        if name == "dsa":  # no gradient passes a choice, and one is refused
            every["exclude_modules"] = r"indexer\..*|kv_b_proj"
        adapter = LoraConfig(r=2, **every)
        bare = layer.eval()(*read)
        model = get_peft_model(layer, adapter).eval()
        assert relative_error(model(*read), bare) <= 1e-6, name
        weights = {n: p for n, p in model.named_parameters() if "lora_" in n}
        assert len(weights) >= 2 * 4, name
        for p in weights.values():
            nn.init.normal_(p, std=0.5)
        got = model(*read)
        got.square().sum().backward()
        for n, p in weights.items():
            assert p.grad.abs().max() > 1e-6, n
        merged = model.merge_and_unload()(*read)
        assert relative_error(merged, got) <= 1e-9, name
        assert relative_error(merged, bare) > 0.1, name


# --8<-- [start:interface]
def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: object,
) -> tuple[Tensor, None]:
    """`attnref.sdpa`, called as transformers calls an attention function."""
    lacking = ["softcap", "s_aux", "sinks", "position_bias"]
    lacking += ["indices", "block_indices"]  # of the keys that are selected
    for name in lacking:
        if options.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} passes {name}, which sdpa lacks"
            )
    if attention_mask is None:
        raise ValueError("no mask: is one registered under this name?")
    heads = sdpa(
        query, key, value, attention_mask, scale=scaling, dropout=dropout
    )
    return heads.transpose(1, 2), None  # None: the weights are not returned


def mask_of(*args: object, **options: object) -> Tensor:
    """The bool mask that transformers makes for its `sdpa`, never left out."""
    options["allow_is_causal_skip"] = False
    options["allow_is_bidirectional_skip"] = False
    return sdpa_mask(*args, **options)


AttentionInterface.register("attnref", attend)
AttentionMaskInterface.register("attnref", mask_of)
# --8<-- [end:interface]


def test_a_llama_with_our_attention_gives_its_own_logits_and_tokens():
    # --8<-- [start:replaced]
    called = set()

    def counted(module: nn.Module, *inputs: Tensor, **options: object):
        called.add(module.layer_idx)
        return attend(module, *inputs, **options)

    AttentionInterface.register("attnref", counted)
    model, batch = downloaded("llama"), prompts()
    real = batch["attention_mask"].bool()
    outcomes = []
    for name in ("eager", "attnref"):
        model.set_attn_implementation(name)
        with torch.no_grad():
            logits = model(**batch).logits[real]
        tokens = [
            model.generate(
                **batch,
                max_new_tokens=20,
                do_sample=False,
                cache_implementation=kind,
            )
            for kind in ("dynamic", "static")
        ]
        outcomes.append((logits, *tokens))
    (want, *their_tokens), (got, *our_tokens) = outcomes
    assert (got - want).abs().max() < 1e-5 * want.abs().max()
    for ours, theirs in zip(our_tokens, their_tokens, strict=True):
        assert torch.equal(ours, theirs)
    assert called == {0, 1}  # or else `eager` was compared with itself
    # --8<-- [end:replaced]
    assert len(ours[:, 9:].unique()) > 12


def test_packed_documents_are_kept_apart_only_without_a_cache():
    # --8<-- [start:packed]
    tokens = torch.randint(3, 100, (3, 11))  # two documents per row, 6 and 5
    starts = torch.tensor([[*range(6), *range(5)]]).expand(3, -1)
    ones = torch.ones_like(tokens)
    for implementation in ("eager", "sdpa"):
        model = downloaded("llama")
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            second = model(tokens[:, 6:]).logits  # in a row without the first
            packed = [
                model(tokens, position_ids=starts, **options).logits[:, 6:]
                for options in (
                    {"use_cache": False},
                    {},  # with a cache, the default
                    {"use_cache": False, "attention_mask": ones},
                )
            ]
        errors = [(p - second).abs().max() / second.abs().max() for p in packed]
        assert errors[0] < 1e-5  # right
        assert min(errors[1:]) > 1  # the documents see each other
    # --8<-- [end:packed]


def recurrent(kind):
    """A model whose layers take turns: recurrent, full attention."""
    sizes = {
        "qwen3_next": {
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
        "minimax": {"num_local_experts": 2, "num_experts_per_tok": 1},
        "lfm2": {},
    }
    first = "conv" if kind == "lfm2" else "linear_attention"
    return downloaded(
        kind, layer_types=[first, "full_attention"], **sizes[kind]
    )


RAGGED = [[5, 1, 7], [2, 8, 3], [1, 1, 11]]  # the tokens of each document
IDS = torch.tensor(
    [[n for n, long in enumerate(row) for _ in range(long)] for row in RAGGED]
)


@torch.no_grad()
def leaked(model, attention_mask=None, **options):
    """By how much the last document of a row differs from a row of its own."""
    tokens = torch.randint(3, 100, (3, 13))
    starts = [[n for long in row for n in range(long)] for row in RAGGED]
    logits = model(
        tokens,
        position_ids=torch.tensor(starts),
        attention_mask=attention_mask,
        **options,
    ).logits
    return max(
        relative_error(
            logits[n, -row[-1] :],
            model(tokens[[n], -row[-1] :], use_cache=False).logits[0],
        )
        for n, row in enumerate(RAGGED)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3"])
@pytest.mark.parametrize("way", ["eager", "sdpa", "attnref"])
def test_what_the_page_says_of_packed_documents(kind, dtype, way):
    model = downloaded(kind).to(dtype)
    model.set_attn_implementation(way)
    small = 1e-5 if dtype == torch.float32 else 0.04
    assert leaked(model, use_cache=False) < small
    assert leaked(model) > 0.2
    assert leaked(model.train()) > 0.2
    same = IDS[:, :, None] == IDS[:, None]
    apart = causal_mask(13, 13) & same[:, None]
    added = torch.zeros(3, 1, 13, 13, dtype=dtype).masked_fill(
        ~apart, -torch.inf
    )
    model.eval()
    if way == "eager":  # adds 1 to the scores of what may be seen
        assert leaked(model, apart) > 0.1
    else:
        assert leaked(model, apart) < small
    if way != "attnref":
        assert leaked(model, added) < small


@pytest.mark.parametrize("kind", ["qwen3_next", "minimax", "lfm2"])
def test_states_go_on_from_one_packed_document_to_the_next(kind):
    model = recurrent(kind)
    assert leaked(model, use_cache=False) > 0.2
    if kind == "minimax":  # reads no `seq_idx`, without a word
        assert leaked(model, use_cache=False, seq_idx=IDS.int()) > 0.2
    else:
        with pytest.raises(
            ValueError, match="can't keep packed sequences apart"
        ):
            leaked(model, use_cache=False, seq_idx=IDS.int())


def test_weights_are_returned_by_eager_only():
    model, tokens = downloaded("llama"), torch.randint(3, 100, (3, 11))
    shapes = {}
    for way in ("sdpa", "eager"):
        model.set_attn_implementation(way)
        weights = model(tokens, output_attentions=True).attentions
        shapes[way] = [w.shape for w in weights]
    assert shapes == {"sdpa": [], "eager": [(3, 4, 11, 11)] * 2}


# --8<-- [start:inside]
class Borrowed(Cache):
    """One layer's part of a cache of transformers, for a layer of ours."""

    keeps = Everything()

    def __init__(self, theirs: object, layer_idx: int, widths: list[int]):
        super().__init__()
        self.theirs, self.layer_idx, self.widths = theirs, layer_idx, widths
        self.length = int(theirs.get_seq_length(layer_idx))

    def append(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        self.length += tensors[0].shape[2]
        latent = len(tensors) == 1  # latent and RoPE key, in one tensor
        if latent:
            tensors = tensors[0].split(self.widths, dim=-1)
        stored = self.theirs.update(*tensors, self.layer_idx)
        # A static cache returns all its room, filled or not.
        k, v = (t[:, :, : self.length] for t in stored)
        return (torch.cat((k, v), dim=-1),) if latent else (k, v)


class Inside(nn.Module):
    """A layer of ours in the place of a `self_attn` of transformers."""

    def __init__(self, layer: nn.Module, layer_idx: int) -> None:
        super().__init__()
        self.layer, self.layer_idx = layer, layer_idx

    # No **kwargs: it would swallow a cache that comes under another name.
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: object = None,
        past_key_values: object = None,  # its name before transformers 5.24
        use_cache: bool | None = None,
        position_embeddings: object = None,  # our layer has its own RoPE
    ) -> tuple[Tensor, None]:
        theirs = past_key_values if cache is None else cache
        if use_cache and theirs is None:
            raise TypeError("use_cache=True, but neither argument has a cache")
        S, ours = hidden_states.shape[1], None
        if theirs is not None:
            widths = [
                getattr(self.layer, "kv_lora_rank", 0),
                getattr(self.layer, "qk_rope_head_dim", 0),
            ]
            ours = Borrowed(theirs, self.layer_idx, widths)
            S += ours.length
        if attention_mask is not None:
            attention_mask = attention_mask[..., :S]
        out = self.layer(
            hidden_states,
            mask=attention_mask,
            cache=ours,
            positions=position_ids,
        )
        return out, None


# --8<-- [end:inside]


def test_a_deepseek_decodes_with_our_absorbed_layers(monkeypatch):
    used = []
    spied(monkeypatch, used)
    # --8<-- [start:swapped]
    model, batch = downloaded("deepseek_v3"), prompts()
    real = batch["attention_mask"].bool()
    length = {"max_new_tokens": 20, "do_sample": False}
    with torch.no_grad():
        want = model(**batch).logits[real]
    kinds = ("dynamic", "static")
    tokens = [
        model.generate(**batch, **length, cache_implementation=kind)
        for kind in kinds
    ]
    for i, block in enumerate(model.model.layers):
        layer = mla_of(model.config).eval()
        layer.load_state_dict(block.self_attn.state_dict())
        block.self_attn = Inside(layer, i)
    assert form_of(layer, 1, 9) == "absorbed"  # in each decode step

    with torch.no_grad():
        got = model(**batch, use_cache=False).logits[real]
    assert (got - want).abs().max() < 1e-5 * want.abs().max()
    for kind, theirs in zip(kinds, tokens, strict=True):
        ours = model.generate(**batch, **length, cache_implementation=kind)
        assert torch.equal(ours, theirs)
    # --8<-- [end:swapped]
    assert used.count("absorbed") == 2 * 2 * (ours.shape[1] - 10)
    assert len(ours[:, 9:].unique()) > 12


def put_ours_inside(llama):
    for i, block in enumerate(llama.model.layers):
        layer = GroupedQueryAttention(
            d_model=64, n_heads=4, n_kv_heads=2, rope_theta=10_000.0
        )
        layer.load_state_dict(block.self_attn.state_dict())
        block.self_attn = Inside(layer.eval(), i)


@torch.no_grad()
@pytest.mark.parametrize("inner", ["sdpa", "attnref"])
def test_a_llama_decodes_with_our_layers(inner):
    model, batch = downloaded("llama"), prompts()
    length = {"max_new_tokens": 20, "do_sample": False}
    kinds = ("dynamic", "static")
    want = [
        model.generate(**batch, **length, cache_implementation=kind)
        for kind in kinds
    ]
    model.set_attn_implementation(inner)
    put_ours_inside(model)
    for kind, theirs in zip(kinds, want, strict=True):
        ours = model.generate(**batch, **length, cache_implementation=kind)
        assert torch.equal(ours, theirs)
    batch["position_ids"] = torch.randint(1, 9, (3, 9)).cumsum(1)
    real = batch["attention_mask"].bool()
    got = model(**batch, use_cache=False).logits[real]
    want = downloaded("llama")(**batch).logits[real]
    assert relative_error(got, want) <= 1e-5
    model.set_attn_implementation("eager")
    with pytest.raises(TypeError, match="mask == 0 if it is additive"):
        model(**batch)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_cache_by_its_older_name_is_used_and_by_another_refused(kind):
    """Swallowed, a cache leaves each token alone with itself."""
    length = {"max_new_tokens": 20, "do_sample": False}
    length["cache_implementation"] = kind
    batch = prompts()
    want = downloaded("llama").generate(**batch, **length)

    def tokens(name):
        """When transformers passes its cache so; without a name, not at all."""

        def renamed(_, inputs, options):
            cache = options.pop("cache")
            return inputs, options | ({name: cache} if name else {})

        model = downloaded("llama")
        model.set_attn_implementation("sdpa")
        put_ours_inside(model)
        for block in model.model.layers:
            block.self_attn.register_forward_pre_hook(renamed, with_kwargs=True)
        return model.generate(**batch, **length)

    for name in ("cache", "past_key_values"):
        assert torch.equal(tokens(name), want)
    with pytest.raises(TypeError, match="keyword argument 'kv_cache'"):
        tokens("kv_cache")
    with pytest.raises(TypeError, match="neither argument has a cache"):
        tokens(None)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
WINDOW = {"sliding_window": 5}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
SPARSE = DEEPSEEK | {"index_topk": 4, "index_n_heads": 2}
WORKS = {
    "llama": {"rope_parameters": LLAMA3},
    "mistral": WINDOW,
    "mixtral": EXPERTS,
    "qwen2": {},
    "qwen3": {},
    "gemma3_text": WINDOW,
    "olmo2": {},
    "cohere": {},
    "granite": {"attention_multiplier": 0.1},
    "phi3": {},
    "glm4": {},
    "llama4_text": EXPERTS,
    "deepseek_v3": {},
}
LACKS = {
    "gemma2": (WINDOW, "Gemma2Attention passes softcap"),
    "gpt_oss": (EXPERTS, "GptOssAttention passes s_aux"),
    "deepseek_v32": (SPARSE, "DeepseekV32Attention passes indices"),
    "glm_moe_dsa": (SPARSE, "GlmMoeDsaAttention passes indices"),
}


# Each takes the name of a function, and calls it in no layer.
IGNORES = ("bloom", "falcon", "mpt")


@torch.no_grad()
@pytest.mark.parametrize("kind", IGNORES)
def test_a_model_that_ignores_the_function_is_found_by_its_calls(
    kind, monkeypatch
):
    calls = []

    def noted(*inputs, **options):
        calls.append(inputs)
        return attend(*inputs, **options)

    functions = AttentionInterface._global_mapping
    monkeypatch.setitem(functions, "attnref", noted)
    outcomes, batch = [], prompts()
    sizes = {name: n for name, n in SIZES.items() if name != "head_dim"}
    config = AutoConfig.for_model(kind, rotary_dim=8, **sizes)
    model = AutoModelForCausalLM.from_config(config).eval()
    for inner in ("eager", "attnref"):
        model.set_attn_implementation(inner)
        outcomes.append(model(**batch).logits)
    assert relative_error(*outcomes) == 0  # and nothing was compared
    assert calls == []


@torch.no_grad()
@pytest.mark.parametrize("kind", WORKS)
def test_our_function_serves_this_model_of_transformers(kind):
    model, batch = downloaded(kind, **WORKS[kind]), prompts()
    real = batch["attention_mask"].bool()
    outcomes = []
    for inner in ("eager", "attnref"):
        model.set_attn_implementation(inner)
        tokens = [
            model.generate(
                **batch,
                max_new_tokens=7,
                do_sample=False,
                cache_implementation=cache,
            )
            for cache in ("dynamic", "static")
        ]
        outcomes.append([model(**batch).logits[real], *tokens])
    (want, *their_tokens), (got, *our_tokens) = outcomes
    assert relative_error(got, want) <= 1e-5
    theirs = model.model.layers[0].self_attn
    assert difference(torch.zeros_like, theirs, model, batch["input_ids"]) == 1
    assert list(map(torch.Tensor.tolist, our_tokens)) == [
        *map(torch.Tensor.tolist, their_tokens)
    ]


@torch.no_grad()
@pytest.mark.parametrize("kind", LACKS)
def test_our_function_refuses_what_it_would_leave_out(kind):
    changed, message = LACKS[kind]
    model = downloaded(kind, **changed)
    for name, p in model.named_parameters():
        if "sinks" in name:
            p.zero_()
    model(**prompts())
    model.set_attn_implementation("attnref")
    with pytest.raises(ValueError, match=f"{message}, which sdpa lacks"):
        model(**prompts())


@torch.no_grad()
def test_transformers_passes_what_the_table_of_arguments_says(monkeypatch):
    calls = []

    def noted(module, *tensors, scaling, dropout, **options):
        heads, weights = attend(
            module, *tensors, scaling=scaling, dropout=dropout, **options
        )
        shapes = [tuple(t.shape) for t in (*tensors, heads)]
        calls.append((*shapes, tensors[3].dtype, type(scaling), dropout))
        return heads, weights

    functions = AttentionInterface._global_mapping
    monkeypatch.setitem(functions, "attnref", noted)
    model, batch = downloaded("llama", attention_dropout=0.5), prompts()
    model.set_attn_implementation("attnref")
    B, H, K, D = 3, 4, 2, 16
    model.generate(**batch, max_new_tokens=2, eos_token_id=None)
    for T, S, call in ((9, 9, calls[0]), (1, 10, calls[-1])):
        assert call == (
            *((B, H, T, D), (B, K, S, D), (B, K, S, D), (B, 1, T, S)),
            *((B, T, H, D), torch.bool, float, 0.0),
        )
    model.train()(**batch)
    assert calls[-1][-1] == 0.5
    model.set_attn_implementation("eager")
    functions = AttentionInterface._global_mapping
    monkeypatch.setitem(functions, "eager", noted)
    with pytest.raises(TypeError, match=r"mask is torch.float32; pass bool"):
        model(**batch)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_has_the_models_that_were_tried(language):
    body = body_of(ROOT / "docs" / language / "use" / "transformers.md")
    named = re.findall(r"`(\w+)`", section("models", body))
    assert [n for n in named if n in WORKS | LACKS] == [*WORKS, *LACKS]
    assert {words.split()[-1] for _, words in LACKS.values()} <= {*named}
    for package in ("transformers", "peft"):
        assert f'"{package}=={version(package)}"' in body


def test_gradients_through_our_function_are_those_of_eager():
    grads = []
    for inner in ("eager", "attnref"):
        model, batch = downloaded("llama"), prompts()
        model.set_attn_implementation(inner)
        real = batch["attention_mask"].bool()
        model(**batch).logits[real].square().mean().backward()
        grads.append([p.grad for p in model.parameters()])
        torch.manual_seed(0)
    for got, want in zip(*grads, strict=True):
        assert relative_error(got, want) <= 1e-4


@torch.no_grad()
def test_a_function_without_its_mask_is_refused(monkeypatch):
    """Else every token would see all later ones, and nobody would say so."""
    model, batch = downloaded("llama"), prompts()
    want = model(batch["input_ids"]).logits
    model.set_attn_implementation("attnref")
    assert relative_error(model(batch["input_ids"]).logits, want) <= 1e-5
    monkeypatch.delitem(AttentionMaskInterface._global_mapping, "attnref")
    with pytest.raises(ValueError, match="no mask: is one registered"):
        model(batch["input_ids"])

    def blind(_, q, k, v, mask, *, scaling, **__):
        assert mask is None
        return sdpa(q, k, v, scale=scaling).transpose(1, 2), None

    functions = AttentionInterface._global_mapping
    monkeypatch.setitem(functions, "attnref", blind)
    assert relative_error(model(batch["input_ids"]).logits, want) > 0.5


def test_small_weights_hide_that_rope_is_missing():
    errors = {}
    for size in (0.3, 0.02):
        model = downloaded("llama", initializer_range=size)
        theirs = model.model.layers[0].self_attn
        ours = GroupedQueryAttention(d_model=64, n_heads=4, n_kv_heads=2)
        ours.load_state_dict(theirs.state_dict())
        tokens = prompts()["input_ids"]
        errors[size] = difference(ours, theirs, model, tokens)
    assert errors[0.3] > 0.5
    assert errors[0.02] < 0.01


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")
@torch.no_grad()
def test_an_adapter_of_their_llama_is_merged_there(tmp_path):
    theirs, batch = downloaded("llama"), prompts()
    bare = theirs(batch["input_ids"]).logits
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    model = get_peft_model(theirs, lora)
    ours = get_peft_model(decoder_of(theirs.config), lora)
    names = [
        {n for n, _ in m.named_parameters() if "lora_" in n}
        for m in (model, ours)
    ]
    one_more = "base_model.model.model."
    assert names[1] == {
        n.replace(one_more, "base_model.model.") for n in names[0]
    }
    assert all(n.startswith(one_more) for n in names[0])
    for name, p in model.named_parameters():
        if "lora_" in name:
            p.normal_(std=0.3)
    want = model.eval()(batch["input_ids"]).logits
    merged = model.merge_and_unload()
    decoder = decoder_of(merged.config)
    decoder.load_state_dict(weights_of(merged))
    assert relative_error(decoder(batch["input_ids"]), want) <= 1e-5
    assert relative_error(bare, want) > 0.1


def test_a_model_is_in_the_mode_that_the_page_says(tmp_path):
    config = downloaded("llama").config
    model = AutoModelForCausalLM.from_config(config)
    assert model.training
    assert decoder_of(config).training
    model.save_pretrained(tmp_path)
    assert not AutoModelForCausalLM.from_pretrained(tmp_path).training
