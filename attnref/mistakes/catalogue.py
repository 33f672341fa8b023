"""The catalogue: what a mistake is, and the package with one planted in it."""

import importlib
import importlib.abc
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

PACKAGE = Path(__file__).resolve().parent.parent


class Text(NamedTuple):
    """A few words or sentences in both languages of the site."""

    en: str
    zh: str


class Lines(NamedTuple):
    """Right lines of a module of this package, and wrong ones for them."""

    module: str  # "core.masks"
    right: str
    wrong: str


class Mistake(NamedTuple):
    """One way to be wrong.

    `lines` are replaced in the package's own source. `symptom` is a key of
    `SYMPTOMS`. `shown` computes, with a package, what one would see: a number,
    a vector or a small matrix, which a page draws with the right and the wrong
    lines. `seen` says it in a sentence; in it, `{right}` and `{wrong}` are the
    numbers that `shown` gives (or the error that it raises) and `{change}` is
    the largest difference; `{where}` is its place in a matrix, and `{there}`
    the two numbers there. `notice` says how one notices, and `same_shape`
    whether the wrong output has the right shape. `found` are the addresses
    where it was met.

    Each of `tests` fails with the wrong lines and passes without them; so does
    `law`, a test for readers to copy, called with what `of` makes of a package.
    """

    id: str
    title: Text
    lines: tuple[Lines, ...]
    symptom: str
    shown: Callable[[Any], "Tensor"]
    seen: Text
    notice: Text
    same_shape: bool
    found: tuple[str, ...]
    tests: tuple[str, ...]
    law: Callable[..., None]
    of: Callable[[Any], tuple[Any, ...]]
    # Of the small matrix: what its rows and its columns are.
    axes: tuple[Text, Text] = (Text("query", "查询"), Text("key", "键"))


# The page of the site that has the entries of each file.
PAGES = {
    stem: f"mistakes/{page}-mistakes"
    for page, stems in {
        "attention": ("softmax", "masks", "sdpa"),
        "layer": ("mha", "mqa", "gqa", "cross", "convert", "block"),
        "cache": ("rope", "positions", "kv_cache"),
        "mla": ("mla", "absorption"),
        "flash": ("flash", "merge", "fused"),
    }.items()
    for stem in stems
}


SYMPTOMS = {
    "future": Text("the future leaks", "看到了未来的 token"),
    "heads": Text("heads are mixed", "各个头串在了一起"),
    "inert": Text("the mask does nothing", "掩码不起作用"),
    "nan": Text("NaN or infinity", "出现 NaN 或无穷大"),
    "sizes": Text(
        "right until two sizes are equal", "两个尺寸碰巧相等时才出错"
    ),
    "decoding": Text("right in training, wrong in decoding", "训练对，解码错"),
    "gradients": Text("right outputs, wrong gradients", "输出对，梯度错"),
    "memory": Text("right, but too much memory", "结果对，但内存占用太多"),
    "worse": Text("no error, only worse results", "不报错，只是结果变差"),
    "error": Text(
        "an error, but only for some sizes or dtypes",
        "只有某些尺寸或 dtype 会报错",
    ),
}


@cache
def files() -> dict[str, tuple[Mistake, ...]]:
    """The mistakes of each file beside this one that has some, by its name."""
    found: dict[str, tuple[Mistake, ...]] = {}
    for beside in pkgutil.iter_modules([str(Path(__file__).parent)]):
        name = f"attnref.mistakes.{beside.name}"
        if name != __name__:
            module = importlib.import_module(name)
            if held := getattr(module, "MISTAKES", ()):
                found[beside.name] = held
    return found


@cache
def catalogue() -> dict[str, Mistake]:
    """All mistakes by id."""
    every = [mistake for held in files().values() for mistake in held]
    found = {mistake.id: mistake for mistake in every}
    assert len(found) == len(every), "two mistakes have one id"
    return found


def sources(mistakes: Sequence[Mistake]) -> dict[str, str]:
    """The changed modules, by name: their text with the wrong lines."""
    texts: dict[str, str] = {}
    for mistake in mistakes:
        for module, right, wrong in mistake.lines:
            file = _file(f"attnref.{module}")
            text = texts.get(module) or file.read_text(encoding="utf-8")
            if text.count(_whole(right)) != 1:
                raise ValueError(
                    f"{mistake.id}: its right lines are "
                    f"{text.count(_whole(right))} times in {module}"
                )
            texts[module] = text.replace(_whole(right), _whole(wrong))
    return texts


def _whole(lines: str) -> str:
    """Lines as they stand in a file, from line break to line break."""
    return "\n" + lines.strip("\n") + "\n"


def _file(name: str) -> Path:
    """Of a module of the package, by its full name."""
    path = PACKAGE.joinpath(*name.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _code(name: str, text: str | None) -> CodeType:
    file = _file(name)
    return compile(text or file.read_text(encoding="utf-8"), file, "exec")


class Planted(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the package, some of its modules with other texts.

    Each text is compiled once in a process, so that one more package takes
    little longer than its changed modules.
    """

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.texts = {f"attnref.{m}": t for m, t in sources(mistakes).items()}

    def find_spec(
        self, name: str, path: Any, target: Any = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "attnref":
            return None
        file = _file(name)
        below = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            name, file, loader=self, submodule_search_locations=below
        )

    def get_source(self, fullname: str) -> str:
        text = self.texts.get(fullname)
        return text or _file(fullname).read_text(encoding="utf-8")

    def get_code(self, fullname: str) -> CodeType:
        return _code(fullname, self.texts.get(fullname))


@contextmanager
def fresh(finder: Planted) -> Iterator[None]:
    """Within it, the package is imported anew, with other texts."""
    old = {n: m for n, m in sys.modules.items() if n.split(".")[0] == "attnref"}
    for name in old:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.split(".")[0] == "attnref"]:
            del sys.modules[name]
        sys.modules.update(old)


def load(*mistakes: Mistake) -> ModuleType:
    """A second attnref, with these mistakes in it; the first is untouched."""
    with fresh(Planted(mistakes)):
        wrong = importlib.import_module("attnref")
        assert inspect.ismodule(wrong.core)  # imports all public names
        return wrong
