"""A pytest plugin: what the public code returns while the tests call it.

    RECORD=log.json python -m pytest -p tests.commands.exchanged tests/core
    RECORD=log.json COPIES=folder python -m pytest -p ... tests/core

With `COPIES`, a folder of copied files, every public name is first exchanged
for that of its own file, wherever in attnref it stands.
"""

import functools
import importlib.util
import inspect
import json
import os
import re
import sys
import zlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor as _wrapped
from torch.utils._python_dispatch import _disable_current_modes

import attnref
from attnref.commands import copy

COPIES = os.environ.get("COPIES", "")
# By test and function: how often the test called it, and a checksum of what
# it returned.
returned: dict[str, dict[str, list[int]]] = {}
told: dict[str, list[int]] = {}  # of the test that runs
called: set[tuple[str, str]] = set()  # public names, by their files
inside = False  # a call from the code itself is a part of another


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
    for stem, names in copied().items():
        theirs = copy_of(stem) if COPIES else attnref
        for name in names:
            ours, plain = getattr(attnref, name), getattr(theirs, name)
            public = recorded(plain, stem, name)
            for home in [theirs, *homes]:
                if vars(home).get(name) in (ours, plain):
                    setattr(home, name, public)


def copy_of(stem: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        f"copy_of_{stem}", Path(COPIES, f"{stem}.py")
    )
    theirs = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    for name in copy.public().keys() - copied()[stem]:
        if isinstance(vars(theirs).get(name), type):
            recorded(vars(theirs)[name], stem, name)  # takes part in its own
    return theirs


def recorded(function, stem: str, name: str):
    """The same; of a class, the class with its own methods recorded."""
    if isinstance(function, type):
        for method, own in [*vars(function).items()]:
            if inspect.isfunction(own) and (
                method == "__call__" or not method.startswith("_")
            ):
                setattr(function, method, recorded(own, stem, name))
        return function

    @functools.wraps(function)
    def call(*args, **options):
        global inside
        called.add((stem, name))
        if inside:
            return function(*args, **options)
        inside = True
        try:
            value = function(*args, **options)
        finally:
            inside = False
        times, check = told.get(function.__qualname__, (0, 0))
        told[function.__qualname__] = [times + 1, checked(value, check)]
        return value

    return call


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without those in which torch reads the code instead of running it, or
    which change the package."""
    source = functools.cache(inspect.getsource)
    items[:] = [
        item
        for item in items
        if not {"alone", "whole"} & {mark.name for mark in item.iter_markers()}
        and not re.search(
            r"torch\.compile|exported|monkeypatch", source(item.function)
        )
    ]


def pytest_runtest_call(item: pytest.Item) -> None:
    global told
    told = returned.setdefault(item.nodeid, {})


def checked(value, check: int) -> int:
    """The checksum with one more value: of a tensor, all its bytes."""
    if type(value) in (Tensor, nn.Parameter):
        check = checked((str(value.dtype), *value.shape), check)
        if value.device.type == "meta" or _wrapped(value):
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
    log = {"returned": returned, "called": sorted(called)}
    Path(os.environ["RECORD"]).write_text(json.dumps(log), encoding="utf-8")
