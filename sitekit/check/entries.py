"""Each mistake on a page of its own, mistakes/ID/, which search engines read.

What the page says stands below its `::: mistake ID` and in the catalogue: it is
cut out of the HTML of the page that lists it, which lies in the same folder, so
that links stay right. Around it is the theme, which is rendered once for all of
them: once for each page would take half a minute.
"""

import re
from collections.abc import Iterator
from functools import cache, partial
from html import escape
from typing import Any, NamedTuple

from attnref.judge.catalogue import PAGES, Mistake, catalogue, mistakes_by_file
from attnref.judge.checker import candidates
from attnref.judge.tasks import TASKS
from attnref.words import Text
from sitekit import adapter
from sitekit.check import find, mistakes
from sitekit.check.evidence import SYMPTOMS, evidence
from sitekit.check.exercise import places
from sitekit.released.released import Released, released

FOLDER = "mistakes"
SECTION = r'<h2 id="{}">.*?(?=<h2 |\Z)'
HEADING = re.compile(r"<h2 .*?</h2>", re.DOTALL)
MORE = re.compile(r'<details class="more">\s*<summary>.*?</summary>(.*)</details>', re.DOTALL)
# A link to an entry of a catalogue page, or to another section of this one.
LINK = re.compile(r'(?<=href=")([^"#]*)#([\w-]+)(?=")')
SHAPE = {"id": "id-of-mistake", "title": "title-of-mistake", "text": "text-of-mistake"}
BODY = "<h1>article-of-mistake</h1>"
MODELS, SIBLINGS = 3, 5  # at most, of a page
WORDS = {
    "list": Text("Its entry among {}", "在目录里的位置：{}"),
    "where": Text("Where it matters", "和哪些内容有关"),
    "exercises": Text("Exercises whose check knows it", "能判出这个错误的练习"),
    "models": Text("Models with this part", "有这一部分的模型"),
    "all": Text("all released models", "所有已发布的模型"),
    "more": Text("and {} more", "等 {} 个"),
    "related": Text("Looks alike", "现象相似的错误"),
    "find": Text("Find your bug", "定位错误"),
    "colon": mistakes.WORDS["colon"],
    "and": mistakes.WORDS["and"],
}
# The parts of a model that a mistake is about, by a word of its id or its file;
# all others concern every model.
PARTS = {
    "mla-output-gate": "mla gate",
    "dsa": "indexer",
    "mla": "mla",
    "absorption": "mla",
    "softcap": "softcap",
    "sink": "sinks",
    "gate": "gate",
    "qk-norm": "norm",
    "query-norm": "norm",
    "norm-weight": "norm_weight",
    "yarn": "scaled",
    "chunk-as": "chunk",
    "window": "window",
    "ring": "window",
    "scaling": "scaled",
    "gqa": "grouped",
}
NONE = "alibi", "cross", "recurrent", "deepseek_v4"  # of no part that is counted


class Site(NamedTuple):
    """One language of a build, by which the theme is rendered."""

    config: Any
    nav: Any
    files: Any


_sites: dict[str, Site] = {}
_themes: dict[str, str] = {}


def enter(config: Any, nav: Any, files: Any) -> None:
    language = config.theme["language"]
    _sites[language] = Site(config, nav, files)
    _themes.pop(language, None)


def _word(key: str, language: str) -> str:
    return str(getattr(WORDS[key], language))


@cache
def subject_of() -> dict[str, str]:
    """By the id of a mistake, the stem of the file of the catalogue that has it."""
    return {mistake.id: name for name, entries in mistakes_by_file().items() for mistake in entries}


def address(config: Any, stem: str) -> str:
    """Of a page, from one in this folder."""
    here = f"{FOLDER}/-"
    return str(adapter.get_relative_url(*(adapter.url_of(x, config) for x in (stem, here))))


def address_of(config: Any, id: str) -> str:
    """Of a mistake, from a page in this folder."""
    return address(config, f"{FOLDER}/{id}")


@cache
def exercises() -> dict[str, list[str]]:
    """The exercises whose check knows a mistake."""
    known: dict[str, list[str]] = {}
    for name in TASKS:
        for id in {id for candidate in candidates(name) for id in candidate.ids}:
            known.setdefault(id, []).append(name)
    return known


def siblings(id: str) -> list[str]:
    """Mistakes that the same answer to a question leads to, the nearest first."""

    def likely(question: Any) -> Iterator[list[str]]:
        for answer in question["answers"]:
            yield from likely(answer) if "ask" in answer else [answer["likely"]]

    lists = [x for x in likely(find.tree()[evidence()[id].symptom]) if id in x]
    near = {other: None for ids in sorted(lists, key=len) for other in ids if other != id}
    return [*near][:SIBLINGS]


def concerned(id: str) -> list[Released] | None:
    """The models with the parts that a mistake is about; None: all of them."""
    name = subject_of()[id]
    for word, part in PARTS.items() if name not in NONE[1:] else ():
        if f"-{word}" in f"-{id}" or word == name:
            parts = {*part.split()}
            return [model for model in released().values() if parts <= {*model.parts}]
    return [] if name in NONE else None


def around(mistake: Mistake, site: Site, language: str) -> Iterator[str]:
    """HTML: what else of the site concerns a mistake."""
    config, id = site.config, mistake.id
    colon, comma = (_word(key, language) for key in ("colon", "and"))

    def link(stem: str, text: str, anchor: str = "") -> str:
        return f'<a href="{address(config, stem)}{anchor}">{text}</a>'

    def item(key: str, links: list[str], end: str = "") -> str:
        return f"<li><strong>{_word(key, language)}</strong>{colon}{comma.join(links)}{end}</li>"

    yield f'<h2 id="where">{_word("where", language)}</h2><ul>'
    if names := exercises().get(id):
        pages = places()
        yield item(
            "exercises", [link(pages[n], f"<code>{n}</code>", "#exercise") for n in names[:6]]
        )
    models = concerned(id)
    if models is None:
        yield item("models", [link("models/released", _word("all", language))])
    elif models:
        rest = len(models) - MODELS
        end = f" {_word('more', language).format(rest if language == 'en' else len(models))}"
        links = [link(f"models/released/{m.id}", escape(m.name)) for m in models[:MODELS]]
        yield item("models", links, end if rest > 0 else "")
    if others := siblings(id):
        titles = {x: escape(getattr(catalogue()[x].title, language)) for x in others}
        rows = "".join(f"<li>{link(f'{FOLDER}/{x}', titles[x])}</li>" for x in others)
        yield f"<li><strong>{_word('related', language)}</strong>{colon}<ul>{rows}</ul></li>"
    stem = PAGES[subject_of()[id]]
    title = str(site.files.get_file_from_path(f"{stem}.md").page.title)
    listed = link(stem, escape(title), f"#{id}")
    yield f"<li>{_word('list', language).format(listed)}</li></ul>"


def article(mistake: Mistake, site: Site, language: str) -> str:
    """HTML: all that the site says of a mistake."""
    config, id = site.config, mistake.id
    stem = PAGES[subject_of()[id]]
    page = site.files.get_file_from_path(f"{stem}.md").page
    if page.content is None:  # `mkdocs serve` has not come to it
        adapter.populate_page(page, config, site.files)
    match = re.search(SECTION.format(id), page.content, re.DOTALL)
    assert match is not None, id

    def lead(match: re.Match[str]) -> str:
        place, anchor = match.groups()
        if anchor in catalogue():
            return address_of(config, anchor)
        return match[0] if place else f"{address(config, stem)}#{anchor}"

    body = LINK.sub(lead, MORE.sub(r"\1", HEADING.sub("", match[0])))
    symptom = evidence()[id].symptom
    label = find.capital(getattr(SYMPTOMS[symptom], language))
    door = f"{address(config, find.DOOR)}#{symptom}"
    return "".join(
        (
            f'<div class="own"><p class="way"><a href="{address(config, find.DOOR)}">',
            f'{_word("find", language)}</a> › <a href="{door}">{label}</a></p>',
            f'<h1 id="{id}">{escape(getattr(mistake.title, language))}</h1>',
            mistakes.with_pictures(body, language, partial(address_of, config)),
            *around(mistake, site, language),
            "</div>",
        )
    )


def page(id: str, language: str) -> str:
    """HTML: the page of a mistake, in the theme."""
    site, mistake = _sites[language], catalogue()[id]
    if language not in _themes:
        _themes[language] = adapter.around(f"{FOLDER}/{SHAPE['id']}.md", SHAPE, BODY, *site)
    symptom = find.capital(getattr(SYMPTOMS[evidence()[id].symptom], language))
    title = f"{symptom}{_word('colon', language)}{getattr(mistake.title, language)}"
    stem = PAGES[subject_of()[id]]
    texts = {
        # The file to mend is that of the list.
        f"docs/{language}/{FOLDER}/{SHAPE['id']}.md": f"docs/{language}/{stem}.md",
        SHAPE["id"]: id,
        SHAPE["title"]: escape(title),
        SHAPE["text"]: escape(getattr(mistake.notice, language).replace("`", "")),
        BODY: article(mistake, site, language),
    }
    html = _themes[language]
    for old, new in texts.items():
        html = html.replace(old, new)
    return html
