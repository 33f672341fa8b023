"""The plain forms against transformers, whose weights load as they are."""

import pytest
import torch
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3
from transformers.models.llama.modeling_llama import LlamaAttention

from attnref.plain.gqa import GQA
from attnref.plain.llama import Llama
from attnref.plain.mla import MLA
from tests.kit import oracles as kit
from tests.kit.compare import relative_error
from tests.kit.oracles import BOUND, CHUNKS, LENGTH, THETA, B, E, H
from tests.kit.plain import outputs


def same_in_chunks(ours, theirs, rotary=None, **options):
    config, x = theirs.config, torch.randn(B, LENGTH, E)
    for valid in (kit.padded("left"), torch.ones(B, LENGTH).bool()):
        at, chunks = kit.positions_of(valid), CHUNKS["ragged"]
        way = chunks, kit.THEIRS["dynamic"](config), valid, at, rotary
        want = kit.in_theirs(theirs, config, x, *way)[valid]
        for got in outputs(ours, theirs, x, valid, chunks, **options):
            assert relative_error(got[valid], want) <= BOUND


@pytest.mark.parametrize("kv_heads", [1, 2, H])
def test_gqa_is_that_of_llama(kv_heads):
    config = kit.config_of("Llama", kv_heads)
    theirs = kit.sharpened(LlamaAttention(config, layer_idx=0))
    same_in_chunks(GQA(E, H, kv_heads, theta=THETA), theirs)


@pytest.mark.parametrize("rank", [None, kit.Q])
def test_both_forms_of_mla_are_those_of_deepseek_v3(rank):
    rope = {"rope_type": "default", "rope_theta": THETA}
    sizes = kit.SIZES | kit.LATENT | {"q_lora_rank": rank}
    config = v3.DeepseekV3Config(**sizes, rope_parameters=rope)
    theirs = kit.sharpened(v3.DeepseekV3Attention(config, layer_idx=0))
    ours = MLA(E, H, *kit.LATENT.values(), rank, THETA)
    for absorbed in (True, False):
        rotary = v3.DeepseekV3RotaryEmbedding(config)
        same_in_chunks(ours, theirs, rotary, absorbed=absorbed)


def test_llama_gives_the_logits_and_the_tokens_of_transformers():
    _, theirs = kit.decoders()
    config, heads = theirs.config, {"n_heads": H, "n_kv_heads": kit.K}
    eps = config.rms_norm_eps
    ours = Llama(53, 3, E, kit.D_FF, eps=eps, theta=THETA, **heads)
    ours.load_state_dict(theirs.state_dict())
    ours.double(), theirs.double()  # rounding alone is near the bound
    ids, pads = torch.randint(1, 53, (B, LENGTH)), kit.padded("left")
    for valid in (pads, torch.ones_like(pads)):
        more = {"attention_mask": valid.long()}
        want = theirs(ids, **more, position_ids=kit.positions_of(valid)).logits
        assert (
            relative_error(ours(ids, None, valid)[valid], want[valid]) <= 1e-6
        )
        want = theirs.generate(ids, **more, max_new_tokens=9, do_sample=False)
        assert torch.equal(ours.generate(ids, 9, valid), want)
    assert torch.equal(ours.generate(ids, 9), want)
