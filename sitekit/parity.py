"""Two languages, one structure: what a page is apart from its words."""

import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml

from sitekit import ROOT, pages

BLOCK_TAGS = {"p", "li", "figcaption", "summary", "blockquote", "hr"}
NUMBER = re.compile(r"\d(?:[\d.,]*\d)?")


class _Outline(HTMLParser):
    """Reads a rendered page into an ordered list of events.

    Block-level events keep their order. Within a section, formulas, links and
    code inside sentences are compared as a sorted list, since the order of
    words differs between languages.
    """

    def __init__(self, blocks: list[pages.Block]) -> None:
        super().__init__()
        self.blocks = blocks
        self.events: list[tuple[Any, ...]] = [("start",)]
        self.inline: list[tuple[str, str]] = []
        self.text: list[str] | None = None
        self.math = ""
        self.rows: list[int] = []

    def handle_starttag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        a = {k: v or "" for k, v in attrs}
        classes = a.get("class", "").split()
        if re.fullmatch(r"h[1-6]", tag):
            self._flush()
            self.events.append(("heading", tag, a.get("id")))
        elif "data-block" in a:
            self.events.append(_signature(self.blocks[int(a["data-block"])]))
        elif "arithmatex" in classes:
            self.math, self.text = tag, []
        elif tag == "code":
            self.text = []
        elif tag == "tr":
            self.rows.append(0)
        elif tag in ("td", "th"):
            self.rows[-1] += 1
        elif "admonition" in classes or tag == "details":
            self.events.append(("box", *classes))
        elif tag == "img":
            self.events.append(("image", a.get("src")))
        elif tag == "a" and "headerlink" not in classes:
            self.inline.append(("link", a.get("href", "")))
        elif tag in BLOCK_TAGS:
            self.events.append((tag, *classes))

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.events.append(("table", *self.rows))
            self.rows = []
        elif self.text is not None and tag == self.math:
            latex = _without_words("".join(self.text))
            if tag == "div":
                self.events.append(("formula", latex))
            else:
                self.inline.append(("formula", latex))
            self.text, self.math = None, ""
        elif self.text is not None and tag == "code" and not self.math:
            self.inline.append(("code", "".join(self.text)))
            self.text = None

    def handle_data(self, data: str) -> None:
        if self.text is not None:
            self.text.append(data)
        elif data.lstrip().startswith(":::"):
            self.events.append(("reference", data.strip()))
        else:
            self.inline += [("number", n) for n in NUMBER.findall(data)]

    def _flush(self) -> None:
        self.events += sorted(self.inline)
        self.inline = []

    def outline(self, html: str) -> list[tuple[Any, ...]]:
        self.feed(html)
        self._flush()
        return self.events


def _without_words(latex: str) -> str:
    return re.sub(r"\\text\{[^}]*\}", r"\\text{}", " ".join(latex.split()))


# What a fence draws is the same in both languages; its other texts are words.
CALLS = ("cache", "draw", "models", "plot", "table", "walk", "wiring")


def _signature(block: pages.Block) -> tuple[Any, ...]:
    """What a block says apart from its words."""
    if block.language not in pages.DRAWN:
        return (block.language, block.text)
    return (block.language, _marked(yaml.safe_load(block.text)))


def _marked(spec: Any) -> Any:
    """The same tree with the marks of each phrase in its place."""
    if isinstance(spec, dict):
        return sorted(
            (key, value if key in CALLS else _marked(value))
            for key, value in spec.items()
        )
    if isinstance(spec, list):
        return [_marked(value) for value in spec]
    return _marks(spec)


MARK = re.compile(r"\$[^$]+\$|`[^`]+`|<pad>|\{\w*\}|float\d+|\d(?:[\d.,]*\d)?")


def _marks(text: object) -> list[str]:
    """What a phrase holds that no translation changes."""
    return sorted(MARK.findall(str(text)))


def outline(body: str) -> list[tuple[Any, ...]]:
    page = pages.render(body)
    return _Outline(page.blocks).outline(page.html)


def differences(english: str, chinese: str) -> list[str]:
    """The first place where two pages differ in structure, in words."""
    ours, theirs = outline(english), outline(chinese)
    section: Any = "the top"
    for i in range(max(len(ours), len(theirs))):
        en = ours[i] if i < len(ours) else None
        zh = theirs[i] if i < len(theirs) else None
        if en != zh:
            return [f"after {section}: English has {en}, Chinese has {zh}"]
        if en and en[0] == "heading":
            section = f"#{en[2]}"
    return []


def fingerprints(stem: str) -> dict[str, str]:
    """Of an English page: its text, and the code that it includes."""
    english = twin(stem, "en")
    told = {
        "synced": english.read_text(encoding="utf-8"),
        "code": pages.program(pages.body_of(english)),
    }
    return {
        key: hashlib.sha256(text.encode()).hexdigest()[:12]
        for key, text in told.items()
        if text
    }


def whole_stem(name: str) -> str:
    """`gqa` is `layers/gqa`: no two pages have one name."""
    found = [
        stem
        for stem in map(pages.stem_of, pages.markdown_files("en"))
        if name in (stem, stem.rpartition("/")[2])
    ]
    if len(found) != 1:
        raise ValueError(f"no page of docs/en is called {name!r}")
    return found[0]


def twin(stem: str, language: str) -> Path:
    return ROOT / "docs" / language / f"{stem}.md"


def _placed(stem: str, why: str) -> str:
    """With the lines of the heading `#id`, if a message names one."""
    heading = re.search(r"#[\w-]+|$", why)
    assert heading is not None
    places = []
    for path in (twin(stem, "zh"), twin(stem, "en")):
        text = path.read_text(encoding="utf-8")
        line = text[: text.find(f"{{ {heading[0]}") + 1].count("\n") + 1
        places.append(f"{path.relative_to(ROOT)}:{line}")
    return f"{' and '.join(places)}: {why}; give both the same"


def check(stem: str) -> list[str]:
    """What keeps a page and its twin from being in line."""
    english, chinese = twin(stem, "en"), twin(stem, "zh")
    for path in (english, chinese):
        if not path.exists():
            return [f"{path.relative_to(ROOT)} is missing"]
    found = differences(pages.body_of(english), pages.body_of(chinese))
    keys = [set(pages.front_matter(p)) for p in (english, chinese)]
    if alone := (keys[0] ^ keys[1]) - {"synced", "code"}:
        found.append(f"front matter of one alone has {sorted(alone)}")
    found = [_placed(stem, why) for why in found]
    known = pages.front_matter(chinese)
    included = re.findall(r'--8<-- "([^":]+)', pages.body_of(english))
    why = {
        "synced": f"has changed: bring docs/zh/{stem}.md in line",
        "code": "shows code that has changed, of "
        f"{', '.join(dict.fromkeys(included))}: see whether what docs/en and "
        "docs/zh say of it still holds",
    }
    for key, now in fingerprints(stem).items():
        if str(known.get(key)) != now:
            told = f"docs/en/{stem}.md {why[key]}"
            found.append(f"{told}, then run: make synced PAGE={stem}")
    return found


def unwritten(stem: str) -> None:
    """Refuse what `make new` has left to be written, in code that is shown
    too."""
    for path in (twin(stem, "en"), twin(stem, "zh")):
        shown = (b.text for b in pages.render(pages.body_of(path)).blocks)
        for text in (path.read_text(encoding="utf-8"), *shown):
            if found := re.search(r"TODO.*", text):
                place = path.relative_to(ROOT)
                raise ValueError(f"{place}: still to be written: {found[0]}")


def mark_synced(stem: str) -> str:
    """Write the English page's hashes into the Chinese one.

    Refused while the structure differs: they say that somebody has compared
    the two, and both with the code that they show.
    """
    path = twin(stem, "zh")
    chinese = path.read_text(encoding="utf-8")
    unwritten(stem)
    found = differences(pages.body_of(twin(stem, "en")), pages.body_of(path))
    if found:
        raise ValueError(_placed(stem, found[0]))
    lines = {key: f"{key}: {now}" for key, now in fingerprints(stem).items()}
    for key, line in lines.items():
        old = re.search(rf"^{key}: .*$", chinese, flags=re.M)
        begin = old[0] if old else "---"
        new = line if old else f"---\n{line}"
        chinese = chinese.replace(begin, new, 1)
    path.write_text(chinese, encoding="utf-8")
    return ", ".join(lines.values())
