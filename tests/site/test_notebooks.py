"""The notebook of each page, as the built site has it: it says what the page
says, and runs where nothing of this repository is."""

import json
import re
import subprocess
import sys

import jinja2
import nbformat
import pytest

import attnref
from sitekit import CONFIGS, ROOT, adapter
from sitekit.markdown import notebooks, pages
from sitekit.released import released
from tests.kit import sampled, words
from tests.kit.pages import Reader, built

PAGES = [
    path
    for path in pages.markdown_files("en") + pages.markdown_files("zh")
    if "```python" in path.read_text(encoding="utf-8")
    and pages.front_matter(path).get("notebook", True)
]
ENGLISH = [path for path in PAGES if path.is_relative_to(ROOT / "docs" / "en")]


def each(paths):
    return pytest.mark.parametrize(
        "path", paths, ids=lambda p: str(p.relative_to(ROOT / "docs"))
    )


def place(site, path):
    root = path.relative_to(ROOT / "docs").parts[0].replace("en", "")
    return site.folder / root / "notebooks" / f"{pages.stem_of(path)}.ipynb"


def cells(site, path, kind):
    book = nbformat.read(place(site, path), as_version=4)
    return [cell.source for cell in book.cells if cell.cell_type == kind]


@pytest.mark.whole
def test_each_page_with_python_has_a_notebook_and_no_other_has(site):
    there = set(site.folder.rglob("*.ipynb"))
    models = {path for path in there if path.parent.name == "released"}
    assert len(models) == len(CONFIGS) * len(released.released())
    assert there - models == {place(site, path) for path in PAGES}


@each(PAGES)
def test_a_notebook_is_valid_and_opened_from_its_page(site, path):
    text = place(site, path).read_text(encoding="utf-8")
    book = nbformat.reads(text, as_version=4)
    nbformat.validate(book)
    assert (book.nbformat, book.nbformat_minor) == (4, 5)
    assert nbformat.writes(book) + "\n" == text  # saved unchanged by Jupyter
    page = built(site, path)
    ends = [x for x in Reader(page).links if x.endswith(".ipynb")]
    (link,) = (x for x in ends if not x.startswith("https:"))
    assert (page.parent / link).resolve() == place(site, path).resolve()
    assert f'<a href="{link}" download>' in page.read_text(encoding="utf-8")


@each(ENGLISH)
def test_the_code_of_a_notebook_is_that_of_its_page(site, path):
    """And, before it, one cell that makes attnref importable. That of the
    Chinese page has the same."""
    code = cells(site, path, "code")
    blocks = [b[:-1] for b in pages.python_blocks(pages.body_of(path))]
    imports = bool(
        re.search(r"(?m)^ *(from|import) attnref", "\n".join(blocks))
    )
    assert code[imports:] == blocks
    assert code[:imports] == [x for x in code if x.startswith("def _import_a")]
    stem = pages.stem_of(path)
    (twin,) = (p for p in PAGES if p != path and pages.stem_of(p) == stem)
    assert code == cells(site, twin, "code")


@each(PAGES)
def test_a_notebook_says_what_its_page_says(site, path):
    """Read as CommonMark, by a parser that is not the site's. Only the figures
    themselves are not compared."""
    title, about, *others = cells(site, path, "markdown")
    read = words.read("\n\n".join([title, *others]))
    assert words.of_html(read) == words.of_page(built(site, path))
    ids = re.findall(r'<a id="([\w-]+)">', read)
    for link in re.findall(r'<a href="([^"]+)"', read):
        assert link.startswith("https://") or link.removeprefix("#") in ids
    packages = re.search(r"`pip install (.+?)`", about)[1].split()
    program = pages.program(pages.body_of(path))
    for name in ("transformers", "tokenizers", "peft"):
        used = re.search(rf"(?m)^ *(from|import) {name}\b", program)
        assert (name in packages) == bool(used)


@pytest.mark.parametrize(
    "text", ["**“键”**和值", "键**（不是值）**", "`k`**`v`**键"]
)
def test_bold_chinese_is_bold_beside_punctuation(text):
    """As on the page, where Python-Markdown reads it."""
    assert "**" in words.COMMONMARK.render(text)
    read = words.COMMONMARK.render(notebooks.common(text, set(), str))
    assert "**" not in read
    assert words.of_html(read) == words.of_html(pages.render(text).html)


# Reads the paths of notebooks, and runs the cells of each in a process and a
# folder of its own. torch is imported once, with what its optimizers load.
RUNNER = """
import contextlib, io, json, os, pathlib, sys, tempfile, traceback, warnings
from importlib.machinery import PathFinder

import torch
import torch._dynamo

torch.set_num_threads(1)
ours = ("attnref", "sitekit", "tests")
sys.path[:] = [
    p for p in sys.path
    if not any(pathlib.Path(p, name).is_dir() for name in ours)
]

def run(book, folder, version):
    said = []
    os.chdir(folder / "empty")
    tempfile.tempdir = str(folder)
    assert not any(PathFinder.find_spec(name) for name in ours)
    space = {"__name__": "__main__"}
    warnings.simplefilter("error")
    for cell in json.loads(book.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as told:
                code = "".join(cell["source"])
                exec(compile(code, cell["id"], "exec"), space)
            said.append(told.getvalue())
    if "attnref" in sys.modules:
        place = pathlib.Path(sys.modules["attnref"].__file__).parent
        assert place.is_relative_to(folder), place
        how = "written by this notebook"
        assert said[0] == f"attnref {version}, {how}: {place}\\n", said[0]

for line in sys.stdin:
    *places, version = json.loads(line)
    book, folder = map(pathlib.Path, places)
    child = os.fork()
    if child == 0:
        try:
            run(book, folder, version)
            said = ""
        except BaseException:
            said = traceback.format_exc()
        (folder / "said").write_text(said, encoding="utf-8")
        os._exit(0)
    os.waitpid(child, 0)
    print("done", flush=True)
"""


# The core alone; a layer with its caches; what needs other packages. The blocks
# are those of the pages, all of which run: here it is the first cell that
# differs, which writes the files of attnref.
RUN_IN_TEST = ("softmax", "mla", "transformers")


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER],
        cwd=tmp_path_factory.mktemp("runner"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.stdin.close()


@pytest.mark.parametrize(
    "path",
    # Known answers are written by an attnref that is installed, as it says.
    sampled(
        [path for path in ENGLISH if path.stem != "known-answers"],
        lambda path: path.stem in RUN_IN_TEST,
    ),
    ids=pages.stem_of,
)
def test_a_notebook_runs_without_attnref(site, runner, path, tmp_path):
    (tmp_path / "empty").mkdir()
    version = attnref.__version__
    request = json.dumps([str(place(site, path)), str(tmp_path), version])
    print(request, file=runner.stdin, flush=True)
    assert runner.stdout.readline() == "done\n"
    assert (tmp_path / "said").read_text(encoding="utf-8") == ""


@pytest.mark.parametrize("id", ["granite-4.0-h-350m", "smollm3-3b"])
def test_a_notebook_of_a_model_is_its_file_and_runs(site, runner, tmp_path, id):
    path = ROOT / f"docs/en/{released.FOLDER}/{id}.md"
    code = cells(site, path, "code")
    # Without the lines that make a program of the file.
    program = "\n\n\nif __name__ == "
    text, found, _ = released.text_of(id).partition(program)
    assert found and code[0] == text
    chinese = ROOT / f"docs/zh/{released.FOLDER}/{id}.md"
    assert code == cells(site, chinese, "code")
    test_a_notebook_runs_without_attnref(site, runner, path, tmp_path)


def test_a_notebook_says_which_attnref_it_uses(site, capsys, monkeypatch):
    """An installed one; one of another version is used too, with a warning."""
    first = cells(site, ROOT / "docs/en/layers/gqa.md", "code")[0]
    output = f"{attnref.__version__}, installed: {ROOT / 'attnref'}\n"
    exec(first, {})
    assert capsys.readouterr().out == f"attnref {output}"
    monkeypatch.setattr(attnref, "__version__", "9.8.7")
    warned = f"this notebook was made for attnref {output.partition(',')[0]}"
    with pytest.warns(UserWarning, match=re.escape(warned)):
        exec(first, {})
    output = capsys.readouterr().out
    assert output.startswith("attnref 9.8.7, installed: ")
    assert output.count("\n") == 1


def test_a_notebook_opens_in_colab_where_its_host_is_github():
    """From the branch into which the workflow puts what stands on the site."""
    loader = jinja2.FileSystemLoader(ROOT / "overrides" / "partials")
    env = jinja2.Environment(loader=loader)
    env.filters["url"] = str
    page = {
        "meta": {"notebook": "notebooks/layers/gqa.ipynb"},
        "file": {"src_uri": "layers/gqa.md"},
    }

    def links(language, repository):
        config = adapter.config_of(CONFIGS[language])
        config.extra["repository"] = repository
        html = env.get_template("source-file.html").render(
            config=config, page=page
        )
        return re.findall(r'href="([^"]*colab[^"]*)"', html)

    base = "https://colab.research.google.com/github/some/one/blob"
    for language, root in (("en", ""), ("zh", "zh/")):
        urls = links(language, "https://github.com/some/one/")
        assert urls == [f"{base}/notebooks/{root}{page['meta']['notebook']}"]
        assert links(language, "https://example.org/some/one") == []
        assert links(language, "") == []
    workflow = (ROOT / ".github/workflows/pages.yml").read_text("utf-8")
    assert "path: site/**/*.ipynb" in workflow
    assert "git push --force origin notebooks" in workflow
