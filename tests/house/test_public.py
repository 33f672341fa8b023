"""What is public: written down, found when it is asked for, and typed.

    python -m tests.house.test_public

records it anew in public.txt, where a change is meant.
"""

import ast
import compileall
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib import import_module
from itertools import chain, starmap
from pathlib import Path

import playwright
import pytest
import torch

import attnref
from sitekit import ROOT, api
from sitekit.files import texts

RECORD = ROOT / "tests" / "house" / "public.txt"
PACKAGE = ROOT / "attnref"


def face():
    """What the stub beside `__init__.py` says: names, and their modules."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    imported = {
        alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (listed,) = (n for n in tree.body if isinstance(n, ast.Assign))
    assert listed.targets[0].id == "__all__"
    others = {ast.unparse(n) for n in tree.body if isinstance(n, ast.AnnAssign)}
    return imported, ast.literal_eval(listed.value), others


TOOLS = [name for names in attnref._TOOLS.values() for name in names]


@pytest.mark.whole
def test_type_checkers_see_what_there_is():
    imported, listed, others = face()
    tools = {name: imported.pop(name) for name in TOOLS}
    homes = {
        name: f"attnref.{home}"
        for home, names in attnref._HOMES.items()
        for name in names
    }
    assert imported == homes
    assert listed == attnref.__all__
    assert others == {"__version__: str"}
    assert not {*tools} & {*listed}
    for name, home in (homes | tools).items():
        value = getattr(attnref, name)
        assert value is getattr(import_module(home), name)
        assert value.__module__ == home, f"{name} is not defined in {home}"


LAZY = """
import inspect, pickle, sys, threading

import attnref

assert "torch" not in sys.modules and "attnref.core" not in sys.modules
assert not attnref.__file__.endswith(".py"), "there is a source"
assert {*attnref.__all__, "core", "layers", "__version__"} <= {*dir(attnref)}
assert "torch" not in sys.modules, "dir() loads nothing"
names = ["softmax", "Cache", "core"]
ready, found = threading.Barrier(5 * len(names)), {}

def ask(name):
    ready.wait()
    found[name] = getattr(attnref, name)

threads = [threading.Thread(target=ask, args=[name]) for name in 5 * names]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sorted(found) == sorted(names)
for name, value in found.items():
    assert value is vars(attnref)[name]
# Whatever was asked for first, all folders are there with all their files.
assert attnref.core.rope.apply_rope is attnref.apply_rope
assert attnref.layers.mla.crossover is attnref.crossover
assert "attnref.plain" not in sys.modules and "plain" in dir(attnref)
assert attnref.plain is sys.modules["attnref.plain"]
star = {}
exec("from attnref import *", star)
assert {*star} - {"__builtins__"} == {*attnref.__all__}
parameters = inspect.signature(attnref.GroupedQueryAttention).parameters
assert "n_kv_heads" in parameters
assert {*attnref.__all__} <= {name for name, _ in inspect.getmembers(attnref)}
layer = attnref.MultiHeadAttention(d_model=6, n_heads=3)
kept = [layer, attnref.Causal(), attnref.KVCache(3)]
again = pickle.loads(pickle.dumps(kept))
assert [type(each) for each in again] == [type(each) for each in kept]
"""


def test_names_load_when_they_are_used_and_without_a_source(tmp_path):
    """By many threads at once; from byte code alone, as in a frozen program."""
    folder = tmp_path / "attnref"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, folder, ignore=ignored)
    assert compileall.compile_dir(folder, quiet=1, legacy=True)
    for path in folder.rglob("*.py"):
        path.unlink()
    done = subprocess.run(
        [sys.executable, "-c", LAZY],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("sofmax", "; did you mean softmax, "),
        ("GroupedQuerryAttention", "; did you mean GroupedQueryAttention, "),
        ("kvcache", "; did you mean KVCache?"),
        ("xyzzy", ""),
        ("__wrapped__", ""),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_near_ones(name, start):
    with pytest.raises(AttributeError) as error:
        getattr(attnref, name)
    begins, _, hint = str(error.value).partition(f" attribute '{name}'")
    assert begins == "module 'attnref' has no"
    assert hint.startswith(start) and bool(hint) == bool(start)


def documented():
    """The public names, and those of other modules that the API pages have."""
    for place in api.places():
        module, _, name = place.rpartition(".")
        yield place, getattr(import_module(module), name)


def short(annotated):
    """Classes by their names: where they are defined is nobody's concern."""
    text = re.sub(r"<function (\w+) at 0x\w+>", r"\1", str(annotated))
    return re.sub(r"\b[a-z_]\w*(\.\w+)*\.(?=[A-Z])", "", text)


def described(place, value):
    """A line for it, and for a class one for each of its own members."""
    signature = inspect.signature(value)
    if not isinstance(value, type):
        yield f"{place}{short(signature)}"
        return
    bases = [b.__name__ for b in value.__bases__ if b is not object]
    of = f" of {', '.join(bases)}" if bases else ""
    yield f"{place}{short(signature)}: class{of}"
    declared = inspect.get_annotations(value)
    for name, member in sorted((declared | {**vars(value)}).items()):
        private = name.startswith("_") and name != "__call__"
        if private or name in signature.parameters:
            continue
        if name not in vars(value):
            yield f"{place}.{name}: {short(inspect.formatannotation(member))}"
        elif isinstance(member, property):
            kind = inspect.signature(member.fget).return_annotation
            yield f"{place}.{name}: {short(inspect.formatannotation(kind))}"
        elif inspect.isfunction(member):
            yield f"{place}.{name}{short(inspect.signature(member))}"
        else:
            yield f"{place}.{name} = {member!r}"


def public():
    places = dict(documented())
    for name in [*attnref.__all__, *TOOLS]:
        value = getattr(attnref, name)
        places[f"attnref.{name}"] = places.pop(f"{value.__module__}.{name}")
    lines = chain.from_iterable(starmap(described, places.items()))
    return "".join(f"{line}\n" for line in sorted(lines))


@pytest.mark.whole
def test_what_is_public_is_as_recorded():
    """If this fails, users may see it: say so in CHANGELOG.md. What is new is
    free to change until a release, which records it."""
    recorded, now = RECORD.read_text("utf-8").splitlines(), public()
    lost = sorted({*recorded} - {*now.splitlines()})
    assert lost == [], (
        "If that is meant, write it into CHANGELOG.md, then record it with "
        "`python -m tests.house.test_public`"
    )


def test_nothing_public_may_be_anything():
    """Any stands only for what is passed on to a layer or a core."""
    lines = public().splitlines()
    loose = {line.partition("(")[0] for line in lines if "Any" in line}
    assert loose == {
        "attnref.Block.forward",
        "attnref.Decoder.forward",
        "attnref.Scores.options",
        "attnref.greedy",
    }
    for line in lines:
        for part in re.findall(r"[\w*]+: Any\b", line):
            assert part == "**attention: Any"


def test_the_changelog_has_a_section_for_the_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heads = re.findall(r"^## (.*)$", text, re.M)
    versions = [head.partition(" - ")[0] for head in heads]
    assert attnref.__version__ in versions[:2]  # "Unreleased" may be above
    for i, head in enumerate(heads):
        dated = re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-[01]\d-[0-3]\d", head)
        open_still = i == 0 and head.endswith(("Unreleased", " - unreleased"))
        assert dated or open_still, head
    if "unreleased" not in heads[0].lower():
        assert RECORD.read_text("utf-8") == public(), "record what is new"
    kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    assert {*re.findall(r"^### (.*)$", text, re.M)} <= {*kinds}
    assert not re.search(r"\]\(|\]: |https?://", text), "links go stale"
    public_names = {*attnref.__all__, *TOOLS}
    for name in re.findall(r"`([A-Z]\w+)`", text):
        assert name in public_names, name


THEIRS = """
import torch
from torch import Tensor, nn

import attnref
from attnref import {names}
from attnref.numbers.cost import attention_cost
from attnref.numbers.kv_memory import kv_bytes
from attnref.released.specs import find_model

public: list[object] = [{names}]


class Model(nn.Module):
    def __init__(self, caches: type[attnref.Cache] | None = None) -> None:
        super().__init__()
        self.mix = GroupedQueryAttention(d_model=8, n_heads=4, n_kv_heads=2)
        self.latent: attnref.MultiHeadLatentAttention | None = None

    def forward(self, x: Tensor, cache: attnref.Cache | None = None) -> Tensor:
        out: Tensor = self.mix(x, mask=None, cache=cache)
        return out


class Half(attnref.Cache):
    keeps = Everything()

    def append(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(t[:, :, ::2] for t in tensors)


class Some(KVCache):
    def __init__(self, max_len: int, rule: Rule) -> None:
        super().__init__(max_len)
        self.keeps = rule

    def check_room(self, new: int) -> None:
        if self.length + new > 2 * self.max_len:
            raise ValueError


def rolled_back(cache: Cache) -> int:
    cache.crop(cache.length // 2)
    return cache.nbytes


x = torch.zeros(3, 5, 8)
layer, full = Model().mix, MultiHeadAttention(d_model=8, n_heads=4)
mask = causal_mask(5) & padding_mask(x[..., 0] > 0)
reveal_type(mask)  # Tensor
reveal_type(sdpa(x, x, x, mask, scale=0.5))  # Tensor
reveal_type(layer.forward(x, cache=Half()))  # Tensor
reveal_type(layer(x))  # Any
reveal_type(layer.n_kv_heads)  # int
reveal_type(KVCache(3).append(x, x))  # tuple[Tensor, ...]
reveal_type(KVCache(3).max_len)  # int
reveal_type(Some(3, Causal()).keeps)  # Rule
reveal_type(rope_table(x, 4))  # tuple[Tensor, Tensor]
reveal_type(mha_to_gqa(full, 2))  # GroupedQueryAttention
reveal_type(dequantised(layer.state_dict()))  # dict[str, Tensor]
reveal_type(kv_bytes(find_model("gpt2"), 10))  # int
reveal_type(attention_cost(d_model=8, n_heads=4).flops)  # int
reveal_type(attnref.__version__)  # str
"""
WRONG = """
import torch
import attnref
x = torch.zeros(3, 5, 8)
attnref.sdpa(x, x, x, maks=x)
attnref.KVCache("3")
attnref.Cache()
attnref.nonsense
attnref.GroupedQueryAttention(d_model=8, n_heads=4)
attnref.GroupedQueryAttention(d_model=8, n_heads=4, n_kv_heads=2).forward(3)
"""


def output_of(folder, *words, **env):
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k != "MYPYPATH"} | env,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.stdout


def mypy(folder):
    """In one run, as most of it is torch: also over attnref and sitekit. The
    copies are under it in `tests/commands/test_copy.py`."""
    files = [str(folder / name) for name in ("theirs.py", "wrong.py")]
    options = ["--hide-error-context", "--show-absolute-path"]
    text = output_of(ROOT, "mypy", *options, "attnref", "sitekit", *files)
    lines = re.findall(r"^(.*)\.py:(\d+): (\w+): (.*)$", text, re.M)
    return [
        (Path(path).name, int(line), kind, message)
        for path, line, kind, message in lines
    ]


def pyright(folder):
    """As installed, and over the package and its copies too, though not
    strictly. It is run by the node that playwright brings, so that it needs no
    network."""
    config = {"typeCheckingMode": "standard", "strict": ["*.py"]}
    # No annotations; and engines that are not installed here.
    rooms = "plain", "judge/engines"
    config["ignore"] = [str(PACKAGE / room) for room in rooms]
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    (folder / "copies").mkdir()
    full = {n: t for n, t in texts().items() if "plain/" not in n}
    for name, text in full.items():
        (folder / "copies" / name).write_text(text, encoding="utf-8")
    venv.create(folder / "env", symlinks=True)
    (place,) = (folder / "env").rglob("site-packages")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, place / "attnref", ignore=ignored)
    torch_is_in = str(Path(torch.__file__).parent.parent)
    (place / "torch.pth").write_text(torch_is_in, encoding="utf-8")
    node = Path(playwright.__file__).parent / "driver"
    text = output_of(
        folder,
        *["pyright", "--outputjson", ".", str(PACKAGE)],
        f"--pythonpath={folder}/env/bin/python",
        PATH=f"{node}{os.pathsep}{os.environ['PATH']}",
        PYRIGHT_PYTHON_GLOBAL_NODE="1",
        PYRIGHT_PYTHON_IGNORE_WARNINGS="1",
    )
    result = json.loads(text)
    files = 2 + len(full) + len([*PACKAGE.rglob("*.py")])
    assert result["summary"]["filesAnalyzed"] >= files
    return [
        (
            Path(each["file"]).stem,
            each["range"]["start"]["line"] + 1,
            each["severity"],
            each["message"],
        )
        for each in result["generalDiagnostics"]
    ]


@pytest.mark.parametrize(
    "checker",
    [
        pytest.param(mypy, marks=pytest.mark.whole("where code is shown")),
        pytest.param(pyright, marks=[pytest.mark.audit, pytest.mark.oracle]),
    ],
)
def test_our_code_and_that_of_users_is_typed(checker, tmp_path):
    """Strictly. Calling a layer gives Any, as calling any module of torch
    does; `layer.forward` has its types."""
    theirs = THEIRS.replace("{names}", ", ".join(attnref.__all__))
    (tmp_path / "theirs.py").write_text(theirs, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    types = {
        n: line.rpartition("# ")[2]
        for n, line in enumerate(theirs.splitlines(), 1)
        if line.startswith("reveal_type")
    }
    messages = checker(tmp_path)
    errors = [each for each in messages if each[2] in ("error", "warning")]
    assert [each for each in errors if each[0] != "wrong"] == []
    lines = {n for stem, n, _, _ in errors}
    assert lines == {*range(5, len(WRONG.splitlines()) + 1)}
    revealed = {
        n: re.search(r'(?:Revealed type|Type of .*) is "(.*)"', message)[1]
        for stem, n, _, message in messages
        if stem == "theirs"
    }
    assert {n: short(kind) for n, kind in revealed.items()} == types


if __name__ == "__main__":
    RECORD.write_text(public(), encoding="utf-8")
