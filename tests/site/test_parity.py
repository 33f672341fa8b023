"""Two languages, one structure; drift turns the build red."""

import html
import re
import shutil
from collections import defaultdict

import griffe
import pytest

from sitekit import CONFIGS, ROOT, api, nav
from sitekit.adapter import BuildError, config_of
from sitekit.markdown import docstrings, pages, parity
from sitekit.markdown.pages import body_of, markdown_files

STEMS = sorted(
    {
        str(path.relative_to(ROOT / "docs" / language).with_suffix(""))
        for language in ("en", "zh")
        for path in markdown_files(language)
    }
)


@pytest.mark.parametrize("stem", STEMS)
def test_a_page_and_its_twin_are_in_line(stem):
    assert parity.check(stem) == []


def test_six_sections_have_at_most_14_links_each():
    def links(entry):
        inner = entry.values() if isinstance(entry, dict) else entry
        return 1 if isinstance(entry, str) else sum(map(links, inner))

    home, *sections = config_of(CONFIGS["en"])["nav"]
    assert home == {"Home": "index.md"} and len(sections) == 6
    counts = {title: links(each) for each in sections for title in each}
    assert {title: n for title, n in counts.items() if n > 14} == {}
    assert sum(counts.values()) <= 50


def test_a_word_of_the_navigation_that_is_not_translated_stops_the_build():
    entries = ["a.md", {"Variants": ["b.md", {"New": "c.md"}]}]
    with pytest.raises(BuildError, match=r"extra\.navigation .* 'New'"):
        nav.translate(entries, {"Variants": "变体"})
    got = nav.translate(entries, {"Variants": "变体", "New": "新"})
    assert got == ["a.md", {"变体": ["b.md", {"新": "c.md"}]}]


BEFORE = """\
# Title { #title }

Text with $x_i$ and `code` and [a link](softmax.md#formula), of 15 million.

$$
x = \\text{words}
$$

| a | b |
| --- | --- |
| 1 | 2 |

## Section { #section }

!!! note "Words"

    Inside.

```table
table: exp_range
caption: words
head: [a, b, c, d, e, f]
```
"""
MORE = "A sentence that nobody has told the readers of the twin. " * 4
DRIFTS = {
    "a heading's id": ("#section", "#other"),
    "a heading's level": ("## Section", "### Section"),
    "an inline formula": ("$x_i$", "$x_j$"),
    "a block formula": ("x =", "y ="),
    "a link's target": ("softmax.md#formula", "softmax.md"),
    "a missing link": ("[a link](softmax.md#formula)", "a link"),
    "inline code": ("`code`", "`other`"),
    "a table's row": ("| 1 | 2 |\n", "| 1 | 2 |\n| 3 | 4 |\n"),
    "a table's column": ("| a | b |\n| --- | --- |", "| a |\n| --- |"),
    "an admonition's kind": ("!!! note", "!!! warning"),
    "a computed table": ("exp_range", "dot_products"),
    "a number": ("Inside.", "Inside 1e-12."),
    "a number of a caption": ("caption: words", "caption: words 3"),
    "a formula of a head": ("[a, b,", "[a, $b$,"),
    "a missing block": (BEFORE[BEFORE.index("```table") :], ""),
    "a number in words": ("15 million", "15 billion"),
    "another number": ("15 million", "15.5 million"),
    "a paragraph more": ("## Section", f"{MORE}\n\n## Section"),
    "a link that is not marked": ("Inside.", "[Inside](https://b.cn)."),
    "a block in a note of one's own": (
        "## Section",
        '!!! note own "W"\n\n    ```text\n    x\n    ```\n\n## Section',
    ),
    "what follows a note of one's own": (
        "## Section",
        '!!! note own "W"\n\n    Words.\n\n[L](https://b.cn)\n\n## Section',
    ),
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_each_kind_of_drift_is_seen(drift):
    assert parity.differences(BEFORE, BEFORE) == []
    old, new = DRIFTS[drift]
    assert old in BEFORE
    assert parity.differences(BEFORE, BEFORE.replace(old, new)) != []


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("In May 2024, 12 heads.", "2024 年 5 月，十二个头。"),
        ("8B weights, 128K tokens.", "80 亿个权重。\n\n12.8 万个 token。"),
        ("1,500,000 rows.", "150 万行。"),
        ("8.03 billion weights.", "80.3 亿个权重。"),
        ("Both are one half: 2.", "- 两者都是一半\n- 这是第二点"),
        ("Words.", "文字，[博客](https://b.cn){ hreflang=zh }。"),
        (
            "Words.",
            '文字。\n\n??? tip own "注"\n\n    `k_pe` 有 [64](b.md) 维。',
        ),
    ],
)
def test_each_language_may_say_it_in_its_own_way(english, chinese):
    both = f"# T {{ #t }}\n\n{english}", f"# T {{ #t }}\n\n{chinese}"
    assert parity.differences(*both) == []


def test_words_may_differ():
    other = (
        BEFORE.replace("Title", "标题")
        .replace("words", "文字")
        .replace("Inside", "里面")
        .replace("| a | b |", "| 甲 | 乙 |")
        .replace("15 million", "1500 万")
    )
    assert parity.differences(BEFORE, other) == []


def test_an_english_page_that_moved_on_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(
        parity, "twin", lambda stem, language: tmp_path / f"{language}.md"
    )
    monkeypatch.setattr(parity, "ROOT", tmp_path)
    en, zh = tmp_path / "en.md", tmp_path / "zh.md"
    en.write_text("---\ntitle: T\n---\n# T { #t }\n\nOne.\n")
    zh.write_text("---\ntitle: 题\n---\n# 题 { #t }\n\n一。\n")
    assert "make synced PAGE=page" in parity.check("page")[0]
    parity.mark_synced("page")
    assert parity.check("page") == []

    en.write_text(en.read_text().replace("One", "Two"))
    assert "make synced PAGE=page" in parity.check("page")[0]
    parity.mark_synced("page")
    assert parity.check("page") == []
    assert zh.read_text().count("synced:") == 1

    en.write_text(en.read_text() + "\nAlso 3.\n")
    with pytest.raises(ValueError, match="in #t: Chinese lacks the number 3"):
        parity.mark_synced("page")

    zh.unlink()
    assert parity.check("page") == ["zh.md is missing"]


def test_a_change_of_included_code_asks_for_both_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(
        parity, "twin", lambda stem, language: tmp_path / f"{language}.md"
    )
    for module in (parity, pages):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    options = pages._config().mdx_configs["pymdownx.snippets"]
    monkeypatch.setitem(options, "base_path", [str(tmp_path)])
    (tmp_path / "attnref").mkdir()
    code = tmp_path / "attnref" / "x.py"
    marks = "# --8<-- [start:f]\n{}\n# --8<-- [end:f]\n{}\n"
    code.write_text(marks.format("f = 1", "g = 1"))
    body = '# T { #t }\n\n```python\n--8<-- "attnref/x.py:f"\n```\n'
    for language in ("en", "zh"):
        path = tmp_path / f"{language}.md"
        path.write_text(f"---\ntitle: T\n---\n{body}")
    parity.mark_synced("page")

    code.write_text(marks.format("f = 1", "g = 2"))
    assert parity.check("page") == []
    code.write_text(marks.format("f = 2", "g = 2"))
    (why,) = parity.check("page")
    assert "page.md shows code that has changed, of attnref/x.py: " in why
    assert why.endswith("then run: make synced PAGE=page")
    parity.mark_synced("page")
    assert parity.check("page") == []

    zh = tmp_path / "zh.md"
    zh.write_text(zh.read_text() + "\n[a](b.md)\n")
    (why,) = parity.check("page")
    assert why.startswith("zh.md:6 and en.md:4: ")


def test_no_chinese_page_is_left_in_english():
    for path in markdown_files("zh"):
        body = body_of(path)
        letters = sum("一" <= c <= "鿿" for c in body)
        assert letters > 0.05 * len(body), path.name


def test_two_kinds_of_scale_have_two_chinese_words():
    """缩放系数 is that of the scores, 缩放因子 one of a quantised tensor."""
    pages = {stem: ROOT / f"docs/zh/{stem}.md" for stem in STEMS}
    texts = {
        **{stem: page.read_text("utf-8") for stem, page in pages.items()},
        **{
            path.stem: path.read_text("utf-8")
            for path in (ROOT / "attnref/judge").glob("*.diff")
        },
    }
    stored = re.compile(r"float8|FP8|int[48]|量化|weight_scale|字节|每块")
    wrong = [
        (stem, sentence)
        for stem, text in texts.items()
        for sentence in re.split(r"[。；\n]", text)
        if ("缩放系数" in sentence and stored.search(sentence))
        or ("缩放因子" in sentence and "float32 张量" in sentence)
    ]
    assert not wrong


# Words of the third column of `names` that are right elsewhere: a scale of a
# storage format, a cell of a figure, a head of keys beside one of values.
RIGHT_ELSEWHERE = {"格", "批量", "因子", "缩放因子", "前后两半", "分块"}
RIGHT_ELSEWHERE |= {"键头", "KV 头", "可以看"}
TRANSLATED = (
    r"、或者",
    r"宽 `",
    r"变粗",
    r"读提示词",
    r"键下",
    r"淡[成掉]",
    r"撤(?!销)",
    r"\d 层循环",
    r"(?:表示|=) ?可以看",
)


def chinese_texts():
    """Pages without front matter, and what programs and the site say."""
    for path in markdown_files("zh"):
        text = body_of(path)
        if path.stem == "conventions":
            text = re.sub(r"(?m)^    \|.*$", "", text)
        yield path, text
    named = "docs/zh/docstrings.yml README.zh.md attnref/words.txt"
    files = [ROOT / name for name in named.split()]
    files += (ROOT / "attnref/judge").rglob("*.t*t*")
    files += (ROOT / "sitekit").rglob("*.toml")
    yield from ((path, path.read_text("utf-8")) for path in files)


def met(pattern):
    return [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path, text in chinese_texts()
        for found in re.finditer(f".{{0,15}}{pattern}.{{0,15}}", text)
    ]


def test_chinese_has_one_word_for_one_thing():
    """The word of the second column of `names`, not one of the third."""
    page = (ROOT / "docs/zh/conventions.md").read_text("utf-8")
    rows = re.findall(r"(?m)^    \| .*? \| (.*?) \| (.*?) \|$", page)[2:]
    assert len(rows) > 20
    for _, others in rows:
        for word in re.split("、| / ", re.sub("（.*?）", "", others)):
            if word not in RIGHT_ELSEWHERE:
                assert met(f"(?<!也叫){word}") == []


@pytest.mark.parametrize("phrase", TRANSLATED)
def test_chinese_is_not_translated_word_by_word(phrase):
    assert met(phrase) == []


VERBS = (
    "计算 返回 生成 合并 判断 检查 取出 存入 记下 清空 回滚 换成 复制 恢复 重排"
    " 反量化 把 由 用 按 从 沿 对 给 逐块 接着"
)


def test_chinese_docstrings_of_functions_begin_with_a_verb():
    """As in English: a function does, a class is."""
    package = griffe.load(
        "attnref", search_paths=[ROOT], try_relative_path=False
    )
    lines = docstrings.chinese()
    functions, unlike = 0, []
    for place in api.places():
        definition = package[place.removeprefix("attnref.")]
        for item in (definition, *definition.members.values()):
            name = docstrings.name_of(item)
            if item.is_function and name in lines:
                functions += 1
                if not lines[name]["zh"].startswith(tuple(VERBS.split())):
                    unlike.append(name)
    assert functions > 100 and unlike == []


def test_chinese_docstrings_follow_the_english(tmp_path, monkeypatch):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "attnref", tmp_path / "attnref", ignore=ignored)
    table = shutil.copy(docstrings.FILE, tmp_path / "docstrings.yml")
    monkeypatch.setattr(docstrings, "ROOT", tmp_path)
    monkeypatch.setattr(docstrings, "FILE", table)

    def problems(path, old, new):
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, old
        path.write_text(text.replace(old, new), encoding="utf-8")
        return docstrings.check()

    code = tmp_path / "attnref/caches/kv_cache.py"
    where = "docstrings.yml: Cache.reset"
    old = "Forget all tokens and release the memory."
    new = "Forget all tokens of `rows`."
    assert problems(code, old, new) == [
        f"{where} now says {new!r}; bring zh in line"
    ]
    docstrings.mark_synced()
    unlike = f"{where} has other code or paragraphs in Chinese than in English"
    assert docstrings.check() == [unlike]
    line = docstrings.chinese()["Cache.reset"]["zh"]
    assert problems(table, f"zh: {line}", "zh: 清空 `rows` 的 token。") == []
    assert problems(table, "zh: 清空 `rows` 的 token。", f"zh: {new}") == [
        f"{where} says nothing in Chinese"
    ]
    old = new
    new = f"{old}\n\n        And more of them."
    assert problems(table, f"zh: {old}", "zh: 清空 `rows`。") == []
    assert problems(code, old, new) == [
        f"{where} now says {docstrings.prose(new)!r}; bring zh in line"
    ]
    docstrings.mark_synced()
    assert docstrings.check() == [unlike]


def test_only_the_chinese_pages_have_chinese_docstrings(site):
    def text(place):
        files = [*(site.folder / place / "api").rglob("index.html")]
        files.append(site.folder / place / "files/checks/index.html")
        page = " ".join(path.read_text("utf-8") for path in files)
        page = html.unescape(re.sub(r"<[^>]*>", "", page))
        return " ".join(page.split())

    english, chinese = text("."), text("zh")
    assert "Bases: Rule" in english and "基类：Rule" in chinese
    for name, line in docstrings.chinese().items():
        for en, zh in zip(
            *(x.split("\n\n") for x in line.values()), strict=True
        ):
            en, zh = en.replace("`", ""), zh.replace("`", "")
            assert en in english and en not in chinese, name
            assert zh in chinese and zh not in english, name


NO_PROSE = (
    r"[\d,]+(?: × [\d,]+)+|```.*?```|`[^`]*`|\]\([^)]*\)|<[^>]+>|\$[^$]*\$"
)
NUMBER = re.compile(r"(?<![\w.,#/-])(\d{1,3}(?:,\d{3})+|\d{4,})(?![\w,]*\d)")


@pytest.mark.parametrize("stem", STEMS)
def test_a_number_is_written_in_one_way_on_a_page(stem):
    """4,097 or 4097, in both languages; the sizes of matrices are apart."""
    written = defaultdict(set)
    for language in ("en", "zh"):
        text = body_of(ROOT / f"docs/{language}/{stem}.md")
        text = re.sub(NO_PROSE, "", text, flags=re.DOTALL)
        for number in NUMBER.findall(text):
            written[number.replace(",", "")].add(number)
    assert not [ways for ways in written.values() if len(ways) > 1]
