"""python -m attnref copy: files that run where attnref is not."""

import ast
import json
import os
import re
import subprocess
import sys

import pytest
import torch

import attnref
from attnref.__main__ import main
from attnref.commands import copy
from sitekit import ROOT

ALONE = """
import doctest, importlib.util, json, pathlib, sys

class Blocked:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("attnref", "sitekit", "tests"):
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
tried = {}
for path in map(pathlib.Path, sys.argv[1:]):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    flags = doctest.NORMALIZE_WHITESPACE
    failed, run = doctest.testmod(module, optionflags=flags)
    assert not failed, path
    tried[path.stem] = run
print(json.dumps(tried))
"""


def in_a_fresh_interpreter(folder, code, *arguments):
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The copy of each public name, and one of all together."""
    folder = tmp_path_factory.mktemp("copies")
    for name in [*attnref.__all__, "everything"]:
        names = attnref.__all__ if name == "everything" else [name]
        text = copy.one_file(names)
        (folder / f"a_{name}.py").write_text(text, encoding="utf-8")
    return folder


def test_every_public_name_can_be_copied():
    assert sorted(copy.public()) == sorted(attnref.__all__)
    for name, module in copy.public().items():
        assert getattr(attnref, name).__module__ == f"attnref.{module}"


def test_each_copy_runs_without_the_package(files):
    """And its examples give what they say, but for those of other files."""
    paths = sorted(files.glob("*.py"))
    tried = json.loads(in_a_fresh_interpreter(files, ALONE, *paths))
    assert len(tried) == len(attnref.__all__) + 1
    assert tried["a_softmax"] > 0 and tried["a_GroupedQueryAttention"] > 5


def test_each_copy_is_tidy(files):
    """Sorted imports, none of them unused, and no line that ruff would move."""
    ruff = [sys.executable, "-m", "ruff"]
    config = ["--config", str(ROOT / "pyproject.toml")]
    mypy = [sys.executable, "-m", "mypy", "--config-file"]
    for words in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = subprocess.run(
            [*ruff, *words, *config, "."],
            cwd=files,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout
    done = subprocess.run(
        [*mypy, str(ROOT / "pyproject.toml"), "a_everything.py"],
        cwd=files,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def defined(tree):
    """Functions, classes and constants by name, docstrings left out."""
    found = {}
    for node in tree.body:
        for part in ast.walk(node):
            documented = isinstance(part, ast.FunctionDef | ast.ClassDef)
            if documented and ast.get_docstring(part) is not None:
                part.body = part.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = getattr(node, "target", None) or node.targets[0]
            found[target.id] = node
    return found


def test_a_copy_is_the_code_of_the_package_and_nothing_beside(files):
    ours, stems = {}, "|".join(m.split(".")[-1] for m in copy.public().values())
    for path in (ROOT / "attnref").rglob("*.py"):
        if "commands" not in path.parts:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            ours |= {ast.dump(node): path for node in defined(tree).values()}
    for path in files.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "attnref" not in re.sub(r'\A"""[^"]*"""', "", text), path
        assert "--8<--" not in text
        # Private names that two files have begin with that of their file.
        plain = defined(ast.parse(re.sub(rf"\b_({stems})(?=_)", "", text)))
        found = defined(ast.parse(text))
        strange = [n for n, node in plain.items() if ast.dump(node) not in ours]
        assert strange == [], path
        asked = path.stem.removeprefix("a_")
        needs = {asked} if asked != "everything" else {*attnref.__all__}
        while True:
            more = {
                part.id
                for name in needs
                for part in ast.walk(found[name])
                if isinstance(part, ast.Name) and part.id in found
            }
            if more <= needs:
                break
            needs |= more
        assert needs == {*found}, path


def test_the_tests_of_the_package_pass_with_a_copy(files):
    """Each public name is exchanged before the tests are collected."""
    (files / "exchanged.py").write_text(
        "import sys, attnref, a_everything\n"
        "for name in attnref.__all__:\n"
        "    ours = getattr(attnref, name)\n"
        "    home = sys.modules[ours.__module__]\n"
        "    for place in (attnref, home):\n"
        "        setattr(place, name, getattr(a_everything, name))\n"
    )
    tests = ["tests/core", "tests/layers", "tests/laws/test_equivalences.py"]
    pytest_with = [sys.executable, "-m", "pytest", "-q", "-p", "exchanged"]
    done = subprocess.run(
        [*pytest_with, "-x", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{files}:{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_weights_go_from_the_package_to_a_copy_and_back(files):
    code = (
        "import sys, torch; sys.path.insert(0, '.')\n"
        "from a_GroupedQueryAttention import GroupedQueryAttention as GQA\n"
        "layer = GQA(d_model=24, n_heads=6, n_kv_heads=3, rope_theta=1e4)\n"
        "layer.load_state_dict(torch.load('weights.pt'))\n"
        "torch.save(layer(torch.load('x.pt')), 'out.pt')\n"
    )
    ours = attnref.GroupedQueryAttention(
        d_model=24, n_heads=6, n_kv_heads=3, rope_theta=1e4
    )
    x = torch.randn(3, 7, 24)
    torch.save(ours.state_dict(), files / "weights.pt")
    torch.save(x, files / "x.pt")
    in_a_fresh_interpreter(files, code)
    assert torch.equal(torch.load(files / "out.pt"), ours(x))


def test_a_folder_may_have_any_name_and_stand_anywhere(tmp_path):
    place = tmp_path / "theirs" / "attention"
    said = main(["copy", "gqa", "KVCache", "--folder", str(place)])
    assert len(said.splitlines()) == len([*place.rglob("*.py")])
    code = (
        "import sys, torch; sys.path.insert(0, '.')\n"
        "from theirs.attention import GroupedQueryAttention, KVCache\n"
        "layer = GroupedQueryAttention(d_model=8, n_heads=4, n_kv_heads=2)\n"
        "with torch.no_grad():\n"
        "    out = layer(torch.randn(3, 5, 8), cache=KVCache(5))\n"
        "assert out.shape == (3, 5, 8) and 'attnref' not in sys.modules\n"
    )
    in_a_fresh_interpreter(tmp_path, code)


def test_a_file_is_printed_or_written_and_never_overwritten(tmp_path, capsys):
    text = copy.one_file(["softmax"])
    assert main(["copy", "softmax"]) + "\n" == text
    target = tmp_path / "new" / "mine.py"
    assert main(["copy", "softmax", "-o", str(target)]).startswith(str(target))
    assert target.read_text(encoding="utf-8") == text
    with pytest.raises(SystemExit):
        main(["copy", "sdpa", "-o", str(target)])
    assert "mine.py is there already; --force" in capsys.readouterr().err
    assert target.read_text(encoding="utf-8") == text
    main(["copy", "sdpa", "-o", str(target), "--force"])
    assert "def sdpa" in target.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        (["gqa"], ["GroupedQueryAttention"]),
        (["gqa.py", "KVCache"], ["GroupedQueryAttention", "KVCache"]),
        (["kv-cache"], ["Cache", "GrowingKVCache", "KVCache"]),
        (["groupedqueryattention"], ["GroupedQueryAttention"]),
        (["sdpa"], ["sdpa"]),
        (["multi_head_loop"], ["multi_head_loop"]),
    ],
)
def test_a_name_may_be_that_of_a_file_or_a_page(asked, got):
    assert copy.asked_for(asked) == got


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("GroupedQuerryAttention", "GroupedQueryAttention"),
        ("gpa", "gqa"),
        ("kvcach", "KVCache"),
    ],
)
def test_an_unknown_name_is_answered_with_near_ones(asked, near, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["copy", asked])
    assert stopped.value.code == 2
    assert re.search(
        rf"no '{asked}'; near: .*\b{near}\b", capsys.readouterr().err
    )


def test_the_list_has_every_name_with_its_file_and_length():
    lines = main(["copy", "--list"]).splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(attnref.__all__)
    (line,) = (x for x in lines if x.startswith("softmax "))
    length = len(copy.one_file(["softmax"]).splitlines())
    assert line.endswith(f"{length} lines, from attnref/core/softmax.py")
