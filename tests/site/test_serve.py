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
from contextlib import contextmanager

import pytest

from sitekit.pages import markdown_files
from tests.conftest import MKDOCS, copy_of_the_sources, environment

DEADLINE = 600
PAGES = len(markdown_files("en"))
# What mkdocstrings makes of the API page goes into other files of a build.
API = 1
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
        with urllib.request.urlopen(self.base + path, timeout=DEADLINE) as a:
            return a.read().decode()

    def replace(self, file, text):
        """In one step, so that no build sees half of it; how many builds
        there were before."""
        builds = len(self.rendered())
        new = self.source / "new text"
        new.write_text(text, encoding="utf-8")
        os.replace(new, self.source / file)
        return builds

    @contextmanager
    def edited(self, file, old, new):
        """What the build after an edit rendered; undone in the end."""
        text = (self.source / file).read_text("utf-8")
        assert old in text
        builds = self.replace(file, text.replace(old, new, 1))
        self.said("Chinese pages", builds + 1)
        try:
            yield self.rendered()[-1]
        finally:
            builds = self.replace(file, text)
            self.said("Chinese pages", builds + 1)

    def everything(self):
        """Pages with figures, links and objects of the API, and what is
        found."""
        names = (
            "core/sdpa/",
            "layers/absorption/",
            "api/",
            "search/search_index.json",
            "notebooks/core/sdpa.ipynb",
        )
        return {
            # Each build has a number of its own in the pages.
            half + name: re.sub(r"livereload\(.*?\)", "", self.get(half + name))
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


def test_both_languages_are_served_and_each_page_is_opened_once(served):
    page = served.get("core/masks/")
    assert '<html lang="en"' in page
    assert '<html lang="zh"' in served.get("zh/core/masks/")
    assert re.search(r'class="language" href="[^"]*zh/core/masks/"', page)
    assert served.rendered() == [(PAGES, PAGES)]
    reads = served.reads()
    assert len(reads) >= 2 * PAGES
    assert set(reads.values()) == {1}, reads.most_common(3)


@pytest.mark.parametrize(
    ("file", "word", "path", "cost"),
    [
        ("docs/en/core/sdpa.md", "Every position", "core/sdpa/", (1, 0)),
        ("docs/zh/core/sdpa.md", "每个位置", "zh/core/sdpa/", (0, 1)),
    ],
)
def test_an_edit_of_a_page_costs_that_page(served, file, word, path, cost):
    new, before = f"{word} SEEN", served.reads()
    with served.edited(file, word, new) as rendered:
        assert new in served.get(path)
        assert rendered == (cost[0] + API, cost[1] + API)
        # By the English build and by the Chinese one.
        opened = [line.split(" ", 1) for line in served.reads() - before]
        assert {name.endswith(file) for _, name in opened} == {True}
        assert len(opened) == len({pid for pid, _ in opened}) <= 2
    assert served.everything() == served.first


def test_an_edit_of_code_costs_the_pages_that_show_it(served):
    """In both languages, and with all that pages draw by it."""
    pages = ("core/masks/", "zh/core/masks/", "files/masks.py")
    # What Emacs puts beside a file that is being edited: it leads nowhere.
    lock = served.source / "attnref" / "core" / ".#masks.py"
    lock.symlink_to("someone@somewhere.1")
    shown = [
        path
        for path in markdown_files("en")
        if '"attnref/core/masks.py' in path.read_text("utf-8")
    ]
    file = "attnref/core/masks.py"
    with served.edited(file, "no pad is seen", "SEEN") as rendered:
        assert all("SEEN" in served.get(page) for page in pages)
        assert rendered[0] == rendered[1]
        assert len(shown) + API <= rendered[0] < PAGES - API
    assert served.everything() == served.first
    lock.unlink()


def test_what_is_broken_is_told_in_a_line_and_live_when_it_is_mended(served):
    """A fence that draws nothing; then what draws, which all pages need."""
    file, begin = "docs/en/core/softmax.md", "table: exp_range"
    text = (served.source / file).read_text("utf-8")
    assert begin in text
    served.replace(file, text.replace(begin, "table: range", 1))
    line = text[: text.index("```table")].count("\n") + 1
    served.said(f"{file}:{line}: the fence 'table': there is no 'range'")
    served.said("until build errors are resolved")
    builds = served.replace(file, text)
    served.said("Chinese pages", builds + 1)
    begin, other = 'role="img"', 'role="image"'
    with served.edited("sitekit/svg.py", begin, other) as rendered:
        pages = ("core/masks/", "zh/core/masks/")
        assert all(other in served.get(page) for page in pages)
        assert rendered == (PAGES, PAGES)
    assert served.everything() == served.first
