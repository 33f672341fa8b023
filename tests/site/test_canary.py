"""The canary's report, and what pages say that they were last run with."""

import json
import re
import sys
import tomllib

import pytest
import yaml

from sitekit import ROOT
from sitekit.markdown import pages, ran
from tests import canary
from tests.kit import pins

RECORD = json.loads(ran.RECORD.read_text(encoding="utf-8"))
STAND_IN = """
import warnings

def test_that_passes(): pass
def test_attn_takes_a_mask(): assert {"cache": 1} == {"past_key_values": 1}
def test_that_is_warned(): warnings.warn("gone in 5.40", FutureWarning)
"""


def test_the_report_names_what_fails_and_what_was_found(tmp_path, monkeypatch):
    monkeypatch.setattr(canary, "PLACE", tmp_path)
    monkeypatch.setattr(canary, "ROOT", tmp_path)
    for name, text in (
        ("pytest.ini", "[pytest]\nfilterwarnings = error\n"),
        ("test_gqa.py", STAND_IN),
        ("test_mla.py", "from torch import no_such_name\n"),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
    passed, failures = canary.outcomes(sys.executable, str(tmp_path))
    assert (passed, len(failures)) == (1, 3)
    old = {"transformers": "5.23.0", "torch": "2.13.0"}
    new = old | {"transformers": "5.24.0"}
    text = canary.report(old, new, passed, failures)
    assert "3 of 4 tests fail. Pages keep the old versions" in text
    assert "transformers 5.23.0 -> 5.24.0" in text
    assert "torch 2.13.0" not in text
    assert "## layers/mla" in text
    assert "cannot import name 'no_such_name'" in text
    assert "## layers/gqa\n\n- attn takes a mask: not so\n" in text
    assert "past_key_values" in text
    assert "FutureWarning: gone in 5.40" in text
    assert canary.NOTHING in canary.report(new, new, 9, [])
    assert "Commit sitekit/drawn/ran.json" in canary.report(old, new, 9, [])


def test_a_failure_is_placed_at_the_sections_that_show_its_code():
    use = "tests/site/use/test_transformers.py"
    name = "test_a_llama_decodes_with_our_layers[sdpa]"
    assert canary.places(use, name)[0] == "use/transformers#swap"
    name = "test_a_deepseek_decodes_with_our_absorbed_layers"
    assert canary.places(use, name)[0] == "use/transformers#swap"
    for folder in canary.TESTS:
        for file in (ROOT / folder).glob("test_*.py"):
            places = canary.places(str(file.relative_to(ROOT)), "test_nothing")
            assert places != ["no page"], file


def test_the_workflow_opens_an_issue_unless_nothing_is_new():
    text = (ROOT / ".github/workflows/canary.yml").read_text("utf-8")
    assert f"grep -q '{canary.NOTHING}' \"$REPORT\"" in text
    assert "cron:" in text
    (job,) = yaml.safe_load(text)["jobs"].values()
    kinds = job["strategy"]["matrix"]["include"]
    folders = {canary.PLACE: "canary", canary.PLACE / "site": "canary-site"}
    assert {ROOT / x["folder"]: x["target"] for x in kinds} == folders
    assert len({x["title"] for x in kinds}) == 2
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in folders.values():
        assert f"\n{target}: $(READY)\n" in makefile


def test_what_builds_the_site_is_watched_and_pinned():
    """All of it that mkdocs.yml names or the theme brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    named = project["dependency-groups"]["dev"]
    needs = {name.partition("[")[0] for name in named}
    site = {x for x in needs if re.match("mkdocs|pymdown|jieba|math|pytest", x)}
    assert site - {"pytest-xdist"} <= {*canary.SITE_WATCHED}
    assert {*canary.SITE_WATCHED} <= {*pins.pinned()}
    for path in canary.SITE_TESTS:
        assert (ROOT / path).exists(), path
    for name in canary.SITE_TESTS:
        assert canary.places(name, "test_nothing") == ["the site"]


def test_pages_were_run_with_what_is_pinned_or_newer():
    pinned = (ROOT / "constraints.txt").read_text("utf-8")
    for name, version in RECORD["versions"].items():
        (pin,) = re.findall(rf"^{name}==(.+)$", pinned, re.MULTILINE)
        numbers = [[*map(int, v.split("."))] for v in (version, pin)]
        assert numbers[0] >= numbers[1], f"{name}: make canary"
    assert RECORD["passed"] > 1000


@pytest.mark.parametrize("language", ["en", "zh"])
def test_pages_say_what_they_were_last_run_with(language):
    at, run = RECORD["versions"], set()
    for path in pages.markdown_files(language):
        body = pages.body_of(path)
        text = ran.fill(body, language)
        if "{ran}" in body:
            run.add(pages.stem_of(path))
            assert f"transformers {at['transformers']}" in text
            assert f"torch {at['torch']}" in text
            assert RECORD["date"] in text
        assert not ran.PLACEHOLDER.search(text)
    stems = "project pytorch ship transformers"
    assert run == {f"use/{stem}" for stem in stems.split()}
