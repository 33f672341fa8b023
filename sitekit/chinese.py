"""The Chinese half of the site: built by the hook of the English half.

Under `mkdocs serve` this module alone outlives a build: it holds the worker
that builds the Chinese half, and forgets the code that was changed.
"""

import logging
import os
import signal
import sys
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context, parent_process

from mkdocs.commands.build import build
from mkdocs.config import load_config

from sitekit import CONFIGS, ROOT

_worker: ProcessPoolExecutor | None = None


def _state_of_the_code() -> list[tuple[str, int]]:
    return [
        (str(path), path.stat().st_mtime_ns)
        for folder in ("attnref", "sitekit")
        for path in sorted(ROOT.glob(f"{folder}/**/*.*"))
        # An editor's lock is a link that leads nowhere.
        if path.suffix in (".py", ".pyi", ".json", ".html") and path.exists()
    ]


_state = _state_of_the_code()


def build_chinese(site_dir: str, site_url: str, strict: bool) -> None:
    forget_changed_code()
    config = load_config(
        str(CONFIGS["zh"]), site_dir=site_dir, site_url=site_url, strict=strict
    )
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    config.plugins.on_shutdown()


def forget_changed_code() -> None:
    """A build sees attnref and sitekit as they are; what they have computed
    is computed again only after a change."""
    global _state
    before, _state = _state, _state_of_the_code()
    if before != _state:
        for name in list(sys.modules):
            ours = name.split(".")[0] in {"attnref", "sitekit"}
            if ours and name != __name__:
                del sys.modules[name]


def start_worker() -> None:
    """`mkdocs serve` builds both halves at once, each on a core."""
    global _worker
    _worker = ProcessPoolExecutor(
        1, mp_context=get_context("spawn"), initializer=_settle
    )


def _settle() -> None:
    """In the worker: log as the server does, and end when it ends.

    A server that is ended by a signal tells its worker nothing. Ctrl-C is for
    the server alone, though a terminal sends it to both.
    """

    def follow() -> None:
        server = parent_process()
        assert server is not None
        server.join()
        os._exit(0)

    logging.basicConfig()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=follow, daemon=True).start()


def begin(site_dir: str, site_url: str, strict: bool) -> Future[None] | None:
    """Ask the worker for a build, where there is a worker."""
    if _worker is None:
        return None
    return _worker.submit(build_chinese, site_dir, site_url, strict)
