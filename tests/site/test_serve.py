"""`make serve`: both languages on one address, and an edit costs what it
changes. That is counted: pages rendered, as the build itself says, and files
opened, as Python's audit events do. No test here looks at a clock, but for
DEADLINE, which is ten times what a first build takes and ends what hangs."""

import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections import Counter
from threading import Thread

import pytest

from sitekit import CONFIGS, ROOT, adapter, depends
from sitekit.markdown.pages import body_of, front_matter, markdown_files
from sitekit.nav import name_of
from sitekit.released.released import released
from tests.kit.site import MKDOCS, copy_of_the_sources, environment

DEADLINE = 600
PAGES = len(markdown_files("en"))
MADE = PAGES + len(released())  # those of released models stand in no file
# What mkdocstrings makes of an API page goes into other files of a build.
API = len([*(ROOT / "docs/en/api").glob("*.md")])
# Asked for before the site is built: pages and a style sheet, again when the
# build has come past some of them.
EARLY = 4 * ("", "caches/kv-cache/", "core/masks/", "assets/attnref.css")
# Python imports a module of this name before anything else.
AUDIT = """
import os, sys

def heard(event, arguments):
    if event == "open" and str(arguments[0]).endswith(".md"):
        line = f"{os.getpid()} {arguments[0]}\\n".encode()
        os.write(LOG, line)

LOG = os.open(os.environ["OPENED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(heard)
"""


def wait(done, why):
    deadline = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < deadline, why
        time.sleep(0.05)


def text_at(address):
    with urllib.request.urlopen(address, timeout=DEADLINE) as answer:
        # Each answer has a number of its own.
        return re.sub(r"livereload\(.*?\)", "", answer.read().decode())


class Served:
    """A server over a copy of the sources, started as it is typed."""

    def __init__(self, folder):
        self.source = copy_of_the_sources(folder)
        self.log, self.opened = folder / "log", folder / "opened"
        (folder / "audit").mkdir()
        (folder / "audit" / "sitecustomize.py").write_text(AUDIT, "utf-8")
        path = f"{folder / 'audit'}{os.pathsep}{self.source}"
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            place = f"127.0.0.1:{s.getsockname()[1]}"
        self.base = f"http://{place}/"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [*MKDOCS, "serve", "--dev-addr", place],
                cwd=self.source,
                env=environment(PYTHONPATH=path, OPENED=str(self.opened)),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Started in the background, a shell's children ignore Ctrl-C.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def text(self):
        return self.log.read_text("utf-8")

    def said(self, text, times=1):
        def done():
            assert self.process.poll() is None, self.text()
            return self.text().count(text) >= times

        wait(done, f"{text!r} was never said: {self.text()}")

    def rendered(self):
        """English and Chinese pages, in each build so far."""
        text = self.text()
        english, chinese = (
            map(int, re.findall(rf"Rendered (\d+) of \d+ {name} ", text))
            for name in ("English", "Chinese")
        )
        return [*zip(english, chinese, strict=True)]

    def reads(self):
        """How often each process has opened each page so far."""
        lines = self.opened.read_text("utf-8").splitlines()
        return Counter(line for line in lines if "docs/" in line)

    def get(self, path):
        return text_at(self.base + path)

    def read(self, file):
        return (self.source / file).read_text("utf-8")

    def write(self, file, text):
        """In one step, so that no build sees half of it."""
        new = self.source / "new text"
        new.write_text(text, encoding="utf-8")
        os.replace(new, self.source / file)

    def edit(self, file, text):
        """How many English and Chinese pages the build after it renders."""
        before = len(self.rendered())
        self.write(file, text)
        self.said(" Chinese pages", before + 1)
        return self.rendered()[before]

    def restore(self, texts):
        """Edits undone: what is served is what the first build made. The first
        build after several may see some of them alone."""
        for file, text in texts.items():
            self.write(file, text)
        wait(lambda: self.everything() == self.first, "it is another site")

    def everything(self):
        """Pages with figures, links and objects of the API, and what is
        found."""
        names = (
            "core/sdpa/",
            "layers/absorption/",
            "api/",
            "api/layers/",
            "search/entries.js",
            "notebooks/core/sdpa.ipynb",
        )
        return {
            half + name: self.get(half + name)
            for half in ("", "zh/")
            for name in names
        }

    def end(self, how):
        """Tell the server to end: nothing of it goes on."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(DEADLINE)

        def gone():
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return True
            return False

        try:
            wait(gone, "a process of the server goes on without it")
        except AssertionError:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Stopped as by Ctrl-C."""
    served = Served(tmp_path_factory.mktemp("serve"))
    try:
        served.said("answers")
        served.early = [served.get(path) for path in EARLY]
        served.said("Serving on")
        served.first = served.everything()
        yield served
    finally:
        served.end(signal.SIGINT)
    assert "WARNING" not in served.text()
    assert "Traceback" not in served.text()


def test_a_server_that_is_killed_leaves_no_process(tmp_path):
    """As soon as it has one beside it, which is before anything is built."""
    served = Served(tmp_path)
    served.said("Cleaning site directory")
    served.end(signal.SIGTERM)


def test_a_page_asked_for_while_the_site_is_first_built_is_made_next(tmp_path):
    """Whole, with the names of pages that are yet to be made around it. The API
    page waits for all others."""
    server = adapter.Server(None, "127.0.0.1", 0, str(tmp_path))
    address = f"http://127.0.0.1:{server.server_port}/numbers/compute/"
    texts, rendered = [], []
    reader = Thread(target=lambda: texts.append(text_at(address)), daemon=True)
    reader.start()
    wait(lambda: adapter._asked, "nobody asks")
    (asked,) = adapter._asked

    def answer():
        rendered.append(adapter.count_of("pages of en"))
        asked.answered.set_result(asked.answer())
        raise StopAsyncIteration  # the build has done enough

    api = asked._replace(place="api/index.html")
    adapter._asked[:] = [api, asked._replace(answer=answer)]
    with pytest.raises(StopAsyncIteration):
        adapter.build_site(CONFIGS["en"], site_dir=str(tmp_path))
    reader.join(DEADLINE)
    server.shutdown()
    assert rendered == [1] and adapter._asked == [api]
    adapter._asked.clear()
    others = [p for p in markdown_files("en") if p.stem != "index"]
    names = {name_of(front_matter(path)["title"]) for path in others}
    assert {name for name in names if name not in texts[0]} == set()


def test_a_page_waits_again_if_a_build_began_and_ended_meanwhile(tmp_path):
    """Its half is taken away by that build, and put back after it."""
    server = adapter.Server(None, "127.0.0.1", 0, str(tmp_path))
    server._built = True
    page, waited = tmp_path / "zh" / "index.html", []

    def wait():
        waited.append(page)
        if len(waited) == 1:
            server._wanted_epoch = server._visible_epoch = 1 + len(waited)
        else:
            page.parent.mkdir()
            page.write_text("<body>here</body>")

    server.waits["zh/"] = wait
    text = text_at(f"http://127.0.0.1:{server.server_port}/zh/")
    server.shutdown()
    assert "here" in text and len(waited) == 2


@pytest.mark.audit
def test_what_is_answered_early_is_what_is_answered_later(served):
    for path, text in zip(EARLY, served.early, strict=True):
        assert served.get(path) == text, path


@pytest.mark.audit
def test_both_languages_are_served_and_each_page_is_opened_once(served):
    page = served.get("core/masks/")
    assert '<html lang="en"' in page
    assert '<html lang="zh-CN"' in served.get("zh/core/masks/")
    assert re.search(r'class="language" href="[^"]*zh/core/masks/"', page)
    assert served.rendered() == [(MADE, MADE)]
    reads = served.reads()
    assert len(reads) >= 2 * PAGES
    assert set(reads.values()) == {1}, reads.most_common(3)


@pytest.mark.audit
def test_an_edit_of_a_page_costs_that_page(served):
    """An English one, then a Chinese one, then both at once, undone."""
    english, chinese = (f"docs/{lang}/core/sdpa.md" for lang in ("en", "zh"))
    texts = {file: served.read(file) for file in (english, chinese)}
    for file, word, path, cost in (
        (english, "Every token has", "core/sdpa/", (1 + API, API)),
        (chinese, "每个 token 有", "zh/core/sdpa/", (API, 1 + API)),
    ):
        before, new = served.reads(), texts[file].replace(word, "SEEN", 1)
        assert served.edit(file, new) == cost
        assert "SEEN" in served.get(path)
        # By the English build and by the Chinese one.
        opened = [line.split(" ", 1) for line in served.reads() - before]
        assert {name.endswith(file) for _, name in opened} == {True}
        assert len(opened) == len({pid for pid, _ in opened}) <= 2
    served.restore(texts)


@pytest.mark.audit
def test_an_edit_of_code_costs_the_pages_that_show_it(served):
    """In both languages, and with all that pages draw by it. What is broken is
    told in a line, and mended, all is as a first build makes it."""
    files = ("attnref/layers/cross.py", "docs/en/core/softmax.md")
    code, page, drawing = *files, "sitekit/drawing/svg.py"
    texts = {file: served.read(file) for file in (code, page, drawing)}
    # What Emacs puts beside a file that is being edited: it leads nowhere.
    lock = served.source / "attnref" / "layers" / ".#cross.py"
    lock.symlink_to("someone@somewhere.1")
    word = "Every query may attend"
    assert word in texts[code]
    english, chinese = served.edit(code, texts[code].replace(word, "SEEN"))
    for path in ("layers/cross/", "zh/layers/cross/", "files/cross.py"):
        assert "SEEN" in served.get(path)
    assert english == chinese
    assert 1 + API < english < PAGES / 2
    # A fence that draws nothing, then what draws, which all pages need.
    begin = "table: exp_range"
    assert begin in texts[page]
    served.write(page, texts[page].replace(begin, "table: range", 1))
    line = texts[page][: texts[page].index("```table")].count("\n") + 1
    served.said(f"{page}:{line}: the fence 'table': there is no 'range'")
    served.said("until build errors are resolved")
    served.write(drawing, texts[drawing].replace('role="img"', "{oops}"))
    served.said("until build errors are resolved", 2)
    lock.unlink()
    served.restore(texts)
    # Of Chinese pages, the builds whose English half broke rendered some.
    assert MADE in [english for english, _ in served.rendered()[2:]]


def test_a_page_depends_on_the_code_that_it_shows_and_draws_with():
    """So much of it is rendered again after an edit: see the tests above."""

    def files(stem):
        path = ROOT / f"docs/en/{stem}.md"
        return {file for file, _ in depends.key(f"{stem}.md", body_of(path))}

    cross = ROOT / "attnref/layers/cross.py"
    assert cross in files("layers/cross") and cross not in files("layers/mha")
    assert ROOT / "tests/reference/layers/test_gqa.py" in files("layers/gqa")
    assert ROOT / "sitekit/drawn/softmax.py" in files("core/softmax")
    assert ROOT / "attnref/released/specs.json" in files("numbers/memory")
    api = body_of(ROOT / "docs/en/api/core.md")
    assert depends.key("api/core.md", api) != depends.key("api/core.md", api)
