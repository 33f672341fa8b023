"""On the Chinese pages of the API, docstrings begin in Chinese.

`docs/zh/docstrings.yml` holds the first lines, each beside the English one that
it was written for: `make synced PAGE=api` takes over those that have changed.
"""

import re
from functools import cache
from typing import Any

import griffe
import yaml

from sitekit import ROOT, api
from sitekit.markdown import checks

FILE = ROOT / "docs/zh/docstrings.yml"


def summary(text: str) -> str:
    """The first paragraph, in one line."""
    return " ".join(text.split("\n\n")[0].split())


def name_of(item: Any) -> str:
    """`sdpa`, or `KVCache.append`."""
    inside = item.parent is not None and item.parent.is_class
    name = str(item.name)
    return f"{item.parent.name}.{name}" if inside else name


def english() -> dict[str, str]:
    """Names and first lines of all that the pages of the API show, and files of
    tests with what they check."""
    package = griffe.load(
        "attnref", search_paths=[ROOT], try_relative_path=False
    )
    result: dict[str, str] = {}
    for place in api.places():
        shown = package[place.removeprefix("attnref.")]
        for one in (shown, *shown.members.values()):
            if one.docstring and not one.name.startswith("_"):
                result[name_of(one)] = summary(one.docstring.value)
    return result | checks.rows()


def chinese() -> dict[str, dict[str, str]]:
    """`{name: {en: ..., zh: ...}}`."""
    return _read(FILE.stat().st_mtime_ns)


@cache
def _read(changed: int) -> dict[str, dict[str, str]]:
    table: Any = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return dict(table)


def _code(line: str) -> set[str]:
    return set(re.findall("`[^`]+`", line))


def check() -> list[str]:
    """What keeps the Chinese lines from being in line with the English."""
    now, there = english(), chinese()
    new, gone = now.keys() - there.keys(), there.keys() - now.keys()
    problems = [f"it has no line for {name}" for name in new]
    problems += [f"{name} is on no page" for name in gone]
    problems += [
        f"{name} now says {now[name]!r}; bring zh in line"
        for name in now.keys() & there.keys()
        if now[name] != there[name]["en"]
    ]
    problems += [
        f"{name} says nothing in Chinese"
        for name, line in there.items()
        if not re.search("[一-鿿]", line["zh"])
    ]
    problems += [
        f"{name} has other code in Chinese than in English"
        for name, line in there.items()
        if line["zh"] and _code(line["zh"]) != _code(line["en"])
    ]
    where = FILE.relative_to(ROOT)
    return [f"{where}: {fault}" for fault in sorted(problems)]


def mark_synced() -> None:
    """Take over the English lines; new names come without a Chinese one."""
    now, there = english(), chinese()
    table = {
        name: {"en": now[name], "zh": there.get(name, {}).get("zh", "")}
        for name in dict.fromkeys([*there, *now])
        if name in now
    }
    text = yaml.safe_dump(
        table, allow_unicode=True, sort_keys=False, width=10_000
    )
    FILE.write_text(text, encoding="utf-8")


class InChinese(griffe.Extension):
    """Exchanges first lines as the page is built; see mkdocs.zh.yml."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        line = chinese().get(name_of(obj), {}).get("zh")
        if line and obj.docstring and not obj.is_module:
            old = obj.docstring.value
            _, rest = (old + "\n\n").split("\n\n", 1)
            obj.docstring.value = f"{line}\n\n{rest}".strip()
