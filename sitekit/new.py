"""The skeleton of a layer, of a cache, or of a page, in all its places.

What is written runs, builds and is under the properties as it stands: a layer
that keeps keys is GQA, a layer that keeps a state is linear attention without
decay, and a cache is `KVCache`. `TODO` stands where something is left to be
written, and keeps `synced` and a test from passing; a test fails until it
compares with an oracle.
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

import torch
from torch import nn


class {plain}State:
    """What a layer keeps of all earlier tokens."""

    def __init__(self):
        self.length, self.state = 0, None


class {plain}(nn.Module):
    def __init__(self, d_model, n_heads, D):
        super().__init__()
        self.n_heads, self.D = n_heads, D
        self.qkv_proj = nn.Linear(d_model, 3 * n_heads * D, bias=False)
        self.o_proj = nn.Linear(n_heads * D, d_model, bias=False)

    def forward(self, x, cache=None, valid=None):
        """x (B, T, E) to (B, T, E); valid (B, S), True = no pad, all so far."""
        B, T, E = x.shape
        S = T if cache is None else cache.length + T
        if valid is not None and valid.shape != (B, S):
            raise ValueError(f"{{(B, S)=}}, {{valid.shape=}}")
        if x.numel() == 0:
            return x  # no row, or no token
        H, D = self.n_heads, self.D
        wide = torch.promote_types(x.dtype, torch.float32)  # of the state
        real = x.new_ones(B, 1, T)
        if valid is not None:
            real = valid[:, None, -T:].to(x.dtype)  # (B, 1, T)
            x = x.where(valid[:, -T:, None], 0)  # (B, T, E); may hold NaN
        qkv = self.qkv_proj(x).to(wide).view(B, T, H, 3 * D).transpose(1, 2)
        q, k, v = qkv.chunk(3, dim=-1)  # (B, H, T, D)
        k = k * real[..., None]  # (B, H, T, D); a pad writes nothing
        decay = k.new_zeros(B, H, T) * real  # TODO: a log, at most 0; a pad: 0
        state = k.new_zeros(B, H, D, D)
        if cache is not None and cache.state is not None:
            state = cache.state
        heads = []
        for t in range(T):
            state = state * decay[:, :, t, None, None].exp()  # (B, H, D, D)
            state = state + k[:, :, t, :, None] * v[:, :, t, None]
            heads.append(q[:, :, t, None] @ state)  # after the write
        if cache is not None:
            cache.state, cache.length = state, S
        merged = torch.cat(heads, dim=2).transpose(1, 2).reshape(B, T, H * D)
        return self.o_proj(merged.to(x.dtype))  # (B, T, E)
'''
LAYER = '''"""TODO: {kind}, in a line."""

# --8<-- [start:imports]
import torch
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache
from attnref.caches.state import InOrder
from attnref.core.checks import check_input, check_sizes
from attnref.core.heads import merge_heads, split_heads
from attnref.core.masks import Rule

# --8<-- [end:imports]


# --8<-- [start:module]
class {kind}(nn.Module):
    """TODO: what it is. Here, queries read the sum of keys times values."""

    needs = "state"

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        head_dim: int,
        causal: bool | Rule = True,
    ) -> None:
        super().__init__()
        self.causal = causal
        check_sizes(d_model=d_model, n_heads=n_heads, head_dim=head_dim)
        self.d_model, self.n_heads, self.head_dim = d_model, n_heads, head_dim
        inner = n_heads * head_dim
        self.qkv_proj = nn.Linear(d_model, 3 * inner, bias=False)
        self.o_proj = nn.Linear(inner, d_model, bias=False)

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
        if x.shape[1] == 0:
            return x
        # Pads stand last from here, and are zeros; documents are kept apart.
        new = InOrder(self, x, cache=cache, mask=mask, positions=positions)
        x, wide = new.x, new.wide
        B, T, H, D = *x.shape[:2], self.n_heads, self.head_dim
        (state,) = new.state(((B, H, D, D), wide))
        qkv = split_heads(self.qkv_proj(x).to(wide), H)  # (B, H, T, 3 * D)
        q, k, v = qkv.chunk(3, dim=-1)
        decay = torch.zeros(B, H, T, dtype=wide, device=x.device)  # TODO: a log
        heads, state = new.read(q, k, v, decay, state)
        out = self.o_proj(merge_heads(heads).to(x.dtype))  # (B, T, E)
        return new.end(out, state)


# --8<-- [end:module]
'''
COPY = '''"""TODO: {kind}, in a line."""

# --8<-- [start:imports]
{imports}
# --8<-- [end:imports]


# --8<-- [start:{part}]
{code}

# --8<-- [end:{part}]
'''
IMPORT_CACHE = "from attnref.caches.kv_cache import Cache\n"
STATE = '''

# TODO: its cost: what `InOrder.read` counts, and its projections
def cost(*, d_model, n_heads, head_dim, **call):
    weights = 4 * d_model * n_heads * head_dim
    heads, widths = (n_heads, n_heads), (head_dim, head_dim)
    return recurrent_cost(heads, widths, weights, 0, 0, **call)


# TODO: what it keeps, in words of attnref/numbers/shapes.py; a column more
# than D, such as the sum of all keys, is a value_dim of D + 1
VARIANT = Variant(
    {kind},
    HEADS,
    cost,
    Recurrent(
        layers=1,
        state_heads=H,
        key_dim=D,
        value_dim=D,
        conv_channels=0,
        conv_kernel=1,
    ),
)


@torch.no_grad()
def shapes():
    """For the shape comments."""
    layer, state = plain.{plain}(E, H, D), plain.{plain}State()
    package, cache = {kind}(**VARIANT.sizes), StateCache()
    for end in (T, 2 * T):
        x, valid = torch.randn(B, T, E), torch.ones(B, end, dtype=torch.bool)
        layer(x, state, valid)
        package(x, cache=cache, mask=padding_mask(valid))


def test_the_plain_form_is_that_of_the_package():
    layer, form = sharp({kind}(**VARIANT.sizes)), plain.{plain}(E, H, D)
    form.double().load_state_dict(layer.state_dict())
    x, state = tokens(), plain.{plain}State()
    for valid in (None, torch.arange(T) >= torch.tensor([[0], [3], [1]])):
        mask = None if valid is None else padding_mask(valid)
        assert relative_error(form(x, None, valid), layer(x, mask=mask)) < 1e-12
    parts = [form(part, state) for part in x.split([3, 1, 3], dim=1)]
    assert relative_error(torch.cat(parts, dim=1), layer(x)) < 1e-12
'''
KEYS = '''

# TODO: its cost, a function of attnref/numbers/cost.py; and what it keeps
VARIANT = Variant(
    {kind},
    HEADS | {{"n_kv_heads": K}},
    attention_cost,
    full(K),
    options=ROPE,
    kv_heads=lambda heads, groups: groups,
)


@torch.no_grad()
def shapes():
    """For the shape comments."""
    layer, cache = plain.{plain}(E, H, K, D), plain.KVCache(2 * T)
    package, room = {kind}(**VARIANT.sizes), KVCache(2 * T)
    for end in (T, 2 * T):
        x, valid = torch.randn(B, T, E), torch.ones(B, end, dtype=torch.bool)
        layer(x, cache, valid)
        package(x, cache=room, mask=padding_mask(valid))


def test_the_plain_form_is_that_of_the_package():
    layer = sharp({kind}(**VARIANT.sizes, rope_theta=1e4))
    form, cache = plain.{plain}(E, H, K, D).double(), plain.KVCache(T)
    form.load_state_dict(layer.state_dict())
    x = tokens()
    parts = [form(part, cache) for part in x.split([3, 1, 3], dim=1)]
    for out in (form(x), torch.cat(parts, dim=1)):
        assert relative_error(out, layer(x)) < 1e-12
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

from attnref import KVCache, StateCache, padding_mask
from attnref.{folder}.{file} import {kind}
from attnref.numbers.cost import attention_cost, recurrent_cost
from attnref.numbers.shapes import Recurrent
from attnref.plain import {file} as plain
from tests.kit.compare import relative_error
from tests.kit.layers import (
    B, D, E, H, HEADS, K, ROPE, T, Variant, full, sharp, tokens
)
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
  python -m tests.check.kills {file}: plants usual faults in the layer
  tests/kit/plain.py: a line in FORMS
  or no page yet: delete both, the line in mkdocs.yml and the marks --8<-- in
    layer and test; VARIANT: page=False"""
# Words of a name that are on more than this part of the pages find nothing.
COMMON = 0.5


def _copy_of_gqa(folder: str, kind: str) -> str:
    """Its file in that folder, for a class of another name and purpose."""
    text = (ROOT / f"attnref/{folder}/gqa.py").read_text(encoding="utf-8")
    text = re.sub(r"\b(GQA|GroupedQueryAttention)\b", kind, text)
    parts, docstring = source.sections(text), re.compile('""".*?"""', re.DOTALL)
    if not parts:
        return docstring.sub('"""TODO: what it is."""', text, count=1)
    code = docstring.sub('"""TODO: what it is."""', parts["module"], count=1)
    imports = parts["imports"].rstrip()
    return COPY.format(kind=kind, imports=imports, code=code, part="module")


def _code(folder: str, file: str, kind: str, keeps: str) -> dict[str, str]:
    """The files of a class, by name."""
    names = {"folder": folder, "file": file, "kind": kind}
    names |= {"plain": kind, "page": file.replace("_", "-")}
    place = f"attnref/{folder}/{file}.py"
    files, body = {}, STATE
    names["oracle"] = "a module of transformers"
    if folder == "layers" and keeps == "keys":
        files[f"attnref/plain/{file}.py"] = _copy_of_gqa("plain", kind)
        files[place], body = _copy_of_gqa("layers", kind), KEYS
    elif folder == "layers":
        files[f"attnref/plain/{file}.py"] = PLAIN.format(**names)
        files[place] = LAYER.format(**names)
    else:
        model = ROOT / "attnref/caches/kv_cache.py"
        parts = source.sections(model.read_text(encoding="utf-8"))
        code = parts["preallocated"].replace("KVCache", kind)
        code = re.sub('"""[^\n]*', '"""TODO: what it is.', code, count=1)
        imports = parts["imports"] + IMPORT_CACHE
        files[place] = COPY.format(kind=kind, imports=imports, code=code, part="cache")
        names["oracle"], body = "a full pass under a dense mask", CACHE
    names["imports"] = TEST_IMPORTS.format(**names)
    test = TEST.format(**names, body=body.format(**names))
    return files | {f"tests/reference/{folder}/test_{file}.py": test}


def _page(lang: str, title: str, stem: str, files: dict[str, str]) -> str:
    """The text of a page, with the code of that name if there is some."""
    folder, page = stem.split("/")
    file = page.replace("-", "_")
    todo, description, summary, question, fold = WORDS[lang]
    top = {"title": title, "description": todo + description}
    top |= {"summary": todo + summary}
    lines = [f"{k}: {json.dumps(v, ensure_ascii=False)}" for k, v in top.items()]
    lines += ["aliases: []"] + ["synced: none"] * (lang != "en")
    parts = ["---", *lines, "---", f"# {title} {{ #{page} }}\n"]
    parts.append(f'<p class="lead" markdown>{todo}{question}</p>\n')
    code_of = {"plain": "", "code": ""}
    fence = '```python title="{0}"\n--8<-- "{0}{1}"\n```\n'
    form, code = f"attnref/plain/{file}.py", f"attnref/{folder}/{file}.py"
    if form in files or (ROOT / form).exists():
        code_of["plain"] = fence.format(form, "")
    if code in files or (ROOT / code).exists():
        text = files.get(code) or (ROOT / code).read_text(encoding="utf-8")
        marks = [f":{name}" for name in source.sections(text)] or [""]
        blocks = "\n".join(fence.format(code, mark) for mark in marks)
        code_of["code"] = f'??? note "{fold}"\n\n{indent(blocks, "    ")}'
    for line in SECTIONS[lang].strip().split("\n"):
        mark, head, hint = line.split("|")
        if code_of.get(mark, "shown"):
            parts.append(f"## {head} {{ #{mark} }}\n")
            parts += [f"{todo}{hint}\n"] * bool(hint)
            parts += [code_of[mark]] if mark in code_of else []
    return "\n".join(parts)


def spoken_of(*names: str) -> str:
    """Where pages have a word of these names, unless most of them have it:
    what they say is missing may now be there."""
    text = {
        path.relative_to(ROOT): path.read_text(encoding="utf-8").splitlines()
        for path in pages.markdown_files("en")
    }
    messages = []
    for word in dict.fromkeys(re.findall("[a-z]{4,}", " ".join(names).lower())):
        regex = re.compile(rf"\b{word}s?\b", re.IGNORECASE)
        rows = {
            path: [str(n) for n, line in enumerate(lines, 1) if regex.search(line)]
            for path, lines in text.items()
        }
        places = [f"  {p}:{','.join(hits)}" for p, hits in rows.items() if hits]
        if 0 < len(places) <= COMMON * len(text):
            messages += [f"these pages already speak of {word!r}:", *places]
    return "\n".join(["", *messages])


def new(
    what: str, name: str, kind: str = "", title: str = "", title_zh: str = "", keeps: str = ""
) -> str:
    """Write a layer with its page, a cache, or a page; what is left to do."""
    folders = {"layer": "layers/", "cache": "caches/", "page": ""}
    stem = folders[what] + name.replace("_", "-")
    if not re.fullmatch(r"[a-z]+/[a-z][a-z0-9]*(-[a-z0-9]+)*", stem):
        example = "numbers/latency" if what == "page" else "sliding"
        raise ValueError(f"{name!r} is no name of a {what}: {example}, say")
    if what == "layer" and keeps not in ("keys", "state"):
        raise ValueError(
            f"what does {name} keep of earlier tokens? KEEPS=keys (a variant "
            "of attention) or KEEPS=state (a recurrence)"
        )
    folder, page = stem.split("/")
    file = page.replace("-", "_")
    title = title or page.replace("-", " ").capitalize()
    files: dict[str, str] = {}
    if what != "page":
        words = "".join(word.capitalize() for word in page.split("-"))
        kind = kind or words + "KVCache" * (what == "cache")
        files = _code(folder, file, kind, keeps)
    code = [*files]
    if what != "cache":
        if page in {path.stem for path in pages.markdown_files("en")}:
            raise ValueError(f"there is a page {page!r} already")
        for lang, heading in {"en": title, "zh": title_zh or title}.items():
            files[f"docs/{lang}/{stem}.md"] = _page(lang, heading, stem, files)
    for place in files:
        if (ROOT / place).exists():
            raise ValueError(f"{place} is there already")
    spoken = spoken_of(page, title)
    for place, text in files.items():
        (ROOT / place).write_text(text, encoding="utf-8")
    # Imports in order, and those alone that are used; 80 columns.
    for options in (["check", "--fix", "--select=F401,I"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *options, "--quiet", *code]
        if code:
            subprocess.run(ruff, cwd=ROOT, check=True)
    if what != "cache":
        nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
        last = [*re.finditer(rf"^( +- ){folder}/[\w-]+\.md\n", nav, re.M)][-1]
        nav = f"{nav[: last.end()]}{last[1]}{stem}.md\n{nav[last.end() :]}"
        (ROOT / "mkdocs.yml").write_text(nav, encoding="utf-8")
    lines = "\n".join(["written:", *(f"  {place}" for place in files)])
    steps = LEFT.format(folder=folder, page=page, file=file)
    steps += LEFT_OF_A_LAYER.format(file=file) * (what == "layer")
    return f"{lines}\nleft to do: {steps.lstrip()}{spoken}"


def main(arguments: list[str]) -> str:
    parser = ArgumentParser(prog="python -m sitekit new", description=__doc__)
    parser.add_argument("what", choices=("layer", "cache", "page"))
    parser.add_argument("name", help="sliding; of a page: layers/sliding")
    parser.add_argument("--kind", default="", help="the name of the class")
    parser.add_argument("--title", default="", help="of the English page")
    parser.add_argument("--title-zh", default="", help="of the Chinese page")
    parser.add_argument("--keeps", default="", help="keys or state: what a layer keeps")
    options = parser.parse_args(arguments)
    if options.what == "layer" and not options.keeps and sys.stdin.isatty():
        question = "Does it keep keys (attention) or a state (recurrence)? "
        options.keeps = input(question).strip()
    return new(**vars(options))
