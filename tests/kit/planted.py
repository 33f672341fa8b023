"""Mistakes that a kernel can make, from planted.txt: the file and a name, the
right code after `-`, the wrong one after `+`."""

import importlib.util
from pathlib import Path

from sitekit import ROOT


def _entries() -> dict[str, tuple[str, str]]:
    path, entries = Path(__file__).with_suffix(".txt"), {}
    for entry in path.read_text(encoding="utf-8").strip().split("\n\n"):
        name, *lines = entry.split("\n")
        entries[name] = tuple(
            "\n".join(line[2:] for line in lines if line[0] == sign)
            for sign in "-+"
        )
    return entries


PLANTED = _entries()


def wrong_text(name: str) -> str:
    """The file of a kernel with this mistake."""
    (stem, _), (right, wrong) = name.split(), PLANTED[name]
    path = ROOT / f"attnref/kernels/{stem}.py"
    text = path.read_text(encoding="utf-8")
    assert right in text, f"{path.name} has no {right!r}"
    return text.replace(right, wrong, 1)


def module_of(path: Path, text: str):
    """A file is needed: Triton reads the source of a function."""
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
