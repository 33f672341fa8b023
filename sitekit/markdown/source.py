"""Pages and code as they are written: the one grammar of fences, includes and
the marks of sections.

A file is read when it was changed, and otherwise known: everything that a build
asks of a page comes through here.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sitekit.adapter import front_matter_of

# Every fence line of a page: an opening one of these, or a closing one. It may
# stand indented in a box.
# There is no way to write an option that keeps a block from running.
OWN = (
    *("calculator", "comparison", "difference", "strips"),
    "released",
    "yours",
)
# `OWN` are drawn by the file of their page.
DRAWN = ("figure", "flow", "table", "plot", "steps", *OWN)
LANGUAGES = ("python", "text", "bash", *DRAWN)
# What a fence draws is a call below one of these keys; the rest are words.
CALLS = ("draw", "flow", "models", "plot", "steps", "table")
OPENING = re.compile(
    r'(?P<indent> *)```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?'
)
INCLUDE = re.compile(
    r'--8<-- "(?P<path>(?:attnref|tests)/[\w/]+\.py)(?::(?P<section>\w+))?"'
)
MARK = re.compile(r"\s*# --8<-- \[(?P<kind>start|end):(?P<name>\w+)\]")


class Include(NamedTuple):
    path: str  # attnref/core/softmax.py
    section: str  # "": the whole file


class Fence(NamedTuple):
    line: int  # from 1, of the opening one
    indent: str
    language: str
    title: str | None
    body: list[str]  # without the indent

    @property
    def end(self) -> int:
        """The line that closes it."""
        return self.line + len(self.body) + 1

    @property
    def text(self) -> str:
        return "\n".join(self.body)

    @property
    def includes(self) -> list[Include]:
        return [i for line in self.body for i in includes_of(line)]


def includes_of(line: str) -> list[Include]:
    """The include that a line of a block is, or none."""
    match = INCLUDE.fullmatch(line.strip())
    return [Include(match["path"], match["section"] or "")] if match else []


def opened(line: str) -> "re.Match[str] | None":
    """The opening line of a fence of the site."""
    match = OPENING.fullmatch(line)
    return match if match and match["language"] in LANGUAGES else None


def fence_at(lines: list[str], index: int) -> Fence | None:
    """The fence that the line with this index opens, if it does."""
    match = opened(lines[index])
    if match is None:
        return None
    indent = match["indent"]
    end = lines.index(f"{indent}```", index + 1)
    body = [line[len(indent) :] for line in lines[index + 1 : end]]
    return Fence(index + 1, indent, match["language"], match["title"], body)


def fences(text: str) -> Iterator[Fence]:
    """Those of a page, in its order."""
    lines, index = text.split("\n"), 0
    while index < len(lines):
        try:
            fence = fence_at(lines, index)
        except ValueError:  # never closed: `faults` in pages.py says so
            return
        if fence:
            yield fence
            index = fence.end
        else:
            index += 1


def includes(text: str) -> list[Include]:
    """What a page includes, in its order."""
    return [include for fence in fences(text) for include in fence.includes]


def sections(code: str) -> dict[str, str]:
    """The marked parts of a file, by name. One begins where a mark stands at
    the start of a line or, in a test, deeper."""
    parts: dict[str, list[str]] = {}
    name = ""
    for line in code.split("\n"):
        match = MARK.fullmatch(line)
        if match:
            name = match["name"] if match["kind"] == "start" else ""
            if name:
                parts[name] = []
        elif name:
            parts[name].append(line)
    return {name: "\n".join(lines) + "\n" for name, lines in parts.items()}


_texts: dict[Path, tuple[tuple[int, int], str]] = {}
_pages: dict[Path, tuple[str, tuple[str, dict[str, Any]]]] = {}


def text_of(path: Path) -> str:
    """A file as it is now."""
    status = path.stat()
    state = status.st_mtime_ns, status.st_size
    known = _texts.get(path)
    if known is None or known[0] != state:
        known = _texts[path] = state, path.read_text(encoding="utf-8")
    return known[1]


def parts_of(path: Path) -> tuple[str, dict[str, Any]]:
    """A page without its front matter, and the front matter."""
    text = text_of(path)
    known = _pages.get(path)
    if known is None or known[0] != text:
        known = _pages[path] = text, front_matter_of(text)
    return known[1]
