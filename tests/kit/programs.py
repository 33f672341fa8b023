"""A Markdown file as a program: what pytest collects of it, and runs."""

import linecache
import traceback
from functools import cache
from pathlib import Path

import pytest
import torch

from sitekit import ROOT, pages, source


@cache
def program_of(path: Path) -> str:
    """The Python blocks of a page, as they are shown, in its order."""
    blocks = pages.render(pages.body_of(path)).blocks
    for block in blocks:
        if block.language not in source.LANGUAGES:
            raise ValueError(f"a fence of {block.language!r} never runs")
    return "\n".join(b.text for b in blocks if b.language == "python")


# Each block of these is run by a test of tests/use, and trains or compiles a
# model: `make test` sees that no name is missing, `make audit` runs them whole.
SLOW = tuple(f"use/{name}" for name in ("project", "pytorch", "ship"))


class Page(pytest.File):
    def collect(self):
        """Not rendered before it is run: that takes longer than most runs."""
        text = self.path.read_text(encoding="utf-8")
        # Of those below docs/, a test reads every fence.
        if "```python" in text or not self.path.is_relative_to(ROOT / "docs"):
            program = Program.from_parent(self, name="program")
            if self.path in [ROOT / f"docs/en/{stem}.md" for stem in SLOW]:
                program.add_marker("audit")
            yield program


class Program(pytest.Item):
    def runtest(self):
        source, name = program_of(self.path), self.nodeid
        assert source, f"{name}: no block of Python"
        linecache.cache[name] = (
            len(source),
            None,
            source.splitlines(keepends=True),
            name,
        )
        torch.manual_seed(0)
        torch.set_num_threads(1)
        exec(compile(source, name, "exec"), {"__name__": "page"})

    def repr_failure(self, excinfo):
        """From the line of the page on."""
        tb = excinfo.tb
        while tb and tb.tb_frame.f_code.co_filename != self.nodeid:
            tb = tb.tb_next
        return "".join(
            traceback.format_exception(excinfo.type, excinfo.value, tb)
        )

    def reportinfo(self):
        return self.path, None, self.nodeid
