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
    """The sentences, by the names of files and folders."""
    result: dict[str, str] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        folder = path.parent.relative_to(ROOT).as_posix()
        inner = any(folder.startswith(f"{name}/") for name in result)
        if folder in result or inner or folder == "tests/kit":
            continue
        text = _first_paragraph(source.text_of(path))
        if path.name == "__init__.py" and text:
            result[folder] = text
        elif path.name.startswith("test_"):
            if not text:
                raise ValueError(f"{folder}/{path.name} says not what it tests")
            result[f"{folder}/{path.name}"] = text
    return result


def expanded(markdown: str, language: str) -> str:
    """The Markdown of a page, with a table for each folder."""
    from sitekit.markdown import docstrings

    chinese = docstrings.chinese()

    def table(match: re.Match[str]) -> str:
        lines = [f"| {' | '.join(HEAD[language])} |", "| --- | --- |"]
        for name, text in rows().items():
            if name.startswith(f"tests/{match[1]}/"):
                text = text if language == "en" else chinese[name]["zh"]
                lines.append(f"| `{name.removeprefix('tests/')}` | {text} |")
        return "\n".join(lines)

    return LINE.sub(table, markdown)
