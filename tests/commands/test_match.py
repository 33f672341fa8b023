"""attnref vectors and attnref match, as one types them."""

import json
import subprocess
import sys
from itertools import product

import pytest
import torch

from attnref.__main__ import main
from attnref.commands import match
from attnref.judge import vectors


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A case, its right output as a port writes it, and a wrong one."""
    folder = tmp_path_factory.mktemp("answers")
    assert main(["vectors", str(folder), "rope"]) == f"{folder}: 1 cases"
    tensors, _ = vectors.compute("rope")
    paths = [folder / "rope.safetensors", folder / "right", folder / "wrong"]
    for path, name in zip(
        paths[1:], ("output", "mistake/rope-no-minus/output"), strict=True
    ):
        path.write_bytes(bytes(tensors[name].view(torch.uint8).flatten()))
    return [str(path) for path in paths]


def test_a_right_output_ends_with_0_and_a_wrong_one_with_1(files, capsys):
    case, right, wrong = files
    assert main(["match", case, right]).startswith("right: off by at most 0;")
    with pytest.raises(SystemExit) as ended:
        main(["match", "rope", wrong, "--lang", "zh"])
    line = capsys.readouterr().out
    assert ended.value.code == 1 and len(line.splitlines()) == 1
    assert line.startswith("错误 rope-no-minus：")
    with pytest.raises(SystemExit):
        main(["match", case, wrong, "--json"])
    result = json.loads(capsys.readouterr().out)
    assert (result["is"], result["mistakes"]) == ("mistake", ["rope-no-minus"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["vectors"], "pass a folder"),
        (["vectors", "/tmp", "ropes"], "there is no case 'ropes'; did you"),
        (["match", "gqa", "{right}"], "the shape is (300,), and should be"),
        (["match", "rope", "/nowhere"], "/nowhere does not exist"),
        (["match", "ropes", "{right}"], "there is no case 'ropes'; did you"),
        (["match", "rope", "/dev/zero"], "/dev/zero is not a regular file"),
        (["match", "rope", "/"], "/ is not a regular file"),
    ],
)
def test_a_wrong_command_ends_with_2_and_says_why(words, said, files, capsys):
    words = [word.format(right=files[1]) for word in words]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_all_cases_are_listed():
    assert main(["vectors", "--list"]).split() == [*vectors.cases()]


DAMAGED = {
    "claims.safetensors": (
        lambda: safetensors({"output": ("F32", [10**11], [0, 0])}),
        "the header claims 400000000000 bytes, and the file holds 0",
    ),
    "offsets.safetensors": (
        lambda: safetensors({"output": ("F32", [5], [0, 4 * 10**11])}),
        "the header claims 20 bytes, and the file holds 0",
    ),
    "negative.safetensors": (
        lambda: safetensors({"output": ("F32", [-1, -1], [0, 4])}) + b"1234",
        "the header claims 4 bytes",
    ),
    "header.safetensors": (
        lambda: b"\xff" * 8 + b"{}",
        "damaged|claims|column",
    ),
    "names.safetensors": (lambda: safetensors([]), "is damaged"),
    "short.npy": (lambda: b"\x93NUM", "is damaged"),
    "claims.npy": (lambda: npy("(100000000000,)"), "claims 400000000000 bytes"),
    "pickled.npy": (lambda: npy("()", "|O"), "type |O are not read"),
    "code.npy": (lambda: npy("__import__('os')"), "malformed"),
}


def safetensors(entries):
    if isinstance(entries, dict):
        names = "dtype", "shape", "data_offsets"
        entries = {
            x: dict(zip(names, y, strict=True)) for x, y in entries.items()
        }
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def npy(shape, kind="<f4"):
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}"
    size = len(head).to_bytes(2, "little")
    return b"\x93NUMPY\x01\x00" + size + head.encode()


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_in_one_line(name, files, tmp_path, capsys):
    data, why = DAMAGED[name]
    (tmp_path / name).write_bytes(data())
    with pytest.raises(SystemExit) as ended:
        main(["match", files[0], str(tmp_path / name)])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and name in line
    assert any(part in line for part in why.split("|") if part.strip())


def test_a_file_larger_than_any_case_is_refused_unread(files, tmp_path, capsys):
    path = tmp_path / "sparse.raw"
    with path.open("wb") as file:
        file.truncate(4 * 10**11)
    with pytest.raises(SystemExit):
        main(["match", files[0], str(path)])
    assert "has 400000000000 bytes: more than" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        *product(["vectors"], ["torch", "safetensors", "numpy"]),
        *product(["match"], ["torch", "numpy"]),
    ],
)
def test_without_a_package_one_line_says_what_to_install(
    command, missing, files, tmp_path
):
    """In a process in which it is not there."""
    words = [str(tmp_path), "rope"] if command == "vectors" else files[:2]
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from attnref.__main__ import main\n"
        f"print(main([{command!r}, *{words!r}, '--lang', 'en']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    if command == "match" and missing != "torch":  # it reads files itself
        assert done.returncode == 0 and done.stdout.startswith("right: ")
        assert not done.stderr
        return
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.endswith(f'it needs {missing}: pip install "attnref[vectors]"')


def test_each_case_is_printed_when_it_is_written(tmp_path, capsys):
    main(["vectors", str(tmp_path), "rope", "softmax"])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["1 of 2: rope", "2 of 2: softmax"]


def test_of_an_unknown_output_it_says_what_to_try():
    tensors, about = vectors.compute("gqa-cached-pads")
    mine = {"output": tensors["output"] * 1.01}
    result = match.compare(mine, tensors, about)
    assert match.line_of(result, about, "en").endswith(
        "try the simpler case gqa first"
    )
    steps = {x: y + 1 for x, y in tensors.items() if x.startswith("step/")}
    result = match.compare(mine | steps, tensors, about)
    first = min(steps)
    assert match.line_of(result, about, "en").endswith(f"; first at {first}")
    for name, simpler in {
        "gqa": "",
        "mla-cached": "mla",
        "deepseek-v3": "mla",
        "qwen3": "gqa",
        "glm-5": "",
        "qwen3.5-linear": "",
    }.items():
        assert vectors.simpler(name) == simpler
