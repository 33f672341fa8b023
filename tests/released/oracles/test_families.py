"""The attention of every family against its own model of transformers.

Tiny models of random weights and odd sizes: whole, one token at a time and in
ragged chunks, with pads on the left. What is run is the file that is written
for a model; the package's layer is compared with it.
"""

import inspect
import json
from itertools import accumulate, pairwise

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
from attnref.released.from_config import model_from_config
from attnref.released.generate import file_of
from attnref.released.record import (
    families,
    kinds_of,
    mixers_of,
    records_of,
)
from sitekit import ROOT
from sitekit.drawn.your_model import BOUND
from sitekit.released.released import parts_of
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
    model_of,
    seen,
)

# One of each kind is compared in every run, and all in the audit.
QUICK = {
    *("bloom", "cohere2", "deepseek_v3", "gemma4_text", "gpt2", "gpt_oss"),
    *("laguna", "llama4_text", "olmo2", "phi3", "qwen3", "qwen3_next"),
}
CASES = [(name, {}) for name in FAMILIES] + [*FLAGS.items()]


def case(name, more):
    quick = name in QUICK and not more
    marks = [] if quick else [pytest.mark.audit]
    return pytest.param(name, more, id=f"{name}{'-'.join(more)}", marks=marks)


def module_of(config):
    """The file of a model, run."""
    space = {}
    exec(compile(file_of(config), config["model_type"], "exec"), space)
    return space


def ours_for(config, attentions):
    """Its layers, with the weights of those of transformers.

    As large models are loaded: no memory is taken before the weights come."""
    space = module_of(config)
    for layer, module, _ in attentions:
        # Of a layer whose attention reads another x than its state.
        attends = layer in mixers_of(config) and "q_proj" in module._modules
        attends = attends and layer in records_of(config)
        with torch.device("meta"):
            alone = space["Attention" if attends else "mixer"](layer).eval()
        alone.load_state_dict(dict(module.named_parameters()), assign=True)
        yield layer, alone


def both(config, layers):
    """Of layers that attend and keep a state, what both give together."""
    if not any(r.together for r in mixers_of(config.to_dict()).values()):
        return layers
    out, pairs = (
        (config.ssm_out_multiplier, config.attention_out_multiplier),
        [],
    )
    for one, other in zip(layers[::2], layers[1::2], strict=True):
        state, attends = (one, other) if one.recurrent else (other, one)
        assert state.layer == attends.layer
        calls = [
            (x, y * out[0] + z * out[1])
            for (x, y), (_, z) in zip(state.calls, attends.calls, strict=True)
        ]
        parts = {"self_attn": attends.module, "mamba": state.module}
        pairs.append(Seen(state.layer, nn.ModuleDict(parts), calls))
    return pairs


# The text model's weights in files of text, and of images too.
PREFIXES = "model.", "model.language_model.", "language_model.model."


def loaded_as_written(config, model, prefix):
    """The layer of the first lines of the file, with weights of the model."""
    text, weights = file_of(config), model.state_dict()
    if not any(name.startswith("model.") for name in weights):
        # Without a head, transformers leaves it out.
        weights = {f"model.{n}": w for n, w in weights.items()}
    space = {"weights": weights}
    if "language_model" in text:
        other = {f"vision_model.{n}": None for n in weights}
        named = {n.replace("model.", prefix, 1): w for n, w in weights.items()}
        space["weights"] = other | named
    exec(text, space)
    lines = text.split('"""')[1].split("\n\n")[1]
    exec(lines.partition("\ncache =")[0], space)
    return space["layer"]


@torch.no_grad()
def compare(family, more):
    """All layers and steps; returns the largest error."""
    config = config_of(family, **more)
    records = records_of(config)
    model, worst = model_of(config), 0.0
    valid = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    # Theirs counts pads where queries grow.
    if not {"floor_scale", "log_scaling_n_floor"} & {*more}:
        valid[1, :5] = valid[2, :1] = False
    for (name, chunks), prefix in zip(CHUNKS.items(), PREFIXES, strict=True):
        if family in WHOLE and len(chunks) > 1:
            continue
        if family in RESTARTS and len({*chunks[1:], 1}) > 1:
            continue
        layers = both(config, seen(model, family, chunks, valid))
        ours = [*ours_for(config.to_dict(), layers)]
        first = loaded_as_written(config.to_dict(), model, prefix).state_dict()
        for own, weight in layers[0].module.named_parameters():
            assert torch.equal(first[own], weight), own
        caches, chosen, start = {}, None, 0
        for step, T in enumerate(chunks):
            end = start + T
            real = valid[:, start:end]
            for n, ((layer, alone), one) in enumerate(
                zip(ours, layers, strict=True)
            ):
                r = None if one.recurrent else records[layer]
                key = n if r is None or r.shares is None else r.shares
                if key not in caches:
                    caches[key] = alone.cache(LENGTH)
                x, wanted = one.calls[step]
                how = {"valid": valid[:, :end]}
                if r and r.index_topk and not r.index_own:
                    how["chosen"] = chosen
                got = alone(x, cache=caches[key], **how)
                chosen = getattr(alone, "chosen", chosen)
                error = relative_error(got[real], wanted[real])
                assert error < BOUND, f"{name}, layer {layer}"
                worst = max(worst, float(error))
            start = end
    return worst


@pytest.mark.parametrize("family, more", [case(*c) for c in CASES])
def test_attention_is_that_of_transformers(family, more):
    """What pages say of the family was recorded: python -m
    tests.released.oracles.test_families."""
    compare(family, more)
    if not more:
        known = json.loads(RECORD.read_text(encoding="utf-8"))[family]
        assert facts_of(family) == known | {"error": None}


FAR = 2000
SELECT = "index_topk", "index_topk_blocks", "indexer_budget"
# RoPE of three kinds; all in the audit.
QUICK_FAR = "deepseek_v3", "gemma3_text", "llama"


def far(name, more):
    quick = name in QUICK_FAR and not more
    marks = [] if quick else [pytest.mark.audit]
    return pytest.param(name, more, id=f"{name}{'-'.join(more)}", marks=marks)


@pytest.mark.parametrize("family, more", [far(*c) for c in CASES])
@torch.no_grad()
def test_positions_are_exact_in_bfloat16(family, more):
    """After 2,000 tokens, where a rounded angle is off by whole turns."""
    config = config_of(family, **more)
    config.max_position_embeddings = 4096
    for name in {*SELECT} & {*vars(config)}:  # all: no choice is rounded
        setattr(config, name, 6 * 341)
    given, model = config.to_dict(), model_of(config)
    for weight in model.parameters():
        weight.data = weight.data.bfloat16().float()
    layers = {}
    for n, r in records_of(given).items():
        chooses = r.index_own or not r.index_topk
        if (r.rope_theta or r.q_growth) and r.shares is None and chooses:
            layers.setdefault(r, n)
    chunks = (FAR, 1, 2)
    attentions = seen(model, family, (sum(chunks),), None, 1) if layers else []
    space = module_of(given)
    for one in attentions:
        if one.recurrent or one.layer not in layers.values():
            continue
        layer, module, [(x, wanted)] = one
        x, alone = x.bfloat16(), space["Attention"](layer).to(torch.bfloat16)
        ours = attention_from_config(given, layer).to(torch.bfloat16)
        for made in (alone, ours):
            made.load_state_dict(module.state_dict())
            cache = made.cache(sum(chunks))
            try:
                torch.set_default_dtype(ours.o_proj.weight.dtype)
                steps = [made(y, cache=cache) for y in x.split(chunks, dim=1)]
            finally:
                torch.set_default_dtype(torch.float32)
            got = torch.cat(steps, dim=1)[:, FAR:].float()
            error = (got - wanted[:, FAR:]).norm() / wanted[:, FAR:].norm()
            assert error < 0.05, f"layer {layer}"


# A family for each kind of layer that keeps a state.
STATES = {
    r.kind: name
    for name in FAMILIES
    if families()[name].mixer
    for r in mixers_of(config_of(name).to_dict()).values()
    if r.kernel  # of a convolution; 1 is none
}


@pytest.mark.parametrize("kind", STATES)
@torch.no_grad()
def test_a_state_passes_chunks_and_is_not_changed_by_any_pad(kind):
    """Rows of transformers without pads, and ours with some in the middle."""
    config, T, S = config_of(STATES[kind]), 131, 151
    group = next(
        group
        for group in model_from_config(config.to_dict()).groups
        if isinstance(group, Recurrent)
    )
    model, space = model_of(config), module_of(config.to_dict())
    for weight in model.parameters():
        weight.data = weight.data.bfloat16().float()
    attentions = seen(model, STATES[kind], (T,), None)
    layer, module, [(x, wanted)] = next(a for a in attentions if a.recurrent)
    order = torch.stack([torch.randperm(S) for _ in range(ROWS)])
    order[0] = torch.arange(S).flip(0)  # all pads on the left
    valid = order < T
    wide = 1e4 * torch.randn(ROWS, S, x.shape[-1])
    wide[:, :3].masked_fill_(~valid[:, :3, None], torch.nan)
    wide[valid] = x.flatten(0, 1)
    for dtype, bound in ((torch.float32, BOUND), (torch.bfloat16, 0.05)):
        alone = space[kind](layer).to(dtype)
        alone.load_state_dict(dict(module.named_parameters()))
        cache, out, end = alone.cache(S), [], 0
        for new in wide.to(dtype).split((65, 1, 64, S - 130), dim=1):
            end += new.shape[1]
            out.append(alone(new, cache=cache, valid=valid[:, :end]))
        got = torch.cat(out, dim=1)[valid].float()
        lost = (got - wanted.flatten(0, 1)).norm() / wanted.norm()
        assert lost < bound, dtype
        if group.state_heads:
            assert cache.kept[-1].dtype == torch.float32
        if kind == "ConvolvedAttention":  # by rows, and keys too
            continue
        state = group.state_heads * group.key_dim * group.value_dim
        inputs = group.conv_channels * (group.conv_kernel - 1)
        stored = sum(t.numel() for t in cache.kept)
        assert (cache.length, stored) == (S, ROWS * (state + inputs))


def longrope():
    """Phi-3 with 16 tokens trained, and rows of at most 15."""
    more = FLAGS["phi3"] | {"original_max_position_embeddings": 16}
    config = config_of("phi3", **more | {"sliding_window": None})
    return config, torch.arange(24) >= torch.tensor([[9], [12], [10]])


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@torch.no_grad()
def test_longrope_is_chosen_by_the_tokens_without_pads(chunks):
    config, valid = longrope()
    [(_, module, calls), *_] = seen(model_of(config), "phi3", chunks, valid)
    ours, space = attention_from_config(config), {}
    exec(file_of(config), space)
    alone = space["Attention"]()
    for made in (ours, alone):
        made.load_state_dict(module.state_dict())
    caches, end = (ours.cache(24), alone.cache(24)), 0
    for x, wanted in calls:
        start, end = end, end + x.shape[1]
        real, given = valid[:, start:end], valid[:, :end]
        got = ours(x, mask=padding_mask(given), cache=caches[0])
        same = alone(x, valid=given, cache=caches[1])
        for out in (got, same):
            assert relative_error(out[real], wanted[real]) < 1e-6


@torch.no_grad()
def test_longrope_runs_on_the_device_meta_with_pads():
    """Which has shapes, and no numbers to count the tokens by."""
    config, valid = longrope()
    space, valid = {}, valid.to("meta")
    exec(file_of(config), space)
    with torch.device("meta"):
        ours, alone = attention_from_config(config), space["Attention"]()
        x = torch.randn(3, 24, 60)
        options = {
            "mask": padding_mask(valid),
            "positions": token_positions(valid),
        }
        assert ours(x, cache=ours.cache(24), **options).shape == x.shape
        assert alone(x, cache=alone.cache(24), valid=valid).shape == x.shape
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
    x, alone = torch.randn(3, 24, 60), space["Attention"]()
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
    cache, valid = alone.cache(30), F.pad(valid, (0, 2), value=True)
    alone(x, valid=valid[:, :24], cache=cache)
    alone(x[:, :1], valid=valid[:, :25], cache=cache)
    with pytest.raises(ValueError, match="the text needs other angles"):
        alone(x[:, :1], valid=valid, cache=cache)


RECORD = ROOT / "sitekit/drawn/families.json"


def facts_of(family, error=None):
    config = config_of(family).to_dict()
    return {
        "lines": len(file_of(config).splitlines()),
        "parts": [*parts_of(records_of(config))],
        "mixers": sorted({mixer.kind for mixer in mixers_of(config).values()}),
        "without": without(config),
        "error": error and float(f"{error:.1e}"),
    }


def without(config):
    """The kinds of layers that the file leaves out."""
    there = {*records_of(config), *mixers_of(config)}
    kinds = enumerate(kinds_of(config))
    return sorted({kind for layer, kind in kinds if layer not in there})


CORES = {"its own": None, "sdpa": sdpa, "flash": flash}


@pytest.mark.parametrize("attend", CORES.values(), ids=CORES)
@pytest.mark.parametrize("family", sorted(QUICK - {"gemma4_text"}))
@torch.no_grad()
def test_a_layer_from_a_config_is_called_like_any_other(family, attend):
    """A mask, caches, positions and cores, as all layers take them."""
    config = config_of(family)
    kinds = {r.kind: layer for layer, r in records_of(config).items()}
    for layer in kinds.values():
        torch.manual_seed(0)
        alone = module_of(config.to_dict())["Attention"](layer).eval()
        for weight in alone.parameters():
            weight.normal_(std=0.2)
        ours = attention_from_config(config, layer, attend=attend).eval()
        ours.load_state_dict(alone.state_dict())
        x = torch.randn(ROWS, LENGTH, ours.r.d_model)
        valid = torch.ones(ROWS, LENGTH, dtype=torch.bool)
        valid[1, :5] = valid[2, :1] = False
        wanted = alone(x, valid=valid)
        cache = KVCache(LENGTH)
        at = token_positions(valid)
        got = [
            ours(
                x[:, start:end],
                mask=padding_mask(valid[:, :end]),
                cache=cache,
                positions=at[:, start:end],
            )
            for start, end in pairwise(accumulate(CHUNKS["ragged"], initial=0))
        ]
        error = relative_error(torch.cat(got, dim=1)[valid], wanted[valid])
        assert error < 1e-6, f"layer {layer}"
        for none in (x[:, :0], x[:0]):
            assert ours(none).shape == none.shape
        assert ours(x[:, :0], cache=cache).shape == (ROWS, 0, x.shape[2])
        assert cache.length == LENGTH


@pytest.mark.parametrize("family, more", CASES, ids=lambda x: "-".join(x))
@torch.no_grad()
def test_of_a_whole_text_a_file_gives_bit_for_bit_what_the_layer_gives(
    family, more
):
    config = config_of(family, **more).to_dict()
    made = module_of(config).get("Attention")  # V4 has mixers alone
    for layer, r in records_of(config).items():
        if r.shares is not None or (r.index_topk and not r.index_own):
            continue  # it reads what another layer has left
        torch.manual_seed(0)
        alone, x = made(layer).eval(), torch.randn(ROWS, LENGTH, r.d_model)
        for weight in alone.parameters():
            weight.normal_(std=0.2)
        ours = attention_from_config(config, layer).eval()
        ours.load_state_dict(alone.state_dict())
        assert torch.equal(alone(x), ours(x)), f"layer {layer}"


class Around(nn.Module):
    """A layer of transformers, with attention of ours in it."""

    def __init__(self, layer, ours):
        super().__init__()
        self.layer, self.self_attn, self.how = layer, ours, {}
        layer.self_attn.forward = self.attend
        given = inspect.signature(layer.forward).parameters.values()
        required = {p.name for p in given if p.default is p.empty}
        self.none = dict.fromkeys(required - {"hidden_states", "kwargs"})

    def attend(self, hidden_states, *_, **__):
        return self.self_attn(hidden_states, **self.how), None

    def forward(self, x, **how):
        self.how = how
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
    wanted = model.generate(
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
        own = ours.cache(27) if ours.shares is None else caches[ours.shares]
        assert isinstance(own, RingKVCache) is bool(r.window or r.chunk)
        caches.append(own)
    got = greedy(decoder, prompt, 16, valid=valid, caches=caches)
    assert len(set(wanted[0].tolist())) > 8
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("how", ["everything", "rings"])
@pytest.mark.parametrize("family", ["gemma3n_text", "gemma4_text"])
@torch.no_grad()
def test_layers_that_share_keys_are_called_with_one_cache(family, how):
    config = config_of(family)
    model = model_of(config)
    valid = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    valid[1, :5] = valid[2, :1] = False
    at = token_positions(valid)
    for chunks in CHUNKS.values():
        attentions = seen(model, family, chunks, valid)
        layers, caches = [], {}
        for layer, module, _ in attentions:
            attend = sdpa if layer % 2 else None
            ours = attention_from_config(config, layer, attend=attend)
            ours.load_state_dict(module.state_dict())
            layers.append(ours.eval())
            if ours.r.shares is None:
                ring = how == "rings" and ours.r.window
                caches[layer] = (
                    RingKVCache(ours.r.window) if ring else KVCache(LENGTH)
                )
        assert [r.shares for r in records_of(config).values()].count(None) == 4
        steps = pairwise(accumulate(chunks, initial=0))
        for step, (start, end) in enumerate(steps):
            real = valid[:, start:end]
            options = {"positions": at[:, start:end]}
            options["mask"] = padding_mask(valid[:, :end])
            for ours, (layer, _, calls) in zip(layers, attentions, strict=True):
                shares = ours.r.shares
                cache = caches[layer if shares is None else shares]
                x, wanted = calls[step]
                got = ours(x, cache=cache, **options)
                error = relative_error(got[real], wanted[real])
                assert error <= 1e-6, f"layer {layer}, {chunks}"
    reader = next(ours for ours in layers if ours.r.shares is not None)
    cache = caches[reader.r.shares]
    message = f"reads the keys of layer {reader.r.shares}: call that one"
    for given, T in ((None, 1), (KVCache(9), 1), (cache, 2)):
        with pytest.raises(ValueError, match=message):
            reader(x[:, :1].expand(-1, T, -1), cache=given)
    cache.reset()
    assert cache.handed is None


@pytest.mark.parametrize("attend", CORES.values(), ids=CORES)
@torch.no_grad()
def test_layers_without_an_indexer_read_what_an_earlier_one_chose(attend):
    types = ["full", "shared", "full", "shared"]
    config = config_of("glm_moe_dsa", indexer_types=types)
    model = model_of(config)
    valid = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    valid[1, :5] = valid[2, :1] = False
    attentions = seen(model, "glm_moe_dsa", CHUNKS["ragged"], valid)
    layers = []
    for layer, module, _ in attentions:
        ours = attention_from_config(config, layer, attend=attend).eval()
        ours.load_state_dict(module.state_dict())
        layers.append(ours)
    caches = [ours.cache(LENGTH) for ours in layers]
    steps = pairwise(accumulate(CHUNKS["ragged"], initial=0))
    for step, (start, end) in enumerate(steps):
        how = {"mask": padding_mask(valid[:, :end])}
        how["positions"] = token_positions(valid)[:, start:end]
        for ours, cache, (_, _, calls) in zip(
            layers, caches, attentions, strict=True
        ):
            x, wanted = calls[step]
            got, real = ours(x, cache=cache, **how), valid[:, start:end]
            assert relative_error(got[real], wanted[real]) <= 1e-6
            how["chosen"] = getattr(ours, "chosen", None)
    with pytest.raises(ValueError, match="has no indexer: pass chosen="):
        layers[1](x)


if __name__ == "__main__":
    known = {name: facts_of(name, compare(name, {})) for name in FAMILIES}
    lines = (f'"{name}": {json.dumps(row)}' for name, row in known.items())
    text = ",\n".join(lines)
    RECORD.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
