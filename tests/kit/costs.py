"""What `make test` takes, in CPU seconds: python -m tests.kit.costs [ARGUMENTS]

Runs pytest with these arguments, or else as `make test` does, and prints a
table by kind, and what one more page, variant and mistake would add. CPU
seconds are those of a test with all processes that it starts; what else the
machine does is not in them, though a busy or another machine is slower or
faster in all of them. Nothing compares them with a bound.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

from sitekit import ROOT

HERTZ = os.sysconf("SC_CLK_TCK")
AS_MAKE_TEST = ["-n", "2", "--dist", "loadfile", "-m", "not audit"]
# Of representatives, which what is new is not: Chinese pages of each type, and
# GQA with each core and with a second cache.
SAMPLES = (
    r"axe|runs_without_attnref|test_(browser|calculator|exercises|goals)"
    r"|every_page.*\[zh/|gqa, growing|a_length_may"
    r"|test_past.*mask_is_checked"
)
# The first that matches the name of a test or of a fixture.
KINDS = {
    "collection and imports": "^start$",
    "builds of the site": r"^fixture (site|published|unpacked|source)$",
    "pages read by axe, in all fonts": r"test_every_page.*axe",
    "every page in a browser": r"test_every_page|^fixture (fonts|tab)$",
    "the rest in a browser": r"site/test_(browser|calculator|search)"
    r"|^fixture (chromium|calculator_page)$",
    "notebooks": r"site/test_notebooks|^fixture runner$",
    "serving, faults in builds, make new": r"site/test_(serve|fences|new)",
    "what is drawn, said and built": r"^tests/site/",
    "pages as programs": r"^(docs/|README)",
    "oracles": r"^tests/\w+/oracles/",
    "use in a project": r"^tests/site/use/",
    "planted mistakes": r"check/test_catalogue",
    "exercises": r"^tests/check/|commands/test_check",
    "copies": r"commands/test_copy",
    "install, types, style": r"house/test_(install|public|style)",
    "properties": r"^tests/reference/test_\w+\.py",
    "goals at small sizes": r"^tests/house/test_goals",
    "other fixtures": "^fixture ",
    "unit tests and docstrings": "",
}


def seconds() -> float:
    """Of this process and all below it, those that have ended too."""
    parents, used = {}, {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path(f"/proc/{process}/stat").read_bytes()
        except OSError:
            continue  # it has just ended
        fields = text[text.rindex(b")") + 2 :].split()
        parents[process] = fields[1].decode()
        used[process] = sum(map(int, fields[11:15])) / HERTZ

    def is_ours(process: str) -> bool:
        while process in parents and process != str(os.getpid()):
            process = parents[process]
        return process == str(os.getpid())

    return sum(time for process, time in used.items() if is_ours(process))


@cache
def subjects() -> dict[str, tuple[str, str]]:
    """What may be added, by each name that a test has for it: its kind, and
    its own name."""
    from attnref.check.catalogue import catalogue
    from sitekit.markdown import pages
    from tests.variants import LAYERS

    result = {name: ("mistake", name) for name in catalogue()}
    result |= {name: ("variant", name) for name in LAYERS}
    for path in pages.markdown_files("en") + pages.markdown_files("zh"):
        stem, address = pages.stem_of(path), pages.address_of(path)
        for name in (str(path), stem, address, f"zh/{address}"):
            result[name] = ("page", stem)
    return result


def subject_of(item: pytest.Item) -> tuple[str, str]:
    """What the test is run for, if for each page, variant or mistake."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if not re.search(SAMPLES, item.nodeid):
        for value in map(str, [item.path, *params.values()]):
            if value in subjects():
                return subjects()[value]
    return "", ""


def note(name: str, used: float, subject: tuple[str, str] = ("", "")) -> None:
    line = json.dumps([name, max(used, 0), *subject])
    with open(os.environ["COSTS"], "a", encoding="utf-8") as file:
        file.write(line + "\n")  # whole lines: workers write to one file


class Plugin:
    started, in_fixtures = False, 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        if not self.started:
            self.started = True
            note("start", seconds())
        subject = subject_of(item)
        before, self.in_fixtures = seconds(), 0.0
        result = yield
        used = seconds() - before - self.in_fixtures
        note(item.nodeid, used, subject)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        if fixturedef.scope == "function" or hasattr(request, "param"):
            return (yield)
        before, inner = seconds(), self.in_fixtures
        result = yield
        used = seconds() - before - (self.in_fixtures - inner)
        self.in_fixtures += max(used, 0)
        note(f"fixture {fixturedef.argname}", used)
        return result


def pytest_configure(config: pytest.Config) -> None:
    if "COSTS" in os.environ:
        config.pluginmanager.register(Plugin())


def kind_of(name: str) -> str:
    return next(kind for kind, rule in KINDS.items() if re.search(rule, name))


def table(lines: list[tuple[str, float, str, str]]) -> str:
    used, tests, added = Counter(), Counter(), defaultdict(Counter)
    for name, time, subject, own in lines:
        kind = kind_of(name)
        used[kind] += time
        tests[kind] += not name.startswith(("start", "fixture "))
        added[subject][own] += time
    rows = [f"{'CPU seconds':>11} {'tests':>6}"]
    rows += [f"{t:11.1f} {tests[k]:6} {k}" for k, t in used.most_common()]
    rows += [f"{sum(used.values()):11.1f} {sum(tests.values()):6} in all", ""]
    there = Counter(kind for kind, _ in {*subjects().values()})
    for kind, n in there.items():
        most = (f"{t:.2f} {name}" for name, t in added[kind].most_common(3))
        rows.append(
            f"{added[kind].total() / n:11.2f}        for one more {kind} "
            f"({n} are there; at most {', '.join(most)})"
        )
    built = used["builds of the site"] / there["page"]
    return "\n".join([*rows, f"{built:11.2f}        to build one more page"])


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "costs")
        path.touch()
        command = [sys.executable, "-m", "pytest", "-p", "tests.kit.costs"]
        done = subprocess.run(
            [*command, *(arguments or AS_MAKE_TEST)],
            cwd=ROOT,
            env=os.environ | {"COSTS": str(path)},
        )
        lines = path.read_text(encoding="utf-8").splitlines()
    print(table([json.loads(line) for line in lines]))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
