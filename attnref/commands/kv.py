"""attnref kv: bytes of a model's KV cache, and what fits."""

import argparse
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

from attnref.judge.words import WORDS, speaker, wide
from attnref.numbers.engines import ENGINES, allocated
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
    Full,
    Group,
    Mla,
    Model,
    Recurrent,
)
from attnref.numbers.weights import Share, device_bytes
from attnref.released.devices import devices, find_device
from attnref.released.from_config import model_from_config
from attnref.released.record import Config, families, read_config
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
    plain = r"(\d{1,18}|\d{1,3}(?:[,_\s]\d{3}){1,5})([KM]?)"
    scientific = r"(\d{1,9})(?:\.(\d{1,9}))?E\+?(\d{1,2})"
    text = text.strip().upper()
    if match := re.fullmatch(plain, text):
        unit = {"K": 1024, "M": 1024**2}.get(match[2], 1)
        return int(re.sub(r"[,_\s]", "", match[1])) * unit
    if match := re.fullmatch(scientific, text):
        digits, decimals, power = match[1], match[2] or "", int(match[3])
        if power >= len(decimals):
            return int(digits + decimals + "0" * (power - len(decimals)))
    return 0


def refusal(text: str, *values: object) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(message(text, *values))


def a_count(text: str) -> int:
    """A whole number of at least 1."""
    if count := count_of(text):
        return count
    raise refusal(
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
    raise refusal("{!r} is not a size with a unit, such as 80GiB", text)


def a_size_or_dtype(text: str) -> int | Storage | str:
    """Bytes of all weights, the dtype that they are stored in, or `config`."""
    if text == "config":
        return text
    if text[:1].isdigit():
        return a_size(text)
    try:
        return dtype_called(text)
    except ValueError as error:
        raise refusal(
            "{!r} is neither a size with a unit, such as 141GB, nor a dtype: "
            "{}",
            text,
            error,
        ) from None


def a_share(text: str) -> Fraction:
    """More than 0 and at most 1: 0.9."""
    if re.fullmatch(r"\d?\.\d{1,9}|1", text) and 0 < Fraction(text) <= 1:
        return Fraction(text)
    raise refusal("{!r} is not a share such as 0.9", text)


def a_rate(text: str) -> Fraction:
    """Bytes in a second, from bits or bytes: 400Gb or 50GB, also 400Gb/s."""
    match = re.fullmatch(
        r"(\d{1,9}(?:\.\d{1,9})?) ?([KMGT]?)([bB])(?:/s|ps)?", text.strip()
    )
    if match and (rate := Fraction(match[1])):
        unit = UNITS[f"{match[2]}B"]
        return Fraction(rate * unit, 8 if match[3] == "b" else 1)
    raise refusal("{!r} is not a rate such as 400Gb or 50GB", text)


def a_scale(text: str) -> tuple[int, int]:
    """Bits of a scale, and how many elements share it: 16/32."""
    match = re.fullmatch(r"(\d{1,3})/(\d{1,6})", text.strip())
    if match and int(match[1]) and int(match[2]):
        return int(match[1]), int(match[2])
    raise refusal(
        "{!r} is not a scale such as 16/32: its bits, and how many elements "
        "share it",
        text,
    )


def group_words(language: str) -> dict[str, str]:
    """The words of `describe`, by name. A caller may pass others."""
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
        text = f"MLA {group.kv_lora_rank} + {group.qk_rope_head_dim}"
        text += "" if group.rotated else words["nope"]
    elif isinstance(group, Compressed):
        text = words["shared"].format(group.dim)
        text += words["window"].format(f"{group.sliding_window:,}")
        if group.ratio is not None:
            text += words["entries"].format(group.ratio)
    else:
        widths = dict.fromkeys((group.head_dim, group.v_head_dim))
        text = f"{group.variant} {group.q_heads or '?'}/{group.kv_heads}"
        text += words["heads"].format(words["and"].join(map(str, widths)))
        if group.window is not None:
            name = "chunk" if isinstance(group, Chunked) else "window"
            text += words[name].format(f"{group.window:,}")
    if group.index_dim:
        text += words["index"].format(group.index_dim)
    return text


def copies_of(model: Model, ranks: int) -> dict[str, Fraction]:
    """What more devices than heads store several times, and how often."""
    copies: dict[str, Fraction] = {}
    for group in model.groups:
        kv = "latent" if isinstance(group, Mla) else "heads"
        for store in group.stores:
            name = kv if store.role == "kv" else store.role
            times = max(Fraction(ranks, store.heads), copies.get(name, 0))
            if times > 1:
                copies[name] = Fraction(times)
    return copies


def json_number(n: Fraction) -> int | float:
    return n.numerator if n.denominator == 1 else float(n)


@dataclass(frozen=True)
class Use:
    """What a model is used for, on which devices, and in which formats."""

    tokens: Sequence[int]
    batch: int
    dtype: str | Storage  # of the cache
    ranks: int
    dp_attention: bool  # each device has its own sequences, with all heads
    block: int
    prefix: int
    budget: int | None  # bytes per device
    weights: int | Storage | Sequence[Share] | None
    link: Fraction | None  # bytes in a second, per device

    @property
    def head_ranks(self) -> int:
        """Over how many devices the heads are split."""
        return 1 if self.dp_attention else self.ranks

    @property
    def device_batch(self) -> int:
        """How many sequences a device has."""
        return -(-self.batch // self.ranks) if self.dp_attention else self.batch

    @property
    def cache(self) -> dict[str, Any]:
        """How the cache is stored, as the functions of kv_memory take it."""
        return {
            "dtype": self.dtype,
            "ranks": self.head_ranks,
            "block": self.block,
            "prefix": self.prefix,
        }


def report(model: Model, use: Use, language: str) -> dict[str, Any]:
    """Everything that is printed about a model; --json prints it as it is."""
    weights = weight_report(model, use)
    return {
        **cache_report(model, use, language),
        **source_report(model),
        **kernel_report(model, use),
        **link_report(model, use),
        **split_report(model, use),
        **sent_report(model, use),
        **weights,
        **budget_report(model, use, weights.get("weight_bytes", 0)),
    }


def cache_report(model: Model, use: Use, language: str) -> dict[str, Any]:
    """What the cache of a model is made of, and its size."""
    say, words = speaker(language), group_words(language)
    dtype, ranks = use.dtype, use.head_ranks
    ids = (id for id, known in models().items() if known.shipped)
    storage = storage_of(model, dtype, ids)
    token = growth(model, dtype=dtype, ranks=ranks)
    copies = copies_of(model, ranks)
    if use.dp_attention:
        copies = {"attention": Fraction(use.ranks)}

    def bytes_of(model: Model) -> dict[int, int]:
        batch = use.device_batch
        return {
            t: kv_bytes(model, t, batch=batch, **use.cache) for t in use.tokens
        }

    return {
        "id": model.id,
        "name": model.name,
        "max_context": model.max_context or None,
        "batch": use.batch,
        "dtype": dtype if isinstance(dtype, str) else dtype._asdict(),
        "ranks": use.ranks,
        "block": use.block,
        "prefix": use.prefix,
        "groups": [
            {
                "layers": group.layers,
                "kind": describe(group, words),
                "token_bytes_per_layer": json_number(
                    token_bytes(group, storage, ranks=ranks).first
                ),
            }
            for group in model.groups
        ],
        "token_bytes": {n: json_number(x) for n, x in token._asdict().items()},
        "state_bytes": state_bytes(model, ranks=ranks),
        "replicated": {
            say(f"kv {n}"): json_number(x) for n, x in copies.items()
        },
        "kv_bytes": bytes_of(model),
        "reserved_bytes": bytes_of(reserved(model)),
    }


def source_report(model: Model) -> dict[str, Any]:
    """Where the shape of a model is from, and what is known of it besides."""
    row: dict[str, Any] = {
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
    return row


def kernel_report(model: Model, use: Use) -> dict[str, Any]:
    """What the kernels of a model store per token, in bytes, where FP8 is
    asked for."""
    if use.dtype != "fp8" or not model.shipped:
        return {}
    return {"kernels": json_number(growth(model, dtype="shipped").later)}


def link_report(model: Model, use: Use) -> dict[str, Any]:
    """Seconds in which each device sends its part of a sequence to another."""
    if use.link is None:
        return {}
    alone = {**use.cache, "prefix": 0}
    return {
        "transfer_seconds": {
            t: float(kv_bytes(model, t, **alone) / use.link) for t in use.tokens
        }
    }


def split_report(model: Model, use: Use) -> dict[str, Any]:
    """Over how many devices engines split the heads, if not over these: they
    divide the query heads, and divide the key/value heads or are divided."""
    groups = [g for g in model.groups if not isinstance(g, Recurrent)]
    counts = [
        (g.q_heads or 0, g.kv_heads if isinstance(g, Full) else 1)
        for g in groups
    ]

    def fits(n: int) -> bool:
        return all(q % n == 0 and (k % n == 0 or n % k == 0) for q, k in counts)

    if not counts or fits(use.head_ranks):
        return {}
    most = max(chain.from_iterable(counts))
    return {"head_ranks": [n for n in range(1, most + 1) if fits(n)]}


def sent_report(model: Model, use: Use) -> dict[str, Any]:
    """What a device sends in a layer if the longest text is split by tokens."""
    if use.ranks == 1 or use.dp_attention:
        return {}
    from attnref.numbers.ranks import group_sent

    tokens, sent = max(use.tokens), dict[str, int]()
    how = {"ranks": use.ranks, "tokens": tokens, "batch": use.batch}
    for group in model.groups:
        for way, n in group_sent(group, **how).items():
            sent[way] = max(n, sent.get(way, 0))
    return {"sent_tokens": tokens, "sent_bytes": sent} if sent else {}


def weight_report(model: Model, use: Use) -> dict[str, int]:
    """Bytes of the weights: as given, or computed if there is a budget."""
    if isinstance(use.weights, int):
        return {
            "total_weight_bytes": use.weights,
            "weight_bytes": -(-use.weights // use.head_ranks),
        }
    if isinstance(use.weights, Sequence) and not isinstance(
        use.weights, Storage
    ):
        return share_report(use.weights, use)
    if use.weights is None or use.budget is None:
        return {}
    row = {}
    if use.dp_attention:
        attention = replace(model, params=model.attention_params)
        row["attention_bytes"] = weight_bytes(attention, use.weights)
    row["weight_bytes"] = weight_bytes(
        model, use.weights, ranks=use.ranks, dp_attention=use.dp_attention
    )
    return row


def share_report(shares: Sequence[Share], use: Use) -> dict[str, int]:
    """Bytes of the weights, of which each device has its share."""
    row = {}
    if use.dp_attention:
        row["attention_bytes"] = sum(s.size for s in shares if s.attention)
    return {
        "total_weight_bytes": device_bytes(shares),
        "weight_bytes": device_bytes(shares, use.ranks, use.dp_attention),
        **row,
    }


def budget_report(model: Model, use: Use, weights: int) -> dict[str, Any]:
    """What fits into the budget beside the bytes of the weights."""
    if use.budget is None:
        return {}
    left = use.budget - weights
    replicas = use.ranks // use.head_ranks  # each has sequences of its own
    return {
        "left_bytes": left,
        "longest_context": longest_context(
            model, left, batch=use.device_batch, **use.cache
        ),
        "largest_batch": {
            t: replicas * largest_batch(model, t, left, **use.cache)
            for t in use.tokens
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


def with_commas(numbers: Iterable[int]) -> Iterator[str]:
    return map("{:,}".format, numbers)


def duration(seconds: float) -> str:
    """As text, in three digits: 85.9 ms, or 1.2 s."""
    scaled, unit = (seconds, "s") if seconds >= 1 else (seconds * 1e3, "ms")
    return f"{float(f'{scaled:.3g}'):g} {unit}"


def settings(row: dict[str, Any], say: Say) -> str:
    """Number of sequences, format of the cache, number of devices."""
    batch, ranks, dtype = row["batch"], row["ranks"], row["dtype"]
    if isinstance(dtype, dict):
        dtype = say("kv stored", **dtype)
    return say(
        "kv settings",
        many=say("kv one") if batch == 1 else say("kv many", n=batch),
        stored=dtype,
        split=say("kv split", ranks=ranks) if ranks > 1 else "",
        engine=say("kv engine", name=name)
        if (name := row.get("engine"))
        else "",
        blocks=say("kv blocks", n=row["block"]) if row["block"] > 1 else "",
        prefix=say("kv prefix", n=row["prefix"]) if row["prefix"] else "",
    )


def describe_budget(row: dict[str, Any], say: Say) -> str:
    """What the weights leave of the memory per device, if they fit."""
    left, weights = row["left_bytes"], row["weight_bytes"]
    return say(
        "kv left" if left > 0 else "kv full",
        taken=size(weights),
        budget=size(left + weights),
        left=size(left),
    )


def describe_weights(row: dict[str, Any], say: Say) -> str:
    """The weights of a model, where no memory is given."""
    total, share, ranks = (
        row[name] for name in ("total_weight_bytes", "weight_bytes", "ranks")
    )
    split = say("kv weights split", size=size(share), ranks=ranks)
    return say(
        "kv weights",
        n=total,
        size=size(total),
        split=split if ranks > 1 else "",
    )


def describe_one(row: dict[str, Any], say: Say) -> str:
    """Everything about one model."""
    sizes, full = row["kv_bytes"], row["reserved_bytes"]
    first, later = row["token_bytes"].values()
    longest = row["max_context"]
    lines = [
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
        lines.append(say("kv later", n=later, size=size(later)))
    if states := row["state_bytes"]:
        lines.append(say("kv states", n=states, size=size(states)))
    if copies := row["replicated"].items():
        times = [say("kv times", name=name, n=n) for name, n in copies]
        lines.append(say("kv replicated", times=say("and").join(times)))
    if fits := row.get("head_ranks"):
        text = say("and").join(map(str, fits))
        lines.append(say("kv whole", fits=text, ranks=row["ranks"]))
    if sent := row.get("sent_bytes"):
        ways = [say(f"kv {way}", size=size(n)) for way, n in sent.items()]
        split = say("and").join(ways)
        lines.append(say("kv sent", n=row["sent_tokens"], ways=split))
    columns = [
        [say("kv tokens"), *with_commas(sizes)],
        [say("kv bytes"), *with_commas(sizes.values())],
        ["", *map(size, sizes.values())],
    ]
    if full != sizes and not row.get("engine"):
        columns.append([say("kv reserved"), *map(size, full.values())])
    if "transfer_seconds" in row:
        times = row["transfer_seconds"].values()
        columns.append([say("kv transfer"), *map(duration, times)])
    if "largest_batch" in row:
        columns.append(
            [say("kv fit"), *with_commas(row["largest_batch"].values())]
        )
    lines += [settings(row, say), table(zip(*columns, strict=True))]
    if full != sizes and not row.get("engine"):
        lines.append(say("kv full length"))
    if device := row.get("device"):
        lines.append(say("kv device", **device))
    if attention := row.get("attention_bytes"):
        lines.append(say("kv dp", size=size(attention)))
    if "left_bytes" in row and "weight_bytes" in row:
        lines.append(describe_budget(row, say))
    elif "weight_bytes" in row:
        lines.append(describe_weights(row, say))
    if (left := row.get("left_bytes", 0)) > 0:
        context = row["longest_context"]
        name = "kv endless" if context is None else "kv longest"
        lines.append(say(name, left=size(left), n=context))
    if row["note"]:
        lines.append(say("kv note", note=message(row["note"])))
    if unread := row.get("unread"):
        lines.append(say("kv unread", names=say("and").join(unread)[:300]))
    for name in ("sources", "context", "params_in"):
        if name in row:
            lines.append(say(f"kv {name}", names=say("and").join(row[name])))
    if device:
        lines.append(say("kv seen", url=device["source"]))
    if row["confidence"] == "given" and row["params"]:
        lines.append(say("kv params", n=row["params"]))
    lines += remarks(row, say)
    lines.append(say("kv sure", word=say(f"kv {row['confidence']}")))
    return "\n".join(lines)


def remarks(row: dict[str, Any], say: Say) -> Iterator[str]:
    """What else is to be known of the formats of weights and cache."""
    for name in ("assumed_dtype", "exact"):
        if name in row:
            yield say(f"kv {name.removesuffix('_dtype')}", **row)
    if "cache_format" in row:
        name = "kv scheme" if row["scheme"] else "kv no scheme"
        yield say(name, dtype=row["cache_format"])
    if "kernels" in row:
        yield say("kv kernels", n=row["kernels"])


def describe_several(rows: Sequence[dict[str, Any]], say: Say) -> str:
    """Two tables with a row per model: bytes, and what fits."""
    tokens = [say("kv length", n=t) for t in rows[0]["kv_bytes"]]
    sizes = [[say("kv model"), say("kv growth"), *tokens]]
    for row in rows:
        caches = map(size, row["kv_bytes"].values())
        sizes.append([row["id"], size(row["token_bytes"]["later"]), *caches])
    lines = [settings(rows[0], say), table(sizes)]
    if "left_bytes" in rows[0]:
        fits = [[say("kv model"), say("kv cache"), *tokens, say("kv most")]]
        for row in rows:
            left, context = row["left_bytes"], row["longest_context"]
            budget = size(left) if left > 0 else say("kv nothing")
            longest = say("kv any") if context is None else f"{context:,}"
            batches = with_commas(row["largest_batch"].values())
            fits.append([row["id"], budget, *batches, longest])
        lines += ["", say("kv fits"), table(fits)]
    for row in rows:
        if row.get("left_bytes", 1) <= 0:
            lines.append(
                say("kv over", id=row["id"], why=describe_budget(row, say))
            )
    for row in rows:
        if "weight_bytes" in row and "left_bytes" not in row:
            lines.append(f"{row['id']}: {describe_weights(row, say)}")
    for row in rows:
        lines += (f"{row['id']}: {text}" for text in remarks(row, say))
    return "\n".join(lines)


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
    add("names", nargs="*", help=argparse.SUPPRESS)
    add("--list", action="store_true", help="list all models")
    add("--model", nargs="+", metavar="ID", help="ids or names of --list")
    add(
        "--config",
        nargs="+",
        metavar="FILE",
        default=[],
        help="config.json of models, or the folders that hold them, together "
        "with --list or instead",
    )
    add(
        "--quant",
        metavar="FILE",
        help="hf_quant_config.json of the file of --config, if it is not "
        "beside it",
    )
    add(
        "--tokens",
        nargs="+",
        type=a_count,
        default=CONTEXTS,
        help="tokens per sequence, such as 4096, 128K or 1e6",
    )
    add(
        "--as",
        dest="engine",
        choices=ENGINES,
        help="what this engine allocates by default, rather than what layers "
        "store",
    )
    add(
        "--draft-layers",
        type=a_count,
        default=0,
        metavar="N",
        help="layers of MTP or EAGLE, which cache all tokens too",
    )
    add(
        "--link",
        type=a_rate,
        metavar="RATE",
        help="what it takes to send the cache of a sequence from prefill to "
        "decode, at a rate per device such as 400Gb or 50GB",
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
        type=a_size_or_dtype,
        help=message(
            "subtracted from the budget: the size of all weights, such as "
            "141GB, or the dtype that they are stored in: {}. --weights config "
            "counts them from the file of --config, quantised or not, and "
            "needs no budget",
            message(", ").join(DTYPES),
        ),
    )
    add("--json", action="store_true", help="print JSON")
    add_language(kv)


def suggested_models(config: Config) -> str:
    """The end of an error message: models of the table that the config may be
    of, by its name, or by a family whose code is not known."""
    name = config.fields.get("_name_or_path")
    ids: list[str] = []
    with suppress(ValueError):
        ids = [find_model(str(name)).id] if name else []
    if not ids and config.family not in families():
        start = re.sub(r"_vl_text$|_vl$|_text$|_", "", config.family)
        ids = [id for id in models() if id.replace("-", "").startswith(start)]
    return (
        message("; kv --model knows {}", message(", ").join(ids)) if ids else ""
    )


def check_options(args: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    if args.list == bool(args.model or args.config):
        raise ValueError(
            message(
                "pass --model with one or more ids, --config with a file, or "
                "--list"
            )
        )
    if args.device and args.budget:
        raise ValueError(message("pass --budget or --device, not both"))
    no_budget = args.budget is None and not args.device
    if no_budget and args.weights not in (None, "config"):
        raise ValueError(
            message(
                "--weights is subtracted from --budget or --device; pass one"
            )
        )
    if no_budget and args.utilisation is not None:
        raise ValueError(
            message("--utilisation is a share of --budget or --device")
        )
    if args.dp_attention and args.ranks < 2:
        raise ValueError(message("--dp-attention needs --ranks of at least 2"))
    if args.dp_attention and isinstance(args.weights, int):
        raise ValueError(
            message(
                "--dp-attention needs the dtype of --weights, not their size"
            )
        )


def budget_of(args: argparse.Namespace) -> int | None:
    """Bytes per device that may be used, if any are given."""
    budget: int | None = args.budget
    if args.device:
        budget = find_device(args.device).mib * 2**20
    return budget and int(budget * (args.utilisation or 1))


def with_kernels(model: Model) -> Model:
    """A model whose latent and indexer have the widths of DeepSeek-V3.2 is
    stored in the FP8 layout of its kernels (`shipped`), since vLLM uses them
    for any such model: vllm-project/vllm, pull request 47090."""
    deepseek = find_model("deepseek-v3.2")
    widths, deepseek_widths = (
        {store.widths for group in groups for store in group.stores}
        for groups in (model.groups, deepseek.groups)
    )
    if model.shipped is None and widths == deepseek_widths:
        return replace(model, shipped=deepseek.shipped)
    return model


def find_models(
    args: argparse.Namespace,
) -> list[tuple[Model, Config | None]]:
    """The models of --model or --list, and of --config, with its configs."""
    ids = models() if args.list else args.model or []
    pairs: list[tuple[Model, Config | None]] = []
    pairs += [(with_kernels(find_model(id)), None) for id in ids]
    if args.quant and len(args.config) != 1:
        raise ValueError(message("--quant goes with one file of --config"))
    for file in args.config:
        config = read_config(file)
        if args.quant:
            from attnref.released.stored import both_formats

            quant = both_formats(config, read_config(args.quant).fields)
            fields = {**config.fields, "quantization_config": quant}
            config = replace(config, fields=fields)
        try:
            model = model_from_config(config)
        except ValueError as error:
            raise ValueError(f"{error}{suggested_models(config)}") from None
        pairs.append((with_kernels(model), config))
    return pairs


def cache_format(dtype: str, scale: tuple[int, int] | None) -> str | Storage:
    """The format of the cache."""
    if scale is None:
        return dtype
    if dtype not in DTYPES:
        dtypes = message(", ").join(DTYPES)
        raise ValueError(
            message("--scale goes with one of {}, not {!r}", dtypes, dtype)
        )
    return DTYPES[dtype]._replace(scale_bits=scale[0], block=scale[1])


def suggested_option(names: Sequence[str]) -> str:
    """The option that names without one lack, if there are such files or
    models."""
    option = "--config"
    if not all(Path(name).is_file() for name in names):
        option = "--model"
        try:
            for name in names:
                find_model(name)
        except ValueError:
            return message("unrecognized arguments: %s") % " ".join(names)
    return message("did you mean {}?", f"{option} {' '.join(names)}")


def with_formats(
    use: Use, config: Config, args: argparse.Namespace
) -> tuple[Use, dict[str, Any]]:
    """The use with the formats of a config, and what is to be said of them."""
    # A model of the table does not need this module.
    from attnref.released.stored import (
        assumed_dtype,
        cache_scheme,
        index_bytes,
        stored_shares,
    )

    formats: dict[str, Any] = {}
    if args.weights == "config":
        use = replace(use, weights=stored_shares(config))
        if index_bytes(config):
            formats["exact"] = True
        elif dtype := assumed_dtype(config):
            formats["assumed_dtype"] = dtype
    if not args.dtype and not args.scale:
        scheme = cache_scheme(config)
        use = replace(use, dtype=scheme or "bf16")
        formats |= {"cache_format": use.dtype, "scheme": bool(scheme)}
    return use, formats


def row_of(
    model: Model,
    config: Config | None,
    use: Use,
    args: argparse.Namespace,
    language: str,
) -> dict[str, Any]:
    """The report on a model, with the formats that its config says."""
    formats: dict[str, Any] = {}
    if config:
        use, formats = with_formats(use, config, args)
    elif args.weights == "config":
        raise ValueError(
            message("--weights config reads a file: pass --config")
        )
    if args.engine or args.draft_layers:
        model, block = allocated(
            model,
            args.engine,
            dtype=use.dtype,
            ranks=use.head_ranks,
            drafts=args.draft_layers,
        )
        use = replace(use, block=args.block_size or block)
        formats |= {"engine": args.engine, "drafts": args.draft_layers}
    row = report(model, use, language) | formats
    if args.device:
        share = float(args.utilisation or 1)
        row["device"] = find_device(args.device)._asdict() | {"share": share}
    return row


def run_kv(args: argparse.Namespace) -> str:
    if args.names:
        raise ValueError(suggested_option(args.names))
    check_options(args)
    budget = budget_of(args)
    if args.list and not args.json:
        return table((m.id, m.name, m.date) for m in models().values())
    pairs = find_models(args)
    use = Use(
        tokens=args.tokens,
        batch=args.batch,
        dtype=cache_format(args.dtype or "bf16", args.scale),
        ranks=args.ranks,
        dp_attention=args.dp_attention,
        block=args.block_size or 1,
        prefix=args.prefix,
        budget=budget,
        weights=None if args.weights == "config" else args.weights,
        link=args.link,
    )
    # What programs read is in English.
    language = "en" if args.json else args.lang or language_of_locale()
    say = speaker(language)
    # A model without the data that was asked for does not stop the others.
    rows: list[dict[str, Any]] = []
    failures: list[dict[str, str]] = []
    with speaking(language):
        for model, config in pairs:
            try:
                rows.append(row_of(model, config, use, args, language))
            except ValueError as error:
                if len(pairs) == 1:
                    raise
                failures.append({"id": model.id, "unknown": str(error)})
    if not rows:
        raise ValueError(failures[0]["unknown"])
    if args.json:
        return json.dumps([*rows, *failures], indent=2, ensure_ascii=False)
    if len(pairs) == 1:
        return describe_one(rows[0], say)
    lines = [describe_several(rows, say)]
    lines += [say("kv out", why=failure["unknown"]) for failure in failures]
    return "\n".join(lines)
