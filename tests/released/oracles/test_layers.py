"""The layers of the package against what is written for released models.

GQA and MLA take RoPE of all kinds, rules, biases of projections, and `scores`:
the record of a family says which. With the same weights they give what the
layer of the record gives, which `test_families.py` compares with transformers.
"""

from dataclasses import fields, replace
from itertools import accumulate, pairwise

import pytest
import torch

from attnref import (
    Alibi,
    Chunk,
    ConfiguredAttention,
    GroupedQueryAttention,
    GrowingKVCache,
    KVCache,
    Llama3,
    LongRope,
    MultiHeadLatentAttention,
    PositionInterpolation,
    Proportional,
    RingKVCache,
    Rope,
    Scores,
    Window,
    Yarn,
    padding_mask,
    token_positions,
)
from tests.kit.compare import relative_error
from tests.kit.families import (
    CHUNKS,
    FAMILIES,
    FLAGS,
    LENGTH,
    ROWS,
    config_of,
    records_of,
)

BOUND = 2e-6  # both round in float32, and frequencies in different order
# What GQA and MLA do not take is left out of both layers.
LEFT_OUT = {
    *("d_out", "differential"),
    *("fused", "transposed", "shares", "is_shared", "k_is_v", "latent_factor"),
    *("index_topk", "index_own", "clip", "k_factor", "v_factor", "norm"),
    *("v_norm", "rope_backwards", "q_factor", "q_growth", "q_power"),
    *("head_norm", "gate", "gate_bias", "sub_norm", "rope_norm"),
    *("rope_learned", "q_log"),
}
SCALINGS = {
    "default": lambda r: None,
    "linear": lambda r: PositionInterpolation(r.rope_factor),
    "proportional": lambda r: Proportional(r.rope_share),
    "llama3": lambda r: Llama3(
        r.rope_factor, r.rope_low, r.rope_high, r.rope_length
    ),
    "yarn": lambda r: Yarn(
        r.rope_factor,
        r.rope_length,
        r.rope_high,
        r.rope_low,
        attention_factor=r.rope_size,
        truncate=r.rope_truncate,
    ),
    "longrope": lambda r: LongRope(
        r.rope_short,
        r.rope_long,
        r.rope_length,
        attention_factor=r.rope_size,
    ),
}


def rope_of(r):
    if not r.rope_theta:
        return None
    width = None if r.kv_rank else r.rope_width
    return Rope(r.rope_theta, width, r.rope_layout, SCALINGS[r.rope_kind](r))


def scores_of(r):
    bias = Alibi(r.n_heads) if r.alibi else None
    return Scores(r.scale, bias, r.softcap, r.with_sinks)


def layer_of(r, **kwargs):
    """Ours, or None if it has no such part."""
    if r.rope_size != 1 and r.rope_kind not in ("yarn", "longrope"):
        return None
    if r.kv_rank and not r.rope_dim:  # ours has a part with positions
        return None
    causal = Window(r.window) if r.window else True
    causal = Chunk(r.chunk) if r.chunk else causal
    options = {"d_model": r.d_model, "n_heads": r.n_heads, "causal": causal}
    options |= {"rope": rope_of(r), "scores": scores_of(r), **kwargs}
    if r.kv_rank:
        return MultiHeadLatentAttention(
            **options,
            kv_lora_rank=r.kv_rank,
            qk_nope_head_dim=r.head_dim - r.rope_dim,
            qk_rope_head_dim=r.rope_dim,
            v_head_dim=r.v_head_dim,
            q_lora_rank=r.q_rank,
            bias=r.qkv_bias,
            eps=r.norm_eps,
        )
    if r.v_head_dim != r.head_dim:
        return None
    return GroupedQueryAttention(
        **options,
        n_kv_heads=r.n_kv_heads,
        head_dim=r.head_dim,
        bias=r.qkv_bias,
        o_bias=r.o_bias,
    )


def plain(r):
    usual = {f.name: f.default for f in fields(r) if f.name in LEFT_OUT}
    return replace(r, family="llama", kind="", **usual)


def records(family, changes):
    config = config_of(family, **changes)
    return [*dict.fromkeys(map(plain, records_of(config).values()))]


CASES = [(name, {}) for name in FAMILIES] + [*FLAGS.items()]


def case_id(family, changes):
    return f"{family}{'-'.join(changes)}"


@torch.no_grad()
def with_same_weights(r, ours):
    theirs = ConfiguredAttention(r).eval()
    torch.manual_seed(0)
    for name, weight in theirs.named_parameters():
        noise = torch.randn_like(weight)
        weight.copy_(weight + 0.3 * noise if "norm" in name else 0.2 * noise)
    ours.load_state_dict(theirs.state_dict())
    return ours.eval(), theirs


def outputs(layer, r, cache, chunks, valid):
    """In chunks, with pads on the left; of LongRoPE, up to its length."""
    torch.manual_seed(1)
    x = torch.randn(ROWS, LENGTH, r.d_model)
    positions = token_positions(valid)
    out = []
    for start, end in pairwise(accumulate(chunks, initial=0)):
        options = {"mask": padding_mask(valid[:, :end]), "cache": cache}
        if r.rope_theta:
            options["positions"] = positions[:, start:end]
        try:
            out.append(layer(x[:, start:end], **options))
        except ValueError as refusal:
            assert "LongRoPE" in str(refusal)
            break
    return torch.cat(out, dim=1)


@pytest.mark.parametrize(
    ("family", "changes"), CASES, ids=[case_id(*case) for case in CASES]
)
@torch.no_grad()
def test_our_layer_does_what_the_record_of_a_family_says(family, changes):
    valid = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    valid[1, :5] = valid[2, :1] = False
    for r in records(family, changes):
        if (ours := layer_of(r)) is None:
            continue
        ours, theirs = with_same_weights(r, ours)
        ring = r.window or r.chunk
        ring = RingKVCache(ring) if ring else KVCache(LENGTH + 7)
        caches = KVCache(LENGTH), GrowingKVCache(), ring
        for chunks, cache in zip(CHUNKS.values(), caches, strict=True):
            expected = outputs(theirs, r, theirs.cache(LENGTH), chunks, valid)
            actual = outputs(ours, r, cache, chunks, valid)
            real = valid[:, : actual.shape[1]]
            assert actual.shape == expected.shape
            assert relative_error(actual[real], expected[real]) < BOUND, r


RECORDS = {r for case in CASES for r in records(*case)}
OURS = [r for r in RECORDS if layer_of(r)]


def test_all_that_our_layers_take_is_in_a_family():
    """Or the comparison above would leave it out."""
    for field in fields(Scores):
        values = {getattr(scores_of(r), field.name) for r in OURS}
        assert len(values) > 1, field.name
    kinds = {type(rope_of(r).scaling) for r in OURS if rope_of(r)}
    assert len(kinds) == len(SCALINGS)
    assert {Window, Chunk} <= {type(layer_of(r).causal) for r in OURS}
