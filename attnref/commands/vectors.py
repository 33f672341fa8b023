"""attnref vectors: known answers for attention in another language."""

import argparse
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnref.words import add_language, message

INSTALL = 'pip install "attnref[vectors]"'


@contextmanager
def packages() -> Iterator[None]:
    """Say in one line how to install a missing package. torch warns of a
    missing NumPy in four lines, so its warning is ignored."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Failed to initialize NumPy")
        try:
            yield
        except ModuleNotFoundError as error:
            name = str(error.name).split(".")[0]
            text = message("it needs {}: {}", name, INSTALL)
            raise ValueError(text) from error


def run(options: argparse.Namespace) -> str:
    with packages():
        return _write(options)


def _write(options: argparse.Namespace) -> str:
    from attnref.judge.vectors import cases, check_case, write  # imports torch

    if options.list:
        return "\n".join(cases())
    if not options.folder:
        raise ValueError(message("pass a folder; --list prints all cases"))
    for name in options.case:
        check_case(name)
    folder, names = Path(options.folder), options.case or [*cases()]
    numbers = iter(range(1, len(names) + 1))

    def report(name: str) -> None:
        line = message("{} of {}: {}", next(numbers), len(names), name)
        print(line, flush=True)

    index = write(folder, names, report)
    return message("{}: {} cases", folder, len(index["cases"]))


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "vectors",
        help="known answers, for attention in any language",
        description="Write test vectors: for each case a file NAME.safetensors "
        "with inputs, weights, all intermediates, the output, and the output "
        "of each known mistake; index.json, and the schema of both.",
        epilog=message("example: {}", "%(prog)s answers gqa rope"),
    )
    add = parser.add_argument
    add("folder", nargs="?", metavar="DIR", help="where they are written")
    add("case", nargs="*", help="gqa, rope, ...; otherwise all")
    add("--list", action="store_true", help="all cases")
    add_language(parser)
    parser.set_defaults(run=run)
