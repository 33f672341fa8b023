"""The file of models: what is in it, and how it says that it is wrong."""

import json
from copy import deepcopy
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnref.numbers.shapes import Compressed, Full, Mla, Recurrent, Store
from attnref.released import specs
from attnref.released.specs import models, when

TEXT = Path(specs.__file__).with_name("specs.json").read_text(encoding="utf-8")
FILE = json.loads(TEXT)


def changed(where, change):
    """The file with a change in the record of one model."""
    file = deepcopy(FILE)
    (record,) = (m for m in file["models"] if m["id"] == where)
    change(record)
    return json.dumps(file)


def test_the_models_are_sorted_by_date_and_cannot_be_changed():
    dates = [model.date for model in models().values()]
    assert dates == sorted(dates, key=when)
    assert {*models()} == {m["id"] for m in FILE["models"]}
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
    places = {
        "transformers:gpt2": "https://github.com/huggingface/transformers/blob/"
        "v5.24.0/src/transformers/models/gpt2/configuration_gpt2.py",
        "arXiv:2405.04434": "https://arxiv.org/abs/2405.04434",
        "Hugging Face:a/b": "https://huggingface.co/a/b/blob/main/config.json",
        "Hugging Face card:a/b": "https://huggingface.co/a/b",
    }
    text = changed("palm-540b", lambda m: m.update(sources=[*places]))
    sources = specs.read(text)["palm-540b"].sources
    assert [source.url for source in sources] == [*places.values()]
    assert [source.label for source in sources] == [
        "transformers",
        "arXiv:2405.04434",
        "Hugging Face",
        "Hugging Face card",
    ]


def test_what_makers_round_is_round():
    """Either it is added up from sizes, or published: 8.2B, say."""
    for row in FILE["models"]:
        label = row.get("params_in", "").partition(":")[0]
        if label not in ("", "gpt-fast", "transformers"):
            assert row["params"] % 10**8 == 0, row["id"]


def test_every_place_and_every_kind_is_used():
    named = {
        text.partition(":")[0]
        for model in FILE["models"]
        for text in (
            *model.get("sources", []),
            *([model["config_in"]] if "config" in model else []),
            *model.get("shipped", {}).get("sources", []),
            *(model[f] for f in ("context", "params_in") if f in model),
        )
    }
    assert named == {*FILE["places"], *specs.PLACES}
    kinds = {type(g) for m in models().values() for g in m.groups}
    assert kinds == {*specs.KINDS.values()}


@pytest.mark.parametrize(
    ("where", "change", "message"),
    [
        (
            "minimax-m3",
            lambda m: m["groups"][0].update(kv_head=8),
            r"minimax-m3: groups\[0\]: kv_head is not a field of Full; "
            r"did you mean kv_heads\?",
        ),
        (
            "minimax-m3",
            lambda m: m["groups"][0].pop("kv_heads"),
            r"minimax-m3: groups\[0\]: kv_heads is missing",
        ),
        (
            "inkling",
            lambda m: m["groups"][1].update(layers="12"),
            r"inkling: groups\[1\]: layers is '12'",
        ),
        (
            "palm-540b",
            lambda m: m["groups"][0].update(layers=True),
            r"palm-540b: groups\[0\]: layers is True",
        ),
        (
            "palm-540b",
            lambda m: m["groups"][0].update(head_dim=64.0),
            r"palm-540b: groups\[0\]: head_dim is 64.0",
        ),
        (
            "palm-540b",
            lambda m: m["groups"][0].update(head_dim=0),
            r"palm-540b: groups\[0\]: head_dim=0 must be at least 1",
        ),
        (
            "palm-540b",
            lambda m: m["groups"][0].update(head_dim=None),
            r"palm-540b: groups\[0\]: head_dim is None",
        ),
        (
            "minimax-m3",
            lambda m: m["groups"][0].update(kv_heads=7),
            r"groups\[0\]: kv_heads=7 does not divide q_heads=64",
        ),
        (
            "kimi-k3",
            lambda m: m["groups"][0].update(kind="lma"),
            r"kimi-k3: groups\[0\]: kind is 'lma', not one of full, ",
        ),
        (
            "palm-540b",
            lambda m: m.update(groups=[]),
            "palm-540b: groups is missing",
        ),
        (
            "palm-540b",
            lambda m: m.update(groups={"kind": "full"}),
            "palm-540b: groups is missing",
        ),
        (
            "palm-540b",
            lambda m: m.update(groups=[7]),
            r"palm-540b: groups\[0\]: 7 is not a record",
        ),
        (
            "palm-540b",
            lambda m: m.update(sources=[]),
            "palm-540b: sources is missing",
        ),
        (
            "palm-540b",
            lambda m: m.update(sources=["a blog"]),
            "palm-540b: sources: 'a blog' names no known place",
        ),
        (
            "palm-540b",
            lambda m: m.update(sources=[7]),
            "palm-540b: sources: 7 names no known place",
        ),
        (
            "palm-540b",
            lambda m: m["groups"][0].update(kind=[]),
            r"palm-540b: groups\[0\]: kind is \[\], not one of",
        ),
        (
            "palm-540b",
            lambda m: m.update(sources=["gpt-fast:zzz"]),
            "palm-540b: sources: 'gpt-fast:zzz' names no known place",
        ),
        (
            "palm-540b",
            lambda m: m.update(sources=["transformers"]),
            "palm-540b: sources: 'transformers' names no known place",
        ),
        (
            "llama-1-65b",
            lambda m: m.update(
                shipped={"kv": 1, "index": 1, "sources": ["gpt-fast"]}
            ),
            "shipped: only for caches with one head, shared by all",
        ),
        (
            "deepseek-v4-flash",
            lambda m: m["groups"][0].pop("ratio"),
            r"groups\[0\]: index_dim without ratio: there are no entries",
        ),
        (
            "palm-540b",
            lambda m: m.update(date="19-02"),
            "palm-540b: date is '19-02'",
        ),
        (
            "palm-540b",
            lambda m: m.update(date="2019-13"),
            "palm-540b: date is '2019-13'",
        ),
        ("palm-540b", lambda m: m.update(name=3), "palm-540b: name is 3"),
        (
            "palm-540b",
            lambda m: m.update(confidence="sure"),
            "palm-540b: confidence is 'sure'",
        ),
        (
            "command-a",
            lambda m: m.update(confidence="high"),
            "command-a: confidence is 'high', but kvcache.ai is the only "
            "source, and not one of the model's makers",
        ),
        (
            "palm-540b",
            lambda m: m.update(
                confidence="high",
                sources=["transformers:gpt2", "transformers:llama"],
            ),
            "confidence is 'high', but transformers is the only source",
        ),
        (
            "llama-4-scout",
            lambda m: m.update(context="the card"),
            "llama-4-scout: context: 'the card' names no known place",
        ),
        (
            "palm-540b",
            lambda m: m.pop("params_in"),
            "palm-540b: params and params_in go together",
        ),
        (
            "palm-540b",
            lambda m: m.update(params=1.2e8),
            "palm-540b: params is 120000000",
        ),
        (
            "kimi-k3",
            lambda m: m["groups"][0].update(rotated=0),
            r"kimi-k3: groups\[0\]: rotated is 0",
        ),
        (
            "palm-540b",
            lambda m: m.update(id="GPT 2"),
            "GPT 2: id may only have small letters",
        ),
        (
            "palm-540b",
            lambda m: m.update(id="falcon-7b"),
            "falcon-7b is listed twice",
        ),
        (
            "deepseek-v3.2",
            lambda m: m["shipped"].pop("index"),
            "deepseek-v3.2: shipped: index is missing",
        ),
    ],
)
def test_a_wrong_row_is_named_with_its_field(where, change, message):
    with pytest.raises(ValueError, match=f"specs.json: .*{message}"):
        specs.read(changed(where, change))


def test_what_no_source_gives_is_null():
    text = changed("minimax-m3", lambda m: m["groups"][0].update(q_heads=None))
    group = specs.read(text)["minimax-m3"].groups[0]
    assert (group.q_heads, group.variant) == (None, "GQA")


@given(st.data())
def test_no_record_may_lose_a_field_it_needs(data):
    where = data.draw(st.sampled_from([m["id"] for m in FILE["models"]]))
    (record,) = (m for m in FILE["models"] if m["id"] == where)
    optional = {"note", "shipped", "context"}
    if "config" in record:  # which may say it, and be the only source
        optional |= {"sources", "max_context", "attention_params"}
    field = data.draw(st.sampled_from(sorted({*record} - optional)))
    with pytest.raises(ValueError, match=r"^specs"):
        specs.read(changed(where, lambda m: m.pop(field)))


def test_makers_are_places():
    file = deepcopy(FILE)
    file["makers"] = [*specs.PLACES, *file["places"]]
    assert specs.read(json.dumps(file)) == models()
    file["makers"].append("gemma 5")
    with pytest.raises(ValueError, match="the file: makers: 'gemma 5' is no"):
        specs.read(json.dumps(file))


def test_a_file_without_models_or_places_is_refused():
    with pytest.raises(ValueError, match=r"specs\.json: the file: models is"):
        specs.read('{"places": {}, "makers": ["arXiv"]}')
    with pytest.raises(ValueError, match=r"specs\.json: places: None is no"):
        specs.read('{"models": []}')
    with pytest.raises(ValueError, match="no model 5"):
        specs.find_model(5)


def test_a_model_is_found_by_its_id_or_name_however_it_is_written():
    for model in models().values():
        name = model.name.replace(" ", "-").upper()
        for asked in (model.id, model.id.upper(), model.name, name):
            assert specs.find_model(asked) is model, asked
            if "/" not in asked:
                assert specs.find_model(f"some-org/{asked}") is model
    for asked in ("", "/", "org/", "gpt2/org", "-", "元"):
        with pytest.raises(ValueError, match=f"there is no model '{asked}'"):
            specs.find_model(asked)


def test_a_name_of_two_models_is_refused(monkeypatch):
    twice = deepcopy(FILE)
    twice["models"] = deepcopy(FILE["models"][:2])
    twice["models"][1]["name"] = twice["models"][0]["name"].upper()
    both = specs.read(json.dumps(twice))
    monkeypatch.setattr(specs, "_specs", lambda: json.dumps(twice))
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
    window = specs.Sliding(layers=2, sliding_window=5, index_dim=4, **heads)
    assert window.stores == (
        Store("kv", 3, (10, 7), 5),
        Store("index", 1, (4,), 5),
    )
    chunk = specs.Chunked(layers=2, chunk=5, **heads)
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
    assert state.stores == (Store("state", 6, (35,)), Store("conv", 11, (3,)))


def test_the_variant_is_told_by_the_heads():
    known = {"gpt2": "MHA", "falcon-7b": "MQA", "llama-3.1-8b": "GQA"}
    for name, variant in known.items():
        assert models()[name].groups[0].variant == variant
    assert models()["qwen3-next-80b"].layers == 48
