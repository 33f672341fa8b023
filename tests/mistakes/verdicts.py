"""What the named tests say of each mistake of the catalogue.

    python -m tests.mistakes.verdicts [ID ...]

Each mistake is planted in a process of its own, forked from one that has torch
imported, and there the tests that it names run. Prints, by mistake and test,
the outcome as JSON: "failed", "passed", or what kept it from running.
"""

import json
import os
import sys
from typing import Any

import pytest

from tests.mutants import OPTIONS, ROOT, Pool, end_after, warm_up


class Outcomes:
    """A pytest plugin: whether each test failed; with parameters, any."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid
        if report.when == "call" or report.failed:
            for asked in (name, name.partition("[")[0]):
                if self.seen.get(asked) != "failed":
                    self.seen[asked] = report.outcome


def met(name: str) -> dict[str, str]:
    """In a process of its own: the package is imported here, with the fault."""
    from attnref.mistakes.catalogue import Planted, catalogue

    mistake = catalogue()[name]
    finder = Planted([mistake])
    for module in [m for m in sys.modules if m.split(".")[0] == "attnref"]:
        del sys.modules[module]
    sys.meta_path.insert(0, finder)
    end_after(60)
    outcomes = Outcomes()
    # Neither the examples of docstrings nor tracebacks are asked for.
    quick = ["-o", "addopts=", "--tb=no"]
    pytest.main([*OPTIONS, *quick, *mistake.tests], plugins=[outcomes])
    return {test: outcomes.seen.get(test, "not run") for test in mistake.tests}


def main(names: list[str]) -> None:
    folders = ROOT / "attnref", ROOT / "tests"
    warm_up(file for each in folders for file in sorted(each.rglob("*.py")))
    pool = Pool(int(os.environ.get("JOBS", "1")))
    tasks = [(name, lambda name=name: met(name)) for name in names]
    found = {name: verdict for name, verdict, _ in pool.over(tasks)}
    print(json.dumps(found))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        from attnref.mistakes.catalogue import catalogue

        sys.argv += catalogue()
    main(sys.argv[1:])
