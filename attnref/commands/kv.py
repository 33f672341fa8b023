"""attnref kv: bytes of a model's KV cache, and what fits."""

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from attnref.check.words import WORDS, in_chinese, speaker, wide
from attnref.numbers.kv_memory import (
    DTYPES,
    Storage,
    dtype_called,
    growth,
    kv_bytes,
    largest_batch,
    longest_context,
    reserved,
    size,
    state_bytes,
    storage_of,
    token_bytes,
    weight_bytes,
)
from attnref.numbers.shapes import (
    Chunked,
    Compressed,
    Group,
    Mla,
    Model,
    Recurrent,
)
from attnref.released.devices import devices, find_device
from attnref.released.specs import find_model, models
from attnref.words import Text, language_of_locale

Say = Callable[..., str]
CONTEXTS = (4096, 32_768, 131_072, 1_048_576)
UNITS = {
    **{f"{k}B": 1000**i for i, k in enumerate(("", "K", "M", "G", "T"))},
    **{f"{k}iB": 1024**i for i, k in enumerate("KMGT", 1)},
}


def a_count(text: str) -> int:
    """A whole number of at least 1: 131072, 131,072, 128K (K = 1024), 1e6."""
    number = r"(\d{1,18}|\d{1,3}(?:[,_]\d{3}){1,5})([KM]?)"
    power = r"(\d{1,9}(?:\.\d{1,9})?E\d{1,2})"
    match = re.fullmatch(f"{number}|{power}", text.strip().upper())
    count = Fraction(0)
    if match:
        count = Fraction(re.sub("[_,]", "", match[1] or match[3]))
        count *= {"K": 1024, "M": 1024**2}.get(match[2], 1)
    if not count or count.denominator > 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number of at least 1, such as 4096, "
            "128K or 1e6"
        )
    return count.numerator


def a_size(text: str) -> int:
    """A number of bytes, from a text with a unit: 80GiB, 24GB or 512B."""
    match = re.fullmatch(
        r"(\d{1,18}(?:\.\d{1,9})?) ?([KMGT]?I?B)", text.strip().upper()
    )
    unit = UNITS.get(match[2].replace("I", "i")) if match else None
    if not match or unit is None or not (n := int(Fraction(match[1]) * unit)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size with a unit, such as 80GiB"
        )
    return n


def weights(text: str) -> int | Storage | str:
    """Bytes of all weights, the dtype that they are stored in, or `config`."""
    if text == "config":
        return text
    if text[:1].isdigit():
        return a_size(text)
    try:
        return dtype_called(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a size with a unit, such as 141GB, nor a "
            f"dtype: {error}"
        ) from None


def a_share(text: str) -> Fraction:
    """More than 0 and at most 1: 0.9."""
    if not re.fullmatch(r"\d?\.\d{1,9}|1", text) or not Fraction(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 0.9")
    return Fraction(text)


def a_scale(text: str) -> tuple[int, int]:
    """Bits of a scale, and how many elements share it: 16/32."""
    match = re.fullmatch(r"(\d{1,3})/(\d{1,6})", text.strip())
    if not match or not int(match[1]) or not int(match[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a scale such as 16/32: its bits, and how many "
            "elements share it"
        )
    return int(match[1]), int(match[2])


def kinds(language: str) -> dict[str, str]:
    """What `describe` says, but for what other words of the caller replace."""
    return {
        name.removeprefix("kind "): getattr(text, language)
        for name, text in WORDS.items()
        if name.startswith("kind ")
    }


def describe(group: Group, words: Mapping[str, str]) -> str:
    """What kind of layers a group has, in a few words."""
    if isinstance(group, Recurrent):
        if not group.state_heads:
            return words["convolution"].format(group.conv_channels)
        matrix = f"{group.key_dim}{words['by']}{group.value_dim}"
        return words["states"].format(group.state_heads, matrix)
    if isinstance(group, Mla):
        what = f"MLA {group.kv_lora_rank} + {group.qk_rope_head_dim}"
        what += "" if group.rotated else words["nope"]
    elif isinstance(group, Compressed):
        what = words["shared"].format(group.dim)
        what += words["window"].format(f"{group.sliding_window:,}")
        if group.ratio is not None:
            what += words["entries"].format(group.ratio)
    else:
        widths = dict.fromkeys((group.head_dim, group.v_head_dim))
        what = f"{group.variant} {group.q_heads or '?'}/{group.kv_heads}"
        what += words["heads"].format(words["and"].join(map(str, widths)))
        if group.window is not None:
            name = "chunk" if isinstance(group, Chunked) else "window"
            what += words[name].format(f"{group.window:,}")
    if group.index_dim:
        what += words["index"].format(group.index_dim)
    return what


def replicated(model: Model, ranks: int) -> dict[str, Fraction]:
    """What more devices than heads have several times, and how often."""
    found: dict[str, Fraction] = {}
    for group in model.groups:
        own = "latent" if isinstance(group, Mla) else "heads"
        for store in group.stores:
            fixed = store.role in ("index", "state", "conv")
            name = store.role if fixed else own
            times = Fraction(ranks, store.heads)
            if times > max(1, found.get(name, 1)):
                found[name] = times
    return found


def number(n: Fraction) -> int | float:
    return n.numerator if n.denominator == 1 else float(n)


def result(
    model: Model,
    *,
    tokens: Sequence[int],
    batch: int,
    dtype: str | Storage,
    ranks: int,
    budget: int | None,
    weights: int | Storage | None,
    language: str = "en",
    dp_attention: bool = False,
) -> dict[str, Any]:
    """Everything that is printed about a model; --json prints it as it is."""
    say, words = speaker(language), kinds(language)
    all_ranks, all_sequences = ranks, batch
    if dp_attention:  # each device has its own sequences, with all heads
        ranks, batch = 1, -(-batch // ranks)
    shipped = (name for name, other in models().items() if other.shipped)
    storage = storage_of(model, dtype, shipped)
    added = growth(model, dtype=dtype, ranks=ranks)
    kept = {
        t: kv_bytes(model, t, batch=batch, dtype=dtype, ranks=ranks)
        for t in tokens
    }
    found: dict[str, Any] = {
        "id": model.id,
        "name": model.name,
        "max_context": model.max_context or None,
        "batch": all_sequences,
        "dtype": dtype if isinstance(dtype, str) else dtype._asdict(),
        "ranks": all_ranks,
        "groups": [
            {
                "layers": group.layers,
                "kind": describe(group, words),
                "token_bytes_per_layer": number(
                    token_bytes(group, storage, ranks=ranks).first
                ),
            }
            for group in model.groups
        ],
        "token_bytes": {
            "first": number(added.first),
            "later": number(added.later),
        },
        "state_bytes": state_bytes(model, ranks=ranks),
        "replicated": {
            say(f"kv {name}"): number(times)
            for name, times in replicated(model, ranks).items()
        },
        "kv_bytes": kept,
        "reserved_bytes": {
            t: kv_bytes(
                reserved(model), t, batch=batch, dtype=dtype, ranks=ranks
            )
            for t in tokens
        },
        "params": model.params,
        "confidence": model.confidence,
        "sources": {s.label: s.url for s in model.sources},
        "note": model.note,
    }
    if dp_attention:
        found["replicated"] = {say("kv attention"): all_ranks}
    for name in ("context", "params_in"):
        if source := getattr(model, name):
            found[name] = {source.label: source.url}
    if budget is not None:
        left = budget
        if weights is not None:
            if isinstance(weights, Storage):
                if dp_attention:
                    found["attention_bytes"] = weight_bytes(
                        replace(model, params=model.attention_params),
                        weights,
                    )
                found["weight_bytes"] = weight_bytes(
                    model, weights, ranks=all_ranks, dp_attention=dp_attention
                )
            else:
                found["weight_bytes"] = -(-weights // ranks)
            left -= found["weight_bytes"]
        found["left_bytes"] = left
        found["longest_context"] = longest_context(
            model, left, batch=batch, dtype=dtype, ranks=ranks
        )
        found["largest_batch"] = {
            t: all_ranks
            // ranks
            * largest_batch(model, t, left, dtype=dtype, ranks=ranks)
            for t in tokens
        }
    return found


def lines(rows: Sequence[Sequence[str]]) -> str:
    """Rows as text: the first column flush left, the others flush right."""
    widths = [max(map(wide, column)) for column in zip(*rows, strict=True)]
    out = []
    for row in rows:
        rooms = [
            " " * (width - wide(cell))
            for cell, width in zip(row, widths, strict=True)
        ]
        cells = [row[0] + rooms[0], *map(str.__add__, rooms[1:], row[1:])]
        out.append("  ".join(cells).rstrip())
    return "\n".join(out)


def settings(found: dict[str, Any], say: Say) -> str:
    """Number of sequences, format of the cache, number of devices."""
    batch, ranks, stored = found["batch"], found["ranks"], found["dtype"]
    return say(
        "kv settings",
        many=say("kv one") if batch == 1 else say("kv many", n=batch),
        stored=say("kv stored", **stored)
        if isinstance(stored, dict)
        else stored,
        split=say("kv split", ranks=ranks) if ranks > 1 else "",
    )


def left_over(found: dict[str, Any], budget: int, say: Say) -> str:
    """What the weights leave of the memory per device, if they fit."""
    left = found["left_bytes"]
    return say(
        "kv left" if left > 0 else "kv full",
        taken=size(found["weight_bytes"]),
        budget=size(budget),
        left=size(left),
    )


def one(found: dict[str, Any], budget: int | None, say: Say) -> str:
    """Everything about one model."""
    layers = [
        (
            say("kv layers", **g),
            say("kv each", n=g["token_bytes_per_layer"]),
        )
        for g in found["groups"]
    ]
    longest = found["max_context"]
    name = say("kv name" if longest else "kv unbound", **found, n=longest)
    out = [name, lines(layers)]
    first, later = found["token_bytes"].values()
    out.append(say("kv first", n=first, size=size(first)))
    if first != later:
        out.append(say("kv later", n=later, size=size(later)))
    if held := found["state_bytes"]:
        out.append(say("kv states", n=held, size=size(held)))
    if copies := found["replicated"]:
        times = (say("kv times", name=name, n=n) for name, n in copies.items())
        out.append(say("kv replicated", times=say("and").join(times)))
    out.append(settings(found, say))
    rows = [[say("kv tokens"), say("kv bytes"), ""]]
    rows += [
        [f"{t:,}", f"{n:,}", size(n)] for t, n in found["kv_bytes"].items()
    ]
    windows = found["reserved_bytes"] != found["kv_bytes"]
    if windows:
        taken = [size(n) for n in found["reserved_bytes"].values()]
        for row, cell in zip(rows, [say("kv reserved"), *taken], strict=True):
            row.append(cell)
    if budget is not None:
        most = [f"{n:,}" for n in found["largest_batch"].values()]
        for row, cell in zip(rows, [say("kv fit"), *most], strict=True):
            row.append(cell)
    out.append(lines(rows))
    if windows:
        out.append(say("kv full length"))
    if device := found.get("device"):
        out.append(say("kv device", **device))
    if budget is not None:
        if held := found.get("attention_bytes"):
            out.append(say("kv dp", size=size(held)))
        if "weight_bytes" in found:
            out.append(left_over(found, budget, say))
        if (left := found["left_bytes"]) > 0:
            n = found["longest_context"]
            name = "kv endless" if n is None else "kv longest"
            out.append(say(name, left=size(left), n=n))
    if found["note"]:
        note = Text(found["note"], in_chinese(found["note"]))
        out.append(say("kv note", note=note))
    for name in ("sources", "context", "params_in"):
        if name in found:
            out.append(say(f"kv {name}", names=", ".join(found[name])))
    if device:
        out.append(say("kv seen", url=device["source"]))
    if found["confidence"] == "given" and found["params"]:
        out.append(say("kv params", n=found["params"]))
    if found.get("assumed_dtype"):
        out.append(say("kv assumed", **found))
    out.append(say("kv sure", word=say(f"kv {found['confidence']}")))
    return "\n".join(out)


def several(
    found: Sequence[dict[str, Any]], budget: int | None, say: Say
) -> str:
    """Two tables with a row per model: bytes, and what fits."""
    contexts = list(found[0]["kv_bytes"])
    tokens = [say("kv length", n=t) for t in contexts]
    rows = [[say("kv model"), say("kv growth"), *tokens]]
    for f in found:
        taken = [size(f["kv_bytes"][t]) for t in contexts]
        rows.append([f["id"], size(f["token_bytes"]["later"]), *taken])
    out = [settings(found[0], say), lines(rows)]
    if budget is not None:
        out += ["", say("kv fits")]
        rows = [[say("kv model"), say("kv cache"), *tokens, say("kv most")]]
        for f in found:
            left, longest = f["left_bytes"], f["longest_context"]
            most = [f"{n:,}" for n in f["largest_batch"].values()]
            rows.append(
                [
                    f["id"],
                    size(left) if left > 0 else say("kv nothing"),
                    *most,
                    say("kv any") if longest is None else f"{longest:,}",
                ]
            )
        out.append(lines(rows))
        out += [
            say("kv over", id=f["id"], why=left_over(f, budget, say))
            for f in found
            if f["left_bytes"] <= 0
        ]
        out += [
            f"{f['id']}: {say('kv assumed', **f)}"
            for f in found
            if f.get("assumed_dtype")
        ]
    return "\n".join(out)


def add_to(commands: Any) -> None:
    """Add this command to those of `attnref`."""
    kv = commands.add_parser(
        "kv",
        help="bytes of a model's KV cache, and what fits",
        description="The size of the KV cache of released models, and what "
        "fits into the memory of a device.",
        epilog="example: %(prog)s --model llama-3.1-8b --tokens 128K --batch 8",
    )
    kv.set_defaults(run=run_kv)
    kv.add_argument("--list", action="store_true", help="list all models")
    kv.add_argument(
        "--model", nargs="+", metavar="ID", help="ids or names of --list"
    )
    kv.add_argument(
        "--config",
        nargs="+",
        metavar="FILE",
        default=[],
        help="config.json of models, beside those of --list or instead",
    )
    kv.add_argument(
        "--tokens",
        nargs="+",
        type=a_count,
        default=CONTEXTS,
        help="tokens per sequence, such as 4096, 128K or 1e6",
    )
    kv.add_argument(
        "--batch", type=a_count, default=1, help="number of sequences"
    )
    kv.add_argument(
        "--dtype",
        default="bf16",
        help=f"format of the cache: {', '.join(DTYPES)}, or shipped",
    )
    kv.add_argument(
        "--scale",
        type=a_scale,
        metavar="BITS/BLOCK",
        help="one scale of BITS per BLOCK elements, such as 16/32",
    )
    kv.add_argument(
        "--ranks", "--tp", type=a_count, default=1, help="number of devices"
    )
    kv.add_argument(
        "--dp-attention",
        action="store_true",
        help="each device has its own sequences, and attention whole",
    )
    kv.add_argument(
        "--device",
        help=f"its memory is the budget: {', '.join(devices())}",
    )
    kv.add_argument(
        "--utilisation",
        type=a_share,
        metavar="SHARE",
        help="the share of the memory that an engine uses, such as 0.9",
    )
    kv.add_argument(
        "--budget",
        type=a_size,
        help="memory per device, as nvidia-smi has it: 81559MiB for an H100 "
        "of 80 GB, 97871MiB for an H20 of 96 GB",
    )
    kv.add_argument(
        "--weights",
        type=weights,
        help="subtracted from the budget: the size of all weights, such as "
        f"141GB, the dtype that they are stored in: {', '.join(DTYPES)}, or "
        "config: as the file of --config says, quantised or not",
    )
    kv.add_argument("--json", action="store_true", help="print JSON")
    kv.add_argument(
        "--lang", choices=("en", "zh"), help="otherwise that of the locale"
    )


def weights_of(
    model: Model, asked: int | Storage | str | None
) -> int | Storage | None:
    """What was asked for, or the bytes that the model's own file gives."""
    if not isinstance(asked, str):
        return asked
    if model.confidence != "given":
        raise ValueError("--weights config is that of a file: pass --config")
    from attnref.released.stored import stored_bytes

    return stored_bytes(model.id)


def offered(file: str) -> str:
    """The end of an error message: models of a family that no row reads, whose
    sizes are known all the same."""
    from attnref.released.record import families, parsed

    family = str(parsed(Path(file).read_text("utf-8")).get("model_type"))
    if family in families():
        return ""
    start = re.sub(r"_vl$|_", "", family)
    ids = [id for id in models() if id.replace("-", "").startswith(start)]
    return f"; kv --model knows {', '.join(ids)}" if ids else ""


def run_kv(asked: argparse.Namespace) -> str:
    if asked.list == bool(asked.model or asked.config):
        raise ValueError(
            "pass --model with one or more ids, --config with a file, or --list"
        )
    device = find_device(asked.device) if asked.device else None
    if device and asked.budget:
        raise ValueError("pass --budget or --device, not both")
    budget = device.mib * 2**20 if device else asked.budget
    if budget is None:
        if asked.weights is not None:
            raise ValueError(
                "--weights is subtracted from --budget or --device; pass one"
            )
        if asked.utilisation is not None:
            raise ValueError("--utilisation is a share of --budget or --device")
    else:
        budget = int(budget * (asked.utilisation or 1))
    if asked.dp_attention and asked.ranks < 2:
        raise ValueError("--dp-attention needs --ranks of at least 2")
    if asked.dp_attention and isinstance(asked.weights, int | str):
        raise ValueError(
            "--dp-attention needs the dtype of --weights, not their size"
        )
    if asked.list and not asked.json:
        return lines([(m.id, m.name, m.date) for m in models().values()])
    ids = models() if asked.list else asked.model or []
    chosen = [find_model(id) for id in ids]
    if asked.config:  # which loads more of the package
        from attnref.released.from_config import model_from_config

        for file in asked.config:
            try:
                chosen.append(model_from_config(file))
            except ValueError as error:
                raise ValueError(f"{error}{offered(file)}") from None
    dtype: str | Storage = asked.dtype
    if asked.scale:
        plain = DTYPES.get(asked.dtype)
        if plain is None:
            known = ", ".join(DTYPES)
            raise ValueError(f"--scale goes with one of {known}, not {dtype!r}")
        dtype = plain._replace(scale_bits=asked.scale[0], block=asked.scale[1])
    # For programs it is English.
    language = "en" if asked.json else asked.lang or language_of_locale()
    say = speaker(language)
    # A model without the data that was asked for does not stop the others.
    found, unknown = [], []
    for model in chosen:
        try:
            told = result(
                model,
                tokens=asked.tokens,
                batch=asked.batch,
                dtype=dtype,
                ranks=asked.ranks,
                budget=budget,
                weights=weights_of(model, asked.weights),
                language=language,
                dp_attention=asked.dp_attention,
            )
        except ValueError as error:
            if len(chosen) == 1:
                raise
            unknown.append({"id": model.id, "unknown": str(error)})
        else:
            if asked.weights == "config":
                from attnref.released.stored import assumed_dtype

                if taken_for := assumed_dtype(model.id):
                    told["assumed_dtype"] = taken_for
            if device:
                share = float(asked.utilisation or 1)
                told["device"] = {**device._asdict(), "share": share}
            found.append(told)
    if not found:
        raise ValueError(unknown[0]["unknown"])
    if asked.json:
        return json.dumps([*found, *unknown], indent=2, ensure_ascii=False)
    if len(chosen) == 1:
        return one(found[0], budget, say)
    left_out = [
        say("kv out", why=Text(told["unknown"], in_chinese(told["unknown"])))
        for told in unknown
    ]
    return "\n".join([several(found, budget, say), *left_out])
