"""The known answers of the site: files/answers/, and all of them in one zip.

To compute them takes fifteen seconds. They are kept in build/, by all that the
package holds: a change of any of its files makes them anew.
"""

import json
import zipfile
from functools import cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from attnref.check import vectors
from sitekit import ROOT

ZIP = "answers.zip"
SUFFIXES = (".py", ".txt", ".toml")


@cache
def folder() -> Path:
    """Where they are on this machine."""
    key = sha256(torch.__version__.encode())
    for path in sorted((ROOT / "attnref").rglob("*")):
        if path.suffix in SUFFIXES:
            key.update(path.read_bytes())
    kept = ROOT / "build/answers" / key.hexdigest()[:16]
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=kept.parent) as made:
            vectors.write(Path(made, "all"), vectors.cases())
            if not kept.exists():  # another build may have been quicker
                Path(made, "all").replace(kept)
    return kept


def names() -> list[str]:
    """The files of answers/."""
    return [f"{name}.safetensors" for name in vectors.cases()] + ["index.json"]


@cache
def index() -> dict[str, Any]:
    text = (folder() / "index.json").read_text(encoding="utf-8")
    cases: dict[str, Any] = json.loads(text)["cases"]
    return cases


def file(name: str) -> bytes:
    return (folder() / name).read_bytes()


@cache
def archive() -> bytes:
    """The same bytes from the same files: no time of a day is in it."""
    to = BytesIO()
    with zipfile.ZipFile(
        to, "w", zipfile.ZIP_DEFLATED, compresslevel=9
    ) as all_:
        for name in names():
            all_.writestr(
                zipfile.ZipInfo(f"answers/{name}"),
                file(name),
                zipfile.ZIP_DEFLATED,
            )
    return to.getvalue()
