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

from attnref.judge import vectors
from sitekit import ROOT

ZIP = "answers.zip"
SUFFIXES = (".py", ".txt", ".toml", ".json")


@cache
def folder() -> Path:
    """The folder of the known answers on this machine."""
    key = sha256(torch.__version__.encode())
    for path in sorted((ROOT / "attnref").rglob("*")):
        if path.suffix in SUFFIXES:
            key.update(path.read_bytes())
    target = ROOT / "build/answers" / key.hexdigest()[:16]
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent) as temporary:
            vectors.write(Path(temporary, "all"), vectors.cases())
            if not target.exists():  # another build may have been quicker
                Path(temporary, "all").replace(target)
    return target


def names() -> list[str]:
    """The files of answers/."""
    return [f"{name}.safetensors" for name in vectors.cases()] + ["index.json", "schema.json"]


@cache
def index() -> dict[str, Any]:
    text = (folder() / "index.json").read_text(encoding="utf-8")
    cases: dict[str, Any] = json.loads(text)["cases"]
    return cases


def file(name: str) -> bytes:
    return (folder() / name).read_bytes()


@cache
def archive() -> bytes:
    """A zip that holds no time of day: the same files give the same bytes."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for name in names():
            target.writestr(zipfile.ZipInfo(f"answers/{name}"), file(name), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
