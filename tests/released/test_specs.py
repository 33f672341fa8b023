"""The file of models: what is in it, and how one is found."""

import json
import re
from copy import deepcopy
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from attnref.numbers.shapes import (
    Chunked,
    Compressed,
    Full,
    Mla,
    Model,
    Recurrent,
    Shipped,
    Sliding,
    Store,
)
from attnref.released import specs
from attnref.released.record import read_config
from attnref.released.specs import configs, date_key, models
from attnref.released.weights import matrices_of

FILE = json.loads(Path(specs.__file__).with_name("specs.json").read_text())
PLACES = {**specs.PLACES, **FILE["places"]}


def test_the_models_are_sorted_by_date_and_cannot_be_changed():
    dates = [model.date for model in models().values()]
    assert dates == sorted(dates, key=date_key)
    assert {*models()} == {m["id"] for m in FILE["models"]}
    assert len(models()) == len(FILE["models"])
    ids = [*models()]
    assert ids.index("glm-5") < ids.index("glm-5.3")  # of some month of 2026
    assert ids.index("kimi-k2") < ids.index("kimi-k2.6") > ids.index("glm-5")
    assert len(models()) >= 100
    with pytest.raises(TypeError):
        models()["gpt2"] = None
    for model in models().values():
        for part in filter(None, (model, *model.groups, model.shipped)):
            with pytest.raises(FrozenInstanceError):
                part.note = "changed"
            with pytest.raises(TypeError, match="1 positional argument but 2"):
                type(part)(1)  # of numbers alone, who knows which is which


def test_each_row_has_a_source_that_can_be_opened():
    for model in models().values():
        assert model.sources, model.id
        beside = [s for s in (model.context, model.params_in) if s]
        shipped = model.shipped.sources if model.shipped else ()
        for source in (*model.sources, *beside, *shipped):
            assert source.url.startswith("https://"), model.id
            assert "{" not in source.url, model.id
            assert source.label


def test_places_that_many_rows_name_are_written_once():
    labels = {}
    for text in (
        "transformers:gpt2",
        "arXiv:2405.04434",
        "Hugging Face:a/b",
        "Hugging Face card:a/b",
        "GitHub:org/repository/blob/main/config.json",
    ):
        source = specs._source(text)
        labels[source.label] = source.url
    assert labels == {
        "transformers": "https://github.com/huggingface/transformers/blob/"
        "v5.24.0/src/transformers/models/gpt2/configuration_gpt2.py",
        "arXiv:2405.04434": "https://arxiv.org/abs/2405.04434",
        "Hugging Face": "https://huggingface.co/a/b/blob/main/config.json",
        "Hugging Face card": "https://huggingface.co/a/b",
        "org/repository": "https://github.com/org/repository/blob/main/"
        "config.json",
    }


def places_of(row):
    """The texts of a row that name places."""
    yield from row.get("sources", ())
    yield from row.get("shipped", {}).get("sources", ())
    for name in ("config_in", "context", "params_in"):
        yield from [row[name]] if name in row else []


def test_every_place_and_every_kind_is_used():
    texts = [text for row in FILE["models"] for text in places_of(row)]
    assert {text.partition(":")[0] for text in texts} == {*PLACES}
    assert {*FILE["makers"]} <= {*PLACES}
    kinds = {type(g) for m in models().values() for g in m.groups}
    assert kinds == {*specs.KINDS.values()}


READ = {"kind", "config", "config_in", "groups", "sources", "shipped"}
READ |= {"context", "params_in"}  # these name places
STATE = "state_heads", "key_dim", "value_dim"  # 0: a convolution alone


def wrong(record, kind):
    """Fields of a record that are of another type, or no size."""
    types = {f.name: f.type for f in fields(kind)}
    for name in record.keys() - READ:
        value, type_of = record[name], types[name]
        unknown = value is None and type_of == int | None
        exact = type_of if type_of in (str, bool) else int
        least = 0 if name in STATE else 1
        size = type(value) is not int or value >= least
        if not unknown and not (type(value) is exact and size):
            yield f"{name}={value!r}"


def test_each_fact_is_of_its_type_and_each_size_is_one():
    for row in FILE["models"]:
        parts = [(row, Model), (row.get("shipped", {}), Shipped)]
        parts += [(g, specs.KINDS[g["kind"]]) for g in row.get("groups", ())]
        assert [w for part in parts for w in wrong(*part)] == [], row["id"]


@pytest.mark.parametrize("row", FILE["models"], ids=lambda row: row["id"])
def test_a_row_says_what_can_be(row):
    assert re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", row["id"])
    assert re.fullmatch(r"20\d\d(-(0[1-9]|1[0-2]))?", row["date"])
    for text in places_of(row):
        label, _, rest = text.partition(":")
        assert ("{" in PLACES[label]) == bool(rest), text
    model = models()[row["id"]]  # all that it needs is there
    assert model.groups and model.sources
    for group in model.groups:
        if isinstance(group, Full):
            assert (group.q_heads or 0) % group.kv_heads == 0
        if isinstance(group, Compressed):
            assert group.ratio or not group.index_dim  # entries to index
    if model.shipped:  # for caches with one head, shared by all
        assert {s.heads for g in model.groups for s in g.stores} == {1}
    assert (model.params is None) == (model.params_in is None)
    names = [*row.get("sources", ()), *filter(None, [row.get("config_in")])]
    read_in = {text.partition(":")[0] for text in names}
    sure = len(read_in) > 1 or bool(read_in & {*FILE["makers"]})
    assert model.confidence in (("high", "medium") if sure else ("medium",))


def test_what_makers_round_is_round():
    """Either it is added up from sizes, or published: 8.2B, say."""
    for row in FILE["models"]:
        label = row.get("params_in", "").partition(":")[0]
        if label not in ("", "gpt-fast", "transformers"):
            assert row["params"] % 10**8 == 0, row["id"]


def test_a_model_is_found_by_its_id_or_name_however_it_is_written():
    for model in models().values():
        upper = model.name.replace(" ", "-").upper()
        for name in (model.id, model.id.upper(), model.name, upper):
            assert specs.find_model(name) is model, name
            if "/" not in name:
                assert specs.find_model(f"some-org/{name}") is model
    for name in ("", "/", "org/", "gpt2/org", "-", "元", 5):
        with pytest.raises(ValueError, match=f"there is no model {name!r}"):
            specs.find_model(name)


def test_a_name_of_two_models_is_refused(monkeypatch):
    twice = deepcopy(FILE)
    twice["models"] = deepcopy(FILE["models"][:2])
    twice["models"][1]["name"] = twice["models"][0]["name"].upper()
    both = specs._Models(twice["models"])
    monkeypatch.setattr(specs, "_specs", lambda: twice)
    monkeypatch.setattr(specs, "models", lambda: both)
    first, second = both.values()
    with pytest.raises(
        ValueError, match=f"{first.id}, {second.id}|{second.id}, {first.id}"
    ):
        specs.find_model(first.name.lower())
    assert specs.find_model(second.id) is second


def test_an_entry_belongs_to_tokens_in_the_window_or_to_several():
    assert Store("kv", 1, (8,)).entries(9) == 9
    assert Store("kv", 1, (8,), 4).entries(3) == 3
    assert Store("kv", 1, (8,), 4).entries(9) == 4
    assert Store("kv", 1, (8,), None, 4).entries(3) == 0
    assert Store("kv", 1, (8,), None, 4).entries(9) == 2
    assert Store("state", 1, (8,)).entries(9) == 1


def test_what_each_kind_of_layer_stores():
    heads = {"q_heads": 6, "kv_heads": 3, "head_dim": 10, "v_head_dim": 7}
    full = Full(layers=2, **heads)
    assert full.stores == (Store("kv", 3, (10, 7)),)
    window = Sliding(layers=2, sliding_window=5, index_dim=4, **heads)
    assert window.stores == (
        Store("kv", 3, (10, 7), 5),
        Store("index", 1, (4,), 5),
    )
    chunk = Chunked(layers=2, chunk=5, **heads)
    assert chunk.stores == (Store("kv", 3, (10, 7), 5),)
    mla = Mla(layers=2, q_heads=6, kv_lora_rank=12, qk_rope_head_dim=4)
    assert mla.stores == (Store("kv", 1, (12, 4)),)
    shared = Compressed(
        layers=1, q_heads=6, dim=9, sliding_window=5, ratio=4, index_dim=3
    )
    assert shared.stores == (
        Store("kv", 1, (9,), 5),
        Store("kv", 1, (9,), None, 4),
        Store("index", 1, (3,), None, 4),
    )
    state = Recurrent(
        layers=1,
        state_heads=6,
        key_dim=5,
        value_dim=7,
        conv_channels=11,
        conv_kernel=4,
    )
    assert state.stores == (
        Store("state", 6, (35,), bits=32),
        Store("conv", 11, (3,), bits=16),
    )


def test_the_heads_say_which_variant_it_is():
    known = {"gpt2": "MHA", "falcon-7b": "MQA", "llama-3.1-8b": "GQA"}
    for name, variant in known.items():
        assert models()[name].groups[0].variant == variant
    assert models()["qwen3-next-80b"].layers == 48
    unknown = Full(layers=1, q_heads=None, kv_heads=2, head_dim=5, v_head_dim=5)
    assert unknown.variant == "GQA"


def test_kimi_k3_has_the_parameters_that_its_report_gives():
    """2.78T, of which a token meets 104.2B: 16 of 896 experts, and no table
    of embeddings."""
    matrices = matrices_of(read_config(configs()["kimi-k3"]))
    total = sum(m.params for m in matrices)
    experts = sum(m.params for m in matrices if ".experts." in m.name)
    (rows,) = (m.params for m in matrices if "embed_tokens" in m.name)
    assert round(total / 1e12, 2) == 2.78
    active = total - experts + experts * 16 // 896 - rows
    assert round(active / 1e9, 1) == 104.2
