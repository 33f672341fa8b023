"""The plain forms against transformers, whose weights load as they are."""

import pytest
import torch
from transformers import GPTBigCodeConfig, LlamaConfig, Qwen3NextConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3
from transformers.models.gpt_bigcode import modeling_gpt_bigcode
from transformers.models.llama.modeling_llama import LlamaAttention
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from attnref.core.heads import merge_heads, split_heads
from attnref.plain import order, scaling
from attnref.plain.gqa import GQA
from attnref.plain.llama import Llama
from attnref.plain.masks import causal_mask
from attnref.plain.mla import MLA
from attnref.plain.mqa import MQA
from attnref.plain.rope import rope
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


def test_mqa_is_that_of_starcoder():
    """Which has biases and learned positions; here its biases are zero."""
    sizes = {"n_embd": E, "n_head": H, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    config = GPTBigCodeConfig(**sizes, attn_implementation="eager")
    module = modeling_gpt_bigcode.GPTBigCodeAttention(config, layer_idx=0)
    theirs, ours = kit.sharpened(module), MQA(E, H)
    for part in (theirs.c_attn, theirs.c_proj):
        part.bias.data.zero_()
    q, k, v = theirs.c_attn.weight.split((E, E // H, E // H))
    for mine, weight in zip(
        (ours.q_proj, ours.k_proj, ours.v_proj, ours.o_proj),
        (q, k, v, theirs.c_proj.weight),
        strict=True,
    ):
        mine.weight.data.copy_(weight)
    x = torch.randn(B, LENGTH, E)
    hidden = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)
    want = theirs(x, attention_mask=hidden[None, None])[0]
    assert relative_error(ours(x), want) <= BOUND


def test_todays_heads_are_those_of_qwen3_next_with_norm_and_gate():
    kind = {"rope_type": "default", "rope_theta": THETA}
    kind["partial_rotary_factor"] = 1.0
    config = Qwen3NextConfig(**kit.SIZES, head_dim=6, rope_parameters=kind)
    theirs = kit.sharpened(qwen3_next.Qwen3NextAttention(config, layer_idx=0))
    rotary = qwen3_next.Qwen3NextRotaryEmbedding(config)
    x, at = torch.randn(B, LENGTH, E), torch.arange(LENGTH)
    want = kit.in_theirs(theirs, config, x, rotary=rotary)
    q, gate = order.query_and_gate(theirs.q_proj(x), H)
    k, v = (split_heads(p(x), H) for p in (theirs.k_proj, theirs.v_proj))
    norms = 1 + theirs.q_norm.weight, 1 + theirs.k_norm.weight
    no_sink, past = torch.full((H,), -torch.inf), causal_mask(LENGTH)
    steps = *norms, lambda y: rope(y, at, THETA), 1e6, no_sink, past
    heads = order.todays_heads(q, k, v, gate, *steps)
    assert relative_error(theirs.o_proj(merge_heads(heads)), want) <= BOUND


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


@pytest.mark.parametrize("theta", [1e4, 5e5])
def test_scaled_frequencies_are_those_of_transformers(theta):
    """In float32, as transformers computes them."""
    f, D, length = scaling.frequencies(64, theta), 64, 4096
    slowed, size = scaling.yarn(f, 32.0, length)
    of_k2, _ = scaling.yarn(f, 32.0, length, fast=1.0)
    bands = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    for name, more, got in (
        ("linear", {}, (scaling.linear(f, 32.0), 1.0)),
        ("llama3", bands, (scaling.llama3(f, 32.0, length), 1.0)),
        ("yarn", {}, (slowed, size)),
        ("yarn", {"beta_fast": 1.0}, (of_k2, size)),
    ):
        given = {"rope_type": name, "rope_theta": theta, "factor": 32.0}
        given |= {"original_max_position_embeddings": length, **more}
        config = LlamaConfig(head_dim=D, rope_parameters=given)
        want, scale = ROPE_INIT_FUNCTIONS[name](config, torch.device("cpu"))
        assert relative_error(got[0], want) <= BOUND
        assert (got[0] / want - 1).abs().max() <= BOUND
        assert got[1] == pytest.approx(scale, rel=1e-12)
