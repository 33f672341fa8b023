"""A pytest plugin: what the public code returns while the tests call it.

    RECORD=log.json python -m pytest -p tests.commands.exchanged tests/core
    RECORD=log.json COPIES=folder python -m pytest -p ... tests/core

With `COPIES`, a folder of copied files, every public name is first exchanged
for that of its own file, wherever in attnref it stands.
"""

import importlib.util
import inspect
import json
import os
import re
import sys
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

import attnref
from attnref.commands import copy
from sitekit import ROOT

PACKAGE = f"{ROOT}/attnref/"
COPIES = os.environ.get("COPIES", PACKAGE)
# By test and function: how often the test called it, and a checksum of what
# it returned.
returned: dict[str, dict[str, list[int]]] = {}
ran: set[tuple[str, str]] = set()  # functions, by their files


def copied() -> dict[str, list[str]]:
    """The public names by the copied file that is tested for each: that of
    their own file; a loop form, which no such file holds, has one of its own.
    """
    files = copy.files()
    held = {name for names in files.values() for name in names}
    return files | {name: [name] for name in copy.public() if name not in held}


def pytest_configure() -> None:
    settings.register_profile("few", deadline=None, max_examples=3)
    settings.load_profile("few")
    homes = [attnref]
    for module in {*copy.public().values()}:
        homes.append(importlib.import_module(f"attnref.{module}"))
    for stem, names in copied().items() if COPIES != PACKAGE else ():
        spec = importlib.util.spec_from_file_location(
            f"copy_of_{stem}", Path(COPIES, f"{stem}.py")
        )
        theirs = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(theirs)
        for name in names:
            ours = getattr(attnref, name)
            setattr(attnref, name, getattr(theirs, name))
            for home in homes:
                if vars(home).get(name) is ours:
                    setattr(home, name, getattr(theirs, name))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without those in which torch reads the code instead of running it."""
    items[:] = [
        item
        for item in items
        if not {"alone", "whole"} & {mark.name for mark in item.iter_markers()}
        and not re.search("compile|export", inspect.getsource(item.function))
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    told = returned.setdefault(item.nodeid, {})
    inside = False  # a call from the code itself is a part of another

    def called(frame, event, value):
        nonlocal inside
        code = frame.f_code
        if not code.co_filename.startswith((PACKAGE, COPIES)):
            return None
        name = code.co_qualname
        ran.add((code.co_filename, name))
        # What is private may return memory that nothing was written to.
        if inside or re.search(r"(^|\.)(<|_[^_])", name):
            return None
        inside, frame.f_trace_lines = True, False

        def until(frame, event, value):
            nonlocal inside
            if event == "return":
                times, check = told.get(name, (0, 0))
                told[name] = [times + 1, checked(value, check)]
                inside = False
            return until

        return until

    sys.settrace(called)
    try:
        return (yield)
    finally:
        sys.settrace(None)


def checked(value, check: int) -> int:
    """The checksum with one more value: of a tensor, all its bytes."""
    if type(value) in (Tensor, nn.Parameter):
        check = checked((str(value.dtype), *value.shape), check)
        if value.device.type == "meta":
            return check
        with _disable_current_modes():
            plain = value.detach().contiguous().reshape(-1)
            return zlib.crc32(plain.view(torch.uint8).numpy(), check)
    if isinstance(value, dict):
        value = [*value.items()]
    if isinstance(value, tuple | list):
        for part in value:
            check = checked(part, check)
        return check
    if not isinstance(value, int | float | str | None):
        value = type(value).__name__
    return zlib.crc32(repr(value).encode(), check)


def pytest_sessionfinish() -> None:
    names = {(Path(file).stem, name.split(".")[0]) for file, name in ran}
    told = {"returned": returned, "ran": sorted(names)}
    Path(os.environ["RECORD"]).write_text(json.dumps(told), encoding="utf-8")
