"""The skeleton of a layer, of a cache, or of a page, in all its places.

What is written runs and builds as it stands: GQA, or the preallocated cache,
under another name. `TODO` stands where something is left to be written or
decided, and keeps `synced` and a law from passing; a test fails until it
compares with an oracle.
"""

import json
import re
import subprocess
import sys
from argparse import ArgumentParser
from textwrap import indent
from typing import NamedTuple

from sitekit import ROOT
from sitekit.markdown import pages, parity, source

# By the ids of a page's sections: their titles, and what is to be said there.
SECTIONS = {
    "en": {
        "idea": ("The idea", "what is different, and why."),
        "shapes": ("The data flow and its shapes", ""),
        "plain": ("The plain form", ""),
        "formula": ("The formula", "with the symbols of the conventions."),
        "cost": ("What it costs", "bytes per token, and operations."),
        "pitfalls": ("What goes wrong", "and how one notices it."),
        "code": ("In the package", "what it adds to the plain form."),
        "history": ("Where it comes from", "who, when, in which models."),
        "sources": ("Sources", "the papers, with links."),
    },
    "zh": {
        "idea": ("思路", "有什么不同，为什么。"),
        "shapes": ("数据流与形状", ""),
        "plain": ("最简实现", ""),
        "formula": ("公式", "符号按“约定”一页。"),
        "cost": ("开销", "每个 token 多少字节，多少次运算。"),
        "pitfalls": ("常见错误", "以及怎样发现。"),
        "code": ("包里的代码", "比最简实现多了什么。"),
        "history": ("来龙去脉", "谁、何时提出，哪些模型在用。"),
        "sources": ("出处", "论文，附链接。"),
    },
}
WORDS = {
    "en": {
        "todo": "TODO: ",
        "link": "[{title}](../{stem}.md):",
        "description": "what this page has that others have not.",
        "summary": "a sentence for lists of pages.",
        "question": "which question does this page answer?",
        "caption": "Recorded while the plain form below read {T} new tokens in "
        "{B} rows, with {past} tokens of each in its cache: {sizes}.",
        "numbers": "The same as a table",
        "head": "[variable, shape, in this run, computed from]",
        "fold": "The code, {lines} lines",
    },
    "zh": {
        "todo": "TODO：",
        "link": "[{title}](../{stem}.md)：",
        "description": "用一两句话说明这一页讲什么。",
        "summary": "一句话，用在页面列表里。",
        "question": "这一页要回答的是什么问题？",
        "caption": "下面的最简实现运行时的记录：{B} 个序列，缓存里各有 "
        "{past} 个 token，再读入 {T} 个新 token。{sizes}。",
        "numbers": "同样的内容，列成表格",
        "head": "[变量, 形状, 本例, 由什么算出]",
        "fold": "代码，共 {lines} 行",
    },
}
TEST = '''"""{kind}, against something that nobody here wrote."""

import pytest


def test_it_is_what_somebody_else_computes():
    pytest.fail("compare {kind} with {oracle}")
'''
PLAIN = """

def test_{file}_is_that_of_the_package():
    sizes = {{"d_model": E, "n_heads": H, "n_kv_heads": K}}
    theirs = attnref.{kind}(**sizes, rope_theta=1e4)
    same_in_all_ways({file}.{plain}(**sizes), sharp(theirs))
"""
LEFT = {
    "code": """
  attnref/plain/{file}.py: what it is, with PyTorch alone, on one screen
  attnref/{folder}/{file}.py: what makes it one of its own
  docs/zh/docstrings.yml: in Chinese, what its docstrings begin with
  tests/reference/{folder}/test_{file}.py: an oracle; until then it fails
  tests/variants.py: what its entry says of it
  CHANGELOG.md: a line; then python -m tests.house.test_public records it""",
    "cache": """
  make new PAGE={folder}/{page}: or show its sections on a page that is there
  make test""",
    "page": """
  docs/en/{folder}/{page}.md, docs/zh/{folder}/{page}.md
  mkdocs.yml: the place of the page in the navigation
  sitekit/drawn/{file}.py: what it draws that no function of attnref gives
  make synced PAGE={page}: once both pages agree
  make check PAGE={page}: then make test""",
}
REGISTRY = "tests/variants.py"
EXAMPLES = "tests/reference/plain/test_examples.py"
# Of GQA's plain form: its example, its place in an import and among the calls.
EXAMPLE = r"^def test_gqa(?s:.*?)(?=\n\n\n)"
FROM, CALL = r"^from attnref\.plain import ", r"^ +\(gqa\.GQA\(.*\n"


class Model(NamedTuple):
    """What code begins as, and what it is to be compared with."""

    file: str
    sections: dict[str, str]  # of the new file: from those of this one
    kind: str
    entry: tuple[str, str]  # in the registry of the tests
    decide: dict[str, str]  # there, above the line that begins so
    oracle: str
    imports: str = ""  # beside those of the file


MODELS = {
    "layers": Model(
        "attnref/layers/gqa.py",
        {"imports": "imports", "module": "module"},
        "GroupedQueryAttention",
        ("VARIANTS", "gqa"),
        {
            "attention_cost": "what a call costs, if not what GQA costs",
            "_kept(": "what it needs of the past, in words of shapes.py",
            "kv_heads=": "keep this if it computes what Llama's layer does, "
            "else drop it",
        },
        "a module of torch or transformers",
    ),
    "caches": Model(
        "attnref/caches/kv_cache.py",
        {"imports": "imports", "cache": "preallocated"},
        "KVCache",
        ("CACHES", "room"),
        {
            '"': "how it is made for max_len tokens. If it keeps a part of\n"
            "them, make it for fewer than T = 7: `lambda max_len: Ring(3)`.\n"
            "Otherwise it never drops one, and the laws see nothing of that.",
        },
        "a full pass under a dense mask",
        imports="from attnref.caches.kv_cache import Cache\n",
    ),
}
# Words of a name that are on more than this part of the pages find nothing.
COMMON = 0.5


class _Edits:
    """Files as they will be: nothing is written until all is known."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def create(self, file: str, text: str) -> None:
        if (ROOT / file).exists():
            raise ValueError(f"{file} is there already")
        self.files[file] = text

    def insert(self, file: str, pattern: str, text: str) -> None:
        """Behind the last place that matches."""
        old = self.files.get(file) or (ROOT / file).read_text(encoding="utf-8")
        matches = [*re.finditer(pattern, old, re.MULTILINE)]
        if not matches:
            raise ValueError(f"{file} has no place like {pattern}")
        at = matches[-1].end()
        self.files[file] = old[:at] + text + old[at:]

    def write(self) -> None:
        for file, text in self.files.items():
            (ROOT / file).write_text(text, encoding="utf-8")
        code = [file for file in self.files if file.endswith((".py", ".pyi"))]
        # Imports in order, and those alone that are used; 80 columns.
        for how in (["check", "--fix", "--select=F401,I,RUF022"], ["format"]):
            ruff = [sys.executable, "-m", "ruff", *how, "--quiet", *code]
            if code:
                subprocess.run(ruff, cwd=ROOT, check=True)
        for file in code:  # a section does not begin with a line that is gone
            text = (ROOT / file).read_text(encoding="utf-8")
            text = re.sub(r"(\[start:\w+\]\n)\n+", r"\1", text)
            (ROOT / file).write_text(text, encoding="utf-8")


def _source(model: Model, kind: str) -> str:
    """The code of the model, its class under another name."""
    text = (ROOT / model.file).read_text(encoding="utf-8")
    made = f'"""TODO: {kind}, in a line."""\n\n'
    start, end = "# --8<-- [start:{}]\n", "# --8<-- [end:{}]\n"
    for name, like in model.sections.items():
        code = source.sections(text)[like].replace(model.kind, kind)
        # What an example alone needs is no import of the file.
        code = code.replace(">>> lay", ">>> import torch\n        >>> lay", 1)
        docstring = re.compile(r'^    """[^\n"]*', re.MULTILINE)
        code = docstring.sub('    """TODO: what it is.', code, count=1)
        if name == "imports":
            code += model.imports
        made += f"{start.format(name)}{code}{end.format(name)}\n\n"
    return made


def _entry(model: Model, page: str, kind: str) -> str:
    """That of the model in the registry, with what is to be decided of it."""
    table, like = model.entry
    registry = (ROOT / REGISTRY).read_text(encoding="utf-8")
    entry = rf'^    "{like}": (?s:.*?)(?=^    ["*]|^}})'
    match = re.search(entry, registry, re.MULTILINE)
    if not match:
        raise ValueError(f"{REGISTRY}: {table} has no entry {like!r}")
    own = match[0].replace(f'"{like}"', f'"{page}"').replace(model.kind, kind)
    for begins, what in model.decide.items():
        parts = re.split(rf"^( +)(?={re.escape(begins)})", own, flags=re.M)
        if len(parts) != 3:
            why = f"{len(parts) // 2} lines that begin with {begins}"
            raise ValueError(f"{REGISTRY}: the entry {like!r} has {why}")
        before, margin, after = parts
        todo = indent(f"TODO: {what}\n", f"{margin}# ")
        own = f"{before}{todo}{margin}{after}"
    return own


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


def _code(edits: _Edits, folder: str, page: str, kind: str) -> str:
    """The file of a class, its test, and what names it, but for the API page:
    the line of that one."""
    model, file = MODELS[folder], page.replace("-", "_")
    place = f"attnref.{folder}.{file}"
    edits.create(f"attnref/{folder}/{file}.py", _source(model, kind))
    test = TEST.format(kind=kind, oracle=model.oracle)
    edits.create(f"tests/{folder}/test_{file}.py", test)
    home = f'\n    "{folder}.{file}": ["{kind}"],'
    edits.insert("attnref/__init__.py", r"^_HOMES = \{$", home)
    types = "attnref/__init__.pyi"
    edits.insert(types, r"\A# .*\n", f"from {place} import {kind}\n")
    edits.insert(types, r"^__all__ = \[$", f'\n    "{kind}",')
    last = rf"^{model.entry[0]}\b.*\{{\n(?s:.*?)(?=^\}})"
    edits.insert(REGISTRY, last, _entry(model, page, kind))
    edits.insert(REGISTRY, r"^from attnref import \($", f"\n    {kind},")
    return f"\n::: {place}: {kind}\n"


def _plain(edits: _Edits, file: str, kind: str) -> None:
    """The plain form, its test and its example: GQA's under another name."""
    plain, proofs = (
        kind.removesuffix("Attention"),
        "tests/reference/plain/test_plain.py",
    )
    shapes = "tests/reference/test_shape_comments.py"

    def own(path: str, part: str) -> str:
        match = re.search(part, (ROOT / path).read_text(encoding="utf-8"), re.M)
        assert match is not None, f"{path} has nothing like {part}"
        named = re.sub("(?<!enable_)gqa", file, match[0])
        return named.replace("GQA", plain)

    form = own("attnref/plain/gqa.py", r"(?s:^import .*)")
    head = '"""TODO: what it is. Needs PyTorch 2.5 alone."""\n\n'
    edits.create(f"attnref/plain/{file}.py", head + form)
    for where, at, text in (
        (EXAMPLES, r"\Z", f"\n\n{own(EXAMPLES, EXAMPLE)}\n"),
        (proofs, r"\Z", PLAIN.format(file=file, kind=kind, plain=plain)),
        (proofs, FROM, f"{file}, "),
        (shapes, FROM, f"{file}, "),
        (shapes, CALL, own(shapes, CALL)),
    ):
        edits.insert(where, at, text)


def _blocks(folder: str, page: str, new: bool) -> list[str]:
    """The code of that name, if there is some: its sections, or all of it."""
    file = f"attnref/{folder}/{page.replace('-', '_')}.py"
    if new:
        sections = [f":{name}" for name in MODELS[folder].sections]
    elif (ROOT / file).exists():
        text = (ROOT / file).read_text(encoding="utf-8")
        sections = [f":{name}" for name in source.sections(text)] or [""]
    else:
        sections = []
    return [
        f'```python title="{file}"\n--8<-- "{file}{section}"\n```\n'
        for section in sections
    ]


def _page(
    lang: str, title: str, page: str, blocks: list[str], kind: str | None
) -> str:
    words, file = WORDS[lang], page.replace("-", "_")
    form = f"attnref/plain/{file}.py"
    todo = {key: words["todo"] + words[key] for key in words}
    top = {
        "title": title,
        "description": todo["description"],
        "summary": todo["summary"],
        "aliases": [],
    }
    lines = [
        f"{k}: {json.dumps(v, ensure_ascii=False)}" for k, v in top.items()
    ]
    if lang != "en":
        lines.append("synced: none")
    lead = f'<p class="lead" markdown>{todo["question"]}</p>'
    parts = ["\n".join(["---", *lines, "---", f"# {title} {{ #{page} }}\n"])]
    parts.append(f"{lead}\n")
    made = f"{file}.{(kind or '').removesuffix('Attention')}"
    flow = f"""```flow
caption: "{words["caption"]}"
numbers: {words["numbers"]}
head: {words["head"]}
panels:
  - flow: {made}(d_model=128, n_heads=8, n_kv_heads=2)
    given: {{B: 3, T: 5, past: 4}}
    title: "{title}"
```
"""
    plain = f'```python title="{form}"\n--8<-- "{form}"\n```\n'
    run = f'```python\n--8<-- "{EXAMPLES}:{file}"\n```\n'
    fold = f'??? note "{words["fold"]}"\n'
    shown = {
        "plain": [plain, run] if kind else [],
        "shapes": [flow] if kind else [],
        "code": blocks and [fold, *(indent(b, "    ") for b in blocks)],
    }
    for mark, (head, hint) in SECTIONS[lang].items():
        if shown.get(mark) == []:
            continue
        parts.append(f"## {head} {{ #{mark} }}\n")
        if hint:
            parts.append(f"{words['todo']}{hint}\n")
        parts += shown.get(mark, [])
    return "\n".join(parts)


def new(what: str, name: str, kind: str, title: str, title_zh: str) -> str:
    """Write a layer with its page, a cache, or a page; what is left to do."""
    folders = {"layer": "layers/", "cache": "caches/", "page": ""}
    stem = folders[what] + name.replace("_", "-")
    if not re.fullmatch(r"[a-z]+/[a-z][a-z0-9]*(-[a-z0-9]+)*", stem):
        like = "numbers/latency" if what == "page" else "sliding"
        raise ValueError(f"{name!r} is no name of a {what}: {like}, say")
    folder, page = stem.split("/")
    title = title or page.replace("-", " ").capitalize()
    titles = {"en": title, "zh": title_zh or f"TODO {title}"}
    edits, lists = _Edits(), (f"api/{folder}", "api")
    fresh = what != "page" and not any(map(parity.check, lists))
    if what != "page":
        words = "".join(word.capitalize() for word in page.split("-"))
        kind = kind or words + ("Attention" if what == "layer" else "KVCache")
        line = _code(edits, folder, page, kind)
        if what == "layer":
            _plain(edits, page.replace("-", "_"), kind)
        # Behind the last such class; MLA has an introduction of its own.
        where = rf"^::: attnref\.{folder}\.(?!mla)\w+: .*[A-Z].*\n"
        for lang, words_of in WORDS.items():
            name_of = {"en": title, "zh": title_zh or title}[lang]
            link = words_of["link"].format(title=name_of, stem=stem)
            shown = f"\n{link}\n" if what == "layer" else ""
            edits.insert(f"docs/{lang}/api/{folder}.md", where, shown + line)
    if what != "cache":
        if page in {other.stem for other in pages.markdown_files("en")}:
            raise ValueError(f"there is a page {page!r} already")
        layer = kind if what == "layer" else None
        blocks = _blocks(folder, page, new=what == "layer")
        for lang in WORDS:
            text = _page(lang, titles[lang], page, blocks, layer)
            edits.create(f"docs/{lang}/{stem}.md", text)
        entry = rf"^ +- {folder}/[\w-]+\.md\n"
        edits.insert("mkdocs.yml", entry, f"      - {stem}.md\n")
    spoken = spoken_of(page, title)
    edits.write()
    for stem in lists if fresh else ():
        parity.mark_synced(stem)
    left = {"layer": ("code", "page"), "cache": ("code", "cache")}
    steps = "".join(LEFT[part] for part in left.get(what, ("page",)))
    steps = steps.format(folder=folder, page=page, file=page.replace("-", "_"))
    lines = ["written:", *(f"  {file}" for file in edits.files)]
    left_to_do = "\nleft to do, where TODO stands and here:" + steps
    return "\n".join(lines) + left_to_do + spoken


def main(arguments: list[str]) -> str:
    parser = ArgumentParser(prog="python -m sitekit new", description=__doc__)
    parser.add_argument("what", choices=("layer", "cache", "page"))
    parser.add_argument("name", help="sliding; of a page: layers/sliding")
    parser.add_argument("--kind", default="", help="the name of the class")
    parser.add_argument("--title", default="", help="of the English page")
    parser.add_argument("--title-zh", default="", help="of the Chinese page")
    return new(**vars(parser.parse_args(arguments)))
