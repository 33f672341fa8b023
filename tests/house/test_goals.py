"""What is timed computes the same, and with less work than slow forms.

Nothing here looks at a clock: `make bench` and `make bench-quick` do, and say
which goals are met.
"""

import json
import re
from functools import partial

import pytest
import torch

from benchmarks import __main__ as script
from benchmarks import memory, threads, timing
from benchmarks.caches import CACHES as STORES
from benchmarks.caches import generated
from benchmarks.cores import CAUSAL, prompt
from benchmarks.goals import CASES, GOALS, QUICK, RECURRENT, Goal
from benchmarks.report import report
from benchmarks.timing import Measured, middle
from tests.kit.memory import Held, allocated

SMALL = {
    "decode": [("float32", "GQA-8", 133), ("bfloat16", "MHA", 133)],
    "layer": [("float32", "tiny", 9), ("bfloat16", "tiny", 9)],
    "mla": [("float32", 9)],
    "recurrence": [(layer, n) for layer in RECURRENT for n in (1, 67)],
    "latent": [("float32", 64), ("float32", 256)],
    "prefill": [("bfloat16", "GQA", 67), ("float32", "MLA", 67)],
    "backward": [("float32", "GQA", 67)],
    "prompt": [("float32", "GQA", 67), ("bfloat16", "MLA", 67)],
    "step": [("float32", "GQA-8", 133)],
    "windowed": [("float32", 531)],
    "given mask": [("bfloat16", 67)],
    "append": [(9,)],
    "reorder": [(3, 9)],
    "window": [(4100,)],
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


def test_the_script_writes_what_is_committed(tmp_path, monkeypatch, capsys):
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
    script.main(["--seconds", "0", "--out", str(out)])
    first = json.loads(out.read_text())
    committed = json.loads(script.MEASURED.read_text(encoding="utf-8"))
    assert committed.keys() == first.keys()
    for name, case in first["cases"].items():
        theirs = committed["cases"][name]
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
    capsys.readouterr()
    script.main(["--only", "append", "--seconds", "0", "--out", str(out)])
    again = json.loads(out.read_text())
    for name in small:
        same = again["cases"][name] == first["cases"][name]
        assert same == (name != "append")
    assert [*again["cases"]] == [*first["cases"]]
    assert capsys.readouterr().out.splitlines() == "\n".join(
        report(again, first, ["append"])
    ).split("\n")


def test_ways_on_several_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "COLD", 1)
    small = {"GQA-2": (6, 2, 7, 11), "absorbed MLA": (128, 1, 5, 11)}
    monkeypatch.setattr(threads, "SHAPES", small)
    for shape in small:
        setting = threads.step("float32", shape)
        first, *others = (
            way(*setting.pool[0]) for way in setting.ways.values()
        )
        for other in others:
            torch.testing.assert_close(first, other)
    out = tmp_path / "threads.json"
    run = ["--threads", "1,2", "--seconds", "0", "--out", str(out)]
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with pytest.raises(SystemExit):  # who waits would look busy
        threads.main(run)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    threads.main(run)
    at = json.loads(out.read_text())["at"]
    committed = json.loads(threads.THREADS.read_text("utf-8"))
    assert at.keys() < committed["at"].keys()
    assert [*at["float32, GQA-2"]] == ["1", "2"]
    (fields,) = {
        frozenset(ways)
        for each in (at, committed["at"])
        for counts in each.values()
        for ways in counts.values()
    }
    assert fields == threads.WAYS.keys()


def test_the_peak_of_a_prompt_is_what_was_allocated():
    """Twice the same, and two or three float32 scores and weights in `sdpa`."""
    peaks = [memory.peak("sdpa", "float32", "GQA", 128) for _ in range(2)]
    assert peaks[0] == peaks[1]
    assert 2 < peaks[0] / (16 * 128 * 128 * 4 / 1e6) < 4
    tiles = [memory.peak("flash", "float32", "GQA", n) for n in (512, 1024)]
    assert tiles[1] < 1.1 * tiles[0]


def test_small_sizes_go_into_a_file_of_their_own(tmp_path, monkeypatch):
    """And no figure makes the script fail: here, one that is not met."""
    goal = next(goal for goal in QUICK if goal.case == "append")
    bad = goal._replace(at=((9,),), most=-1.0)
    monkeypatch.setattr(script, "QUICK", [bad])
    monkeypatch.setattr(script, "SMALL", tmp_path / "quick.json")
    script.main(["--quick", "--seconds", "0"])
    result = json.loads(script.SMALL.read_text())
    (line,) = result["goals"]
    assert (line["met"], line["goal"]) == (False, goal.name)
    assert [*result["cases"]["append"]["at"]["9"]["ways"]] == [
        goal.ours,
        goal.slow,
    ]


def test_what_is_committed_is_of_this_code():
    committed = json.loads(script.MEASURED.read_text(encoding="utf-8"))
    text = script.MEASURED.read_text(encoding="utf-8")
    assert script.text(committed) == text
    assert committed["cases"].keys() == CASES.keys()
    for name, case in CASES.items():
        assert [*committed["cases"][name]["at"]] == [*map(script.key, case.at)]
    lines = iter(committed["goals"])
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
    ratios = Measured("ms", {"a": [2.0, 9.0], "b": [1.0, 3.0]})
    assert ratios.ratios("a", "b") == [2.0, 3.0]


@pytest.mark.parametrize(
    ("what", "peer", "bounds", "figure", "slow"),
    [
        ("times as long", "peer", {"most": 0.6}, 0.5, 4.0),
        ("times as fast", "peer", {"least": 1.9}, 2.0, 0.25),
        ("value", "", {"most": 1.1}, 1.0, 8.0),
        ("share", "", {"least": 0.7}, 0.8, 0.1),
        ("exponent", "", {"least": 0.9, "most": 1.1}, 1.0, 2.5),
    ],
)
def test_a_goal_is_not_met_with_a_slow_forms_figures(
    what, peer, bounds, figure, slow
):
    goal = Goal("made up", "case", ((4,),), "ours", what, peer, **bounds)
    goal = goal._replace(slow="slow")
    values = {"ours": [1.0, 1.0], "peer": [2.0, 2.0], "slow": [8.0, 8.0]}
    shares = {"ours": [0.8, 0.8], "slow": [0.1, 0.1]}
    results = {
        ("case", (1,)): Measured("ms", {"ours": [0.25, 0.25]}),
        ("case", (4,)): Measured("ms", values, shares),
    }
    line = goal.line(results, (4,))
    assert line["met"] and line["found"] == [figure] * 3
    assert line["slow"] == [slow] * 3
    at = "case", (4,)
    results[at] = results[at].with_slow("ours", "slow")
    line = goal.line(results, (4,))
    assert not line["met"] and line["found"] == [slow] * 3


def test_a_report_begins_with_what_changed():
    def result(**values):
        ways = {name: {"value": value} for name, value in values.items()}
        probes = {"GB/s": [9.0, 10.0, 11.0]}
        at = {"8": {"turns": 3, "probes": probes, "ways": ways}}
        case = {"unit": "ms", "date": "2031-02-03", "busy": 0.5, "at": at}
        goals = [
            {
                "goal": f"quick {name}",
                "case": "case",
                "at": "8",
                "what": "value",
                "peer": "",
                "most": 3.0,
                "found": value,
                "met": value[1] <= 3.0,
                "slow": [2.0] * 3 if name == "b" else [4.0] * 3,
            }
            for name, value in values.items()
        ]
        return {"processor": "P", "cases": {"case": case}, "goals": goals}

    last = result(
        a=[1.0, 1.1, 1.2], b=[1.0, 1.1, 1.2], c=[4.0] * 3, d=[2.0] * 3
    )
    now = result(
        a=[1.1, 1.3, 1.4],  # the ranges touch
        b=[0.5, 0.55, 0.6],
        c=[4.1] * 3,  # by less than 5 %
        d=[8.0] * 3,
        e=[2.0] * 3,
    )
    lines = [*report(now, last, ["case"])]
    machine = "2031-02-03: processor P, load 0.5, 10 GB/s"
    assert lines[:2] == [f"now   {machine}", f"last  {machine}"]
    _, heading, *goals = "\n".join(lines[2:8]).split("\n")
    assert heading == "  change       now      last  3 of 5 goals are met"
    changes = [re.sub(r" \(8\).*", "", each).split() for each in goals]
    words = ["ms;", "wanted:", "at", "most", "3:", "quick"]
    assert changes == [
        ["x", "4", "8", "2", "NOT", "MET", *words, "d"],
        ["x", "0.5", "0.55", "1.1", "met", *words, "b"],
        ["4.1", "4", "NOT", "MET", *words, "c"],
        ["1.3", "1.1", "met", *words, "a"],
        ["2", "new", "met", *words, "e"],
    ]
    assert ["BLIND" in each for each in goals] == [False, True] + 3 * [False]
    _, heading, *contenders = "\n".join(lines[8:]).split("\n")
    assert "2 figures have not changed" in heading
    assert [each.rpartition(" ")[2] for each in contenders] == ["d", "b", "e"]
    # The first run of all, and one of other cases.
    for other in ({}, result() | {"cases": {}}):
        assert not any(
            x.startswith("last") for x in report(now, other, ["case"])
        )


# A small size, and how many times as many bytes as ours the slow form of a goal
# allocates at least.
COPIES = {
    "layer": (("float32", "a quarter", 256), 5),
    "mla": (("float32", 64), 10),
    "append": ((1024,), 1000),
    "reorder": ((3, 96), 30),
}


@pytest.mark.parametrize("case", COPIES)
@torch.no_grad()
def test_a_slow_form_allocates_many_times_as_much(case):
    at, times = COPIES[case]
    setting = CASES[case].make(*at)
    peers = {
        (goal.ours, goal.slow)
        for goal in QUICK
        if goal.case == case and goal.slow
    }
    assert peers
    for pair in peers:
        ours, slow = (
            allocated(partial(setting.ways[way], *setting.pool[0]))
            for way in pair
        )
        assert slow > times * max(ours, 1), (pair, ours, slow)


@torch.no_grad()
def test_the_memory_of_a_prompt_is_linear_but_for_slow_forms():
    def grows(take):
        """How many times as much twice as many tokens take."""
        return take(512) / take(256)

    def held(way, case="prefill", shape="GQA"):
        def most(tokens):
            setting = CASES[case].make("float32", shape, tokens)
            with Held() as memory:
                setting.ways[way](*setting.pool[0])
            return memory.most

        return grows(most)

    assert max(held("flash"), held("flash", shape="MLA")) < 2.1
    assert min(held("eager"), held("sdpa")) > 2.5
    assert held("torch, is_causal", shape="MLA") > 2.5
    assert held("flash", case="backward") < 2.1
    assert held("sdpa", case="backward") > 2.5

    def in_kernels(tokens):
        return allocated(
            partial(CAUSAL["fused"], *prompt("float32", "GQA", tokens))
        )

    assert grows(in_kernels) < 2.2
