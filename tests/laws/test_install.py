"""The way in: what is promised of Python and torch, and what gets installed."""

import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata

import pytest
from packaging.specifiers import SpecifierSet

from sitekit import ROOT

PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if "==" in line
)


def make(*arguments, cwd=ROOT):
    return subprocess.run(
        ["make", *arguments], cwd=cwd, capture_output=True, text=True
    )


def test_every_pin_takes_the_python_that_is_asked_for():
    """The first 3.11: Debian 12 has 3.11.2, and some packages want 3.11.5."""
    for name, version in PINS.items():
        found = metadata.distribution(name)
        assert found.version.split("+")[0] == version, name
        wanted = found.metadata["Requires-Python"] or ""
        assert SpecifierSet(wanted).contains("3.11.0"), f"{name}: {wanted}"


def test_the_same_python_and_torch_are_asked_for_everywhere():
    """3.11 for the site; for the package alone, what its metadata says."""
    told = metadata.metadata("attnref")
    python = told["Requires-Python"].removeprefix(">=")
    (torch,) = (
        need.removeprefix("torch>=")
        for need in told.get_all("Requires-Dist")
        if need.startswith("torch")
    )
    for name in ("README.md", "README.zh.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert re.findall(r"Python (3\.\d+)", text) == ["3.11", python]
        assert re.findall(r"torch (2\.\d+)", text) == [torch]
        assert f"torch=={PINS['torch']} --index-url" in text
    assert "(3, 11)" in (ROOT / "Makefile").read_text()
    ci = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r'python-version: "(.*)"', ci) == ["3.11", python]
    assert f"torch=={torch}.0" in ci
    assert (
        f'python_version = "{python}"' in (ROOT / "pyproject.toml").read_text()
    )


def test_an_old_python_is_told_in_a_line(tmp_path):
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    old = tmp_path / "python3.9"
    old.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "import sys\n'
        'sys.version_info = (3, 9, 2)\nexec(sys.argv[1])" "$2"\n'
    )
    old.chmod(0o755)
    done = make("serve", "PYTHON=./python3.9", cwd=tmp_path)
    assert done.returncode != 0
    said = done.stderr.splitlines()
    assert said[0].startswith("The site needs Python 3.11 or later, and ")
    assert "is 3.9: set PYTHON=" in said[0]
    assert all(line.startswith("make") for line in said[1:])
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("kind", ["", "cpu"])
def test_the_cpu_build_of_torch_is_there_to_be_chosen(kind):
    plan = make("-n", "-B", ".venv/ready", f"TORCH={kind}").stdout
    pip = [line for line in plan.splitlines() if "pip install" in line]
    assert pip[-1].endswith('-c constraints.txt -e ".[dev]"')
    first = "--index-url https://download.pytorch.org/whl/cpu torch"
    assert [line.endswith(first) for line in pip[:-1]] == [True] * bool(kind)


def test_the_wheel_holds_attnref_alone(tmp_path):
    build = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(
        [sys.executable, *build], cwd=ROOT, check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"attnref"}
    inside = {name for name in names if name.startswith("attnref/")}
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "attnref").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == files
    assert {"attnref/py.typed", "attnref/numbers/specs.json"} <= inside
