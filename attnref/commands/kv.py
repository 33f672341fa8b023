"""attnref kv: bytes of a model's KV cache, and what fits."""

import argparse
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any

from attnref.check.words import WORDS, speaker, wide
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
from attnref.words import (
    add_language,
    language_of_locale,
    message,
    speaking,
)

Say = Callable[..., str]
CONTEXTS = (4096, 32_768, 131_072, 1_048_576)
UNITS = {
    **{f"{k}B": 1000**i for i, k in enumerate(("", "K", "M", "G", "T"))},
    **{f"{k}iB": 1024**i for i, k in enumerate("KMGT", 1)},
}


def count_of(text: str) -> int:
    """131072, 131,072, 128K (K = 1024) or 1e6; 0 if the text is none."""
    number = r"(\d{1,18}|\d{1,3}(?:[,_\s]\d{3}){1,5})([KM]?)"
    power = r"(\d{1,9})(?:\.(\d{1,9}))?E\+?(\d{1,2})"
    text = text.strip().upper()
    if match := re.fullmatch(number, text):
        unit = {"K": 1024, "M": 1024**2}.get(match[2], 1)
        return int(re.sub(r"[,_\s]", "", match[1])) * unit
    if match := re.fullmatch(power, text):
        whole, part, zeros = match[1], match[2] or "", int(match[3])
        if zeros >= len(part):
            return int(whole + part + "0" * (zeros - len(part)))
    return 0


def refused(text: str, *values: object) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(message(text, *values))


def a_count(text: str) -> int:
    """A whole number of at least 1."""
    if count := count_of(text):
        return count
    raise refused(
        "{!r} is not a whole number of at least 1, such as 4096, 128K or 1e6",
        text,
    )


def a_size(text: str) -> int:
    """A number of bytes, from a text with a unit: 80GiB, 24GB or 512B."""
    match = re.fullmatch(
        r"(\d{1,18}(?:\.\d{1,9})?) ?([KMGT]?I?B)", text.strip().upper()
    )
    unit = UNITS.get(match[2].replace("I", "i")) if match else None
    if match and unit and (n := int(Fraction(match[1]) * unit)):
        return n
    raise refused("{!r} is not a size with a unit, such as 80GiB", text)


def weights(text: str) -> int | Storage | str:
    """Bytes of all weights, the dtype that they are stored in, or `config`."""
    if text == "config":
        return text
    if text[:1].isdigit():
        return a_size(text)
    try:
        return dtype_called(text)
    except ValueError as error:
        raise refused(
            "{!r} is neither a size with a unit, such as 141GB, nor a dtype: "
            "{}",
            text,
            error,
        ) from None


def a_share(text: str) -> Fraction:
    """More than 0 and at most 1: 0.9."""
    if re.fullmatch(r"\d?\.\d{1,9}|1", text) and Fraction(text) <= 1:
        return Fraction(text)
    raise refused("{!r} is not a share such as 0.9", text)


def a_scale(text: str) -> tuple[int, int]:
    """Bits of a scale, and how many elements share it: 16/32."""
    match = re.fullmatch(r"(\d{1,3})/(\d{1,6})", text.strip())
    if match and int(match[1]) and int(match[2]):
        return int(match[1]), int(match[2])
    raise refused(
        "{!r} is not a scale such as 16/32: its bits, and how many elements "
        "share it",
        text,
    )


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
    times: dict[str, Fraction] = {}
    for group in model.groups:
        kv = "latent" if isinstance(group, Mla) else "heads"
        for store in group.stores:
            name = kv if store.role == "kv" else store.role
            each = max(Fraction(ranks, store.heads), times.get(name, 0))
            if each > 1:
                times[name] = Fraction(each)
    return times


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
    block: int = 1,
    prefix: int = 0,
) -> dict[str, Any]:
    """Everything that is printed about a model; --json prints it as it is."""
    say, words = speaker(language), kinds(language)
    all_ranks, all_sequences = ranks, batch
    copies = replicated(model, ranks)
    if dp_attention:  # each device has its own sequences, with all heads
        copies = {"attention": Fraction(ranks)}
        ranks, batch = 1, -(-batch // ranks)
    how: dict[str, Any] = {"dtype": dtype, "ranks": ranks}
    shipped = (name for name, other in models().items() if other.shipped)
    storage, added = storage_of(model, dtype, shipped), growth(model, **how)
    how |= {"block": block, "prefix": prefix}

    def bytes_of(model: Model) -> dict[int, int]:
        return {t: kv_bytes(model, t, batch=batch, **how) for t in tokens}

    row: dict[str, Any] = {
        "id": model.id,
        "name": model.name,
        "max_context": model.max_context or None,
        "batch": all_sequences,
        "dtype": dtype if isinstance(dtype, str) else dtype._asdict(),
        "ranks": all_ranks,
        "block": block,
        "prefix": prefix,
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
        "token_bytes": {n: number(x) for n, x in added._asdict().items()},
        "state_bytes": state_bytes(model, ranks=ranks),
        "replicated": {say(f"kv {n}"): number(x) for n, x in copies.items()},
        "kv_bytes": bytes_of(model),
        "reserved_bytes": bytes_of(reserved(model)),
        "params": model.params,
        "confidence": model.confidence,
        "sources": dict(model.sources),
        "note": model.note,
    }
    for name in ("context", "params_in"):
        if source := getattr(model, name):
            row[name] = {source.label: source.url}
    if model.unread:
        row["unread"] = list(model.unread)
    if dtype == "fp8" and model.shipped:
        row["kernels"] = number(growth(model, dtype="shipped").later)
    if budget is None:
        return row
    if isinstance(weights, Storage):
        if dp_attention:
            attention = replace(model, params=model.attention_params)
            row["attention_bytes"] = weight_bytes(attention, weights)
        row["weight_bytes"] = weight_bytes(
            model, weights, ranks=all_ranks, dp_attention=dp_attention
        )
    elif weights is not None:
        row["weight_bytes"] = -(-weights // ranks)
    left = budget - row.get("weight_bytes", 0)
    return row | {
        "left_bytes": left,
        "longest_context": longest_context(model, left, batch=batch, **how),
        "largest_batch": {
            t: all_ranks // ranks * largest_batch(model, t, left, **how)
            for t in tokens
        },
    }


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows as text: the first column flush left, the others flush right."""
    columns: list[list[str]] = []
    for column in zip(*rows, strict=True):
        widest = max(map(wide, column))
        gaps = [" " * (widest - wide(cell)) for cell in column]
        pairs = zip(gaps, column, strict=True)
        columns.append([g + c if columns else c + g for g, c in pairs])
    lines = map("  ".join, zip(*columns, strict=True))
    return "\n".join(line.rstrip() for line in lines)


def grouped(numbers: Iterable[int]) -> Iterator[str]:
    return map("{:,}".format, numbers)


def settings(row: dict[str, Any], say: Say) -> str:
    """Number of sequences, format of the cache, number of devices."""
    batch, ranks, stored = row["batch"], row["ranks"], row["dtype"]
    if isinstance(stored, dict):
        stored = say("kv stored", **stored)
    return say(
        "kv settings",
        many=say("kv one") if batch == 1 else say("kv many", n=batch),
        stored=stored,
        split=say("kv split", ranks=ranks) if ranks > 1 else "",
        blocks=say("kv blocks", n=row["block"]) if row["block"] > 1 else "",
        prefix=say("kv prefix", n=row["prefix"]) if row["prefix"] else "",
    )


def left_over(row: dict[str, Any], say: Say) -> str:
    """What the weights leave of the memory per device, if they fit."""
    left, taken = row["left_bytes"], row["weight_bytes"]
    return say(
        "kv left" if left > 0 else "kv full",
        taken=size(taken),
        budget=size(left + taken),
        left=size(left),
    )


def one(row: dict[str, Any], say: Say) -> str:
    """Everything about one model."""
    stored, full = row["kv_bytes"], row["reserved_bytes"]
    first, later = row["token_bytes"].values()
    longest = row["max_context"]
    out = [
        say("kv name" if longest else "kv unbound", **row, n=longest),
        table(
            (
                say("kv layers", **g),
                say("kv each", n=g["token_bytes_per_layer"]),
            )
            for g in row["groups"]
        ),
        say("kv first", n=first, size=size(first)),
    ]
    if first != later:
        out.append(say("kv later", n=later, size=size(later)))
    if states := row["state_bytes"]:
        out.append(say("kv states", n=states, size=size(states)))
    if copies := row["replicated"].items():
        times = [say("kv times", name=name, n=n) for name, n in copies]
        out.append(say("kv replicated", times=say("and").join(times)))
    columns = [
        [say("kv tokens"), *grouped(stored)],
        [say("kv bytes"), *grouped(stored.values())],
        ["", *map(size, stored.values())],
    ]
    if full != stored:
        columns.append([say("kv reserved"), *map(size, full.values())])
    if "largest_batch" in row:
        columns.append([say("kv fit"), *grouped(row["largest_batch"].values())])
    out += [settings(row, say), table(zip(*columns, strict=True))]
    if full != stored:
        out.append(say("kv full length"))
    if device := row.get("device"):
        out.append(say("kv device", **device))
    if attention := row.get("attention_bytes"):
        out.append(say("kv dp", size=size(attention)))
    if "weight_bytes" in row:
        out.append(left_over(row, say))
    if (left := row.get("left_bytes", 0)) > 0:
        most = row["longest_context"]
        name = "kv endless" if most is None else "kv longest"
        out.append(say(name, left=size(left), n=most))
    if row["note"]:
        out.append(say("kv note", note=message(row["note"])))
    if unread := row.get("unread"):
        out.append(say("kv unread", names=say("and").join(unread)[:300]))
    for name in ("sources", "context", "params_in"):
        if name in row:
            out.append(say(f"kv {name}", names=say("and").join(row[name])))
    if device:
        out.append(say("kv seen", url=device["source"]))
    if row["confidence"] == "given" and row["params"]:
        out.append(say("kv params", n=row["params"]))
    if "assumed_dtype" in row:
        out.append(say("kv assumed", **row))
    out += remarks(row, say)
    out.append(say("kv sure", word=say(f"kv {row['confidence']}")))
    return "\n".join(out)


def remarks(row: dict[str, Any], say: Say) -> Iterator[str]:
    """What else is to be known of the format of the cache."""
    if "cache_format" in row:
        name = "kv scheme" if row["scheme"] else "kv no scheme"
        yield say(name, dtype=row["cache_format"])
    if "kernels" in row:
        yield say("kv kernels", n=row["kernels"])


def several(rows: Sequence[dict[str, Any]], say: Say) -> str:
    """Two tables with a row per model: bytes, and what fits."""
    tokens = [say("kv length", n=t) for t in rows[0]["kv_bytes"]]
    taken = [[say("kv model"), say("kv growth"), *tokens]]
    for row in rows:
        caches = map(size, row["kv_bytes"].values())
        taken.append([row["id"], size(row["token_bytes"]["later"]), *caches])
    out = [settings(rows[0], say), table(taken)]
    if "left_bytes" in rows[0]:
        fits = [[say("kv model"), say("kv cache"), *tokens, say("kv most")]]
        for row in rows:
            left, longest = row["left_bytes"], row["longest_context"]
            budget = size(left) if left > 0 else say("kv nothing")
            most = say("kv any") if longest is None else f"{longest:,}"
            batches = grouped(row["largest_batch"].values())
            fits.append([row["id"], budget, *batches, most])
        out += ["", say("kv fits"), table(fits)]
    for row in rows:
        if row.get("left_bytes", 1) <= 0:
            out.append(say("kv over", id=row["id"], why=left_over(row, say)))
    for row in rows:
        if "assumed_dtype" in row:
            out.append(f"{row['id']}: {say('kv assumed', **row)}")
        out += (f"{row['id']}: {text}" for text in remarks(row, say))
    return "\n".join(out)


def add_to(commands: Any) -> None:
    """Add this command to those of `attnref`."""
    kv = commands.add_parser(
        "kv",
        help="bytes of a model's KV cache, and what fits",
        description="The size of the KV cache of released models, and what "
        "fits into the memory of a device.",
        epilog=message(
            "example: {}",
            "%(prog)s --model llama-3.1-8b --tokens 128K --batch 8",
        ),
    )
    kv.set_defaults(run=run_kv)
    add = kv.add_argument
    add("--list", action="store_true", help="list all models")
    add("--model", nargs="+", metavar="ID", help="ids or names of --list")
    add(
        "--config",
        nargs="+",
        metavar="FILE",
        default=[],
        help="config.json of models, together with --list or instead",
    )
    add(
        "--tokens",
        nargs="+",
        type=a_count,
        default=CONTEXTS,
        help="tokens per sequence, such as 4096, 128K or 1e6",
    )
    add("--batch", type=a_count, default=1, help="number of sequences")
    add(
        "--dtype",
        help=message(
            "format of the cache: {}, or shipped; default: the kv_cache_scheme "
            "of the file of --config, or bf16",
            message(", ").join(DTYPES),
        ),
    )
    add(
        "--scale",
        type=a_scale,
        metavar="BITS/BLOCK",
        help="one scale of BITS per BLOCK elements, such as 16/32",
    )
    add(
        "--block-size",
        type=a_count,
        default=1,
        help="tokens per block of an engine, such as 16: each sequence is "
        "rounded up to whole blocks",
    )
    add(
        "--prefix",
        type=a_count,
        default=0,
        help="how many first tokens all sequences share, in whole blocks",
    )
    add("--ranks", "--tp", type=a_count, default=1, help="number of devices")
    add(
        "--dp-attention",
        action="store_true",
        help="each device has its own sequences, and attention whole",
    )
    add(
        "--device",
        help=message(
            "its memory is the budget: {}", message(", ").join(devices())
        ),
    )
    add(
        "--utilisation",
        "--utilization",
        type=a_share,
        metavar="SHARE",
        help="the share of the memory that an engine uses, such as 0.9",
    )
    add(
        "--budget",
        type=a_size,
        help="memory per device, as nvidia-smi shows it: 81559MiB for an H100 "
        "of 80 GB, 97871MiB for an H20 of 96 GB",
    )
    add(
        "--weights",
        type=weights,
        help=message(
            "subtracted from the budget: the size of all weights, such as "
            "141GB, the dtype that they are stored in: {}, or config: the "
            "format in the file of --config, quantised or not",
            message(", ").join(DTYPES),
        ),
    )
    add("--json", action="store_true", help="print JSON")
    add_language(kv)


def offered(file: str) -> str:
    """The end of an error message: models of the table that the file may be of,
    by its name, or by a family whose code is not known."""
    from attnref.released.record import families, fields_of

    given = fields_of(file)
    family, name = str(given.get("model_type")), given.get("_name_or_path")
    ids: list[str] = []
    with suppress(ValueError):
        ids = [find_model(str(name)).id] if name else []
    if not ids and family not in families():
        start = re.sub(r"_vl_text$|_vl$|_text$|_", "", family)
        ids = [id for id in models() if id.replace("-", "").startswith(start)]
    return (
        message("; kv --model knows {}", message(", ").join(ids)) if ids else ""
    )


def budget_of(args: argparse.Namespace) -> int | None:
    """Bytes per device that may be used, if any are given; errors of options
    that do not go together."""
    if args.list == bool(args.model or args.config):
        raise ValueError(
            message(
                "pass --model with one or more ids, --config with a file, or "
                "--list"
            )
        )
    if args.device and args.budget:
        raise ValueError(message("pass --budget or --device, not both"))
    budget: int | None = args.budget
    if args.device:
        budget = find_device(args.device).mib * 2**20
    if budget is None and args.weights is not None:
        raise ValueError(
            message(
                "--weights is subtracted from --budget or --device; pass one"
            )
        )
    if budget is None and args.utilisation is not None:
        raise ValueError(
            message("--utilisation is a share of --budget or --device")
        )
    if args.dp_attention and args.ranks < 2:
        raise ValueError(message("--dp-attention needs --ranks of at least 2"))
    if args.dp_attention and isinstance(args.weights, int | str):
        raise ValueError(
            message(
                "--dp-attention needs the dtype of --weights, not their size"
            )
        )
    return budget and int(budget * (args.utilisation or 1))


def with_kernels(model: Model) -> Model:
    """The FP8 format of the kernels of DeepSeek-V3.2 is that of its widths, in
    other models too: vllm-project/vllm, pull request 47090."""
    known = find_model("deepseek-v3.2")
    both = [
        {store.widths for group in each.groups for store in group.stores}
        for each in (known, model)
    ]
    if model.shipped is None and both[0] == both[1]:
        return replace(model, shipped=known.shipped)
    return model


def chosen(args: argparse.Namespace) -> list[Model]:
    """The models of --model or --list, and those of the files of --config."""
    ids = models() if args.list else args.model or []
    known = [find_model(id) for id in ids]
    if args.config:  # which loads more of the package
        from attnref.released.from_config import model_from_config

        for file in args.config:
            try:
                known.append(model_from_config(file))
            except ValueError as error:
                raise ValueError(f"{error}{offered(file)}") from None
    return [with_kernels(model) for model in known]


def stored_as(dtype: str, scale: tuple[int, int] | None) -> str | Storage:
    """The format of the cache."""
    if scale is None:
        return dtype
    if dtype not in DTYPES:
        known = message(", ").join(DTYPES)
        raise ValueError(
            message("--scale goes with one of {}, not {!r}", known, dtype)
        )
    return DTYPES[dtype]._replace(scale_bits=scale[0], block=scale[1])


def of_file(model: Model) -> tuple[int, dict[str, str]]:
    """Bytes of the weights as the model's own file says, and the dtype that
    they are counted in if it says no format."""
    if model.confidence != "given":
        raise ValueError(
            message("--weights config reads a file: pass --config")
        )
    from attnref.released.stored import assumed_dtype, stored_bytes

    dtype = assumed_dtype(model.id)
    assumed = {"assumed_dtype": dtype} if dtype else {}
    return stored_bytes(model.id), assumed


def run_kv(args: argparse.Namespace) -> str:
    budget = budget_of(args)
    if args.list and not args.json:
        return table((m.id, m.name, m.date) for m in models().values())
    these, dtype = chosen(args), stored_as(args.dtype or "bf16", args.scale)
    # What programs read is in English.
    language = "en" if args.json else args.lang or language_of_locale()
    say = speaker(language)
    # A model without the data that was asked for does not stop the others.
    rows: list[dict[str, Any]] = []
    unknown: list[dict[str, str]] = []
    with speaking(language):
        for model in these:
            try:
                weights, assumed = args.weights, dict[str, str]()
                if weights == "config":
                    weights, assumed = of_file(model)
                own, format_of = dtype, dict[str, Any]()
                if model.confidence == "given" and not (
                    args.dtype or args.scale
                ):
                    from attnref.released.stored import cache_scheme

                    scheme = cache_scheme(model.id)
                    own = scheme or "bf16"
                    format_of = {"cache_format": own, "scheme": bool(scheme)}
                row = result(
                    model,
                    tokens=args.tokens,
                    batch=args.batch,
                    dtype=own,
                    ranks=args.ranks,
                    block=args.block_size,
                    prefix=args.prefix,
                    budget=budget,
                    weights=weights,
                    language=language,
                    dp_attention=args.dp_attention,
                )
            except ValueError as error:
                if len(these) == 1:
                    raise
                unknown.append({"id": model.id, "unknown": str(error)})
                continue
            row |= assumed | format_of
            if args.device:
                share = float(args.utilisation or 1)
                row["device"] = find_device(args.device)._asdict() | {
                    "share": share
                }
            rows.append(row)
    if not rows:
        raise ValueError(unknown[0]["unknown"])
    if args.json:
        return json.dumps([*rows, *unknown], indent=2, ensure_ascii=False)
    if len(these) == 1:
        return one(rows[0], say)
    out = [several(rows, say)]
    for each in unknown:
        out.append(say("kv out", why=each["unknown"]))
    return "\n".join(out)
