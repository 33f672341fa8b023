"""Building the site, and opening its pages. Needs nothing that is installed."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from attnref.judge.catalogue import catalogue
from sitekit import ROOT


class Site(NamedTuple):
    folder: Path
    log: str


# The command that a user types. A copy needs its own folder on the path.
MKDOCS = [Path(sys.executable).with_name("mkdocs")]
MKDOCS_OF_A_COPY = [sys.executable, "-m", "mkdocs"]
# Without a test's own word, a site has no address.
for name in ("SITE_URL", "REPOSITORY_URL"):
    os.environ.pop(name, None)


def environment(**env: str) -> dict[str, str]:
    """Variables of a terminal: the import of the theme here set one of them."""
    return os.environ | {"NO_MKDOCS_2_WARNING": ""} | env


def build(folder: Path, source: Path = ROOT, **env: str) -> Site:
    """Both languages, strictly; raises with the log if that fails."""
    mkdocs = MKDOCS if source == ROOT else MKDOCS_OF_A_COPY
    process = subprocess.run(
        [*mkdocs, "build", "--strict", "-d", folder],
        cwd=source,
        env=environment(**env),
        capture_output=True,
        text=True,
    )
    log = process.stdout + process.stderr
    if process.returncode:
        raise RuntimeError(log)
    return Site(folder, log)


def html_files(folder: Path) -> list[Path]:
    """All pages; of those of single mistakes, which are alike, each 29th."""
    ids = [*catalogue()]
    left_out = {*ids} - {*ids[::29]}
    files = sorted(folder.rglob("*.html"))
    return [path for path in files if path.parent.name not in left_out]


def copy_of_the_sources(folder: Path) -> Path:
    """Copy all that a build reads to another place, to plant faults in it."""
    target = folder / "a copy"
    target.mkdir()
    folders = "attnref sitekit docs overrides tests benchmarks"
    for name in folders.split():
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, target / name, ignore=ignore)
    files = "mkdocs.yml mkdocs.zh.yml pyproject.toml hatch_build.py LICENSE"
    for name in files.split():
        shutil.copy(ROOT / name, target / name)
    return target


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


# Playwright gives up after 30 s, and `expect` after 5: on a starved machine a
# page takes longer. Ten minutes end a test that hangs, and nothing else. An
# expectation that fails waits to its end, on a page that is loaded: a minute.
HANGS, FAILS = 600_000, 60_000


def launched(playwright):
    from playwright.sync_api import expect

    expect.set_options(timeout=FAILS)
    return playwright.chromium.launch(
        executable_path=CHROMIUM, args=FLAGS.split(), timeout=HANGS
    )


@contextmanager
def a_reader(chromium, *, width=1440, scheme="light", **options):
    """Somebody who opens pages one after another: a context."""
    context = chromium.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        **options,
    )
    context.set_default_timeout(HANGS)
    try:
        yield context
    finally:
        context.close()


def page_of(context, url, until="load"):
    """Open a page that records its requests and its faults."""
    page = context.new_page()
    page.urls, page.faults = [], []

    def blame(is_wrong, fault):
        if is_wrong:
            page.faults.append(fault)

    page.on("request", lambda r: page.urls.append(r.url))
    page.on("requestfailed", lambda r: blame(True, r.url))
    page.on("pageerror", lambda e: blame(True, str(e)))
    page.on("console", lambda m: blame(m.type in ("error", "warning"), m.text))
    page.on("response", lambda r: blame(r.status >= 400, r.url))
    page.goto(url, wait_until=until)
    return page


@contextmanager
def opened(chromium, url, *, until="networkidle", **options):
    """A page of a reader who has seen no other."""
    with a_reader(chromium, **options) as context:
        yield page_of(context, url, until)
