"""attnref vectors: known answers for attention in another language."""

import argparse
from pathlib import Path
from typing import Any

from attnref.words import add_language, message


def run(options: argparse.Namespace) -> str:
    from attnref.check.vectors import cases, check_case, write  # imports torch

    if options.list:
        return "\n".join(cases())
    if not options.folder:
        raise ValueError(message("pass a folder; --list prints all cases"))
    for name in options.case:
        check_case(name)
    folder = Path(options.folder)
    try:
        index = write(folder, options.case or cases())
    except ModuleNotFoundError as error:
        missing = message("it needs: pip install {}", error.name)
        raise ValueError(missing) from error
    return message("{}: {} cases", folder, len(index["cases"]))


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "vectors",
        help="known answers, for attention in any language",
        description="Write test vectors: for each case a file NAME.safetensors "
        "with inputs, weights, all intermediates, the output, and the output "
        "of each known mistake; and index.json.",
        epilog=message("example: {}", "%(prog)s answers gqa rope"),
    )
    add = parser.add_argument
    add("folder", nargs="?", metavar="DIR", help="where they are written")
    add("case", nargs="*", help="gqa, rope, ...; otherwise all")
    add("--list", action="store_true", help="all cases")
    add_language(parser)
    parser.set_defaults(run=run)
