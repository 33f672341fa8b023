"""The catalogue: what a mistake is, and code with one planted in it.

The entries are data, in mistakes/, a file for each subject. `softmax.txt`
has those of softmax:

    id: softmax-overflow
    en: Softmax without subtracting the maximum || How one notices it.
    zh: softmax 没有先减去最大值 || 怎么发现。
    @ plain.softmax: e = (x - x.amax(dim, keepdim=True)).exp()
    -    e = x.exp()

`@` begins a variant of the mistake: in place of the line of that file of the
package which begins so, there are those below, - where they are wrong. Of
several lines, `first ... last`, the beginnings of both are given. `&` adds
lines to a variant. `{{1e-5 | 1e-4}}` in its lines stands for one variant with
each. What the site tells of a mistake is not installed: it is on the page of
its file, and in sitekit/drawn/mistakes.txt.
"""

import importlib
import importlib.abc
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from itertools import product
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from attnref.words import Text

PACKAGE = Path(__file__).resolve().parent.parent
PLAIN = "plain."


class Lines(NamedTuple):
    """Lines of a module of this package, and wrong ones for them: a diff."""

    module: str  # "plain.softmax"
    diff: tuple[str, ...]

    @property
    def right(self) -> str:
        return "".join(f"{x[1:]}\n" for x in self.diff if x[:1] != "-")

    @property
    def wrong(self) -> str:
        return "".join(f"{x[1:]}\n" for x in self.diff if x[:1] != "+")


Variant = tuple[Lines, ...]


class Mistake(NamedTuple):
    """One way to be wrong; `notice` says how one notices it."""

    id: str
    title: Text
    notice: Text
    variants: tuple[Variant, ...]

    @property
    def module(self) -> str:
        return self.variants[0][0].module


# The page of the site that has the entries of each file.
PAGES = {
    stem: f"mistakes/{page}-mistakes"
    for page, stems in {
        "attention": ("softmax", "masks", "sdpa"),
        "layer": ("mha", "mqa", "gqa", "cross", "convert", "block"),
        "cache": ("rope", "positions", "kv_cache", "paged"),
        "mla": ("mla", "absorption", "dsa"),
        "flash": ("flash", "merge", "fused"),
        "recurrent": ("recurrent", "deepseek_v4"),
        "head": ("sinks", "alibi", "order", "ring", "scaling"),
    }.items()
    for stem in stems
}


def read(text: str) -> Iterator[Mistake]:
    """The entries of a file."""
    for entry in text.strip().split("\n\n"):
        head, *written = re.split(r"\n(?=@ )", entry)
        fields = dict(line.split(": ", 1) for line in head.splitlines())
        pairs = (fields[language].split(" || ") for language in Text._fields)
        title, notice = (Text(*both) for both in zip(*pairs, strict=True))
        variants = (
            tuple(
                _lines(*part[2:].splitlines())
                for part in re.split(r"\n(?=& )", variant)
            )
            for family in written
            for variant in _each(family)
        )
        yield Mistake(fields["id"], title, notice, tuple(variants))


def _each(family: str) -> Iterator[str]:
    """A text with each of its alternatives, `{{one | other}}`; the same at
    each place where the same ones stand."""
    parts = re.split(r"\{\{(.+?)\}\}", family, flags=re.DOTALL)
    choices = {part: re.split(r"\s+\| ", part) for part in parts[1::2]}
    for chosen in product(*choices.values()):
        of = dict(zip(choices, chosen, strict=True))
        yield "".join(of[x] if n % 2 else x for n, x in enumerate(parts))


def _lines(place: str, *written: str) -> Lines:
    module, _, words = place.partition(": ")
    first, *others = map(re.escape, words.split(" ... "))
    lines = f"^ *{first}.*" + "".join(
        rf"(?:\n(?! *{first}).*)*?\n *{word}.*" for word in others
    )
    matches = re.findall(lines, _text(module), re.MULTILINE)
    if len(matches) != 1:
        raise ValueError(f"{len(matches)} times in {module}: {words}")
    diff, right = list[str](), matches[0].split("\n")
    for line in written:
        if line[:1] == " ":
            at = right.index(line[1:])
            diff += [f"+{each}" for each in right[:at]]
            right = right[at + 1 :]
        diff.append(line)
    diff += [f"+{each}" for each in right]
    return Lines(module, tuple(diff))


@cache
def files() -> dict[str, tuple[Mistake, ...]]:
    """The mistakes of each file of entries, by its name."""
    folder = Path(__file__).with_name("mistakes")
    return {
        stem: tuple(read((folder / f"{stem}.txt").read_text(encoding="utf-8")))
        for stem in PAGES
    }


@cache
def catalogue() -> dict[str, Mistake]:
    """All mistakes by id."""
    every = [mistake for held in files().values() for mistake in held]
    result = {mistake.id: mistake for mistake in every}
    assert len(result) == len(every), "two mistakes have one id"
    return result


@cache
def _plain_forms() -> tuple[str, ...]:
    every = sorted(path.stem for path in (PACKAGE / "plain").glob("*.py"))
    return tuple(PLAIN + stem for stem in every)


@cache
def every_variant(mistake: Mistake) -> tuple[Variant, ...]:
    """Those of the entry, and the same in other plain forms that have its
    lines: RoPE and the cache stand in several."""
    return tuple(_variants(mistake))


def _variants(mistake: Mistake) -> Iterator[Variant]:
    for variant in mistake.variants:
        yield variant
        if not all(lines.module.startswith(PLAIN) for lines in variant):
            continue
        for module in _plain_forms():
            other = tuple(lines._replace(module=module) for lines in variant)
            if other not in mistake.variants and all(
                _text(module).count(_whole(lines.right)) == 1 for lines in other
            ):
                yield other


@cache
def place_of(lines: Lines) -> tuple[str, ...]:
    """Where lines stand: the function or class, and the method."""
    before = _text(lines.module).split(_whole(lines.right))[0]
    tops = re.split(r"^(?:def|class) (\w+)", before, flags=re.MULTILINE)
    return (*tops[-2:-1], *re.findall(r"^    def (\w+)", tops[-1], re.M)[-1:])


# ----------------------------------------------------------------- planting


def sources(variant: Sequence[Lines]) -> dict[str, str]:
    """The changed modules, by name: their text with the wrong lines."""
    texts: dict[str, str] = {}
    for lines in variant:
        if not lines.diff:  # of this module, as it stands
            continue
        text = texts.get(lines.module) or _text(lines.module)
        right, wrong = _whole(lines.right), _whole(lines.wrong)
        if text.count(right) != 1:
            raise ValueError(
                f"these lines are {text.count(right)} times in "
                f"{lines.module}:{right}"
            )
        texts[lines.module] = text.replace(right, wrong)
    return texts


def _whole(lines: str) -> str:
    """Lines as they stand in a file, from line break to line break."""
    stripped = lines.strip("\n")
    return f"\n{stripped}\n" if stripped else "\n"


def _file(module: str) -> Path:
    """Of a module of the package, "plain.softmax", or of the package, ""."""
    path = PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _text(module: str) -> str:
    return _file(module).read_text(encoding="utf-8")


@cache
def _code(module: str, text: str) -> CodeType:
    return compile(text, _file(module), "exec")


class Plain:
    """The plain forms, with the lines of a variant in them: `.gqa.GQA`. Each
    module is one of its own and is executed when it is asked for."""

    def __init__(self, variant: Sequence[Lines] = ()) -> None:
        self.texts = sources(variant)

    def text(self, module: str) -> str:
        return self.texts.get(module) or _text(module)

    def __getattr__(self, stem: str) -> Any:
        name = PLAIN + stem
        if stem.startswith("_") or not _file(name).is_file():
            raise AttributeError(stem)
        module = ModuleType(f"attnref.{name}")
        exec(_code(name, self.text(name)), vars(module))
        setattr(self, stem, module)
        return module


class Planted(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the package, some of its modules with other texts.

    Each text is compiled once in a process, so that one more package takes
    little longer than its changed modules.
    """

    def __init__(self, variant: Sequence[Lines]) -> None:
        self.texts = sources(variant)

    def find_spec(
        self, name: str, path: Any, target: Any = None
    ) -> ModuleSpec | None:
        package, _, module = name.partition(".")
        if package != "attnref":
            return None
        file = _file(module)
        below = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            name, file, loader=self, submodule_search_locations=below
        )

    def get_source(self, fullname: str) -> str:
        module = fullname.partition(".")[2]
        return self.texts.get(module) or _text(module)

    def get_code(self, fullname: str) -> CodeType:
        return _code(fullname.partition(".")[2], self.get_source(fullname))


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


def load(variant: Sequence[Lines] = ()) -> ModuleType:
    """A second attnref, with these lines in it; the first is untouched."""
    with fresh(Planted(variant)):
        wrong = importlib.import_module("attnref")
        assert inspect.ismodule(wrong.core)  # imports all public names
        return wrong


def planted(variant: Sequence[Lines]) -> Any:
    """What has this variant in it: the plain forms or a second attnref."""
    in_plain = all(lines.module.startswith(PLAIN) for lines in variant)
    return Plain(variant) if in_plain else load(variant)
