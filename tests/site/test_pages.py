"""A page is a program: it holds includes only, and every one of them runs."""

import pytest

from sitekit import ROOT
from sitekit.markdown import source
from sitekit.markdown.pages import (
    body_of,
    faults,
    markdown_files,
    python_blocks,
    render,
)
from sitekit.markdown.source import MARK, includes
from tests.kit.programs import program_of

PAGES = markdown_files("en") + markdown_files("zh")
INCLUDE = '```python\n--8<-- "attnref/core/softmax.py:imports"\n```\n'


@pytest.mark.parametrize(
    "path", PAGES, ids=lambda p: str(p.relative_to(ROOT / "docs"))
)
def test_a_page_holds_includes_only(path):
    assert [*faults(path.read_text(encoding="utf-8"))] == []


FAULTY = {
    "typed code": "```python\nprint(1)\n```\n",
    "typed beside an include": INCLUDE.replace("```\n", "x = 1\n```\n", 2)[3:],
    "opted out": "```{.python notest}\n--8<-- "
    '"attnref/core/softmax.py:imports"\n```\n',
    "opted out, other spelling": '```python notest\n--8<-- "a/b.py"\n```\n',
    "another name for Python": "```py\nprint(1)\n```\n",
    "a console": "```pycon\n>>> 1\n```\n",
    "no language": "```\nx = 1\n```\n",
    "tildes": "~~~python\nx = 1\n~~~\n",
    "indented code": "Text.\n\n    x = 1\n",
    "raw HTML": "<pre><code>x = 1</code></pre>\n",
    "an include from elsewhere": '```python\n--8<-- "sitekit/hook.py"\n```\n',
    "raw HTML in capitals": "<PRE><CODE>x = 1</CODE></PRE>\n",
    "raw HTML with the theme's class": '<div class="highlight">x</div>\n',
    "an include outside a fence": '--8<-- "attnref/core/softmax.py:softmax"\n',
    "a title that lies": INCLUDE.replace(
        "```python", '```python title="attnref/core/masks.py"', 1
    ),
    "Python as text": "```text\nimport torch\n```\n",
    "never closed": "```python\n",
    "in an admonition": '!!! note "n"\n\n    ```python\n    x = 1\n    ```\n',
    "in a tab": '=== "t"\n\n    ```python\n    x = 1\n    ```\n',
    "in a list": "1. One\n\n    ```python\n    x = 1\n    ```\n",
    "in a quote": "> ```python\n> x = 1\n> ```\n",
}


@pytest.mark.parametrize("fault", FAULTY)
def test_each_fault_is_seen(fault):
    assert [*faults(INCLUDE + "\nText.\n\n" + INCLUDE)] == []
    assert [*faults(FAULTY[fault])] != []


def test_text_and_shell_blocks_are_allowed():
    body = "```text\nout\n```\n\n```bash\nmake serve\n```\n"
    assert [*faults(body)] == []
    assert python_blocks(body) == []


def test_a_fault_is_reported_with_its_line():
    text = f"---\ntitle: T\n---\n# T\n\n{INCLUDE}\n{{}}"
    (typed,) = faults(text.format("```python\nx = 1\n```\n"))
    assert typed.startswith("line 11: 'x = 1' is no include from attnref or")
    first = next(faults(text.format("```py\nx\n```\n")))
    assert first.startswith("line 10: '```py' is no fence of python, text, ")


def test_blocks_inside_tabs_and_admonitions_run_in_the_order_of_the_page():
    def block(name):
        return f'```python\n--8<-- "attnref/core/softmax.py:{name}"\n```'

    def inside(text):
        return "\n".join("    " + line for line in text.splitlines())

    body = (
        f'!!! note "n"\n\n{inside(block("imports"))}\n\n'
        f'=== "t"\n\n{inside(block("softmax"))}\n\n{block("widen")}\n'
    )
    first, second, third = python_blocks(body)
    assert [block.text for block in render(body).blocks] == python_blocks(body)
    assert first == "import torch\nfrom torch import Tensor\n"
    assert second.startswith("def softmax(")
    assert third.startswith("def _widen(")


@pytest.mark.parametrize(
    "path",
    markdown_files("en"),
    ids=lambda p: str(p.relative_to(ROOT / "docs")),
)
def test_pytest_runs_the_whole_page_as_one_program(path):
    body = body_of(path)
    blocks = [b.text for b in render(body).blocks if b.language == "python"]
    assert blocks == python_blocks(body)
    assert len(blocks) == body.count("```python")
    assert program_of(path) == "\n".join(blocks)


def test_a_readme_fence_that_would_not_run_is_refused(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("Text.\n\n```python\nx = 1\n```\n")
    assert program_of(path) == "x = 1\n"
    path = tmp_path / "other.md"
    path.write_text("Text.\n\n```py\nx = 1\n```\n")
    with pytest.raises(ValueError, match="'py' never runs"):
        program_of(path)


@pytest.mark.whole
def test_every_marker_is_closed_and_every_section_is_shown():
    shown = set()
    for path in PAGES:
        shown |= {":".join(filter(None, i)) for i in includes(body_of(path))}
    sections = set()
    for folder in ("attnref", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            names, wrong = markers(path.read_text(encoding="utf-8"))
            assert wrong == [], f"{name}: {wrong}"
            sections |= {f"{name}:{section}" for section in names}
    assert sections - shown == set(), "marked but never shown"
    assert {s for s in shown if ":" in s} - sections == set(), "not marked"


def mark(line):
    match = MARK.fullmatch(line)
    return match.groups() if match else None


def markers(text):
    """The sections of a file, and what is wrong with their markers."""
    names, wrong, open_ = [], [], None
    for kind, name in filter(None, map(mark, text.splitlines())):
        if kind == "start":
            if open_:
                wrong.append(f"{name} starts inside {open_}")
            if name in names:
                wrong.append(f"{name} starts twice")
            open_ = name
            names.append(name)
        elif name == open_:
            open_ = None
        else:
            wrong.append(f"{name} ends, open is {open_}")
    if open_:
        wrong.append(f"{open_} is never closed")
    # A marker that is misspelt is no marker; it must not pass as a comment.
    for line in text.splitlines():
        if line.strip().startswith("# --8<--") and not mark(line):
            wrong.append(f"no marker: {line.strip()}")
    return names, wrong


@pytest.mark.parametrize(
    "text",
    [
        "# --8<-- [start:a]\nx\n",
        "# --8<-- [start:a]\n# --8<-- [end:b]\n",
        "# --8<-- [start:a]\n# --8<-- [start:b]\n# --8<-- [end:b]\n",
        "# --8<-- [end:a]\n",
        "# --8<-- [start:a]\n# --8<-- [end:a]\n" * 2,
        "# --8<-- start:a\n",
    ],
)
def test_each_fault_of_the_markers_is_seen(text):
    assert markers("# --8<-- [start:a]\n# --8<-- [end:a]\n") == (["a"], [])
    assert markers(text)[1] != []


def test_a_missing_section_stops_the_build():
    with pytest.raises(Exception, match="nowhere"):
        render(INCLUDE.replace(":imports", ":nowhere"))


def test_fences_and_includes_are_read_once_for_all():
    text = """Text.

```python title="attnref/core/softmax.py"
--8<-- "attnref/core/softmax.py:imports"
--8<-- "attnref/core/softmax.py"
```

!!! note "n"

    ```text
    --8<-- "sitekit/hook.py"

      indented
    ```
```py
--8<-- "attnref/core/softmax.py:softmax"
```
"""
    python, prose = source.fences(text)
    assert (python.line, python.end, python.language) == (3, 6, "python")
    assert python.title == "attnref/core/softmax.py"
    file = "attnref/core/softmax.py"
    assert source.includes(text) == [(file, "imports"), (file, "")]
    assert (prose.line, prose.indent, prose.title) == (10, "    ", None)
    assert prose.text == '--8<-- "sitekit/hook.py"\n\n  indented'
    code = "# --8<-- [start:a]\nx\n    # --8<-- [end:a]\ny\n"
    assert source.sections(code) == {"a": "x\n"}
