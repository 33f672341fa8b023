"""attnref match: say whether an output is right, or which mistake it has."""

import argparse
import ast
import json
from collections.abc import Iterable
from math import prod
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from attnref.commands.vectors import packages
from attnref.words import add_language, language_of_locale, message

if TYPE_CHECKING:
    from torch import Tensor

# The dtypes that are read, by their names in safetensors and in NumPy.
FILE_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16"}
FILE_DTYPES |= {
    "BF16": "bfloat16",
    "BOOL": "bool",
    "U8": "uint8",
    "I64": "int64",
}
FILE_DTYPES |= {"<f8": "float64", "<f4": "float32", "<f2": "float16"}
FILE_DTYPES |= {"|b1": "bool", "|u1": "uint8", "<i8": "int64"}
EXACT = "float32", "float64"  # the others are half precision
BLANK = {
    "zeros": "nothing computed: all elements are 0",
    "nan": "nothing computed: no element is finite, and some are NaN",
    "infinite": "nothing computed: all elements are infinite",
    "constant": "nothing computed: all elements are the same",
}
PASSING = "right", "acceptable"
CONVENTIONS = {
    "empty-row-mean": "acceptable: a query that sees no key gets the mean of "
    "all values, as elsewhere; here it gets 0",
}
MAX_BYTES = 2**30  # of a file: no case has a thousandth of it
NEAR = 0.4  # share of `room` within which an output is near to a mistake
TIE = 1.5  # mistakes at most so many times as far as the nearest are named too


def _content(path: Path) -> bytes:
    """Read a regular file; a device or a pipe may never end."""
    status = path.stat()
    if not S_ISREG(status.st_mode):
        raise ValueError(message("{} is not a regular file", path))
    if status.st_size > MAX_BYTES:
        text = "{} has {} bytes: more than any output of a case"
        raise ValueError(message(text, path, status.st_size))
    with path.open("rb") as file:
        return file.read(status.st_size)


# Of a header whose tensors would need other sizes than the file has.
SIZES_DIFFER = "the header claims {} bytes, and the file holds {}"


def _tensor(data: bytes, name: str, shape: Any) -> "Tensor":
    """A tensor from its bytes and the name of its dtype. A wrong size is
    refused before memory is reserved."""
    import torch

    if name not in FILE_DTYPES:
        raise ValueError(message("elements of type {} are not read", name))
    dtype = getattr(torch, FILE_DTYPES[name])
    size = prod(shape) * dtype.itemsize
    if size != len(data) or min(shape, default=0) < 0:
        raise ValueError(message(SIZES_DIFFER, size, len(data)))
    if not data:
        return torch.empty(*shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def read(path: Path) -> tuple[dict[str, "Tensor"], Any]:
    """The tensors of a file by name, and the metadata of a case."""
    data = _content(path)
    try:
        return _parse(data, path.suffix)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except (ArithmeticError, LookupError, SyntaxError, TypeError) as error:
        raise ValueError(message("{} is damaged: {}", path, error)) from error
    except (AttributeError, MemoryError, RecursionError) as error:
        raise ValueError(message("{} is damaged: {}", path, error)) from error


def _parse(data: bytes, suffix: str) -> tuple[dict[str, "Tensor"], Any]:
    if suffix == ".npy":
        return {"output": _parse_npy(data)}, None
    if suffix != ".safetensors":
        count = len(data) // 4
        return {"output": _tensor(data[: 4 * count], "F32", (count,))}, None
    start = 8 + int.from_bytes(data[:8], "little")
    if start > len(data):
        raise ValueError(message(SIZES_DIFFER, start, len(data)))
    header, tensors = json.loads(data[8:start]), {}
    metadata = header.pop("__metadata__", {}).get("attnref")
    for name, entry in header.items():
        first, last = (start + n for n in entry["data_offsets"])
        content = data[first:last]
        tensors[name] = _tensor(content, entry["dtype"], entry["shape"])
    return tensors, metadata and json.loads(metadata)


def _parse_npy(data: bytes) -> "Tensor":
    width = 2 if data[6] == 1 else 4
    end = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    header = ast.literal_eval(data[8 + width : end].decode("latin-1"))
    step = -1 if header["fortran_order"] else 1
    shape = header["shape"][::step]
    axes = [*range(len(shape))][::step]
    return _tensor(data[end:], header["descr"], shape).permute(axes)


def case_of(name: str) -> tuple[dict[str, "Tensor"], Any]:
    """A case from its file, or computed from its name."""
    from attnref.judge.vectors import FORMAT, check_case, compute

    if name.endswith(".safetensors"):
        tensors, about = read(Path(name))
        if about is None:
            raise ValueError(message("{} is not written by vectors", name))
        if about.get("format", 1) > FORMAT:
            text = "{} has format {}; this version reads {}"
            raise ValueError(message(text, name, about["format"], FORMAT))
        return tensors, about
    check_case(name)
    return compute(name)


def fit(output: "Tensor", right: "Tensor", valid: Any) -> "Tensor":
    """Bring an output into the shape of the right one. If this has only real
    tokens, the others are left out."""
    shape = right.shape if valid is None else valid.shape + right.shape[1:]
    for sizes in (right.shape, shape):
        if output.dim() == 1 and output.numel() == sizes.numel():  # raw
            output = output.reshape(sizes)
    if valid is not None and output.shape[:2] == valid.shape:
        output = output[valid]
    if output.shape != right.shape:
        shapes = tuple(output.shape), tuple(right.shape)
        raise ValueError(message("the shape is {}, and should be {}", *shapes))
    return output


def dtype_of(output: "Tensor", right: "Tensor") -> str:
    """The dtype in which an output was computed: a half precision, if it holds
    all elements exactly, and not also those of the right output."""
    from attnref.judge.differences import largest_difference
    from attnref.judge.vectors import DTYPES

    name = str(output.dtype).removeprefix("torch.")
    for half in ("bfloat16", "float16") if name in EXACT else ():
        gap, right_gap = (
            largest_difference(x, x.to(DTYPES[half])) for x in (output, right)
        )
        if gap == 0 < right_gap:
            return half
    return name


def compare(
    mine: dict[str, "Tensor"],
    tensors: dict[str, "Tensor"],
    about: Any,
    dtype: str = "",
) -> dict[str, Any]:
    """Compare tensors with those of a case; the result is what --json prints.

    The output is right, or has a mistake, if it is nearer to this than to all
    others, all of them rounded to its dtype. A mistake that this dtype does not
    tell from rounding is no mistake there.
    """
    from attnref.judge.differences import largest_difference

    right = tensors["output"]
    slopes = gradients_of(mine, tensors, about, dtype)
    if "output" not in mine and slopes:
        return {"case": about["case"], **slopes}
    if "output" not in mine:
        raise ValueError(message("the file has no tensor {!r}", "output"))
    output = fit(mine["output"], right, tensors.get("input/valid"))
    name = dtype or dtype_of(output, right)
    tolerances = about["tolerance"]
    tolerance = tolerances.get(name, tolerances["float32"])
    gap = largest_difference(output, right)
    result: dict[str, Any] = {"case": about["case"], "dtype": name}
    result |= {"difference": gap, "tolerance": tolerance["output"]}
    result |= {"largest": about["largest"], "mistakes": []}
    variants, hidden = about["mistakes"], about["indistinguishable"]
    result["indistinguishable"] = _ids(variants, hidden.get(name, []))
    result["is"], nearest = _judge(output, tensors, about, name)
    if nearest:
        result["mistakes"] = _ids(variants, nearest)
    for other in about.get("acceptable", ()) if result["is"] != "right" else ():
        wanted = tensors[f"acceptable/{other}/output"]
        if largest_difference(output, wanted) <= tolerance["output"]:
            result |= {"is": "acceptable", "convention": other}
    differences = (output.double() - right.double()).abs()
    differences = differences.nan_to_num(float("inf"))
    index = (differences == differences.max()).nonzero()[0]
    result["at"] = [int(n) for n in index]
    steps = sorted(tolerance.keys() & mine.keys() - {"output"})
    for step in steps:
        if mine[step].shape != tensors[step].shape or (
            largest_difference(mine[step], tensors[step]) > tolerance[step]
        ):
            result["first"] = step
            break
    if result["is"] == "unknown":
        for half in ("float16", "bfloat16") if name in EXACT else ():
            if gap <= tolerances[half]["output"]:
                result["rounding"] = half
                break
        if not steps and about["simpler"]:
            result["try"] = about["simpler"]
    if slopes:
        result["gradients"] = slopes
    return result


def gradients_of(
    mine: dict[str, "Tensor"],
    tensors: dict[str, "Tensor"],
    about: Any,
    dtype: str = "",
) -> dict[str, Any]:
    """What the gradients of `mine` are together; nothing if it has none.

    Each is compared with the right one and with those of each mistake of the
    backward pass, as a share of its largest element.
    """
    from attnref.judge.differences import (
        distance,
        largest,
        largest_difference,
    )

    names = [x for x in mine if x.startswith("gradient/")]
    if not names:
        return {}
    for name in names:
        if name not in tensors:
            raise ValueError(message("the case has no tensor {!r}", name))
    got = {x: fit(mine[x], tensors[x], None) for x in names}
    kind = dtype or dtype_of(got[names[0]], tensors[names[0]])
    tolerances = about["tolerance"]
    tolerance = tolerances.get(kind, tolerances["float32"])
    wrong = [
        x
        for x in names
        if largest_difference(got[x], tensors[x]) > tolerance[x]
    ]
    result: dict[str, Any] = {"is": "right", "mistakes": [], "wrong": wrong}
    result["dtype"] = kind
    if not wrong:
        return result

    def gap(way: str) -> float:
        """How far all are from the right ones, or from those of a mistake."""
        total = 0.0
        for name in names:
            right = tensors[name]
            want = tensors.get(f"mistake/{way}/{name}", right)
            size = max(largest(right), largest(want)) or 1.0
            total += (distance(got[name], want) / size) ** 2
        return float(total**0.5)

    gaps = {way: gap(way) for way in about["backward"]}
    first = min(gaps, key=gaps.__getitem__, default="")
    result["is"] = "unknown"
    if first and gaps[first] < gap("") / 4:
        near = [x for x in gaps if gaps[x] <= TIE * gaps[first]]
        result["is"] = "mistake"
        result["mistakes"] = _ids(
            about["backward"], sorted(near, key=gaps.__getitem__)
        )
    return result


def _judge(
    output: "Tensor", tensors: dict[str, "Tensor"], about: Any, name: str
) -> tuple[str, list[str]]:
    """What an output of this dtype is: "right", "mistake", "unknown" or a word
    of BLANK; and the variants of mistakes to which it is nearest."""
    from attnref.judge.differences import (
        as_dtype,
        distance,
        largest,
        largest_difference,
    )
    from attnref.judge.vectors import DTYPES, blank, room

    right, dtype = tensors["output"], DTYPES.get(name)
    tolerances = about["tolerance"]
    tolerance = tolerances.get(name, tolerances["float32"])["output"]
    wrong = {x: tensors[f"mistake/{x}/output"] for x in about["mistakes"]}
    rounded = {x: as_dtype(out, dtype) for x, out in wrong.items()}
    is_right = largest_difference(output, right) <= tolerance
    output = as_dtype(output, dtype)
    distances = {x: distance(output, out) for x, out in rounded.items()}
    distance_to_right = distance(output, as_dtype(right, dtype))
    first = min(distances, key=distances.__getitem__, default="")

    def is_near(variant: str) -> bool:
        """Whether only rounding lies between, more of it for larger outputs."""
        scale = largest(rounded[variant]) / (about["largest"] or 1.0)
        limit = NEAR * room(wrong[variant], right)
        limit = max(tolerance * max(1.0, scale), limit)
        return bool(largest_difference(output, rounded[variant]) <= limit)

    if not is_right and (word := blank(output)):
        return word, []
    hidden = about["indistinguishable"].get(name, [])
    if is_right and (
        first in hidden or not first or distance_to_right <= distances[first]
    ):
        return "right", []
    if first and distances[first] < distance_to_right / 4 and is_near(first):
        limit = TIE * distances[first]
        near = [x for x in distances if distances[x] <= limit and is_near(x)]
        return "mistake", sorted(near, key=distances.__getitem__)
    return "unknown", []


def _ids(variants: dict[str, list[str]], names: Iterable[str]) -> list[str]:
    """The ids of the mistakes with these variants."""
    return [*dict.fromkeys(id for name in names for id in variants[name])]


def title_of(id: str, about: dict[str, Any], language: str) -> str:
    """The title of a mistake: a file of a case has only the English one."""
    from attnref.judge.gradients import entry

    try:
        return str(getattr(entry(id).title, language))
    except KeyError:
        return str(about["titles"][id]["en"])


def line_of(result: dict[str, Any], about: Any, language: str) -> str:
    """The result in one line, and one for gradients, if there are some."""
    lines = []
    if "difference" in result:
        lines.append(_line_of_output(result, about, language))
    if slopes := result.get("gradients", "wrong" in result and result):
        lines.append(_line_of_gradients(slopes, about, language))
    return "\n".join(lines)


def _line_of_gradients(
    result: dict[str, Any], about: Any, language: str
) -> str:
    if result["is"] == "right":
        return message("gradients: right")
    names = [x.removeprefix("gradient/") for x in result["wrong"]]
    line = message("gradients of {} are wrong", message(", ").join(names))
    if not result["mistakes"]:
        return line + message("; no known mistake has all of them")
    ids = result["mistakes"]
    title = title_of(ids[0], about, language)
    return line + message("; mistake {}: {}", " / ".join(ids), title)


def _line_of_output(result: dict[str, Any], about: Any, language: str) -> str:
    from attnref.judge.report import page_of

    largest = result["largest"] or 1.0
    gap = f"{result['difference'] / largest:.2g}"
    tolerance = f"{result['tolerance'] / largest:.2g}"
    place = tuple(result["at"])
    if result["is"] == "right":
        line = message(
            "right: off by at most {}; rounding may give {}", gap, tolerance
        )
    elif result["is"] == "acceptable":
        line = message(CONVENTIONS[result["convention"]])
    elif result["is"] == "mistake":
        ids = result["mistakes"]
        title = title_of(ids[0], about, language)
        line = message("mistake {}: {}", " / ".join(ids), title)
        line += f" ({page_of(ids[0], language)})"
    elif result["is"] == "unknown":
        line = message("unknown: off by {} at {}", gap, place)
    else:
        line = message(BLANK[result["is"]])
    if result["is"] in ("right", "unknown"):
        line += message(" (of the largest element, {})", f"{largest:.2g}")
    if "rounding" in result:
        line += message(
            "; {} would round so much: is a step computed in it?",
            result["rounding"],
        )
    if "first" in result:
        line += message("; first at {}", result["first"])
    elif "try" in result:
        line += message("; try the simpler case {} first", result["try"])
    elif result["is"] == "unknown":
        line += message("; save your steps under the names of the case")
    if result["is"] == "right" and result["indistinguishable"]:
        ids = message(", ").join(result["indistinguishable"])
        line += message("; {} cannot tell it from {}", result["dtype"], ids)
    return line


def run(options: argparse.Namespace) -> str:
    with packages():
        mine, _ = read(Path(options.file))
        tensors, about = case_of(options.case)
        result = compare(mine, tensors, about, options.dtype)
    text = json.dumps(result, ensure_ascii=False, indent=2)
    if not options.json:
        text = line_of(result, about, options.lang or language_of_locale())
    slopes = result.get("gradients", result)
    if slopes["is"] in PASSING and result["is"] in PASSING:
        return text
    print(text, flush=True)
    raise SystemExit(1)


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "match",
        help="an output against a known answer: right, or which mistake",
        description="Compare an output with a case of `vectors`, and "
        "name the mistake if it is a known one. Exit code: 0 if it is right or "
        "acceptable, 1 if not, 2 if the command is wrong.",
        epilog=message("example: {}", "%(prog)s gqa.safetensors mine.npy"),
    )
    add = parser.add_argument
    add("case", help="its file, NAME.safetensors, or its name: gqa, rope, ...")
    add(
        "file",
        help=".npy, .safetensors (`output`, steps, gradients), or raw float32",
    )
    add(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="",
        help="the dtype it was computed in; default: as in the file",
    )
    add("--json", action="store_true", help="for programs")
    add_language(parser)
    parser.set_defaults(run=run)
