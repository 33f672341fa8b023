"""Known answers: what a file holds, and which mistake an output has."""

import json
import re

import pytest
import torch

from attnref.check import catalogue, vectors
from attnref.check.catalogue import Plain
from attnref.commands import match
from tests.kit import sampled

CASES = vectors.cases()
SOME = "softmax-hidden", "mask-window", "rope-far", "cross", "gpt-oss-full"


@pytest.fixture(scope="module")
def gqa():
    return vectors.computed("gqa")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    vectors.write(folder, ["rope", "softmax-hidden"])
    return folder


def test_the_subjects_that_a_port_begins_with_are_there():
    assert len(CASES) >= 40
    families = {case["config"].get("model_type") for case in CASES.values()}
    assert len(families - {None}) == 10
    runs = {case["run"] for case in CASES.values()}
    assert runs == {
        name.removeprefix("_")
        for name, value in vars(vectors).items()
        if callable(value) and name[1:] in runs
    }


def test_generated_twice_the_files_are_the_same(folder, tmp_path):
    vectors.write(tmp_path, ["rope", "softmax-hidden"])
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


def test_a_case_whose_source_has_changed_is_another_one(monkeypatch):
    before = vectors.source("rope"), vectors.source("softmax")
    text = Plain.text
    monkeypatch.setattr(
        Plain, "text", lambda p, m: text(p, m) + "\n" * m.endswith("softmax")
    )
    assert vectors.source("rope") == before[0]
    assert vectors.source("softmax") != before[1]


def test_inputs_and_weights_are_exact_in_every_dtype(gqa):
    for name, value in gqa[0].items():
        if name.startswith(("input", "weight")):
            for dtype in vectors.DTYPES.values():
                assert value.to(dtype).float().equal(value), name


def test_steps_are_the_values_with_shape_comments_in_order(gqa):
    tensors, about = gqa
    steps = sorted(x for x in tensors if x.startswith("step/"))
    names = [step.split("/")[2] for step in steps]
    assert names[0] == "at" and names[-1] == "return"
    kept = [n for n in names if n in "qk" or n.startswith("attention")]
    last = ["scores", "weights", "weights", "return"]
    assert kept == ["q", "k", *(f"attention.{x}" for x in last)]
    assert about["letters"][steps[names.index("q")]] == "(B, H, T, D)"
    assert tensors[steps[-1]].equal(tensors["output"])


@pytest.mark.parametrize("name", sampled(CASES, SOME))
def test_each_mistake_of_a_case_is_named_and_none_is_the_right_output(name):
    tensors, about = vectors.computed(name)
    right = tensors["output"]
    bound = vectors.APART * vectors.largest(right)
    outputs = {id: tensors[f"mistake/{id}/output"] for id in about["mistakes"]}
    assert outputs
    for id, out in outputs.items():
        others = [right, *(y for x, y in outputs.items() if x != id)]
        assert min(vectors.apart(out, y) for y in others) > bound * 0.99
        result = match.compared({"output": out}, tensors, about)
        assert (result["is"], result["mistakes"]) == (
            "mistake",
            about["mistakes"][id],
        )
    for kind, dtype in vectors.DTYPES.items():
        own = right.to(dtype) if right.is_floating_point() else right
        result = match.compared({"output": own}, tensors, about, kind)
        assert result["is"] == "right"


def planted(id):
    """What another program gives: the mistake, in float32."""
    every = catalogue.every_variant(catalogue.catalogue()[id])
    own = {"plain.gqa", "plain.attention"}
    variant = next(v for v in every if {x.module for x in v} <= own)
    return vectors.ran("gqa", Plain(variant), {}, torch.float32)[0]


@pytest.mark.parametrize(
    ("made", "dtype", "want"),
    [
        (lambda y: y, "", "right"),
        (lambda y: y.double(), "", "right"),
        (lambda y: y.flatten(), "", "right"),
        (lambda y: y.bfloat16(), "", "right"),
        (lambda y: y.half(), "", "right"),
        (lambda y: y * 1.005, "", "unknown"),
        (lambda y: y * 1.005, "bfloat16", "right"),
        (lambda y: y.where(y < y.max(), torch.nan), "", "unknown"),
        (lambda y: planted("scale-missing"), "", "scale-missing"),
        (lambda y: planted("groups-tiled"), "", "groups-tiled"),
        (lambda y: planted("groups-tiled").bfloat16(), "", "groups-tiled"),
        (lambda y: planted("causal-sees-next"), "", "causal-sees-next"),
    ],
)
def test_an_output_is_right_or_a_mistake_or_unknown(gqa, made, dtype, want):
    own = made(gqa[0]["output"])
    result = match.compared({"output": own}, *gqa, dtype)
    if want in ("right", "unknown"):
        assert result["is"] == want and result["mistakes"] == []
    else:
        assert result["is"] == "mistake" and want in result["mistakes"]
    if want == "unknown":
        assert own.ndim == len(result["at"])


def test_of_rows_with_pads_only_real_tokens_are_compared():
    case = vectors.computed("gqa-pads")
    valid = case[0]["input/valid"]
    own = torch.full((*valid.shape, 7), torch.nan)
    own[valid] = case[0]["output"]
    for mine in (own, own[valid], own.flatten()):
        assert match.compared({"output": mine}, *case)["is"] == "right"


def test_the_first_step_that_differs_is_named(gqa):
    tensors, about = gqa
    (scores,) = (x for x in tensors if x.endswith("scores"))
    wrong = {"output": 0 * tensors["output"]}
    steps = {x: y for x, y in tensors.items() if x.startswith("step/")}
    later = {x: y + (x >= scores) for x, y in steps.items()}
    result = match.compared(wrong | later, tensors, about)
    assert result["first"] == scores
    assert "first" not in match.compared(wrong | steps, tensors, about)


FILES = {
    "mine.npy": lambda y: npy(y, False),
    "turned.npy": lambda y: npy(y.permute(2, 1, 0).contiguous(), True),
    "mine.raw": lambda y: bytes(y.contiguous().view(torch.uint8).flatten()),
}


def npy(y, fortran):
    """As NumPy writes it."""
    shape = tuple(y.shape)[:: -1 if fortran else 1]
    head = {"descr": "<f4", "fortran_order": fortran, "shape": shape}
    text = f"{head}\n".encode()
    size = len(text).to_bytes(2, "little")
    return b"\x93NUMPY\x01\x00" + size + text + FILES["mine.raw"](y)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_each_format_is_read(name, gqa, tmp_path):
    path, right = tmp_path / name, gqa[0]["output"]
    path.write_bytes(FILES[name](right))
    own = match.read(path)[0]["output"]
    assert match.fitted(own, right, None).equal(right)


def test_numpys_own_files_are_read(tmp_path):
    numpy = pytest.importorskip("numpy")
    x = numpy.arange(6.0, dtype="f4").reshape(2, 3)
    for own in (x, x.T, x.astype("f8"), x.astype("f2"), x > 2):
        numpy.save(tmp_path / "x.npy", own)
        read = match.read(tmp_path / "x.npy")[0]["output"]
        assert read.tolist() == own.tolist()


def test_what_safetensors_writes_is_read(folder):
    from safetensors.torch import load_file

    path = folder / "rope.safetensors"
    tensors, about = match.read(path)
    want = load_file(path)
    assert tensors.keys() == want.keys()
    assert all(value.equal(want[name]) for name, value in tensors.items())
    assert about["case"] == "rope"
    assert re.fullmatch("[0-9a-f]{64}", about["source"])
    for line in about["titles"].values():
        assert line["en"] and re.search("[\u4e00-\u9fff]", line["zh"])
    index = json.loads((folder / "index.json").read_text("utf-8"))
    assert index["cases"]["rope"]["source"] == about["source"]
