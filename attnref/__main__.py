"""python -m attnref kv: what a model's cache takes, on the command line."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from attnref.kv_memory import (
    DTYPES,
    Storage,
    growth,
    kv_bytes,
    largest_batch,
    longest_context,
    size,
    state_bytes,
    storage_of,
    token_bytes,
)
from attnref.specs import (
    Chunked,
    Compressed,
    Group,
    Mla,
    Model,
    Recurrent,
    find_model,
    models,
)

CONTEXTS = (4096, 32_768, 131_072, 1_048_576)
UNITS = {
    **{f"{k}B": 1000**i for i, k in enumerate(("", "K", "M", "G", "T"))},
    **{f"{k}iB": 1024**i for i, k in enumerate("KMGT", 1)},
}


def a_count(text: str) -> int:
    """A whole number from 1 on: 131072, 131,072, 128K or 1M (of 1024)."""
    number = r"(\d{1,18}|\d{1,3}(?:[,_]\d{3}){1,5})([KM]?)"
    match = re.fullmatch(number, text.strip().upper())
    count = int(re.sub("[_,]", "", match[1])) if match else 0
    if not match or not count:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return count * {"": 1, "K": 1024, "M": 1024**2}[match[2]]


def a_budget(text: str) -> int:
    """Bytes with their unit: 80GiB, 24GB or 512B."""
    match = re.fullmatch(
        r"(\d{1,18}(?:\.\d{1,9})?) ?([KMGT]?I?B)", text.strip().upper()
    )
    unit = UNITS.get(match[2].replace("I", "i")) if match else None
    if not match or unit is None or not (n := int(Fraction(match[1]) * unit)):
        raise argparse.ArgumentTypeError(f"{text!r} is no size like 80GiB")
    return n


def a_scale(text: str) -> tuple[int, int]:
    """Bits of a scale and how many numbers share it: 16/32."""
    match = re.fullmatch(r"(\d{1,3})/(\d{1,6})", text.strip())
    if not match or not int(match[1]) or not int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no scale like 16/32")
    return int(match[1]), int(match[2])


def describe(group: Group) -> str:
    """The kind of a group's layers, in a few words."""
    if isinstance(group, Recurrent):
        matrix = f"{group.key_dim} x {group.value_dim}"
        return f"recurrent, {group.state_heads} states of {matrix}"
    if isinstance(group, Mla):
        words = f"MLA {group.kv_lora_rank} + {group.qk_rope_head_dim}"
    elif isinstance(group, Compressed):
        words = f"K=V of {group.dim}, window {group.sliding_window:,}"
        if group.ratio is not None:
            words += f", compressed {group.ratio}:1"
    else:
        words = f"{group.variant} {group.q_heads or '?'}/{group.kv_heads}"
        width = f"{group.head_dim}"
        if group.v_head_dim != group.head_dim:
            width += f" and {group.v_head_dim}"
        words += f", heads of {width}"
        if isinstance(group, Chunked):
            words += f", chunks of {group.chunk:,}"
        elif group.window is not None:
            words += f", window {group.window:,}"
    return words + (f", index {group.index_dim}" if group.index_dim else "")


def exact(n: Fraction) -> int | float:
    return n.numerator if n.denominator == 1 else float(n)


def result(
    model: Model,
    *,
    tokens: Sequence[int],
    batch: int,
    dtype: str | Storage,
    ranks: int,
    budget: int | None,
) -> dict[str, Any]:
    """All that is printed of a model; with --json, just so."""
    storage = storage_of(model, dtype)
    added = growth(model, dtype=dtype, ranks=ranks)
    kept = {
        t: kv_bytes(model, t, batch=batch, dtype=dtype, ranks=ranks)
        for t in tokens
    }
    found: dict[str, Any] = {
        "id": model.id,
        "name": model.name,
        "max_context": model.max_context,
        "batch": batch,
        "dtype": dtype if isinstance(dtype, str) else dtype._asdict(),
        "ranks": ranks,
        "groups": [
            {
                "layers": group.layers,
                "kind": describe(group),
                "token_bytes_a_layer": exact(
                    token_bytes(group, storage, ranks=ranks).first
                ),
            }
            for group in model.groups
        ],
        "token_bytes": {
            "first": exact(added.first),
            "later": exact(added.later),
        },
        "state_bytes": state_bytes(model, ranks=ranks),
        "kv_bytes": kept,
        "sources": {s.label: s.url for s in model.sources},
        "note": model.note,
    }
    if budget is not None:
        found["longest_context"] = longest_context(
            model, budget, batch=batch, dtype=dtype, ranks=ranks
        )
        found["largest_batch"] = {
            t: largest_batch(model, t, budget, dtype=dtype, ranks=ranks)
            for t in tokens
        }
    return found


def lines(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def settings(found: dict[str, Any]) -> str:
    """How many sequences, stored how, on how many devices."""
    batch, ranks, stored = found["batch"], found["ranks"], found["dtype"]
    if isinstance(stored, dict):
        stored = "{bits} bits, scale {scale_bits}/{block}".format(**stored)
    many = "one sequence" if batch == 1 else f"{batch:,} sequences"
    split = f", a device of {ranks:,}" if ranks > 1 else ""
    return f"{many}, {stored}{split}"


def one(found: dict[str, Any], budget: int | None) -> str:
    """Everything about one model."""
    out = [
        f"{found['name']}, published with {found['max_context']:,} tokens",
        lines(
            [
                (
                    f"  {g['layers']} layers: {g['kind']}",
                    f"{g['token_bytes_a_layer']:,} B a token and layer",
                )
                for g in found["groups"]
            ]
        ),
    ]
    first, later = found["token_bytes"].values()
    out.append(f"a token: {first:,} B ({size(first)})")
    if first != later:
        out.append(f"once windows are full: {later:,} B ({size(later)})")
    if found["state_bytes"]:
        held = found["state_bytes"]
        out.append(f"whatever the length: {held:,} B ({size(held)}) a sequence")
    out.append(f"{settings(found)}:")
    rows = [["tokens", "bytes", ""]]
    rows += [
        [f"{t:,}", f"{n:,}", size(n)] for t, n in found["kv_bytes"].items()
    ]
    if budget is not None:
        most = [f"{n:,}" for n in found["largest_batch"].values()]
        for row, cell in zip(rows, ["batch that fits", *most], strict=True):
            row.append(cell)
    out.append(lines(rows))
    if budget is not None:
        longest = found["longest_context"]
        told = "any length" if longest is None else f"{longest:,} tokens each"
        out.append(f"longest in {size(budget)}: {told}")
    if found["note"]:
        out.append(f"note: {found['note']}")
    out.append(f"sources: {', '.join(found['sources'])}")
    return "\n".join(out)


def several(found: Sequence[dict[str, Any]], budget: int | None) -> str:
    """One line a model."""
    contexts = list(found[0]["kv_bytes"])
    head = ["model", "a token later", *(f"{t:,} tokens" for t in contexts)]
    head += [f"longest in {size(budget)}"] if budget is not None else []
    rows = [head]
    for f in found:
        row = [f["id"], size(f["token_bytes"]["later"])]
        row += [size(f["kv_bytes"][t]) for t in contexts]
        if budget is not None:
            longest = f["longest_context"]
            row.append("any length" if longest is None else f"{longest:,}")
        rows.append(row)
    return f"{settings(found[0])}:\n{lines(rows)}"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m attnref")
    commands = top.add_subparsers(required=True, metavar="command")
    kv = commands.add_parser("kv", help="bytes of a model's cache")
    kv.set_defaults(run=run_kv, fail=kv.error)
    kv.add_argument("--list", action="store_true", help="all models")
    kv.add_argument("--model", nargs="+", metavar="ID", help="see --list")
    kv.add_argument("--tokens", nargs="+", type=a_count, default=CONTEXTS)
    kv.add_argument("--batch", type=a_count, default=1)
    kv.add_argument(
        "--dtype", default="bf16", help=f"{', '.join(DTYPES)}, or shipped"
    )
    kv.add_argument(
        "--scale",
        type=a_scale,
        metavar="BITS/BLOCK",
        help="a scale of BITS for each BLOCK numbers: 16/32",
    )
    kv.add_argument("--ranks", type=a_count, default=1, help="devices")
    kv.add_argument(
        "--budget",
        type=a_budget,
        help="for the cache, a device: 80GiB (80GB is 74.5GiB)",
    )
    kv.add_argument("--json", action="store_true")
    return top


def run_kv(asked: argparse.Namespace) -> str:
    if asked.list == bool(asked.model):
        raise ValueError("pass --model with one or more ids, or --list")
    if asked.list and not asked.json:
        return lines([(m.id, m.name, m.date) for m in models().values()])
    chosen = [find_model(id) for id in asked.model or models()]
    dtype: str | Storage = asked.dtype
    if asked.scale:
        if dtype not in DTYPES:
            raise ValueError("--scale goes with a dtype of --dtype's list")
        dtype = DTYPES[dtype]._replace(
            scale_bits=asked.scale[0], block=asked.scale[1]
        )
    found = [
        result(
            model,
            tokens=asked.tokens,
            batch=asked.batch,
            dtype=dtype,
            ranks=asked.ranks,
            budget=asked.budget,
        )
        for model in chosen
    ]
    if asked.json:
        return json.dumps(found, indent=2, ensure_ascii=False)
    if len(found) == 1:
        return one(found[0], asked.budget)
    return several(found, asked.budget)


def main(arguments: Sequence[str]) -> str:
    asked = parser().parse_args(arguments)
    try:
        return str(asked.run(asked))
    except ValueError as error:
        asked.fail(str(error))  # which ends the program
        raise


if __name__ == "__main__":
    print(main(sys.argv[1:]))
