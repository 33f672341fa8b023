"""The page of wrong claims: what is computed against each, by hand."""

import pytest
import yaml

from attnref.judge.catalogue import catalogue
from sitekit.drawn import claims
from sitekit.markdown.fences import Fence, drawing
from sitekit.markdown.render import Word
from tests.kit.pages import fences

TABLES = ("origins", "sharing", "latent", "masked", "cached", "coded")


def computed(rows):
    """By claim, the numbers in its last column."""
    return {row[0].key: [*row[2].numbers] for row in rows}


def test_what_the_page_says_of_what_is_computed_is_so():
    *_, MHA, GQA, MQA, MLA = computed(claims.origins())["stages"]
    assert all(map(int, (MHA, GQA, MQA, MLA))), "all four in one year"
    sharing, coded = computed(claims.sharing()), computed(claims.coded())
    slow, plain = map(float, sharing["faster"])
    assert slow > 2 * plain
    unseen, every = map(int, coded["shapes"])
    assert every == len(catalogue())
    assert every / 2 < unseen < every, "most, says the page"
    flat, spread, sharp, moved = (float(x.strip("%")) for x in coded["initial"])
    assert flat == pytest.approx(1 / 8, rel=1e-3) and spread < 0.02
    assert sharp > 0.9 and moved > 50


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
