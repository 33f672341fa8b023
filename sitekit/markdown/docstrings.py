"""On the Chinese pages of the API, docstrings are in Chinese.

`docs/zh/docstrings.yml` holds all but their examples, beside the English that
it was written for: `make synced PAGE=api` takes over what has changed.
"""

import re
from functools import cache
from typing import Any

import griffe
import yaml

from sitekit import ROOT, api
from sitekit.markdown import checks

FILE = ROOT / "docs/zh/docstrings.yml"


EXAMPLES = re.compile(r"\n\n(?=Examples:\n)")


def prose(text: str) -> str:
    """The paragraphs before the examples, each in one line."""
    paragraphs = EXAMPLES.split(text)[0].split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs)


def name_of(item: Any) -> str:
    """`sdpa`, or `KVCache.append`."""
    inside = item.parent is not None and item.parent.is_class
    name = str(item.name)
    return f"{item.parent.name}.{name}" if inside else name


def english() -> dict[str, str]:
    """Names and docstrings of all that the pages of the API show, and files of
    tests with what they check."""
    package = griffe.load(
        "attnref", search_paths=[ROOT], try_relative_path=False
    )
    result: dict[str, str] = {}
    for place in api.places():
        shown = package[place.removeprefix("attnref.")]
        for one in (shown, *shown.members.values()):
            if one.docstring and not one.name.startswith("_"):
                result[name_of(one)] = prose(one.docstring.value)
    return result | checks.rows()


def chinese() -> dict[str, dict[str, str]]:
    """`{name: {en: ..., zh: ...}}`."""
    return _read(FILE.stat().st_mtime_ns)


@cache
def _read(changed: int) -> dict[str, dict[str, str]]:
    table: Any = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return dict(table)


def _parts(text: str) -> tuple[int, set[str]]:
    return text.count("\n\n"), set(re.findall("`[^`]+`", text))


class _Dumper(yaml.SafeDumper):
    def represent_scalar(self, tag: str, value: Any, style: Any = None) -> Any:
        style = "|" if "\n" in str(value) else style
        return super().represent_scalar(tag, value, style)


def check() -> list[str]:
    """What keeps the Chinese from being in line with the English."""
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
        f"{name} has other code or paragraphs in Chinese than in English"
        for name, line in there.items()
        if line["zh"] and _parts(line["zh"]) != _parts(line["en"])
    ]
    where = FILE.relative_to(ROOT)
    return [f"{where}: {fault}" for fault in sorted(problems)]


def mark_synced() -> None:
    """Take over the English; new names come without a Chinese line."""
    now, there = english(), chinese()
    table = {
        name: {"en": now[name], "zh": there.get(name, {}).get("zh", "")}
        for name in dict.fromkeys([*there, *now])
        if name in now
    }
    text = yaml.dump(
        table, None, _Dumper, allow_unicode=True, sort_keys=False, width=10_000
    )
    FILE.write_text(text, encoding="utf-8")


class InChinese(griffe.Extension):
    """Exchanges docstrings as the page is built; see mkdocs.zh.yml."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        line = chinese().get(name_of(obj), {}).get("zh")
        if line and obj.docstring and not obj.is_module:
            examples = EXAMPLES.split(obj.docstring.value)[1:]
            obj.docstring.value = "\n\n".join([line, *examples])
