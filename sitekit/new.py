"""The skeleton of a layer, of a cache, or of a page, in all its places.

What is written runs, builds and is under the properties as it stands: as a
layer, the sum of all tokens so far, as a cache, `KVCache`. `TODO` stands where
something is left to be written, and keeps `synced` and a test from passing; a
test fails until it compares with an oracle. A variant of attention begins as a
copy of `gqa.py`, its plain form and its test.
"""

import json
import re
import subprocess
import sys
from argparse import ArgumentParser
from textwrap import indent

from sitekit import ROOT
from sitekit.markdown import pages, source

PLAIN = '''"""TODO: what it is. Needs PyTorch 2.5 alone."""

from torch import nn


class {plain}State:
    """What a layer keeps of all earlier tokens."""

    def __init__(self):
        self.sum = 0


class {plain}(nn.Module):
    def __init__(self, d_model, D):
        super().__init__()
        self.v_proj = nn.Linear(d_model, D, bias=False)
        self.o_proj = nn.Linear(D, d_model, bias=False)

    def forward(self, x, cache=None, valid=None):
        """x (B, T, E) to (B, T, E); valid (B, S), True = no pad, all so far."""
        B, T, E = x.shape
        v = self.v_proj(x)  # (B, T, D)
        if valid is not None:
            v = v * valid[:, -T:, None]  # a pad adds nothing
        sums = v.cumsum(dim=1)  # (B, T, D)
        if cache is not None:
            sums = sums + cache.sum  # (B, T, D)
            cache.sum = sums[:, -1:]  # (B, 1, D)
        return self.o_proj(sums)  # (B, T, E)
'''
LAYER = '''"""TODO: {kind}, in a line."""

# --8<-- [start:imports]
import torch
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache
from attnref.caches.past import view_of
from attnref.caches.state import state_of
from attnref.core.checks import check_input, check_sizes

# --8<-- [end:imports]


# --8<-- [start:module]
class {kind}(nn.Module):
    """TODO: what it is. Here, each token reads the sum of all up to it."""

    causal, needs = True, "state"

    def __init__(self, *, d_model: int, width: int) -> None:
        super().__init__()
        check_sizes(d_model=d_model, width=width)
        self.d_model, self.width = d_model, width
        self.v_proj = nn.Linear(d_model, width, bias=False)
        self.o_proj = nn.Linear(width, d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Read `x` `(B, T, E)` in order; returns `(B, T, E)`."""
        check_input("x", x.shape, self.d_model)
        B, T, D = *x.shape[:2], self.width
        view = view_of(self, cache, x, mask=mask, positions=positions)
        v, real = self.v_proj(x), view.real()
        wide = torch.promote_types(v.dtype, torch.float32)
        v = v.to(wide)  # (B, T, D)
        if real is not None:
            v = v * real[..., None]  # a pad adds nothing
        (state,) = state_of(cache, x.device, ((B, D), wide))
        if cache is not None:
            cache.update(T, state + v.sum(dim=1))
        sums = state[:, None] + v.cumsum(dim=1)  # (B, T, D)
        out: Tensor = self.o_proj(sums.to(x.dtype))
        return out  # (B, T, E)


# --8<-- [end:module]
'''
COPY = '''"""TODO: {kind}, in a line."""

# --8<-- [start:imports]
{imports}
# --8<-- [end:imports]


# --8<-- [start:cache]
{code}

# --8<-- [end:cache]
'''
IMPORT_CACHE = "from attnref.caches.kv_cache import Cache\n"
VARIANT = '''

# TODO: its cost, as a function of attnref/numbers/cost.py
def cost(*, d_model, width, batch=1, new=1, past=0):
    weights = 2 * d_model * width
    return Cost(weights, 2 * batch * new * weights, 0, 0, batch * width)


# TODO: its sizes, and what it keeps, in words of attnref/numbers/shapes.py
VARIANT = Variant(
    {kind},
    {{"d_model": E, "width": D}},
    cost,
    Recurrent(
        layers=1,
        state_heads=1,
        key_dim=1,
        value_dim=D,
        conv_channels=0,
        conv_kernel=1,
    ),
)


@torch.no_grad()
def shapes():
    """For the shape comments."""
    layer, state = plain.{plain}(E, D), plain.{plain}State()
    package, cache = {kind}(**VARIANT.sizes), StateCache()
    for end in (T, 2 * T):
        x, valid = torch.randn(B, T, E), torch.ones(B, end, dtype=torch.bool)
        layer(x, state, valid)
        package(x, cache=cache, mask=padding_mask(valid))


def test_the_plain_form_is_that_of_the_package():
    layer, form = sharp({kind}(**VARIANT.sizes)), plain.{plain}(E, D).double()
    form.load_state_dict(layer.state_dict())
    x, state = tokens(), plain.{plain}State()
    for valid in (None, torch.arange(T) >= torch.tensor([[0], [3], [1]])):
        mask = None if valid is None else padding_mask(valid)
        assert relative_error(form(x, None, valid), layer(x, mask=mask)) < 1e-12
    got = [form(part, state) for part in x.split([3, 1, 3], dim=1)]
    assert relative_error(torch.cat(got, dim=1), layer(x)) < 1e-12
'''
CACHE = """

# TODO: how it is made for max_len tokens; for fewer than 7 if it drops some
CACHES = {{"{page}": {kind}}}
"""
TEST = '''"""{kind}, against something that nobody here wrote."""

import pytest
{imports}{body}

def test_it_is_what_somebody_else_computes():
    # --8<-- [start:example]
    pytest.fail("compare {kind} with {oracle}")
    # --8<-- [end:example]
'''
TEST_IMPORTS = """import torch

from attnref import StateCache, padding_mask
from attnref.{folder}.{file} import {kind}
from attnref.numbers.cost import Cost
from attnref.numbers.shapes import Recurrent
from attnref.plain import {file} as plain
from tests.kit.compare import relative_error
from tests.kit.layers import B, D, E, T, Variant, sharp, tokens
"""
# The sections of a page: what they are called, and what is to be said there.
SECTIONS = {
    "en": """
idea|The idea|what is different, and why.
plain|The plain form|
formula|The formula|with the symbols of the conventions.
cost|What it costs|bytes per token, and operations.
pitfalls|What goes wrong|and how one notices it.
code|In the package|what it adds to the plain form.
history|Where it comes from|who, when, in which models.
sources|Sources|the papers, with links.""",
    "zh": """
idea|思路|有什么不同，为什么。
plain|最简实现|
formula|公式|符号按“约定”一页。
cost|开销|每个 token 多少字节，多少次运算。
pitfalls|常见错误|以及怎样发现。
code|包里的代码|比最简实现多了什么。
history|来龙去脉|谁、何时提出，哪些模型在用。
sources|出处|论文，附链接。""",
}
WORDS = {
    "en": (
        "TODO: ",
        "what this page has that others have not.",
        "a sentence for lists of pages.",
        "which question does this page answer?",
        "The code, {lines} lines",
    ),
    "zh": (
        "TODO：",
        "用一两句话说明这一页讲什么。",
        "一句话，用在页面列表里。",
        "这一页要回答的是什么问题？",
        "代码，共 {lines} 行",
    ),
}
LEFT = """
where TODO stands; then
  tests/reference/{folder}/test_{file}.py: an oracle; until then, it fails
  make synced PAGE={page} and make check PAGE={page}: once both pages agree
  attnref/__init__.py, .pyi, docs/*/api, docs/zh/docstrings.yml: to be public"""
LEFT_OF_A_LAYER = """
  causal: bool | Rule = True, and view.documents(causal): if it may be packed
  or no page yet: delete both and the line in mkdocs.yml; VARIANT: page=False"""
# Words of a name that are on more than this part of the pages find nothing.
COMMON = 0.5


def _code(folder: str, file: str, kind: str) -> dict[str, str]:
    """The files of a class, by name."""
    names = {"folder": folder, "file": file, "kind": kind}
    names |= {"plain": kind, "page": file.replace("_", "-")}
    place = f"attnref/{folder}/{file}.py"
    files, body = {}, VARIANT
    names["oracle"] = "a module of transformers"
    if folder == "layers":
        files[f"attnref/plain/{file}.py"] = PLAIN.format(**names)
        files[place] = LAYER.format(**names)
    else:
        model = ROOT / "attnref/caches/kv_cache.py"
        parts = source.sections(model.read_text(encoding="utf-8"))
        code = parts["preallocated"].replace("KVCache", kind)
        code = re.sub('"""[^\n]*', '"""TODO: what it is.', code, count=1)
        imports = parts["imports"] + IMPORT_CACHE
        files[place] = COPY.format(**names, imports=imports, code=code)
        names["oracle"], body = "a full pass under a dense mask", CACHE
    names["imports"] = TEST_IMPORTS.format(**names)
    test = TEST.format(**names, body=body.format(**names))
    return files | {f"tests/reference/{folder}/test_{file}.py": test}


def _page(lang: str, title: str, stem: str, files: dict[str, str]) -> str:
    """With the code of that name, if there is some."""
    folder, page = stem.split("/")
    file = page.replace("-", "_")
    todo, description, summary, question, fold = WORDS[lang]
    top = {"title": title, "description": todo + description}
    top |= {"summary": todo + summary}
    lines = [
        f"{k}: {json.dumps(v, ensure_ascii=False)}" for k, v in top.items()
    ]
    lines += ["aliases: []"] + ["synced: none"] * (lang != "en")
    parts = ["---", *lines, "---", f"# {title} {{ #{page} }}\n"]
    parts.append(f'<p class="lead" markdown>{todo}{question}</p>\n')
    shown = {"plain": "", "code": ""}
    fence = '```python title="{0}"\n--8<-- "{0}{1}"\n```\n'
    form, code = f"attnref/plain/{file}.py", f"attnref/{folder}/{file}.py"
    if form in files or (ROOT / form).exists():
        shown["plain"] = fence.format(form, "")
    if code in files or (ROOT / code).exists():
        text = files.get(code) or (ROOT / code).read_text(encoding="utf-8")
        marks = [f":{name}" for name in source.sections(text)] or [""]
        blocks = "\n".join(fence.format(code, mark) for mark in marks)
        shown["code"] = f'??? note "{fold}"\n\n{indent(blocks, "    ")}'
    for line in SECTIONS[lang].strip().split("\n"):
        mark, head, hint = line.split("|")
        if shown.get(mark, "shown"):
            parts.append(f"## {head} {{ #{mark} }}\n")
            parts += [f"{todo}{hint}\n"] * bool(hint)
            parts += [shown[mark]] if mark in shown else []
    return "\n".join(parts)


def spoken_of(*names: str) -> str:
    """Where pages have a word of these names, unless most of them have it:
    what they say is missing may now be there."""
    text = {
        path.relative_to(ROOT): path.read_text(encoding="utf-8").splitlines()
        for path in pages.markdown_files("en")
    }
    spoken = []
    for word in dict.fromkeys(re.findall("[a-z]{4,}", " ".join(names).lower())):
        wanted = re.compile(rf"\b{word}s?\b", re.IGNORECASE)
        rows = {
            path: [
                str(n) for n, line in enumerate(lines, 1) if wanted.search(line)
            ]
            for path, lines in text.items()
        }
        places = [f"  {p}:{','.join(at)}" for p, at in rows.items() if at]
        if 0 < len(places) <= COMMON * len(text):
            spoken += [f"these pages already speak of {word!r}:", *places]
    return "\n".join(["", *spoken])


def new(
    what: str,
    name: str,
    kind: str = "",
    title: str = "",
    title_zh: str = "",
) -> str:
    """Write a layer with its page, a cache, or a page; what is left to do."""
    folders = {"layer": "layers/", "cache": "caches/", "page": ""}
    stem = folders[what] + name.replace("_", "-")
    if not re.fullmatch(r"[a-z]+/[a-z][a-z0-9]*(-[a-z0-9]+)*", stem):
        example = "numbers/latency" if what == "page" else "sliding"
        raise ValueError(f"{name!r} is no name of a {what}: {example}, say")
    folder, page = stem.split("/")
    file = page.replace("-", "_")
    title = title or page.replace("-", " ").capitalize()
    files: dict[str, str] = {}
    if what != "page":
        words = "".join(word.capitalize() for word in page.split("-"))
        kind = kind or words + "KVCache" * (what == "cache")
        files = _code(folder, file, kind)
    code = [*files]
    if what != "cache":
        if page in {other.stem for other in pages.markdown_files("en")}:
            raise ValueError(f"there is a page {page!r} already")
        for lang, called in {"en": title, "zh": title_zh or title}.items():
            files[f"docs/{lang}/{stem}.md"] = _page(lang, called, stem, files)
    for place in files:
        if (ROOT / place).exists():
            raise ValueError(f"{place} is there already")
    spoken = spoken_of(page, title)
    for place, text in files.items():
        (ROOT / place).write_text(text, encoding="utf-8")
    # Imports in order, and those alone that are used; 80 columns.
    for how in (["check", "--fix", "--select=F401,I"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *how, "--quiet", *code]
        if code:
            subprocess.run(ruff, cwd=ROOT, check=True)
    if what != "cache":
        nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
        last = [*re.finditer(rf"^( +- ){folder}/[\w-]+\.md\n", nav, re.M)][-1]
        nav = f"{nav[: last.end()]}{last[1]}{stem}.md\n{nav[last.end() :]}"
        (ROOT / "mkdocs.yml").write_text(nav, encoding="utf-8")
    lines = "\n".join(["written:", *(f"  {place}" for place in files)])
    left = LEFT.format(folder=folder, page=page, file=file)
    left += LEFT_OF_A_LAYER * (what == "layer")
    return f"{lines}\nleft to do: {left.lstrip()}{spoken}"


def main(arguments: list[str]) -> str:
    parser = ArgumentParser(prog="python -m sitekit new", description=__doc__)
    parser.add_argument("what", choices=("layer", "cache", "page"))
    parser.add_argument("name", help="sliding; of a page: layers/sliding")
    parser.add_argument("--kind", default="", help="the name of the class")
    parser.add_argument("--title", default="", help="of the English page")
    parser.add_argument("--title-zh", default="", help="of the Chinese page")
    return new(**vars(parser.parse_args(arguments)))
