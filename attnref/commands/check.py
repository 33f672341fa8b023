"""attnref check: what is wrong with somebody's attention, by name."""

import argparse
import json
import locale
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from attnref.mistakes.apart import NO_NUMPY, SECONDS, check_file
from attnref.mistakes.tasks import TASKS, stub, task

WRITES = "EXERCISE.py"


def a_time(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def language_of_locale() -> str:
    """ "zh" where the locale is Chinese, else "en"."""
    names = ("LC_ALL", "LC_MESSAGES", "LANG")
    name = next(filter(None, map(os.environ.get, names)), None)
    name = name or locale.getlocale()[0] or ""
    return "zh" if name.lower().startswith(("zh", "chinese")) else "en"


def listed(language: str) -> str:
    """The exercises, and what a solution of each defines."""
    wide = max(map(len, TASKS))
    lines = []
    for name, exercise in TASKS.items():
        lines.append(f"{name:{wide}}  {getattr(exercise.title, language)}")
        lines += [f"{'':{wide}}    {each}" for each in exercise.signatures]
    return "\n".join(lines)


def run(options: argparse.Namespace) -> str:
    language = options.lang or language_of_locale()
    if options.list:
        if options.exercise or options.stub:
            raise ValueError("--list takes no exercise: it prints all")
        return listed(language)
    if not options.exercise:
        raise ValueError("pass an exercise; --list prints all")
    name = task(options.exercise)
    if options.stub:
        text = stub(name, language)
        if options.stub == "-":
            return text.removesuffix("\n")
        path = Path(options.stub if options.stub != WRITES else f"{name}.py")
        try:
            with open(path, "x", encoding="utf-8", newline="\n") as new:
                new.write(text)
        except FileExistsError:
            raise ValueError(f"{path} is there already") from None
        return f"{path}: {len(text.splitlines())} lines"
    if not options.file:
        raise ValueError(
            f"pass a file; --stub writes {name}.py, to be filled in"
        )
    path = Path(options.file).resolve()
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "not there"
        raise ValueError(f"{options.file} is {kind}")
    warnings.filterwarnings("ignore", NO_NUMPY)
    report = check_file(name, path, language=language, seconds=options.timeout)
    if options.json:
        text = json.dumps(report.as_json(), ensure_ascii=False, indent=2)
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        text = report.text(colour=colour)
    if report.passed:
        return text
    print(text)
    raise SystemExit(1)


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="your own attention, and which known mistake is in it",
        description="Check that a solution of an exercise has the properties "
        "it must have, and name the mistake if it is a known one. Exit code: "
        "0 if all hold, 1 if not, 2 if the command is wrong.",
        epilog="example: %(prog)s gqa my_gqa.py",
    )
    add = parser.add_argument
    add("exercise", nargs="?", help="softmax, sdpa, gqa, ...; see --list")
    add("file", nargs="?", metavar="file.py", help="the solution")
    add("--list", action="store_true", help="all exercises")
    add(
        "--stub",
        nargs="?",
        const=WRITES,
        metavar="FILE",
        help="write the file to fill in, EXERCISE.py unless named; - prints it",
    )
    add("--json", action="store_true", help="for programs")
    add("--lang", choices=("en", "zh"), help="otherwise that of the locale")
    add(
        "--timeout",
        type=a_time,
        default=SECONDS,
        metavar="S",
        help="seconds of computing that the file may take (%(default)g); ten "
        "times as long if it only waits",
    )
    parser.set_defaults(run=run)
    _take_options_anywhere(parser)


def _take_options_anywhere(parser: argparse.ArgumentParser) -> None:
    """argparse alone refuses a file behind an option: `check gqa --json x.py`,
    as an exercise without a file is complete."""

    def parse(*words: Any) -> Any:
        del vars(parser)["parse_known_args"]
        try:
            return parser.parse_known_intermixed_args(*words)
        finally:
            vars(parser)["parse_known_args"] = parse

    vars(parser)["parse_known_args"] = parse
