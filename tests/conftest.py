"""What the tests share."""

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from filelock import FileLock
from hypothesis import settings
from torch import Tensor

from sitekit import ROOT

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


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest entry of the oracle."""
    if theirs.numel() == 0:
        assert ours.shape == theirs.shape
        return 0.0
    ours, theirs = ours.detach(), theirs.detach()
    difference = (ours.double() - theirs.double()).abs().max()
    return float(difference / theirs.double().abs().max().clamp_min(1e-300))


def fences(stem, language="en"):
    """What a page draws: the kind and the YAML of each fence."""
    import yaml  # not there where the package alone is tested

    from sitekit import pages, source

    (path,) = (p for p in pages.markdown_files(language) if p.stem == stem)
    page = pages.render(pages.body_of(path), expand=False)
    drawn = (b for b in page.blocks if b.language in source.DRAWN)
    return [(block.language, yaml.safe_load(block.text)) for block in drawn]


class Site(NamedTuple):
    folder: Path
    log: str


# What one types. A copy of the sources needs its own folder on the path.
MKDOCS = [Path(sys.executable).with_name("mkdocs")]
MKDOCS_OF_A_COPY = [sys.executable, "-m", "mkdocs"]
# Without a test's own word, a site has no address.
for name in ("SITE_URL", "REPOSITORY_URL"):
    os.environ.pop(name, None)


def environment(**env: str) -> dict[str, str]:
    return os.environ | {"NO_MKDOCS_2_WARNING": "1"} | env


def build(folder: Path, source: Path = ROOT, **env: str) -> Site:
    """Both languages, strictly; raises with the log if that fails."""
    mkdocs = MKDOCS if source == ROOT else MKDOCS_OF_A_COPY
    done = subprocess.run(
        [*mkdocs, "build", "--strict", "-d", folder],
        cwd=source,
        env=environment(**env),
        capture_output=True,
        text=True,
    )
    log = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(log)
    return Site(folder, log)


def copy_of_the_sources(folder: Path) -> Path:
    """What a build reads, in another place, to plant faults in."""
    target = folder / "a copy"
    target.mkdir()
    folders = "attnref sitekit docs overrides tests benchmarks"
    for name in folders.split():
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, target / name, ignore=ignore)
    for name in ("mkdocs.yml", "mkdocs.zh.yml", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    return target


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
    return sorted(site.folder.rglob("*.html"))


# The headless shell is a Chromium that takes half the time.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, BROWSERS)), None
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update "
    "--disable-sync --disable-dev-shm-usage"
)


@pytest.fixture(scope="session")
def chromium():
    if not CHROMIUM:
        assert not os.environ.get("CI"), "CI needs Chromium"
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path=CHROMIUM, args=FLAGS.split()
        )
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


@contextmanager
def opened(
    chromium, url, *, width=1440, scheme="light", until="networkidle", **options
):
    """A page that keeps what it asked for and what went wrong."""
    context = chromium.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        **options,
    )
    page = context.new_page()
    page.urls, page.faults = [], []

    def blame(wrong, what):
        if wrong:
            page.faults.append(what)

    page.on("request", lambda r: page.urls.append(r.url))
    page.on("requestfailed", lambda r: blame(True, r.url))
    page.on("pageerror", lambda e: blame(True, str(e)))
    page.on("console", lambda m: blame(m.type in ("error", "warning"), m.text))
    page.on("response", lambda r: blame(r.status >= 400, r.url))
    page.goto(url, wait_until=until)
    try:
        yield page
    finally:
        context.close()


@pytest.fixture
def visit(chromium):
    """Open pages that stay open until the test ends."""
    with ExitStack() as stack:

        def open_page(url, **options):
            return stack.enter_context(opened(chromium, url, **options))

        yield open_page
