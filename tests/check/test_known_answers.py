"""What a reader of a known answer writes: NumPy, or JAX, without torch."""

import json
import re
import subprocess
import sys
import zipfile
from functools import partial
from io import BytesIO

import numpy as np
import pytest
import torch

from attnref.commands import match
from attnref.judge import vectors
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


@pytest.fixture
def jax():
    """JAX, and the port of the page written in it: `np` is jax.numpy."""
    jax = pytest.importorskip("jax")
    text = sections((ROOT / "tests/check/numpy_port.py").read_text())
    space = {"np": jax.numpy}
    exec(text["port"] + text["backward"], space)
    return jax, space


def repeated(jax, x, G):
    return x.repeat(G, axis=1)


def tiled(jax, x, G):
    return jax.numpy.tile(x, (1, G, 1, 1))


def one_of_a_group(jax, x, G):
    """Repeated, and only the first query head of a group has a gradient."""
    x = x.repeat(G, axis=1)
    first = (jax.numpy.arange(x.shape[1]) % G == 0)[:, None, None]
    return jax.numpy.where(first, x, jax.lax.stop_gradient(x))


@pytest.mark.audit  # JAX takes long to compile, and few machines have it
@pytest.mark.parametrize(
    ("share", "output", "gradients"),
    [
        (repeated, "right", "right"),
        (tiled, "groups-tiled", "unknown"),  # of another function
        (one_of_a_group, "right", "mistake"),
    ],
)
def test_the_port_in_jax_has_the_gradients_of_the_file(
    jax, files, share, output, gradients
):
    """Its own, by `vjp`, with respect to all inputs and weights at once."""
    jax, port = jax
    tensors, about = read(files / "gqa.safetensors")
    names = [x for x in tensors if x.startswith(("input/x", "weight/"))]

    def run(values):
        given = tensors | dict(zip(names, values, strict=True))
        return port["gqa"](given, about["given"], partial(share, jax))

    out, pull = jax.vjp(run, [jax.numpy.asarray(tensors[x]) for x in names])
    assert compare(np.asarray(out), tensors, about) == output
    (found,) = pull(jax.numpy.asarray(tensors["cotangent"]))
    mine = {
        f"gradient/{name.split('/')[1]}": torch.from_numpy(np.array(x))
        for name, x in zip(names, found, strict=True)
    }
    case = match.case_of(str(files / "gqa.safetensors"))
    result = match.gradients_of(mine, *case)
    assert result["is"] == gradients, result
    if gradients == "mistake":
        assert result["mistakes"][0] == "backward-group-not-summed"


@pytest.mark.audit
def test_the_backward_pass_in_jax_is_right(jax):
    _, port = jax
    tensors, about = vectors.compute("sdpa-masked")
    arrays = {x: y.numpy() for x, y in tensors.items()}
    found = port["attention_gradients"](arrays)
    mine = {x: torch.from_numpy(np.array(y)) for x, y in found.items()}
    assert match.gradients_of(mine, tensors, about)["is"] == "right"
