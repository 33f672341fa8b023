"""Who may import whom, read from the folders.

CONTRIBUTING draws the house; a folder imports only what stands above it.
"""

import ast
import json
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from importlib import metadata
from pathlib import Path

import pytest

from sitekit import ROOT

PACKAGE = ROOT / "attnref"
# An adapter of judge/engines needs the library that it calls.
FILES = [x for x in sorted(PACKAGE.rglob("*.py")) if x.parent.name != "engines"]
FACES = {PACKAGE / "__init__.py", PACKAGE / "__main__.py"}  # import anything
WORDS = PACKAGE / "words.py"  # which any file may import, and imports nothing
ALONE = ("plain", "layers")  # of these folders, no file imports another
AROUND = ("block.py", "convert.py")  # but what is built around any layer
CASES = {("mha.py", "gqa.py"), ("mqa.py", "gqa.py")}  # and cases of another


def rooms() -> list[str]:
    """The folders of the package, from the ground up, as they are drawn."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    house = re.search(r"^attnref/(.*?)^sitekit/", text, re.DOTALL | re.M)[1]
    return re.findall(r"^  (\w+)/ ", house, re.M)


def imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in the file it does so."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: write absolute imports"
            modules.add(node.module)
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def dotted(path: Path) -> str:
    name = path.relative_to(ROOT).with_suffix("").as_posix()
    return name.replace("/", ".").removesuffix(".__init__")


MODULES = {dotted(path): path for path in FILES}


def own(path: Path, modules: dict[str, Path] = MODULES) -> set[Path]:
    """The files of the package that a file imports."""
    return {modules[name] for name in imported(path) if name in modules}


def faults(path: Path, order: list[str]) -> list[str]:
    room = path.parent.name
    wrong = []
    for name in sorted(imported(path)):
        root = name.split(".")[0]
        plants = room == "judge"  # imports this package with other lines
        if root in ("importlib", "runpy") and not (
            plants or name == "importlib.metadata"
        ):
            wrong.append(f"{path.name} imports {name}")
        elif root == "jinja2" and room == "released":
            pass  # torch brings it
        elif (root, path.stem) in (("numpy", "arrays"), ("pytest", "plugin")):
            pass  # adapters return arrays of NumPy; pytest imports its plugin
        elif root in ("safetensors", "numpy") and path.stem == "vectors":
            pass  # of the extra `vectors`, for whoever asks for the file
        elif root == "triton" and room == "kernels":
            pass  # of the extra `kernels`, when a kernel is called
        elif root == "safetensors" and path.stem == "checkpoint":
            pass  # the format of published weights, read when there are some
        elif root not in ("attnref", "torch", *sys.stdlib_module_names):
            wrong.append(f"{path.name} imports {name}: torch alone is needed")
        elif path.stem == "ranks" and root in sys.stdlib_module_names:
            pass  # threads, queues and processes
        elif room == "plain" and root not in ("torch", "hashlib", "itertools"):
            wrong.append(f"{path.name} imports {name}: plain needs torch alone")
    for other in sorted(own(path) - {WORDS}):
        its = other.parent.name
        if other.name == "__init__.py":
            wrong.append(f"{room}/{path.name} imports {dotted(other)}")
        elif order.index(its) > order.index(room):
            wrong.append(f"{room} stands above {its}: {path.name}")
        elif its == "plain" != room:
            wrong.append(f"{path.name} imports {other.name}: plain is apart")
        elif (
            its == room
            and room in ALONE
            and path.name not in AROUND
            and (path.name, other.name) not in CASES
        ):
            wrong.append(
                f"{path.name} imports {other.name}: in {room}/ none may"
            )
    return wrong


def test_torch_brings_what_writes_files():
    assert "jinja2" in metadata.requires("torch")


def test_every_folder_is_drawn():
    folders = {
        p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()
    }
    assert sorted(rooms()) == sorted(folders)
    for path in FILES:
        depth = len(path.relative_to(PACKAGE).parts)
        assert depth == 2 or path in (*FACES, WORDS), (
            f"{path.name}: in no folder"
        )


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path not in (*FACES, WORDS)],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_a_file_imports_only_what_stands_above_it(path):
    assert faults(path, rooms()) == []


def test_words_import_nothing_of_the_package():
    assert own(WORDS) == set()


def test_no_files_import_each_other():
    TopologicalSorter({path: own(path) for path in FILES}).prepare()


@pytest.mark.parametrize(
    ("file", "line", "fault"),
    [
        ("layers/gqa.py", "from attnref.layers.mha import x", "none may"),
        ("layers/mha.py", "from attnref.layers.mqa import x", "none may"),
        ("core/sdpa.py", "from attnref.layers.mha import x", "above layers"),
        ("core/sdpa.py", "import attnref", "imports attnref"),
        ("core/sdpa.py", "import numpy", "torch alone"),
        ("core/sdpa.py", "import importlib", "importlib"),
        ("plain/gqa.py", "import math", "plain needs torch"),
        ("plain/gqa.py", "from attnref.plain import rope", "none may"),
        ("layers/gqa.py", "from attnref.plain import rope", "plain is apart"),
    ],
)
def test_a_fault_is_found(tmp_path, monkeypatch, file, line, fault):
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text(line)
    assert fault in " ".join(faults(path, rooms()))


def test_the_package_never_imports_the_site():
    for path in FILES:
        assert not any(n.startswith("sitekit") for n in imported(path))


def importers(
    names: set[str], files: list[Path], root: Path = ROOT
) -> list[str]:
    """The files that import one of these packages, wherever they do so."""
    return [
        str(path.relative_to(root))
        for path in files
        if {name.split(".")[0] for name in imported(path)} & names
    ]


def test_one_file_alone_imports_mkdocs_and_its_theme(tmp_path):
    """What a change of either concerns stands in one place."""
    files = sorted((ROOT / "sitekit").rglob("*.py"))
    files += sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 60
    names = {"mkdocs", "material", "properdocs"}
    assert importers(names, files) == ["sitekit/adapter.py"]
    for line in ("from mkdocs.utils import x", "def f():\n  import material.y"):
        (tmp_path / "planted.py").write_text(line)
        assert importers(names, [tmp_path / "planted.py"], tmp_path)


def circle(files: dict[str, Path]) -> list[str]:
    """Modules that import each other in a circle; an import within a function
    counts like any other, so that none can hide one."""
    arrows = {path: own(path, files) for path in files.values()}
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        names = {path: name for name, path in files.items()}
        return [names[path] for path in error.args[1]]
    return []


def test_sitekit_has_no_circle_and_no_import_that_hides_one(tmp_path):
    files = {
        dotted(path): path
        for path in (ROOT / "sitekit").rglob("*.py")
        if path.name != "__init__.py"
    }
    assert len(files) > 70
    assert circle(files) == []
    planted = tmp_path / "source.py"  # which numbers.py imports
    planted.write_text("def f():\n  from sitekit.markdown import numbers\n")
    wrong = circle(files | {"sitekit.markdown.source": planted})
    assert {*wrong} == {"sitekit.markdown.source", "sitekit.markdown.numbers"}


IMPORTS = """
import json, sys, torch
from torch.utils._python_dispatch import TorchDispatchMode

calls = []
class Counted(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        calls.append(str(func))
        return func(*args, **(kwargs or {}))

before = set(sys.modules)
with Counted():
    import attnref
    names = [getattr(attnref, name) for name in attnref.__all__]
print(json.dumps([sorted(set(sys.modules) - before), calls]))
"""


def test_importing_attnref_loads_nothing_beside_torch_and_computes_nothing():
    """With all its names: none of the standard library either that torch did
    not load. What that takes is a figure of `make bench ONLY=import`."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded, calls = json.loads(done.stdout)
    others = [name for name in loaded if name.split(".")[0] != "attnref"]
    assert (others, calls) == ([], [])
    used = {name.split(".")[1] for name in loaded if "." in name}
    assert used == {"core", "caches", "layers"}


def test_the_face_of_layers_names_the_files_that_import_another():
    face = (PACKAGE / "layers/__init__.py").read_text(encoding="utf-8")
    named = {f"{stem}.py" for stem in re.findall(r"\b(?:mha|mqa|gqa)\b", face)}
    assert named == {name for pair in CASES for name in pair}


def test_the_face_of_released_names_what_is_in_the_room():
    face = (PACKAGE / "released/__init__.py").read_text(encoding="utf-8")
    assert "layer" in face and not re.search("block|decoder", face, re.I)


@pytest.mark.parametrize("path", ["Makefile", ".github/workflows/ci.yml"])
def test_a_comment_names_a_heading_that_exists(path):
    """`sitekit/THEME.md says why, in "When the theme ends"`."""
    text = re.sub(r"\n\s*#", "", (ROOT / path).read_text(encoding="utf-8"))
    guides = "|".join(
        p.stem for p in [*ROOT.glob("*.md"), *ROOT.glob("*/*.md")]
    )
    named = re.findall(rf'((?:\w+/)?(?:{guides}))\b[^\n"]*"(.+?)"', text)
    assert named
    for file, heading in named:
        words = (ROOT / f"{file}.md").read_text(encoding="utf-8")
        assert re.search(rf"(?m)^#+ {re.escape(heading)}$", words), (file, path)
