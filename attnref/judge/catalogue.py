"""The catalogue: what a mistake is, and code with one planted in it.

The entries are data, in mistakes/, a file for each subject. An entry of
`softmax.txt`:

    id: softmax-overflow
    en: Softmax without subtracting the maximum || How one notices it.
    zh: softmax 没有先减去最大值 || 怎么发现。
    @ plain.softmax: e = (x - x.amax(dim, keepdim=True)).exp()
    -    e = x.exp()

`@` begins a variant of the mistake: in that module, the line that begins with
these words is replaced by the lines below, which are marked - where they are
wrong. To replace several lines, write `first ... last`: how the first and the
last of them begin. `&` adds a replacement to the variant. `{{1e-5 | 1e-4}}`
stands for two variants, one with each. What the site alone says of a mistake is
not installed: it is on the page of its file, and in sitekit/drawn/mistakes.txt.
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
    def file(self) -> str:
        return f"attnref/{self.module.replace('.', '/')}.py"

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
        "ranks": ("ranks",),
        "recurrent": ("recurrent", "deepseek_v4"),
        "head": ("sinks", "alibi", "order", "ring", "scaling"),
    }.items()
    for stem in stems
}


def read(text: str) -> Iterator[Mistake]:
    """Read the entries of a file of mistakes/."""
    for entry in text.strip().split("\n\n"):
        head, *families = re.split(r"\n(?=@ )", entry)
        fields = dict(line.split(": ", 1) for line in head.splitlines())
        pairs = (fields[language].split(" || ") for language in Text._fields)
        title, notice = (Text(*texts) for texts in zip(*pairs, strict=True))
        variants = (
            tuple(
                _lines(*part[2:].splitlines())
                for part in re.split(r"\n(?=& )", variant)
            )
            for family in families
            for variant in _alternatives(family)
        )
        yield Mistake(fields["id"], title, notice, tuple(variants))


def _alternatives(family: str) -> Iterator[str]:
    """Write one text for each alternative in `{{one | other}}`.

    Where the same alternatives stand several times, each text has the same one
    at all of these places.
    """
    parts = re.split(r"\{\{(.+?)\}\}", family, flags=re.DOTALL)
    choices = {part: re.split(r"\s+\| ", part) for part in parts[1::2]}
    for values in product(*choices.values()):
        choice = dict(zip(choices, values, strict=True))
        yield "".join(choice[x] if n % 2 else x for n, x in enumerate(parts))


def _lines(place: str, *diff_lines: str) -> Lines:
    """Find the right lines at `module: first ... last`, and add them as `+`."""
    module, _, words = place.partition(": ")
    first, *following = map(re.escape, words.split(" ... "))
    pattern = f"^ *{first}.*" + "".join(
        rf"(?:\n(?! *{first}).*)*?\n *{word}.*" for word in following
    )
    matches = re.findall(pattern, _text(module), re.MULTILINE)
    if len(matches) != 1:
        raise ValueError(f"{len(matches)} times in {module}: {words}")
    diff, right = list[str](), matches[0].split("\n")
    for line in diff_lines:
        if line[:1] == " ":
            index = right.index(line[1:])
            diff += [f"+{right_line}" for right_line in right[:index]]
            right = right[index + 1 :]
        diff.append(line)
    diff += [f"+{right_line}" for right_line in right]
    return Lines(module, tuple(diff))


@cache
def mistakes_by_file() -> dict[str, tuple[Mistake, ...]]:
    """The mistakes of each file in mistakes/, by its stem."""
    folder = Path(__file__).with_name("mistakes")
    return {
        stem: tuple(read((folder / f"{stem}.txt").read_text(encoding="utf-8")))
        for stem in PAGES
    }


@cache
def catalogue() -> dict[str, Mistake]:
    """All mistakes by id."""
    mistakes = [
        mistake
        for entries in mistakes_by_file().values()
        for mistake in entries
    ]
    result = {mistake.id: mistake for mistake in mistakes}
    assert len(result) == len(mistakes), "two mistakes have one id"
    return result


@cache
def _plain_forms() -> tuple[str, ...]:
    stems = sorted(path.stem for path in (PACKAGE / "plain").glob("*.py"))
    return tuple(PLAIN + stem for stem in stems)


@cache
def every_variant(mistake: Mistake) -> tuple[Variant, ...]:
    """The variants of the entry, and the same lines in other plain forms.

    RoPE and the cache, for example, stand in several plain forms.
    """
    return tuple(_variants(mistake))


def _variants(mistake: Mistake) -> Iterator[Variant]:
    for variant in mistake.variants:
        yield variant
        if not all(lines.module.startswith(PLAIN) for lines in variant):
            continue
        for module in _plain_forms():
            moved = tuple(lines._replace(module=module) for lines in variant)
            if moved not in mistake.variants and all(
                _text(module).count(_with_breaks(lines.right)) == 1
                for lines in moved
            ):
                yield moved


@cache
def place_of(lines: Lines) -> tuple[str, ...]:
    """The function or class in which lines stand, and the method."""
    text_above = _text(lines.module).split(_with_breaks(lines.right))[0]
    tops = re.split(r"^(?:def|class) (\w+)", text_above, flags=re.MULTILINE)
    return (*tops[-2:-1], *re.findall(r"^    def (\w+)", tops[-1], re.M)[-1:])


# ----------------------------------------------------------------- planting


def sources(variant: Sequence[Lines]) -> dict[str, str]:
    """The text of each changed module, by its name, with the wrong lines."""
    texts: dict[str, str] = {}
    for lines in variant:
        if not lines.diff:  # of this module, as it stands
            continue
        text = texts.get(lines.module) or _text(lines.module)
        right, wrong = _with_breaks(lines.right), _with_breaks(lines.wrong)
        if text.count(right) != 1:
            raise ValueError(
                f"these lines are {text.count(right)} times in "
                f"{lines.module}:{right}"
            )
        texts[lines.module] = text.replace(right, wrong)
    return texts


def _with_breaks(lines: str) -> str:
    """Lines as they stand in a file, from line break to line break."""
    stripped = lines.strip("\n")
    return f"\n{stripped}\n" if stripped else "\n"


def _file(module: str) -> Path:
    """The file of a module, "plain.softmax", or of the package itself, ""."""
    path = PACKAGE.joinpath(*module.split("."))
    package = path / "__init__.py"  # a folder without it may hold templates
    return package if package.exists() else path.with_suffix(".py")


@cache
def _text(module: str) -> str:
    return _file(module).read_text(encoding="utf-8")


@cache
def _code(module: str, text: str) -> CodeType:
    return compile(text, _file(module), "exec")


class Plain:
    """The plain forms, with the lines of a variant in them: `.gqa.GQA`.

    Nobody else has their modules. A module is executed when it is first asked
    for, and `stems` then has its name.
    """

    def __init__(self, variant: Sequence[Lines] = ()) -> None:
        self.texts, self.stems = sources(variant), set[str]()

    def text(self, module: str) -> str:
        return self.texts.get(module) or _text(module)

    def __getattr__(self, stem: str) -> Any:
        if stem.startswith("_") or not _file(PLAIN + stem).is_file():
            raise AttributeError(stem)
        setattr(self, stem, self.module(stem))
        return getattr(self, stem)

    def module(self, stem: str, *, text: str = "", **names: Any) -> Any:
        """Execute a plain form in which `names` stand for other objects.

        `module("gqa", rope=lambda x, *_: x).GQA` is GQA without RoPE. `text`
        is executed in place of the text of the plain form.
        """
        name = PLAIN + stem
        module = ModuleType(f"attnref.{name}")
        exec(_code(name, text or self.text(name)), vars(module))
        vars(module).update(names)
        self.stems.add(stem)
        return module


class Planted(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the package with wrong lines in some of its modules.

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
        folders = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            name, file, loader=self, submodule_search_locations=folders
        )

    def get_source(self, fullname: str) -> str:
        module = fullname.partition(".")[2]
        return self.texts.get(module) or _text(module)

    def get_code(self, fullname: str) -> CodeType:
        return _code(fullname.partition(".")[2], self.get_source(fullname))


@contextmanager
def fresh(finder: Planted) -> Iterator[None]:
    """Import the package anew within the context, by this finder."""
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
    """Import a second attnref with these lines; the first is untouched."""
    with fresh(Planted(variant)):
        package = importlib.import_module("attnref")
        assert inspect.ismodule(package.core)  # imports all public names
        return package


def planted(variant: Sequence[Lines]) -> Any:
    """The plain forms, or a second attnref, with the lines of a variant."""
    in_plain = all(lines.module.startswith(PLAIN) for lines in variant)
    return Plain(variant) if in_plain else load(variant)
