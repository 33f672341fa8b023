"""`::: checks reference`: what each file in a folder of tests checks.

A row says the first paragraph of a file's docstring. A folder whose
`__init__.py` has one is a row itself, so that a new layer needs none. In
Chinese they are the sentences of docs/zh/docstrings.yml.
"""

import ast
import re
from functools import cache

from sitekit import ROOT
from sitekit.markdown import source

LINE = re.compile(r"^::: checks (\w+)$", re.MULTILINE)
HEAD = {"en": ("Where", "What holds"), "zh": ("在哪里", "保证什么")}


@cache
def _first_paragraph(code: str) -> str:
    text = ast.get_docstring(ast.parse(code)) or ""
    return " ".join(text.split("\n\n")[0].split())


def rows() -> dict[str, str]:
    """What files and folders of tests check, by their names."""
    rows: dict[str, str] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        folder = path.parent.relative_to(ROOT).as_posix()
        is_listed = any(folder.startswith(f"{name}/") for name in rows)
        if folder in rows or is_listed or folder == "tests/kit":
            continue
        text = _first_paragraph(source.text_of(path))
        if path.name == "__init__.py" and text:
            rows[folder] = text
        elif path.name.startswith("test_"):
            if not text:
                raise ValueError(f"{folder}/{path.name} says not what it tests")
            rows[f"{folder}/{path.name}"] = text
    return rows


def list_tests(markdown: str, language: str, chinese: dict[str, dict[str, str]]) -> str:
    """The Markdown of a page, with a table for each folder. The Chinese
    sentences are those of docs/zh/docstrings.yml."""

    def table(match: re.Match[str]) -> str:
        lines = [f"| {' | '.join(HEAD[language])} |", "| --- | --- |"]
        for name, text in rows().items():
            if name.startswith(f"tests/{match[1]}/"):
                text = text if language == "en" else chinese[name]["zh"]
                lines.append(f"| `{name.removeprefix('tests/')}` | {text} |")
        return "\n".join(lines)

    return LINE.sub(table, markdown)
