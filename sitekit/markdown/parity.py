"""Both languages share one structure: all of a page but its words."""

import hashlib
import re
from collections import Counter
from html.parser import HTMLParser
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from sitekit import ROOT
from sitekit.markdown import docstrings, facts, pages, source

# What only one language has: links marked so, [...](...){ hreflang=zh }, and
# boxes with this class. Sentences may be split and joined freely.
OF_ONE_LANGUAGE = "own"
VOID = {"br", "hr", "img", "input", "wbr"}
DIGITS = r"\d(?:[\d.,]*\d)?"
NUMERAL = re.compile(
    rf"({DIGITS})(?:\s*(thousand|million|billion|[千万亿]|[GT](?=FLOP))|([kKMBT])\b)?"
)
SCALE = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12} | {
    **{"thousand": 1e3, "million": 1e6, "billion": 1e9},
    **{"千": 1e3, "万": 1e4, "亿": 1e8},
}
WORDS = """
    zero no 零; one once first 一; two twice second half 二 两 半;
    three third 三; four fourth quarter 四; five fifth 五; six sixth 六;
    seven 七; eight 八; nine 九; ten 十; eleven 十一; twelve dozen 十二
"""
MONTHS = """
    January February March April May June July August September October
    November December
"""
SPELLED = {
    word.lower(): value for value, words in enumerate(WORDS.split(";")) for word in words.split()
} | {month.lower(): i for i, month in enumerate(MONTHS.split(), 1)}


class Section:
    """What a section says apart from its words."""

    def __init__(self, heading: tuple[str, str]) -> None:
        self.heading = heading
        # In their order: blocks, tables, displayed formulas, boxes, images.
        self.parts: list[tuple[Any, ...]] = []
        # In any order, since that of words differs between languages.
        self.inline: dict[str, set[str]] = {"formula": set(), "link": set(), "code": set()}
        self.text = ""

    def numerals(self) -> dict[str, set[float]]:
        """Each numeral, and what it may mean: 8B, 8 billion and 80 亿 are one.

        128K is 128 thousand, or 131,072.
        """
        result = {}
        for digits, word, letter in NUMERAL.findall(self.text):
            scale = SCALE.get((word or letter).lower(), 1)
            # 8.03 billion and 80.3 亿 differ in the last bit of a float.
            means = {float(f"{_value(digits) * scale:.12g}")}
            if scale == 1e3:
                means.add(_value(digits) * 1024)
            result[f"{digits} {word}{letter}".strip()] = means
        return result

    def spelled(self) -> set[float]:
        words = re.findall(r"[a-z]+", self.text.lower())
        signs = re.findall("十[一二]|[零一二两半三四五六七八九十]", self.text)
        return {SPELLED[w] for w in [*words, *signs] if w in SPELLED}

    def length(self) -> int:
        """Words, and signs of Chinese."""
        return len(re.findall(r"[A-Za-z]+|[\u4e00-\u9fff]", self.text))


def _value(digits: str) -> float:
    try:
        return float(digits.replace(",", ""))
    except ValueError:  # 1.2.3
        return float(digits.replace(",", "").replace(".", ""))


class _Outline(HTMLParser):
    """Reads a rendered page, section by section."""

    def __init__(self, blocks: list[pages.Block]) -> None:
        super().__init__()
        self.blocks = blocks
        self.sections = [Section(("", "the top"))]
        self.text: list[str] | None = None
        self.math = ""
        self.rows: list[int] = []
        self.open: list[str] = []
        self.own = 0  # the number of open tags where such a box began

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        a = {k: v or "" for k, v in attrs}
        classes = a.get("class", "").split()
        if tag not in VOID:
            self.open.append(tag)
        if OF_ONE_LANGUAGE in classes and not self.own:
            self.own = len(self.open)
        section = self.sections[-1]
        if "data-block" in a:
            parts, phrases = _signature(self.blocks[int(a["data-block"])])
            section.parts.append(parts)
            section.text += f" {phrases} "
        elif self.own:
            return
        elif re.fullmatch(r"h[1-6]", tag):
            self.sections.append(Section((tag, f"#{a.get('id')}")))
        elif "arithmatex" in classes:
            self.math, self.text = tag, []
        elif tag == "code":
            self.text = []
        elif tag == "tr":
            self.rows.append(0)
        elif tag in ("td", "th"):
            self.rows[-1] += 1
        elif "admonition" in classes or tag == "details":
            section.parts.append(("box", *classes))
        elif tag == "img":
            section.parts.append(("image", a.get("src")))
        elif tag == "a" and not {"headerlink", "hreflang"} & {*classes, *a}:
            section.inline["link"].add(a.get("href", ""))

    def handle_endtag(self, tag: str) -> None:
        section = self.sections[-1]
        if self.own:
            self.own = self.own if len(self.open) > self.own else 0
        elif tag == "table":
            section.parts.append(("table with rows of", *self.rows))
            self.rows = []
        elif self.text is not None and tag == self.math:
            latex = " ".join("".join(self.text).split())
            latex = re.sub(r"\\text\{[^}]*\}", r"\\text{}", latex)  # no words
            if tag == "div":
                section.parts.append(("formula", latex))
            else:
                section.inline["formula"].add(latex)
            self.text, self.math = None, ""
        elif self.text is not None and tag == "code" and not self.math:
            section.inline["code"].add("".join(self.text))
            self.text = None
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        section = self.sections[-1]
        if self.own:
            return
        if self.text is not None:
            self.text.append(data)
        elif data.lstrip().startswith(":::"):
            section.parts.append(("reference", data.strip()))
        else:
            section.text += data


def _signature(block: pages.Block) -> tuple[tuple[Any, ...], str]:
    """What a block says apart from its words, and its words."""
    if block.language == "text":  # what a command prints, in the language
        return ("text", *sorted(re.findall(r"\d+(?:[,.]\d+)*", block.text))), ""
    if block.language not in source.DRAWN:
        command = re.sub(r"\s(\\\s+)?--lang zh", "", block.text)
        return (block.language, command), ""
    phrases: list[str] = []
    marks = _marks(yaml.safe_load(block.text), phrases)
    return (block.language, marks), " ".join(phrases)


MARK = re.compile(r"\$[^$]+\$|`[^`]+`|<pad>|\{\w*\}|float\d+")


def _marks(spec: Any, phrases: list[str]) -> Any:
    """The tree of a fence, with the marks of each phrase in its place."""
    if isinstance(spec, dict):
        return sorted(
            (key, value if key in source.CALLS else _marks(value, phrases))
            for key, value in spec.items()
        )
    if isinstance(spec, list):
        return [_marks(value, phrases) for value in spec]
    phrases.append(MARK.sub(" ", str(spec)))
    return sorted(MARK.findall(str(spec)))


def outline(body: str) -> list[Section]:
    page = pages.render(body)
    parser = _Outline(page.blocks)
    parser.feed(page.html)
    return parser.sections


def differences(english: str, chinese: str) -> list[str]:
    """Where two pages differ in structure, in words."""
    ours, theirs = outline(english), outline(chinese)
    headings = [[s.heading for s in page] for page in (ours, theirs)]
    if headings[0] != headings[1]:
        unpaired = [
            " ".join(
                f"<{tag}> {place}" for tag, place in page_headings if (tag, place) not in other_page
            )
            or "the same ones in another order"
            for page_headings, other_page in (headings, headings[::-1])
        ]
        return [f"headings: English has {unpaired[0]}; Chinese has {unpaired[1]}"]
    return [
        f"in {en.heading[1]}: {problem}"
        for en, zh in zip(ours, theirs, strict=True)
        for problem in _unlike(en, zh)
    ]


def _unlike(en: Section, zh: Section) -> list[str]:
    problems = []
    for a, b in zip_longest(en.parts, zh.parts):
        if a != b:
            text = f"{_description(b)} where English has {_description(a)}"
            problems.append(f"Chinese has {text}")
            break
    for kind in en.inline:
        for language, full, lacking in (("Chinese", en, zh), ("English", zh, en)):
            for entry in sorted(full.inline[kind] - lacking.inline[kind]):
                problems.append(f"{language} lacks the {kind} {entry!r}")
    for language, full, lacking in (("Chinese", en, zh), ("English", zh, en)):
        numbers = lacking.spelled().union(*lacking.numerals().values())
        for numeral, means in full.numerals().items():
            if not means & numbers:
                problems.append(f"{language} lacks the number {numeral}")
    least, most = 0.8 * en.length() - 12, 2.3 * en.length() + 24
    if not least <= zh.length() <= most:
        problems.append(
            f"{zh.length()} signs of Chinese for {en.length()} English words: "
            f"one of them tells less"
        )
    return problems


def _description(part: tuple[Any, ...] | None) -> str:
    if part is None:
        return "nothing"
    return f"{part[0]}: {' '.join(map(str, part[1:]))}"[:200]


def fingerprints(stem: str) -> dict[str, str]:
    """Hashes of an English page: of its text, and of the code it includes."""
    english = twin(stem, "en")
    texts = {"synced": source.text_of(english), "code": pages.program(pages.body_of(english))}
    return {
        key: hashlib.sha256(text.encode()).hexdigest()[:12] for key, text in texts.items() if text
    }


def whole_stem(name: str) -> str:
    """`gqa` is `layers/gqa`: no two pages have one name."""
    stems = [
        stem
        for stem in map(pages.stem_of, pages.markdown_files("en"))
        if name in (stem, stem.rpartition("/")[2])
    ]
    if len(stems) != 1:
        raise ValueError(f"no page of docs/en is called {name!r}")
    return stems[0]


def twin(stem: str, language: str) -> Path:
    """The file of a page in that language."""
    return ROOT / "docs" / language / f"{stem}.md"


def _with_lines(stem: str, problem: str) -> str:
    """Put the lines of the heading `#id` before a message that names one."""
    heading = re.search(r"#[\w-]+|$", problem)
    assert heading is not None
    places = []
    for path in (twin(stem, "zh"), twin(stem, "en")):
        text = path.read_text(encoding="utf-8")
        line = text[: text.find(f"{{ {heading[0]}") + 1].count("\n") + 1
        places.append(f"{path.relative_to(ROOT)}:{line}")
    return f"{' and '.join(places)}: {problem}; give both the same"


def _problems(stem: str) -> list[str]:
    """Where a page and its twin differ in structure, or in their facts."""
    paths = [twin(stem, language) for language in ("en", "zh")]
    ours, theirs = (Counter(facts.facts(source.text_of(p))) for p in paths)
    lacking = {"Chinese": ours - theirs, "English": theirs - ours}
    return differences(*map(pages.body_of, paths)) + [
        f"in #{id}: {name} lacks the fact {{{{{fact}}}}}"
        for name, missing_facts in lacking.items()
        for id, fact in missing_facts
    ]


def check(stem: str) -> list[str]:
    """What is to be done until a page and its twin say the same."""
    english, chinese = twin(stem, "en"), twin(stem, "zh")
    for path in (english, chinese):
        if not path.exists():
            return [f"{path.relative_to(ROOT)} is missing"]
    problems = _problems(stem)
    keys = [set(pages.front_matter(p)) for p in (english, chinese)]
    if unpaired := (keys[0] ^ keys[1]) - {"synced", "code"}:
        problems.append(f"front matter of one alone has {sorted(unpaired)}")
    problems = [_with_lines(stem, problem) for problem in problems]
    recorded = pages.front_matter(chinese)
    files = (i.path for i in source.includes(pages.body_of(english)))
    reasons = {
        "synced": f"has changed: bring docs/zh/{stem}.md in line",
        "code": "shows code that has changed, of "
        f"{', '.join(dict.fromkeys(files))}: see whether what docs/en and "
        "docs/zh say of it still holds",
    }
    for key, digest in fingerprints(stem).items():
        if str(recorded.get(key)) != digest:
            problem = f"docs/en/{stem}.md {reasons[key]}"
            problems.append(f"{problem}, then run: make synced PAGE={stem}")
    return problems + (docstrings.check() if stem == "api" else [])


def unwritten(stem: str) -> None:
    """Refuse what `make new` has left to be written, in code that is shown
    too."""
    for path in (twin(stem, "en"), twin(stem, "zh")):
        blocks = (b.text for b in pages.render(pages.body_of(path)).blocks)
        for text in (path.read_text(encoding="utf-8"), *blocks):
            if match := re.search(r"TODO.*", text):
                place = path.relative_to(ROOT)
                raise ValueError(f"{place}: still to be written: {match[0]}")


def mark_synced(stem: str) -> str:
    """Write the English page's hashes into the Chinese one.

    Refused while the structure differs: they say that somebody has compared
    the two, and both with the code that they show.
    """
    path = twin(stem, "zh")
    chinese = path.read_text(encoding="utf-8")
    unwritten(stem)
    if problems := _problems(stem):
        raise ValueError(_with_lines(stem, problems[0]))
    lines = {key: f"{key}: {digest}" for key, digest in fingerprints(stem).items()}
    for key, line in lines.items():
        known_line = re.search(rf"^{key}: .*$", chinese, flags=re.M)
        begin = known_line[0] if known_line else "---"
        text = line if known_line else f"---\n{line}"
        chinese = chinese.replace(begin, text, 1)
    path.write_text(chinese, encoding="utf-8")
    if stem == "api":
        docstrings.mark_synced()
    return ", ".join(lines.values())
