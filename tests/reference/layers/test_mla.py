"""MLA: three forms, one result; and why each part of it is as it is."""

from functools import partial

import pytest
import torch
from torch import nn

from attnref import (
    KVCache,
    MultiHeadLatentAttention,
    Rope,
)
from attnref.numbers.cost import mla_cost
from attnref.numbers.shapes import Mla
from sitekit.drawn.mla import V3
from tests.kit import layers
from tests.kit.compare import relative_error
from tests.kit.layers import LATENT, STRETCHED, Variant, full
from tests.kit.mla import (
    DN,
    DR,
    DV,
    FORMS,
    E,
    H,
    R,
    mla,
    tokens,
)

VARIANTS = {
    f"mla {form}": Variant(
        MultiHeadLatentAttention,
        LATENT,
        partial(mla_cost, form=form),
        full(layers.H, layers.DN + layers.DR, layers.DV)
        if form == "expanded"
        else Mla(
            layers=1,
            q_heads=layers.H,
            kv_lora_rank=layers.R,
            qk_rope_head_dim=layers.DR,
        ),
        forward={"form": form},
        options=(
            {},
            {"q_lora_rank": layers.Q, "bias": True},
            {"rope": Rope()},
            {"rope": STRETCHED, "q_lora_rank": layers.Q},
        ),
    )
    for form in FORMS
}


@pytest.mark.parametrize(
    ("form", "numbers"),
    [("expanded", 40960), ("latent", 576), ("absorbed", 576)],
)
def test_what_a_token_costs_deepseek_v3(form, numbers):
    with torch.device("meta"):
        layer = MultiHeadLatentAttention(**V3).bfloat16()
        x = torch.empty(1, 1, 7168, dtype=torch.bfloat16)
    cache = KVCache(1)
    with torch.no_grad():
        layer(x, cache=cache, form=form)
    assert cache.nbytes == 2 * numbers
    published = {"expanded": 4_997_120, "latent": 70_272, "absorbed": 70_272}
    assert 61 * cache.nbytes == published[form]


def test_three_forms_one_result():
    # --8<-- [start:forms]
    layer = MultiHeadLatentAttention(
        d_model=64,
        n_heads=4,
        kv_lora_rank=24,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=12,
        q_lora_rank=32,
    ).double()
    nn.init.normal_(layer.q_b_proj.weight)  # a flat softmax would hide errors
    x = torch.randn(2, 7, 64, dtype=torch.float64)
    expanded = layer(x, form="expanded")
    for form in "latent", "absorbed":
        assert torch.allclose(layer(x, form=form), expanded, rtol=0, atol=1e-12)
    # --8<-- [end:forms]
    assert relative_error(layer(x), expanded) <= 1e-12


def test_rope_between_them_blocks_absorption():
    # --8<-- [start:blocked]
    from attnref import apply_rope, rope_table

    w_uq = torch.randn(16, 32, dtype=torch.float64)  # W^UQ of one head
    w_uk = torch.randn(16, 24, dtype=torch.float64)  # W^UK of this head

    def turned(w, position):
        """`w` followed by RoPE at this position, as one matrix."""
        table = rope_table(torch.tensor([position]), 16)
        return apply_rope(w.mT[None, :, None], *table)[0, :, 0].mT

    def between(i, j):
        """The matrix between the latents of tokens i and j in a score."""
        return turned(w_uq, i).mT @ turned(w_uk, j)

    assert torch.allclose(between(3, 1), between(4, 2), rtol=0, atol=1e-12)
    assert (between(3, 1) - between(3, 2)).abs().max() > 1
    # --8<-- [end:blocked]


def test_keys_and_values_together_have_the_rank_of_the_latent():
    layer = mla()
    # --8<-- [start:rank]
    R, Dn = layer.kv_lora_rank, layer.qk_nope_head_dim
    down = layer.kv_a_proj_with_mqa.weight[:R]
    joint = layer.kv_b_proj.weight @ down  # from x to all keys and values
    assert min(joint.shape) > R
    assert torch.linalg.matrix_rank(joint) == R
    head = joint[:Dn]  # from x to the content key of head 0
    assert torch.linalg.matrix_rank(head) == Dn  # full: no lower than in MHA
    # --8<-- [end:rank]


def test_yarn_scales_a_layer():
    width = DN + DR
    assert mla(rope=STRETCHED).scale == pytest.approx(
        STRETCHED.scaling.softmax_scale * width**-0.5
    )


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="'absorb' is none of expanded"):
        mla()(tokens(), form="absorb")


def test_a_head_has_scores_of_the_rank_of_its_key():
    """As in MHA: the latent is wider, and does not bound a single head."""
    layer, x = mla(), tokens(1, 60, E)
    q = layer.q_proj(x).view(60, H, DN + DR)[..., :DN]
    c = layer.kv_a_layernorm(layer.kv_a_proj_with_mqa(x)[..., :R])
    k = layer.kv_b_proj(c).view(60, H, DN + DV)[..., :DN]
    scores = q.transpose(0, 1) @ k.permute(1, 2, 0)
    assert torch.linalg.matrix_rank(scores).tolist() == [DN] * H


def test_a_compressed_query_has_a_rank():
    with pytest.raises(ValueError, match="q_lora_rank=0 must be at least 1"):
        mla(q_lora_rank=0)
