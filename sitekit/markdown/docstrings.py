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
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def name_of(item: Any) -> str:
    """`sdpa`, or `KVCache.append`."""
    inside = item.parent is not None and item.parent.is_class
    name = str(item.name)
    return f"{item.parent.name}.{name}" if inside else name


@cache
def package() -> Any:
    return griffe.load("attnref", search_paths=[ROOT], try_relative_path=False)


def english() -> dict[str, str]:
    """The docstrings of all that the pages of the API show, and what each file
    of tests checks, by name."""
    package.cache_clear()  # a build while pages are served begins here
    result: dict[str, str] = {}
    for place in api.places():
        definition = package()[place.removeprefix("attnref.")]
        for item in (definition, *definition.members.values()):
            if item.docstring and not item.name.startswith("_"):
                result[name_of(item)] = prose(item.docstring.value)
    return result | checks.rows()


def chinese() -> dict[str, dict[str, str]]:
    """`{name: {en: ..., zh: ...}}`."""
    return _read(FILE.stat().st_mtime_ns)


@cache
def _read(time: int) -> dict[str, dict[str, str]]:
    table: Any = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return dict(table)


def _parts(text: str) -> tuple[int, set[str]]:
    return text.count("\n\n"), set(re.findall("`[^`]+`", text))


class _Dumper(yaml.SafeDumper):
    def represent_scalar(self, tag: str, value: Any, style: Any = None) -> Any:
        style = "|" if "\n" in str(value) else style
        return super().represent_scalar(tag, value, style)


def check() -> list[str]:
    """What is to be done until the Chinese says what the English says."""
    texts, lines = english(), chinese()
    missing, stale = texts.keys() - lines.keys(), lines.keys() - texts.keys()
    problems = [f"it has no line for {name}" for name in missing]
    problems += [f"{name} is on no page" for name in stale]
    problems += [
        f"{name} now says {texts[name]!r}; bring zh in line"
        for name in texts.keys() & lines.keys()
        if texts[name] != lines[name]["en"]
    ]
    problems += [
        f"{name} says nothing in Chinese"
        for name, line in lines.items()
        if not re.search("[一-鿿]", line["zh"])
    ]
    problems += [
        f"{name} has other code or paragraphs in Chinese than in English"
        for name, line in lines.items()
        if line["zh"] and _parts(line["zh"]) != _parts(line["en"])
    ]
    file = FILE.relative_to(ROOT)
    return [f"{file}: {fault}" for fault in sorted(problems)]


def mark_synced() -> None:
    """Take over the English; new names come without a Chinese line."""
    texts, lines = english(), chinese()
    table = {
        name: {"en": texts[name], "zh": lines.get(name, {}).get("zh", "")}
        for name in dict.fromkeys([*lines, *texts])
        if name in texts
    }
    text = yaml.dump(table, None, _Dumper, allow_unicode=True, sort_keys=False, width=10_000)
    FILE.write_text(text, encoding="utf-8")


class InChinese(griffe.Extension):
    """Exchanges docstrings as the page is built; see mkdocs.zh.yml."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        line = chinese().get(name_of(obj), {}).get("zh")
        if line and obj.docstring and not obj.is_module:
            examples = EXAMPLES.split(obj.docstring.value)[1:]
            obj.docstring.value = "\n\n".join([line, *examples])
