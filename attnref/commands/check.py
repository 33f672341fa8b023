"""attnref check: what is wrong with somebody's attention, by name."""

import argparse
import csv
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnref.check.process import NO_NUMPY, SECONDS, check_file
from attnref.check.tasks import TASKS, stub, task
from attnref.check.words import WORDS, wrapped
from attnref.words import add_language, language_of_locale, message

WRITES = "EXERCISE.py"
EVERY = 0.5  # seconds from one look at a watched file to the next
SUFFIXES = (".py", ".ipynb")
COLUMNS = ("file", "exercise", "passed", "points", "maximum")


def a_time(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(
            message("{!r} is not a number of seconds", text)
        )
    return seconds


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
    if options.list or options.explain:
        if options.exercise or options.stub:
            word = "list" if options.list else "explain"
            raise ValueError(message("--{} does not take an exercise", word))
        return (
            listed(language)
            if options.list
            else explained(options.explain, language)
        )
    if not options.exercise:
        raise ValueError(message("pass an exercise; --list prints all"))
    if options.stub:
        return stubbed(task(options.exercise), options.stub, language)
    # Not resolved: what a link leads to does not lie below its name.
    folder = Path(options.exercise).absolute()
    skipped = list[str]()
    if folder.is_dir() and not options.file:
        files, skipped = in_folder(folder)
    else:
        name = task(options.exercise)
        if not options.file:
            raise ValueError(
                message(
                    "pass a file; --stub writes {}, to be filled in",
                    f"{name}.py",
                )
            )
        path = Path(options.file).resolve()
        if not path.is_file():
            what = "{} is a folder" if path.is_dir() else "{} does not exist"
            raise ValueError(message(what, options.file))
        files = [(name, path)]
    # Before torch is imported: its threads cost more than they give here.
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    warnings.filterwarnings("ignore", NO_NUMPY)
    for passed, text in checked(files, skipped, folder, language, options):
        if passed and not options.watch:
            return text
        print(text, flush=True)
    raise SystemExit(1)


def checked(
    files: list[tuple[str, Path]],
    skipped: list[str],
    folder: Path,
    language: str,
    options: argparse.Namespace,
) -> Iterator[tuple[bool, str]]:
    """Whether all files pass, and what to print; with --watch, again and again
    when one of them has changed."""
    while True:
        before = [path.stat().st_mtime_ns for _, path in files]
        reports = [
            check_file(name, path, language=language, seconds=options.timeout)
            for name, path in files
        ]
        data = [report.as_json() for report in reports]
        start = 0 if options.file else len(f"{folder}/")
        names = (str(path)[start:] for _, path in files)
        every: dict[str, dict[str, Any]] = dict(zip(names, data, strict=True))
        for name in skipped:
            every[name] = dict.fromkeys(("exercise", "passed", "points"))
            every[name]["error"] = getattr(WORDS["skipped"], language)
        results = [{"file": name, **every[name]} for name in sorted(every)]
        if options.json:
            output = data[0] if options.file else results
            text = json.dumps(output, ensure_ascii=False, indent=2)
        elif options.file:
            colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
            text = reports[0].text(colour=colour, show=options.show)
        else:
            text = points(results, language)
        if options.csv:
            with open(options.csv, "w", encoding="utf-8-sig", newline="") as to:
                rows = csv.writer(to)
                rows.writerow([*COLUMNS, "why"])
                rows.writerows(
                    [*map(x.get, COLUMNS), why(x, language)] for x in results
                )
        yield all(report.passed for report in reports), text
        if not options.watch:
            return
        while before == [path.stat().st_mtime_ns for _, path in files]:
            time.sleep(EVERY)


def stubbed(name: str, to: str, language: str) -> str:
    text = stub(name, language)
    if to == "-":
        return text.removesuffix("\n")
    path = Path(to if to != WRITES else f"{name}.py")
    try:
        with open(path, "x", encoding="utf-8", newline="\n") as new:
            new.write(text)
    except FileExistsError:
        raise ValueError(message("{} already exists", path)) from None
    return message("{}: {} lines", path, len(text.splitlines()))


def in_folder(folder: Path) -> tuple[list[tuple[str, Path]], list[str]]:
    """The files named by an exercise, `gqa.py` or `gqa of Ann (1).ipynb`, and
    the names of all others."""
    files, others = list[tuple[str, Path]](), list[str]()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(part.startswith((".", "__pyc")) for part in name.parts)
        if hidden or path.suffix not in SUFFIXES or not path.is_file():
            continue
        named = re.sub(r"\W+", "_", path.stem.lower())
        fits = [n for n in TASKS if f"{named}_".startswith(f"{n}_")]
        if fits:
            files.append((max(fits, key=len), path))
        else:
            others.append(str(name))
    if not files:
        raise ValueError(
            message("no file in {} is named after an exercise", folder)
        )
    return files, others


def why(data: dict[str, Any], language: str) -> str:
    """What is wrong with a file, in a few words."""
    failed = (x["title"] for x in data.get("properties", ()) if not x["passed"])
    named = [x["title"] for ids in data.get("mistakes", ())[:1] for x in ids]
    comma = getattr(WORDS["and"], language)
    return comma.join(named) or data["error"] or next(failed, "")


def points(results: list[dict[str, Any]], language: str) -> str:
    """A line per file: its points, of how many, and what is wrong."""
    wide = max(len(x["file"]) for x in results)
    lines = []
    for each in results:
        of = " " * 5
        if each["exercise"]:
            of = f"{each['points']:2}/{each['maximum']:<2}"
        lines.append(
            f"{each['file']:{wide}}  {of}  {why(each, language)}".rstrip()
        )
    note = wrapped(getattr(WORDS["points"], language), "")
    return "\n".join([*lines, "", *note])


def explained(id: str, language: str) -> str:
    from attnref.check.catalogue import catalogue
    from attnref.check.report import explanation
    from attnref.words import hint

    if id not in catalogue():
        meant = hint(id, {each: each for each in catalogue()})
        raise ValueError(message("there is no mistake {!r}", id) + meant)
    return explanation(id, language)


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="test your own attention, and name the mistake in it",
        description="Check that a solution of an exercise has the properties "
        "it must have, and name the mistake if it is a known one. Exit code: "
        "0 if all hold, 1 if not, 2 if the command is wrong.",
        epilog=message("example: {}", "%(prog)s gqa my_gqa.py"),
    )
    add = parser.add_argument
    add(
        "exercise",
        nargs="?",
        help="softmax, sdpa, gqa, ...; see --list. Or a folder: its files "
        "named by exercises, gqa.py or gqa_ann.py, with points",
    )
    add("file", nargs="?", metavar="file.py", help="the solution, or an .ipynb")
    add("--list", action="store_true", help="all exercises")
    add("--explain", metavar="ID", help="a mistake of the catalogue")
    add("--show", action="store_true", help="the lines of a known mistake too")
    add("--watch", action="store_true", help="again whenever the file changes")
    add(
        "--stub",
        nargs="?",
        const=WRITES,
        metavar="FILE",
        help="write the file to fill in, EXERCISE.py unless named; - prints it",
    )
    add("--json", action="store_true", help="for programs")
    add(
        "--csv", metavar="FILE", help="write the points of a folder, as a table"
    )
    add_language(parser)
    add(
        "--timeout",
        type=a_time,
        default=SECONDS,
        metavar="S",
        help="seconds of computing that the file may take (%(default)g; more "
        "for torch.compile); ten times as long if it only waits",
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
