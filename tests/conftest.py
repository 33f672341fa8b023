"""What the tests share."""

import functools
import http.server
import os
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

# Where PyTorch is told to compute as on another processor, oneDNN asks the
# real one: attention in bfloat16 packs its tiles for instructions of AMX.
if (kind := os.environ.get("ATEN_CPU_CAPABILITY")) in ("default", "avx2"):
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
    # What was compiled for one kind of processor is wrong on another.
    compiled = Path(tempfile.gettempdir(), f"compiled-for-{kind}")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))

import torch
from filelock import FileLock
from hypothesis import settings

from sitekit import ROOT
from tests.kit.site import (
    CHROMIUM,
    Site,
    build,
    html_files,
    launched,
    opened,
)

settings.register_profile("attnref", deadline=None, max_examples=60)
settings.load_profile("attnref")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what `make quick` leaves out, so that no file has to: oracles,
    what pages on use in a project show, and files in which a test needs the
    built site or a browser."""
    slow = {
        item.path
        for item in items
        if {"site", "chromium"}.intersection(getattr(item, "fixturenames", ()))
    }
    for item in items:
        if {"oracles", "use"} & {*item.path.relative_to(ROOT).parts}:
            item.add_marker(pytest.mark.oracle)
        if item.path in slow:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Built once a run: the first worker to need it builds, others wait."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # that of the run
    folder, log = base / "site", base / "site.log"
    with FileLock(base / "site.lock"):
        if not log.exists():
            log.write_text(build(folder).log, encoding="utf-8")
    return Site(folder, log.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def html_pages(site: Site) -> list[Path]:
    return html_files(site.folder)


@pytest.fixture(scope="session")
def chromium():
    if not CHROMIUM:
        assert not os.environ.get("CI"), "CI needs Chromium"
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = launched(p)
        yield browser
        browser.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        pass  # a page that is closed early hangs up on us


@pytest.fixture(scope="session")
def address(site):
    """The built site on localhost."""
    handler = functools.partial(_Quiet, directory=site.folder)
    server = _Server(("localhost", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def visit(chromium):
    """Open pages that stay open until the test ends."""
    with ExitStack() as stack:

        def open_page(url, **options):
            return stack.enter_context(opened(chromium, url, **options))

        yield open_page
