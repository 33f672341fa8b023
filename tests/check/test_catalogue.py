"""Each mistake of the catalogue is one, and its tests notice it.

What notices it is found by running, and recorded: `python -m
tests.check.kills`. `make test` plants the first variant of each and runs the
tests to copy; the others, and our own tests, are in `make audit`.
"""

import json
import subprocess
import sys

import pytest
import torch

import attnref
from attnref.judge import exercises, properties
from attnref.judge.catalogue import (
    Lines,
    catalogue,
    every_variant,
    load,
    read,
    sources,
)
from attnref.judge.properties import Property
from sitekit import ROOT
from sitekit.check import mistakes
from sitekit.check.evidence import SYMPTOMS, evidence
from tests.check.kills import same_shape
from tests.check.suites import SUITES, failing

each_mistake = pytest.mark.parametrize("name", catalogue())


@each_mistake
def test_its_entry_is_complete(name):
    mistake = catalogue()[name]
    assert evidence()[name].symptom in SYMPTOMS
    for text in (mistake.title, mistake.notice):
        assert text.en.strip() and text.zh.strip()
    assert all(x.startswith("https://") for x in evidence()[name].met)
    for variant in mistake.variants:
        assert all(lines.wrong != lines.right for lines in variant)
        for text in sources(variant).values():
            compile(text, name, "exec")


@each_mistake
def test_a_test_to_copy_notices_it(name):
    first = mistakes.kills()[name]["properties"][:1]
    assert first == failing(catalogue()[name].variants[0], first), (
        f"record what notices it: python -m tests.check.kills {name}"
    )


@pytest.mark.audit
@each_mistake
def test_these_tests_to_copy_notice_it(name):
    names = failing(catalogue()[name].variants[0])
    assert names == mistakes.kills()[name]["properties"]


@pytest.mark.audit
def test_tests_to_copy_pass_without_a_mistake():
    for module in SUITES:
        assert failing((Lines(module, ()),)) == [], module
    props = {prop for suite in SUITES.values() for prop, _ in suite}
    props |= {*exercises.PAGE_PROPERTIES.values()}
    every_prop = {x for x in vars(properties).values() if type(x) is Property}
    assert props >= every_prop


# How many spellings of a mistake only `attnref check` notices. The tests to
# copy have no row of -inf in chunks, no other axis, no mask per head and only
# one base of RoPE; they move no queries alone, pass no pads to MLA, norm none
# of its queries, crop no rows apart, pool equal heads, and have the default
# ends of ramps. Known answers have held keys and far positions.
MISSES = {
    "softmax-stays-float32": 10,
    "softmax-detached": 2,
    "mask-minus-1e9": 2,
    "alibi-sign": 1,
    "flash-mask-of-a-finite-number": 2,
    "padding-repeated-for-heads": 1,
    "groups-tiled": 4,
    "positions-restart": 5,
    "positions-off-by-one": 4,
    "rope-theta-ignored": 6,
    "padding-of-queries": 1,
    "empty-row-nan": 3,
    "softmax-over-queries": 4,
    "weights-transposed": 1,
    "scale-model-width": 1,
    "keys-and-values-exchanged": 2,
    "sequence-repeated-for-heads": 2,
    "pooling-by-sum": 5,
    "softmax-epsilon": 6,
    "causal-top-left": 1,
    "softmax-sum-in-half": 1,
    "softmax-one-maximum": 1,
    "padding-without-axes": 2,
    "merge-lse-added": 1,
    "flash-last-keys-lost": 1,
    "mask-of-the-first-head": 3,
    "yarn-ramp-of-width-0": 1,
    "llama3-without-blend": 1,
    "masks-joined-by-or": 1,
    "cache-reset-length": 1,
    "mla-norm-left-out": 1,
    "mla-norm-weight-left-out": 1,
    "rope-partial-width": 1,
    "rope-half-precision": 1,
}


# Tests to copy take functions of attention with a mask and no more.
TODAY = {f"plain.{x}" for x in ("alibi", "order", "ring", "scaling", "sinks")}


@pytest.mark.audit
@each_mistake
def test_tests_to_copy_notice_each_variant(name):
    entries = catalogue()[name].variants
    variants = [
        variant
        for variant in every_variant(catalogue()[name])
        if variant in entries or variant[0].module in {*SUITES} - {*TODAY}
    ]
    misses = [variant for variant in variants if not failing(variant)]
    assert len(misses) == MISSES.get(name, 0), misses


@pytest.mark.audit
@each_mistake
def test_what_is_shown_differs(name):
    right, wrong = mistakes.outputs(name)
    assert right.dim() <= 2 and right.numel() <= 64
    assert right.equal(mistakes.output(catalogue()[name])), "another each time"
    if isinstance(wrong, str):
        assert wrong
    elif wrong.shape == right.shape:
        assert not torch.allclose(
            right.double(), wrong.double(), rtol=1e-3, equal_nan=True
        )


@pytest.mark.audit
@each_mistake
def test_shapes_show_it_or_not(name):
    assert same_shape(name) == mistakes.kills()[name]["same_shape"]


@pytest.mark.audit
def test_our_own_tests_notice_them():
    """The tests on record fail with the mistake planted."""
    code = (
        "import json; from attnref.judge.catalogue import catalogue;"
        "from tests.check.kills import find_tests;"
        "print(json.dumps(find_tests([*catalogue()])))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr[-3000:]
    result = json.loads(process.stdout.splitlines()[-1])
    record = {id: kills["tests"] for id, kills in mistakes.kills().items()}
    assert all(record.values()), [k for k, v in record.items() if not v]
    assert result == record


def test_a_property_says_what_does_not_hold():
    x = torch.arange(6.0).view(1, 3, 2)
    with pytest.raises(AssertionError) as error:
        properties.future_is_hidden(lambda x: x.flip(1), x)
    text = str(error.value)
    assert text.startswith("future_is_hidden: Another last token changes its")
    assert "Mismatched elements: 2 / 4" in text
    pairs = [(x, x + 0.25, 0.5), (x, x + 0.75, 0.5)]  # how far at most
    with pytest.raises(AssertionError, match=r"difference: 0\.75"):
        properties.Property(lambda: iter(pairs))()


def test_a_mistake_is_planted_in_a_package_of_its_own():
    (entry,) = read(
        "id: a\nen: A || B\nzh: 甲 || 乙\n"
        "@ core.sdpa: from torch import Tensor\n"
        "-from torch import Tensor  # wrong\n"
    )
    wrong = load(entry.variants[0])
    assert wrong.sdpa is not attnref.sdpa
    assert wrong.GroupedQueryAttention is not attnref.GroupedQueryAttention
    assert sys.modules["attnref"] is attnref
