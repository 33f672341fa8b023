"""What `make check PAGE=...` runs: pytest with `--page`."""

import inspect
import re
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sitekit import ROOT
from sitekit.markdown import pages, parity, source

# These compare with other libraries, train, plant or measure: not one page.
LEFT_OUT = ("commands", "check", "house", "oracles", "use")
# The names by which a test file runs over all pages, layers, caches or cores.
OVER_PAGES = re.compile(r"mark\.whole|\bPAGES\b|\bmarkdown_files\b|\bSTEMS\b")
OVER_ENTRIES = re.compile(
    r"\b(VARIANTS|LAYERS|MIXERS|CACHES|CORES|(each|every)_\w+)\b"
)
NO_WORD = r"(?<![a-z0-9])({})(?![a-z0-9])"


class OnePage:
    """The tests of a page: those that name it, those of the code that it shows
    and of the layers and caches in it, and those of all pages together (marked
    `whole`). Tests that need the built site are left out."""

    def __init__(self, stem: str) -> None:
        self.stem, self.name = stem, stem.rpartition("/")[2]
        self.file = self.name.replace("-", "_")
        body = pages.body_of(parity.twin(stem, "en"))
        sources = {ROOT / include.path for include in source.includes(body)}
        package = ROOT / "attnref"
        self.package = {f for f in sources if f.is_relative_to(package)}
        self.files = sources | {
            test
            for f in self.package
            for test in ROOT.glob(f"tests/*/**/test_{f.name}")
            if test.parent.name in (f.parent.name, "released")
        }

    @cached_property
    def entries(self) -> list[str]:
        """The layers, caches and cores that tests declare and that it shows."""
        if not any(
            f.parent.name in ("layers", "caches", "core") for f in self.package
        ):
            return []
        from tests.cores import CORES
        from tests.variants import CACHES, LAYERS

        kinds = {name: v.layer for name, v in LAYERS.items()}
        kinds |= {name: type(make(1)) for name, make in CACHES.items()}
        kinds |= {name: core.function for name, core in CORES.items()}
        return [
            name
            for name, kind in kinds.items()
            if Path(inspect.getfile(kind)) in self.package
        ]

    @cached_property
    def named(self) -> re.Pattern[str]:
        """A name of the page as a whole word; `_` separates words of a test."""
        names = map(re.escape, {self.name, self.file, *self.entries})
        return re.compile(NO_WORD.format("|".join(names)))

    def reads(self, path: Path) -> bool:
        """Whether a file may hold a test of the page: else it is not opened,
        nor is what it imports."""
        if path.is_dir() or path in self.files:
            return True
        if path.suffix == ".md":
            return self.is_meant_by(path)
        folder, *_ = path.relative_to(ROOT).parts
        if folder != "tests":
            return False
        if path.parent.name in LEFT_OUT and path.parent.name != self.folder:
            return False
        text = path.read_text(encoding="utf-8")
        return bool(
            self.named.search(path.stem)
            or OVER_PAGES.search(text)
            or self.named.search(" ".join(re.findall(r"def test_\w+", text)))
            or (path.parent.name == "site" and self.drawn.search(text))
            or (self.entries and OVER_ENTRIES.search(text))
        )

    @property
    def folder(self) -> str:
        return self.stem.partition("/")[0]

    @cached_property
    def drawn(self) -> re.Pattern[str]:
        return re.compile(rf"\b{self.file}\.\w+\(")

    def concerned_by(self, item: Any) -> bool:
        if {"site", "chromium"} & {*getattr(item, "fixturenames", ())}:
            return False
        if item.get_closest_marker("audit"):
            return False
        mark = item.get_closest_marker("whole")
        if item.path in self.files or (
            mark and (self.package or not mark.args)
        ):
            return True
        params = getattr(item, "callspec", SimpleNamespace(params={})).params
        if any(map(self.is_meant_by, params.values())):
            return True
        if item.path.suffix == ".md":
            return self.is_meant_by(item.path)
        if item.path.parent.name == "site":
            text = inspect.getsource(item.function)
            return bool(self.drawn.search(text))
        return bool(self.named.search(item.nodeid))

    def is_meant_by(self, value: object) -> bool:
        """Whether a path or an address, in either language, is the page's."""
        if not isinstance(value, str | Path):
            return False
        place = str(value).removeprefix(f"{ROOT}/docs/").removesuffix(".md")
        place = re.sub(r"^(en|zh)(/|$)", "", place).strip("/")
        return (place or "index") == self.stem
