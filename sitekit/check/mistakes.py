"""What pages say of the catalogue of mistakes.

`::: mistake softmax-overflow` on a page begins the entry of that mistake: what
follows says what the mistake does, with computed numbers; its title, lines and
the rest come from the catalogue. `::: marked` says how to read the entries of
its page, and `::: shapes` how many have the right shape. `::: symptoms` becomes
the list of all entries by symptom, and `::: exercises` the table of the
exercises of `attnref check`. All are Markdown, in the language of the page.
"""

import ast
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from html import escape
from itertools import zip_longest
from pathlib import PurePosixPath
from textwrap import dedent
from typing import Any

import torch
from torch import Tensor, nn

from attnref.judge.catalogue import PLAIN, Lines, Mistake, Variant, catalogue, planted
from attnref.judge.tasks import COURSE, TASKS
from attnref.words import Text
from sitekit import ROOT
from sitekit.adapter import BuildError
from sitekit.check import find
from sitekit.check.evidence import SYMPTOMS, evidence
from sitekit.check.exercise import places
from sitekit.drawing import heatmap
from sitekit.markdown.markup import button

ENTRIES = re.compile(r"^::: mistake ([\w-]+)\n(.*?)(?=^::: |^#|\Z)", re.MULTILINE | re.DOTALL)
LISTS = re.compile(r"^::: (door|marked|symptoms|shapes|exercises)$", re.MULTILINE)
KILLS = ROOT / "tests/check/kills.json"
ADDRESS = re.compile(
    r"https://(?:www\.)?"
    r"(?:github\.com/([\w.-]+/[\w.-]+)(?:/(?:issues|pull)/(\d+))?|([^/]+))"
)
PICTURES = re.compile(r"(?:<p>)?<!-- (\w+) of ([\w-]+) -->(?:</p>)?")
WORDS = {
    "error": Text("an error", "报错"),
    "symptom": Text("Symptom", "症状"),
    "notice": Text("How to notice it", "怎么发现"),
    "caught": Text("Caught by", "能发现它的测试"),
    "also": Text("The same elsewhere", "同样的错误，在别处"),
    "found": Text("Seen in", "出现在"),
    "more": Text(
        "How to notice it, its tests, and where it was seen",
        "怎么发现、哪些测试能发现、在哪里出现过",
    ),
    "marked": Text(
        "Lines marked - are wrong, lines marked + are right. {shapes} "
        "[All mistakes by symptom]({symptoms}).",
        "标 - 的行是错的，标 + 的行是对的。{shapes}也可以[按症状查找]({symptoms})。",
    ),
    "shapes": Text(
        "{n} of these {all} mistakes return the right shape, so shape tests miss them.",
        "{all} 个错误里有 {n} 个输出形状是对的，检查形状的测试发现不了。",
    ),
    "every shape": Text(
        "All {all} mistakes return the right shape, so shape tests miss them.",
        "{all} 个错误的输出形状全都是对的，检查形状的测试发现不了。",
    ),
    "where": Text("{0} {1}, {2} {3}", "{0} {1}、{2} {3}"),
    "there": Text("{wrong} instead of {right}", "{wrong}，应为 {right}"),
    "colon": Text(": ", "："),
    "and": Text(", ", "、"),
    "comma": Text(", ", "，"),
    "end": Text(".", "。"),
    "exercise": Text("exercise", "练习"),
    "asked": Text("what to write", "要写的函数"),
    "copy": Text("Copy fix", "复制正确代码"),
    "copied": Text("Copied", "已复制"),
    "right": Text("right", "正确"),
    "listed": Text("{} mistakes", "{} 个错误"),
    "wrong": Text("wrong", "错误"),
    "link": Text("Copy link", "复制链接"),
    "smallest": Text("Smallest sizes that show it", "能看出来的最小尺寸"),
    "ones": Text("all other sizes 1", "其余为 1"),
    "only ones": Text("all sizes 1", "全部为 1"),
    "calls": Text("calls with {} tokens", "分次调用，每次 {} 个 token"),
    "with pads": Text("with pads", "带 pad"),
    "in half": Text("too small a difference for bfloat16", "误差太小，bfloat16 下看不出来"),
}
SMALLEST = ROOT / "tests/check/smallest.json"
IN_HALF = 4 * 2**-8  # roundings of bfloat16, of the largest element
ROWS = 4  # of numbers beside a diff
TESTS = "mistakes/tests"  # the page that shows the properties


@cache
def kills() -> dict[str, Any]:
    """What runs of each mistake have found, by its id: which tests to copy and
    which of our own tests fail, and whether shapes stay right."""
    return dict(json.loads(KILLS.read_text(encoding="utf-8")))


@cache
def smallest() -> dict[str, Any]:
    """The smallest sizes of a known answer at which a mistake shows, by id."""
    return dict(json.loads(SMALLEST.read_text(encoding="utf-8")))


def sizes_of(id: str, language: str) -> str:
    """The smallest sizes at which a mistake shows, as a sentence without its full
    stop."""
    record = smallest()[id]
    sizes = dict(record["sizes"])
    calls, pads = sizes.pop("chunks", []), sizes.pop("pads", [])
    pads += sizes.pop("real", [])
    parts = [f"`{letter}` = {n}" for letter, n in sizes.items() if n > 1]
    words = ["ones" if parts else "only ones"]
    if len(calls) > 1:
        words.append("calls")
    if any(pads):
        words.append("with pads")
    if record["off"] < IN_HALF:
        words.append("in half")
    tokens = " + ".join(map(str, calls))
    clauses = [str(getattr(WORDS["and"], language)).join(parts)] if parts else []
    clauses += [getattr(WORDS[word], language).format(tokens) for word in words]
    return str(getattr(WORDS["comma"], language)).join(clauses)


def large(layer: nn.Module) -> nn.Module:
    """A layer with weights so large that softmax decides: flat weights hide
    mistakes."""
    for weight in layer.parameters():
        weight.data = torch.randn_like(weight) / 2
    return layer


def influence(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """1 where the output of the row moves with the input of the column."""
    columns = []
    for j in range(x.shape[1]):
        new_x = x.clone()
        new_x[:, j] += 1
        change = (run(new_x) - run(x)).abs().amax(dim=(0, 2))
        columns.append((change > 1e-6).double())
    return torch.stack(columns, dim=1)


@cache
def _right(module: str) -> Any:
    return planted((Lines(module, ()),))


def output(mistake: Mistake, variant: Variant = ()) -> Tensor:
    """Run the code of an entry with the lines of a variant, or right ones."""
    code: Any = planted(variant) if variant else _right(mistake.module)
    names = {"torch": torch, "large": large, "influence": influence, "plain": code}
    if mistake.module.startswith(PLAIN):
        code = getattr(code, mistake.module.removeprefix(PLAIN))
    tree = ast.parse(evidence()[mistake.id].see)
    words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for name in words - names.keys():
        if hasattr(code, name):
            names[name] = getattr(code, name)
    *statements, last = tree.body
    assert isinstance(last, ast.Expr), mistake.id
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile(ast.Module(statements, []), mistake.id, "exec"), names)
        value = eval(compile(ast.Expression(last.value), mistake.id, "eval"), names)
    return torch.as_tensor(value).detach()


@cache
def outputs(name: str) -> tuple[Tensor, Tensor | str]:
    """The right output and the wrong one, or the error in its place."""
    mistake = catalogue()[name]
    right = output(mistake)
    try:
        return right, output(mistake, mistake.variants[0])
    except Exception as error:
        return right, str(error)


def number(value: Tensor | str, language: str = "en") -> str:
    """Numbers as text, with the digits that one compares; counts are whole."""
    if isinstance(value, str):
        return f"`{value.splitlines()[0]}`"
    return str(getattr(WORDS["and"], language)).join(
        f"{n:,.0f}" if abs(n) < 1e9 and n == round(n) else f"{n:.3g}"
        for n in value.double().flatten().tolist()
    )


def with_numbers(mistake: Mistake, text: str, language: str) -> str:
    """A sentence with its numbers in it."""
    right, wrong = outputs(mistake.id)
    facts = {"right": number(right, language), "wrong": number(wrong, language)}
    if isinstance(wrong, Tensor) and wrong.shape == right.shape:
        difference = (right - wrong).abs()
        facts["change"] = f"{difference.max():.3g}"
        if right.dim() == 2:
            row, column = divmod(int(difference.argmax()), right.shape[1])
            values = {"right": number(right[row, column]), "wrong": number(wrong[row, column])}
            # Of an axis "query, from position 2000 on", the word "query".
            rows, columns = (
                re.split("[,，]", getattr(axis, language))[0]
                for axis in evidence()[mistake.id].axes
            )
            word = {k: getattr(WORDS[k], language) for k in ("where", "there")}
            facts["where"] = word["where"].format(rows, row, columns, column)
            facts["there"] = word["there"].format(**values)
    return re.sub(r"\{(\w+)\}", lambda match: facts[match[1]], text)


def diff(lines: Lines) -> str:
    """The wrong lines and the right ones, as a patch that mends them."""
    signs = [line[0] for line in lines.diff]
    code = dedent("\n".join(line[1:] for line in lines.diff)).split("\n")
    pairs = zip(signs, code, strict=True)
    return "\n".join(f"{sign}{line}".rstrip() for sign, line in pairs)


def source_link(address: str) -> str:
    match = ADDRESS.match(address)
    assert match
    repository, number, host = match.groups()
    name = f"{repository} #{number}" if number else repository or host
    return f"[{name}]({address})"


@cache
def code_and_pictures(mistake: Mistake, language: str) -> str:
    """HTML: the lines of an entry as a diff, and their outputs beside it."""
    code = "".join(blocks(mistake.variants[:1], language))
    right, wrong = outputs(mistake.id)
    pictures = ""
    for kind, value in (("wrong", wrong), ("right", right)):
        label = getattr(WORDS[kind], language)
        if isinstance(value, str):  # an error, which the entry quotes
            error = getattr(WORDS["error"], language)
            cell = f'<span class="off" title="{escape(value)}">{error}</span>'
        else:
            cell = cells_or_numbers(value, right, wrong)
        pictures += f"<div><b>{label}</b>{cell}</div>"
    facts = evidence()[mistake.id]
    # The axes of a matrix; of a few numbers, the expression that gives them.
    axes = " × ".join(getattr(axis, language) for axis in facts.axes)
    title = axes if right.dim() == 2 else ast.unparse(ast.parse(facts.see).body[-1])
    title = f' title="{escape(title)}"'
    return f'<div class="mistake"><div>{code}</div><div class="pair"{title}>{pictures}</div></div>'


def share(mistake: Mistake, language: str) -> str:
    """HTML: a button that copies the address of an entry."""
    link, report = (getattr(WORDS[k], language) for k in ("link", "copied"))
    return (
        f'<button class="link" type="button" aria-label="{link}" '
        f'data-done="{report}" data-to="../{mistake.id}/"></button>'
    )


def cells_or_numbers(value: Tensor, right: Tensor, wrong: Tensor | str) -> str:
    """HTML: a matrix as its cells, or a few numbers of another tensor, from
    where the wrong ones differ from the right ones."""
    if value.dim() == right.dim() == 2:
        return heatmap.thumbnail(value.double(), right.double())
    actual, expected, wrong_numbers = (
        x.double().flatten().tolist() if isinstance(x, Tensor) else []
        for x in (value, right, wrong)
    )
    differ = [differs(*pair) for pair in zip_longest(expected, wrong_numbers)]
    first = differ.index(True) // ROWS * ROWS if True in differ else 0
    rows = ["<span>…</span>"] if first else []
    for x, y in zip_longest(actual[first:][:ROWS], expected[first:][:ROWS]):
        if x is not None:
            kind = " class=off" if differs(x, y) else ""
            rows.append(f"<span{kind}>{number(torch.tensor(x))}</span>")
    return "".join(rows)


def differs(x: float | None, y: float | None) -> bool:
    """Whether two numbers differ by more than one compares. A missing number,
    None, differs from all."""
    if x is None or y is None:
        return True
    return not (x == y or math.isclose(x, y, rel_tol=1e-3))


def others(mistake: Mistake, language: str) -> str:
    """HTML: the same mistake in other files, or in other lines. These are the
    first variants after the one that the entry shows."""
    return "".join(blocks(mistake.variants[1:3], language))


def blocks(variants: Sequence[Variant], language: str) -> Iterator[str]:
    """HTML: the diff of each variant; equal ones are one, of several files."""
    paths: dict[str, list[str]] = {}
    for variant in variants:
        files = {x.file for x in variant}
        lines = "\n\n".join(map(diff, variant))
        paths.setdefault(lines, []).extend(sorted(files))
    copy = button(*(getattr(WORDS[k], language) for k in ("copy", "copied")))
    for lines, names in paths.items():
        yield (
            f'<div class="language-diff highlight">'
            f'<span class="filename">{", ".join(names)}</span>'
            f"<pre><code>{coloured(lines)}</code></pre>{copy}</div>"
        )


def coloured(lines: str) -> str:
    kinds = {"-": "gd", "+": "gi"}
    return "".join(
        f'<span class="{kinds[line[0]]}">{escape(line)}</span>\n'
        if line[:1] in kinds
        else f"{escape(line)}\n"
        for line in lines.splitlines()
    )


def with_pictures(html: str, language: str, link: Callable[[str], str]) -> str:
    """Replace `<!-- diffs of ID -->` and the like by their HTML. `link` is the
    address of the page of a mistake.

    Markdown and the search have read the page by then: with these pictures in
    it, they would take long.
    """

    def draw(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "door":
            return find.door(language, link("ID"))
        if kind == "all":
            return below_symptom(name, language, link)
        kinds: dict[str, Callable[[Mistake, str], str]]
        kinds = {"diffs": code_and_pictures, "others": others, "share": share}
        return kinds[kind](catalogue()[name], language)

    return PICTURES.sub(draw, html)


def entry(mistake: Mistake, symptoms_text: str, language: str, link: Any) -> Iterator[str]:
    def word(text: Text) -> str:
        return str(getattr(text, language))

    def item(key: str, text: str) -> str:
        end = "" if text.endswith(("。", ".", "`")) else word(WORDS["end"])
        name = word(WORDS[key])
        return f"    - **{name}**{word(WORDS['colon'])}{text}{end}"

    comma = word(WORDS["and"])
    yield f"## {word(mistake.title)} {{ #{mistake.id} }}"
    yield ""
    yield with_numbers(mistake, symptoms_text, language)
    yield ""
    yield f"<!-- diffs of {mistake.id} -->"
    yield ""
    yield f'??? more "{word(WORDS["more"])}"'
    yield ""
    facts = evidence()[mistake.id]
    symptom = word(SYMPTOMS[facts.symptom])
    symptoms = link(find.DOOR)
    yield item("symptom", f"[{symptom}]({symptoms}#{facts.symptom})")
    yield item("notice", with_numbers(mistake, word(mistake.notice), language))
    failures = kills()[mistake.id]
    tests = [f"[`{x}`]({link(TESTS)}#{x})" for x in failures["properties"]]
    # A dict: without their parameters, several may be the same test.
    tests += dict.fromkeys(f"`{t.partition('[')[0]}`" for t in failures["tests"])
    yield item("caught", comma.join(tests))
    if mistake.id in smallest():
        yield item("smallest", sizes_of(mistake.id, language))
    if facts.met:
        yield item("found", comma.join(map(source_link, facts.met)))
    if mistake.variants[1:]:
        yield f"    - **{word(WORDS['also'])}**{word(WORDS['colon'])}"
        yield ""
        yield f"    <!-- others of {mistake.id} -->"
    yield ""
    yield f"    <!-- share of {mistake.id} -->"
    yield ""


def symptoms(language: str, _: Any) -> Iterator[str]:
    """A heading for each symptom, and the place of its list."""
    for key, symptom in SYMPTOMS.items():
        yield f"### {find.capital(getattr(symptom, language))} {{ #{key} }}"
        yield ""
        yield f"<!-- all of {key} -->"
        yield ""


def below_symptom(key: str, language: str, link: Callable[[str], str]) -> str:
    """HTML: links to all mistakes with a symptom, folded."""
    ids = [id for id in catalogue() if evidence()[id].symptom == key]
    titles = {id: escape(getattr(catalogue()[id].title, language)) for id in ids}
    rows = "".join(f'<li><a href="{link(id)}">{titles[id]}</a></li>' for id in ids)
    label = getattr(WORDS["listed"], language).format(len(ids))
    return f'<details class="by-symptom"><summary>{label}</summary><ul>{rows}</ul></details>'


def door(language: str, _: Any) -> Iterator[str]:
    yield "<!-- door of all -->"


def shapes(mistakes: Sequence[Mistake], language: str) -> str:
    """How many of these mistakes have the right shape."""
    n = sum(kills()[mistake.id]["same_shape"] for mistake in mistakes)
    word = "every shape" if n == len(mistakes) else "shapes"
    text: str = getattr(WORDS[word], language)
    return text.format(all=len(mistakes), n=n)


def every_shape(language: str, _: Any) -> Iterator[str]:
    yield shapes([*catalogue().values()], language)


def exercises(language: str, link: Any) -> Iterator[str]:
    heads = (getattr(WORDS[key], language) for key in ("exercise", "asked"))
    yield f"| {' | '.join(heads)} |"
    yield "| --- | --- |"
    pages = places()
    for name in dict.fromkeys([*COURSE, *TASKS]):  # those of the course first
        task = TASKS[name]
        signatures = "<br>".join(f"`{x}`" for x in task.signatures)
        title = getattr(task.title, language)
        place = f"[`{name}`]({link(pages[name])}#exercise)"
        yield f"| {place} | {title}<br>{signatures} |"
    yield ""


def write_entries(markdown: str, page: str, language: str) -> str:
    """The Markdown of the page with this path, with its entries."""

    def link(stem: str) -> str:
        return os.path.relpath(f"{stem}.md", PurePosixPath(page).parent)

    def write_entry(match: re.Match[str]) -> str:
        mistake = catalogue().get(match[1])
        if mistake is None:
            raise BuildError(f"{page}: no mistake has the id {match[1]}")
        return "\n".join(entry(mistake, match[2].strip(), language, link))

    def legend(language: str, link: Any) -> Iterator[str]:
        ids = [match[1] for match in ENTRIES.finditer(markdown)]
        text = getattr(WORDS["marked"], language)
        mistakes = [catalogue()[id] for id in ids if id in catalogue()]
        yield text.format(shapes=shapes(mistakes, language), symptoms=link(find.DOOR))

    lists = {"marked": legend, "symptoms": symptoms, "shapes": every_shape}
    lists |= {"door": door, "exercises": exercises}
    with_lists = LISTS.sub(lambda match: "\n".join(lists[match[1]](language, link)), markdown)
    return ENTRIES.sub(write_entry, with_lists)
