"""What test files share is in tests/kit, and each says what it checks."""

import ast
import re

import pytest

from sitekit import ROOT, pipeline
from sitekit.markdown import checks, docstrings


def shared_by_import(text):
    """The test files that Python code imports, wherever it does so, or the
    names that it takes from them."""
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    for name in names:
        root, *parts = name.split(".")
        if root in ("tests", "conftest") and any(
            part == "conftest" or part.startswith("test_")
            for part in (root, *parts)
        ):
            yield name


def test_no_test_file_imports_another():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}: move it to tests/kit"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in shared_by_import(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "from tests.reference.core.test_sdpa import qkv",
        "from tests.reference.core import test_sdpa",
        "def f():\n    import tests.reference.core.test_sdpa",
        "from tests.conftest import chromium",
    ],
)
def test_such_an_import_is_found(line):
    assert [*shared_by_import(line)]
    assert not [*shared_by_import("from tests.kit.pages import cells")]


def test_each_file_of_tests_is_on_the_page_of_checks(tmp_path, monkeypatch):
    """By itself or in its folder; one that says nothing stops the build."""
    rows = checks.rows()
    for path in (ROOT / "tests").rglob("test_*.py"):
        name = str(path.relative_to(ROOT))
        assert {name, *map(str, path.relative_to(ROOT).parents)} & {*rows}
    for language in ("en", "zh"):
        shown = checks.list_tests(
            "::: checks house", language, docstrings.chinese()
        )
        assert shown.count("\n| `house/test_") == len(
            [*(ROOT / "tests/house").glob("test_*.py")]
        )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_new.py").write_text("x = 1\n", encoding="utf-8")
    monkeypatch.setattr(checks, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"tests/test_new\.py says not what"):
        checks.rows()


def test_the_guide_lists_the_passes_in_their_order():
    """sitekit/README.md shows what each looks for, as its docstring does."""
    guide = (ROOT / "sitekit/README.md").read_text(encoding="utf-8")
    listed = re.findall(r"(?m)^    \d+\. `(.+?)`", guide)
    grammars = [
        re.match("`(.+?)`", replace.__doc__)[1] for replace in pipeline.MARKDOWN
    ]
    assert listed == grammars
