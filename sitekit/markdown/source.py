"""Pages and code as they are written: the one grammar of fences, includes and
the marks of sections.

A file is read when it was changed, and otherwise known: everything that a build
asks of a page comes through here.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sitekit.adapter import front_matter_of

# Each of these is drawn by the file of the one page that has it.
OF_ONE_PAGE = (*("calculator", "comparison", "difference", "strips"), "released", "yours")
# `OWN` are drawn by the file of their page.
DRAWN = ("figure", "flow", "table", "plot", "steps", "live", *OF_ONE_PAGE)
LANGUAGES = ("python", "text", "bash", *DRAWN)
# What a fence draws is a call below one of these keys; the rest are words.
CALLS = ("data", "draw", "flow", "live", "models", "plot", "steps", "table")
# Every line of a fence opens one like this, or closes it. It may stand indented
# in a box. No option keeps a block from running.
OPENING = re.compile(r'(?P<indent> *)```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?')
INCLUDE = re.compile(r'--8<-- "(?P<path>(?:attnref|tests)/[\w/]+\.py)(?::(?P<section>\w+))?"')
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
    """A line of a block as a list of one include, or of none."""
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
    """The fences of a page, in its order."""
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
    """The text of a file as it is now."""
    status = path.stat()
    state = status.st_mtime_ns, status.st_size
    cached = _texts.get(path)
    if cached is None or cached[0] != state:
        cached = _texts[path] = state, path.read_text(encoding="utf-8")
    return cached[1]


def table_of(path: Path) -> dict[str, Any]:
    """What a file of TOML holds: all tables that are written by hand are."""
    return tomllib.loads(text_of(path))


def parts_of(path: Path) -> tuple[str, dict[str, Any]]:
    """A page without its front matter, and the front matter."""
    text = text_of(path)
    cached = _pages.get(path)
    if cached is None or cached[0] != text:
        cached = _pages[path] = text, front_matter_of(text)
    return cached[1]
