"""What a reader of a known answer writes: NumPy, without torch."""

import json
import re
import subprocess
import sys
import zipfile
from io import BytesIO

import numpy as np
import pytest

from attnref.words import Text
from sitekit import ROOT, answers
from sitekit.drawn import known_answers
from sitekit.markdown.source import sections
from tests.check.numpy_port import compare, gqa, read


@pytest.fixture(scope="module")
def files():
    # --8<-- [start:written]
    from pathlib import Path
    from tempfile import mkdtemp

    from attnref.judge.vectors import write

    folder = Path(mkdtemp())
    write(folder, ["gqa"])
    # --8<-- [end:written]
    return folder


def test_a_port_in_numpy_is_wrong_and_named_and_mended(files):
    folder = files

    # --8<-- [start:named]
    def tiled(x, G):
        return np.tile(x, (1, G, 1, 1))

    tensors, about = read(folder / "gqa.safetensors")
    mine = gqa(tensors, about["given"], tiled)
    assert compare(mine, tensors, about) == "groups-tiled"
    # --8<-- [end:named]

    # --8<-- [start:mended]
    def repeated(x, G):
        return np.repeat(x, G, axis=1)

    mine = gqa(tensors, about["given"], repeated)
    assert compare(mine, tensors, about) == "right"
    # --8<-- [end:mended]
    wrong = gqa(tensors, about["given"], tiled).astype("f2")
    assert compare(wrong, tensors, about, "float16") == "groups-tiled"
    assert compare(mine + 1, tensors, about).startswith("unknown, worst at ")
    assert compare(mine.astype("f2"), tensors, about, "float16") == "right"


def test_the_page_counts_what_the_files_hold(files, monkeypatch):
    monkeypatch.setattr(answers, "folder", lambda: files)
    monkeypatch.setattr(answers, "names", lambda: ["gqa.safetensors"])
    monkeypatch.setattr(answers, "index", answers.index.__wrapped__)
    monkeypatch.setattr(answers, "archive", answers.archive.__wrapped__)
    _, about = read(files / "gqa.safetensors")
    count = len({id for ids in about["mistakes"].values() for id in ids})
    assert [*known_answers.cases()] == [
        [
            "[gqa](files:answers/gqa.safetensors)",
            "`transformers` `LlamaAttention`",
            "B 3, T 5, E 7, H 6, K 2, D 10",
            str(count),
        ]
    ]
    ((_, half, more),) = known_answers.hidden()
    kinds = about["indistinguishable"]
    assert half.count("`") == 2 * len(kinds["float16"])
    assert "`scores-in-half`" in half and "`scores-in-half`" not in more
    for way in kinds["bfloat16"]:
        assert f"`{way}`" in half + more
    numbers = known_answers.numbers()
    assert numbers["cases"] == 1 and 0 < numbers["zip"] < 0.1
    assert numbers.keys() == {"backward", "cases", "zip"}


def test_the_table_of_backward_mistakes_is_their_file():
    text = (ROOT / "attnref/judge/backward.txt").read_text(encoding="utf-8")
    written = re.findall(
        r"^id: (.*)\nen: (.*?) \|\| (.*)\nzh: (.*?) \|\| (.*)$", text, re.M
    )
    rows = [*known_answers.backward_mistakes()]
    assert len(rows) == text.count("id: ") == len(written)
    for row, (id, en, en_notice, zh, zh_notice) in zip(
        rows, written, strict=True
    ):
        assert row == [f"`{id}`", Text(en, zh), Text(en_notice, zh_notice)]


def test_the_zip_is_the_same_when_it_is_made_twice(files, monkeypatch):
    monkeypatch.setattr(answers, "folder", lambda: files)
    monkeypatch.setattr(answers, "names", lambda: ["gqa.safetensors"])
    made = [answers.archive.__wrapped__() for _ in range(2)]
    assert made[0] == made[1]
    with zipfile.ZipFile(BytesIO(made[0])) as read_:
        (name,) = read_.namelist()
        assert name == "answers/gqa.safetensors"
        assert read_.read(name) == (files / "gqa.safetensors").read_bytes()


def test_the_reader_runs_as_copied_without_torch(files):
    text = sections((ROOT / "tests/check/numpy_port.py").read_text())
    code = [text["reader"], text["port"]]
    case = files / "gqa.safetensors"
    code.append(f"tensors, about = read({str(case)!r})")
    code.append(
        "mine = gqa(tensors, about['given'], lambda x, G: x.repeat(G, axis=1))"
    )
    code.append("import sys; assert 'torch' not in sys.modules")
    code.append("print(compare(mine, tensors, about))")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)],
        capture_output=True,
        text=True,
        cwd=files,
    )
    assert done.stdout == "right\n", done.stderr
    assert len(text["reader"].strip().splitlines()) <= 40
    assert json.loads((files / "index.json").read_text())["cases"].keys() == {
        "gqa"
    }
