"""Each known answer is that of transformers or torch, in float64."""

import importlib
import inspect
import sys
from contextlib import ExitStack, contextmanager
from functools import cache
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    GlmMoeDsaConfig,
    GPTBigCodeConfig,
    LlamaConfig,
    Qwen3_5TextConfig,
    masking_utils,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.llama import modeling_llama as llama

from attnref.check import vectors
from attnref.check.catalogue import Plain

BOUND = 1e-6


@contextmanager
def all_in_float64():
    """Their code says float32 where it wants to be exact."""
    with ExitStack() as stack:
        for name in ("float", "float32"):
            stack.enter_context(patch.object(torch, name, torch.float64))
        stack.enter_context(patch.object(Tensor, "float", Tensor.double))
        yield


@cache
def answer(name):
    """What is stored of the case: what it is given, its weights, its output."""
    exact = patch.object(vectors, "_stored", lambda value: value)
    with exact, patch.object(vectors, "_wrong", lambda *_: ({}, {})):
        tensors, about = vectors.computed(name)
    parts = {"input": {}, "weight": {}}
    for place, value in tensors.items():
        kind, _, own = place.partition("/")
        if kind in parts:
            parts[kind][own] = value
    case = vectors.cases()[name] | about["given"] | parts["input"]
    given = SimpleNamespace(**case, all=parts["input"])
    return given, parts["weight"], tensors["output"]


def oracle_of(name):
    return theirs(vectors.cases()[name]["oracle"])


def theirs(path):
    """transformers.models.llama.LlamaAttention, wherever it is defined."""
    module, _, name = path.rpartition(".")
    stem = module.rpartition(".")[2]
    if module.startswith("transformers.models."):
        module = f"{module}.modeling_{stem}"
    return getattr(importlib.import_module(module), name)


def additive(seen):
    return torch.zeros(seen.shape).double().masked_fill(~seen, -torch.inf)


def softmax(name, g, w):
    return torch.softmax(g.x, dim=-1).nan_to_num(0.0)


def sdpa(name, g, w, mask=None):
    mask = g.all.get("mask", mask)
    groups = {"enable_gqa": g.q.shape[1] != g.k.shape[1]}
    out = F.scaled_dot_product_attention(g.q, g.k, g.v, mask, **groups)
    if mask is not None:
        out = out.where(mask.any(-1, keepdim=True), 0)
    return out


def flash(name, g, w):
    scores = g.q @ g.k.mT / g.q.shape[-1] ** 0.5
    if "mask" in g.all:
        scores = scores + additive(g.mask)
    lse = torch.logsumexp(scores, dim=-1, keepdim=True)
    return torch.cat((sdpa(name, g, w), lse), dim=-1)


def merge(name, g, w):
    outs = torch.stack([g.out_0, g.out_1, g.out_2])
    lses = torch.stack([g.lse_0, g.lse_1, g.lse_2])[..., None]
    lse = torch.logsumexp(lses, dim=0)
    return torch.cat(((outs * (lses - lse).exp()).sum(0), lse), dim=-1)


def seen(g, rule, T, S):
    """A mask from a function of transformers."""
    i = torch.arange(S - T, S)[:, None]
    return rule(0, 0, i, torch.arange(S)).expand(T, S)


def windowed(g, T, S):
    rule = masking_utils.sliding_window_causal_mask_function(g.W)
    return seen(g, rule, T, S)


def masks(name, g, w):
    if name == "mask-padding":
        return torch.stack(
            [
                masking_utils.padding_mask_function(g.valid)(b, 0, 0, at)
                for b in range(3)
                for at in range(5)
            ]
        ).view(3, 1, 1, 5)
    if name == "mask-document":
        rule = masking_utils.and_masks(
            masking_utils.causal_mask_function,
            masking_utils.packed_sequence_mask_function(g.ids),
        )
        b, i = torch.arange(3)[:, None, None], torch.arange(11)
        return rule(b, 0, i[:, None], i)[:, None]
    if name == "mask-causal":
        return seen(g, masking_utils.causal_mask_function, g.T, g.S)
    if name == "mask-window":
        return windowed(g, g.T, g.S)
    first = lambda b, h, i, j: j < g.first  # noqa: E731
    near = masking_utils.sliding_window_causal_mask_function(g.W)
    either = masking_utils.or_masks(first, near)
    rule = masking_utils.and_masks(masking_utils.causal_mask_function, either)
    return seen(g, rule, g.T, g.S)


ROPES = {
    "linear": {"factor": 8.0},
    "dynamic": {"factor": 8.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0},
}


def rope(name, g, w):
    kind = {"rope": "default", "mla": "default", "ntk": "dynamic"}.get(
        g.kind, g.kind
    )
    how = {"rope_type": kind, "rope_theta": g.theta, **ROPES.get(kind, {})}
    if len(getattr(g, "scaling", [])) > 1:
        how["original_max_position_embeddings"] = g.scaling[1]
    config = LlamaConfig(
        hidden_size=g.D,
        num_attention_heads=1,
        head_dim=g.D,
        max_position_embeddings=8 if kind == "dynamic" else 163840,
        rope_parameters=how,
    )
    if g.kind == "mla":
        config.qk_rope_head_dim = g.D
        table = v2.DeepseekV2RotaryEmbedding(config)(g.x, g.positions[None])
        return v2.apply_rotary_emb(g.x, g.x, table)[0]
    rotary = llama.LlamaRotaryEmbedding(config)
    if kind == "dynamic":  # a text so long that the base grows by the factor
        f, size = ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=15)
        rotary = llama.LlamaRotaryEmbedding(
            LlamaConfig(hidden_size=g.D, num_attention_heads=1, head_dim=g.D)
        )
        rotary.inv_freq = f
    tables = rotary(g.x, g.positions[None])
    return llama.apply_rotary_pos_emb(g.x, g.x, *tables)[0]


def mha(name, g, w):
    keys = g.all.get("context", g.x)
    cross = keys is not g.x
    more = {"kdim": g.C, "vdim": g.C} if cross else {}
    layer = nn.MultiheadAttention(
        g.E, g.H, bias=False, batch_first=True, dtype=torch.float64, **more
    )
    names = "q_proj", "k_proj", "v_proj"
    parts = [w[f"{x}.weight"] for x in names]
    own = {f"{x}_weight": y for x, y in zip(names, parts, strict=True)}
    own = own if cross else {"in_proj_weight": torch.cat(parts)}
    layer.load_state_dict(own | {"out_proj.weight": w["o_proj.weight"]})
    hidden = {} if cross else {"attn_mask": ~torch.ones(g.T, g.T).tril().bool()}
    if "valid_context" in g.all:
        hidden["key_padding_mask"] = ~g.valid_context
    return layer(g.x, keys, keys, need_weights=False, **hidden)[0]


def mqa(name, g, w):
    config = GPTBigCodeConfig(
        n_embd=g.E,
        n_head=g.H,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        attn_implementation="eager",
    )
    layer = oracle_of(name)(config, layer_idx=0).double()
    parts = [w[f"{x}_proj.weight"] for x in "qkv"]
    own = {
        "c_attn.weight": torch.cat(parts),
        "c_proj.weight": w["o_proj.weight"],
    }
    own |= {
        f"{x}.bias": 0 * layer.state_dict()[f"{x}.bias"]
        for x in ("c_attn", "c_proj")
    }
    layer.load_state_dict(own)
    hidden = additive(torch.ones(g.T, g.T).tril().bool())
    return layer.eval()(g.x, attention_mask=hidden[None, None])[0]


def ring(name, g, w):
    return sdpa(name, g, w, windowed(g, g.q.shape[2], g.k.shape[2]))


def sinks(name, g, w):
    own = SimpleNamespace(num_key_value_groups=1, sinks=g.sinks, training=False)
    mask = additive(g.mask)[None, None]
    scale = g.q.shape[-1] ** -0.5
    out, _ = gpt_oss.eager_attention_forward(
        own, g.q, g.k, g.v, mask, scaling=scale
    )
    return out.transpose(1, 2)


def softcap(name, g, w):
    own = SimpleNamespace(num_key_value_groups=1, training=False, head_dim=g.D)
    out, _ = gemma2.eager_attention_forward(
        own,
        g.q,
        g.k,
        g.v,
        additive(g.mask)[None, None],
        scaling=g.D**-0.5,
        softcap=g.softcap,
    )
    return out.transpose(1, 2)


def alibi(name, g, w):
    ones = torch.ones(3, g.S)
    bias = oracle_of(name)(ones, g.H, torch.float64)
    bias = bias.view(3, g.H, 1, g.S)
    mask = additive(g.mask) + bias
    return F.scaled_dot_product_attention(g.q, g.k, g.v, mask)


@pytest.mark.filterwarnings("ignore")
def todays_heads(name, g, w):
    from torch.nn.attention.flex_attention import create_block_mask

    tables = llama.LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=g.D,
            num_attention_heads=1,
            head_dim=g.D,
            rope_parameters={"rope_type": "default", "rope_theta": g.theta},
        )
    )(g.x, torch.arange(g.T)[None])
    q, k = (
        F.rms_norm(y, (g.D,), norm, 1e-6)
        for y, norm in ((g.x, g.q_norm), (g.k, g.k_norm))
    )
    q, k = llama.apply_rotary_pos_emb(q, k, *tables)
    out, lse = oracle_of(name)(
        q,
        k,
        g.v,
        score_mod=lambda s, *_: g.softcap * torch.tanh(s / g.softcap),
        block_mask=create_block_mask(
            lambda b, h, i, j: i >= j, None, None, g.T, g.T, device="cpu"
        ),
        return_lse=True,
    )
    kept = torch.sigmoid(lse - g.sinks[:, None])[..., None]
    return out * kept * torch.sigmoid(g.gate)


def norm_of_all_heads(name, g, w):
    norm = oracle_of(name)(g.H * g.D, 1e-6)
    norm.weight.data = g.norm
    x = norm(g.x.transpose(1, 2).flatten(2))
    return x.unflatten(-1, (g.H, g.D)).transpose(1, 2)


def paged(name, g, w):
    return torch.cat((g.first, g.one, g.first, g.other), dim=2)


def rotary_of(module, config):
    found = next(
        kind
        for n, kind in vars(module).items()
        if n.endswith("RotaryEmbedding") and "Vision" not in n
    )
    return found(config)


def config_for(name, g):
    if given := g.config:
        kind = CONFIG_MAPPING[given["model_type"]]
        return kind(**{x: y for x, y in given.items() if x != "model_type"})
    kind = {"rope_type": "default", "rope_theta": getattr(g, "theta", 1e4)}
    sizes = {
        "hidden_size": g.E,
        "num_attention_heads": g.H,
        "rope_parameters": kind,
        "num_hidden_layers": 1,
    }
    if name.startswith("gqa"):
        sizes["hidden_size"] = g.H
        config = LlamaConfig(num_key_value_heads=g.K, head_dim=g.D, **sizes)
        config.hidden_size = g.E  # they refuse one that H does not divide
        return config
    if name.startswith("gated"):
        return Qwen3_5TextConfig(
            **sizes,
            linear_num_key_heads=g.K,
            linear_num_value_heads=g.H,
            linear_key_head_dim=g.D,
            linear_value_head_dim=g.Dv,
            linear_conv_kernel_dim=4,
            layer_types=["linear_attention"],
        )
    sizes |= {
        "q_lora_rank": g.Rq,
        "kv_lora_rank": g.R,
        "v_head_dim": g.Dv,
        "qk_nope_head_dim": g.Dn,
        "qk_rope_head_dim": g.Dr,
        "num_key_value_heads": g.H,
    }
    if name.startswith("dsa"):
        return GlmMoeDsaConfig(
            **sizes, index_topk=g.topk, index_n_heads=g.Hi, index_head_dim=g.Di
        )
    return CONFIG_MAPPING["deepseek_v3"](**sizes)


def module(name, g, w):
    """A whole module of transformers, which reads all tokens at once."""
    config = config_for(name, g)
    chosen = name.startswith(("dsa", "glm"))
    config._attn_implementation = "sdpa" if chosen else "eager"
    kind = oracle_of(name)
    number = getattr(g, "layer_number", 0)
    layer = kind(config, number).double().eval()
    layer.load_state_dict(w)
    valid = g.all.get("valid", torch.ones(g.x.shape[:2]).bool())
    held = g.all["cache/k"].shape[2] if "cache/k" in g.all else 0
    at = torch.arange(held, held + g.T)[None] + getattr(g, "first", 0)
    if "Delta" in kind.__name__:
        out = layer(g.x, attention_mask=valid.long())
        return out[valid] if "valid" in g.all else out
    rotary = rotary_of(sys.modules[kind.__module__], config)
    takes = inspect.signature(rotary.forward).parameters
    kinds = getattr(config, "layer_types", None)
    more = {"layer_type": kinds[number]} if "layer_type" in takes else {}
    tables = rotary(g.x, at, **more)
    S = held + g.T
    mask = seen(g, masking_utils.causal_mask_function, g.T, S)
    width = vars(config).get("sliding_window")
    if width := getattr(layer, "sliding_window", width):
        rule = masking_utils.sliding_window_causal_mask_function(width)
        mask = seen(g, rule, g.T, S)
    mask = mask & F.pad(valid, (held, 0), value=True)[:, None, None]
    cache = None
    if held:
        cache = DynamicCache(config=config)
        cache.update(g.all["cache/k"], g.all["cache/v"], 0)
    takes = inspect.signature(layer.forward).parameters
    out = layer(
        hidden_states=g.x,
        position_embeddings=tables,
        attention_mask=mask if chosen else additive(mask),
        **(
            {"cache": cache} if "cache" in takes else {"past_key_values": cache}
        ),
    )[0]
    return out[valid] if "valid" in g.all else out


ORACLES = {
    "softmax": softmax,
    "sdpa": sdpa,
    "masks": masks,
    "rope": rope,
    "mha": mha,
    "cross": mha,
    "mqa": mqa,
    "window": ring,
    "ring": ring,
    "sinks": sinks,
    "flash": flash,
    "merge": merge,
    "paged": paged,
}
NAMED = {"softcap": softcap, "alibi": alibi, "todays-heads": todays_heads}
NAMED["norm-of-all-heads"] = norm_of_all_heads


@pytest.mark.parametrize("name", vectors.cases())
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_each_output_is_that_of_its_oracle(name):
    given, weights, right = answer(name)
    kind = vectors.cases()[name]["run"]
    oracle = NAMED.get(name) or ORACLES.get(kind, module)
    assert oracle_of(name)
    with all_in_float64():
        want = oracle(name, given, weights)
    assert want.shape == right.shape
    gap = vectors.apart(right, want)
    assert gap <= BOUND * max(1, vectors.largest(want)), gap


def records_of(name, id):
    every = vectors._planted(name, ())
    return [record for own, _, record in every if own == id]


@pytest.mark.parametrize(
    ("name", "id", "rope", "norm"),
    [
        ("qwen3", "rope-theta-ignored", {"rope_theta": 1e4}, 0),
        ("llama-3.1", "rope-theta-ignored", {"rope_type": "default"}, 0),
        ("gpt-oss-full", "yarn-default-betas", {"truncate": True}, 0),
        (
            "deepseek-v3",
            "yarn-attention-factor-left-out",
            {"mscale_all_dim": 0},
            0,
        ),
        ("qwen3", "norm-weight-without-one", {}, 1),
        ("gemma-3-sliding", "norm-weight-without-one", {}, -1),
        ("qwen3.5-full", "norm-weight-without-one", {}, -1),
    ],
)
@torch.no_grad()
def test_a_mistake_of_a_record_is_theirs_with_another_config(
    name, id, rope, norm
):
    given, weights, right = answer(name)
    config = dict(given.config)
    config["rope_parameters"] = config["rope_parameters"] | rope
    given = SimpleNamespace(**vars(given) | {"config": config})
    shifted = {
        x: y + norm * (x in ("q_norm.weight", "k_norm.weight"))
        for x, y in weights.items()
    }
    with all_in_float64():
        want = module(name, given, shifted)
    gaps = []
    for record in records_of(name, id):
        out, _ = vectors.ran(name, Plain(), {}, record=record)
        gaps.append(vectors.apart(out, want))
    assert min(gaps) <= BOUND * vectors.largest(want), gaps
    assert vectors.apart(want, right) > vectors.APART
