"""`mkdocs serve`: both languages on one address, each file made when it is
asked for, and an edit costs what it changes.

That is counted: pages rendered,
as the server itself says, and files opened, as Python's audit events do. No
test here looks at a clock, but for DEADLINE, which ends what hangs."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections import Counter
from threading import Thread
from urllib.error import HTTPError

import pytest

from sitekit import serve
from tests.kit.site import MKDOCS, copy_of_the_sources, environment

DEADLINE = 600
# Python imports a module of this name before anything else.
AUDIT = """
import os, sys

def heard(event, arguments):
    if event == "open" and str(arguments[0]).endswith(".md"):
        os.write(LOG, f"{arguments[0]}\\n".encode())

LOG = os.open(os.environ["OPENED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(heard)
"""
# Pages with figures, links and objects of the API, and what is beside pages.
FILES = [
    half + name
    for half in ("", "zh/")
    for name in (
        "core/sdpa/",
        "layers/absorption/",
        "api/",
        "api/core/",
        "notebooks/core/sdpa.ipynb",
        "search/search_index.json",
        "assets/_mkdocstrings.css",
    )
]


def text_at(address):
    try:
        with urllib.request.urlopen(address, timeout=DEADLINE) as answer:
            return answer.read().decode()
    except HTTPError as error:
        return f"{error.code} {error.read().decode()}"


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

    def wait_for(self, text, times=1):
        deadline = time.monotonic() + DEADLINE
        while self.text().count(text) < times:
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, f"no {text!r}: {self.text()}"
            time.sleep(0.05)

    def rendered(self):
        """How often each page was, so far."""
        return Counter(re.findall(r"Rendered docs/(\S+)\.md", self.text()))

    def reads(self):
        """How often each page was opened so far."""
        return Counter(re.findall(r"docs/(.+)\.md", self.opened.read_text()))

    def get(self, path):
        # Each answer has a number of its own.
        return re.sub(r"livereload\(.*?\)", "", text_at(self.base + path))

    def everything(self):
        return {path: self.get(path) for path in FILES}

    def edit(self, file, *change):
        """Replaces a text, in one step, so that nobody sees half of it. The
        text before, once the browser has been called."""
        before = (self.source / file).read_text("utf-8")
        old, new = change
        assert old in before
        self.write(file, before.replace(old, new, 1))
        return before

    def write(self, file, text):
        times = self.text().count("Reloading browsers")
        new = self.source / "new text"
        new.write_text(text, encoding="utf-8")
        os.replace(new, self.source / file)
        self.wait_for("Reloading browsers", times + 1)

    def end(self):
        """As by Ctrl-C: nothing of it goes on."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(DEADLINE)
        with pytest.raises(ProcessLookupError):
            os.killpg(self.process.pid, 0)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("serve"))
    try:
        served.wait_for("Serving on")
        served.at_first = served.rendered()
        served.page = served.get("zh/core/masks/")
        served.for_a_page = served.rendered()
        served.first = served.everything()
        yield served
    finally:
        served.end()
    for line in served.text().splitlines():  # but for what a test asks for
        assert "WARNING" not in line or "GET /" in line
    assert "Traceback" not in served.text()


def test_a_page_costs_itself_in_either_language(served):
    """The first that is asked for too: nothing is rendered before."""
    assert '<html lang="zh-CN"' in served.page
    assert re.search(r'class="language" href="[^"]*/core/masks/"', served.page)
    assert served.at_first == {}
    assert served.for_a_page == {"zh/core/masks": 1}
    assert {*served.rendered().values()} == {1}
    reads = served.reads()
    assert len(reads) > 100 and {*reads.values()} == {1}, reads.most_common(3)


def test_an_edit_of_a_page_costs_that_page(served):
    """An English one, and a Chinese one."""
    for language, half, word in (
        ("en", "", "Every token has"),
        ("zh", "zh/", "每个 token 有"),
    ):
        file = f"docs/{language}/core/sdpa.md"
        rendered, reads = served.rendered(), served.reads()
        before = served.edit(file, word, "SEEN")
        assert "SEEN" in served.get(f"{half}core/sdpa/")
        served.get(f"{half}layers/absorption/")
        served.get(f"{half}api/core/")
        assert served.rendered() - rendered == {f"{language}/core/sdpa": 1}
        assert {*(served.reads() - reads)} == {f"{language}/core/sdpa"}
        served.write(file, before)
    assert served.everything() == served.first


@pytest.mark.audit
def test_an_edit_of_code_is_live_and_costs_only_what_it_changes(served):
    """In both languages, and in what is copied."""
    # What Emacs puts beside a file that is being edited: it leads nowhere.
    lock = served.source / "attnref" / "layers" / ".#cross.py"
    lock.symlink_to("someone@somewhere.1")
    code, rendered = "attnref/layers/cross.py", served.rendered()
    before = served.edit(code, "Every query may attend", "SEEN")
    for path in ("layers/cross/", "zh/layers/cross/", "files/cross.py"):
        assert "SEEN" in served.get(path)
    new = {*(served.rendered() - rendered)}
    assert new == {"en/layers/cross", "zh/layers/cross"}
    lock.unlink()
    served.write(code, before)
    assert served.everything() == served.first


@pytest.mark.audit
def test_what_is_broken_says_so_until_it_is_mended(served):
    """A fence that draws nothing, and what draws, on which all pages rest."""
    page, drawing = "docs/en/core/softmax.md", "sitekit/drawing/svg.py"
    fence = served.edit(page, "table: exp_range", "table: range")
    line = fence[: fence.index("```table")].count("\n") + 1
    why = f"{page}:{line}: the fence &#x27;table&#x27;: there is no &#x27;range"
    assert why in served.get("core/softmax/")
    svg = (served.source / drawing).read_text("utf-8")
    served.edit(drawing, 'role="img"', "{oops}")
    assert served.get("core/sdpa/").startswith("500 ")
    served.write(page, fence)
    served.write(drawing, svg)
    assert served.everything() == served.first
    assert why not in served.get("core/softmax/")


def test_an_address_is_completed_or_is_not_found(served):
    with urllib.request.urlopen(f"{served.base}core/sdpa") as answer:
        assert answer.url == f"{served.base}core/sdpa/"
    for path in ("core/nowhere", "nowhere/", "zh/nowhere/", "files/none.py"):
        assert served.get(path).startswith("404 \n<!doctype html>"), path


@pytest.mark.audit
def test_what_is_served_is_what_is_built(served, site):
    """The words of all pages, as the search has them, and whole articles."""

    def article(html):
        return re.search(r"<article.*</article>", html, re.DOTALL)[0]

    for half in ("", "zh/"):
        place = f"{half}search/entries.js"
        built = (site.folder / place).read_text("utf-8")
        ours, theirs = (
            json.loads(text.removeprefix("entries="))
            for text in (served.get(place), built)
        )
        assert ours == theirs
    for path in FILES:
        if path.endswith("/"):
            built = (site.folder / path / "index.html").read_text("utf-8")
            assert article(served.first[path]) == article(built), path


def test_a_page_that_was_made_before_an_edit_loads_itself_again(monkeypatch):
    """It has the number of the state that it shows."""
    server = serve.Server(lambda: None, host="127.0.0.1", port=0, root=".")
    server._watched_paths[""] = 1
    number = server._visible_epoch

    def make(place):
        server._visible_epoch += 1  # an edit is there meanwhile
        return b"<body>old</body>"

    monkeypatch.setattr(serve, "_content", make)
    server.server_bind()
    server.server_activate()
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    text = text_at(f"http://127.0.0.1:{server.server_port}/")
    server.shutdown()
    assert "old" in text and f"livereload({number}, " in text
