"""attnref check: what is wrong with somebody's attention, by name."""

import argparse
import json
import locale
import os
import sys
from pathlib import Path
from typing import Any

from attnref.mistakes.apart import SECONDS, check_file
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


def spoken() -> str:
    """ "zh" where the locale is Chinese, else "en"."""
    names = ("LC_ALL", "LC_MESSAGES", "LANG")
    told = next(filter(None, map(os.environ.get, names)), None)
    told = told or locale.getlocale()[0] or ""
    return "zh" if told.lower().startswith(("zh", "chinese")) else "en"


def listed(language: str) -> str:
    """The exercises, and what a solution of each defines."""
    wide = max(map(len, TASKS))
    lines = []
    for name, told in TASKS.items():
        lines.append(f"{name:{wide}}  {getattr(told.title, language)}")
        lines += [f"{'':{wide}}    {each}" for each in told.signatures]
    return "\n".join(lines)


def run(asked: argparse.Namespace) -> str:
    language = asked.lang or spoken()
    if asked.list:
        if asked.exercise or asked.stub:
            raise ValueError("--list takes no exercise: it prints all")
        return listed(language)
    if not asked.exercise:
        raise ValueError("pass an exercise; --list prints all")
    name = task(asked.exercise)
    if asked.stub:
        text = stub(name, language)
        if asked.stub == "-":
            return text.removesuffix("\n")
        path = Path(asked.stub if asked.stub != WRITES else f"{name}.py")
        try:
            with open(path, "x", encoding="utf-8", newline="\n") as new:
                new.write(text)
        except FileExistsError:
            raise ValueError(f"{path} is there already") from None
        return f"{path}: {len(text.splitlines())} lines"
    if not asked.file:
        raise ValueError(
            f"pass a file; --stub writes {name}.py, to be filled in"
        )
    path = Path(asked.file).resolve()
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "not there"
        raise ValueError(f"{asked.file} is {kind}")
    report = check_file(name, path, language=language, seconds=asked.timeout)
    if asked.json:
        told = json.dumps(report.as_json(), ensure_ascii=False, indent=2)
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        told = report.text(colour=colour)
    if report.passed:
        return told
    print(told)
    raise SystemExit(1)


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="your own attention, and which known mistake is in it",
        description="Run a solution of an exercise under the laws that hold "
        "for it, and name the mistake if it is a known one. Exit code: 0 if "
        "all laws hold, 1 if not, 2 if the command is wrong.",
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
        help="seconds that the file may take (%(default)g)",
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
