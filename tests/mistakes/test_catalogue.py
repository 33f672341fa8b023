"""Each mistake of the catalogue is one, and its tests notice it."""

import json
import subprocess
import sys

import pytest

import attnref
from attnref.mistakes.catalogue import SYMPTOMS, catalogue, load, sources
from sitekit import ROOT

each = pytest.mark.parametrize("name", catalogue())


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


@each
def test_its_tests_notice_it(name, verdicts):
    assert catalogue()[name].tests
    assert verdicts[name] == dict.fromkeys(catalogue()[name].tests, "failed")


@each
def test_it_is_told_whole(name):
    mistake = catalogue()[name]
    assert mistake.id == name
    assert mistake.symptom in SYMPTOMS
    for text in (mistake.title, mistake.seen, mistake.hidden):
        assert text.en.strip() and text.zh.strip()
    assert all(x.startswith("https://") for x in mistake.found)
    for text in sources([mistake]).values():
        compile(text, name, "exec")


def test_a_mistake_is_planted_in_a_package_of_its_own():
    wrong = load(catalogue()["mask-times-tiny"])
    assert wrong.sdpa is not attnref.sdpa
    assert wrong.GroupedQueryAttention is not attnref.GroupedQueryAttention
    assert sys.modules["attnref"] is attnref
