"""The parameters of a model, counted from its config.json."""

from collections.abc import Mapping
from typing import Any

from attnref.released.expression import value_of
from attnref.released.record import (
    UNREADABLE,
    AttentionRecord,
    Fields,
    Layers,
    families,
    layers_of,
    read_by,
)

BIASES = "mlp_bias", "use_bias", "lm_head_bias", "bias", "add_bias_linear"
LAST = "mlp", "mixer", "norms", "ends", "once", "tied"  # made of the others


def params_of(
    given: Mapping[str, Any], layers: Layers | None = None
) -> tuple[int, int] | None:
    """All parameters, and those of attention; None if the family is not known.

    Draft layers and vision encoders are not counted.
    """
    family = families().get(given["model_type"])
    entries = family.weights if family else {}
    unread = {*BIASES} - read_by(entries)
    if not entries or any(given.get(name) for name in unread):
        return None
    layers = layers or layers_of(given)
    attention = rest = 0
    read = Fields()
    try:
        for layer, (kind, record) in enumerate(layers):
            read = Fields(given, layer=layer, layer_type=kind)
            for name in sorted(entries, key=LAST.__contains__):
                read[name] = value_of(entries[name], read)
            rest += read["mlp"] + read["norms"] * read["d"]
            if record is None or read["mixer"]:
                attention += read["mixer"]
            if record:
                attention += attention_params(record)
        ends = (1 if read["tied"] else 2) * read["vocab_size"] + read["ends"]
        whole = attention + rest + ends * read["d"] + read["once"]
    except UNREADABLE:
        return None
    if read["tied"] is None or not isinstance(whole, int):
        return None
    return whole, attention


def attention_params(r: AttentionRecord) -> int:
    """Parameters of the attention of one layer.

    Examples:
        >>> from attnref.released.record import attention_of
        >>> config = {"model_type": "llama", "num_hidden_layers": 1}
        >>> config |= {"hidden_size": 64, "num_attention_heads": 4}
        >>> attention_params(attention_of(config))
        16384
    """
    d, heads, out = r.d_model, r.n_heads, r.n_heads * r.v_head_dim
    q, k, v = heads * r.head_dim, r.n_kv_heads * r.head_dim, 0
    if not r.k_is_v:
        v = r.n_kv_heads * r.v_head_dim
    if r.shares is not None:
        k = v = 0
    n = (
        (out + r.o_bias) * (r.d_out or d)
        + r.with_sinks * heads
        + r.sub_norm * out
    )
    if r.gate in ("per channel", "per head"):
        n += d * (out if r.gate == "per channel" else heads)
        n += r.gate_bias * heads
    if r.kv_rank:
        nope = r.head_dim - r.rope_dim
        down = r.kv_rank + r.rope_dim + (r.q_rank or 0)
        n += d * down + r.qkv_bias * down + r.kv_rank + (r.q_rank or 0)
        n += r.kv_rank * heads * (nope + r.v_head_dim)
        n += r.rope_norm * r.rope_dim + _index_params(r)
        if r.gate == "in q_proj":
            return n + 2 * (r.q_rank or d) * (q + out)
        return n + (r.q_rank or d) * q
    n += _index_params(r)
    made = q * (2 if r.gate == "in q_proj" else 1) + k + v
    n += (d + r.qkv_bias) * made
    if r.norm and r.norm_weight:
        if r.norm in ("RMS of a head", "LayerNorm"):
            one = r.head_dim * (2 if r.norm == "LayerNorm" else 1)
            return n + one * (2 if k else 1)
        return n + q + k
    return n


def _index_params(r: AttentionRecord) -> int:
    if not r.index_own:
        return 0
    d, heads, one = r.d_model, r.index_heads, r.index_dim
    if r.index_pool in ("max", "mean"):
        return d * (heads + 1) * one + 2 * one
    n = (r.q_rank or d) * heads * one + d * (heads + one) + 2 * one
    return n + (r.index_block + d) * one * (r.index_pool == "learned")
