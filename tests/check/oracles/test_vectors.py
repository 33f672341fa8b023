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
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
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

from attnref.judge import vectors
from attnref.judge.catalogue import Plain
from attnref.released.configured import ConfiguredAttention

BOUND = 1e-6


@pytest.fixture(scope="module", autouse=True)
def _modules_of_a_first_call():
    """flex_attention imports them when it is called, whatever is patched."""
    with torch.no_grad():
        flex_attention(*torch.zeros(3, 1, 1, 1, 1))


@contextmanager
def all_in_float64():
    """Their code says float32 where it wants to be exact. A module that is
    first imported meanwhile would keep float64 under that name for good."""
    old = set(sys.modules)
    with ExitStack() as stack:
        for name in ("float", "float32"):
            stack.enter_context(patch.object(torch, name, torch.float64))
        stack.enter_context(patch.object(Tensor, "float", Tensor.double))
        yield
    assert not {x for x in {*sys.modules} - old if x.startswith("torch.")}


@cache
def answer(name):
    """The options and inputs of a case, its weights and its output: exact, and
    without the mistakes."""
    no_mistakes = vectors.WrongOutputs(None, 0.0)
    exact = patch.object(vectors, "as_stored", lambda value: value)
    with (
        exact,
        patch.object(vectors, "wrong_outputs", lambda *_: no_mistakes),
    ):
        tensors, about = vectors.compute(name)
    parts = {"input": {}, "weight": {}}
    for path, value in tensors.items():
        kind, _, tensor_name = path.partition("/")
        if kind in parts:
            parts[kind][tensor_name] = value
    values = vectors.cases()[name] | about["given"] | parts["input"]
    case = SimpleNamespace(**values, inputs=parts["input"])
    return case, parts["weight"], tensors["output"]


def oracle_of(name):
    return resolve(vectors.cases()[name]["oracle"])


def resolve(path):
    """transformers.models.llama.LlamaAttention, wherever it is defined."""
    module, _, name = path.rpartition(".")
    stem = module.rpartition(".")[2]
    if module.startswith("transformers.models."):
        module = f"{module}.modeling_{stem}"
    return getattr(importlib.import_module(module), name)


def additive(mask):
    return torch.zeros(mask.shape).double().masked_fill(~mask, -torch.inf)


def softmax(name, case, w):
    return torch.softmax(case.x, dim=-1).nan_to_num(0.0)


def sdpa(name, case, w, mask=None):
    mask = case.inputs.get("mask", mask)
    groups = {"enable_gqa": case.q.shape[1] != case.k.shape[1]}
    out = F.scaled_dot_product_attention(case.q, case.k, case.v, mask, **groups)
    if mask is not None:
        out = out.where(mask.any(-1, keepdim=True), 0)
    return out


def flash(name, case, w):
    scores = case.q @ case.k.mT / case.q.shape[-1] ** 0.5
    if "mask" in case.inputs:
        scores = scores + additive(case.mask)
    lse = torch.logsumexp(scores, dim=-1, keepdim=True)
    return torch.cat((sdpa(name, case, w), lse), dim=-1)


def ranks(name, case, w):
    """The whole text on one device, and then its parts."""
    order = case.positions.flatten().argsort()
    q, k, v = (
        x.movedim(0, 2).flatten(2, 3)[:, :, order]
        for x in (case.q, case.k, case.v)
    )
    k, v = (x.repeat_interleave(q.shape[1] // 2, dim=1) for x in (k, v))
    mask = torch.ones(len(order), len(order)).tril() > 0
    whole = case.inputs | {"q": q, "k": k, "v": v, "mask": mask}
    whole = SimpleNamespace(**whole, inputs=whole)
    out = (sinks if "sinks" in case.inputs else sdpa)(name, whole, w)
    return out[:, :, order.argsort()].unflatten(2, (4, 4)).movedim(2, 0)


def merge(name, case, w):
    outs = torch.stack([case.out_0, case.out_1, case.out_2])
    lses = torch.stack([case.lse_0, case.lse_1, case.lse_2])[..., None]
    lse = torch.logsumexp(lses, dim=0)
    return torch.cat(((outs * (lses - lse).exp()).sum(0), lse), dim=-1)


def mask_by(case, rule, T, S):
    """A mask from a function of transformers."""
    i = torch.arange(S - T, S)[:, None]
    return rule(0, 0, i, torch.arange(S)).expand(T, S)


def window_mask(case, T, S):
    rule = masking_utils.sliding_window_causal_mask_function(case.W)
    return mask_by(case, rule, T, S)


def masks(name, case, w):
    if name == "mask-padding":
        return torch.stack(
            [
                masking_utils.padding_mask_function(case.valid)(b, 0, 0, j)
                for b in range(3)
                for j in range(5)
            ]
        ).view(3, 1, 1, 5)
    if name == "mask-document":
        rule = masking_utils.and_masks(
            masking_utils.causal_mask_function,
            masking_utils.packed_sequence_mask_function(case.ids),
        )
        b, i = torch.arange(3)[:, None, None], torch.arange(11)
        return rule(b, 0, i[:, None], i)[:, None]
    if name == "mask-causal":
        return mask_by(case, masking_utils.causal_mask_function, case.T, case.S)
    if name == "mask-window":
        return window_mask(case, case.T, case.S)
    first = lambda b, h, i, j: j < case.first  # noqa: E731
    last = masking_utils.sliding_window_causal_mask_function(case.W)
    kept = masking_utils.or_masks(first, last)
    rule = masking_utils.and_masks(masking_utils.causal_mask_function, kept)
    return mask_by(case, rule, case.T, case.S)


ROPES = {
    "linear": {"factor": 8.0},
    "dynamic": {"factor": 8.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0},
}


def rope(name, case, w):
    kind = {"rope": "default", "mla": "default", "ntk": "dynamic"}.get(
        case.kind, case.kind
    )
    rope = {"rope_type": kind, "rope_theta": case.theta, **ROPES.get(kind, {})}
    if len(getattr(case, "scaling", [])) > 1:
        rope["original_max_position_embeddings"] = case.scaling[1]
    config = LlamaConfig(
        hidden_size=case.D,
        num_attention_heads=1,
        head_dim=case.D,
        max_position_embeddings=8 if kind == "dynamic" else 163840,
        rope_parameters=rope,
    )
    if case.kind == "mla":
        config.qk_rope_head_dim = case.D
        table = v2.DeepseekV2RotaryEmbedding(config)(
            case.x, case.positions[None]
        )
        return v2.apply_rotary_emb(case.x, case.x, table)[0]
    rotary = llama.LlamaRotaryEmbedding(config)
    if kind == "dynamic":  # a text so long that the base grows by the factor
        f, size = ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=15)
        rotary = llama.LlamaRotaryEmbedding(
            LlamaConfig(
                hidden_size=case.D, num_attention_heads=1, head_dim=case.D
            )
        )
        rotary.inv_freq = f
    tables = rotary(case.x, case.positions[None])
    return llama.apply_rotary_pos_emb(case.x, case.x, *tables)[0]


def mha(name, case, w):
    keys = case.inputs.get("context", case.x)
    cross = keys is not case.x
    widths = {"kdim": case.C, "vdim": case.C} if cross else {}
    layer = nn.MultiheadAttention(
        case.E,
        case.H,
        bias=False,
        batch_first=True,
        dtype=torch.float64,
        **widths,
    )
    names = "q_proj", "k_proj", "v_proj"
    parts = [w[f"{x}.weight"] for x in names]
    if cross:
        weights = {f"{x}_weight": y for x, y in zip(names, parts, strict=True)}
    else:
        weights = {"in_proj_weight": torch.cat(parts)}
    layer.load_state_dict(weights | {"out_proj.weight": w["o_proj.weight"]})
    masks = {}
    if not cross:
        masks["attn_mask"] = ~torch.ones(case.T, case.T).tril().bool()
    if "valid_context" in case.inputs:
        masks["key_padding_mask"] = ~case.valid_context
    return layer(case.x, keys, keys, need_weights=False, **masks)[0]


def mqa(name, case, w):
    config = GPTBigCodeConfig(
        n_embd=case.E,
        n_head=case.H,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        attn_implementation="eager",
    )
    layer = oracle_of(name)(config, layer_idx=0).double()
    parts = [w[f"{x}_proj.weight"] for x in "qkv"]
    weights = {
        "c_attn.weight": torch.cat(parts),
        "c_proj.weight": w["o_proj.weight"],
    }
    weights |= {
        f"{x}.bias": 0 * layer.state_dict()[f"{x}.bias"]
        for x in ("c_attn", "c_proj")
    }
    layer.load_state_dict(weights)
    mask = additive(torch.ones(case.T, case.T).tril().bool())
    return layer.eval()(case.x, attention_mask=mask[None, None])[0]


def ring(name, case, w):
    return sdpa(
        name, case, w, window_mask(case, case.q.shape[2], case.k.shape[2])
    )


def sinks(name, case, w):
    layer = SimpleNamespace(
        num_key_value_groups=1, sinks=case.sinks, training=False
    )
    mask = additive(case.mask)[None, None]
    scale = case.q.shape[-1] ** -0.5
    out, _ = gpt_oss.eager_attention_forward(
        layer, case.q, case.k, case.v, mask, scaling=scale
    )
    return out.transpose(1, 2)


def softcap(name, case, w):
    layer = SimpleNamespace(
        num_key_value_groups=1, training=False, head_dim=case.D
    )
    out, _ = gemma2.eager_attention_forward(
        layer,
        case.q,
        case.k,
        case.v,
        additive(case.mask)[None, None],
        scaling=case.D**-0.5,
        softcap=case.softcap,
    )
    return out.transpose(1, 2)


def alibi(name, case, w):
    ones = torch.ones(3, case.S)
    bias = oracle_of(name)(ones, case.H, torch.float64)
    bias = bias.view(3, case.H, 1, case.S)
    mask = additive(case.mask) + bias
    return F.scaled_dot_product_attention(case.q, case.k, case.v, mask)


@pytest.mark.filterwarnings("ignore")
def todays_heads(name, case, w):
    tables = llama.LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=case.D,
            num_attention_heads=1,
            head_dim=case.D,
            rope_parameters={"rope_type": "default", "rope_theta": case.theta},
        )
    )(case.x, torch.arange(case.T)[None])
    q, k = (
        F.rms_norm(y, (case.D,), norm, 1e-6)
        for y, norm in ((case.x, case.q_norm), (case.k, case.k_norm))
    )
    q, k = llama.apply_rotary_pos_emb(q, k, *tables)
    out, lse = oracle_of(name)(
        q,
        k,
        case.v,
        score_mod=lambda s, *_: case.softcap * torch.tanh(s / case.softcap),
        block_mask=create_block_mask(
            lambda b, h, i, j: i >= j, None, None, case.T, case.T, device="cpu"
        ),
        return_lse=True,
    )
    share = torch.sigmoid(lse - case.sinks[:, None])[..., None]
    return out * share * torch.sigmoid(case.gate)


def norm_of_all_heads(name, case, w):
    norm = oracle_of(name)(case.H * case.D, 1e-6)
    norm.weight.data = case.norm
    x = norm(case.x.transpose(1, 2).flatten(2))
    return x.unflatten(-1, (case.H, case.D)).transpose(1, 2)


def paged(name, case, w):
    return torch.cat((case.first, case.one, case.first, case.other), dim=2)


def rotary_of(module, config):
    kind = next(
        kind
        for n, kind in vars(module).items()
        if n.endswith("RotaryEmbedding") and "Vision" not in n
    )
    return kind(config)


def config_for(name, case):
    if case.config:
        fields = dict(case.config)
        return CONFIG_MAPPING[fields.pop("model_type")](**fields)
    rope = {"rope_type": "default", "rope_theta": getattr(case, "theta", 1e4)}
    sizes = {
        "hidden_size": case.E,
        "num_attention_heads": case.H,
        "rope_parameters": rope,
        "num_hidden_layers": 1,
    }
    if name.startswith("gqa"):
        sizes["hidden_size"] = case.H
        config = LlamaConfig(
            num_key_value_heads=case.K, head_dim=case.D, **sizes
        )
        config.hidden_size = case.E  # they refuse one that H does not divide
        return config
    if name.startswith("gated"):
        return Qwen3_5TextConfig(
            **sizes,
            linear_num_key_heads=case.K,
            linear_num_value_heads=case.H,
            linear_key_head_dim=case.D,
            linear_value_head_dim=case.Dv,
            linear_conv_kernel_dim=4,
            layer_types=["linear_attention"],
        )
    sizes |= {
        "q_lora_rank": case.Rq,
        "kv_lora_rank": case.R,
        "v_head_dim": case.Dv,
        "qk_nope_head_dim": case.Dn,
        "qk_rope_head_dim": case.Dr,
        "num_key_value_heads": case.H,
    }
    if name.startswith("dsa"):
        return GlmMoeDsaConfig(
            **sizes,
            index_topk=case.topk,
            index_n_heads=case.Hi,
            index_head_dim=case.Di,
        )
    return CONFIG_MAPPING["deepseek_v3"](**sizes)


def module(name, case, w):
    """A layer of transformers, which reads all tokens at once."""
    config = config_for(name, case)
    sparse = name.startswith(("dsa", "glm"))
    config._attn_implementation = "sdpa" if sparse else "eager"
    kind = oracle_of(name)
    number = getattr(case, "layer_number", 0)
    layer = kind(config, number).double().eval()
    layer.load_state_dict(w)
    valid = case.inputs.get("valid", torch.ones(case.x.shape[:2]).bool())
    past = case.inputs["cache/k"].shape[2] if "cache/k" in case.inputs else 0
    S = past + case.T
    positions = torch.arange(past, S)[None] + getattr(case, "first", 0)
    if "Delta" in kind.__name__:
        out = layer(case.x, attention_mask=valid.long())
        return out[valid] if "valid" in case.inputs else out
    rotary = rotary_of(sys.modules[kind.__module__], config)
    kinds, options = getattr(config, "layer_types", None), {}
    if "layer_type" in inspect.signature(rotary.forward).parameters:
        options["layer_type"] = kinds[number]
    tables = rotary(case.x, positions, **options)
    mask = mask_by(case, masking_utils.causal_mask_function, case.T, S)
    width = vars(config).get("sliding_window")
    if width := getattr(layer, "sliding_window", width):
        rule = masking_utils.sliding_window_causal_mask_function(width)
        mask = mask_by(case, rule, case.T, S)
    mask = mask & F.pad(valid, (past, 0), value=True)[:, None, None]
    cache = None
    if past:
        cache = DynamicCache(config=config)
        cache.update(case.inputs["cache/k"], case.inputs["cache/v"], 0)
    parameters = inspect.signature(layer.forward).parameters
    keyword = "cache" if "cache" in parameters else "past_key_values"
    out = layer(
        hidden_states=case.x,
        position_embeddings=tables,
        attention_mask=mask if sparse else additive(mask),
        **{keyword: cache},
    )[0]
    return out[valid] if "valid" in case.inputs else out


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
    "ranks": ranks,
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
    case, weights, right = answer(name)
    kind = vectors.cases()[name]["run"]
    oracle = NAMED.get(name) or ORACLES.get(kind, module)
    assert oracle_of(name)
    with all_in_float64():
        want = oracle(name, case, weights)
    assert want.shape == right.shape
    gap = vectors.largest_difference(right, want)
    assert gap <= BOUND * max(1, vectors.largest(want)), gap


RELEASED = [x for x, y in vectors.cases().items() if y["run"] == "released"]


@pytest.mark.parametrize("name", RELEASED)
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_plain_forms_of_a_released_layer_equal_the_configured_layer(name):
    case, weights, right = answer(name)
    positions = (torch.arange(case.T) + case.first).expand(len(case.x), -1)
    with all_in_float64():
        layer = ConfiguredAttention(vectors.record_of(name)).double()
        layer.load_state_dict(weights)
        want = layer.eval()(case.x, positions=positions)
    gap = vectors.largest_difference(right, want)
    assert gap <= 1e-12 * vectors.largest(want), gap


def records_of(name, mistake):
    """The fields of wrong records that make this mistake."""
    mistakes = vectors.mistakes_of(name, ())
    return [record for id, _, record in mistakes if id == mistake]


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
    case, weights, right = answer(name)
    config = dict(case.config)
    config["rope_parameters"] = config["rope_parameters"] | rope
    case = SimpleNamespace(**vars(case) | {"config": config})
    shifted = {
        x: y + norm * (x in ("q_norm.weight", "k_norm.weight"))
        for x, y in weights.items()
    }
    with all_in_float64():
        want = module(name, case, shifted)
    gaps = []
    for record in records_of(name, id):
        out, _ = vectors.run_case(name, Plain(), {}, record=record)
        gaps.append(vectors.largest_difference(out, want))
    assert min(gaps) <= BOUND * vectors.largest(want), gaps
    assert vectors.largest_difference(want, right) > vectors.SEPARATION
