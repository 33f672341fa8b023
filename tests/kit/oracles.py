"""Layers and decoders of transformers beside ours, with the same weights."""

from functools import partial
from itertools import accumulate, pairwise

import torch
from transformers import DynamicCache, StaticCache
from transformers.masking_utils import create_causal_mask
from transformers.models.llama import modeling_llama as llama
from transformers.models.mistral import modeling_mistral as mistral
from transformers.models.qwen2 import modeling_qwen2 as qwen2

from attnref import Block, Decoder, padding_mask
from tests.kit.layers import B
from tests.variants import VARIANTS, built, takes

H, K, E, D_FF, LENGTH, ROOM, THETA = 8, 2, 48, 37, 24, 31, 500.0
BOUND, EXACT, WRONG = 1e-6, 1e-12, 1e-2
# R and DN are even, or DeepSeek-V2 has a stride that it cannot view.
R, DN, DR, DV, Q = 26, 12, 10, 9, 18
LATENT = {"kv_lora_rank": R, "qk_nope_head_dim": DN}
LATENT |= {"qk_rope_head_dim": DR, "v_head_dim": DV}
SIZES = {
    "hidden_size": E,
    "intermediate_size": D_FF,
    "num_attention_heads": H,
    "num_key_value_heads": H,
    "num_hidden_layers": 1,
    "attn_implementation": "sdpa",
}
MODELS = {  # each with options of theirs and of ours beside the sizes
    "Llama": (llama.LlamaAttention, llama.LlamaConfig, {}, {}),
    "Llama with biases": (
        llama.LlamaAttention,
        llama.LlamaConfig,
        {"attention_bias": True},
        {"bias": True},
    ),
    "Qwen2": (
        qwen2.Qwen2Attention,
        qwen2.Qwen2Config,
        {"head_dim": 10},
        {"bias": True, "o_bias": False},
    ),
    "Mistral": (
        mistral.MistralAttention,
        mistral.MistralConfig,
        {"sliding_window": None},
        {},
    ),
    "Mistral with wide heads": (
        mistral.MistralAttention,
        mistral.MistralConfig,
        {"sliding_window": None, "head_dim": 10},
        {},
    ),
}

CHUNKS = {
    "whole": (24,),
    "prefill and decode": (23, 1),
    "ragged": (9, 5, 1, 4, 1, 1, 3),
}

THEIRS = {
    "dynamic": lambda config: DynamicCache(config=config),
    "static": lambda config: StaticCache(config=config, max_cache_len=ROOM),
}

WAYS = [*zip(CHUNKS.values(), ("eager", "sdpa", "sdpa"), strict=True)]


@torch.no_grad()
def sharpened(module):
    """Draw weights far from the 0.02 of a fresh model, which hides faults."""
    for name, weight in module.named_parameters():
        if "norm" in name:
            weight.copy_(1 + 0.3 * torch.randn_like(weight))
        else:
            weight.normal_(std=0.2)
    return module.eval().requires_grad_(False)


def config_of(model, kv_heads, inner="sdpa", **options):
    _, config, extra, _ = MODELS[model]
    sizes = {
        "num_key_value_heads": kv_heads,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "attn_implementation": inner,
    }
    return config(**SIZES | sizes | extra | options)


def layer_for(config, layer, **changes):
    sizes = {"d_model": E, "n_heads": H, "head_dim": config.head_dim}
    if takes(layer, "n_kv_heads"):
        sizes["n_kv_heads"] = K
    layer = built(layer, **sizes | {"rope_theta": THETA} | changes)
    return layer.eval().requires_grad_(False)


def pair(model="Mistral with wide heads", layer="gqa", inner="sdpa"):
    config = config_of(model, VARIANTS[layer].kv_heads(H, K), inner)
    theirs = sharpened(MODELS[model][0](config, layer_idx=0))
    ours = layer_for(config, layer, **MODELS[model][3])
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def block_for(config, layer):
    attention = layer_for(config, layer)
    return Block(attention, d_model=E, d_ff=D_FF, eps=config.rms_norm_eps)


def decoders(layer="gqa"):
    config = config_of(
        "Llama",
        VARIANTS[layer].kv_heads(H, K),
        num_hidden_layers=3,
        vocab_size=53,
        pad_token_id=0,
        eos_token_id=None,  # or rows would end early
    )
    theirs = sharpened(llama.LlamaForCausalLM(config))
    ours = Decoder(
        [block_for(config, layer) for _ in range(3)],
        n_tokens=53,
        d_model=E,
        eps=config.rms_norm_eps,
    )
    weights = theirs.state_dict()
    ours.load_state_dict(
        {name.removeprefix("model."): w for name, w in weights.items()}
    )
    return ours.eval(), theirs


def tables(config, x, positions):
    """The cosines and sines of transformers, or exact ones in float64."""
    if x.dtype == torch.float32:
        return llama.LlamaRotaryEmbedding(config)(x, positions)
    pairs = torch.arange(0, config.head_dim, 2).double()
    angles = positions[..., None] * THETA ** (-pairs / config.head_dim)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def spans(chunks):
    return pairwise(accumulate(chunks, initial=0))


def in_theirs(
    module,
    config,
    x,
    chunks=(LENGTH,),
    cache=None,
    valid=None,
    positions=None,
    rotary=None,
):
    """The steps of LlamaModel.forward around a layer, chunk by chunk."""
    if positions is None:
        positions = torch.arange(LENGTH)[None]
    if rotary is None:
        rotary = partial(tables, config)
    outs = []
    for start, end in spans(chunks):
        part, places = x[:, start:end], positions[:, start:end]
        mask = create_causal_mask(
            config=config,
            inputs_embeds=part,
            attention_mask=None if valid is None else valid[:, :end].long(),
            cache=cache,
            position_ids=places,
        )
        out = module(
            part,
            position_embeddings=rotary(part, places),
            attention_mask=mask,
            cache=cache,
        )
        outs.append(out[0] if isinstance(out, tuple) else out)
    return torch.cat(outs, dim=1)


def in_ours(
    module, x, chunks=(LENGTH,), cache=None, valid=None, positions=None
):
    outs = []
    for start, end in spans(chunks):
        options = {}
        if valid is not None:
            options["mask"] = padding_mask(valid[:, :end])
        if positions is not None:
            options["positions"] = positions[:, start:end]
        outs.append(module(x[:, start:end], cache=cache, **options))
    return torch.cat(outs, dim=1)


def padded(side):
    """Pads on the left; or amid the tokens, so that distances change too:
    RoPE cannot tell where a row begins."""
    valid = torch.ones(B, LENGTH, dtype=torch.bool)
    if side == "left":
        valid[1, :3] = valid[2, :11] = False
    else:
        valid[1, 4:7] = valid[2, 1:20:2] = False
    return valid


def positions_of(valid):
    """The positions that `generate` in transformers would use."""
    return (valid.long().cumsum(-1) - 1).masked_fill(~valid, 0)
