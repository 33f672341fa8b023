"""python -m attnref copy: files that run where attnref is not."""

import ast
import builtins
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

import attnref
from attnref.__main__ import main
from attnref.commands import copy
from sitekit import ROOT
from tests.kit import sampled
from tests.kit.compare import relative_error
from tests.kit.copies import ALONE, in_a_fresh_interpreter
from tests.kit.layers import T, tokens
from tests.variants import VARIANTS, variant


def names_by_file():
    """The public names by the copied file that is tested for each: that of
    their own file; a loop form, which no such file holds, has one of its own.
    """
    files = copy.files()
    inside = {name for names in files.values() for name in names}
    return files | {
        name: [name] for name in copy.public() if name not in inside
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The copy of each file, of each public name, and of all together."""
    folder = tmp_path_factory.mktemp("copies")
    named = names_by_file() | {f"a_{name}": [name] for name in attnref.__all__}
    for stem, names in (named | {"everything": attnref.__all__}).items():
        text = copy.one_file(names)
        (folder / f"{stem}.py").write_text(text, encoding="utf-8")
    return folder


def test_every_public_name_can_be_copied_with_all_of_its_file():
    """What no name needs does something when it is imported: it would be lost,
    and nothing would say so."""
    assert sorted(copy.public()) == sorted(attnref.__all__)
    for name, module in copy.public().items():
        assert getattr(attnref, name).__module__ == f"attnref.{module}"
    needed = {(d.module, d.name) for d in copy.definitions_for(attnref.__all__)}
    for module in {*copy.public().values()}:
        for name in copy.read(module).definitions:
            assert (module, name) in needed, f"no public name needs {name}"


@pytest.mark.parametrize("stems", sampled(["all", "some"], ["some"]))
def test_each_copy_runs_without_the_package(files, stems):
    """And its examples give what they say, but for those of other files. In
    `make test` the file of all names, and two that are taken alone."""
    some = ["everything", "mla", "a_softmax"]
    paths = [files / f"{stem}.py" for stem in some]
    if stems == "all":
        paths = sorted(files.glob("*.py"))
        assert len(paths) == len(attnref.__all__) + len(names_by_file()) + 1
    tried = json.loads(in_a_fresh_interpreter(files, ALONE, *paths))
    assert [*tried] == [path.stem for path in paths]
    assert tried["a_softmax"] > 0
    assert tried["everything"] == sum(
        len(re.findall(r"^ *>>> ", d.text, re.M))
        for d in copy.definitions_for(attnref.__all__)
        if ">>> from attnref" not in d.text
    )


RUFF = "--config", str(ROOT / "pyproject.toml"), "--no-cache", "."
# What mypy knows of torch is stored where it is for the package.
MYPY = "--config-file=", "--cache-dir", str(ROOT / ".mypy_cache"), "."
CHECKS = {
    "ruff check": RUFF,
    "ruff format --check": RUFF,
    "mypy --strict": MYPY,
}


@pytest.mark.parametrize(
    "command", sampled(CHECKS, lambda command: "ruff" in command)
)
def test_each_copy_is_tidy(files, command):
    """Sorted imports, none of them unused, and no line that ruff would move."""
    done = subprocess.run(
        [sys.executable, "-m", *command.split(), *CHECKS[command]],
        cwd=files,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def defined(tree):
    """Functions, classes and constants by name, docstrings left out."""
    definitions = {}
    for node in tree.body:
        for part in ast.walk(node):
            documented = isinstance(part, ast.FunctionDef | ast.ClassDef)
            if documented and ast.get_docstring(part) is not None:
                part.body = part.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = getattr(node, "target", None) or node.targets[0]
            definitions[target.id] = node
    return definitions


@pytest.fixture(scope="module")
def ours():
    """The modules of the package in which each definition stands, by what it
    is."""
    homes = {}
    for path in (ROOT / "attnref").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if not {"commands", "judge", "__init__"} & {*parts}:
            name = ".".join(parts)
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in defined(tree).values():
                homes[ast.dump(node)] = name
    return homes


def test_a_copy_is_the_code_of_the_package_and_nothing_beside(files, ours):
    """Each definition is one of the package, and each name in it means what
    it means there; so a copy computes the same, to the last bit."""
    everything = {"everything": attnref.__all__}
    for path in files.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "attnref" not in text.split('"""\n', 1)[1], path
        assert "--8<--" not in text
        definitions = defined(ast.parse(text))
        home = {n: ours.get(ast.dump(d)) for n, d in definitions.items()}
        assert None not in home.values(), (path, home)
        copies = loaded(path)
        used = {
            name: {
                part.id for part in ast.walk(node) if isinstance(part, ast.Name)
            }
            for name, node in definitions.items()
        }
        for name in definitions:
            package = vars(importlib.import_module(home[name]))
            for word in used[name] & package.keys():
                assert word in copies, f"{path.name}: {name} lacks {word}"
                same = copies[word] is package[word]
                assert same or word in definitions, (path.name, name, word)
            hidden = used[name] & vars(builtins).keys() & copies.keys()
            assert hidden <= package.keys(), (path.name, name, hidden)
        public = path.stem.removeprefix("a_")
        needs = {*(names_by_file() | everything).get(path.stem, [public])}
        while more := {w for n in needs for w in used[n]} & home.keys() - needs:
            needs |= more
        assert needs == {*definitions}, path


def loaded(path):
    """What a copy defines and imports."""
    spec = importlib.util.spec_from_file_location(f"copy_{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return vars(module)


TOGETHER = """
import sys
from dataclasses import dataclass

sys.path.insert(0, ".")

import torch
from gqa import GroupedQueryAttention
from flash import flash
from fused import fused
from kv_cache import GrowingKVCache, KVCache
from masks import Causal, padding_mask
from mla import MultiHeadLatentAttention


@dataclass(frozen=True)
class Near(Causal):
    size: int

    def shows(self, i, j):
        return super().shows(i, j) & (j > i - self.size)


torch.set_num_threads(1)  # as in the tests: sums have one order
told = torch.load("told.pt")
x, mask = told["x"], padding_mask(told["valid"])
got = {}
for kind, (sizes, weights) in told["layers"].items():
    for rule in (Near(3), Causal(), True):
        layer = globals()[kind](**sizes, causal=rule).double()
        layer.load_state_dict(weights)
        outs = got[kind, str(rule)] = [layer(x, mask=mask)]
        for cache in (KVCache(7), GrowingKVCache()):
            ends, parts = (4, 5, 7), x.split((4, 1, 2), dim=1)
            with torch.no_grad():
                each = [
                    layer(part, mask=mask[..., :end], cache=cache)
                    for end, part in zip(ends, parts)
                ]
            outs.append(torch.cat(each, dim=1))
        for layer.attend in (flash, fused):
            outs.append(layer(x, mask=mask))
    got[kind] = layer.state_dict()
torch.save(got, "got.pt")
assert "attnref" not in sys.modules
"""


def test_files_in_one_folder_work_together(files, tmp_path):
    """A rule of masks.py, a cache of kv_cache.py and a core of flash.py are
    taken by gqa.py, which has such classes of its own; weights go from the
    package and back."""
    x, valid = tokens(), torch.arange(T) >= torch.tensor([[0], [2], [1]])
    layers = {
        VARIANTS[name].layer.__name__: (name, variant(name, causal=False))
        for name in ("gqa", "mla expanded")
    }
    made = {
        kind: (VARIANTS[name].sizes, layer.state_dict())
        for kind, (name, layer) in layers.items()
    }
    torch.save({"x": x, "valid": valid, "layers": made}, tmp_path / "told.pt")
    for stem in ("flash", "fused", "gqa", "kv_cache", "masks", "mla"):
        shutil.copy(files / f"{stem}.py", tmp_path)
    in_a_fresh_interpreter(tmp_path, TOGETHER)
    got = torch.load(tmp_path / "got.pt")
    plain = attnref.causal_mask(T)
    near = plain & ~plain.tril(-3)
    for kind, (_, layer) in layers.items():
        layer.load_state_dict(got[kind])
        for rule, seen in (
            ("Near(size=3)", near),
            ("Causal()", plain),
            ("True", plain),
        ):
            want = layer(x, mask=attnref.padding_mask(valid) & seen)
            full, *cached = got[kind, rule]
            assert torch.equal(full, want), (kind, rule)
            for out in cached:
                assert relative_error(out, want) <= 1e-12, (kind, rule)


EXPORTED = """
import torch
from gated_delta import GatedDeltaNet

torch.manual_seed(0)
sizes = {"n_heads": 3, "n_v_heads": 6, "key_dim": 5, "value_dim": 7}
layer = GatedDeltaNet(d_model=11, **sizes).double().requires_grad_(False)
x = torch.randn(3, 130, 11).double()
length = {"x": {1: torch.export.Dim("T", min=1, max=3000)}}
program = torch.export.export(layer, (x,), dynamic_shapes=length)
for n in (1, 63, 64, 65, 200):
    x = torch.randn(3, n, 11).double()
    got, want = program.module()(x), layer(x)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)
"""


def test_a_copied_recurrent_layer_is_exported_for_any_length(files):
    code = f"import sys; sys.path.insert(0, '.')\n{EXPORTED}"
    in_a_fresh_interpreter(files, code)


def test_a_folder_may_have_any_name_and_stand_anywhere(tmp_path):
    place = tmp_path / "theirs" / "attention"
    output = main(["copy", "gqa", "block", "KVCache", "--folder", str(place)])
    assert len(output.splitlines()) == len([*place.rglob("*.py")])
    for path in place.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search("^ *(>>> )?(from|import) attnref", text, re.M)
        assert "--8<--" not in text and "\n" * 4 not in text
    code = (
        "import sys, torch; sys.path.insert(0, '.')\n"
        "from theirs.attention import GroupedQueryAttention, KVCache\n"
        "layer = GroupedQueryAttention(d_model=8, n_heads=4, n_kv_heads=2)\n"
        "with torch.no_grad():\n"
        "    out = layer(torch.randn(3, 5, 8), cache=KVCache(5))\n"
        "assert out.shape == (3, 5, 8) and 'attnref' not in sys.modules\n"
    )
    in_a_fresh_interpreter(tmp_path, code)


def test_a_subject_is_copied_in_its_plain_form(tmp_path, capsys):
    """Alone, and as it is; other names are copied with what they need."""
    gqa = (ROOT / "attnref/plain/gqa.py").read_text(encoding="utf-8")
    for word in ("gqa", "GQA", "gqa.py", "plain/gqa.py"):
        assert main(["copy", word]) + "\n" == gqa
    main(["copy", "kv-cache", "-o", str(tmp_path / "x.py")])
    cache = (ROOT / "attnref/plain/kv_cache.py").read_bytes()
    assert (tmp_path / "x.py").read_bytes() == cache
    for name in ("GroupedQueryAttention", "convert", "layers/gqa", "sdpa"):
        assert "Made by: " in main(["copy", name]), name
    assert "class KVCache" in main(["copy", "--full", "gqa", "kv-cache"])
    for words in ("KVCache gqa", "gqa,mla"):
        with pytest.raises(SystemExit):
            main(["copy", *words.split()])
        assert "gqa: copy one plain form at a time; --full " in (
            capsys.readouterr().err
        )


SOFTMAX = ["copy", "--full", "softmax"]


def test_a_file_is_printed_or_written_and_never_overwritten(tmp_path, capsys):
    text = copy.one_file(["softmax"])
    assert main(SOFTMAX) + "\n" == text
    target = tmp_path / "new" / "mine.py"
    assert main([*SOFTMAX, "-o", str(target)]).startswith(str(target))
    assert target.read_text(encoding="utf-8") == text
    with pytest.raises(SystemExit):
        main(["copy", "--full", "sdpa", "-o", str(target)])
    assert "mine.py already exists; --force" in capsys.readouterr().err
    assert target.read_text(encoding="utf-8") == text
    main(["copy", "--full", "sdpa", "-o", str(target), "--force"])
    assert "def sdpa" in target.read_text(encoding="utf-8")


@pytest.mark.parametrize("stem", ["ring-attention", "tensor_parallel"])
def test_a_plain_form_has_no_other_form(stem, capsys):
    assert main(["copy", stem])
    for option in ("--full", "--folder=x"):
        with pytest.raises(SystemExit):
            main(["copy", option, stem])
        text = f"{stem!r} is a plain form: copy it without --full and --folder"
        assert text in capsys.readouterr().err


def test_what_is_written_is_one_thing_and_in_no_way_of_another(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main([*SOFTMAX, "-o", "-"]) == main(["copy", "--full", "softmax"])
    for words in ("-o x.py --folder y", "-o x.py --list", "--folder y --list"):
        with pytest.raises(SystemExit):
            main(["copy", *words.split()])
        assert "not allowed with argument" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []

    main(["copy", "mla", "--folder", "y"])
    Path("y/layers/mine.py").write_text("x = 1\n")
    Path("y/mine.py").write_text("x = 1\n")
    held = {path: path.read_text() for path in Path("y").rglob("*.py")}
    output = main(["copy", "gqa", "--folder", "y", "--force"]).splitlines()
    left = [line.split(":")[0] for line in output if "left as it was" in line]
    assert left == ["y/layers/mine.py", "y/layers/mla.py"]
    for path in map(Path, [*left, "y/mine.py"]):
        assert path.read_text() == held[path]
    for words in ("-o my-file.py", "-o class.py", "--folder my-dir"):
        note = main([*SOFTMAX, *words.split()]).splitlines()[-1]
        name = words.split()[1].removesuffix(".py")
        assert note == f"note: Python cannot import what is called '{name}'"
    assert "note" not in main([*SOFTMAX, "-o", "fine.py"])


def test_the_header_alone_knows_an_address(tmp_path, monkeypatch):
    """That of the page which offers the file, or of the installed package."""
    plain = copy.one_file(["softmax"])
    header = plain.split('"""')[1]
    assert f"attnref {attnref.__version__}. MIT-0" in header
    page = "https://example.org/files/softmax.py"
    written = copy.one_file(["softmax"], page).splitlines()
    assert written.index(f"Source: {page}") < 5
    written.remove(f"Source: {page}")
    assert written == plain.splitlines()

    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert main(SOFTMAX) + "\n" == plain  # nothing is installed
    for version, urls, line in (
        ("1", [], None),
        ("2", ["Homepage, https://example.org"], "https://example.org"),
        (
            "3",
            ["Homepage, https://example.org", "Source, https://example.com"],
            "https://example.com",
        ),
    ):
        installed = tmp_path / version / f"attnref-{version}.dist-info"
        installed.mkdir(parents=True)
        lines = [f"Project-URL: {url}" for url in urls]
        lines = ["Metadata-Version: 2.1", "Name: attnref", *lines]
        (installed / "METADATA").write_text("\n".join(lines))
        monkeypatch.setattr(sys, "path", [str(installed.parent)])
        text = main(SOFTMAX).splitlines()
        sources = [x for x in text if x.startswith("Source: ")]
        assert sources == ([f"Source: {line}"] if line else [])


@pytest.mark.parametrize(
    ("args", "got"),
    [
        (["gqa"], ["GroupedQueryAttention"]),
        (["gqa.py", "KVCache"], ["GroupedQueryAttention", "KVCache"]),
        (["kv-cache"], ["Cache", "GrowingKVCache", "KVCache"]),
        (["groupedqueryattention"], ["GroupedQueryAttention"]),
        (["sdpa"], ["sdpa"]),
        (["sdpa.py"], ["Attend", "Scores", "attention_weights", "sdpa"]),
        (["layers/gqa"], ["GroupedQueryAttention"]),
        (["multi_head_loop"], ["multi_head_loop"]),
        (["gqa,kvcache", "gqa"], ["GroupedQueryAttention", "KVCache"]),
        (["attnref.layers.gqa"], ["GroupedQueryAttention"]),
        (["attnref.core.softmax"], ["online_softmax", "softmax"]),
        (["attnref.softmax"], ["softmax"]),
        (["attnref.layers.mla.crossover"], ["crossover"]),
    ],
)
def test_a_name_may_be_that_of_a_file_or_a_page(args, got):
    assert copy.names_for(args) == got


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("GroupedQuerryAttention", "GroupedQueryAttention"),
        ("gpa", "gqa"),
        ("kvcach", "KVCache"),
    ],
)
def test_an_unknown_name_is_answered_with_near_ones(name, near, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["copy", name])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert re.search(rf"no '{name}'; did you mean .*\b{near}\b.*\?", message)


def test_the_header_says_how_to_make_the_same():
    names = ["sampled", *copy.files()["mla"], "softmax"]
    for args, words in (
        (names, ["mla.py", "sampled", "softmax"]),
        (attnref.__all__, [*names_by_file()]),
    ):
        text = copy.one_file(args)
        made = text.split("Made by: python -m attnref copy --full ")[1].split(
            '"""'
        )[0]
        plain = [word.removesuffix(".py") for word in made.split()]
        assert sorted(plain) == sorted(w.removesuffix(".py") for w in words)
        again = main(["copy", "--full", *made.split()]) + "\n"
        assert again.split('"""', 2)[2] == text.split('"""', 2)[2]


def test_the_list_has_every_file_and_every_name_with_its_length():
    """What stands first in a row is what may be asked for."""
    text = main(["copy", "--list"])
    assert max(map(len, text.splitlines())) <= 80
    plain, whole, alone = re.sub(r"\n {9,}", " ", text).split("\n\n")
    for row in plain.splitlines()[1:]:
        word, length, about = row.split(maxsplit=2)
        file = main(["copy", word])
        assert len(file.splitlines()) == int(length)
        assert file.startswith(f'"""{about}')
    assert len(plain.splitlines()) == len(copy.plain()) + 1
    got = []
    for part in (whole, alone):
        for row in part.splitlines()[1:]:
            word, length, listed = row.split(maxsplit=2)
            names = copy.names_for([word])
            got += names if part is whole else [word]
            assert len(copy.one_file(names).splitlines()) == int(length)
            home = f"attnref/{attnref.__dict__[names[0]].__module__[8:]}"
            home = f"{home.replace('.', '/')}.py"
            assert listed == (", ".join(names) if part is whole else home)
    loops = [name for name in attnref.__all__ if name.endswith("_loop")]
    assert sorted([*got, *loops]) == sorted(2 * attnref.__all__)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes files of a package in the place of attnref's: b may import a."""

    def written(a, b):
        (tmp_path / "core").mkdir()
        for name, text in (("a", a), ("b", b)):
            path = tmp_path / "core" / f"{name}.py"
            # A marker in this file would be one of this file.
            text = dedent(text).replace("MARK", "--8<--")
            path.write_text(text, encoding="utf-8")
        monkeypatch.setattr(copy, "PACKAGE", tmp_path)
        monkeypatch.setattr(copy, "public", lambda: {"f": "core.b"})
        monkeypatch.setattr(copy, "version", lambda: "1.2")
        copy.read.cache_clear()

    yield written
    copy.read.cache_clear()


def test_what_is_named_in_types_alone_is_copied_too(package):
    """In strings, under TYPE_CHECKING, and where one name has many types."""
    package(
        a='''
        """What others are made of."""

        import math
        from enum import Enum
        from typing import IO, Any, TypeAlias, overload

        __all__ = ["HALF", "Kind", "twice"]
        HALF = math.pi / 2  # of a turn


        # Its words stand above it.
        class Kind(Enum):
            ONE = 1


        @overload
        def twice(x: int) -> int: ...
        @overload
        def twice(x: str) -> str: ...
        def twice(x):
            return x + x


        Way: TypeAlias = int | IO[Any]
        ''',
        b='''
        """The end of it."""

        from typing import TYPE_CHECKING, Literal

        from attnref.core.a import HALF, twice

        if TYPE_CHECKING:
            from collections.abc import Sequence

            from attnref.core.a import Kind, Way


        class Unused: ...


        def f(way: "Sequence[Way]", to: Literal["Unused"]) -> "Kind | None":
            """Not of Unused; as f"{twice}" is."""
            # MARK [start:within]
            twice_ = {"twice": f"{twice(HALF):.2f}{way}"}
            # MARK [end:within]
            return twice_["twice"]
        ''',
    )
    assert copy.one_file(["f"]) == dedent('''\
        """f: one file that needs only torch.

        Cut from attnref 1.2. MIT-0: no notice needed.
        Made by: python -m attnref copy --full b.py
        """

        import math
        from collections.abc import Sequence
        from enum import Enum
        from typing import IO, Any, Literal, TypeAlias, overload

        # core/a.py
        # What others are made of.


        HALF = math.pi / 2  # of a turn


        # Its words stand above it.
        class Kind(Enum):
            ONE = 1


        @overload
        def twice(x: int) -> int: ...
        @overload
        def twice(x: str) -> str: ...
        def twice(x):
            return x + x


        Way: TypeAlias = int | IO[Any]


        # core/b.py
        # The end of it.


        def f(way: "Sequence[Way]", to: Literal["Unused"]) -> "Kind | None":
            """Not of Unused; as f"{twice}" is."""
            twice_ = {"twice": f"{twice(HALF):.2f}{way}"}
            return twice_["twice"]
        ''')


REFUSED = {
    "if f:\n    x = 1": "core/b.py:3: `if f:` at the top of a file",
    "try:\n    import math\nexcept OSError:\n    pass": "b.py:3: `try:` at",
    "x, y = 1, 2": " = (1, 2)` at the top of a file",
    "x = y = 1": "`x = y = 1` at the top of a file",
    "f.x = 1": "`f.x = 1` at the top of a file",
    "f(1)": "`f(1)` at the top of a file",
    "x = 1\ny = 2\nx = 3": "core/b.py:5: a second x",
    "@f.also\ndef g(): ...": "`@f.also`",
    "@called(f)\ndef g(): ...": "`@called(f)`",
    "from math import *": "`from math import *`",
    "from . import a": "`from . import a`",
    "from attnref import f": "`from attnref import f`",
    "from attnref.core import a": "`from attnref.core import a`, not a name",
    "from attnref.core.a import f as g": "import f as g`, not a name as it is",
    "import attnref.core.a as a": "`import attnref.core.a as a`",
    "import os.path": "`import os.path` without a name of its own",
    "from __future__ import annotations": "`from __future__ import",
    "def g():\n    from attnref import f": "`from attnref import f` within g",
    "x = __file__": "`__file__` within x",
}


@pytest.mark.parametrize(("code", "why"), REFUSED.items(), ids=REFUSED)
def test_what_would_mean_something_else_in_a_copy_is_refused(
    package, code, why, capsys
):
    package(a="", b=f"def f(): ...\n\n{code}\n")
    with pytest.raises(SystemExit):
        main(["copy", "--full", "f"])
    message = " ".join(capsys.readouterr().err.split())
    assert why in message and "which a copy cannot hold" in message


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        (
            "def g(): return _x()\ndef _x(): ...",
            "from attnref.core.a import g\n"
            "def f(): return g, _x()\ndef _x(): ...",
            "_x is defined in attnref.core.a and in attnref.core.b",
        ),
        (
            "import math\ndef g(): return math.pi",
            "from attnref.core.a import g\nimport cmath as math\n"
            "def f(): return g, math.pi",
            "math is defined in cmath. and in math.",
        ),
        (
            "def g(): return sum([1])",
            "from attnref.core.a import g\n"
            "def f(): return g, sum()\ndef sum(): ...",
            "sum is Python's own in attnref.core.a, and defined in "
            "attnref.core.b",
        ),
    ],
    ids=["private", "imported", "builtin"],
)
def test_a_name_with_two_meanings_is_refused(package, a, b, why):
    package(a, b)
    with pytest.raises(ValueError, match=why):
        copy.one_file(["f"])
