"""What pages say of the catalogue of mistakes.

`::: mistake softmax-overflow` on a page begins the entry of that mistake: what
follows says what it does, with numbers that are computed, and title, lines and
the rest come from the catalogue. `::: marked` says how to read the entries of
its page, `::: symptoms` becomes the list of all entries by what one sees,
`::: shapes` how many have the right shape, and `::: exercises` the table of
those of `attnref check`. All are Markdown, in the language of the page.
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

from attnref.check.catalogue import (
    PAGES,
    PLAIN,
    Lines,
    Mistake,
    Variant,
    catalogue,
    files,
    planted,
)
from attnref.check.tasks import TASKS
from attnref.words import Text
from sitekit import ROOT
from sitekit.adapter import BuildError
from sitekit.check import find
from sitekit.check.evidence import SYMPTOMS, evidence
from sitekit.check.exercise import places
from sitekit.drawing import svg
from sitekit.markdown.markup import button
from sitekit.moved import STUB
from sitekit.search import sections_of

ENTRIES = re.compile(
    r"^::: mistake ([\w-]+)\n(.*?)(?=^::: |^#|\Z)", re.MULTILINE | re.DOTALL
)
LISTS = re.compile(r"^::: (marked|symptoms|shapes|exercises)$", re.MULTILINE)
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
        "标 - 的行是错的，标 + 的行是对的。{shapes}"
        "也可以[按症状查找]({symptoms})。",
    ),
    "shapes": Text(
        "{n} of these {all} mistakes return the right shape, so shape tests "
        "miss them.",
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
    "end": Text(".", "。"),
    "exercise": Text("exercise", "练习"),
    "asked": Text("what to write", "要写的函数"),
    "copy": Text("Copy fix", "复制正确代码"),
    "copied": Text("Copied", "已复制"),
    "file": Text("wrong (-) and right (+)", "错误（-）与正确（+）"),
    "right": Text("right", "正确"),
    "filter": Text("Filter by what you see, or by title", "按现象或标题筛选"),
    "wrong": Text("wrong", "错误"),
    "link": Text("Copy link", "复制链接"),
}
ROWS = 4  # of numbers beside a diff
MANY = 12  # more than this many of a symptom are told apart further
TESTS = "mistakes/tests"  # the page that shows the properties


@cache
def kills() -> dict[str, Any]:
    """By mistake, what was found by running: which tests to copy and which of
    our own fail, and whether shapes stay right."""
    return dict(json.loads(KILLS.read_text(encoding="utf-8")))


def large(layer: nn.Module) -> nn.Module:
    """Weights with which softmax decides: flat ones hide mistakes."""
    for weight in layer.parameters():
        weight.data = torch.randn_like(weight) / 2
    return layer


def moved(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """1 where the output of the row moves with the input of the column."""
    columns = []
    for j in range(x.shape[1]):
        other = x.clone()
        other[:, j] += 1
        change = (run(other) - run(x)).abs().amax(dim=(0, 2))
        columns.append((change > 1e-6).double())
    return torch.stack(columns, dim=1)


@cache
def _right(module: str) -> Any:
    return planted((Lines(module, ()),))


def shown(mistake: Mistake, variant: Variant = ()) -> Tensor:
    """What the code of an entry gives, with these lines."""
    made: Any = planted(variant) if variant else _right(mistake.module)
    given = {"torch": torch, "large": large, "moved": moved}
    given["plain"] = made
    if mistake.module.startswith(PLAIN):
        made = getattr(made, mistake.module.removeprefix(PLAIN))
    tree = ast.parse(evidence()[mistake.id].see)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names = {name: getattr(made, name) for name in used if hasattr(made, name)}
    names |= given
    *first, last = tree.body
    assert isinstance(last, ast.Expr), mistake.id
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile(ast.Module(first, []), mistake.id, "exec"), names)
        value = eval(
            compile(ast.Expression(last.value), mistake.id, "eval"), names
        )
    return torch.as_tensor(value).detach()


@cache
def seen(name: str) -> tuple[Tensor, Tensor | str]:
    """What one would see: right and wrong, or the error that is raised."""
    mistake = catalogue()[name]
    right = shown(mistake)
    try:
        return right, shown(mistake, mistake.variants[0])
    except Exception as error:
        return right, str(error)


def number(value: Tensor | str, language: str = "en") -> str:
    """As text, with no more digits than one compares; counts are whole."""
    if isinstance(value, str):
        return f"`{value.splitlines()[0]}`"
    return str(getattr(WORDS["and"], language)).join(
        f"{n:,.0f}" if abs(n) < 1e9 and n == round(n) else f"{n:.3g}"
        for n in value.double().flatten().tolist()
    )


def with_links(mistake: Mistake, text: str, language: str) -> str:
    """A sentence with its numbers."""
    right, wrong = seen(mistake.id)
    facts = {
        "right": number(right, language),
        "wrong": number(wrong, language),
    }
    if isinstance(wrong, Tensor) and wrong.shape == right.shape:
        far = (right - wrong).abs()
        facts["change"] = f"{far.max():.3g}"
        if right.dim() == 2:
            row, column = divmod(int(far.argmax()), right.shape[1])
            at = {
                "right": number(right[row, column]),
                "wrong": number(wrong[row, column]),
            }
            # "query, from position 2000 on"
            down, across = (
                re.split("[,，]", getattr(axis, language))[0]
                for axis in evidence()[mistake.id].axes
            )
            word = {k: getattr(WORDS[k], language) for k in ("where", "there")}
            facts["where"] = word["where"].format(down, row, across, column)
            facts["there"] = word["there"].format(**at)
    return re.sub(r"\{(\w+)\}", lambda match: facts[match[1]], text)


def diff(lines: Lines) -> str:
    """The wrong lines and the right ones, as a patch that mends them."""
    signs = [line[0] for line in lines.diff]
    code = dedent("\n".join(line[1:] for line in lines.diff)).split("\n")
    both = zip(signs, code, strict=True)
    return "\n".join(f"{sign}{line}".rstrip() for sign, line in both)


def source(address: str) -> str:
    match = ADDRESS.match(address)
    assert match
    repository, number, host = match.groups()
    name = f"{repository} #{number}" if number else repository or host
    return f"[{name}]({address})"


def diffs(mistake: Mistake, language: str) -> str:
    """HTML: the lines of an entry as a diff, and beside it what they give."""
    code = "".join(blocks(mistake.variants[:1], language))
    right, wrong = seen(mistake.id)
    pictures = ""
    for kind, value in (("wrong", wrong), ("right", right)):
        label = getattr(WORDS[kind], language)
        if isinstance(value, str):  # an error, which the entry quotes
            error = getattr(WORDS["error"], language)
            shown = f'<span class="off" title="{escape(value)}">{error}</span>'
        else:
            shown = small(value, right, wrong)
        pictures += f"<div><b>{label}</b>{shown}</div>"
    axes = (getattr(axis, language) for axis in evidence()[mistake.id].axes)
    title = f' title="{escape(" × ".join(axes))}"' if right.dim() == 2 else ""
    return (
        f'<div class="mistake"><div>{code}</div>'
        f'<div class="pair"{title}>{pictures}</div></div>'
    )


def share(mistake: Mistake, language: str) -> str:
    """HTML: copies the address of an entry."""
    link, copied = (getattr(WORDS[k], language) for k in ("link", "copied"))
    return (
        f'<button class="link" type="button" aria-label="{link}" '
        f'data-done="{copied}" data-to="../{mistake.id}/"></button>'
    )


def small(value: Tensor, right: Tensor, wrong: Tensor | str) -> str:
    """HTML: a matrix as its cells; a few numbers of what is none, from where
    they differ from the right ones."""
    if value.dim() == right.dim() == 2:
        return svg.thumbnail(value.double(), right.double())
    given, wanted, other = (
        x.double().flatten().tolist() if isinstance(x, Tensor) else []
        for x in (value, right, wrong)
    )
    differ = [off(*both) for both in zip_longest(wanted, other)]
    first = differ.index(True) // ROWS * ROWS if True in differ else 0
    rows = ["<span>…</span>"] if first else []
    for x, y in zip_longest(given[first:][:ROWS], wanted[first:][:ROWS]):
        if x is not None:
            kind = " class=off" if off(x, y) else ""
            rows.append(f"<span{kind}>{number(torch.tensor(x))}</span>")
    return "".join(rows)


def off(x: float | None, y: float | None) -> bool:
    """Whether they differ by more than one compares; None is not there."""
    if x is None or y is None:
        return True
    return not (x == y or math.isclose(x, y, rel_tol=1e-3))


def stub(id: str, language: str, home: str) -> str:
    """HTML: the address of a mistake, with its picture and what it is. `home`
    is that of the site, if it is known."""
    mistake = catalogue()[id]
    title = getattr(mistake.title, language)
    page = next(
        PAGES[name] for name, held in files().items() if mistake in held
    )
    tags = {
        "og:type": "article",
        "og:site_name": "attnref",
        "og:title": title,
        "og:description": getattr(SYMPTOMS[evidence()[id].symptom], language),
        "og:url": f"{home}{'zh/' * (language == 'zh')}mistakes/{id}/",
        "og:image": f"{home}assets/previews/mistakes/{id}.png",
        "twitter:card": "summary_large_image",
    }
    link = f"../{PurePosixPath(page).name}/#{id}"
    return STUB.format(
        language=language,
        new=escape(title),
        script="''",
        link=json.dumps(link),
        href=link,
        canonical="".join(
            f'<meta property="{name}" content="{escape(text)}">\n'
            for name, text in tags.items()
            if home
        ),
    )


def others(mistake: Mistake, language: str) -> str:
    """HTML: the same mistake in other files, or in other lines: the first of
    those that `attnref check` knows."""
    return "".join(blocks(mistake.variants[1:3], language))


def blocks(variants: Sequence[Variant], language: str) -> Iterator[str]:
    shown: dict[str, list[str]] = {}
    for variant in variants:
        files = {f"attnref/{x.module.replace('.', '/')}.py" for x in variant}
        text = "\n\n".join(map(diff, variant))
        shown.setdefault(text, []).extend(sorted(files))
    copy = button(*(getattr(WORDS[k], language) for k in ("copy", "copied")))
    for lines, held in shown.items():
        yield (
            f'<div class="language-diff highlight">'
            f'<span class="filename">{", ".join(held)}</span>'
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


def thumbnail(mistake: Mistake, _: str) -> str:
    """SVG: the wrong heat map, if there is one."""
    right, wrong = seen(mistake.id)
    if right.dim() != 2 or isinstance(wrong, str):
        return ""
    return svg.thumbnail(wrong.double(), right.double())


def with_pictures(html: str, language: str) -> str:
    """Once Markdown and the search have read the page, which takes them long:
    each `<!-- diffs of ID -->` and the like becomes what it stands for."""
    drawn = {
        "diffs": diffs,
        "others": others,
        "share": share,
        "thumbnail": thumbnail,
    }
    return PICTURES.sub(
        lambda match: drawn[match[1]](catalogue()[match[2]], language), html
    )


def entry(
    mistake: Mistake, symptoms_text: str, language: str, link: Any
) -> Iterator[str]:
    def word(text: Text) -> str:
        return str(getattr(text, language))

    def item(key: str, text: str) -> str:
        end = "" if text.endswith(("。", ".", "`")) else word(WORDS["end"])
        name = word(WORDS[key])
        return f"    - **{name}**{word(WORDS['colon'])}{text}{end}"

    between = word(WORDS["and"])
    yield f"## {word(mistake.title)} {{ #{mistake.id} }}"
    yield ""
    yield with_links(mistake, symptoms_text, language)
    yield ""
    yield f"<!-- diffs of {mistake.id} -->"
    yield ""
    yield f'??? more "{word(WORDS["more"])}"'
    yield ""
    facts = evidence()[mistake.id]
    symptom = word(SYMPTOMS[facts.symptom])
    symptoms = link("mistakes/by-symptom")
    yield item("symptom", f"[{symptom}]({symptoms}#{facts.symptom})")
    yield item("notice", with_links(mistake, word(mistake.notice), language))
    caught = kills()[mistake.id]
    tests = [f"[`{x}`]({link(TESTS)}#{x})" for x in caught["properties"]]
    # Without the parameters of a test: dict, since several may be of one.
    tests += dict.fromkeys(f"`{t.partition('[')[0]}`" for t in caught["tests"])
    yield item("caught", between.join(tests))
    if facts.met:
        yield item("found", between.join(map(source, facts.met)))
    if mistake.variants[1:]:
        yield f"    - **{word(WORDS['also'])}**{word(WORDS['colon'])}"
        yield ""
        yield f"    <!-- others of {mistake.id} -->"
    yield ""
    yield f"    <!-- share of {mistake.id} -->"
    yield ""


def groups(
    question: Any, names: set[str], key: str, language: str, level: str = "###"
) -> Iterator[str | list[str]]:
    """The mistakes below the first answer that leads to them, and below the
    next one where they are many: headings, questions and lists of ids."""
    yield getattr(Text(*question["ask"]), language)
    for answer in question["answers"]:
        word, *texts = answer["if"]
        held = names & find.reached(answer)
        names = names - held
        if held:
            label = getattr(Text(*texts), language)
            yield f"{level} {label} {{ #{key}-{word} }}"
            if "ask" in answer and len(held) > MANY:
                yield from groups(answer, held, key, language, f"{level}#")
            else:
                yield [name for name in catalogue() if name in held]


def symptoms(language: str, link: Any) -> Iterator[str]:
    """All entries, each below what one sees of it."""
    place = {
        mistake.id: f"<!-- thumbnail of {mistake.id} -->"
        f"[{getattr(mistake.title, language)}]"
        f"({link(PAGES[name])}#{mistake.id})"
        for name, held in files().items()
        for mistake in held
    }
    # What else its words may be: those of the search, and how one notices it.
    called = sections_of("mistakes/by-symptom")
    for name, held in files().items():
        also = sections_of(PAGES[name])
        for each in held:
            words = [*also.get(each.id, ()), getattr(each.notice, language)]
            called[each.id] = words
    data = json.dumps(called, ensure_ascii=False).replace("<", "\\u003c")
    yield (
        f'<p class="filter" hidden><label>{getattr(WORDS["filter"], language)}'
        ' <input type="search"></label> <output></output>'
        f'<script type="application/json">{data}</script></p>'
    )
    yield ""
    for key, symptom in SYMPTOMS.items():
        title = getattr(symptom, language)
        yield f"## {title[0].upper()}{title[1:]} {{ #{key} }}"
        yield ""
        every = {id for id, of in evidence().items() if of.symptom == key}
        few = [[name for name in place if name in every]]
        many = len(every) > MANY / 2
        question = find.tree()[key]
        for part in groups(question, every, key, language) if many else few:
            if isinstance(part, list):
                yield from (f"- {place[name]}" for name in part)
            else:
                to = link("mistakes/find-your-bug")
                yield part.replace("](#", f"]({to}#")
            yield ""


def shapes(mistakes: Sequence[Mistake], language: str) -> str:
    """How many have the right shape, of how many."""
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
    on = places()
    for name, task in TASKS.items():
        defined = "<br>".join(f"`{each}`" for each in task.signatures)
        title = getattr(task.title, language)
        place = f"[`{name}`]({link(on[name])}#exercise)"
        yield f"| {place} | {title}<br>{defined} |"
    yield ""


def expanded(markdown: str, here: str, language: str) -> str:
    """The Markdown of the page `here`, a path, with its entries."""

    def link(to: str) -> str:
        return os.path.relpath(f"{to}.md", PurePosixPath(here).parent)

    def described(match: re.Match[str]) -> str:
        mistake = catalogue().get(match[1])
        if mistake is None:
            raise BuildError(f"{here}: no mistake has the id {match[1]}")
        return "\n".join(entry(mistake, match[2].strip(), language, link))

    def marked(language: str, link: Any) -> Iterator[str]:
        ids = [match[1] for match in ENTRIES.finditer(markdown)]
        text = getattr(WORDS["marked"], language)
        every = [catalogue()[id] for id in ids if id in catalogue()]
        yield text.format(
            shapes=shapes(every, language), symptoms=link("mistakes/by-symptom")
        )

    lists = {
        "marked": marked,
        "symptoms": symptoms,
        "shapes": every_shape,
        "exercises": exercises,
    }
    made = LISTS.sub(
        lambda match: "\n".join(lists[match[1]](language, link)), markdown
    )
    return ENTRIES.sub(described, made)
