"""ruff is clean, English is spoken; nothing of a machine is left in."""

import re
import subprocess
import sys

import pytest

from sitekit import ROOT
from sitekit.markdown.pages import markdown_files

# Habits of sitekit/README.md, and how often all English pages may have them.
HABITS = {
    r'caption: "?Of ': 0,
    r"\b(?:that|those) of\b": 30,
    r"\balone\b": 30,
    r"\b(?:the|an?|its) (?:told|asked|found|kept)\b(?! \w)": 0,
}
NOT_PROSE = (
    r"(?ms)^( *)```python.*?^\1```|^ *--8<--.*?$|`[^`\n]*`|(?<=\])\(.*?\)"
)


@pytest.mark.whole
@pytest.mark.parametrize("task", ["check .", "format --check ."])
def test_ruff_finds_nothing(task):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *task.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_line_is_wider_than_a_block_on_the_site():
    for folder in ("attnref", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            for line in path.read_text(encoding="utf-8").splitlines():
                wide = sum(2 if ord(c) > 0x2E7F else 1 for c in line)
                assert wide <= 80, f"{path.name}: {line}"


def test_no_machine_is_named():
    done = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    places = re.compile(r"/(?:work|root|home|Users)/\w|/tmp/\w|127\.0\.0\.1:\d")
    for name in done.stdout.splitlines():
        path = ROOT / name
        if path.suffix in {".woff2", ".zip"} or path.name == "test_style.py":
            continue
        text = path.read_text(encoding="utf-8")
        assert not places.search(text), f"{name}: {places.search(text)}"


@pytest.mark.parametrize("habit", HABITS)
def test_english_pages_are_written_as_one_speaks(habit):
    met = [
        f"{path.name}: ...{match[0]}..."
        for path in markdown_files("en")
        for match in re.finditer(
            f".{{0,30}}{habit}.{{0,20}}",
            re.sub(NOT_PROSE, "", path.read_text(encoding="utf-8")),
        )
    ]
    assert len(met) <= HABITS[habit], met
