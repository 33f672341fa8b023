"""The catalogue: what a mistake is, and code with one planted in it.

The entries are data, in a file for each subject beside this one. `softmax.diff`
has those of softmax:

    id: softmax-overflow
    symptom: nan
    en: Softmax without subtracting the maximum
    zh: softmax 没有先减去最大值
    notice-en: The softmax of [1000, 1000] must be [0.5, 0.5].
    notice-zh: softmax([1000, 1000]) 应为 [0.5, 0.5]。
    see: softmax(torch.tensor([10.0, 50.0, 100.0]))
    met: https://github.com/pyg-team/pytorch_geometric/issues/53
    @ plain.softmax
    -    e = x.exp()
    +    e = (x - x.amax(dim, keepdim=True)).exp()

`@` begins a variant of the mistake: lines of a file of the package, - as they
are wrong and + as they stand there. `& plain.softmax` adds lines to a variant.
What the mistake does is said in Markdown, on the page of its file.
"""

import importlib
import importlib.abc
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

PACKAGE = Path(__file__).resolve().parent.parent
PLAIN = "plain."


class Text(NamedTuple):
    """A few words or sentences in both languages of the site."""

    en: str
    zh: str


class Lines(NamedTuple):
    """Lines of a module of this package, and wrong ones for them. `diff` has
    both, as the file of entries has them."""

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
    """One way to be wrong.

    `symptom` is a key of `SYMPTOMS`, `notice` says how one notices it. `see`
    is code that shows it, with the names of the module of its first variant,
    or all public ones; it ends with an expression for a number, a vector or a
    small matrix, whose rows and columns are `axes`. `met` are the addresses
    where it was met.
    """

    id: str
    symptom: str
    title: Text
    notice: Text
    see: tuple[str, ...]
    met: tuple[str, ...]
    axes: tuple[Text, Text]
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


AXES = "query | key | 查询 | 键"


def _axes(*names: str) -> tuple[Text, Text]:
    return Text(*names[::2]), Text(*names[1::2])


def read(text: str) -> Iterator[Mistake]:
    """The entries of a file."""
    for entry in ("\n" + text).split("\nid: ")[1:]:
        fields: dict[str, list[str]] = {}
        variants: list[list[tuple[str, list[str]]]] = []
        for line in ("id: " + entry).splitlines():
            if line[:2] in ("@ ", "& "):
                if line[0] == "@":
                    variants.append([])
                variants[-1].append((line[2:], []))
            elif variants and line[:1] in ("-", "+", " "):
                variants[-1][-1][1].append(line)
            elif line:
                key, colon, value = line.partition(": ")
                if not colon or variants:
                    raise ValueError(f"no line of an entry: {line!r}")
                fields.setdefault(key, []).append(value)
        yield Mistake(
            id=fields["id"][0],
            symptom=fields["symptom"][0],
            title=Text(fields["en"][0], fields["zh"][0]),
            notice=Text(fields["notice-en"][0], fields["notice-zh"][0]),
            see=tuple(fields["see"]),
            met=tuple(fields.get("met", ())),
            axes=_axes(*fields.get("axes", [AXES])[0].split(" | ")),
            variants=tuple(
                tuple(Lines(module, tuple(diff)) for module, diff in parts)
                for parts in variants
            ),
        )


@cache
def files() -> dict[str, tuple[Mistake, ...]]:
    """The mistakes of each file of entries, by its name."""
    paths = {path.stem: path for path in Path(__file__).parent.glob("*.diff")}
    return {
        stem: tuple(read(paths[stem].read_text(encoding="utf-8")))
        for stem in PAGES
        if stem in paths
    }


@cache
def catalogue() -> dict[str, Mistake]:
    """All mistakes by id."""
    every = [mistake for held in files().values() for mistake in held]
    found = {mistake.id: mistake for mistake in every}
    assert len(found) == len(every), "two mistakes have one id"
    return found


def every_variant(mistake: Mistake) -> Iterator[Variant]:
    """Those of the entry, and the same in other plain forms that have its
    lines: RoPE and the cache stand in several."""
    told = {tuple(lines.module for lines in v) for v in mistake.variants}
    for variant in mistake.variants:
        yield variant
        if not all(lines.module.startswith(PLAIN) for lines in variant):
            continue
        for path in sorted((PACKAGE / "plain").glob("*.py")):
            module = PLAIN + path.stem
            other = tuple(lines._replace(module=module) for lines in variant)
            text = path.read_text(encoding="utf-8")
            if (module,) * len(other) not in told and all(
                text.count(_whole(lines.right)) == 1 for lines in other
            ):
                yield other


# ----------------------------------------------------------------- planting


def sources(variant: Sequence[Lines]) -> dict[str, str]:
    """The changed modules, by name: their text with the wrong lines."""
    texts: dict[str, str] = {}
    for lines in variant:
        file = _file(f"attnref.{lines.module}")
        text = texts.get(lines.module) or file.read_text(encoding="utf-8")
        right, wrong = _whole(lines.right), _whole(lines.wrong)
        if not lines.diff:  # of this module, as it stands
            continue
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


def _file(name: str) -> Path:
    """Of a module of the package, by its full name."""
    path = PACKAGE.joinpath(*name.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _code(name: str, text: str | None) -> CodeType:
    file = _file(name)
    return compile(text or file.read_text(encoding="utf-8"), file, "exec")


class Plain:
    """The plain forms, with the lines of a variant in them: `.gqa.GQA`. Each
    module is one of its own and is executed when it is asked for."""

    def __init__(self, variant: Sequence[Lines] = ()) -> None:
        self.texts = sources(variant)

    def __getattr__(self, stem: str) -> Any:
        name = f"attnref.{PLAIN}{stem}"
        if stem.startswith("_") or not _file(name).is_file():
            raise AttributeError(stem)
        module = ModuleType(name)
        exec(_code(name, self.texts.get(PLAIN + stem)), vars(module))
        setattr(self, stem, module)
        return module


class Planted(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the package, some of its modules with other texts.

    Each text is compiled once in a process, so that one more package takes
    little longer than its changed modules.
    """

    def __init__(self, variant: Sequence[Lines]) -> None:
        self.texts = {f"attnref.{m}": t for m, t in sources(variant).items()}

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
