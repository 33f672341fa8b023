"""A layer from a config, in the lines that a page shows."""

# --8<-- [start:imports]
import torch

from attnref import KVCache, attention_from_config

# --8<-- [end:imports]


def test_a_layer_from_a_config_decodes():
    # --8<-- [start:layer]
    config = {"model_type": "qwen3", "num_hidden_layers": 2}  # or a path
    config |= {"hidden_size": 60, "num_attention_heads": 6, "head_dim": 10}
    config["num_key_value_heads"] = 2
    layer = attention_from_config(config, layer=1).requires_grad_(False)

    cache = KVCache(max_len=9)
    x = torch.randn(3, 9, 60)  # (B, T, E)
    steps = [layer(new, cache=cache) for new in x.split((5, 1, 3), dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x))
    # --8<-- [end:layer]


def test_parts_of_several_models_are_fields_of_one_record():
    # --8<-- [start:record]
    from dataclasses import replace

    from attnref import ConfiguredAttention, attention_of

    config = {"model_type": "qwen3", "num_hidden_layers": 2, "head_dim": 10}
    config |= {"hidden_size": 60, "num_attention_heads": 6}
    record = attention_of(config | {"num_key_value_heads": 2})
    assert record.norm == "RMS of a head"  # Qwen3 has this one part
    record = replace(record, gate="per head", with_sinks=True, softcap=50.0)
    layer = ConfiguredAttention(record)
    shapes = {n: tuple(w.shape) for n, w in layer.state_dict().items()}
    assert shapes["q_norm.weight"] == (10,) and shapes["sinks"] == (6,)
    assert shapes["gate_proj.weight"] == (6, 60)
    # --8<-- [end:record]
    x = torch.randn(3, 9, 60)
    assert layer(x).shape == x.shape and layer(x).isfinite().all()
