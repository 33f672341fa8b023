"""What engines allocate, against caches of transformers and by hand."""

import json
from dataclasses import fields

import pytest
import torch

from attnref.numbers.engines import ENGINES, allocated
from attnref.numbers.kv_memory import kv_bytes
from attnref.numbers.shapes import Full
from attnref.released.from_config import model_from_config
from attnref.released.record import read_config
from attnref.released.specs import find_model
from tests.kit.families import config_of, model_of


@pytest.mark.parametrize(
    "family", ["llama", "gemma3_text", "qwen3_5_text", "bamba", "minicpm3"]
)
def test_as_transformers_is_what_its_cache_holds(family):
    """In bfloat16, of more tokens than a window; states are in float32."""
    config = config_of(family)
    shape = json.loads(json.dumps(config.to_dict()))
    model = model_from_config(read_config(shape))
    theirs, tokens = model_of(config).to(torch.bfloat16), 13
    past = theirs(torch.randint(3, 41, (3, tokens)), use_cache=True).cache
    size = 0
    for layer in past.layers:
        kept = [getattr(layer, n, None) for n in ("keys", "values")]
        kept += getattr(layer, "conv_states", {}).values()
        size += sum(2 * t.numel() for t in kept if t is not None)
        states = getattr(layer, "recurrent_states", {}).values()
        size += sum(4 * t.numel() for t in states if t is not None)
    served, block = allocated(model, "transformers")
    assert kv_bytes(served, tokens, batch=3, block=block) == size


def test_windows_differ_by_engine():
    """Of 1,024 tokens, in 52 layers of Gemma 3 27B."""
    model = find_model("gemma-3-27b")
    entries = {"vllm": 1040, "sglang": 26_214, "llama.cpp": 1536}
    entries |= {"transformers": 1023}
    assert {*entries} == {*ENGINES}
    for engine, count in entries.items():
        served, block = allocated(model, engine)
        whole = kv_bytes(served, 32_768, block=block)
        assert whole == 8192 * (10 * 32_768 + 52 * count), engine
    served, _ = allocated(model, "llama.cpp")
    short = served.groups[0].stores[0]
    assert short.entries(300, 256) == 512, "no more than the text has"


def test_a_block_of_vllm_holds_a_state():
    """Qwen3.5-27B: 16 groups of three layers with states and one without."""
    served, block = allocated(find_model("qwen3.5-27b"), "vllm")
    page = block * 4096
    assert kv_bytes(served, 1, block=block) == 64 * page
    assert kv_bytes(served, block + 1, block=block) == (64 + 16) * page
    _, narrow = allocated(find_model("qwen3.5-27b"), "vllm", dtype="fp8")
    assert narrow == 2 * block


def test_draft_layers_store_all_tokens():
    """A layer more of the kind that does, whatever the engine."""
    model = find_model("gpt-oss-20b")
    for engine in (None, *ENGINES):
        alone, block = allocated(model, engine)
        served, same = allocated(model, engine, drafts=2)
        assert same == block
        more = kv_bytes(served, 4096) - kv_bytes(alone, 4096)
        assert more == 2 * 4096 * 2 * 8 * (64 + 64)
    assert allocated(model, None).model == model
    with pytest.raises(ValueError, match="no engine 'tgi'; there are vllm"):
        allocated(model, "tgi")


def test_a_kind_of_layer_keeps_its_sizes():
    """Only the window of a layer is changed, none of its sizes."""
    model = find_model("mimo-v2-flash")
    names = {f.name for f in fields(Full)}
    for engine in ENGINES:
        served, _ = allocated(model, engine, ranks=4)
        for old, new in zip(model.groups, served.groups, strict=True):
            assert all(getattr(old, n) == getattr(new, n) for n in names)
