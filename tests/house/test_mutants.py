"""`make mutants` itself, on a package of one module, and a sample of it."""

import os
import re
import subprocess
import sys

import pytest

from sitekit import ROOT

MODULE = '''\
def grown(x: int, by: int = 2) -> int:
    """An example.

    >>> grown(1)
    3
    """
    if x > 100:
        return 0
    return x + by
'''
TESTS = """\
from attnref.core.tiny import grown


def test_grown():
    assert grown(3, 4) == 7 and grown(101, 1) == 0
"""
ORACLE = """\
from attnref.core.tiny import grown


def test_grown_up_to_a_hundred():
    assert [grown(n, 0) for n in range(101)] == [*range(101)]
"""


def mutants(folder, temporary, *options):
    done = subprocess.run(
        [sys.executable, "-P", ROOT / "tests" / "mutants.py", *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_fault_that_no_test_notices_is_told(tmp_path):
    for name, text in {
        "pytest.ini": "[pytest]\naddopts = --doctest-modules",
        "attnref/core/tiny.py": MODULE,
        "tests/reference/core/test_tiny.py": TESTS,
        "tests/reference/core/test_twin.py": TESTS.replace("== 7", "== 8"),
        "tests/reference/oracles/test_other.py": ORACLE,
    }.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
        for folder in {*file.parents} & {*tmp_path.rglob("*")}:
            (folder / "__init__.py").touch()
    out = mutants(tmp_path, tmp_path, "--size", "0", "--jobs", "2")
    ends = dict(
        re.findall(r"of \d+: attnref/core/tiny.py:(\d+ [\w ]+): (\w+)", out)
    )
    # A test that fails as it is counts for nothing.
    assert (
        "left out, it fails as it is: tests/reference/core/test_twin.py" in out
    )
    assert ends == {
        "1 constant": "killed",  # by the example, after a new import
        "7 comparison": "killed",  # by an oracle, after all others
        "7 constant": "killed",
        "7 negated": "killed",
        "8 constant": "killed",
        "8 statement dropped": "killed",
        "9 operator": "killed",
    }
    assert "    - if x > 100:\n    + if (x >= 100):\n" in out
    assert re.search(r"attnref/core/tiny.py +7 +0 +0\n", out)


@pytest.mark.audit
def test_of_twenty_faults_in_the_core_its_tests_notice_all_but_two(tmp_path):
    """Of all, 98 in 100 die; some of a sample change nothing that counts."""
    some = "softmax,sdpa,merge,rope"
    tests = f"{some},scaling"
    options = ("--only", some, "--tests", tests, "--size", "20", "--jobs", "2")
    out = mutants(ROOT, tmp_path, *options)
    (dead,) = re.findall(r"(\d+) of 20 die", out)
    assert int(dead) >= 18 and "left out" not in out, out
