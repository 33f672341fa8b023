"""Projections that a checkpoint holds as one, in layers that have three.

Whole models of transformers, of odd sizes: with pads on the left, and in ragged
chunks.
"""

from itertools import accumulate, pairwise

import pytest
import torch

from attnref import (
    Alibi,
    GroupedQueryAttention,
    KVCache,
    Rope,
    Scores,
    attention_from_config,
    padding_mask,
    split_qkv,
    token_positions,
)
from tests.kit.compare import relative_error
from tests.kit.families import (
    CHUNKS,
    LENGTH,
    ROWS,
    config_of,
    model_of,
    seen,
)

FAMILIES = {  # what it is called, and in which order
    "phi3": ("qkv_proj", "o_proj", "layer"),
    "gpt2": ("c_attn", "c_proj", "layer"),
    "gpt_neox": ("query_key_value", "dense", "group"),
    "bloom": ("query_key_value", "dense", "group"),
    "falcon": ("query_key_value", "dense", "group"),
}


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_one_projection_is_split_into_three(family):
    fused, last, by = FAMILIES[family]
    config = config_of(family)
    valid = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    valid[1, :5] = valid[2, :1] = False
    result = seen(model_of(config), family, CHUNKS["ragged"], valid)[1]
    theirs = result.module.state_dict()
    whole = attention_from_config(config, result.layer)
    whole.load_state_dict(theirs)  # as it is, strictly
    r = whole.r
    ours = GroupedQueryAttention(
        d_model=r.d_model,
        n_heads=r.n_heads,
        n_kv_heads=r.n_kv_heads,
        head_dim=r.head_dim,
        bias=r.qkv_bias,
        rope=Rope(r.rope_theta, r.rope_width) if r.rope_theta else None,
        scores=Scores(bias=Alibi(r.n_heads)) if r.alibi else None,
    )
    weights = {}
    for name, weight in theirs.items():
        if r.transposed and weight.dim() == 2:
            weight = weight.T
        part, _, kind = name.partition(".")
        if part == last:
            weights[f"o_proj.{kind}"] = weight
        if part == fused:
            rows = split_qkv(weight, r.n_heads, r.n_kv_heads, by=by)
            for n, own in zip("qkv", rows, strict=True):
                weights[f"{n}_proj.{kind}"] = own
    ours.load_state_dict(weights)
    at = token_positions(valid)
    for layer in (ours.eval(), whole.eval()):
        cache = KVCache(LENGTH)
        steps = pairwise(accumulate(CHUNKS["ragged"], initial=0))
        for (x, wanted), (start, end) in zip(result.calls, steps, strict=True):
            got = layer(
                x,
                mask=padding_mask(valid[:, :end]),
                cache=cache,
                positions=at[:, start:end] if r.rope_theta else None,
            )
            real = valid[:, start:end]
            assert relative_error(got[real], wanted[real]) <= 1e-6


@pytest.mark.parametrize(
    ("rows", "K", "by", "message"),
    [
        (60, 4, "layer", "60 rows with n_heads=6 and n_kv_heads=4: there are"),
        (64, 3, "group", "64 rows with n_heads=6 and n_kv_heads=3: there are"),
        (60, 3, "head", "by='head' is neither 'layer' nor 'group'"),
    ],
)
def test_what_cannot_be_split_is_refused(rows, K, by, message):
    with pytest.raises(ValueError, match=message):
        split_qkv(torch.zeros(rows), 6, K, by=by)
