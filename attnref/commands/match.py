"""attnref match: whether an output is right, and which mistake it has."""

import argparse
import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnref.words import add_language, language_of_locale, message

if TYPE_CHECKING:
    from torch import Tensor

# What safetensors and NumPy call the types that may be read.
KINDS = {"F64": "float64", "F32": "float32", "F16": "float16"}
KINDS |= {"BF16": "bfloat16", "BOOL": "bool", "U8": "uint8", "I64": "int64"}
KINDS |= {"<f8": "float64", "<f4": "float32", "<f2": "float16"}
KINDS |= {"|b1": "bool", "|u1": "uint8", "<i8": "int64"}
NEAR = 4e-4  # of the largest element: half of what tells two outputs apart


def _tensor(data: bytes, kind: str, shape: Any) -> "Tensor":
    import torch

    if kind not in KINDS:
        raise ValueError(message("elements of type {} are not read", kind))
    dtype = getattr(torch, KINDS[kind])
    if not data:
        return torch.empty(*shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def read(path: Path) -> tuple[dict[str, "Tensor"], Any]:
    """Tensors by name, and what a case says of them."""
    data = path.read_bytes()
    if path.suffix == ".npy":
        wide = 2 if data[6] == 1 else 4
        end = 8 + wide + int.from_bytes(data[8 : 8 + wide], "little")
        head = ast.literal_eval(data[8 + wide : end].decode("latin-1"))
        shape, backwards = head["shape"], head["fortran_order"]
        shape = shape[::-1] if backwards else shape
        value = _tensor(data[end:], head["descr"], shape)
        axes = [*range(len(shape))][:: -1 if backwards else 1]
        return {"output": value.permute(axes)}, None
    if path.suffix != ".safetensors":
        return {"output": _tensor(data, "F32", (-1,))}, None
    end = 8 + int.from_bytes(data[:8], "little")
    header, tensors = json.loads(data[8:end]), {}
    about = header.pop("__metadata__", {}).get("attnref")
    for name, each in header.items():
        start, stop = (end + n for n in each["data_offsets"])
        tensors[name] = _tensor(data[start:stop], each["dtype"], each["shape"])
    return tensors, about and json.loads(about)


def of_case(name: str) -> tuple[dict[str, "Tensor"], Any]:
    """From its file, or computed here."""
    from attnref.check.vectors import check_case, computed

    if name.endswith(".safetensors"):
        tensors, about = read(Path(name))
        if about is None:
            raise ValueError(message("{} is not written by vectors", name))
        return tensors, about
    check_case(name)
    return computed(name)


def fitted(mine: "Tensor", right: "Tensor", valid: Any) -> "Tensor":
    """In the shape of the right output; of real tokens, where it has only
    these."""
    whole = right.shape if valid is None else valid.shape + right.shape[1:]
    for shape in (right.shape, whole):
        if mine.dim() == 1 and mine.numel() == shape.numel():  # raw
            mine = mine.reshape(shape)
    if valid is not None and mine.shape[:2] == valid.shape:
        mine = mine[valid]
    if mine.shape != right.shape:
        shapes = tuple(mine.shape), tuple(right.shape)
        raise ValueError(message("the shape is {}, and should be {}", *shapes))
    return mine


def compared(
    mine: dict[str, "Tensor"],
    tensors: dict[str, "Tensor"],
    about: Any,
    dtype: str = "",
) -> dict[str, Any]:
    """What `--json` prints."""
    from attnref.check.vectors import apart, largest

    right = tensors["output"]
    if "output" not in mine:
        raise ValueError(message("the file has no tensor {!r}", "output"))
    own = fitted(mine["output"], right, tensors.get("input/valid"))
    kind = dtype or str(own.dtype).removeprefix("torch.")
    tolerance = about["tolerance"].get(kind, about["tolerance"]["float32"])
    bound = max(tolerance["output"], NEAR * largest(right))
    gaps = {
        id: apart(own, tensors[f"mistake/{id}/output"])
        for id in about["mistakes"]
    }
    gap = apart(own, right)
    result: dict[str, Any] = {"case": about["case"], "difference": gap}
    result |= {"tolerance": tolerance["output"], "mistakes": []}
    nearest = min(gaps, key=lambda id: gaps[id], default="")
    if gap <= tolerance["output"]:
        result["is"] = "right"
    elif nearest and gaps[nearest] <= min(bound, gap):
        result["is"] = "mistake"
        result["mistakes"] = about["mistakes"][nearest]
    else:
        result["is"] = "unknown"
    far = (own.double() - right.double()).abs().nan_to_num(float("inf"))
    result["at"] = [int(n) for n in (far == far.max()).nonzero()[0]]
    for name in sorted(tolerance.keys() & mine.keys() - {"output"}):
        if mine[name].shape != tensors[name].shape or (
            apart(mine[name], tensors[name]) > tolerance[name]
        ):
            result["first"] = name
            break
    return result


def said(result: dict[str, Any], about: Any, language: str) -> str:
    """One line."""
    from attnref.check.report import page_of

    gap = f"{result['difference']:.2g}", f"{result['tolerance']:.2g}"
    if result["is"] == "right":
        line = message("right: off by at most {}; rounding may give {}", *gap)
    elif result["is"] == "mistake":
        ids = result["mistakes"]
        first = about["titles"][ids[0]][language]
        line = message("mistake {}: {}", " / ".join(ids), first)
        line += f" ({page_of(ids[0], language)})"
    else:
        at = tuple(result["at"])
        line = message("unknown: off by {} at {}", gap[0], at)
    if "first" in result:
        line += message("; first at {}", result["first"])
    return line


def run(options: argparse.Namespace) -> str:
    mine, _ = read(Path(options.file))
    tensors, about = of_case(options.case)
    result = compared(mine, tensors, about, options.dtype)
    text = json.dumps(result, ensure_ascii=False, indent=2)
    if not options.json:
        text = said(result, about, options.lang or language_of_locale())
    if result["is"] == "right":
        return text
    print(text, flush=True)
    raise SystemExit(1)


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "match",
        help="an output against a known answer: right, or which mistake",
        description="Compare an output with a case of `vectors`, and "
        "name the mistake if it is a known one. Exit code: 0 if it is right, "
        "1 if not, 2 if the command is wrong.",
        epilog=message("example: {}", "%(prog)s gqa.safetensors mine.npy"),
    )
    add = parser.add_argument
    add("case", help="its file, NAME.safetensors, or its name: gqa, rope, ...")
    add("file", help=".npy, .safetensors (`output`, and steps), or raw float32")
    add(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="",
        help="the dtype it was computed in; default: as in the file",
    )
    add("--json", action="store_true", help="for programs")
    add_language(parser)
    parser.set_defaults(run=run)
