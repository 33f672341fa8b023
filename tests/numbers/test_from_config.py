"""What is counted from a config.json, against the models of transformers."""

import json

import pytest
import torch

from attnref.numbers.from_config import model_from_config
from attnref.numbers.kv_memory import kv_bytes, state_bytes
from tests.kit.families import FAMILIES, config_of, model_of

REFUSED = {  # layers whose state is not known
    *("falcon_h1", "jamba", "lfm2", "lfm2_moe", "lfm3", "minimax"),
    *("nemotron_h", "olmo_hybrid"),
}
UNLIKE = {"granite4_vision_text", "openai-gpt"}  # have no cache to count


def read(config):
    return model_from_config(json.loads(json.dumps(config.to_dict())))


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in UNLIKE])
def test_the_cache_of_every_family_is_that_of_transformers(family):
    config = config_of(family)
    if family in REFUSED:
        with pytest.raises(ValueError, match="would be counted too small"):
            read(config)
        return
    model, tokens = read(config), 5
    out = model_of(config)(torch.randint(3, 41, (3, tokens)), use_cache=True)
    held = sum(
        getattr(layer, name).numel()
        for layer in out.past_key_values.layers
        for name in ("keys", "values")
        if isinstance(getattr(layer, name, None), torch.Tensor)
    )
    if family == "falcon":  # it stores each head for every query head
        held //= model.groups[0].q_heads // model.groups[0].kv_heads
    kept = kv_bytes(model, tokens, batch=3) - state_bytes(model, batch=3)
    assert kept == 2 * held
