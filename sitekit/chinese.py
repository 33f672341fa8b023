"""The Chinese half of the site: built by the hook of the English half.

Under `mkdocs serve` this module outlives a build: it holds the worker that
builds the Chinese half, and forgets the code that was changed.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context, parent_process

from sitekit import CONFIGS, ROOT, adapter

_worker: ProcessPoolExecutor | None = None
_there = threading.Event()  # the Chinese half is where it is served
_settled = threading.Event()  # no build of it is under way
_settled.set()


OUTLIVE = {__name__, adapter.__name__}
State = list[tuple[str, int]]


def _state_of(*patterns: str) -> State:
    kinds = (".py", ".pyi", ".js", ".json", ".txt", ".html", ".yml", ".svg")
    return [
        (str(path), path.stat().st_mtime_ns)
        for pattern in patterns
        for path in sorted(ROOT.glob(pattern))
        # An editor's lock is a link that leads nowhere.
        if path.suffix in kinds and path.exists()
    ]


def _states() -> tuple[State, State]:
    """Of the package; and of what every page is made with."""
    shared = ("sitekit/**/*.*", "overrides/**/*.*", "mkdocs*.yml")
    return _state_of("attnref/**/*.*"), _state_of(*shared)


_package, _shared = _states()


def build_chinese(site_dir: str, site_url: str, strict: bool) -> int:
    """How many pages were rendered for it."""
    forget_changed_code()
    adapter.build_site(
        CONFIGS["zh"], site_dir=site_dir, site_url=site_url, strict=strict
    )
    return adapter.count_of("pages of zh")


def forget_changed_code() -> None:
    """A build sees attnref and sitekit as they are; what they have computed
    is computed again only after a change, and every page is rendered again
    where the change is of what all pages are made with."""
    global _package, _shared
    before = _package, _shared
    _package, _shared = _states()
    if _shared != before[1]:
        adapter.forget()
    if (_package, _shared) != before:
        for name in list(sys.modules):
            ours = name.split(".")[0] in {"attnref", "sitekit"}
            if ours and name not in OUTLIVE:
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
    if hasattr(os, "nice"):
        os.nice(5)  # where there is one core for both, English comes first
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=follow, daemon=True).start()


def begin(site_dir: str, site_url: str, strict: bool) -> Future[int] | None:
    """Ask the worker for a build, where there is a worker."""
    if _worker is None:
        return None
    _settled.wait()
    _there.clear()
    return _worker.submit(build_chinese, site_dir, site_url, strict)


def when_built(coming: Future[int], put: Callable[[int], None]) -> None:
    """The English half does not wait for the Chinese one, which is put in its
    place when it is built. Without it, as without the English one, the server
    is stuck until the error is mended."""

    def done(_: Future[int]) -> None:
        try:
            put(coming.result())
            _there.set()
        except Exception as error:
            adapter.log.error(f"The Chinese pages were not built: {error}")
        finally:
            _settled.set()

    _settled.clear()
    coming.add_done_callback(done)


def wait() -> None:
    """Until there are Chinese pages of the last build."""
    _there.wait()
