"""The command line of the package: `attnref`, or `python -m attnref`."""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnref import __version__
from attnref.commands import check, conform, copy, diff, kv, match, vectors
from attnref.judge.words import wrapped
from attnref.words import language_of_locale, message, speaking

INSTALL = "pip install {}"


class Help(argparse.HelpFormatter):
    """In the language of `speaking`, in lines that fit in Chinese, too."""

    def add_text(self, text: str | None) -> None:
        super().add_text(text and message(text))

    def _get_help_string(self, action: argparse.Action) -> str:
        return message(action.help or "")

    def _split_lines(self, text: str, width: int) -> list[str]:
        return [*wrapped(text, "", width)]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(wrapped(text, indent, width))


class Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=Help, **options)


def language_of(arguments: Sequence[str]) -> str:
    """That of `--lang`, wherever it stands, or else of the locale."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--lang", nargs="?")
    lang = parser.parse_known_args(arguments)[0].lang
    return lang or language_of_locale()


def main(arguments: Sequence[str], prog: str = "attnref") -> str:
    """What a command prints; whatever is wrong ends the program with 2."""
    # argparse takes its own messages from gettext, by this name.
    argparse.__dict__["_"] = message
    with speaking(language_of(arguments)):
        return _run(arguments, prog)


def _run(arguments: Sequence[str], prog: str) -> str:
    top = Parser(
        prog=prog,
        description="Sizes of the KV caches of released models, copies of "
        "attention code that need only PyTorch, and a check of your own.",
        epilog=message(
            "example: {}", "%(prog)s kv --model llama-3.1-8b --tokens 128K"
        ),
    )
    version = f"attnref {__version__}"
    top.add_argument("--version", action="version", version=version)
    commands = top.add_subparsers(metavar="command", dest="command")
    kv.add_to(commands)
    copy.add_to(commands)
    diff.add_to(commands)
    check.add_to(commands)
    vectors.add_to(commands)
    match.add_to(commands)
    conform.add_to(commands)
    args = top.parse_args(arguments)
    if args.command is None:
        return top.format_help().removesuffix("\n")
    try:
        return str(args.run(args))
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        # No command needs more than torch brings, and some need nothing.
        if not error.name or error.name.startswith("attnref"):
            raise
        missing = message(
            "it needs {}: {}", error.name, INSTALL.format(error.name)
        )
        top.exit(2, f"{prog} {args.command}: error: {missing}\n")
    except OSError as error:
        top.exit(2, f"{prog} {args.command}: error: {_of_system(error)}\n")
    except ValueError as error:
        top.exit(2, f"{prog} {args.command}: error: {error}\n")


# What the system says of a file, in the words of the commands.
OF_SYSTEM = {
    errno.ENOENT: "{} does not exist",
    errno.EISDIR: "{} is a folder",
    errno.ENOTDIR: "{} is not in a folder",
    errno.EACCES: "{} may not be opened",
    errno.EPERM: "{} may not be opened",
}


def _of_system(error: OSError) -> str:
    text = OF_SYSTEM.get(error.errno or 0)
    return message(text, error.filename) if text else str(error)


def command() -> int:
    """`main` as a program: its exit code is 0, 2 for what is wrong, and, as
    for other programs, 130 after Ctrl-C and 141 if nobody reads the output."""
    typed = Path(sys.argv[0])
    module = typed.name == "__main__.py"
    try:
        try:
            prog = "python -m attnref" if module else typed.stem
            print(main(sys.argv[1:], prog))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at its end, to nowhere then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(command())
