"""The file that is written for a model."""

import copy
import io
import re
import subprocess
import sys
from dataclasses import MISSING, fields, replace
from functools import cache
from inspect import getsource
from itertools import accumulate, pairwise

import pytest
import torch
from jinja2 import UndefinedError
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnref import ConfiguredAttention
from attnref.released import configured
from attnref.released.difference import inputs_of
from attnref.released.generate import (
    file_of,
    mixer_text,
    rendered,
    sources,
)
from attnref.released.mixers import RECORDS
from attnref.released.record import (
    AttentionRecord,
    families,
    read_by,
    read_config,
)
from sitekit.released.released import released
from sitekit.released.told import frequencies
from tests.kit.attention import Made
from tests.kit.compare import relative_error
from tests.kit.families import FAMILIES, config_of

LAYER = AttentionRecord(
    family="",
    kind="",
    d_model=14,
    n_heads=6,
    n_kv_heads=3,
    head_dim=10,
    v_head_dim=10,
    norm="RMS of a head",
    rope_theta=1e4,
    rope_width=10,
    scale=0.3,
)
NARROW = {"head_dim": 8, "v_head_dim": 8, "rope_width": 8}
LINEAR = {"rope_kind": "linear", "rope_factor": 2.0}
YARN = {"rope_kind": "yarn", "rope_factor": 4.0, "rope_length": 8}
LATENT = {"kv_rank": 12, "q_rank": 13, "rope_dim": 10, "head_dim": 16}
INDEX = {"index_topk": 5, "index_heads": 3, "index_dim": 14}
INDEXED = replace(LAYER, **LATENT, **INDEX, norm=None, index_own=True)
# In what layers of one model may differ.
DIFFERENT = {
    "theta": (LAYER, {"rope_theta": 1e6}),
    "positions": (LAYER, {"rope_theta": None}),
    "positions and norms": (LAYER, {"rope_theta": None, "norm": None}),
    "a late norm": (replace(LAYER, norm_late=True), {"norm": None}),
    "scaling": (LAYER, LINEAR),
    "scaling and positions": (replace(LAYER, **YARN), {"rope_theta": None}),
    "a ramp": (LAYER, YARN | {"rope_low": 1.5, "rope_high": 2.5}),
    "size of RoPE": (LAYER, {"rope_size": 1.25}),
    "a part and the whole": (LAYER, {"rope_width": 4}),
    "two parts": (replace(LAYER, rope_width=6), {"rope_width": 4}),
    "a part and no positions": (
        replace(LAYER, rope_width=6),
        {"rope_theta": None, "rope_width": 0},
    ),
    "key/value heads": (LAYER, {"n_kv_heads": 2}),
    "widths": (LAYER, NARROW),
    "width of values": (LAYER, {"v_head_dim": 8}),
    "biases": (LAYER, {"qkv_bias": True, "o_bias": True}),
    "norms": (LAYER, {"norm": None}),
    "k = v": (LAYER, {"k_is_v": True}),
    "windows": (LAYER, {"window": 5}),
    "two windows": (replace(LAYER, window=3), {"window": 5}),
    "chunks": (LAYER, {"chunk": 5}),
    "a window or chunks": (
        replace(LAYER, window=3),
        {"chunk": 5, "window": None},
    ),
    "sinks": (LAYER, {"with_sinks": True}),
    "sinks and windows": (LAYER, {"with_sinks": True, "window": 5}),
    "growth": (LAYER, {"q_growth": 0.5, "q_growth_every": 3}),
    "two growths": (replace(LAYER, q_growth=0.5), {"q_growth": 0.25}),
    "power": (LAYER, {"q_power": 0.5, "q_growth_every": 3}),
    "scale": (LAYER, {"scale": 0.2}),
    "keys of the first": (replace(LAYER, is_shared=True), {"shares": 0}),
    "the indexer": (INDEXED, {"index_own": False}),
}


def layers_of(records):
    space = {}
    exec(compile(rendered(records), "a file", "exec"), space)
    return [space["Attention"](layer) for layer in records]


@pytest.mark.parametrize("name", DIFFERENT)
@torch.no_grad()
def test_a_file_of_two_layers_does_what_the_two_files_do(name):
    first, change = DIFFERENT[name]
    if "shares" in change:
        change = change | {"is_shared": False}
    second = replace(first, **change)
    joint_layers = layers_of({0: first, 1: second})
    single_layers = layers_of({0: first}) + layers_of({0: second})
    for joint, single in zip(joint_layers, single_layers, strict=True):
        weights = {
            n: torch.randn(w.shape) for n, w in single.state_dict().items()
        }
        joint.load_state_dict(weights)
        single.load_state_dict(weights)
    valid = torch.ones(3, 24, dtype=torch.bool)
    valid[1, :5] = valid[2, :1] = False
    outputs = []
    for layers in (joint_layers, single_layers):
        torch.manual_seed(0)
        caches = [layer.cache(24) for layer in layers]
        if second.shares is not None:
            caches[1] = caches[0]
        out = []
        for start, end in pairwise(accumulate((9, 5, 1, 9), initial=0)):
            for layer, cache in zip(layers, caches, strict=True):
                options = {"cache": cache, "valid": valid[:, :end]}
                if second.index_topk and layer is layers[1]:
                    options["chosen"] = layers[0].chosen
                out.append(layer(torch.randn(3, end - start, 14), **options))
        outputs.append(torch.cat([y.flatten() for y in out]))
    assert torch.equal(*outputs)
    assert outputs[0].abs().mean() > 0.1


@pytest.mark.parametrize(
    "change",
    [
        {"norm": "LayerNorm"},
        {"norm_late": True},
        {"rope_layout": "interleaved"},
        {"gate": "per head"},
        {"softcap": 5.0},
        {"clip": 2.0},
    ],
    ids=str,
)
def test_layers_that_one_file_cannot_tell_apart_are_refused(change):
    with pytest.raises(
        ValueError, match=f"differ in {next(iter(change))}, which is"
    ):
        rendered({0: LAYER, 1: replace(LAYER, **change)})


def test_ruff_finds_nothing_in_a_file_and_no_line_is_long(tmp_path):
    for model in released().values():
        (tmp_path / model.file).write_text(model.text, encoding="utf-8")
        assert max(map(len, model.text.splitlines())) < 80, model.id
    process = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", tmp_path],
        capture_output=True,
        text=True,
    )
    assert process.stdout == "All checks passed!\n"


def test_a_long_table_of_layers_has_lines_that_fit():
    """Mistral Large 4 with latents for four layers each, which is no cycle."""
    fields = config_of("mistral_large4_text").to_dict()
    fields |= {"layer_types": None, "indexer_types": None}
    fields |= {"num_hidden_layers": 72, "no_rope_layers": 72 * [1]}
    owners = [layer - layer % 4 for layer in range(72)]
    text = file_of(fields | {"kv_source_layers": owners})
    assert max(map(len, text.splitlines())) < 80
    space = {}
    exec(text, space)
    own = [None if n == owner else owner for n, owner in enumerate(owners)]
    assert space["SHARES"] == own


KINDS = {
    (r.rope_kind, r.rope_truncate, r.rope_backwards): r
    for model in released().values()
    for r in model.records.values()
    if r.rope_theta and r.rope_kind != "default"
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_curves_of_a_page_are_those_of_the_file(kind):
    """Of float64, rounded once: powers of float32 depend on the processor."""
    r = KINDS[kind]
    space = {}
    exec(rendered({0: replace(r, shares=None)}), space)
    layer = space["Attention"].__new__(space["Attention"])
    options = {"longer": False} if r.rope_kind == "longrope" else {}
    actual = layer.angles(torch.ones(1), **options).flatten()
    sign = -1 if r.rope_backwards else 1
    assert torch.equal(actual, sign * torch.tensor(frequencies(r)))


@torch.no_grad()
def test_a_layer_is_copied_stored_compiled_and_exported():
    """Its class is made from the text of its record."""
    layer = ConfiguredAttention(replace(LAYER, family="llama", softcap=5.0))
    x = torch.randn(3, 9, LAYER.d_model)
    buffer = io.BytesIO()
    torch.save(layer.eval(), buffer)
    buffer.seek(0)
    for copied_layer in (
        copy.deepcopy(layer),
        torch.load(buffer, weights_only=False),
        torch.compile(layer, backend="eager", fullgraph=True),
        torch.export.export(layer, (x,)).module(),
    ):
        assert torch.equal(copied_layer(x), layer(x))
    assert isinstance(copy.copy(layer), ConfiguredAttention)


@pytest.mark.parametrize(
    "change",
    [{}, {"window": 5}, {"chunk": 3}, {"softcap": 20.0}, {"alibi": True}],
)
def test_a_call_without_tokens_after_others_gives_none(change):
    (layer,) = layers_of({0: replace(LAYER, **change)})
    cache, x = layer.cache(9), torch.randn(3, 7, LAYER.d_model)
    with torch.no_grad():
        layer(x, cache=cache)
        assert layer(x[:, :0], cache=cache).shape == (3, 0, LAYER.d_model)


CHANGES = [{}, {"window": 5}, {"chunk": 3}, LATENT | {"norm": None}]
NAMES = "windows", "two windows", "a window or chunks"


@pytest.mark.parametrize(
    "records",
    [
        *({0: replace(LAYER, **change)} for change in CHANGES),
        *(
            {0: DIFFERENT[n][0], 1: replace(DIFFERENT[n][0], **DIFFERENT[n][1])}
            for n in NAMES
        ),
    ],
    ids=["", "window", "chunk", "latent", *NAMES],
)
@torch.no_grad()
def test_the_mask_that_a_prompt_without_pads_is_spared_hides_nothing(records):
    for layer in layers_of(records):
        for T in 1, 2, 3, 4, 5, 6, 7, 11:
            x = torch.randn(3, T, LAYER.d_model)
            expected = layer(x, valid=torch.ones(3, T, dtype=torch.bool))
            for cache in None, layer.cache(13):
                torch.testing.assert_close(layer(x, cache=cache), expected)


# What messages say.
NAMES_OF_A_RECORD = {"family", "kind"}


def changed_values(value, values):
    """Other values of a field: of released models, and one of its type."""
    match value:
        case bool():
            return [not value]
        case int() | float():
            return [*values, 2 * value + 1]
        case tuple():
            return [*values, (1.5,) * 6]
        case None:
            return [*values, 3]
    return [*values, "silu"]


def has_an_effect(write, record, name, values):
    """Whether some value of a field changes what is written."""
    text = write(record)
    for value in changed_values(getattr(record, name), values):
        try:
            if write(replace(record, **{name: value})) != text:
                return True
        except (TypeError, ValueError, ArithmeticError, UndefinedError):
            continue
    return False


def fields_without_effect(records, write, names):
    """The fields that change what is written for none of these records."""
    values = {n: {getattr(r, n) for r in records} - {None} for n in names}
    return {
        name
        for name in names
        if not any(has_an_effect(write, r, name, values[name]) for r in records)
    }


def test_each_field_of_a_record_changes_the_file_and_the_layer():
    """What the table fills and no template reads would be dropped silently."""
    configs = [model.reading for model in released().values()]
    records = {r: True for c in configs for r in c.records.values()}
    records = [*records, replace(LAYER, gate="per head")]
    names = {field.name for field in fields(AttentionRecord)}
    names -= NAMES_OF_A_RECORD
    assert not fields_without_effect(records, lambda r: rendered({0: r}), names)
    names -= {*re.findall(r"\b(?:record|r)\.(\w+)", getsource(configured))}
    assert not fields_without_effect(
        records, lambda r: rendered({0: r}, inside=True), names
    )


@cache
def mixers():
    """The records of released models and of tiny ones, by kind."""
    records = {kind: {} for kind in RECORDS}
    for config in (
        *(model.config for model in released().values()),
        *(config_of(name).to_dict() for name in FAMILIES),
        config_of("inkling_text", log_scaling_n_floor=5).to_dict(),
    ):
        for record in read_config(config).mixers.values():
            records[record.kind][record] = True
    return {kind: [*found] for kind, found in records.items()}


@pytest.mark.parametrize("kind", RECORDS)
def test_each_field_of_a_mixer_changes_its_part_of_the_file(kind):
    names = {field.name for field in fields(RECORDS[kind])} - {"family"}
    assert not fields_without_effect(
        mixers()[kind], lambda r: mixer_text({0: r}), names
    )


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind, cls in RECORDS.items()
        if "kernel" in {field.name for field in fields(cls)}
    ],
)
@torch.no_grad()
def test_a_convolution_may_have_a_kernel_of_one(kind):
    *_, record = mixers()[kind]
    space = {}
    text = mixer_text({0: replace(record, kernel=1)})
    exec(rendered({}) + text, space)
    layer, x = space[kind](0), torch.randn(3, 7, record.d_model)
    cache = layer.cache(7)
    steps = [
        layer(part, cache=cache, **inputs_of(layer, part))
        for part in x.split((4, 1, 2), dim=1)
    ]
    whole = layer(x, **inputs_of(layer, x))
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)


def test_there_is_a_template_for_each_record():
    assert sources().keys() == {"attention", "load", *RECORDS}


# Entries that refuse what no template has, or only read what the state says.
REFUSE = {"act", "given", "unscaled", "same", "mode", "unused", "widths"}


@pytest.mark.parametrize(
    "name", [name for name, row in families().items() if row.mixer]
)
def test_the_table_fills_each_field_of_a_mixer_and_nothing_else(name):
    row = families()[name]
    (kind,) = RECORDS.keys() & re.findall(r"\w+", row.mixer["kind"])
    names = {field.name: field for field in fields(RECORDS[kind])}
    required = {n for n, field in names.items() if field.default is MISSING}
    assert required <= {"family", *row.state, *row.mixer}
    readable = names.keys() | read_by(row.mixer) | REFUSE | {"kind"}
    assert row.mixer.keys() <= readable


def test_a_softmax_of_float64_is_one():
    """A sum in float32 depends on how many lanes a processor adds at once."""
    layer = layers_of({0: replace(LAYER, softcap=3.0)})[0].double()
    x = torch.randn(3, 29, LAYER.d_model, dtype=torch.float64)
    full = layer(x)
    for T in (1, 2, 7, 17):
        assert relative_error(layer(x[:, :T]), full[:, :T]) <= 1e-14


SHARING = {
    "GQA": LAYER,
    "with a window": replace(LAYER, window=19),
    "MLA": replace(LAYER, **LATENT, norm=None),
    "with an indexer": INDEXED,
}


@pytest.mark.parametrize("name", SHARING)
@torch.no_grad()
def test_one_token_copies_no_keys_for_the_heads_that_share_them(name):
    """Without a kernel for them, as on a GPU with a mask, `enable_gqa` does."""
    layer = layers_of({0: SHARING[name]})[0]
    x = torch.randn(3, 29, LAYER.d_model)
    full, cache = layer(x), layer.cache(max_len=29)
    layer(x[:, :-1], cache=cache)
    with sdpa_kernel(SDPBackend.MATH), Made(*cache.kept) as memory:
        last = layer(x[:, -1:], cache=cache)
    *_, S, D = cache.kept[0].shape
    assert memory.largest < 3 * LAYER.n_heads * S * D * x.itemsize
    torch.testing.assert_close(last, full[:, -1:])
