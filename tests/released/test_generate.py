"""The file that is written for a model."""

import copy
import io
import subprocess
import sys
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch

from attnref import ConfiguredAttention
from attnref.released.generate import rendered
from attnref.released.record import AttentionRecord
from sitekit.released.released import released
from sitekit.released.told import frequencies

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
SCALED = {"rope_kind": "linear", "rope_factor": 2.0}
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
    "scaling": (LAYER, SCALED),
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
    together = layers_of({0: first, 1: second})
    apart = layers_of({0: first}) + layers_of({0: second})
    for one, other in zip(together, apart, strict=True):
        weights = {
            n: torch.randn(w.shape) for n, w in other.state_dict().items()
        }
        one.load_state_dict(weights)
        other.load_state_dict(weights)
    valid = torch.ones(3, 24, dtype=torch.bool)
    valid[1, :5] = valid[2, :1] = False
    both = []
    for layers in (together, apart):
        torch.manual_seed(0)
        caches = [layer.cache(24) for layer in layers]
        if second.shares is not None:
            caches[1] = caches[0]
        out = []
        for start, end in pairwise(accumulate((9, 5, 1, 9), initial=0)):
            for layer, cache in zip(layers, caches, strict=True):
                how = {"cache": cache, "valid": valid[:, :end]}
                if second.index_topk and layer is layers[1]:
                    how["chosen"] = layers[0].chosen
                out.append(layer(torch.randn(3, end - start, 14), **how))
        both.append(torch.cat([y.flatten() for y in out]))
    assert torch.equal(*both)
    assert both[0].abs().mean() > 0.1


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
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", tmp_path],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "All checks passed!\n"


KINDS = {
    (r.rope_kind, r.rope_truncate, r.rope_backwards): r
    for model in released().values()
    for r in model.records.values()
    if r.rope_theta and r.rope_kind != "default"
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_curves_of_a_page_are_those_of_the_file(kind):
    r = KINDS[kind]
    space = {}
    exec(rendered({0: replace(r, shares=None)}), space)
    layer = space["Attention"].__new__(space["Attention"])
    more = {"longer": False} if r.rope_kind == "longrope" else {}
    got = layer.angles(torch.ones(1), **more).flatten().double()
    sign = -1 if r.rope_backwards else 1
    wanted = torch.tensor(frequencies(r), dtype=torch.float64) * sign
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=0)


@torch.no_grad()
def test_a_layer_is_copied_stored_compiled_and_exported():
    """Its class is made from the text of its record."""
    layer = ConfiguredAttention(replace(LAYER, family="llama", softcap=5.0))
    x = torch.randn(3, 9, LAYER.d_model)
    stored = io.BytesIO()
    torch.save(layer.eval(), stored)
    stored.seek(0)
    for other in (
        copy.deepcopy(layer),
        torch.load(stored, weights_only=False),
        torch.compile(layer, backend="eager", fullgraph=True),
        torch.export.export(layer, (x,)).module(),
    ):
        assert torch.equal(other(x), layer(x))
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


ALIKE = [{}, {"window": 5}, {"chunk": 3}, LATENT | {"norm": None}]
NAMES = "windows", "two windows", "a window or chunks"


@pytest.mark.parametrize(
    "records",
    [
        *({0: replace(LAYER, **change)} for change in ALIKE),
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
            want = layer(x, valid=torch.ones(3, T, dtype=torch.bool))
            for cache in None, layer.cache(13):
                torch.testing.assert_close(layer(x, cache=cache), want)
