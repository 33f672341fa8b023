"""The layers against those of transformers, whose weights load as they are.

All in float32, as transformers computes its RoPE tables and norms; where a
test runs in float64, its layers are given exact tables.
"""

from functools import partial
from itertools import cycle, product
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    DynamicCache,
    ModernBertConfig,
    Qwen2VLTextConfig,
    Qwen3VLConfig,
    Qwen3VLTextConfig,
)
from transformers import masking_utils as theirs
from transformers.models.gemma3 import modeling_gemma3 as gemma3
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2_vl
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3_vl

from attnref import (
    Causal,
    Documents,
    KVCache,
    Prefix,
    RuleMask,
    Window,
    causal_mask,
    greedy,
    rope_rows,
    token_positions,
)
from tests.kit import sampled
from tests.kit.compare import relative_error
from tests.kit.layers import B
from tests.kit.oracles import (
    BOUND,
    CHUNKS,
    EXACT,
    LENGTH,
    MODELS,
    ROOM,
    THEIRS,
    WAYS,
    WRONG,
    E,
    H,
    K,
    block_for,
    config_of,
    decoders,
    in_ours,
    in_theirs,
    layer_for,
    padded,
    pair,
    positions_of,
    sharpened,
)
from tests.variants import SERVING, VARIANTS, built, rule

# Those of Llama see the whole past.
LAYERS = [
    name
    for name, v in VARIANTS.items()
    if v.kv_heads and rule(built(name)) == Causal()
]
models = pytest.mark.parametrize("model", MODELS)
layers = pytest.mark.parametrize("layer", LAYERS)


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
        for make_theirs in THEIRS.values():
            want = in_theirs(theirs, config, x, chunks, make_theirs(config))
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


@pytest.mark.parametrize(
    ("layer", "pads"),
    sampled(product(LAYERS, [False, True]), lambda way: way[1]),
)
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
        rooms = {"caches": room and [room(ROOM) for _ in ours.layers]}
        got = greedy(ours, prompt, 7, valid=valid if pads else None, **rooms)
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


def test_masks_that_look_ahead_are_those_that_pages_say():
    """Within an image, as in Gemma 3; in a window both ways, as in
    ModernBERT."""
    types = torch.tensor([[0, 0, 1, 1, 0, 1, 1, 1, 0], [1] * 4 + [0] * 5])
    image = gemma3.get_block_sequence_ids_for_mask(types)
    T = types.shape[1]
    i, j = torch.arange(T)[:, None], torch.arange(T)
    same = (image[:, :, None] == image[:, None]) & (image >= 0)[:, None]
    row = torch.arange(2)[:, None, None, None], torch.tensor(0)
    both = theirs.or_masks(
        theirs.causal_mask_function, theirs.blockwise_overlay(image)
    )
    ours = causal_mask(T) | same[:, None]
    assert torch.equal(ours, both(*row, i, j))
    assert not torch.equal(ours, causal_mask(T).expand_as(ours))
    half = ModernBertConfig(local_attention=8).sliding_window
    window = theirs.sliding_window_bidirectional_overlay(half)(*row, i, j)
    assert torch.equal((j - i).abs() <= 4, window.squeeze())
    assert ModernBertConfig().sliding_window == 64


def test_positions_of_an_image_are_those_that_the_page_says():
    """Four tokens of text, an image of 2 x 3, and two more of text."""
    # --8<-- [start:mrope]
    import torch

    def mrope(x, places, axes, theta=1e6):
        """Rotate x (B, H, T, D) by places (3, B, T); axes: of each pair."""
        pair = torch.arange(len(axes)).double()
        turn = places[axes].movedim(0, -1)[:, None]
        angle = turn * theta ** (-pair / len(axes))
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    in_blocks = torch.tensor([0] * 16 + [1] * 24 + [2] * 24)  # Qwen2-VL
    in_turns = torch.tensor([0, 1, 2] * 20 + [0] * 4)  # Qwen3-VL

    x = torch.randn(3, 2, 12, 128)  # (B, H, T, D)
    text = torch.arange(12).expand(3, 3, 12)  # three equal places: RoPE
    assert torch.equal(mrope(x, text, in_blocks), mrope(x, text, in_turns))
    # --8<-- [end:mrope]
    types = torch.tensor([[0] * 4 + [1] * 6 + [0] * 2])
    config = Qwen3VLConfig()
    asked = SimpleNamespace(
        config=config,
        get_vision_position_ids=partial(
            qwen3_vl.Qwen3VLModel.get_vision_position_ids, None
        ),
    )
    merged = config.vision_config.spatial_merge_size
    grid = torch.tensor([[1, 2 * merged, 3 * merged]])
    positions, delta = qwen3_vl.Qwen3VLModel.get_rope_index(
        asked, types, types, image_grid_thw=grid
    )
    # --8<-- [start:places]
    import torch

    def image_places(before, rows, columns, after):
        """(3, T): time, row and column of text, one image, text again."""
        sides = torch.arange(rows), torch.arange(columns)
        r, c = torch.meshgrid(*sides, indexing="ij")
        image = before + torch.stack((0 * r, r, c)).flatten(1)
        on = before + max(rows, columns)  # where the text goes on
        first = torch.arange(before).expand(3, -1)
        last = torch.arange(on, on + after).expand(3, -1)
        return torch.cat((first, image, last), dim=1)

    time, row, column = image_places(4, 2, 3, 2).tolist()
    assert time == [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 7, 8]
    assert row == [0, 1, 2, 3, 4, 4, 4, 5, 5, 5, 7, 8]
    assert column == [0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8]
    # --8<-- [end:places]
    assert positions[:, 0].tolist() == [time, row, column]
    assert delta.item() == -3 and types.shape[1] + delta.item() == 9
    places = positions.expand(3, 3, 12) + 2900  # after as much text
    for theirs_of, config_of, axes in (
        (qwen2_vl.Qwen2VLRotaryEmbedding, Qwen2VLTextConfig, in_blocks),
        (qwen3_vl.Qwen3VLTextRotaryEmbedding, Qwen3VLTextConfig, in_turns),
    ):
        sizes = {"hidden_size": 256, "num_attention_heads": 2, "head_dim": 128}
        rope = {"rope_type": "default", "rope_theta": 1e6}
        rotary = theirs_of(config_of(**sizes, rope_parameters=rope))
        cos, sin = rotary(x, places)
        want, _ = qwen3_vl.apply_rotary_pos_emb(x, x, cos, sin)
        # In float32, transformers' angles are off by what 2,900 rounds to.
        torch.testing.assert_close(
            mrope(x, places, axes), want, atol=2e-3, rtol=0
        )
        other = in_turns if axes is in_blocks else in_blocks
        assert (mrope(x, places, other) - want).abs().max() > 0.1
