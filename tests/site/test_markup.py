"""Tables say which of their cells are long, and which have no room."""

from markdown import Markdown

MARKDOWN = Markdown(extensions=["tables", "sitekit.markdown.markup"])
LONG = "A sentence that has no room beside two others on a phone."


def rendered(*rows):
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return MARKDOWN.reset().convert("\n".join(lines))


def test_numbers_are_neither_long_nor_stacked():
    html = rendered(["model", "a", "b"], *[["Llama-3.1-8B", "1", "2"]] * 3)
    assert "long" not in html
    assert "stacked" not in html


def test_sentences_are_stacked_with_their_heads():
    html = rendered(["what", "is `x` < 1", "why"], ["x", LONG, LONG])
    assert 'class="tabular stacked"' in html
    assert f'<td class="long" data-head="is x &lt; 1">{LONG}' in html
    assert "<td>x</td>" in html, "the first cell is the title of its row"


def test_a_name_beside_one_sentence_fits():
    html = rendered(["what", "is"], ["x", LONG])
    assert f'<td class="long">{LONG}' in html
    assert "stacked" not in html


def test_letters_of_chinese_are_wide():
    for cell, long in (
        ("有一句话的十二个字", False),
        ("有一句话的十二个字" * 2, True),
    ):
        assert ("long" in rendered(["a", "b"], ["x", cell])) is long
