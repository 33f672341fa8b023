"""The bibliography and the links of the pages hold the same papers."""

import re

import torch

from sitekit.drawn import bibliography
from tests.kit.pages import PAGES, Reader, built

PAPER = re.compile(
    r"https?://(?:arxiv\.org|(?:dx\.)?doi\.org|openreview\.net|"
    r"kexue\.fm|spaces\.ac\.cn|www\.usenix\.org/conference|"
    r"transformer-circuits\.pub)/"
)


def test_each_paper_that_is_linked_is_listed_and_the_other_way_round(site):
    listed = {fields["url"] for fields in bibliography.entries().values()}
    linked = {
        link.partition("#")[0]
        for path in PAGES
        if path.stem != "bibliography"
        for link in Reader(built(site, path)).links
        if PAPER.match(link)
    }
    assert linked - listed == set(), "not in docs/references.bib"
    assert listed - linked == set(), "no page links to them"


def test_entries_are_whole_and_the_year_is_that_of_the_first_version():
    entries = bibliography.entries()
    text = (bibliography.ROOT / "docs" / bibliography.BIB).read_text("utf-8")
    assert len(entries) == text.count("\n@") > 80
    for key, fields in entries.items():
        assert {"author", "title", "year", "url"} <= fields.keys(), key
        number = fields.get("eprint", "")
        assert re.fullmatch(r"(\d{4}\.\d{4,5})?", number), key
        assert number[:2] in ("", fields["year"][2:]), key


def test_each_row_names_the_pages_that_cite_it():
    rows = {row[1]: row for row in bibliography.papers()}
    assert len(rows) == len(bibliography.entries())
    assert all(row[2] for row in rows.values())
    gqa = next(row for title, row in rows.items() if "2305.13245" in title)
    assert gqa[0] == ("many", ("Ainslie", "2023"))
    assert "[](page:layers/gqa)" in gqa[2]
    jain = next(row for title, row in rows.items() if "1902.10186" in title)
    assert jain[0] == ("two", ("Jain", "Wallace", "2019"))


def test_what_is_written_about_posts():
    hidden = torch.full((3,), -1e6)
    torch.testing.assert_close(hidden.softmax(-1), torch.full((3,), 1 / 3))
    assert hidden.half().softmax(-1).isnan().all()
