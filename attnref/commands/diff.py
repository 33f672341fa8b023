"""attnref diff: what differs in the attention of two models."""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnref.commands.kv import a_count
from attnref.numbers.kv_memory import size
from attnref.released.record import Config, read_config
from attnref.released.specs import configs, find_model
from attnref.words import add_language, language_of_locale, message, speaking


def config_of(name: str) -> Config:
    """A file, the config.json of a folder, or that of a model by its name."""
    path = Path(name)
    if path.exists() or path.suffix == ".json":
        try:
            return read_config(path)
        except ValueError as error:  # which of the two is it?
            raise ValueError(f"{path}: {error}") from error
    id = find_model(name).id
    if id not in configs():
        raise ValueError(
            message("the config.json of {} is not known; pass its file", id)
        )
    return read_config(configs()[id])


def numbers(layers: Sequence[int]) -> str:
    """Layers as ranges: 0-4, 6-10, ..."""
    ranges: list[list[int]] = []
    for n in layers:
        if not ranges or n > ranges[-1][-1] + 1:
            ranges.append([])
        ranges[-1].append(n)
    texts = ["-".join(map(str, dict.fromkeys((x[0], x[-1])))) for x in ranges]
    return ", ".join([*texts[:3], *(["..."] if len(texts) > 3 else [])])


def both(pair: Iterable[object]) -> str:
    return " | ".join(str(value)[:60] for value in pair)


def describe(kinds: Mapping[str, Any]) -> Iterator[str]:
    """A kind of layer in words, in fields, and in what shows it."""
    yield message("layers {}", both(map(numbers, kinds["layers"])))
    yield from (f"  {text}" for text in kinds["words"])
    yield from (f"  {n}: {both(pair)}" for n, pair in kinds["fields"].items())
    tensor = kinds["tensor"]
    if tensor is None:
        yield "  " + message("the output of one layer alone is the same")
    elif "shapes" in tensor:
        yield "  " + message("weights that do not fit:")
        for name, pair in tensor["shapes"].items():
            yield f"    {name}: {both(pair)}"
    else:
        values = both(f"{value:.8g}" for value in tensor["values"])
        text = "small layers with the same weights: output[{}, {}, {}] is {}"
        yield "  " + message(text, *tensor["place"], values)
        text = "outputs differ by up to {} of the largest one"
        yield "  " + message(text, f"{tensor['largest']:.2g}")


def text_of(result: Mapping[str, Any]) -> Iterator[str]:
    a, b = result["layers"]
    if result["equal"]:
        yield message("equal: all {} layers compute the same", a)
    elif a != b:
        yield message("number of layers: {}", both((a, b)))
    elif not result["kinds"] and result["order"] is None:
        text = "all layers compute the same for text, but their files differ"
        yield message(text)
    if result["order"] is not None:
        text = "the order of the layers differs from layer {} on"
        yield message(text, result["order"])
    for kinds in result["kinds"]:
        yield from describe(kinds)
    sizes = {name: both(map(size, x)) for name, x in result["bytes"].items()}
    yield message("KV cache per token: {}", sizes["token"])
    text = "KV cache of {} tokens: {}"
    yield message(text, f"{result['tokens']:,}", sizes["cache"])
    if any(result["bytes"]["states"]):
        yield message("of which states: {}", sizes["states"])
    yield from () if result["equal"] else result["lines"]


def run(options: argparse.Namespace) -> str:
    from attnref.released.difference import difference

    # What programs read is in English.
    language = options.lang or language_of_locale()
    language = "en" if options.json else language
    with speaking(language):
        configs = config_of(options.first), config_of(options.second)
        result = difference(*configs, tokens=options.tokens, language=language)
        text = "\n".join(text_of(result))
    if options.json:
        text = json.dumps(result, ensure_ascii=False, indent=1)
    if result["equal"]:
        return text
    print(text, flush=True)
    raise SystemExit(1)


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "diff",
        help="what differs in the attention of two models",
        description="Compare the attention of two models by their config.json: "
        "in words, in the fields that differ, in an output that shows it, in "
        "bytes, and in the lines of the files that copy --config writes. Exit "
        "code: 0 if all layers are equal, 1 if not, 2 if a config is refused.",
        epilog=message("example: {}", "%(prog)s llama-3.1-8b config.json"),
    )
    add = parser.add_argument
    text = "config.json, the folder that holds it, or an id of kv --list"
    add("first", help=text)
    add("second", help=text)
    add(
        "--tokens",
        type=a_count,
        default=131_072,
        help="the length of a text, of which the KV cache is compared",
    )
    add("--json", action="store_true", help="for programs")
    add_language(parser)
    parser.set_defaults(run=run)
