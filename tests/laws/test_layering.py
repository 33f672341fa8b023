"""Who may import whom: the list in CONTRIBUTING.md, checked by ast."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sitekit import ROOT

PACKAGE = ROOT / "attnref"


def layers() -> list[list[str]]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = re.search(r"```layers\n(.*?)```", text, re.DOTALL)
    return [line.split() for line in block[1].splitlines()]


def imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in the file it does so."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: write absolute imports"
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def dotted(path: Path) -> str:
    name = path.relative_to(ROOT).with_suffix("").as_posix()
    return name.replace("/", ".").removesuffix(".__init__")


def faults(path: Path, above: set[str]) -> list[str]:
    allowed = {dotted(PACKAGE / name) for name in above}
    files = {dotted(p) for p in PACKAGE.rglob("*.py")}
    wrong = []
    for name in sorted(imported(path)):
        root = name.split(".")[0]
        if root in ("importlib", "runpy"):
            wrong.append(name)
        elif root == "attnref":
            if name == "attnref" or (name in files and name not in allowed):
                wrong.append(name)
        elif root != "torch" and root not in sys.stdlib_module_names:
            wrong.append(name)
    return wrong


def test_every_file_stands_in_the_list_once():
    listed = [name for line in layers() for name in line]
    actual = {str(p.relative_to(PACKAGE)) for p in PACKAGE.rglob("*.py")}
    assert sorted(listed) == sorted(actual)


@pytest.mark.parametrize("line", range(len(layers())))
def test_a_file_imports_only_what_stands_above_it(line):
    above = {name for names in layers()[:line] for name in names}
    for name in layers()[line]:
        assert faults(PACKAGE / name, above) == [], name


def test_the_package_never_imports_the_site():
    for path in PACKAGE.rglob("*.py"):
        assert not any(n.startswith("sitekit") for n in imported(path))


IMPORTS = """
import sys, time, torch

def seconds(names):
    start = time.process_time()
    for name in names.split():
        __import__(name)
    return time.process_time() - start

others = seconds("mailbox xmlrpc.server ftplib wave imaplib sched pyclbr")
before = set(sys.modules)
print(seconds("attnref"), others)
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - sys.stdlib_module_names - {"attnref", "torch"}))
"""


@pytest.mark.alone
def test_importing_attnref_is_quick_and_needs_torch_alone():
    """20 ms where some of the standard library takes 14, which tells how
    fast a machine is, or a moment of it."""
    tries = []
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", IMPORTS],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        times, others = done.stdout.split("\n")[:2]
        assert others == "", f"importing attnref brings in {others}"
        took, reference = map(float, times.split())
        allowed = 0.020 * max(1.0, reference / 0.014)
        tries.append((took, allowed))
        if took <= allowed:
            return
    pytest.fail(f"seconds to import attnref, and allowed: {tries}")
