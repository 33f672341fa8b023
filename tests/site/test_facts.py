"""Sentences about the code: evaluated where they stand, in both languages."""

import re

import pytest

from sitekit import ROOT
from sitekit.adapter import BuildError
from sitekit.markdown import facts, numbers, parity
from sitekit.markdown.pages import body_of

SMALL = "GroupedQueryAttention(d_model=64, n_heads=8, n_kv_heads=3)"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("inherits(MultiQueryAttention, GroupedQueryAttention)", ""),
        (f'refuses({SMALL}, "n_kv_heads=3 does not divide")', ""),
        ('default(GroupedQueryAttention, "attend") == sdpa', ""),
        ('default(sdpa, "scale") == None', ""),
        ('refuses(StateCache().crop(0), "snapshot")', ""),
        ('imports("attnref/plain/mqa.py", "torch")', ""),
        ('takes(KVCache, "max_len") and has(KVCache, "crop", "reorder")', ""),
        ('refuses(KVCache(2).crop(3), "crop to 3, but 0")', ""),
        ('len("four") * 1025', "4,100"),
    ],
)
def test_a_fact_leaves_nothing_and_a_count_its_digits(written, shown):
    page = ROOT / "docs/en/layers/gqa.md"
    assert numbers.fill(f"So{{{{{written}}}}}.", page) == f"So{shown}."


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (
            "inherits(GroupedQueryAttention, MultiQueryAttention)",
            "this is not so, but False",
        ),
        (
            f'refuses({SMALL}, "does divide")',
            "this is not so, but 'ValueError: n_kv_heads=3 does not divide",
        ),
        (
            'refuses(KVCache(3), "max_len")',
            "not so, but 'no error, but a KVCache'",
        ),
        ('default(KVCache, "max_length") == 3', "'max_length'"),
        ('count("lines")', "nobody counts 'lines'"),
        ("KVCache(2)", "this is not so, but <attnref"),
        ("open('/etc/passwd')", "'open' is nothing that a fact may name"),
        ("type(1).__base__ == 3", "is nothing that a fact may name"),
        ('refuses(eval("1"), "nothing")', "'eval' is nothing that a fact"),
        ("len(", "this is no expression"),
    ],
)
def test_a_false_fact_stops_the_build_at_its_line(tmp_path, written, why):
    page = tmp_path / "gqa.md"
    page.write_text(f"# T\n\nSo it is.\nAnd so{{{{{written}}}}}.\n")
    with pytest.raises(BuildError) as error:
        body_of(page)
    assert str(error.value).startswith(f"{page}:4: {{{{{written}}}}}: ")
    assert why in str(error.value)


def test_both_languages_hold_the_same_facts(tmp_path, monkeypatch):
    """A fact may stand in another sentence of its section."""
    fact, page = (
        '{{takes(KVCache, "max_len")}}',
        "---\ntitle: T\n---\n# T { #t }\n\n%s\n",
    )
    for name in ("en", "zh"):
        (tmp_path / f"{name}.md").write_text(page % f"A{fact}.")
    monkeypatch.setattr(
        parity, "twin", lambda _, language: tmp_path / f"{language}.md"
    )
    monkeypatch.setattr(parity, "ROOT", tmp_path)
    parity.mark_synced("page")
    assert parity.check("page") == []
    for name, other in (("zh", "Chinese"), ("en", "English")):
        path = tmp_path / f"{name}.md"
        before = path.read_text()
        path.write_text(before.replace(fact, ""))
        assert f"#t: {other} lacks the fact {fact};" in parity.check("page")[0]
        path.write_text(before)


COUNTED = {
    "README.md": {"families": r"(\d+)\s+families"},
    "README.zh.md": {"families": r"支持\s*(\d+)"},
    "CHANGELOG.md": {
        "families": r"(\d+)\s+families",
        "exercises": r"(\d+)\s+exercises",
        "mistakes": r"(\d+)\s+mistakes",
    },
}


@pytest.mark.parametrize(
    ("file", "what"), [(f, what) for f in COUNTED for what in COUNTED[f]]
)
def test_what_the_readmes_and_the_changelog_count_is_counted(file, what):
    text = (ROOT / file).read_text(encoding="utf-8")
    numbers = re.findall(COUNTED[file][what], text)
    assert numbers, f"{file} counts no {what} any more"
    assert {*map(int, numbers)} == {facts.count(what)}


def section(stem, anchor, language):
    """The text below a heading, up to the next one of its level."""
    path = ROOT / "docs" / language / f"{stem}.md"
    level, text = re.search(
        rf"^(#+) [^\n]*{{ #{anchor} }}\n(.*)",
        path.read_text(encoding="utf-8"),
        re.M | re.S,
    ).groups()
    return re.split(rf"^#{{1,{len(level)}}} ", text, flags=re.M)[0]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_readers_found_wrong_is_not_said_again(language):
    queries = r"Q_n = X W_n^Q, \qquad K = X W^K, \qquad V = X W^V"
    assert queries in section("layers/gqa", "mqa", language)
    sparse = "::: attnref.layers.dsa: DeepSeekSparseAttention"
    assert sparse in section("api/layers", "chosen", language)
    assert sparse not in section("api/layers", "recurrent", language)
    variants = section("beyond/recurrent", "variants", language)
    rows = [
        line
        for line in variants.splitlines()
        if line.startswith("|") and "Kimi" in line
    ]
    # Their gates differ, so no row is of both.
    assert [len(re.findall("Kimi", row)) for row in rows] == [1, 1]
    assert "K3" in rows[1] and "#kda-gates" in rows[1]
