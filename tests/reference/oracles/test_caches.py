"""What we predict for a cache is what transformers' own modules keep in it."""

from collections import Counter
from dataclasses import replace
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
from attnref.numbers.shapes import (
    Chunked,
    Compressed,
    Full,
    Mla,
    Recurrent,
    Sliding,
)
from attnref.released.record import fields_of, records_of
from attnref.released.specs import configs, find_model, models
from sitekit.drawn import released as layer_patterns
from sitekit.released.told import letters

B, T = 3, 23

# What transformers calls the architecture of each.
TYPES = {
    id: kind
    for kind, ids in {
        "gpt2": "gpt2",
        "llama": (
            "llama-1-65b llama-2-7b llama-2-70b deepseek-67b llama-3.1-8b "
            "llama-3.1-70b llama-3.1-405b"
        ),
        "falcon": "falcon-7b",
        "mistral": "mistral-7b",
        "deepseek_v2": "deepseek-v2 deepseek-v2-lite",
        "gemma2": "gemma-2-27b",
        "minicpm3": "minicpm3-4b",
        "olmo2": "olmo-2-7b",
        "deepseek_v3": "deepseek-v3 kimi-k2",
        "gemma3_text": "gemma-3-4b gemma-3-12b gemma-3-27b",
        "cohere2": "command-a",
        "llama4_text": "llama-4-scout",
        "qwen3": "qwen3-8b qwen3-32b",
        "qwen3_moe": "qwen3-235b",
        "glm4_moe": "glm-4.5 glm-4.5-air",
        "smollm3": "smollm3-3b",
        "gpt_oss": "gpt-oss-120b gpt-oss-20b",
        "seed_oss": "seed-oss-36b",
        "qwen3_next": "qwen3-next-80b",
        "longcat_flash": "longcat-flash",
        "kimi_linear": "kimi-linear-48b",
        "minimax_m2": "minimax-m2",
        "olmo3": "olmo-3-7b olmo-3-32b",
        "deepseek_v32": "deepseek-v3.2",
        "nemotron_h": "nemotron-3-nano",
        "olmo_hybrid": "olmo-hybrid-7b",
        "qwen3_5_moe_text": "qwen3.5-397b",
        "glm_moe_dsa": "glm-5 glm-5.2",
        "qwen3_5_text": "qwen3.5-9b",
        "mistral4": "mistral-small-4",
        "deepseek_v4": "deepseek-v4-flash deepseek-v4-pro",
        "gemma4_text": "gemma-4-31b gemma-4-26b gemma-4-e2b",
        "mimo_v2_flash": "mimo-v2.5 mimo-v2-flash",
        "minimax_m3_vl_text": "minimax-m3",
    }.items()
    for id in ids.split()
}

# Those that none of its modules can be.
ABSENT = {
    "palm-540b",
    "kimi-k3",
    "qwen3.8-27b",
    "qwen3.8-2.4t",
    "deepseek-v4.1-flash",
}
# Those whose rows are counted from their config.json; test_families.py holds
# each of their families against transformers.
COUNTED = {*configs()} - {*TYPES}
# What does not touch a cache is as small as it can be.
TINY = {
    name: size
    for size, names in (
        (16, "vocab_size vocab_size_per_layer_input"),
        (
            2,
            "hidden_size_per_layer_input intermediate_size "
            "intermediate_size_mlp dense_intermediate_size "
            "moe_intermediate_size shared_expert_intermediate_size "
            "shared_intermediate_size moe_shared_expert_intermediate_size "
            "ffn_hidden_size expert_ffn_hidden_size num_experts "
            "num_local_experts n_routed_experts num_experts_per_tok moe_topk "
            "q_lora_rank o_lora_rank index_n_heads",
        ),
        (1, "n_group topk_group"),
        (None, "pad_token_id bos_token_id eos_token_id"),
        ("eager", "attn_implementation"),
        ("batched_mm", "experts_implementation"),
    )
    for name in names.split()
}
# Numbers of a group that a config has under a name of its own.
NAMES = {
    ("falcon", Full): {"num_key_value_heads": "num_kv_heads"},
    ("gemma4_text", Full): {
        "num_key_value_heads": "num_global_key_value_heads",
        "head_dim": "global_head_dim",
    },
    ("kimi_linear", Recurrent): {
        "linear_num_key_heads": "linear_num_heads",
        "linear_num_value_heads": "linear_num_heads",
        "linear_key_head_dim": "linear_head_dim",
        "linear_value_head_dim": "linear_head_dim",
    },
    ("nemotron_h", Recurrent): {
        "linear_num_key_heads": "n_groups",
        "linear_num_value_heads": "mamba_num_heads",
        "linear_key_head_dim": "ssm_state_size",
        "linear_value_head_dim": "mamba_head_dim",
        "linear_conv_kernel_dim": "conv_kernel",
    },
}


def layer_type(group):
    """What transformers calls such layers."""
    match group:
        case Recurrent():
            return "linear_attention"
        case Sliding() | Compressed(ratio=None):
            return "sliding_attention"
        case Compressed(index_dim=0):
            return "heavily_compressed_attention"
        case Compressed():
            return "compressed_sparse_attention"
        case Chunked():
            return "chunked_attention"
        case Full(index_dim=width) if width:
            return "minimax_m3_sparse"
    return "full_attention"


def layer_types(model):
    return [layer_type(g) for g in model.groups for _ in range(g.layers)]


def of_group(group):
    """The numbers of a group, by the names that most configs have."""
    match group:
        case Recurrent(state_heads=heads, key_dim=k, value_dim=v):
            return {
                "linear_num_key_heads": (group.conv_channels - heads * v)
                // (2 * k),
                "linear_num_value_heads": heads,
                "linear_key_head_dim": k,
                "linear_value_head_dim": v,
                "linear_conv_kernel_dim": group.conv_kernel,
            }
        case Mla():
            result = {
                "num_key_value_heads": group.q_heads,
                "kv_lora_rank": group.kv_lora_rank,
                "qk_rope_head_dim": group.qk_rope_head_dim,
                "qk_nope_head_dim": group.qk_nope_head_dim,
                "v_head_dim": group.v_head_dim,
            }
        case Compressed():
            result = {
                "head_dim": group.dim,
                "sliding_window": group.sliding_window,
            }
        case Full():
            result = {
                "num_key_value_heads": group.kv_heads,
                "head_dim": group.head_dim,
            }
    if isinstance(group, Sliding):
        result["sliding_window"] = group.sliding_window
    if isinstance(group, Chunked):
        result["attention_chunk_size"] = group.chunk
    if isinstance(group, Full) and group.v_head_dim != group.head_dim:
        result["v_head_dim"] = group.v_head_dim
    if group.index_dim:
        result["index_head_dim"] = group.index_dim
    return result | {"num_attention_heads": group.q_heads}


def sizes(model):
    """The numbers of a model, by the names that its config has."""
    kind, result = TYPES[model.id], {"num_hidden_layers": model.layers}
    # Full ones last: where heads differ, the plain names are those of them.
    for group in sorted(model.groups, key=lambda group: type(group) is Full):
        names = NAMES.get((kind, type(group)), {})
        for name, value in of_group(group).items():
            if value is not None:
                result[names.get(name, name)] = value
    rates = {
        layer_type(group): group.ratio
        for group in model.groups
        if isinstance(group, Compressed) and group.ratio
    }
    if rates:
        result["compress_rates"] = rates
    types = layer_types(model)
    if len({*types}) > 1:
        result["layer_types"] = types
    return result


def config_of(model, **more):
    """The model's own heads and ranks; what a cache does not see is tiny."""
    known = sizes(model)
    kind, heads = TYPES[model.id], known["num_attention_heads"]
    # Other than heads * head_dim, so that no module can do without head_dim.
    known["hidden_size"] = 2 * heads
    match kind:
        case "gpt2" | "falcon":  # they have none
            known["hidden_size"] = heads * known.pop("head_dim")
        case "gemma4_text":
            known["attention_k_eq_v"] = True
        case "glm_moe_dsa":
            known["indexer_types"] = [
                "full" if group.index_dim else "shared"
                for group in model.groups
                for _ in range(group.layers)
            ]
        case "longcat_flash":
            known["num_layers"] = known.pop("num_hidden_layers") // 2
        case "nemotron_h":
            known["layers_block_type"] = known.pop("layer_types")
            known.pop("num_hidden_layers")
    return CONFIG_MAPPING[kind](**TINY | known | more).get_text_config()


def module(config, dtype=torch.bfloat16):
    # Of the meta device there are shapes and types, so all lengths are cheap;
    # but LongCat looks at what its router chose, which has no shape.
    device = "cpu" if config.model_type == "longcat_flash" else "meta"
    with torch.device(device):
        return AutoModel.from_config(config, dtype=dtype).eval()


def filled(module, kind, tokens):
    """A cache after transformers' own model has seen so many tokens."""
    with torch.device(module.device), torch.no_grad():
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


def one_of_each(id):
    """The model with one layer of a kind, of which LongCat's have two."""
    model, n = find_model(id), 2 if id == "longcat-flash" else 1
    groups = tuple(replace(group, layers=n) for group in model.groups)
    return replace(model, groups=groups)


@cache
def small(id):
    return module(config_of(one_of_each(id)))


WINDOWS = [id for id in TYPES if widest(find_model(id))]
RECURRENT = [id for id in TYPES if newest_inputs(find_model(id))]
# Released with a list of layers, which the defaults do not make.
LISTED = {
    "kimi-linear-48b",
    "nemotron-3-nano",
    "deepseek-v4-flash",
    "deepseek-v4-pro",
    "gemma-4-e2b",
    "minimax-m3",
}
MIXED = [
    id
    for id in TYPES
    if "layer_types" in sizes(find_model(id)) and id not in LISTED
]
# What these rows do not count, as they say, and values which are the keys.
UNCOUNTED = {
    "deepseek-v4-flash": (
        "values",
        "buffer_kv",
        "buffer_gate",
        "overlap_kv",
        "overlap_gate",
    ),
}
UNCOUNTED["deepseek-v4-pro"] = UNCOUNTED["deepseek-v4-flash"]


def lengths(ids):
    """Those below and above a window, where there is one."""
    cases = []
    for id in ids:
        wide = widest(find_model(id))
        cases += [(id, wide // 2), (id, 3 * wide + 1)] if wide else [(id, T)]
    return cases


def test_every_model_is_compared_or_known_to_be_absent():
    assert {*models()} == {*TYPES} | ABSENT | COUNTED


@pytest.mark.parametrize(
    ("id", "tokens"), lengths(id for id in TYPES if TYPES[id] != "deepseek_v4")
)
def test_the_cache_of_transformers_is_what_we_predict(id, tokens):
    model = one_of_each(id)
    # Of a window, only the static cache has all tokens that a step sees.
    kind = static(tokens) if id in WINDOWS else dynamic
    past = filled(small(id), kind, tokens)
    want = kv_bytes(model, tokens, batch=B) + newest_inputs(model)
    assert held(past, without=UNCOUNTED.get(id, ())) == want


@pytest.mark.parametrize(("id", "tokens"), lengths(WINDOWS))
def test_between_steps_a_full_window_is_one_token_shorter(id, tokens):
    model = one_of_each(id)
    past = filled(small(id), dynamic, tokens)
    want = kv_bytes(model, tokens, batch=B) - newest_tokens(model, tokens)
    assert held(past, without=UNCOUNTED.get(id, ())) == want


@pytest.mark.parametrize("id", RECURRENT)
@pytest.mark.parametrize("tokens", [1, T])
def test_states_are_in_float32_and_never_grow(id, tokens):
    model = one_of_each(id)
    past = filled(small(id), dynamic, tokens)
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


@pytest.mark.parametrize("id", MIXED)
def test_transformers_mixes_the_layers_as_we_do(id):
    model = find_model(id)
    config = config_of(model, layer_types=None)
    assert Counter(config.layer_types) == Counter(layer_types(model))


@pytest.mark.parametrize("id", sorted(COUNTED & {*layer_patterns.RULES}))
def test_the_order_of_layers_is_that_of_the_config(id):
    given = fields_of(configs()[id])
    order = letters(given, records_of(given))
    assert [
        kind for kind, _ in layer_patterns.cells(find_model(id))[0]
    ] == order


@pytest.mark.parametrize("id", sorted({*TYPES} & {*layer_patterns.RULES}))
def test_the_order_of_layers_is_that_of_transformers(id):
    model = find_model(id)
    config = config_of(model, layer_types=None)
    names = {layer_type(g): layer_patterns.letter(g) for g in model.groups}
    cells, known = layer_patterns.cells(model)
    assert known and [k for k, _ in cells] == [
        names[name] for name in config.layer_types
    ]


def test_layers_that_reuse_the_keys_of_others_keep_none():
    model = find_model("gemma-4-e2b")
    pattern = 4 * ["sliding_attention"] + ["full_attention"]
    config = config_of(
        model,
        num_hidden_layers=35,
        num_kv_shared_layers=20,
        layer_types=7 * pattern,
    )
    assert held(filled(module(config), dynamic, T)) == kv_bytes(
        model, T, batch=B
    )


# One for each kind of layer: most others take a second each.
@pytest.mark.parametrize(
    "id",
    [
        "gpt2",
        "falcon-7b",
        "minicpm3-4b",
        "smollm3-3b",
        "gpt-oss-120b",
        "olmo-hybrid-7b",
    ],
)
def test_a_whole_model_as_transformers_has_it_by_default(id):
    model = find_model(id)
    tokens = 3 * widest(model) + 1 if id in WINDOWS else T
    config = CONFIG_MAPPING[TYPES[id]](
        attn_implementation="eager", experts_implementation="batched_mm"
    )
    kind = static(tokens) if id in WINDOWS else dynamic
    past = filled(module(config.get_text_config()), kind, tokens)
    want = kv_bytes(model, tokens, batch=B) + newest_inputs(model)
    assert held(past) == want


@pytest.mark.parametrize(
    "id", ["gpt2", "llama-3.1-8b", "deepseek-v3.2", "gemma-3-4b", "mimo-v2.5"]
)
@pytest.mark.parametrize(
    ("dtype", "theirs"),
    [("fp32", torch.float32), ("fp16", torch.float16)],
    ids=["fp32", "fp16"],
)
def test_numbers_of_another_width_are_counted_too(id, dtype, theirs):
    model = one_of_each(id)
    past = filled(module(config_of(model), theirs), static(T), T)
    assert held(past) == kv_bytes(model, T, batch=B, dtype=dtype)


@pytest.mark.parametrize("id", ["gpt2", "llama-3.1-8b", "deepseek-v3"])
def test_in_fp8_transformers_has_two_scales_a_layer_beside(id):
    model = one_of_each(id)
    past = filled(
        small(id),
        lambda config: QuantizedCache(backend="fp8", config=config),
        T,
    )
    scales = model.layers * 2 * torch.float32.itemsize
    assert held(past) == kv_bytes(model, T, batch=B, dtype="fp8") + scales


# Defaults of transformers that are not those of the model, and how.
WRONG = {
    ("falcon", "falcon-7b"): {"num_kv_heads": 71},  # multi_query makes it 1
    ("deepseek_v2", "deepseek-v2"): {
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
    ("gemma3", "gemma-3-4b"): {
        "num_hidden_layers": 26,
        "sliding_window": 4096,
        "layer_types": {"sliding_attention": 22, "full_attention": 4},
    },
    ("qwen3", "qwen3-8b"): {
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
    },
    ("qwen3", "qwen3-32b"): {
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
    ("kimi_k25", "kimi-k2"): {
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
    },
    ("glm4_moe", "glm-4.5"): {"num_hidden_layers": 46, "head_dim": 42},
    ("glm4_moe", "glm-4.5-air"): {"head_dim": 42},
    ("kimi_linear", "kimi-linear-48b"): {
        "layer_types": {"linear_attention": 21, "full_attention": 6}
    },
    ("deepseek_v4", "deepseek-v4-flash"): {
        "layer_types": {
            "compressed_sparse_attention": 20,
            "heavily_compressed_attention": 23,
        }
    },
    ("mimo_v2_flash", "mimo-v2.5"): {"sliding_window": 129},
}
# Those which rows give as their source, and two more.
RIGHT = {
    (TYPES[model.id], model.id): {}
    for model in models().values()
    if model.id in TYPES
    and "transformers" in [source.label for source in model.sources]
} | {("llama", "llama-2-7b"): {}, ("qwen3_5_text", "qwen3.5-9b"): {}}


def test_no_row_gives_a_config_as_its_source_that_differs_from_it():
    # But Falcon's, where multi_query=True overrules num_kv_heads.
    assert {*RIGHT} & {*WRONG} == {("falcon", "falcon-7b")}


def value_of(config, name):
    """A number of a config, or what its module takes where it has none."""
    match name:
        case "head_dim":
            width = config.hidden_size // config.num_attention_heads
            return getattr(config, name, width)
        case "num_key_value_heads":
            return getattr(config, name, config.num_attention_heads)
    return getattr(config, name)


def counted(value):
    return dict(Counter(value)) if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("kind", "id", "wrong"),
    [
        pytest.param(kind, id, wrong, id=f"{id}-{kind}")
        for (kind, id), wrong in (RIGHT | WRONG).items()
    ],
)
def test_defaults_of_transformers_are_ours_but_where_it_is_known(
    kind, id, wrong
):
    config = CONFIG_MAPPING[kind]().get_text_config()
    differ = {
        name: counted(value_of(config, name))
        for name, value in sizes(find_model(id)).items()
        if counted(value_of(config, name)) != counted(value)
    }
    assert differ == wrong


@pytest.mark.parametrize(
    ("id", "source"),
    [
        pytest.param(model.id, source, id=model.id)
        for model in models().values()
        for source in model.sources
        if source.label == "transformers"
    ],
)
def test_a_source_is_the_file_of_the_config_that_we_compare(id, source):
    module = CONFIG_MAPPING[TYPES[id]].__module__.replace(".", "/")
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
        config = CONFIG_MAPPING[TYPES[model.id]]().get_text_config()
        assert config.max_position_embeddings == model.max_context


# Of Llama and Mistral: width, width of the feed-forward part, vocabulary.
WIDTHS = {
    "llama-2-7b": (4096, 11_008, 32_000),
    "llama-2-70b": (8192, 28_672, 32_000),
    "mistral-7b": (4096, 14_336, 32_000),
    "llama-3.1-8b": (4096, 14_336, 128_256),
    "llama-3.1-70b": (8192, 28_672, 128_256),
    "llama-3.1-405b": (16_384, 53_248, 128_256),
}
# Of these, the defaults of transformers are the whole model.
WHOLE = {
    "gpt2",
    "deepseek-v3",
    "smollm3-3b",
    "gpt-oss-120b",
    "qwen3-next-80b",
    "minimax-m2",
}


@pytest.mark.parametrize("id", [*WIDTHS, *sorted(WHOLE)])
def test_parameters_are_those_of_the_model_to_the_digits_given(id):
    model, options = find_model(id), {}
    if id in WIDTHS:
        width, inner, vocabulary = WIDTHS[id]
        options = sizes(model) | {
            "hidden_size": width,
            "intermediate_size": inner,
            "vocab_size": vocabulary,
        }
    config = CONFIG_MAPPING[TYPES[id]](**options).get_text_config()
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    count = sum(p.numel() for p in built.parameters())
    digits = len(str(model.params).rstrip("0"))
    assert float(f"{count:.{digits}g}") == model.params


@torch.no_grad()
@pytest.mark.parametrize("id", ["deepseek-v3", "kimi-linear-48b"])
def test_a_key_for_positions_is_rotated_or_marked_as_not(id):
    model = one_of_each(id)
    built = AutoModel.from_config(config_of(model)).eval()
    (name,) = (n for n, _ in built.named_modules() if n.endswith("_with_mqa"))
    made = []
    built.get_submodule(name).register_forward_hook(
        lambda module, given, out: made.append(out)
    )
    past = dynamic(built.config)
    built(torch.arange(B * 5).view(B, 5) % 16, cache=past)
    mla = model.groups[0]
    unrotated = made[0][..., mla.kv_lora_rank :].unsqueeze(1)
    cached = past.layers[0].values
    assert cached.shape == unrotated.shape == (B, 1, 5, mla.qk_rope_head_dim)
    assert torch.equal(cached, unrotated) is not mla.rotated


def test_the_defaults_of_qwen3_are_no_model_of_that_name():
    config = CONFIG_MAPPING["qwen3"]()
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    assert (layers, heads, config.num_key_value_heads) == (32, 32, 32)
    assert not [
        model.id
        for model in models().values()
        if model.family == "Qwen"
        and model.layers == layers
        and model.groups[0].kv_heads == heads
    ]
