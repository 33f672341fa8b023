"""What is timed computes the same, and each goal holds at a small size."""

import json
import re
from statistics import median

import pytest
import torch

from benchmarks import __main__ as script
from benchmarks import timing
from benchmarks.caches import CACHES as STORES
from benchmarks.caches import generated
from benchmarks.goals import CASES, GOALS, GUARDED, quick_plan
from benchmarks.timing import middle

SMALL = {
    "decode": [("float32", "GQA-8", 133), ("bfloat16", "MHA", 133)],
    "layer": [("float32", "tiny", 9), ("bfloat16", "tiny", 9)],
    "mla": [("float32", 9)],
    "latent": [("float32", 64), ("float32", 256)],
    "prefill": [("bfloat16", "GQA", 67), ("float32", "MLA", 67)],
    "backward": [("float32", "GQA", 67)],
    "append": [(9,)],
    "reorder": [(3, 9)],
}


@pytest.mark.parametrize(
    ("case", "at"),
    [(case, at) for case, sizes in SMALL.items() for at in sizes],
    ids=str,
)
def test_what_is_timed_computes_the_same(case, at):
    setting = CASES[case].make(*at)
    errors = setting.errors()
    assert errors.keys() == setting.ways.keys() and len(errors) > 1
    assert max(errors.values()) <= (2**-6 if "bfloat16" in at else 2e-5)


def test_both_caches_generate_the_same():
    (first, _), (second, _) = (generated(name, 9) for name in STORES)
    torch.testing.assert_close(first, second)
    assert (first > 7).all()  # of values 1 to 9, the last weigh most


def test_the_script_writes_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "COLD", 1)
    names = ("decode", "latent", "append", "reorder")
    small = {n: CASES[n]._replace(at=(*SMALL[n],)) for n in names}
    goals = [
        goal._replace(at=small[goal.case].at[-1:])
        for goal in GOALS
        if goal.case in small
    ]
    monkeypatch.setattr(script, "CASES", small)
    monkeypatch.setattr(script, "GOALS", goals)
    out = tmp_path / "measured.json"
    told = []
    monkeypatch.setattr(script, "print", told.append, raising=False)
    script.main(["--seconds", "0", "--out", str(out)])
    line = r"(NOT )?met +[\d.e-]+ [a-z].*; wanted: (at most|at least|from) \d"
    assert told and all(re.match(line, x, re.I) for x in told), told
    found = json.loads(out.read_text())
    kept = json.loads(script.MEASURED.read_text(encoding="utf-8"))
    assert kept.keys() == found.keys()
    for name, case in found["cases"].items():
        theirs = kept["cases"][name]
        assert theirs.keys() == case.keys()
        assert theirs["axes"] == case["axes"] and theirs["unit"] == case["unit"]
        (size, *_), (other, *_) = case["at"].values(), theirs["at"].values()
        assert size.keys() == other.keys()
        ways, others = size["ways"].values(), other["ways"].values()
        (fields,) = {frozenset(way) for way in (*ways, *others)}
        for field in fields - {"error"}:
            for low, middle_one, high in (way[field] for way in ways):
                assert 0 <= low <= middle_one <= high
    # One more time for a part: the rest is as it was.
    script.main(["--only", "append", "--seconds", "0", "--out", str(out)])
    again = json.loads(out.read_text())
    for name in small:
        same = again["cases"][name] == found["cases"][name]
        assert same == (name != "append")
    assert [*again["cases"]] == [*found["cases"]]


def test_what_is_kept_is_of_this_code():
    kept = json.loads(script.MEASURED.read_text(encoding="utf-8"))
    text = script.MEASURED.read_text(encoding="utf-8")
    assert script.text(kept) == text
    assert kept["cases"].keys() == CASES.keys()
    for name, case in CASES.items():
        assert [*kept["cases"][name]["at"]] == [*map(script.key, case.at)]
    lines = iter(kept["goals"])
    for goal in GOALS:
        for at in goal.at:
            line = next(lines)
            assert (line["goal"], line["at"]) == (goal.name, script.key(at))
            least = line.get("least", float("-inf"))
            most = line.get("most", float("inf"))
            assert (least, most) == (goal.least, goal.most)
            assert line["met"] == (least <= line["found"][1] <= most)
            assert {*goal.sizes(at)} <= {*CASES[goal.case].at}
    assert next(lines, None) is None


def test_the_middle_of_what_was_measured():
    assert middle([3.0]) == [3.0, 3.0, 3.0]
    assert middle([1.0, 2.0, 3.0, 4.0, 5.0]) == [2.0, 3.0, 4.0]
    ratios = script.Found("ms", {"a": [2.0, 9.0], "b": [1.0, 3.0]})
    assert ratios.ratios("a", "b") == [2.0, 3.0]


FOUND = {}
PLAN = quick_plan(GUARDED)


def measure(goal, seconds):
    for at in goal.sizes(goal.quick):
        size = goal.case, at
        if size not in FOUND or seconds > 0.3:
            ways = PLAN[size] | {next(iter(PLAN[size]))}
            FOUND[size], _ = script.measured(*size, seconds, ways)
    return median(goal.figures(FOUND, goal.quick))


@pytest.mark.alone
@pytest.mark.parametrize("goal", GUARDED, ids=lambda goal: goal.name)
def test_the_goal_holds_at_a_small_size(goal):
    """With 30 % of room. Narrowly missed, it is measured once more, for
    longer. With a slow form's figures in place of ours, it does not hold."""
    low, high = goal.guard
    figure = measure(goal, 0.3)
    if not low <= figure <= high:
        figure = measure(goal, 1.5)
    assert low <= figure <= high
    if goal.slow:
        here = FOUND[goal.case, goal.quick]
        planted = here.with_slow(goal.ours, goal.slow)
        slow = median(
            goal.figures({(goal.case, goal.quick): planted}, goal.quick)
        )
        assert not low <= slow <= high, f"{goal.slow} passes: {slow}"
