"""Known answers: what a file holds, and which mistake an output has."""

import argparse
import json
import re
from contextlib import suppress
from itertools import product

import pytest
import torch
import torch.nn.functional as F

from attnref.commands import match
from attnref.judge import catalogue, vectors
from attnref.judge.catalogue import Plain
from tests.kit import sampled

CASES = vectors.cases()
# Added to a score in half precision, -1e9 leaves nothing of the score.
SAME_IN_HALF = {"mask-minus-1e9-added", "mask-minus-1e9"}
CAUSAL = {
    "causal-sees-next",
    "causal-top-left",
    "causal-upside-down",
    "causal-without-itself",
    "mask-inverted",
}
# Mistakes of the simpler case in whose lines a case has other code.
OTHER_CODE = {
    "gpt-oss-full": {"weights-transposed"},
    "gpt-oss-sliding": {"weights-transposed"},
    "online-softmax": {"softmax-over-queries"},
    "rope-interleaved": {"rope-other-layout", "rope-mixed-layouts"},
    "deepseek-v3": {"rope-mixed-layouts"},
    "mask-padding": CAUSAL,
    "mask-document": CAUSAL,
    "mask-streaming": CAUSAL,
}
MASKED_BY_A_WINDOW = {
    "cache-prefill-unmasked",
    "causal-in-training-only",
    "not-causal",
}
# Mistakes that a case, or any, may have without another output: dropout is
# drawn, and the rest is smaller than a rounding or needs what the case lacks.
SILENT = {
    "": {
        "dropout-in-evaluation",
        "flash-mask-of-a-finite-number",
        "rope-half-precision",
    },
    "dsa-cached": {"keys-and-values-exchanged"},  # one tensor is both
    "flash-masked": {"flash-filled-keys-weigh"},  # the output is NaN
    "gemma-3-sliding": MASKED_BY_A_WINDOW,
    "gpt-oss-sliding": MASKED_BY_A_WINDOW,
    "gqa-long": {"batch-and-heads-swapped"},  # one sequence
    "mistral": MASKED_BY_A_WINDOW,
    "mla-cached": {"keys-and-values-exchanged"},
    "qwen3.5-full": {"scale-of-the-padded-width"},  # needs no padding
    "sdpa-long": {"softmax-epsilon"},
}
QUICK_CASES = (
    "softmax-hidden",
    "mask-window",
    "rope-far",
    "cross",
    "gpt-oss-full",
)


@pytest.fixture(scope="module")
def gqa():
    return vectors.compute("gqa")


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
    old = {name: vectors.source(name) for name in ("rope", "softmax")}
    text = Plain.text
    monkeypatch.setattr(
        Plain, "text", lambda p, m: text(p, m) + "\n" * m.endswith("softmax")
    )
    assert vectors.source("rope") == old["rope"]
    assert vectors.source("softmax") != old["softmax"]


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
    of_heads = [n for n in names if n in "qk" or n.startswith("attention")]
    attention = ["scores", "weights", "weights", "return"]
    assert of_heads == ["q", "k", *(f"attention.{x}" for x in attention)]
    assert about["letters"][steps[names.index("q")]] == "(B, H, T, D)"
    assert tensors[steps[-1]].equal(tensors["output"])


# Which share of a case's mistakes a dtype may hide, at most.
HIDDEN = {"float64": 0, "float32": 0.02, "float16": 0.25, "bfloat16": 0.4}


def test_bfloat16_tells_the_wrong_scale_of_mla_apart():
    """It is off by .84, and was once called right."""
    _, about = vectors.compute("mla")
    for hidden in about["indistinguishable"].values():
        assert "mla-scale-of-the-model-width" not in hidden


@pytest.mark.parametrize("name", sampled(CASES, QUICK_CASES))
def test_in_each_dtype_outputs_have_their_name_or_it_is_said_to_hide(name):
    """Rounded to the dtype, and cast back to float32."""
    tensors, about = vectors.compute(name)
    right = tensors["output"]
    outputs = {
        way: tensors[f"mistake/{way}/output"] for way in about["mistakes"]
    }
    assert outputs
    for way, out in outputs.items():
        room = vectors.room(out, right)
        for other_way, other in outputs.items():
            least = min(room, vectors.room(other, right))
            difference = vectors.largest_difference(out, other)
            assert other_way == way or difference > least * 0.8
        assert not vectors.blank(out)
    dtypes = {"float64": torch.float64, **vectors.DTYPES}
    for (kind, dtype), back in product(dtypes.items(), (False, True)):
        indistinguishable = about["indistinguishable"].get(kind, [])
        assert len(indistinguishable) <= HIDDEN[kind] * len(outputs)

        def cast(y, dtype=dtype, back=back):
            y = vectors.as_dtype(y, dtype)
            return vectors.as_dtype(y, torch.float32) if back else y

        result = match.compare({"output": cast(right)}, tensors, about)
        assert result["is"] == "right", result
        for way, out in outputs.items():
            result = match.compare({"output": cast(out)}, tensors, about)
            if way not in indistinguishable:
                assert result["is"] in ("mistake", "acceptable")
            if result["is"] == "acceptable":
                assert about["mistakes"][way][0] == "mask-minus-1e9"
            if result["is"] in ("mistake", "acceptable"):
                assert {*about["mistakes"][way]} <= {*result["mistakes"]}
            else:
                assert {*about["mistakes"][way]} <= {
                    *result["indistinguishable"]
                }


@pytest.mark.parametrize(
    "name", sampled([x for x in CASES if vectors.simpler(x)], QUICK_CASES)
)
@torch.no_grad()
def test_a_case_has_the_mistakes_of_the_simpler_one(name):
    """Or they raise an error in it, or are known to change nothing there."""
    ids, simpler_ids = (
        {id for ids in about["mistakes"].values() for id in ids}
        for _, about in map(vectors.compute, (name, vectors.simpler(name)))
    )
    inputs, p = dict[str, torch.Tensor](), Plain()
    vectors.run_case(name, p, inputs)
    modules = vectors.modules_of(p)
    with vectors.Steps(modules) as steps:
        vectors.run_case(name, Plain(), inputs)
    in_code, silent = set(), set()
    for id, variant, record in vectors.mistakes_of(name, modules):
        lines = {x for y in variant for x in catalogue.place_of(y)[-1:]}
        if id not in simpler_ids - ids or not (
            record or lines & steps.functions
        ):
            continue
        in_code.add(id)
        with suppress(Exception):
            vectors.run_case(name, Plain(variant), inputs, record=record)
            silent.add(id)
    assert simpler_ids - ids - in_code <= OTHER_CODE.get(name, set())
    assert silent <= SILENT.get(name, set()) | SILENT[""]


@pytest.mark.parametrize("name", sampled(CASES, QUICK_CASES))
@torch.no_grad()
def test_what_a_dtype_computes_has_no_other_name(name, request):
    """The right code in bfloat16 and float16; in the audit, wrong code too."""
    tensors, about = vectors.compute(name)
    inputs = {
        x: y.double() if y.is_floating_point() else y
        for x, y in tensors.items()
        if x.startswith(("input/", "weight/"))
    }
    p = Plain()
    codes = [("", (), {})]
    vectors.run_case(name, p, dict(inputs))
    if request.config.option.markexpr == "audit":
        codes += vectors.mistakes_of(name, vectors.modules_of(p))
    for kind, (id, variant, record) in product(("bfloat16", "float16"), codes):
        try:
            plain, dtype = Plain(variant), vectors.DTYPES[kind]
            out, _ = vectors.run_case(name, plain, dict(inputs), dtype, record)
        except Exception:
            continue
        if out.shape != tensors["output"].shape:
            continue
        result = match.compare({"output": out}, tensors, about, kind)
        assert id or result["is"] == "right", result
        names = {*result["mistakes"]}
        if id and not out.isfinite().all():
            continue  # it is named by where NaN stands
        assert not names or id in names | SAME_IN_HALF, (id, result)


@pytest.mark.parametrize(
    ("fill", "want"),
    [
        (0.0, "zeros"),
        (torch.nan, "nan"),
        (torch.inf, "infinite"),
        (0.25, "constant"),
    ],
)
@pytest.mark.parametrize("name", sampled(CASES, QUICK_CASES))
def test_an_output_of_one_value_has_no_name_of_a_mistake(name, fill, want):
    tensors, about = vectors.compute(name)
    right = tensors["output"]
    if not right.is_floating_point():
        fill, want = (True, "constant") if fill else (False, "zeros")
    out = torch.full_like(right, fill)
    result = match.compare({"output": out}, tensors, about)
    assert (result["is"], result["mistakes"]) == (want, [])
    assert "\n" not in match.line_of(result, about, "zh")


def wrong_output(id):
    """The output of another program with this mistake, in float32."""
    variants = catalogue.every_variant(catalogue.catalogue()[id])
    modules = {"plain.gqa", "plain.attention"}
    variant = next(v for v in variants if {x.module for x in v} <= modules)
    return vectors.run_case("gqa", Plain(variant), {}, torch.float32)[0]


@pytest.mark.parametrize(
    ("change", "dtype", "want"),
    [
        (lambda y: y, "", "right"),
        (lambda y: y.double(), "", "right"),
        (lambda y: y.flatten(), "", "right"),
        (lambda y: y.bfloat16(), "", "right"),
        (lambda y: y.half(), "", "right"),
        (lambda y: y * 1.005, "", "unknown"),
        (lambda y: y * 1.005, "bfloat16", "right"),
        (lambda y: y.where(y < y.max(), torch.nan), "", "unknown"),
        (lambda y: wrong_output("scale-missing"), "", "scale-missing"),
        (lambda y: wrong_output("groups-tiled"), "", "groups-tiled"),
        (lambda y: wrong_output("groups-tiled").bfloat16(), "", "groups-tiled"),
        (lambda y: wrong_output("causal-sees-next"), "", "causal-sees-next"),
    ],
)
def test_an_output_is_right_or_a_mistake_or_unknown(gqa, change, dtype, want):
    out = change(gqa[0]["output"])
    result = match.compare({"output": out}, *gqa, dtype)
    if want in ("right", "unknown"):
        assert result["is"] == want and result["mistakes"] == []
    else:
        assert result["is"] == "mistake" and want in result["mistakes"]
    if want == "unknown":
        assert out.ndim == len(result["at"])


def with_finite_mask(tensors, dtype):
    """As many write it: the least number of the dtype, in the place of -inf."""
    least = torch.finfo(dtype).min
    if "input/x" in tensors:
        return tensors["input/x"].to(dtype).clamp(min=least).softmax(-1)
    q, k, v = (tensors[f"input/{x}"].to(dtype) for x in "qkv")
    bias = torch.zeros(tensors["input/mask"].shape, dtype=dtype)
    bias = bias.masked_fill(~tensors["input/mask"], least)
    return F.scaled_dot_product_attention(q, k, v, bias)


EMPTY_ROWS = {"softmax-hidden", "online-softmax", "sdpa-masked"}


@pytest.mark.parametrize("name", sorted(EMPTY_ROWS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_mean_where_no_key_is_seen_is_acceptable(name, dtype, tmp_path):
    tensors, about = vectors.compute(name)
    out = with_finite_mask(tensors, dtype)
    empty = (tensors["output"] == 0).all(-1)
    assert empty.any() and not (out[empty] == 0).any()
    result = match.compare({"output": out}, tensors, about)
    assert result["is"] == "acceptable"
    assert result["convention"] == "empty-row-mean"
    path = tmp_path / "mine.npy"
    path.write_bytes(npy(out.float(), False))
    options = argparse.Namespace(
        file=path, case=name, dtype="", json=False, lang="en"
    )
    assert match.run(options).startswith("acceptable: ")  # exit code 0
    wrong = out.where(empty[..., None], out.roll(1, dims=-2))
    result = match.compare({"output": wrong}, tensors, about)
    assert result["is"] != "acceptable" and "convention" not in result


def test_only_rows_without_keys_have_two_conventions():
    for name in EMPTY_ROWS | {"sdpa", "gqa", "mask-causal", "flash-masked"}:
        tensors, about = vectors.compute(name)
        assert bool(about["acceptable"]) == (name in EMPTY_ROWS), name
        stored = [x.split("/")[1] for x in tensors if x.startswith("accept")]
        assert stored == about["acceptable"]


def test_what_is_written_is_what_the_schema_says(folder):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((folder / "schema.json").read_text("utf-8"))
    kind = jsonschema.Draft202012Validator
    kind.check_schema(schema)
    valid = kind(schema).is_valid
    index = json.loads((folder / "index.json").read_text("utf-8"))
    files = [match.read(path)[1] for path in folder.glob("*.safetensors")]
    assert len(files) == 2 and files[0]["format"] == vectors.FORMAT
    for data in index, *files:
        kind(schema).validate(data)
        for name in data:  # each entry is asked for, and has a kind
            rest = {x: y for x, y in data.items() if x != name}
            assert not valid(rest), name
            assert not valid(data | {name: None}), name
        assert not valid(data | {"more": 1})
        assert not valid(data | {"format": vectors.FORMAT + 1})
    for name in "tolerance", "indistinguishable":
        assert not valid(files[0] | {name: {"float32": {}}})


def test_a_file_of_a_later_format_is_refused(folder, monkeypatch):
    path = folder / "rope.safetensors"
    assert match.case_of(str(path))[1]["case"] == "rope"
    monkeypatch.setattr(vectors, "FORMAT", 0)
    with pytest.raises(ValueError, match="has format 1; this version reads 0"):
        match.case_of(str(path))


def test_of_rows_with_pads_only_real_tokens_are_compared():
    case = vectors.compute("gqa-pads")
    valid = case[0]["input/valid"]
    padded = torch.full((*valid.shape, 7), torch.nan)
    padded[valid] = case[0]["output"]
    for mine in (padded, padded[valid], padded.flatten()):
        assert match.compare({"output": mine}, *case)["is"] == "right"


def test_the_first_step_that_differs_is_named(gqa):
    tensors, about = gqa
    (scores,) = (x for x in tensors if x.endswith("scores"))
    wrong = {"output": 0 * tensors["output"]}
    steps = {x: y for x, y in tensors.items() if x.startswith("step/")}
    later = {x: y + (x >= scores) for x, y in steps.items()}
    result = match.compare(wrong | later, tensors, about)
    assert result["first"] == scores
    assert "first" not in match.compare(wrong | steps, tensors, about)


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
    output = match.read(path)[0]["output"]
    assert match.fit(output, right, None).equal(right)


def test_numpys_own_files_are_read(tmp_path):
    numpy = pytest.importorskip("numpy")
    x = numpy.arange(6.0, dtype="f4").reshape(2, 3)
    for array in (x, x.T, x.astype("f8"), x.astype("f2"), x > 2):
        numpy.save(tmp_path / "x.npy", array)
        output = match.read(tmp_path / "x.npy")[0]["output"]
        assert output.tolist() == array.tolist()


def test_what_safetensors_writes_is_read(folder):
    from safetensors.torch import load_file

    path = folder / "rope.safetensors"
    tensors, about = match.read(path)
    want = load_file(path)
    assert tensors.keys() == want.keys()
    assert all(value.equal(want[name]) for name, value in tensors.items())
    assert about["case"] == "rope"
    assert re.fullmatch("[0-9a-f]{64}", about["source"])
    index = json.loads((folder / "index.json").read_text("utf-8"))
    for id, line in about["titles"].items():
        title = index["titles"][id]
        assert line["en"] == title["en"]
        assert re.search("[\u4e00-\u9fff]", title["zh"])
    assert index["cases"]["rope"]["source"] == about["source"]
