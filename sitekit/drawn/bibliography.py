"""The papers that the pages cite, from docs/references.bib."""

import re
from collections.abc import Iterator

from attnref import crossover
from sitekit import ROOT
from sitekit.drawn import operations
from sitekit.drawn.mla import WIDTHS
from sitekit.files import BIB
from sitekit.markdown import source
from sitekit.markdown.calls import FOLDER
from sitekit.markdown.pages import markdown_files, stem_of
from sitekit.markdown.parity import twin
from sitekit.markdown.render import Row, Word

ENTRY = re.compile(r"^@\w+\{([\w-]+),\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (\w+) = \{(.*)\},$", re.MULTILINE)
PLACES = {"eprint": "https://arxiv.org/abs/{}", "doi": "https://doi.org/{}"}


def entries() -> dict[str, dict[str, str]]:
    """The fields of each entry, and its address as `url`, by its key."""
    text = source.text_of(ROOT / "docs" / BIB)
    result = {}
    for key, body in ENTRY.findall(text):
        fields = dict(FIELD.findall(body))
        for name, place in PLACES.items():
            if name in fields:
                fields["url"] = place.format(fields[name])
        result[key] = fields
    return result


def _without_tex(text: str) -> str:
    return re.sub(r"[{}\\]", "", text)


def _authors(names: str, year: str) -> Word:
    """Surnames of up to four, of more the first; a name in two scripts."""
    last = [_without_tex(name).split(", ")[0] for name in names.split(" and ")]
    if script := re.fullmatch(r"(.+) \((.+)\)", last[0]):
        return Word("scripts", (*script.groups(), year))
    if "others" in last or len(last) > 4:
        return Word("many", (last[0], year))
    return Word(("one", "two", "three", "four")[len(last) - 1], (*last, year))


def _texts() -> dict[str, str]:
    """What each page is written with, by its name: in both languages, and what
    it draws."""
    result = {}
    for path in markdown_files("en"):
        stem = stem_of(path)
        drawn = FOLDER.glob(f"{path.stem.replace('-', '_')}.*")
        texts = map(source.text_of, (path, twin(stem, "zh"), *sorted(drawn)))
        result[stem] = "\n".join(texts)
    result["numbers/memory"] += source.text_of(ROOT / "attnref/released/specs.json")
    return result


def papers() -> Iterator[Row]:
    """Each entry, and the pages that cite it."""
    texts = _texts()
    for fields in sorted(entries().values(), key=lambda f: f["year"]):
        link = fields.get("eprint", fields["url"])
        pages = [f"[](page:{p})" for p, text in texts.items() if link in text]
        title = f"[{_without_tex(fields['title'])}]({fields['url']})"
        yield [_authors(fields["author"], fields["year"]), title, " · ".join(pages)]


def numbers() -> dict[str, object]:
    """What is said of posts on MLA."""
    return {
        "intensity": operations.intensities()["absorbed"],
        "ridge": operations.H100.ridge,
        "crossover": crossover(**WIDTHS),
    }
