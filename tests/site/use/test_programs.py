"""Pages whose program is run whole by `make audit` alone: see SLOW.

`make test` runs each of their blocks within a test, and holds here that they
are all in one, and that the page defines each name before it uses it.
"""

import ast
import re
import subprocess
import sys

import pytest

from sitekit import ROOT
from sitekit.markdown.pages import body_of, python_blocks
from tests.kit.programs import SLOW, program_of

each_page = pytest.mark.parametrize("stem", SLOW)


def undefined(source):
    """What Python would not know when it came to it."""
    command = "ruff check --isolated --select F821,F823 --output-format concise"
    done = subprocess.run(
        [sys.executable, "-m", *command.split(), "-"],
        input=source,
        capture_output=True,
        text=True,
    )
    return re.findall(r"Undefined name `(\w+)`|(error: .*)", done.stdout)


@each_page
def test_each_block_is_run_by_a_test_that_is_not_of_the_audit(stem):
    body = body_of(ROOT / "docs" / "en" / f"{stem}.md")
    for file, section in re.findall(r'--8<-- "(tests/.+?):(\w+)', body):
        text = (ROOT / file).read_text(encoding="utf-8")
        start = text.partition(f"[start:{section}]")[0].count("\n") + 1
        for node in ast.parse(text).body:
            if node.lineno <= start <= node.end_lineno:
                marks = [ast.unparse(mark) for mark in node.decorator_list]
                assert "pytest.mark.audit" not in marks, f"{file}: {section}"


@each_page
def test_each_name_is_defined_before_it_is_used(stem):
    source = program_of(ROOT / "docs" / "en" / f"{stem}.md")
    compile(source, stem, "exec")
    assert undefined(source) == []
    blocks = python_blocks(body_of(ROOT / "docs" / "en" / f"{stem}.md"))
    assert undefined("\n".join(blocks[::-1])), "used before it is defined"
