"""The page of wrong claims: what is computed against each, by hand."""

from collections import Counter

import pytest
import torch
import yaml

from attnref.check.catalogue import catalogue
from attnref.released.specs import models
from sitekit.drawn import claims
from sitekit.drawn.memory import kinds_of
from sitekit.markdown.fences import Fence, drawing
from sitekit.markdown.render import Word
from tests.kit.pages import fences

TABLES = ("origins", "sharing", "latent", "masked", "cached", "coded")


def computed(rows):
    """By claim, the numbers in its last column."""
    return {row[0].key: [*row[2].numbers] for row in rows}


def test_who_has_how_many_heads():
    found = computed(claims.origins())
    assert found["llama"] == ["48", "1", "64", "64", "32", "32", "64", "8"]
    year, *kinds = found["stages"]
    expected = Counter(
        kind
        for model in models().values()
        if model.date.startswith(year)
        for kind in kinds_of(model)
    )
    every = dict(zip(("MHA", "GQA", "MQA", "MLA"), kinds, strict=True))
    assert {kind: int(n) for kind, n in every.items()} == {
        kind: expected[kind] for kind in every
    }
    assert all(int(n) for n in every.values()), "the page says: all four"


def test_sharing_heads_by_hand():
    found = computed(claims.sharing())
    T, E, H, D = 1024, 512, 8, 64
    assert found["flops"] == [
        f"{2 * T * E * 2 * (H + K) * D / 1e6:,.1f} + "
        f"{4 * H * T * T * D / 1e6:,.1f}"
        for K in (8, 4, 2, 1)
    ]
    assert found["order"] == ["1", "1", "1", "1.25", "4.25"]
    assert found["direct"] == [
        "`(2, 6, 5, 7)` @ `(2, 1, 7, 5)` → `(2, 6, 5, 5)`"
    ]
    bytes_ = 2 * 1024 * 128 * 4
    expected = (bytes_, 4 * bytes_, bytes_)
    assert found["repeat"] == [f"{n:,}" for n in expected]
    slow, plain = map(float, found["faster"])
    assert slow > 2 * plain
    assert found["larger"] == [
        f"{2 * 32 * 4096 * 2 / 6738.4:.1f}",
        f"{2 * 80 * 8192 * 2 / 65_200:.1f}",
    ]


def test_latents_by_hand():
    found = computed(claims.latent())
    assert found["entry"] == ["512 + 64 = 576"]
    assert found["saves"] == ["82.2%", "93.3%"]
    factors = 5120 * 512 + 512 * 16_384
    assert found["absorbed"] == [
        f"{factors / 1e6:.1f}",
        f"{5120 * 16_384 / 1e6:.1f}",
        "512",
        "16,384",
    ]
    assert found["wabs"] == ["`(128, 576, 1536)`: 576 = 512 + 64"]
    assert found["rope_width"] == ["64", "128"]
    assert found["scale"] == [f"√(576 / 192) = {3**0.5:.2f}"]
    latent, absorbed, times = found["small"]
    expanded = 2 * 4097 * 512 * 128 * (128 + 128) / 1e9
    assert expanded < float(latent) < 1.02 * expanded
    assert float(latent) / float(absorbed) == pytest.approx(
        int(times), rel=0.05
    )
    assert found["friendly"] == ["4,096 / 4,096 = 1", "1 / 4,097 = 0.00024"]
    assert found["sparse"] == ["576 + 128 = 704"]


def test_masks_by_hand():
    found = computed(claims.masked())
    assert found["triangle"] == ["`[[0, 1, 1], [0, 0, 1], [0, 0, 0]]`"]
    assert found["after"] == ["0.25, 0.5, 0.75, 1"]
    e = torch.e
    assert found["times"] == [f"{3 / (3 + e):.0%}"]
    assert found["filler"] == ["(3 − 1e9) + 1e9 = 0"]
    assert found["empty"] == ["nan", "0.25", "0"]
    assert found["cached"] == ["`[1, 0, 0, 0]`"]
    assert found["window"] == ["3", "4"]
    assert found["naive"] == ["`exp(12)` = inf, [nan, 0.0]"]
    assert found["root"] == [f"√(512 / 64) = {8**0.5:.2f}"]


def test_caches_by_hand():
    found = computed(claims.cached())
    assert found["width"] == ["5,120 / 64 = 80", "128"]
    assert found["ranks"] == [
        *("131,072", "8,192", "16,384"),
        *("70,272", "4,392", "70,272"),
    ]


def test_code_by_hand():
    found = computed(claims.coded())
    assert found["view"] == ["(4, 12, 1): `view(3, 2, 2, 2)`"]
    unseen, every = found["shapes"]
    assert int(every) == len(catalogue())
    assert int(every) / 2 < int(unseen) < int(every), "most, says the page"
    numbers = [float(x.strip("%")) for x in found["initial"]]
    flat, sharp = numbers[:2], numbers[2:]
    assert flat[0] == pytest.approx(1 / 8, rel=1e-3) and flat[1] < 0.02
    assert sharp[0] > 0.9 and sharp[1] > 50


@pytest.mark.parametrize("language", ["en", "zh"])
def test_each_claim_has_what_holds_and_how_one_knows(language):
    """Nothing is missing in the words, and each last cell has a source: a link,
    a test, or what was computed."""
    drawn = {spec["table"]: spec for kind, spec in fences("claims", language)}
    assert list(drawn) == list(TABLES)
    for name, spec in drawn.items():
        assert drawing(yaml.safe_dump(spec), "table", Fence("claims", language))
        for claim, holds, known in getattr(claims, name)():
            assert isinstance(claim, Word) and isinstance(holds, Word)
            assert "](" in spec["words"][known.key], claim.key
