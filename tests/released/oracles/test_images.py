"""Tokens of images: their three positions, and masks in which they see each
other, in written files."""

import pytest
import torch
from transformers.models.gemma3 import modeling_gemma3 as gemma3
from transformers.models.gemma4 import modeling_gemma4 as gemma4

from attnref.released.record import read_config
from tests.kit import sampled
from tests.kit.checkpoints import file, theirs, wrapped
from tests.kit.compare import relative_error
from tests.kit.families import config_of, model_of

B, T = 3, 29
PAIRS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 1]}
# Models of images, and the family of their text.
POSITIONS = {
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "ernie4_5_vl_moe": "ernie4_5_vl_moe_text",
}
# The tokens of a text with two images of 3 x 4 and 2 x 3 patches, by type.
KINDS = torch.tensor(4 * [0] + 12 * [1] + 3 * [0] + 6 * [1] + 4 * [0])


def text_of(family, **options):
    """The file of a tiny text model, the model, and its layers."""
    config = config_of(family, **options)
    read = read_config(config.to_dict())
    return config, model_of(config), read, file(config.to_dict())


@torch.no_grad()
def passed(model, read, **inputs):
    """What goes through the attention of each layer: x, and the output."""
    calls, hooks = {}, []

    def record(layer):
        def hook(module, args, keywords, out):
            x = args[0] if args else keywords["hidden_states"]
            calls[layer] = x.clone(), out[0].clone(), module

        return hook

    for layer in read.records:
        module = theirs(model, read, layer)
        hooks.append(
            module.register_forward_hook(record(layer), with_kwargs=True)
        )
    model(**inputs, use_cache=False)
    for hook in hooks:
        hook.remove()
    return calls


@pytest.mark.parametrize("name", sampled(POSITIONS, ["qwen2_5_vl", "qwen3_vl"]))
@torch.no_grad()
def test_positions_in_time_height_and_width_turn_pairs(name):
    """As transformers' model of images places the tokens of two images."""
    options = {"rope_parameters": PAIRS} if "qwen3" in name else {}
    config, model, read, space = text_of(POSITIONS[name], **options)
    whole = wrapped(name, POSITIONS[name])[1]
    whole = getattr(whole, "model", whole)
    tokens, kinds = torch.randint(3, 41, (B, T)), KINDS.expand(B, T)
    size = getattr(whole.config.vision_config, "spatial_merge_size", 1)
    grid = torch.tensor([[1, 3, 4], [1, 2, 3]]) * torch.tensor([1, size, size])
    places, _ = whole.get_rope_index(
        tokens, mm_token_type_ids=kinds, image_grid_thw=grid.repeat(B, 1)
    )
    assert len({*map(tuple, places[:, 0].tolist())}) == 3
    for x, wanted, module, layer in [
        (*call, layer)
        for layer, call in passed(
            model, read, input_ids=tokens, position_ids=places
        ).items()
    ]:
        ours = space["Attention"](layer)
        ours.load_state_dict(dict(module.named_parameters()))
        assert relative_error(ours(x, places=places), wanted) < 1e-6
        assert relative_error(ours(x), wanted) > 0.01
        cache, steps, start = ours.cache(T), [], 0
        for part in x.split((9, 1, 14, 5), dim=1):
            end = start + part.shape[1]
            steps.append(
                ours(part, cache=cache, places=places[:, :, start:end])
            )
            start = end
        assert relative_error(torch.cat(steps, dim=1), wanted) < 1e-6


SEEN = {
    "gemma3_text": (gemma3, {}),
    "gemma4_text": (gemma4, {"use_bidirectional_attention": "vision"}),
}


@pytest.mark.parametrize("family", SEEN)
@torch.no_grad()
def test_the_tokens_of_an_image_see_each_other(family):
    """Also later ones, within the window of a layer that has one; a chunk that
    cuts an image is refused."""
    source, options = SEEN[family]
    config, model, read, space = text_of(family, **options)
    x = torch.randn(B, T, config.hidden_size)
    kinds = torch.stack([KINDS, KINDS.flip(0), KINDS.roll(2)])
    blocks = gemma3.get_block_sequence_ids_for_mask(kinds)
    masks = source.create_masks_for_vision_model(
        config, x, None, None, None, blocks
    )
    tokens = torch.randint(3, 41, (B, T))
    calls = passed(model, read, input_ids=tokens, attention_mask=masks)
    moved = 0
    for layer, (x, wanted, module) in calls.items():
        if read.records[layer].shares is not None:
            continue
        ours = space["Attention"](layer)
        ours.load_state_dict(dict(module.named_parameters()))
        assert relative_error(ours(x, blocks=blocks), wanted) < 2e-6
        moved += relative_error(ours(x), wanted) > 0.01
        cache = ours.cache(T)
        if ours.window or family == "gemma3_text":
            ours(x[:, :6], cache=cache, blocks=blocks[:, :6])
            with pytest.raises(ValueError, match="a chunk cuts an image"):
                ours(x[:, 6:9], cache=cache, blocks=blocks[:, :9])
    assert moved
    ours, x = space["Attention"](0), x[:1]
    whole, cache = ours(x, blocks=blocks[:1]), ours.cache(T)
    steps = [
        ours(x[:, start:end], cache=cache, blocks=blocks[:1, :end])
        for start, end in ((0, 16), (16, 18), (18, 25), (25, 26), (26, T))
    ]
    assert relative_error(torch.cat(steps, dim=1), whole) < 1e-6
