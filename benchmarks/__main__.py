"""Measures, on a CPU with one thread, what the site says of times and memory.

    python -m benchmarks                  all, 10 minutes; writes measured.json
    python -m benchmarks --only mla,append     these; the others are kept
    python -m benchmarks --quick          small sizes, in half a minute

`measured.json` holds, beside the machine and the versions,

    cases.CASE.axes       what the parts of a key of `at` are
    cases.CASE.date, busy when it was measured, and the load at its beginning
    cases.CASE.unit       of the values: ms or MB
    cases.CASE.at.KEY     one size, such as "float32, GQA-8, 8192"
        turns             how often each contender ran
        probes            GB/s and GFLOP/s, measured beside the contenders
        ways.NAME         one contender: `value`, its `ratio` to the first one
                          of this size, paired turn by turn, its `share` of
                          what the machine allows, each as [lower quartile,
                          median, upper quartile]; and `error`, the largest,
                          relative to the largest element in float64
    goals                 what must hold: goals.py; what was found; if it is met
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Collection
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

import torch

from benchmarks.goals import CASES, GOALS, GUARDED, At, quick_plan
from benchmarks.timing import Found, machine, middle

MEASURED = Path(__file__).with_name("measured.json")


def key(at: At) -> str:
    return ", ".join(map(str, at))


def measured(
    case: str, at: At, seconds: float, names: Collection[str] = ()
) -> tuple[Found, dict[str, float]]:
    """What was found, of these contenders or all; and then their errors."""
    torch.manual_seed(0)
    setting = CASES[case].make(*at)
    with torch.no_grad():
        if names:
            return setting.only(names).measure(seconds), {}
        return setting.measure(seconds), setting.errors()


def entry(found: Found, errors: dict[str, float]) -> dict[str, Any]:
    """What is written of one size."""
    base = next(iter(found.values))
    ways: dict[str, dict[str, Any]] = {}
    for name, values in found.values.items():
        ratio = middle(found.ratios(name, base))
        ways[name] = {"value": middle(values), "ratio": ratio}
        if name in found.shares:
            ways[name]["share"] = middle(found.shares[name])
        if name in errors:
            ways[name]["error"] = float(f"{errors[name]:.2g}")
    said: dict[str, Any] = {"turns": len(found.values[base])}
    if found.probes:
        said["probes"] = {n: middle(rates) for n, rates in found.probes.items()}
    return said | {"ways": ways}


def text(found: dict[str, Any]) -> str:
    """As JSON, one contender or one goal per line."""

    def lines(value: Any, depth: int) -> str:
        flat = not isinstance(value, dict | list) or not any(
            isinstance(x, dict)
            for x in (value.values() if isinstance(value, dict) else value)
        )
        if flat:
            return json.dumps(value, ensure_ascii=False)
        inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
        if isinstance(value, list):
            parts = [lines(x, depth + 1) for x in value]
            return "[" + inner + ("," + inner).join(parts) + outer + "]"
        parts = [
            f"{json.dumps(k)}: {lines(x, depth + 1)}" for k, x in value.items()
        ]
        return "{" + inner + ("," + inner).join(parts) + outer + "}"

    return lines(found, 0) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    cases = ",".join(CASES)
    parser.add_argument("--only", default=cases, help=f"some of {cases}")
    parser.add_argument("--seconds", type=float, help="for each size")
    parser.add_argument(
        "--out", type=Path, default=MEASURED, help="file, if not --quick"
    )
    asked = parser.parse_args(arguments)
    names, quick = asked.only.split(","), asked.quick
    if unknown := {*names} - {*CASES}:
        parser.error(f"no case {unknown}; there are {', '.join(CASES)}")
    goals = GUARDED if quick else GOALS
    goals = [goal for goal in goals if goal.case in names]
    plan: dict[tuple[str, At], set[str]]
    if quick:
        plan = quick_plan(goals)
    else:
        plan = {(n, at): set() for n in names for at in CASES[n].at}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found: dict[tuple[str, At], Found] = {}
    start = time.monotonic()
    for name in names:
        sizes = [at for case, at in plan if case == name]
        busy = round(os.getloadavg()[0], 1)
        errors: dict[At, dict[str, float]] = {}
        for at in sizes:
            took, done = time.monotonic() - start, len(found)
            left = took / done * (len(plan) - done) if done else 0
            told = f"about {left:4.0f} s left: {name} {key(at):40}"
            sys.stderr.write(f"\r{done + 1:3} of {len(plan)}, {told}")
            sys.stderr.flush()
            seconds = asked.seconds
            if seconds is None:
                seconds = 0.3 if quick else CASES[name].seconds
            ways = plan[name, at]
            found[name, at], errors[at] = measured(name, at, seconds, ways)
        if not quick:  # after each case, so that a run may be interrupted
            case = {
                "axes": [*CASES[name].axes],
                "unit": found[name, sizes[0]].unit,
                "date": datetime.now(UTC).strftime("%Y-%m-%d"),
                "busy": busy,
                "at": {
                    key(at): entry(found[name, at], errors[at]) for at in sizes
                },
            }
            lines = [
                goal.line(found, at)
                for goal in goals
                if goal.case == name
                for at in goal.at
            ]
            write(asked.out, name, case, lines)
    sys.stderr.write(f"\n{time.monotonic() - start:.0f} s\n")
    torch.set_num_threads(threads)
    for goal in goals:
        low, high = goal.guard if quick else (goal.least, goal.most)
        for at in (goal.quick,) if quick else goal.at:
            figure = middle(goal.figures(found, at))[1]
            met = "met" if low <= figure <= high else "NOT MET"
            bounds = f"from {low:.4g} to {high:.4g}"
            if low == -inf or high == inf:
                bounds = f"at {'most' if low == -inf else 'least'} "
                bounds += f"{high if low == -inf else low:.4g}"
            unit = found[goal.case, at].unit
            of = {"share": "of the machine's rate", "value": unit}
            what = of.get(goal.what, goal.what)
            what += f" as {goal.peer}" if goal.peer else ""
            if unit == "MB":
                what = what.replace("as long", "as large")
            told = f"{what}; wanted: {bounds}"
            print(f"{met:8}{figure:8.4g} {told}: {goal.name} ({key(at)})")


def write(
    out: Path, name: str, case: dict[str, Any], lines: list[dict[str, Any]]
) -> None:
    """Puts one case into the file, and keeps the others."""
    kept: dict[str, Any] = {"cases": {}, "goals": []}
    if out.exists():
        kept = json.loads(out.read_text(encoding="utf-8"))
    cases = kept["cases"] | {name: case}
    goals = [x for x in kept["goals"] if x["case"] != name] + lines
    order = [goal.name for goal in GOALS]
    result = machine() | {
        "cases": {n: cases[n] for n in CASES if n in cases},
        "goals": sorted(goals, key=lambda x: order.index(x["goal"])),
    }
    out.write_text(text(result), encoding="utf-8")


if __name__ == "__main__":
    main()
