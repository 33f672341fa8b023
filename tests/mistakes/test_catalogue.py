"""Each mistake of the catalogue is one, and its tests notice it.

`make test` runs the law of each; what else an entry says is in `make audit`.
"""

import json
import subprocess
import sys
from functools import cache

import pytest
import torch

import attnref
from attnref.mistakes.catalogue import SYMPTOMS, catalogue, load, sources
from sitekit import ROOT

each = pytest.mark.parametrize("name", catalogue())


@cache
def planted(name):
    return load(catalogue()[name])


@pytest.fixture(scope="module")
def verdicts():
    done = subprocess.run(
        [sys.executable, "-m", "tests.mistakes.verdicts"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.audit
@each
def test_its_tests_notice_it(name, verdicts):
    assert verdicts[name] == dict.fromkeys(catalogue()[name].tests, "failed")


@each
def test_it_is_told_whole(name):
    mistake = catalogue()[name]
    assert mistake.id == name
    assert mistake.symptom in SYMPTOMS
    for text in (mistake.title, mistake.seen, mistake.notice):
        assert text.en.strip() and text.zh.strip()
    assert all(x.startswith("https://") for x in mistake.found)
    for text in sources([mistake]).values():
        compile(text, name, "exec")
    assert mistake.tests
    for test in mistake.tests:
        path, _, function = test.partition("[")[0].partition("::")
        assert f"\ndef {function}(" in text_of(path), f"{test} is not there"


@cache
def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


@each
def test_its_law_notices_it(name):
    mistake = catalogue()[name]
    mistake.law(*mistake.of(attnref))
    wrong = planted(name)
    with pytest.raises(Exception):  # noqa: B017, a refusal will do
        mistake.law(*mistake.of(wrong))


@pytest.mark.audit
@each
def test_what_is_shown_differs(name):
    mistake = catalogue()[name]
    right = mistake.shown(attnref)
    assert right.dim() <= 2 and right.numel() <= 64
    assert right.equal(mistake.shown(attnref)), "another number each time"
    try:
        wrong = mistake.shown(planted(name))
    except Exception as error:
        assert str(error)
    else:
        assert not torch.allclose(right, wrong, rtol=1e-3, equal_nan=True)


@cache
def shapes(package):
    """Of what the public functions and layers return: all that a test of
    shapes could see."""
    torch.manual_seed(0)
    x, q, k = (
        torch.randn(3, 7, 48),
        torch.randn(3, 6, 7, 8),
        torch.randn(3, 2, 7, 8),
    )
    valid = torch.ones(3, 7, dtype=torch.bool)
    valid[0, :2] = False
    mask = package.causal_mask(7) & package.padding_mask(valid)
    made = [
        package.softmax(x),
        package.online_softmax(x, chunk=5),
        package.attention_weights(q, k, mask),
        *(core(q, k, k, mask) for core in (package.sdpa, package.flash)),
        package.fused(q, k, k, mask),
        package.split_kv(q, k, k, mask),
        *package.flash_lse(q, k, k, mask),
        *package.rope_table(torch.arange(7), 8),
        package.with_prefix(q, (k[:1], k[:1]), k, k, mask),
    ]
    sizes = {"d_model": 48, "n_heads": 6}
    latent = {"kv_lora_rank": 10, "qk_nope_head_dim": 6, "v_head_dim": 5}
    layers = [
        package.MultiHeadAttention(**sizes, rope_theta=1e4),
        package.MultiQueryAttention(**sizes, rope_theta=1e4),
        package.GroupedQueryAttention(**sizes, n_kv_heads=2, rope_theta=1e4),
        package.MultiHeadLatentAttention(**sizes, **latent, qk_rope_head_dim=4),
    ]
    for layer in layers:
        made.append(layer(x, mask=package.padding_mask(valid)))
        for kept in (package.KVCache(8), package.GrowingKVCache()):
            made += [layer(x[:, :6], cache=kept), layer(x[:, 6:], cache=kept)]
            made.append(kept.length)
        made += layer.state_dict().values()
    cross = package.CrossAttention(**sizes)
    made.append(cross(x, x[:, :4]))
    return [getattr(m, "shape", m) for m in made]


@pytest.mark.audit
@each
@torch.no_grad()
def test_shapes_show_it_or_not(name):
    mistake = catalogue()[name]
    try:
        same = shapes(planted(name)) == shapes(attnref)
    except Exception:
        same = False
    assert same == mistake.same_shape


def test_a_mistake_is_planted_in_a_package_of_its_own():
    wrong = load(catalogue()["mask-times-tiny"])
    assert wrong.sdpa is not attnref.sdpa
    assert wrong.GroupedQueryAttention is not attnref.GroupedQueryAttention
    assert sys.modules["attnref"] is attnref
