"""The way in: what is promised of Python and torch, and what gets installed."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import torch
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from packaging.metadata import Metadata
from packaging.specifiers import SpecifierSet

import attnref
from attnref.__main__ import main
from sitekit import ROOT, files
from tests.kit import pins

PINS = pins.pinned()


def make(*arguments, cwd=ROOT):
    return subprocess.run(
        ["make", *arguments], cwd=cwd, capture_output=True, text=True
    )


def test_every_pin_takes_the_required_python():
    """From the first 3.11 on: Debian 12 has 3.11.2, and some packages want
    3.11.5. On each Python there is one pin per package."""
    pythons = ["3.11.0", "3.11.2", "3.11.4", "3.11.5", "3.13.1"]
    for python in pythons:
        names = [pin.name for pin in pins.LINES if pins.holds(pin, python)]
        assert sorted(names) == sorted(PINS), python
    for pin in pins.LINES:
        installed = metadata.distribution(pin.name)
        version = installed.version.split("+")[0]
        if PINS[pin.name] not in str(pin.specifier):
            continue  # of another Python
        assert version == PINS[pin.name], pin
        wanted = SpecifierSet(installed.metadata["Requires-Python"] or "")
        for python in pythons:
            if pins.holds(pin, python):
                assert wanted.contains(python), f"{pin}: {wanted}"


def test_the_same_python_and_torch_are_required_everywhere():
    """For the site, and for the package alone: what its metadata says."""
    project = metadata.metadata("attnref")
    python = project["Requires-Python"].removeprefix(">=")
    (torch,) = (
        need.removeprefix("torch>=")
        for need in project.get_all("Requires-Dist")
        if need.startswith("torch>=")
    )
    for name in ("README.md", "README.zh.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert re.findall(r"Python (3\.\d+)", text) == [python, python]
        assert re.findall(r"torch (2\.\d+)", text) == [torch]
        assert f"torch=={PINS['torch']} --index-url" in text
    makefile = (ROOT / "Makefile").read_text()
    assert f"({python.replace('.', ', ')})" in makefile
    ci = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    versions = re.findall(r'python-version: "(.*)"', ci)
    assert {*versions} == {python}
    assert f"torch=={torch}.0" in ci
    assert (
        f'python_version = "{python}"' in (ROOT / "pyproject.toml").read_text()
    )


def test_an_old_python_is_refused_in_a_line(tmp_path):
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
    lines = done.stderr.splitlines()
    assert lines[0].startswith("The site needs Python 3.11 or later, and ")
    assert "is 3.9: set PYTHON=" in lines[0]
    assert all(line.startswith("make") for line in lines[1:])
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("kind", ["", "cpu"])
def test_the_cpu_build_of_torch_is_there_to_be_chosen(kind):
    plan = make("-n", "-B", ".venv/ready", f"TORCH={kind}").stdout
    pip = [line for line in plan.splitlines() if "pip install" in line]
    assert pip[-1].endswith("-c constraints.txt -e . --group dev")
    assert '--upgrade "pip>=25.1"' in pip[-2]
    first = "--index-url https://download.pytorch.org/whl/cpu torch"
    assert [line.endswith(first) for line in pip[:-2]] == [True] * bool(kind)


BUILD = "python -m build --no-isolation"
ALONE = "python -I tests/alone.py"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, *BUILD.split()[1:], "--outdir", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def test_the_wheel_holds_attnref_alone(built):
    assert files.wheel() == built[1].read_bytes(), "that of the site is another"
    names = zipfile.ZipFile(built[1]).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"attnref"}
    inside = {name for name in names if name.startswith("attnref/")}
    assert inside == {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "attnref").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {
        "attnref/__init__.pyi",
        "attnref/py.typed",
        "attnref/released/specs.json",
    } <= inside


def test_the_sdist_holds_what_git_has(built):
    """With which `make test` runs; nothing built, no environment."""
    with tarfile.open(built[0]) as sdist:
        names = sdist.getnames()
    inside = {name.partition("/")[2] for name in names} - {"PKG-INFO"}
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    assert inside == {
        x for x in done.stdout.splitlines() if (ROOT / x).exists()
    }


def test_its_metadata_is_valid_and_can_be_read_on_an_index(built):
    wheel = zipfile.ZipFile(built[1])
    (name,) = (n for n in wheel.namelist() if n.endswith("/METADATA"))
    data = Metadata.from_email(wheel.read(name), validate=True)
    assert (data.name, str(data.version)) == ("attnref", attnref.__version__)
    assert data.license_expression == "MIT-0"
    needs = [str(n) for n in data.requires_dist if "extra" not in str(n)]
    assert needs == ["torch>=2.4"]
    assert data.author and not data.project_urls
    assert data.provides_extra == ["kernels", "vectors"]
    text = data.description
    assert data.description_content_type == "text/markdown"
    # Links, also as <...>, [..]: or HTML: whole addresses, or none.
    links = re.findall(r"\]\(([^)]*)|(?:href|src)=\"?([^\" >]*)", text)
    links += re.findall(r"^\[[^]]+\]: *(\S+)()", text, re.M)
    assert [x for x in map("".join, links) if not x.startswith("https:")] == []
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(block, {})
    (shell,) = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    for line in shell.splitlines():
        command, *words = shlex.split(line)
        words = words[: words.index("-o")] if "-o" in words else words
        assert command == "attnref" and main(words)


def test_a_release_has_the_addresses_of_whoever_releases(monkeypatch):
    monkeypatch.setenv("REPOSITORY_URL", "https://example.org/us/attnref/")
    monkeypatch.setenv("SITE_URL", "https://example.org/")
    metadata = ProjectMetadata(str(ROOT), PluginManager())
    urls = metadata.core.urls
    assert urls["Issues"] == "https://example.org/us/attnref/issues"
    assert {*urls} == {"Source", "Issues", "Changelog", "Documentation"}
    build, *_ = WORKFLOWS["release"]["jobs"].values()
    (step,) = (x for x in build["steps"] if "-m build" in x.get("run", ""))
    assert {*step["env"]} == {"REPOSITORY_URL"}


@pytest.mark.audit  # its files and imports are read by other tests
def test_the_wheel_works_beside_nothing_but_torch(built, tmp_path):
    pip = "pip install --quiet --no-deps --no-index --no-compile --target"
    subprocess.run(
        [sys.executable, "-m", *pip.split(), str(tmp_path), str(built[1])],
        check=True,
    )
    places = [str(tmp_path), str(Path(torch.__file__).parent.parent)]
    _, *alone = ALONE.split()
    done = subprocess.run(
        [sys.executable, "-S", *alone, *places],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"attnref {attnref.__version__}: ")
    script = (tmp_path / "bin" / "attnref").read_text(encoding="utf-8")
    assert "from attnref.__main__ import command" in script


def release_faults(tag, version, changes):
    """Why a release of this tag is refused."""
    newest = re.search(r"^## (.*)$", changes, re.M)[1]
    faults = []
    if tag != f"v{version}":
        faults.append(f"the tag is {tag}, the version is {version}")
    if not re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", newest):
        faults.append(
            f"CHANGELOG.md begins with {newest!r}: write {version} and the date"
        )
    return faults


def test_a_release_is_what_its_tag_and_the_changelog_say():
    """On a tag, of this tag: the workflow of releases runs all tests."""
    good = "# Changelog\n\n## 0.3.1 - 2031-07-05\n\n## 0.3.0 - 2031-02-03\n"
    assert release_faults("v0.3.1", "0.3.1", good) == []
    assert len(release_faults("v0.3.0", "0.3.1", good)) == 1
    assert len(release_faults("v0.3.0", "0.3.0", good)) == 1
    for newest in ("Unreleased", "0.3.1 - unreleased"):
        changes = good.replace("0.3.1 - 2031-07-05", newest)
        assert len(release_faults("v0.3.1", "0.3.1", changes)) == 1
    if os.environ.get("GITHUB_REF_TYPE") == "tag":
        changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        tag = os.environ["GITHUB_REF_NAME"]
        assert release_faults(tag, attnref.__version__, changes) == []


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_it_is_cited_as_it_is_licensed_and_released():
    """In the Citation File Format 1.2.0, with all that it asks for."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == attnref.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["keywords"] == PROJECT["keywords"]
    assert citation["authors"] == PROJECT["authors"]
    (name,) = (author["name"] for author in citation["authors"])
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert f"Copyright 2026 {name[0].lower()}{name[1:]}" in licence


WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in (ROOT / ".github" / "workflows").glob("*.yml")
}


def test_a_release_runs_what_the_tests_run_and_is_trusted_by_its_workflow():
    release = WORKFLOWS["release"]
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML's `on`
    assert release["permissions"] == {"contents": "read"}
    build, publish = release["jobs"]["build"], release["jobs"]["publish"]
    steps = [step["run"] for step in build["steps"] if "run" in step]
    assert steps[3] == f".venv/bin/{BUILD}"
    assert steps[-2:] == [
        "alone/bin/pip install -c constraints.txt dist/*.whl",
        f"alone/bin/{ALONE}",
    ]
    versions = release["jobs"]["versions"]
    assert publish["needs"] == ["build", "versions"]
    runs = [step.get("run", "") for step in versions["steps"]]
    for kind in ("*.whl", "*.tar.gz"):
        (place,) = (n for n, run in enumerate(runs) if run.endswith(kind))
        assert runs[place + 1] == f"{ALONE}"
    kind = "Programming Language :: Python :: 3."
    promised = [x for x in PROJECT["classifiers"] if x.startswith(kind)]
    pythons = [
        f"{kind[:-2]}{x}" for x in versions["strategy"]["matrix"]["python"]
    ]
    assert pythons == promised
    assert PROJECT["requires-python"] == f">={pythons[0].split()[-1]}"
    assert publish["environment"]["name"] == "pypi"
    assert publish["permissions"] == {"id-token": "write"}
    assert not any("run" in step for step in publish["steps"])
    *_, last = publish["steps"]
    assert last == {"uses": "pypa/gh-action-pypi-publish@release/v1"}
    notes = release["jobs"]["notes"]
    assert notes["needs"] == "publish"
    newest = notes["steps"][1]["run"]
    changes = "# Changelog\n\n## 0.2.0 - 2031\n\n- b\n\n## 0.1.0\n\n- a\n"
    done = subprocess.run(
        newest.replace("CHANGELOG.md >notes.md", ""),
        shell=True,
        input=changes,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "- b"


def test_ci_runs_all_checks_and_what_is_published_has_passed_them():
    checks = ["make test", "make audit"]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert script.splitlines()[-1:] == checks[:1]
    fonts = set()
    for workflow, job, commands in (
        ("ci", "test", checks[:1]),
        ("ci", "audit", checks[1:]),
        ("pages", "build", checks),
        ("release", "build", checks),
    ):
        steps = WORKFLOWS[workflow]["jobs"][job]["steps"]
        first, *others = [step["run"] for step in steps if "run" in step]
        assert others[: len(commands)] == commands, workflow
        fonts.add(first)
    assert len(fonts) == 1
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [each in readme for each in checks] == [True, True]


def test_every_command_of_ci_is_in_the_makefile():
    """And times never fail a build."""
    targets = re.findall(
        r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text("utf-8"), re.M
    )
    jobs = {
        f"{workflow}: {name}": job
        for workflow, content in WORKFLOWS.items()
        for name, job in content["jobs"].items()
    }
    lenient = [name for name, job in jobs.items() if "continue-on-error" in job]
    assert lenient == ["ci: bench"]
    for name, job in jobs.items():
        for step in job["steps"]:
            for command in re.findall(r"make ([\w-]+)", step.get("run", "")):
                assert command in targets, f"{name}: make {command}"


def test_every_action_is_of_one_version_in_all_workflows():
    used = {
        step["uses"]
        for workflow in WORKFLOWS.values()
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if "uses" in step
    }
    names = [action.partition("@")[0] for action in used]
    assert len({*names}) == len(names), sorted(used)
    for action in used:
        assert re.fullmatch(r"[\w/-]+@(v\d+|release/v\d+)", action)
