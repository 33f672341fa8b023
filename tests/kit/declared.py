"""What test files declare of that which they test."""

import re
from importlib import import_module
from typing import Any

from sitekit import ROOT

HERE = ROOT / "tests" / "reference"


def declared(folder: str, word: str) -> dict[str, Any]:
    """The values that the test files of a folder give to `word`, by the names
    of the files, or to its plural, by names of their own."""
    entries: dict[str, Any] = {}
    for path in sorted(HERE.glob(f"{folder}/test_*.py")):
        text = path.read_text(encoding="utf-8")
        match = re.search(
            rf"^(?:def )?({word}S?)(?= =|:|\()", text, re.MULTILINE
        )
        if match:
            name = path.relative_to(ROOT).with_suffix("").as_posix()
            value = getattr(import_module(name.replace("/", ".")), match[1])
            stem = path.stem.removeprefix("test_")
            entries |= value if match[1] != word else {stem: value}
    return entries
