"""The layers against those of transformers, whose weights load as they are.

All in float32, as transformers computes its RoPE tables and norms; where a
test runs in float64, its layers are given exact tables.
"""

from functools import partial
from itertools import accumulate, cycle, pairwise

import pytest
import torch
from transformers import DynamicCache, StaticCache
from transformers import masking_utils as theirs
from transformers.masking_utils import create_causal_mask
from transformers.models.llama import modeling_llama as llama
from transformers.models.mistral import modeling_mistral as mistral
from transformers.models.qwen2 import modeling_qwen2 as qwen2

from attnref import (
    Block,
    Causal,
    Decoder,
    Documents,
    KVCache,
    Prefix,
    RuleMask,
    Window,
    apply_rope,
    greedy,
    padding_mask,
    rope_rows,
    rope_table,
    token_positions,
)
from tests.kit.compare import relative_error
from tests.variants import SERVING, VARIANTS, B, built, rule, takes

H, K, E, D_FF, LENGTH, ROOM, THETA = 8, 2, 48, 37, 24, 31, 500.0
BOUND, EXACT, WRONG = 1e-6, 1e-12, 1e-2

MODELS = {  # and what our layer is told beside the sizes
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
# Those of Llama see the whole past.
LAYERS = [
    name
    for name, v in VARIANTS.items()
    if v.kv_heads and rule(built(name)) == Causal()
]
CHUNKS = {
    "whole": (24,),
    "prefill and decode": (23, 1),
    "ragged": (9, 5, 1, 4, 1, 1, 3),
}
THEIRS = {
    "dynamic": lambda config: DynamicCache(config=config),
    "static": lambda config: StaticCache(config=config, max_cache_len=ROOM),
}

models = pytest.mark.parametrize("model", MODELS)
layers = pytest.mark.parametrize("layer", LAYERS)
WAYS = [*zip(CHUNKS.values(), ("eager", "sdpa", "sdpa"), strict=True)]


@torch.no_grad()
def sharpened(module):
    """Far from the 0.02 of a fresh model, which hides faults."""
    for name, weight in module.named_parameters():
        if "norm" in name:
            weight.copy_(1 + 0.3 * torch.randn_like(weight))
        else:
            weight.normal_(std=0.2)
    return module.eval().requires_grad_(False)


def config_of(model, kv_heads, inner="sdpa", **more):
    _, config, extra, _ = MODELS[model]
    sizes = {
        "hidden_size": E,
        "intermediate_size": D_FF,
        "num_attention_heads": H,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "attn_implementation": inner,
    }
    return config(**sizes | extra | more)


def layer_for(config, layer, **changed):
    sizes = {"d_model": E, "n_heads": H, "head_dim": config.head_dim}
    if takes(layer, "n_kv_heads"):
        sizes["n_kv_heads"] = K
    layer = built(layer, **sizes | {"rope_theta": THETA} | changed)
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
    """Those of transformers; in float64 exact ones, since its own are not."""
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
        new, places = x[:, start:end], positions[:, start:end]
        mask = create_causal_mask(
            config=config,
            inputs_embeds=new,
            attention_mask=None if valid is None else valid[:, :end].long(),
            past_key_values=cache,
            position_ids=places,
        )
        out = module(
            new,
            position_embeddings=rotary(new, places),
            attention_mask=mask,
            past_key_values=cache,
        )
        outs.append(out[0] if isinstance(out, tuple) else out)
    return torch.cat(outs, dim=1)


def in_ours(
    module, x, chunks=(LENGTH,), cache=None, valid=None, positions=None
):
    outs = []
    for start, end in spans(chunks):
        told = {}
        if valid is not None:
            told["mask"] = padding_mask(valid[:, :end])
        if positions is not None:
            told["positions"] = positions[:, start:end]
        outs.append(module(x[:, start:end], cache=cache, **told))
    return torch.cat(outs, dim=1)


def padded(where):
    """Pads on the left; or amid the tokens, so that distances change too:
    RoPE cannot tell where a row begins."""
    valid = torch.ones(B, LENGTH, dtype=torch.bool)
    if where == "left":
        valid[1, :3] = valid[2, :11] = False
    else:
        valid[1, 4:7] = valid[2, 1:20:2] = False
    return valid


def positions_of(valid):
    """As `generate` in transformers makes them."""
    return (valid.long().cumsum(-1) - 1).masked_fill(~valid, 0)


@models
@layers
def test_a_whole_prompt_gives_what_transformers_gives(model, layer):
    for inner in ("eager", "sdpa"):
        ours, theirs = pair(model, layer, inner)
        x = torch.randn(B, LENGTH, E)
        want = in_theirs(theirs, theirs.config, x)
        assert relative_error(in_ours(ours, x), want) <= BOUND


@layers
def test_cached_chunks_give_what_transformers_gives(layer):
    for chunks, inner in WAYS:
        ours, theirs = pair(layer=layer, inner=inner)
        config, x = theirs.config, torch.randn(B, LENGTH, E)
        for theirs_kept in THEIRS.values():
            want = in_theirs(theirs, config, x, chunks, theirs_kept(config))
            for make in SERVING[layer].values():
                got = in_ours(ours, x, chunks, make(ROOM))
                assert relative_error(got, want) <= BOUND


@models
@layers
def test_in_float64_hardly_a_digit_differs(model, layer):
    # With "sdpa": "eager" has its softmax in float32.
    ours, theirs = (module.double() for module in pair(model, layer))
    config, x = theirs.config, torch.randn(B, LENGTH, E).double()
    chunks, cache = CHUNKS["ragged"], DynamicCache(config=config)
    want = in_theirs(theirs, config, x, chunks, cache)
    assert relative_error(in_ours(ours, x, chunks, KVCache(24)), want) <= EXACT


@layers
@pytest.mark.parametrize("where", ["left", "amid"])
def test_padded_rows_give_what_transformers_gives(layer, where):
    valid = padded(where)
    for (chunks, inner), make in zip(WAYS, cycle(THEIRS.values())):
        ours, theirs = pair(layer=layer, inner=inner)
        config, x = theirs.config, torch.randn(B, LENGTH, E)
        cache, places = make(config), positions_of(valid)
        want = in_theirs(theirs, config, x, chunks, cache, valid, places)
        cache, places = KVCache(LENGTH), token_positions(valid)
        got = in_ours(ours, x, chunks, cache, valid, places)
        assert relative_error(got[valid], want[valid]) <= BOUND


@layers
def test_positions_in_any_order_give_what_transformers_gives(layer):
    ours, theirs = pair(layer=layer)
    config, x = theirs.config, torch.randn(B, LENGTH, E)
    positions = torch.stack([torch.randperm(LENGTH) for _ in range(B)])
    # Without a mask, transformers takes a step back for a second document.
    valid = torch.ones(B, LENGTH, dtype=torch.bool)
    for chunks in CHUNKS.values():
        cache = DynamicCache(config=config)
        want = in_theirs(theirs, config, x, chunks, cache, valid, positions)
        got = in_ours(ours, x, chunks, KVCache(LENGTH), positions=positions)
        assert relative_error(got, want) <= BOUND


@pytest.mark.parametrize("theta", [500.0, 1e4, 5e5])
@pytest.mark.parametrize("dim", [6, 10, 64])
def test_tables_are_those_of_transformers(dim, theta):
    config = config_of("Mistral", 2, head_dim=dim)
    config.rope_parameters["rope_theta"] = theta
    positions = torch.randint(0, LENGTH, (B, 17))
    rotary = llama.LlamaRotaryEmbedding(config)
    theirs = rotary(torch.empty(0), positions)
    ours = rope_table(positions, dim, theta=theta)
    for our, their in zip(ours, theirs, strict=True):
        assert relative_error(torch.cat((our, our), dim=-1), their) <= 2e-6


def test_turning_by_a_table_is_that_of_transformers():
    config = config_of("Mistral", 2, head_dim=10)
    q, k = torch.randn(2, B, H, LENGTH, 10).double()
    cos, sin = tables(config, q, torch.randint(0, 99, (B, LENGTH)))
    theirs = llama.apply_rotary_pos_emb(q, k, cos, sin)
    for x, turned in zip((q, k), theirs, strict=True):
        ours = apply_rope(x, cos[..., :5], sin[..., :5])
        assert relative_error(ours, turned) <= EXACT


def test_repeat_kv_is_expand_and_reshape():
    k = torch.randn(B, 2, LENGTH, 10)
    wide = k[:, :, None].expand(B, 2, 4, LENGTH, 10).reshape(B, H, LENGTH, 10)
    assert torch.equal(llama.repeat_kv(k, 4), wide)
    assert torch.equal(k.repeat_interleave(4, dim=1), wide)


def repeated(weights):
    """Query head h reads key head h % K, not h // (H // K)."""
    order = torch.arange(H).view(2, -1).T.flatten()
    q, o = weights["q_proj.weight"], weights["o_proj.weight"]
    q = q.unflatten(0, (H, -1))[order].flatten(0, 1)
    o = o.unflatten(1, (H, -1))[:, order].flatten(1)
    return weights | {"q_proj.weight": q, "o_proj.weight": o}


def interleaved(weights):
    """Scores become those of the other layout."""
    names = ("q_proj.weight", "k_proj.weight")
    return weights | {n: rope_rows(weights[n], 10, to="half") for n in names}


def scaled_by_model(weights):
    q = weights["q_proj.weight"] * (10 / E) ** 0.5
    return weights | {"q_proj.weight": q}


def keys_for_values(weights):
    k, v = weights["k_proj.weight"], weights["v_proj.weight"]
    return weights | {"k_proj.weight": v, "v_proj.weight": k}


FAULTS = {
    "interleaved pairs": (interleaved, {}),
    "another theta": (dict, {"rope_theta": 10_000.0}),
    "no positions": (dict, {"rope_theta": None}),
    "repeat for repeat_interleave": (repeated, {}),
    "scale of d_model": (scaled_by_model, {}),
    "keys for values": (keys_for_values, {}),
    "not causal": (dict, {"causal": False}),
}


@pytest.mark.parametrize(("spoilt", "changed"), FAULTS.values(), ids=FAULTS)
def test_the_comparison_has_teeth(spoilt, changed):
    _, theirs = pair()
    x = torch.randn(B, LENGTH, E)
    ours = layer_for(theirs.config, "gqa", **changed)
    ours.load_state_dict(spoilt(theirs.state_dict()))
    want = in_theirs(theirs, theirs.config, x)
    assert relative_error(in_ours(ours, x), want) > WRONG


def test_the_weights_of_the_tests_are_sharp():
    _, theirs = pair(inner="eager")
    x = torch.randn(B, LENGTH, E)
    weights = theirs(
        x,
        position_embeddings=tables(
            theirs.config, x, torch.arange(LENGTH)[None]
        ),
        attention_mask=None,
    )[1]
    assert weights.max() > 0.9


@layers
def test_a_block_is_a_layer_of_llama(layer):
    config = config_of("Llama", VARIANTS[layer].kv_heads(H, K))
    theirs = sharpened(llama.LlamaDecoderLayer(config, layer_idx=0))
    ours = block_for(config, layer).eval().requires_grad_(False)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(B, LENGTH, E)
    for chunks, make in zip(CHUNKS.values(), cycle(SERVING[layer].values())):
        want = in_theirs(theirs, config, x, chunks, DynamicCache(config=config))
        got = in_ours(ours, x, chunks, make(LENGTH))
        assert relative_error(got, want) <= BOUND


@layers
def test_scores_of_a_decoder_are_those_of_llama(layer):
    ours, theirs = decoders(layer)
    tokens, valid = torch.randint(0, 53, (B, LENGTH)), padded("left")
    want = theirs(tokens, attention_mask=valid.long()).logits
    got = ours(tokens, mask=padding_mask(valid))
    assert relative_error(got[valid], want[valid]) <= 3 * BOUND


GENERATE = [
    {"use_cache": False},
    {"use_cache": True},
    {"cache_implementation": "static"},
]


def test_tokens_are_counted_as_llama_counts_them_to_generate():
    _, theirs = decoders()
    seen, valid = [], padded("amid")
    theirs.model.rotary_emb.register_forward_pre_hook(
        lambda _, args, named: seen.append(named["position_ids"]),
        with_kwargs=True,
    )
    prompt = torch.randint(1, 53, (B, LENGTH))
    theirs.generate(prompt, attention_mask=valid.long(), max_new_tokens=1)
    assert torch.equal(token_positions(valid)[valid], seen[0][valid])


@layers
@pytest.mark.parametrize("pads", [False, True], ids=["whole", "padded"])
def test_greedy_writes_what_llama_generates(layer, pads):
    ours, theirs = decoders(layer)
    prompt = torch.randint(1, 53, (B, LENGTH))
    valid = padded("left") if pads else torch.ones_like(prompt).bool()
    for room, options in zip((None, *SERVING[layer].values()), cycle(GENERATE)):
        want = theirs.generate(
            prompt,
            attention_mask=valid.long(),
            max_new_tokens=7,
            do_sample=False,
            **options,
        )
        told = {"caches": room and [room(ROOM) for _ in ours.layers]}
        got = greedy(ours, prompt, 7, valid=valid if pads else None, **told)
        assert got.tolist() == want.tolist()
        new = want[:, LENGTH:].flatten().tolist()
        assert len(set(new)) > 7, "too uniform"


def test_rules_are_the_mask_functions_of_transformers():
    T, S = 7, 11
    ids = torch.tensor(
        [[0] * 3 + [1] * 5 + [2] * 3, [0] * 7 + [1] * 4, [0] * S]
    )
    length = torch.tensor([5, 0, 11])
    blocks = torch.where(torch.arange(S) < length[:, None], 0, -1)
    causal, packed = (
        theirs.causal_mask_function,
        (theirs.packed_sequence_mask_function(ids)),
    )
    at = torch.arange(B)[:, None, None, None], torch.tensor(0)
    i, j = torch.arange(S - T, S)[:, None], torch.arange(S)
    for one, wanted in (
        (Causal() & Documents(ids), theirs.and_masks(causal, packed)),
        (
            Prefix(length),
            theirs.or_masks(causal, theirs.blockwise_overlay(blocks)),
        ),
        *(
            (Window(W), theirs.sliding_window_causal_mask_function(W))
            for W in (1, 2, 3, 20)
        ),
    ):
        want = wanted(*at, i, j).expand(B, 1, T, S)
        got = RuleMask(one, T, S, S - T).dense().expand(B, 1, T, S)
        assert torch.equal(got, want), one
    for wrong in 2, 4:
        want = theirs.sliding_window_causal_mask_function(wrong)(*at, i, j)
        assert not torch.equal(RuleMask(Window(3), T, S, S - T).dense(), want)
