"""Measures, on a CPU with one thread, what the site says of times and memory.

    python -m benchmarks                  all, 10 minutes; writes measured.json
    python -m benchmarks --only mla,append     these; the others are left
    python -m benchmarks --quick          small sizes, a minute; quick.json

Each prints a report that compares with what the file said before: report.py.
Whatever the figures are, it ends with 0. git ignores `quick.json`.

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
    goals                 what should hold: goals.py; `found`, the figure; if
                          it is met; `slow`, the figure of a slow form
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.goals import CASES, GOALS, QUICK, At, sizes_of
from benchmarks.report import report
from benchmarks.timing import Measured, machine, middle

FOLDER = Path(__file__).parent
MEASURED = FOLDER / "measured.json"
SMALL = FOLDER / "quick.json"


def key(at: At) -> str:
    return ", ".join(map(str, at))


def measured(
    case: str, at: At, seconds: float, names: Collection[str] = ()
) -> tuple[Measured, dict[str, float]]:
    """The result of these contenders or all; and then their errors."""
    torch.manual_seed(0)
    setting = CASES[case].make(*at)
    with torch.no_grad():
        if names:
            return setting.only(names).measure(seconds), {}
        return setting.measure(seconds), setting.errors()


def entry(result: Measured, errors: dict[str, float]) -> dict[str, Any]:
    """What is written of one size."""
    base = next(iter(result.values))
    ways: dict[str, dict[str, Any]] = {}
    for name, values in result.values.items():
        ratio = middle(result.ratios(name, base))
        ways[name] = {"value": middle(values), "ratio": ratio}
        if name in result.shares:
            ways[name]["share"] = middle(result.shares[name])
        if name in errors:
            ways[name]["error"] = float(f"{errors[name]:.2g}")
    size: dict[str, Any] = {"turns": len(result.values[base])}
    if result.probes:
        probes = {n: middle(rates) for n, rates in result.probes.items()}
        size["probes"] = probes
    return size | {"ways": ways}


def text(content: dict[str, Any]) -> str:
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

    return lines(content, 0) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    cases = ",".join(CASES)
    parser.add_argument("--only", default=cases, help=f"some of {cases}")
    parser.add_argument("--seconds", type=float, help="for each size")
    parser.add_argument(
        "--out", type=Path, help=f"{MEASURED.name}, or {SMALL.name} if --quick"
    )
    options = parser.parse_args(arguments)
    names, quick = options.only.split(","), options.quick
    if unknown := {*names} - {*CASES}:
        parser.error(f"no case {unknown}; there are {', '.join(CASES)}")
    out = options.out or (SMALL if quick else MEASURED)
    last = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    goals = [goal for goal in (QUICK if quick else GOALS) if goal.case in names]
    plan: dict[tuple[str, At], set[str]]
    if quick:
        plan = sizes_of(goals)
    else:
        plan = {(n, at): set() for n in names for at in CASES[n].at}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    results: dict[tuple[str, At], Measured] = {}
    start = time.monotonic()
    now = last
    for name in names:
        sizes = [at for case, at in plan if case == name]
        if not sizes:
            continue  # of which no goal has a small size
        busy = round(os.getloadavg()[0], 1)
        errors: dict[At, dict[str, float]] = {}
        for at in sizes:
            took, done = time.monotonic() - start, len(results)
            left = took / done * (len(plan) - done) if done else 0
            where = f"about {left:4.0f} s left: {name} {key(at):40}"
            sys.stderr.write(f"\r{done + 1:3} of {len(plan)}, {where}")
            sys.stderr.flush()
            seconds = options.seconds
            if seconds is None:
                seconds = 0.3 if quick else CASES[name].seconds
            ways = plan[name, at]
            results[name, at], errors[at] = measured(name, at, seconds, ways)
        case = {
            "axes": [*CASES[name].axes],
            "unit": results[name, sizes[0]].unit,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "busy": busy,
            "at": {
                key(at): entry(results[name, at], errors[at]) for at in sizes
            },
        }
        lines = [
            goal.line(results, at)
            for goal in goals
            if goal.case == name
            for at in goal.at
        ]
        now = merged(now, name, case, lines)
        # After each case, so that a run may be interrupted.
        out.write_text(text(now), encoding="utf-8")
    sys.stderr.write(f"\n{time.monotonic() - start:.0f} s\n")
    torch.set_num_threads(threads)
    print("\n".join(report(now, last, [*dict.fromkeys(c for c, _ in plan)])))


def merged(
    last: dict[str, Any],
    name: str,
    case: dict[str, Any],
    lines: list[dict[str, Any]],
) -> dict[str, Any]:
    """With this case in its place, the others as they were."""
    cases = last.get("cases", {}) | {name: case}
    goals = [x for x in last.get("goals", []) if x["case"] != name] + lines
    order = [goal.name for goal in GOALS]
    return machine() | {
        "cases": {n: cases[n] for n in CASES if n in cases},
        "goals": sorted(goals, key=lambda x: order.index(x["goal"])),
    }


if __name__ == "__main__":
    main()
