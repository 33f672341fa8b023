"""attnref vectors and attnref match, as one types them."""

import json

import pytest
import torch

from attnref.__main__ import main
from attnref.check import vectors


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A case, its right output as a port writes it, and a wrong one."""
    folder = tmp_path_factory.mktemp("answers")
    assert main(["vectors", str(folder), "rope"]) == f"{folder}: 1 cases"
    tensors, _ = vectors.computed("rope")
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
        (["match", "rope", "/nowhere"], "No such file"),
        (["match", "ropes", "{right}"], "there is no case 'ropes'; did you"),
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
