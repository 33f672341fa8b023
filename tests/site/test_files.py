"""Downloads: what they hold, that they run alone, and how pages lead there."""

import ast
import html
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from playwright.sync_api import expect

import attnref
from attnref.__main__ import main
from attnref.commands import copy
from attnref.words import LICENCE
from sitekit import CONFIGS, ROOT, files
from sitekit.adapter import BuildError, config_of
from sitekit.drawn.files import downloads
from sitekit.markdown import folds, pages
from tests.kit import sampled
from tests.kit.copies import ALONE, in_a_fresh_interpreter
from tests.kit.pages import PAGES, Reader, built

BLOCK = re.compile(
    r'<div id="([^"]+)" class="language-python highlight">'
    r'<span class="filename">(.*?)</span>(.*?)</div>',
    re.DOTALL,
)
BAR = re.compile(
    r'<div class="whole[ a-z]*" id="([^"]+)".*?</div>\n?'
    r"(?=<div id=|<div class=\"whole|<details cl)",
    re.S,
)
OTHER = ast.Import, ast.ImportFrom, ast.Expr
HREF = re.compile(r'href="([^"]+)"')
# Files in these folders have no download, as the page of all files says.
WITHOUT = re.compile("/(numbers|kernels)/")


@pytest.fixture(scope="module")
def folder(site):
    return site.folder / "files"


def test_a_download_is_what_attnref_copy_writes(folder, tmp_path):
    """By the very command that stands in its head; and no file is missing."""
    public = {f"{m.rpartition('.')[2]}.py" for m in copy.public().values()}
    plain = {path.stem: path.read_bytes() for path in folder.glob("plain/*")}
    assert plain == {s: path.read_bytes() for s, path in copy.plain().items()}
    names = {path.name for path in folder.glob("*.py")}
    assert names == public | {
        *("checks.py", "few.py", "heads.py", "inputs.py"),
        *("past.py", "recurrence.py"),
    }
    for name in public:
        head = ast.get_docstring(ast.parse((folder / name).read_text("utf-8")))
        command = " ".join(head.split()).partition("python -m attnref ")[2]
        written = tmp_path / name
        main([*command.split(), "-o", str(written)])
        assert written.read_bytes() == (folder / name).read_bytes(), name
    # It has no public names. All the same it says what it is.
    own, text = (
        (place / "checks.py").read_text(encoding="utf-8")
        for place in (ROOT / "attnref/core", folder)
    )
    head, *held = ast.parse(text).body
    assert list(map(ast.dump, held)) == [
        ast.dump(node) for node in ast.parse(own).body[1:]
    ]
    line = f"Cut from attnref {attnref.__version__}. {LICENCE}"
    assert line in ast.literal_eval(head.value).splitlines()
    assert "\n" * 4 not in text


def test_what_is_no_copy_runs_with_its_examples_where_attnref_is_not(folder):
    """The others are copies, which tests/commands/test_copy.py runs."""
    path = folder / "checks.py"
    tried = json.loads(in_a_fresh_interpreter(folder, ALONE, path))
    assert tried["checks"] > 1


def test_the_wheel_of_the_site_is_installed_and_imported(site, tmp_path):
    """As the pages say, which lead to it."""
    name = f"attnref-{attnref.__version__}-py3-none-any.whl"
    for page in [built(site, path) for path in PAGES]:
        text = page.read_text(encoding="utf-8")
        assert "VERSION" not in text, page
        if page.parent.name in ("project", "files"):
            (link,) = re.findall(r'href="([^"]+\.whl)" download>', text)
            wheel, _ = target(site, page, link)
            plain = re.sub("<[^>]+>", "", text)
            assert f"\npip install {name}\n" in plain
    assert wheel == site.folder / "files" / name
    pip = "pip install --quiet --no-deps --no-index --no-compile --target"
    subprocess.run(
        [sys.executable, "-m", *pip.split(), str(tmp_path), str(wheel)],
        check=True,
    )
    code = """if True:
        import sys
        sys.path.insert(0, ".")
        import attnref
        print(attnref.GroupedQueryAttention, attnref.__file__)
    """
    output = in_a_fresh_interpreter(tmp_path, code)
    assert "attnref.layers.gqa.Grouped" in output and str(tmp_path) in output


PROGRAMS = """
import pathlib, sys, torch

class Blocked:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("attnref", "sitekit", "tests"):
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
sys.path.insert(0, ".")
torch.set_num_threads(1)
for page in sys.argv[1:]:
    torch.manual_seed(0)
    exec(compile(pathlib.Path(page).read_text("utf-8"), page, "exec"), {})
"""


def with_downloads(program, own, there, more):
    """The program of a page as the page of all files says: for the package,
    the file; its own first, then another that is there, or else one more."""
    lines = program.splitlines()
    for node in reversed(ast.parse(program).body):
        if not isinstance(node, ast.ImportFrom) or (
            node.module.split(".")[0] != "attnref"
        ):
            continue
        if node.module in ("attnref.plain.mha", "attnref.plain.mqa"):
            stem = node.module.rpartition(".")[2]
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace(node.module, f"plain_{stem}")
            more.add(f"plain_{stem}")
            continue
        new = []
        for alias in node.names:
            holds = [
                stem
                for stem, names in {own: there[own], **there}.items()
                if alias.name in names
            ]
            module = node.module.rpartition(".")[2]
            if not holds and node.module == "attnref":
                module = copy.public()[alias.name].rpartition(".")[2]
            if not holds:
                more.add(module)
            new.append(f"from {(holds or [module])[0]} import {alias.name}")
        lines[node.lineno - 1 : node.end_lineno] = new
    return "\n".join(lines)


def test_three_downloads_in_an_empty_project_run_as_their_pages_say(
    site, folder, tmp_path
):
    three = ("gqa", "kv_cache", "mla")
    there, more = {}, set()
    for stem in three:
        shutil.copy(folder / f"{stem}.py", tmp_path)
        text = (tmp_path / f"{stem}.py").read_text(encoding="utf-8")
        there[stem] = {
            node.name for node in ast.parse(text).body if hasattr(node, "name")
        }
    for stem in three:
        (path,) = (
            p
            for p in PAGES[: len(PAGES) // 2]
            if p.stem == stem.replace("_", "-")
        )
        program = "\n".join(Reader(built(site, path)).blocks)
        program = with_downloads(program, stem, there, more)
        (tmp_path / f"{stem}.txt").write_text(program, encoding="utf-8")
    # What else their blocks import: each has its own download.
    plain = {"plain_mha", "plain_mqa"}
    assert more == {"masks", "mha", "rope", "sdpa"} | plain
    for stem in more - plain:
        shutil.copy(folder / f"{stem}.py", tmp_path)
    for stem in plain:
        form = ROOT / f"attnref/plain/{stem.removeprefix('plain_')}.py"
        shutil.copy(form, tmp_path / f"{stem}.py")
    in_a_fresh_interpreter(
        tmp_path, PROGRAMS, *(f"{stem}.txt" for stem in three)
    )


def target(site, page, link):
    """The file that a link of a built page leads to, and the id in it."""
    here = "https://x/" + page.relative_to(site.folder).as_posix()
    url = urlsplit(urljoin(here, link))
    path = site.folder / unquote(url.path).removeprefix("/")
    return path / "index.html" if path.is_dir() else path, unquote(url.fragment)


def test_every_caption_leads_to_the_file_and_every_bar_to_what_it_holds(site):
    """And each of its names to a block that defines it."""
    blocks, texts = {}, {}
    for path in PAGES:
        page = built(site, path)
        texts[page] = page.read_text(encoding="utf-8")
        for id, caption, code in BLOCK.findall(texts[page]):
            assert (page, id) not in blocks
            plain = html.unescape(re.sub("<[^>]+>", "", code))
            blocks[page, id] = re.sub("<[^>]+>", "", caption), plain
            leads, at = target(site, page, *HREF.findall(caption))
            if WITHOUT.search(caption):
                assert leads.parent.name == "files" and at == "data"
            else:
                name = files.name_in(blocks[page, id][0])
                assert leads == site.folder / "files" / name
                title = re.search(r' title="([^"]+)" download>', caption)[1]
                assert title.startswith(leads.name) and len(title) > 15
    assert len(blocks) > 120
    full = defaultdict(int)
    other_of = {
        whole.name: other.name
        for whole in files.downloads().values()
        if (other := files.other_form(whole))
    }
    for path in PAGES:
        page = built(site, path)
        shown = [s.source for s in files.blocks_of(path)]
        bars = {m[1]: m[0] for m in BAR.finditer(texts[page])}
        assert list(bars) == [
            files.name_in(s)
            for s in dict.fromkeys(shown)
            if not WITHOUT.search(s)
        ]
        for name, bar in bars.items():
            text = files.texts()[name]
            elsewhere = 'class="whole elsewhere"' in bar
            # One control on a page: its plain form, above, leads to the full.
            forms = [name, other_of.get(name)]
            if elsewhere or ("plain/" not in name and forms[1] in bars):
                forms = []
            controls = re.findall(r'<a class="download" href="([^"]+)"', bar)
            assert [target(site, page, link) for link in controls] == [
                (site.folder / "files" / form, "") for form in forms if form
            ]
            assert (' class="take" ' in bar) == bool(forms)
            for form in filter(None, forms):
                lines = len(files.texts()[form].splitlines())
                assert f"{lines} " in bar or f"{lines:,} " in bar
            if elsewhere:
                (back,) = (x for x in HREF.findall(bar) if "#" in x)
                leads, at = target(site, page, back)
                assert at == name and f'id="{name}"' in texts[leads]
                continue
            full[name] += 1
            if "plain/" in name:
                continue
            named = re.findall(r'<a href="([^"]+)"><code>(\w+)</code></a>', bar)
            tree = ast.parse(text).body
            held = [n for n in tree if not isinstance(n, OTHER)]
            if len(held) == 1:  # its statement says all of it
                assert not named
                continue
            assert len(held) == len(named) and f"{len(named)} " in bar
            public = {getattr(n, "name", "_") for n in held}
            public = {name for name in public if name[0] != "_"}
            assert public <= {name for _, name in named}
            for link, name in named:
                _, code = blocks[target(site, page, link)]
                assert re.search(rf"(?m)^(class |def )?{name}\b", code), link
    assert set(full.values()) == {2}
    assert full.keys() >= {name for name in files.texts() if "/" not in name}


def test_under_the_imports_stand_the_files_that_are_imported(site):
    for stem, language in (("layers/mla", "en"), ("layers/gqa", "zh")):
        page = built(site, ROOT / "docs" / language / f"{stem}.md")
        text = page.read_text(encoding="utf-8")
        below = text.partition(f'id="{Path(stem).name}.py:imports"')[2]
        line = below.partition('<div class="imported">')[2].partition("</div>")
        links = re.findall(r'href="([^"]+)"><code>(.*?)\.py<', line[0])
        source = (ROOT / f"attnref/{stem}.py").read_text(encoding="utf-8")
        want = re.findall(r"^from attnref\.([\w.]+) import", source, re.M)
        assert [file.replace("/", ".") for _, file in links] == want
        for link, file in links:
            leads, at = target(site, page, link)
            there = leads.read_text(encoding="utf-8")
            assert at == Path(f"{file}.py").name and f'id="{at}"' in there
            assert f">attnref/{file}.py</a>" in there


def test_the_page_of_all_files_lists_them(site):
    rows = list(downloads())
    forms = [form for row in rows for form in row[:2] if form]
    listed = {form[0].rpartition(" ")[0]: form for form in forms}
    assert listed.keys() == {
        f"[{Path(name).name}](files:{name})" for name in files.texts()
    }
    for language in ("en", "zh"):
        page = built(site, ROOT / "docs" / language / "files.md")
        text = page.read_text(encoding="utf-8")
        table = re.findall(r"<tr><td[^>]*>(.*?)</tr>", text, re.DOTALL)
        assert len(table) == len(rows)
        for row in table:
            leads = [target(site, page, x) for x in HREF.findall(row)]
            shown = [file for file, at in leads if not at]
            for home, bar in [x for x in leads if x[1]]:
                assert f'id="{bar}"' in home.read_text(encoding="utf-8")
                assert site.folder / "files" / bar in shown
            for file in shown:
                name = file.relative_to(site.folder / "files").as_posix()
                first, *names = listed[f"[{file.name}](files:{name})"]
                code = file.read_text(encoding="utf-8")
                assert first.endswith(f") {len(code.splitlines())}")
                for word in re.findall(
                    r"\w+", " ".join(names).replace("\\", "")
                ):
                    assert re.search(rf"(?m)^(class|def) {word}\b", code)
    for whole in files.downloads().values():
        other = files.other_form(whole)
        if other and "plain/" in whole.name:
            assert files.other_form(other) is whole


BLOCKS = '```python title="{}"\n--8<-- "{}:{}"\n```\n'
GQA, MASKS = "attnref/layers/gqa.py", "attnref/core/masks.py"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            BLOCKS.format(GQA, MASKS, "rules"),
            f"docs/en/x.md:3: the block is titled {GQA} and includes {MASKS}; "
            f"give it the title {MASKS}",
        ),
        (
            BLOCKS.format(*["attnref/layers/gqua.py"] * 2, "module"),
            "docs/en/x.md:3: there is no attnref/layers/gqua.py; did you mean "
            "'attnref/layers/gqa.py'",
        ),
        (
            BLOCKS.format(GQA, GQA, "modul"),
            f"docs/en/x.md:3: {GQA} has no 'modul'; did you mean 'module'?",
        ),
    ],
)
def test_a_block_of_nothing_stops_the_build_with_its_place(
    text, message, tmp_path, monkeypatch
):
    page = tmp_path / "docs" / "en" / "x.md"
    page.parent.mkdir(parents=True)
    page.write_text(f"# X\n\n{text}", encoding="utf-8")
    (tmp_path / "attnref").symlink_to(ROOT / "attnref")
    monkeypatch.setattr(files, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    with pytest.raises(BuildError, match=re.escape(message)):
        files.blocks_of(page)


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("files:gqua.py", "there is no files:gqua.py; did you mean 'gqa.py'"),
        ("page:layers/gqua", "no page:layers/gqua; did you mean 'layers/gqa'"),
    ],
)
def test_a_link_to_nothing_stops_the_build_with_its_place(link, message):
    path = ROOT / "docs/zh/layers/gqa.md"
    urls = {pages.stem_of(p): pages.address_of(p) for p in PAGES}
    html = '<a href="{}"></a>'
    site = files.Site(files.CodeIndex(), urls, {}, "")
    blank = ROOT / "docs/zh/conventions.md"
    right = files.add_links(html.format("page:layers/gqa#cost"), blank, site)
    title = "分组查询注意力（GQA）与 MQA"
    assert right == f'<a href="../layers/gqa/#cost">{title}</a>'
    with pytest.raises(BuildError, match=re.escape(message)) as stopped:
        files.add_links(html.format(link), blank, site)
    assert str(stopped.value).startswith("docs/zh/conventions.md: ")
    with pytest.raises(BuildError, match="came out as blocks of"):
        files.add_links("", path, site)


FOLD = """??? note "A whole, {{lines}} lines"

    Words.

    ```python title="{0}"
    --8<-- "{0}:softmax"
    --8<-- "{0}:widen"
    ```

    ??? note "{{lines}} within"

        ```bash
        ls
        ```
"""


def test_a_fold_says_its_lines_and_stands_below_the_bar_of_its_first_file():
    config, softmax = config_of(CONFIGS["en"]), "attnref/core/softmax.py"
    page = folds.count_lines(FOLD.format(softmax), config)
    lines = page.splitlines()
    code = pages.python_blocks(page)[0]
    assert lines[0] == f'??? file "A whole, {code.count(chr(10)) + 1} lines"'
    assert lines[9] == '    ??? file "1 within"'
    with pytest.raises(BuildError, match="holds no block of code"):
        fold = '??? note "no lines, {lines}"\n\n    Words.\n'
        folds.count_lines(fold, config)
    block = '<div class="language-python highlight"><span class="filename">'
    inner = f"{block}{softmax}</span></div>"
    inner += inner.replace("softmax.py", "merge.py")
    html = f"<p>.</p><details>\n{inner}</details>"
    urls = {pages.stem_of(p): pages.address_of(p) for p in PAGES}
    words = config.extra["words"]["files"]
    site = files.Site(files.CodeIndex(), urls, words, "")
    here = files.Links(ROOT / "docs/en/index.md", site)
    parts = files._with_bars(html, here).split("<details>\n" + block)
    bar = r'<div class="whole[^"]*" id="([^"]+)"'
    bars = [re.findall(bar, part) for part in parts]
    assert bars == [["softmax.py"], ["merge.py"]]


def test_a_link_into_a_fold_and_a_result_of_the_search_open_it(visit, address):
    for script in (True, False):
        for at in ('[id="gqa.py:module"]', '[id="sharing.2"] + *'):
            to = f"{address}layers/gqa/#{at[5:].partition(chr(34))[0]}"
            page = visit(to, java_script_enabled=script)
            expect(page.locator(at)).to_be_visible()
    page = visit(f"{address}layers/gqa/?h=repeat_kv#sharing")
    expect(page.get_by_text("repeat_kv", exact=True)).to_be_visible()
    assert page.locator("article details[open]").count() == 1
    page.locator("summary", has_text="How the query heads").click()
    assert page.url.endswith("#sharing.2"), "what one opens has an address"
    page = visit(f"{address}layers/gqa/?h=heads#sharing")
    assert page.locator("article details[open]").count() == 0, "it is in sight"


@pytest.mark.parametrize("language", sampled(["en", "zh"], ["en"]))
def test_the_button_copies_the_whole_file(visit, address, folder, language):
    root, done = {"en": ("", "Copied"), "zh": ("zh/", "已复制")}[language]
    page = visit(
        f"{address}{root}layers/gqa/",
        permissions=["clipboard-read", "clipboard-write"],
    )
    button = page.locator(".whole button.take").first
    button.press("Enter")
    expect(button).to_have_attribute("aria-label", done)
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.encode() == (folder / "plain" / "gqa.py").read_bytes()
    assert page.faults == []


def test_where_nothing_can_be_copied_the_file_is_downloaded(
    visit, address, folder
):
    """Without a clipboard by the button, without JavaScript by the link."""
    want = (folder / "plain" / "gqa.py").read_bytes()
    page = visit(f"{address}layers/gqa/")
    page.evaluate("delete Clipboard.prototype.write")
    without = visit(f"{address}layers/gqa/", java_script_enabled=False)
    expect(without.locator(".whole .take").first).to_be_hidden()
    for open_page, way in ((page, ".take"), (without, ".download")):
        with open_page.expect_download() as download:
            open_page.locator(f".whole {way}").first.click()
        assert download.value.suggested_filename == "gqa.py"
        assert Path(download.value.path()).read_bytes() == want
    contents = without.locator(".whole ul").first
    expect(contents).to_be_hidden()
    without.locator(".whole summary").first.click()
    expect(contents).to_be_visible()
