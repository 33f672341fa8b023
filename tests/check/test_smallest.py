"""The smallest sizes of mistakes, as they are on record, computed again."""

import pytest

from attnref.judge.catalogue import catalogue
from tests.check import smallest

RECORD = smallest.read_record()
SAMPLE = [*RECORD][::12]


@pytest.mark.audit
def test_the_record_has_each_mistake_that_an_answer_shows():
    assert [*RECORD] == [id for id in catalogue() if smallest.variants(id)]


@pytest.mark.parametrize(
    "id",
    [
        id if id in SAMPLE else pytest.param(id, marks=pytest.mark.audit)
        for id in RECORD
    ],
)
def test_a_mistake_shows_at_its_sizes_and_at_none_smaller(id):
    case, sizes = RECORD[id]["case"], RECORD[id]["sizes"]
    variant = smallest.variants(id)[case]
    off = smallest.difference(case, sizes, variant)
    assert off == pytest.approx(RECORD[id]["off"], rel=0.06)
    for fewer in smallest.smaller(sizes):
        assert smallest.difference(case, fewer, variant) <= 0, fewer
