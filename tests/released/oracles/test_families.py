"""The attention of every family against its own model of transformers.

Tiny models of random weights and odd sizes: whole, one token at a time and in
ragged chunks, with pads on the left. What is run is the file that is written
for a model; the package's layer is compared with it.
"""

import inspect
import json
from functools import cache
from itertools import accumulate, pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnref import (
    Decoder,
    GroupedQueryAttention,
    KVCache,
    LongRope,
    RingKVCache,
    Rope,
    flash,
    greedy,
    padding_mask,
    sdpa,
    token_positions,
)
from attnref.numbers.shapes import Recurrent
from attnref.released.configured import attention_from_config
from attnref.released.generate import file_of
from attnref.released.mixers import (
    CompressedAttention,
    Mamba2,
    RoutedAttention,
)
from attnref.released.parts import parts_of
from attnref.released.record import families, read_config
from sitekit import ROOT
from sitekit.drawn.your_model import BOUND
from tests.kit.checkpoints import published, write
from tests.kit.compare import relative_error
from tests.kit.families import (
    CHUNKS,
    FAMILIES,
    FLAGS,
    LAYERS,
    LENGTH,
    RESTARTS,
    ROWS,
    WHOLE,
    Seen,
    config_of,
    mixers_of,
    model_of,
    records_of,
    seen,
    shape_of,
)

# One of each kind is compared in every run, and all in the audit.
QUICK = {
    *("bloom", "cohere2", "deepseek_v3", "gemma4_text", "gpt2", "gpt_oss"),
    *("laguna", "llama4_text", "olmo2", "phi3", "qwen3", "qwen3_next"),
}
CASES = [(name, {}) for name in FAMILIES] + [*FLAGS.items()]


def case(name, changes):
    quick = name in {*QUICK, "mistral_large4_text"} and not changes
    marks = [] if quick else [pytest.mark.audit]
    return pytest.param(
        name, changes, id=f"{name}{'-'.join(changes)}", marks=marks
    )


def module_of(config):
    """The file of a model, run."""
    space = {}
    exec(compile(file_of(config), config["model_type"], "exec"), space)
    return space


def ours_for(config, attentions, folder):
    """The layers of the file, with weights of a folder as it is published."""
    space, parts = module_of(config), []
    for layer, module, *_ in attentions:
        # Where attention and state read different x, the module is one of them.
        attends = layer in mixers_of(config) and "q_proj" in module._modules
        attends = attends and layer in records_of(config)
        options = {"kind": space["Attention"]} if attends else {}
        if config["model_type"] == "longcat_flash":
            options["part"] = parts.count(layer)  # two in a layer
            parts.append(layer)
        file_layer = space["load"](folder, layer, **options)
        weights = dict(module.named_parameters())
        assert file_layer.state_dict().keys() == weights.keys()
        for name, weight in file_layer.state_dict().items():
            assert torch.equal(weight, weights[name]), f"{layer}: {name}"
        yield layer, file_layer.eval()


def join_both(config, layers):
    """One layer of attention and state for both that transformers has."""
    if not any(
        isinstance(r, Mamba2) and r.together
        for r in mixers_of(config.to_dict()).values()
    ):
        return layers
    out, pairs = (
        (config.ssm_out_multiplier, config.attention_out_multiplier),
        [],
    )
    for first, second in zip(layers[::2], layers[1::2], strict=True):
        state, attends = (first, second) if first.recurrent else (second, first)
        assert state.layer == attends.layer
        calls = [
            (x, y * out[0] + z * out[1])
            for (x, y), (_, z) in zip(state.calls, attends.calls, strict=True)
        ]
        parts = {"self_attn": attends.module, "mamba": state.module}
        module = nn.ModuleDict(parts)
        pairs.append(Seen(state.layer, module, calls, state.inputs))
    return pairs


# The text model's weights in files of text, and of images too.
PREFIXES = "model.", "model.language_model.", "language_model.model."


def publish(folder, config, model, prefix):
    """A folder as published, with more towers that have the same names."""
    weights = published(model, config["model_type"])
    short = {n.removeprefix("model."): w for n, w in weights.items()}
    texts = {prefix + name: w for name, w in short.items()}
    towers = ("vision_tower.model.", "mtp.") if prefix != "model." else ()
    others = {t + n: 2 * w for t in towers for n, w in short.items()}
    folder.mkdir(parents=True)
    return write(folder, config, texts | others, shards=len(prefix) % 3 + 1)


# In float32, theirs and ours round so much that the sum of both exceeds the
# bound: on some processors, or where a gate is an exponential.
IN_FLOAT64 = {"falcon_mamba", "xlstm"}


@torch.no_grad()
def compare(family, changes, folder):
    """All layers and steps; returns the largest error."""
    if family not in IN_FLOAT64:
        return compare_steps(family, changes, folder)
    torch.set_default_dtype(torch.float64)
    try:
        return compare_steps(family, changes, folder)
    finally:
        torch.set_default_dtype(torch.float32)


def compare_steps(family, changes, folder):
    config = config_of(family, **changes)
    records = records_of(config)
    model, worst = model_of(config).to(torch.get_default_dtype()), 0.0
    valid = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    # Theirs counts pads where queries grow, but in Inkling 2.
    grows = {"floor_scale", "log_scaling_n_floor"} & {*changes}
    if not grows or family == "inkling2_text":
        valid[1, :5] = valid[2, :1] = False
    for (name, chunks), prefix in zip(CHUNKS.items(), PREFIXES, strict=True):
        if family in WHOLE and len(chunks) > 1:
            continue
        if family in RESTARTS and len({*chunks[1:], 1}) > 1:
            continue
        layers = join_both(config, seen(model, family, chunks, valid))
        place = publish(folder / name, config.to_dict(), model, prefix)
        ours = [*ours_for(config.to_dict(), layers, place)]
        caches, chosen, latents, start = {}, None, {}, 0
        for step, T in enumerate(chunks):
            end = start + T
            real = valid[:, start:end]
            for n, ((layer, file_layer), theirs) in enumerate(
                zip(ours, layers, strict=True)
            ):
                r = None if theirs.recurrent else records[layer]
                reads = r and r.shares is not None
                key = r.shares if reads and not r.kv_rank else n
                if key not in caches:
                    caches[key] = file_layer.cache(LENGTH)
                x, expected = theirs.calls[step]
                options = {"valid": valid[:, :end], **theirs.inputs[step]}
                if r and r.index_topk and not r.index_own:
                    options["chosen"] = chosen
                if reads and r.kv_rank:
                    options["latents"] = latents[r.shares]
                actual = file_layer(x, cache=caches[key], **options)
                chosen = getattr(file_layer, "chosen", chosen)
                latents[layer] = getattr(file_layer, "latents", None)
                error = relative_error(actual[real], expected[real])
                assert error < BOUND, f"{name}, layer {layer}"
                worst = max(worst, float(error))
            start = end
    return worst


@pytest.mark.parametrize("family, changes", [case(*c) for c in CASES])
def test_attention_is_that_of_transformers(family, changes, tmp_path):
    """With weights that the file has loaded as they are published. What pages
    say of the family was recorded: python -m
    tests.released.oracles.test_families."""
    compare(family, changes, tmp_path)
    if not changes:
        recorded = json.loads(RECORD.read_text(encoding="utf-8"))[family]
        assert facts_of(family) == recorded | {"error": None}


FAR = 2000
SELECT = "index_topk", "index_topk_blocks", "indexer_budget"
# RoPE of three kinds; all in the audit.
QUICK_FAR = "deepseek_v3", "gemma3_text", "llama"


def far(name, changes):
    quick = name in QUICK_FAR and not changes
    marks = [] if quick else [pytest.mark.audit]
    return pytest.param(
        name, changes, id=f"{name}{'-'.join(changes)}", marks=marks
    )


@pytest.mark.parametrize("family, changes", [far(*c) for c in CASES])
@torch.no_grad()
def test_positions_are_exact_in_bfloat16(family, changes):
    """After 2,000 tokens, where a rounded angle is off by whole turns."""
    config = config_of(family, **changes)
    config.max_position_embeddings = 4096
    for name in {*SELECT} & {*vars(config)}:  # all: no choice is rounded
        setattr(config, name, 6 * 341)
    fields, model = config.to_dict(), model_of(config)
    for name, weight in model.named_parameters():
        if not name.endswith("alpha"):  # of LeRoPE, which stays in float32
            weight.data = weight.data.bfloat16().float()
    layers = {}
    for n, r in records_of(fields).items():
        chooses = r.index_own or not r.index_topk
        differs = r.rope_theta or r.q_growth or r.q_log
        if differs and r.shares is None and chooses:
            layers.setdefault(r, n)
    grown = {  # convolved attention, which has no RoPE
        r: n
        for n, r in mixers_of(fields).items()
        if getattr(r, "q_growth", 0.0)
    }
    layers |= grown
    chunks = (FAR, 1, 2)
    attentions = seen(model, family, (sum(chunks),), None, 1) if layers else []
    space = module_of(fields)
    for theirs in attentions:
        numbers = grown if theirs.recurrent else layers
        if theirs.layer not in numbers.values():
            continue
        layer, module, [(x, expected)], [others] = theirs
        expected = expected[:, FAR:]
        rounded = {n: t.bfloat16() for n, t in {"x": x, **others}.items()}
        steps = [
            {n: t[:, start:end] for n, t in rounded.items()}
            for start, end in pairwise(accumulate(chunks, initial=0))
        ]
        copies = [space["mixer" if grown else "Attention"](layer)]
        if not grown:
            copies.append(attention_from_config(fields, layer))
        for copy in copies:
            copy = copy.to(torch.bfloat16)
            copy.load_state_dict(module.state_dict())
            cache = copy.cache(sum(chunks))
            try:
                torch.set_default_dtype(torch.bfloat16)
                outs = [copy(**step, cache=cache) for step in steps]
            finally:
                torch.set_default_dtype(torch.float32)
            actual = torch.cat(outs, dim=1)[:, FAR:].float()
            error = (actual - expected).norm() / expected.norm()
            assert error < 0.05, f"layer {layer}"


# Kinds that keep a cache for each row with pads, and keys too.
BY_ROWS = "CCA", "ConvolvedAttention", "GatedConvolvedAttention"
# A family for each kind of layer that keeps a state.
STATES = {
    r.kind: name
    for name in FAMILIES
    if families()[name].mixer
    for r in mixers_of(config_of(name).to_dict()).values()
    if not isinstance(r, CompressedAttention | RoutedAttention)
}


@pytest.mark.parametrize("kind", STATES)
@torch.no_grad()
def test_a_state_passes_chunks_and_is_not_changed_by_any_pad(kind):
    """Rows of transformers without pads, and ours with some in the middle."""
    config, T, S = config_of(STATES[kind]), 131, 151
    group = next(
        group
        for group in shape_of(config.to_dict()).groups
        if isinstance(group, Recurrent)
    )
    model, space = model_of(config), module_of(config.to_dict())
    for weight in model.parameters():
        weight.data = weight.data.bfloat16().float()
    attentions = seen(model, STATES[kind], (T,), None)
    firsts = {type(a.module): a for a in reversed(attentions) if a.recurrent}
    order = torch.stack([torch.randperm(S) for _ in range(ROWS)])
    order[0] = torch.arange(S).flip(0)  # all pads on the left
    valid = order < T
    for layer, module, [(x, expected)], [others] in firsts.values():
        padded = {}
        for name, source in {"x": x, **others}.items():
            rows = 1e4 * torch.randn(ROWS, S, x.shape[-1])
            rows[:, :3].masked_fill_(~valid[:, :3, None], torch.nan)
            rows[valid] = source.flatten(0, 1)
            padded[name] = rows
        check_state(space[kind](layer), module, padded, valid, expected, group)


def check_state(file_layer, module, rows, valid, expected, group):
    """In chunks, with pads among the tokens, also in bfloat16."""
    S, kind = valid.shape[1], type(file_layer).__name__
    for dtype, bound in ((torch.float32, BOUND), (torch.bfloat16, 0.05)):
        file_layer = file_layer.to(dtype)
        file_layer.load_state_dict(dict(module.named_parameters()))
        cache, out, end = file_layer.cache(S), [], 0
        rounded = {name: x.to(dtype) for name, x in rows.items()}
        for T in (65, 1, 64, S - 130):
            part = slice(end, end + T)
            end += T
            inputs = {name: x[:, part] for name, x in rounded.items()}
            past = valid[:, :end]
            out.append(file_layer(**inputs, cache=cache, valid=past))
        actual, wanted = torch.cat(out, dim=1)[valid], expected.flatten(0, 1)
        if dtype != torch.float32:  # an exponential of a rounded x is another
            exact = {name: x.float() for name, x in rounded.items()}
            wanted = file_layer.float()(**exact, valid=valid)[valid]
        error = (actual.float() - wanted).norm() / wanted.norm()
        assert error < bound, dtype
        if group.state_heads:
            assert cache.kept[-1].dtype == torch.float32
        if kind in BY_ROWS:
            continue
        state = group.state_heads * group.key_dim * group.value_dim
        inputs = group.conv_channels * (group.conv_kernel - 1)
        elements = sum(t.numel() for t in cache.kept if t.is_floating_point())
        assert (cache.length, elements) == (S, ROWS * (state + inputs))


# Of Inkling 2: lines of its file, and wrong ones.
WRONG = {
    "no taps of a token": ("(static + taps) * near", "static * near"),
    "no taps of a channel": ("(static + taps) * near", "taps * near"),
    "taps that begin with the oldest": (", 1).flip(-1)", ", 1)"),
    "convolutions by another number": ("(2 * 3 + 1)", "(3 + 1)"),
    "convolutions without a number": ("(y / (3 + 1) ** 0.5)", "y"),
    "a sink of no projection": ("self.sink_proj(x)", "x.new_zeros(B, T, H)"),
    "lengths without a scale": ("x.float() * scale", "x.float()"),
    "keys of any length": (
        "clipped(k.view(B, T, K, D), 1, 4.7)",
        "k.view(B, T, K, D)",
    ),
    "keys of the queries' input": ("self.k_proj(x_k,", "self.k_proj(x,"),
    "values of the queries' input": ("self.v_proj(x_v,", "self.v_proj(x,"),
    "values of any size": (
        "F.rms_norm(v.view(B, T, K, D).float(), (D,), eps=1e-6).to(v.dtype)",
        "v.view(B, T, K, D)",
    ),
    "a bias that does not grow": (
        "position_bias(x, growth,",
        "position_bias(x, 1,",
    ),
    "no gate": ("heads.float() * gate", "heads.float()"),
}


@cache
def inkling2():
    """A model of transformers, the file of it, and a layer of each kind."""
    config = config_of("inkling2_text", **FLAGS["inkling2_text"])
    attentions = seen(model_of(config), "inkling2_text", (LENGTH,), None)
    return file_of(config), attentions[:2]


def errors_of(text):
    """By how much a file's layers differ from those of transformers."""
    space = {}
    exec(text, space)
    for layer, module, [(x, expected)], [others] in inkling2()[1]:
        file_layer = space["mixer"](layer)
        file_layer.load_state_dict(module.state_dict())
        yield relative_error(file_layer(x, **others), expected)


@pytest.mark.parametrize("fault", WRONG)
@torch.no_grad()
def test_a_wrong_line_of_inkling_2_changes_what_a_layer_gives(fault):
    text, (right, wrong) = inkling2()[0], WRONG[fault]
    assert text.count(right) == 1
    assert max(errors_of(text)) < BOUND
    assert max(errors_of(text.replace(right, wrong))) > 0.05


@torch.no_grad()
def test_a_full_layer_of_inkling_2_has_no_default_of_its_inputs():
    """Those of a window have one, as in transformers."""
    text, (sliding, full) = inkling2()
    space = {}
    exec(text, space)
    for name in ("key_input", "value_input"):
        [(x, _)], [others] = full.calls, full.inputs
        with pytest.raises(ValueError, match="a full layer needs key_input="):
            space["mixer"](full.layer)(x, **{name: others[name]})
    [(x, _)], [others] = sliding.calls, sliding.inputs
    assert not others
    layer = space["mixer"](sliding.layer)
    assert torch.equal(layer(x), layer(x, key_input=x, value_input=x))


def longrope():
    """Phi-3 with 16 tokens trained, and rows of at most 15."""
    changes = FLAGS["phi3"] | {"original_max_position_embeddings": 16}
    config = config_of("phi3", **changes | {"sliding_window": None})
    return config, torch.arange(24) >= torch.tensor([[9], [12], [10]])


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@torch.no_grad()
def test_longrope_is_chosen_by_the_tokens_without_pads(chunks):
    config, valid = longrope()
    [(_, module, calls, _), *_] = seen(model_of(config), "phi3", chunks, valid)
    ours, space = attention_from_config(config), {}
    exec(file_of(config), space)
    file_layer = space["Attention"]()
    for copy in (ours, file_layer):
        copy.load_state_dict(module.state_dict())
    caches, end = (ours.cache(24), file_layer.cache(24)), 0
    for x, expected in calls:
        start, end = end, end + x.shape[1]
        real, past = valid[:, start:end], valid[:, :end]
        actual = ours(x, mask=padding_mask(past), cache=caches[0])
        file_out = file_layer(x, valid=past, cache=caches[1])
        for out in (actual, file_out):
            assert relative_error(out[real], expected[real]) < 1e-6


@torch.no_grad()
def test_longrope_runs_on_the_device_meta_with_pads():
    """Which has shapes, and no numbers to count the tokens by."""
    config, valid = longrope()
    space, valid = {}, valid.to("meta")
    exec(file_of(config), space)
    with torch.device("meta"):
        ours, file_layer = attention_from_config(config), space["Attention"]()
        x = torch.randn(3, 24, 60)
        options = {
            "mask": padding_mask(valid),
            "positions": token_positions(valid),
        }
        assert ours(x, cache=ours.cache(24), **options).shape == x.shape
        cache = file_layer.cache(24)
        assert file_layer(x, cache=cache, valid=valid).shape == x.shape
        scaling = LongRope(5 * [1.0], 5 * [2.0], 16)
        gqa = GroupedQueryAttention(
            d_model=60, n_heads=6, n_kv_heads=3, rope=Rope(scaling=scaling)
        )
        assert gqa(x, **options).shape == x.shape


@torch.no_grad()
def test_keys_that_longrope_has_rotated_otherwise_are_refused():
    config, valid = longrope()
    ours, space = attention_from_config(config), {}
    exec(file_of(config), space)
    x, file_layer = torch.randn(3, 24, 60), space["Attention"]()
    cache = ours.cache(30)
    ours(x, mask=padding_mask(valid), cache=cache)
    ours(x[:, :1], positions=torch.tensor([15]), cache=cache)
    message = "text of 16 tokens, and LongRoPE rotates one of 17 by other"
    with pytest.raises(ValueError, match=message):
        ours(x[:, :1], positions=torch.tensor([16]), cache=cache)
    assert cache.length == 25
    cache = ours.cache(30)
    ours(x, cache=cache)
    cache.crop(10)
    with pytest.raises(ValueError, match=r"24 tokens, and .* one of 11 by"):
        ours(x[:, :1], cache=cache)
    ours(x[:, :7], cache=cache)
    cache, valid = file_layer.cache(30), F.pad(valid, (0, 2), value=True)
    file_layer(x, valid=valid[:, :24], cache=cache)
    file_layer(x[:, :1], valid=valid[:, :25], cache=cache)
    with pytest.raises(ValueError, match="the text needs other angles"):
        file_layer(x[:, :1], valid=valid, cache=cache)


RECORD = ROOT / "sitekit/drawn/families.json"


def facts_of(family, error=None):
    config = config_of(family).to_dict()
    return {
        "lines": len(file_of(config).splitlines()),
        "parts": [*parts_of(records_of(config))],
        "mixers": sorted({mixer.kind for mixer in mixers_of(config).values()}),
        "without": kinds_left_out(config),
        "error": error and float(f"{error:.1e}"),
    }


def kinds_left_out(config):
    """The kinds of layers that the file leaves out."""
    written = {*records_of(config), *mixers_of(config)}
    kinds = enumerate(read_config(config).kinds)
    return sorted({kind for layer, kind in kinds if layer not in written})


SOME_CORES = {"its own": None, "sdpa": sdpa, "flash": flash}


@pytest.mark.parametrize("attend", SOME_CORES.values(), ids=SOME_CORES)
@pytest.mark.parametrize("family", sorted(QUICK - {"gemma4_text"}))
@torch.no_grad()
def test_a_layer_from_a_config_is_called_like_any_other(family, attend):
    """A mask, caches, positions and cores, as all layers take them."""
    config = config_of(family)
    kinds = {r.kind: layer for layer, r in records_of(config).items()}
    for layer in kinds.values():
        torch.manual_seed(0)
        file_layer = module_of(config.to_dict())["Attention"](layer).eval()
        for weight in file_layer.parameters():
            weight.normal_(std=0.2)
        ours = attention_from_config(config, layer, attend=attend).eval()
        ours.load_state_dict(file_layer.state_dict())
        x = torch.randn(ROWS, LENGTH, ours.r.d_model)
        valid = torch.ones(ROWS, LENGTH, dtype=torch.bool)
        valid[1, :5] = valid[2, :1] = False
        expected = file_layer(x, valid=valid)
        cache = KVCache(LENGTH)
        positions = token_positions(valid)
        actual = [
            ours(
                x[:, start:end],
                mask=padding_mask(valid[:, :end]),
                cache=cache,
                positions=positions[:, start:end],
            )
            for start, end in pairwise(accumulate(CHUNKS["ragged"], initial=0))
        ]
        error = relative_error(torch.cat(actual, dim=1)[valid], expected[valid])
        assert error < 1e-6, f"layer {layer}"
        for empty in (x[:, :0], x[:0]):
            assert ours(empty).shape == empty.shape
        assert ours(x[:, :0], cache=cache).shape == (ROWS, 0, x.shape[2])
        assert cache.length == LENGTH


@pytest.mark.parametrize("family, changes", CASES, ids=lambda x: "-".join(x))
@torch.no_grad()
def test_of_a_whole_text_a_file_gives_bit_for_bit_what_the_layer_gives(
    family, changes
):
    config = config_of(family, **changes).to_dict()
    layer_class = module_of(config).get("Attention")  # V4 has mixers alone
    for layer, r in records_of(config).items():
        if r.shares is not None or (r.index_topk and not r.index_own):
            continue  # it reads what another layer has left
        torch.manual_seed(0)
        file_layer = layer_class(layer).eval()
        x = torch.randn(ROWS, LENGTH, r.d_model)
        for weight in file_layer.parameters():
            weight.normal_(std=0.2)
        ours = attention_from_config(config, layer).eval()
        ours.load_state_dict(file_layer.state_dict())
        assert torch.equal(file_layer(x), ours(x)), f"layer {layer}"


class Around(nn.Module):
    """A layer of transformers, with attention of ours in it."""

    def __init__(self, layer, ours):
        super().__init__()
        self.layer, self.self_attn, self.options = layer, ours, {}
        layer.self_attn.forward = self.attend
        parameters = inspect.signature(layer.forward).parameters.values()
        required = {p.name for p in parameters if p.default is p.empty}
        self.none = dict.fromkeys(required - {"hidden_states", "kwargs"})

    def attend(self, hidden_states, *_, **__):
        return self.self_attn(hidden_states, **self.options), None

    def forward(self, x, **options):
        self.options = options
        out = self.layer(x, **self.none)
        return out[0] if isinstance(out, tuple) else out


TEXTS = {
    *("cohere2", "deepseek_v3", "deepseek_v32", "gemma2", "gemma4_text"),
    *("gpt_oss", "laguna", "llama4_text", "mistral", "olmo2", "qwen3_next"),
}


@pytest.mark.parametrize("family", sorted(TEXTS))
@torch.no_grad()
def test_a_decoder_of_such_layers_writes_what_generate_does(family):
    """Left pads, more tokens than a window, and rings where there is one."""
    only = {
        "qwen3_next": {"layer_types": LAYERS * ["full_attention"]},
        "gemma4_text": {
            "hidden_size_per_layer_input": 0,
            "output_hidden_states": True,  # else generate fails without them
        },
    }
    config = config_of(family, **only.get(family, {}))
    model = model_of(config)
    prompt = torch.randint(3, 41, (ROWS, 11))
    valid = torch.ones_like(prompt)
    valid[1, :4] = valid[2, :1] = 0
    expected = model.generate(
        prompt,
        attention_mask=valid,
        max_new_tokens=16,
        do_sample=False,
        eos_token_id=None,
        return_dict_in_generate=True,
    ).sequences
    body, blocks = model.model, []
    for n, layer in enumerate(body.layers):
        ours = attention_from_config(config, n).eval()
        ours.load_state_dict(layer.self_attn.state_dict())
        blocks.append(Around(layer, ours))
    decoder = Decoder(blocks, n_tokens=41, d_model=60)
    decoder.embed_tokens, decoder.norm = body.embed_tokens, body.norm
    decoder.lm_head = model.lm_head
    caches = []
    for block in blocks:
        ours, r = block.self_attn, block.self_attn.r
        cache = ours.cache(27) if ours.shares is None else caches[ours.shares]
        assert isinstance(cache, RingKVCache) is bool(r.window or r.chunk)
        caches.append(cache)
    actual = greedy(decoder, prompt, 16, valid=valid, caches=caches)
    assert len(set(expected[0].tolist())) > 8
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("kind", ["everything", "rings"])
@pytest.mark.parametrize("family", ["gemma3n_text", "gemma4_text"])
@torch.no_grad()
def test_layers_that_share_keys_are_called_with_one_cache(family, kind):
    config = config_of(family)
    model = model_of(config)
    valid = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    valid[1, :5] = valid[2, :1] = False
    positions = token_positions(valid)
    for chunks in CHUNKS.values():
        attentions = seen(model, family, chunks, valid)
        layers, caches = [], {}
        for layer, module, *_ in attentions:
            attend = sdpa if layer % 2 else None
            ours = attention_from_config(config, layer, attend=attend)
            ours.load_state_dict(module.state_dict())
            layers.append(ours.eval())
            if ours.r.shares is None:
                ring = kind == "rings" and ours.r.window
                caches[layer] = (
                    RingKVCache(ours.r.window) if ring else KVCache(LENGTH)
                )
        assert [r.shares for r in records_of(config).values()].count(None) == 4
        steps = pairwise(accumulate(chunks, initial=0))
        for step, (start, end) in enumerate(steps):
            real = valid[:, start:end]
            options = {"positions": positions[:, start:end]}
            options["mask"] = padding_mask(valid[:, :end])
            for ours, (layer, _, calls, _) in zip(
                layers, attentions, strict=True
            ):
                shares = ours.r.shares
                cache = caches[layer if shares is None else shares]
                x, expected = calls[step]
                actual = ours(x, cache=cache, **options)
                error = relative_error(actual[real], expected[real])
                assert error <= 1e-6, f"layer {layer}, {chunks}"
    reader = next(ours for ours in layers if ours.r.shares is not None)
    cache = caches[reader.r.shares]
    message = f"reads the keys of layer {reader.r.shares}: call that one"
    for wrong, T in ((None, 1), (KVCache(9), 1), (cache, 2)):
        with pytest.raises(ValueError, match=message):
            reader(x[:, :1].expand(-1, T, -1), cache=wrong)
    cache.reset()
    assert cache.handed is None


@pytest.mark.parametrize("attend", SOME_CORES.values(), ids=SOME_CORES)
@pytest.mark.parametrize("family", ["glm_moe_dsa", "mistral_large4_text"])
@torch.no_grad()
def test_layers_read_what_earlier_ones_chose_and_their_latents(family, attend):
    config = config_of(family, **FLAGS[family])
    model = model_of(config)
    valid = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    valid[1, :5] = valid[2, :1] = False
    attentions = seen(model, family, CHUNKS["ragged"], valid)
    layers = []
    for layer, module, *_ in attentions:
        ours = attention_from_config(config, layer, attend=attend).eval()
        ours.load_state_dict(module.state_dict())
        layers.append(ours)
    caches = [ours.cache(LENGTH) for ours in layers]
    steps = pairwise(accumulate(CHUNKS["ragged"], initial=0))
    for step, (start, end) in enumerate(steps):
        options = {"mask": padding_mask(valid[:, :end])}
        options["positions"] = token_positions(valid)[:, start:end]
        for ours, cache, (_, _, calls, _) in zip(
            layers, caches, attentions, strict=True
        ):
            x, expected = calls[step]
            if ours.r.shares is not None:
                options["latents"] = layers[ours.r.shares].latents
            actual, real = ours(x, cache=cache, **options), valid[:, start:end]
            assert relative_error(actual[real], expected[real]) <= 1e-6
            chosen = getattr(ours, "chosen", options.get("chosen"))
            options["chosen"] = chosen
    with pytest.raises(ValueError, match="has no indexer: pass chosen="):
        layers[1](x)
    reads = [ours for ours in layers if ours.r.shares is not None]
    assert len(reads) == 4 * (family == "mistral_large4_text")
    for ours, latents in product(reads, (None, torch.ones(ROWS, 1, 2, 24))):
        with pytest.raises(ValueError, match="reads the latents of layer"):
            ours(x[:, :1], chosen=torch.ones(1, 1), latents=latents)
    text = file_of(config)
    assert "# A layer without an indexer is called with chosen=" in text
    space = module_of(config.to_dict())
    if reads:
        with pytest.raises(ValueError, match="pass latents= of the layer"):
            space["Attention"](2)(x)
    file = space["Attention"](1)
    cache = file.cache(LENGTH)
    with pytest.raises(ValueError, match="no indexer: pass chosen="):
        file(x, cache=cache)
    assert cache.length == 0


# Lines of the file of Mistral Large 4, and what a fault makes of them.
SLIPS = {
    "a factor of queries in place of the other": (
        "(scale * (i + 1).float().log() + bias)",
        "(bias * (i + 1).float().log() + scale)",
    ),
    "positions from 1": ("(i + 1).float().log()", "(i + 2).float().log()"),
    "queries of the indexer without their factor": (
        "        q = self.softmax_scaling(q, i)\n        scores",
        "        scores",
    ),
    "alpha is ignored": (" * self.alpha.float().exp()", ""),
    "alpha, not its exponential": ("self.alpha.float().exp()", "self.alpha"),
    "an indexer with RoPE in a layer without": (
        "angle = None",
        "angle = i * 1e4 ** (-torch.arange(0, 8, 2) / 8)",
    ),
    "an indexer whose input is not normed": ("self.q_input_norm(x)", "x"),
    "latents of other tokens": ("k = latents ", "k = latents.roll(1, 2) "),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_in_what_mistral_large_4_alone_has_is_noticed(
    slip, monkeypatch, tmp_path
):
    (line, other), right = SLIPS[slip], file_of

    def slipped(config):
        text = right(config)
        assert text.count(line) == 1, line
        return text.replace(line, other)

    monkeypatch.setitem(globals(), "file_of", slipped)
    with pytest.raises(AssertionError, match=r", layer \d"):
        compare("mistral_large4_text", {}, tmp_path)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        known = {
            name: facts_of(name, compare(name, {}, Path(folder, name)))
            for name in FAMILIES
        }
    lines = (f'"{name}": {json.dumps(row)}' for name, row in known.items())
    text = ",\n".join(lines)
    RECORD.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
