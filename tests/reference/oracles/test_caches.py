"""What we predict for a cache is what transformers' own modules keep in it.

Released models as their config.json says, whole, on the device meta: there are
shapes and types, so all sizes and lengths are cheap.
"""

import json
import re
from functools import cache

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    DynamicCache,
    QuantizedCache,
    StaticCache,
)

from attnref.numbers.kv_memory import DTYPES, entry_bytes, kv_bytes, state_bytes
from attnref.numbers.shapes import Chunked, Compressed, Recurrent, Sliding
from attnref.released.parts import letters
from attnref.released.record import read_config
from attnref.released.specs import configs, find_model, models
from sitekit.drawn import released as layer_patterns
from tests.kit import families as kit
from tests.kit.families import shape_of

B, T = 3, 23


def kind_of(id):
    return read_config(configs()[id]).family


# The first model of each family. Of four, tests/released/test_from_config.py
# compares small ones: two have routers that the device meta cannot run, Inkling
# keeps more inputs of convolutions than a step needs, and MiMo-V2.5 is not in
# transformers.
MODELS = {kind_of(id): id for id in reversed([*configs()])}
for family in ("deepseek_v2", "longcat_flash", "inkling_text", "mimo_v2"):
    del MODELS[family]
# One of each kind of layer is compared in every run, and all in the audit.
QUICK = {
    *("gpt2", "falcon", "llama", "mistral", "deepseek_v3", "gemma3_text"),
    *("llama4_text", "gpt_oss", "qwen3_next", "kimi_linear", "deepseek_v32"),
    *("nemotron_h", "deepseek_v4", "gemma4_text", "minimax_m3_vl_text"),
    "mimo_v2_flash",
}


@cache
def config_of(id):
    """What transformers reads of the file."""
    given = json.loads(json.dumps(configs()[id]))
    given = given.get("text_config", given) | {"model_type": kind_of(id)}
    config = CONFIG_MAPPING[kind_of(id)].from_dict(given).get_text_config()
    config._attn_implementation = "eager"
    config._experts_implementation = "batched_mm"
    return config


def filled(id, kind, tokens, dtype=torch.bfloat16):
    """A cache after transformers' own model has seen so many tokens."""
    with torch.device("meta"), torch.no_grad():
        module = AutoModel.from_config(config_of(id), dtype=dtype).eval()
        past = kind(module.config)
        module(torch.zeros(B, tokens, dtype=torch.long), cache=past)
    return past


def held(past, *, without=()):
    """Bytes of a cache's numbers; whole ones only count its tokens."""
    total = 0
    for layer in past.layers:
        for name, value in vars(layer).items():
            if name in without:
                continue
            if isinstance(value, dict):
                value = tuple(value.values())
            for part in value if isinstance(value, tuple) else (value,):
                if torch.is_tensor(part) and part.is_floating_point():
                    total += part.nbytes
    return total


def dynamic(config):
    return DynamicCache(config=config)


def static(tokens):
    return lambda config: StaticCache(config=config, max_cache_len=tokens)


def window(group):
    match group:
        case Sliding() | Compressed():
            return group.sliding_window
        case Chunked():
            return group.chunk
    return 0


def widest(model):
    return max(window(group) for group in model.groups)


def newest_inputs(model):
    """Of convolutions: a next step does without them, but they are there."""
    return B * sum(
        group.layers * group.conv_channels * torch.bfloat16.itemsize
        for group in model.groups
        if isinstance(group, Recurrent)
    )


def newest_tokens(model, tokens):
    """One for each full window: a next step does without the oldest."""
    numbers = 0
    for group in model.groups:
        if tokens >= window(group) > 0:
            if isinstance(group, Compressed):
                numbers += group.layers * group.dim
            else:
                both = group.head_dim + group.v_head_dim
                numbers += group.layers * group.kv_heads * both
    return B * numbers * torch.bfloat16.itemsize


def lengths(kinds):
    """Those below and above a window, where there is one."""
    cases = []
    for kind in kinds:
        marks = () if kind in QUICK else pytest.mark.audit
        wide = widest(find_model(MODELS[kind]))
        for tokens in (wide // 2, 3 * wide + 1) if wide else (T,):
            cases.append(pytest.param(MODELS[kind], tokens, marks=marks))
    return cases


WINDOWS = [kind for kind, id in MODELS.items() if widest(find_model(id))]
RECURRENT = "qwen3_next", "kimi_linear", "nemotron_h", "olmo_hybrid"
# What DeepSeek-V4's row does not count, as it says, and values which are keys.
UNCOUNTED = "values", "buffer_kv", "buffer_gate", "overlap_kv", "overlap_gate"


@pytest.mark.parametrize(
    ("id", "tokens"), lengths(kind for kind in MODELS if kind != "deepseek_v4")
)
def test_the_cache_of_transformers_is_what_we_predict(id, tokens):
    model = find_model(id)
    # Of a window, only the static cache has all tokens that a step sees.
    past = filled(id, static(tokens) if widest(model) else dynamic, tokens)
    want = kv_bytes(model, tokens, batch=B) + newest_inputs(model)
    assert held(past) == want


@pytest.mark.parametrize(("id", "tokens"), lengths(WINDOWS))
def test_between_steps_a_full_window_is_one_token_shorter(id, tokens):
    model = find_model(id)
    past = filled(id, dynamic, tokens)
    want = kv_bytes(model, tokens, batch=B) - newest_tokens(model, tokens)
    without = UNCOUNTED if kind_of(id) == "deepseek_v4" else ()
    assert held(past, without=without) == want


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("tokens", [1, T])
def test_states_are_in_float32_and_never_grow(kind, tokens):
    model = find_model(MODELS[kind])
    past = filled(model.id, dynamic, tokens)
    rest = held(past, without=("conv_states", "recurrent_states"))
    without_conv = held(past, without=("conv_states",))
    counts = {
        store.role: B * group.layers * entry_bytes(store, DTYPES["bf16"])
        for group in model.groups
        for store in group.stores
    }
    assert without_conv - rest == counts["state"]
    assert held(past) - without_conv == counts["conv"] + newest_inputs(model)
    assert counts["state"] + counts["conv"] == state_bytes(model, batch=B)


@pytest.mark.parametrize("id", sorted(layer_patterns.RULES))
def test_the_order_of_layers_is_that_of_the_config(id):
    """Of Command A there is none: its kind of model has a rule."""
    order = [kind for kind, _ in layer_patterns.cells(find_model(id))[0]]
    given = configs().get(id)
    if id == "command-a":
        given = CONFIG_MAPPING["cohere2"](num_hidden_layers=64).to_dict()
    config = read_config(given)
    assert order == letters(config, config.records)


@pytest.mark.parametrize("id", ["gpt2", "llama-3.1-8b", "deepseek-v3.2"])
@pytest.mark.parametrize(
    ("dtype", "theirs"),
    [("fp32", torch.float32), ("fp16", torch.float16)],
    ids=["fp32", "fp16"],
)
def test_numbers_of_another_width_are_counted_too(id, dtype, theirs):
    past = filled(id, static(T), T, theirs)
    assert held(past) == kv_bytes(find_model(id), T, batch=B, dtype=dtype)


@pytest.mark.parametrize("id", ["gpt2", "llama-3.1-8b", "deepseek-v3"])
def test_in_fp8_transformers_has_two_scales_a_layer_beside(id):
    model = find_model(id)
    past = filled(
        id, lambda config: QuantizedCache(backend="fp8", config=config), T
    )
    scales = model.layers * 2 * torch.float32.itemsize
    assert held(past) == kv_bytes(model, T, batch=B, dtype="fp8") + scales


# The rows that give a config of transformers as a source.
SOURCES = {
    model.id: source
    for model in models().values()
    for source in model.sources
    if source.label == "transformers"
}
# Whose defaults are another model.
OTHERS = "deepseek-v2", "qwen3-8b", "glm-4.5", "kimi-linear-48b"


@pytest.mark.parametrize("id", [*SOURCES, *OTHERS])
def test_a_row_is_what_the_config_is_that_it_gives_as_its_source(id):
    """In all that a cache depends on."""
    config, default = config_of(id), CONFIG_MAPPING[kind_of(id)]()
    names = [
        name
        for name in default.to_dict()
        if re.search("heads|dim|lora_rank|layer|window|chunk", name)
    ]
    other = {n for n in names if getattr(config, n) != getattr(default, n)}
    assert bool(other) == (id in OTHERS), other


@pytest.mark.parametrize(("id", "source"), SOURCES.items(), ids=SOURCES)
def test_a_source_is_the_file_of_the_config_that_we_compare(id, source):
    module = CONFIG_MAPPING[kind_of(id)].__module__.replace(".", "/")
    assert source.url.endswith(f"/src/{module}.py")


# Places that give shapes and say nothing of the longest context; and one that
# does so of Llama 3.1 only.
SILENT = {"LMCache", "gemma", "DeepSeek-V3 code"}


@pytest.mark.parametrize("model", models().values(), ids=models())
def test_the_longest_context_is_in_a_source_beside_it(model):
    """Where transformers is the only such source, it is its default."""
    silent = SILENT | ({"gpt-fast"} if "llama-3.1" not in model.id else set())
    beside = [model.context] if model.context else model.sources
    sources = [s for s in beside if s.label not in silent]
    assert sources
    if {s.label for s in sources} == {"transformers"}:
        config = CONFIG_MAPPING[kind_of(model.id)]().get_text_config()
        assert config.max_position_embeddings == model.max_context


@pytest.mark.parametrize(
    "id",
    [
        *("llama-2-7b", "llama-2-70b", "mistral-7b", "llama-3.1-8b"),
        *("llama-3.1-70b", "llama-3.1-405b", "gpt2", "deepseek-v3"),
        *("smollm3-3b", "gpt-oss-120b", "qwen3-next-80b", "minimax-m2"),
    ],
)
def test_parameters_are_those_of_the_model_to_the_digits_given(id):
    model = find_model(id)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config_of(id))
    count = sum(p.numel() for p in built.parameters())
    digits = len(str(model.params).rstrip("0"))
    assert float(f"{count:.{digits}g}") == model.params


@torch.no_grad()
@pytest.mark.parametrize("family", ["deepseek_v3", "kimi_linear"])
def test_a_key_for_positions_is_rotated_or_marked_as_not(family):
    config = kit.config_of(family)
    built = kit.model_of(config)
    made = []
    for name, module in built.named_modules():
        if name.endswith("_with_mqa"):
            module.register_forward_hook(
                lambda module, given, out: made.append(out)
            )
    past = dynamic(config)
    built(torch.arange(B * 5).view(B, 5), cache=past)
    given = json.loads(json.dumps(config.to_dict()))
    groups = shape_of(given).groups
    mla = next(group for group in groups if hasattr(group, "kv_lora_rank"))
    unrotated = made[0][..., mla.kv_lora_rank :].unsqueeze(1)
    stored = [getattr(layer, "values", None) for layer in past.layers]
    cached = next(values for values in stored if values is not None)
    assert cached.shape == unrotated.shape == (B, 1, 5, mla.qk_rope_head_dim)
    assert torch.equal(cached, unrotated) is not mla.rotated
