"""What a run says: each figure beside that of the last run, changes first.

A figure is a lower quartile, a median and an upper quartile. It has changed
where these ranges of the two runs do not touch and the medians differ by 5 %
at least. Milliseconds are those of a machine and of a moment of it: the machine
and what its probes found stand at the head, for both runs. Nothing here decides
anything: whoever reads the report does.
"""

from collections.abc import Collection, Iterator
from math import log
from statistics import median
from typing import Any

Result = dict[str, Any]  # as in measured.json
Figure = list[float]


def factor(now: Figure, last: Figure | None) -> float:
    """That by which the median has changed; 1 where it has not."""
    if last is None or min(now[1], last[1]) <= 0:
        return 1.0
    if now[0] <= last[2] and last[0] <= now[2]:
        return 1.0
    times = now[1] / last[1]
    return times if abs(times - 1) >= 0.05 else 1.0


def row(now: Figure, last: Figure | None, words: str) -> str:
    before = "new" if last is None else f"{last[1]:.4g}"
    times = factor(now, last)
    change = "" if times == 1 else f"x {times:.3g}"
    return f"{change:>8}{now[1]:>10.4g}{before:>10}  {words}"


def passes(figure: float, goal: Result) -> bool:
    inf = float("inf")
    low, high = goal.get("least", -inf), goal.get("most", inf)
    return bool(low <= figure <= high)


def of_goals(now: Result, last: Result, cases: Collection[str]) -> list[str]:
    """A row a goal: those that changed, those not met, the others."""
    before = {(x["goal"], x["at"]): x["found"] for x in last.get("goals", ())}
    rows = []
    for goal in now["goals"]:
        if goal["case"] not in cases:
            continue
        unit = now["cases"][goal["case"]]["unit"]
        of = {"share": "of the machine's rate", "value": unit}
        what = of.get(goal["what"], goal["what"])
        what += f" as {goal['peer']}" if goal["peer"] else ""
        if unit == "MB":
            what = what.replace("as long", "as large")
        names = {"least": "at least", "most": "at most"}
        bounds = " and ".join(
            f"{words} {goal[name]:.4g}"
            for name, words in names.items()
            if name in goal
        )
        verdict = "met" if goal["met"] else "NOT MET"
        words = f"{verdict:8}{what}; wanted: {bounds}: {goal['goal']}"
        words += f" ({goal['at']})" if goal["at"] else ""
        if "slow" in goal and passes(goal["slow"][1], goal):
            words += f"; BLIND: {goal['slow'][1]:.4g}, of a slow form, passes"
        figure, known = goal["found"], before.get((goal["goal"], goal["at"]))
        moved = abs(log(factor(figure, known)))
        rows.append((-moved, goal["met"], row(figure, known, words)))
    return [each for *_, each in sorted(rows, key=lambda x: x[:2])]


def of_contenders(
    now: Result, last: Result, cases: Collection[str]
) -> tuple[list[str], int]:
    """A row for each that changed, and how many did not."""

    def values(result: Result) -> dict[str, tuple[Figure, str]]:
        return {
            f"{', '.join(filter(None, (case, at)))}: {way}": (
                entry["value"],
                result["cases"][case]["unit"],
            )
            for case in cases
            if case in result.get("cases", {})
            for at, size in result["cases"][case]["at"].items()
            for way, entry in size["ways"].items()
        }

    before, rows, same = values(last), [], 0
    for name, (figure, unit) in values(now).items():
        known = before.get(name, (None, ""))[0]
        moved = abs(log(factor(figure, known)))
        if known is not None and not moved:
            same += 1
        else:
            rows.append((-moved, row(figure, known, f"{unit}  {name}")))
    return [each for _, each in sorted(rows, key=lambda x: x[0])], same


def of_machine(result: Result, cases: Collection[str]) -> str:
    """What it is, how busy it was, and what its probes found."""
    about = [
        f"{k} {v}" for k, v in result.items() if k not in ("cases", "goals")
    ]
    mine = [c for name, c in result["cases"].items() if name in cases]
    about.append(f"load {max(case['busy'] for case in mine)}")
    probes = [
        size["probes"]
        for case in mine
        for size in case["at"].values()
        if "probes" in size
    ]
    for unit in probes[0] if probes else ():
        rate = median(probe[unit][1] for probe in probes)
        about.append(f"{rate:.4g} {unit}")
    dates = sorted({case["date"] for case in mine})
    return f"{' to '.join({dates[0]: 0, dates[-1]: 0})}: {', '.join(about)}"


def report(now: Result, last: Result, cases: Collection[str]) -> Iterator[str]:
    """Of these cases. `last` is empty where there is no other run."""
    yield f"now   {of_machine(now, cases)}"
    if {*last.get("cases", ())} & {*cases}:
        yield f"last  {of_machine(last, cases)}"
    met = [goal["met"] for goal in now["goals"] if goal["case"] in cases]
    head = f"\n{'change':>8}{'now':>10}{'last':>10}  "
    yield f"{head}{sum(met)} of {len(met)} goals are met"
    yield from of_goals(now, last, cases)
    rows, same = of_contenders(now, last, cases)
    yield f"{head}beside these, {same} figures have not changed"
    yield from rows
