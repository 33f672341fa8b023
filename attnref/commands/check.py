"""attnref check: test a solution of an exercise, and name its mistake."""

import argparse
import csv
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from attnref.judge.process import NO_NUMPY, SECONDS, check_file
from attnref.judge.tasks import TASKS, exercise_name, file_to_fill
from attnref.judge.words import WORDS, wrapped
from attnref.words import add_language, language_of_locale, message

STUB = "EXERCISE.py"  # stands for the file named after the exercise
INTERVAL = 0.5  # seconds from one look at a watched file to the next
SUFFIXES = (".py", ".ipynb")
COLUMNS = ("file", "exercise", "passed", "points", "maximum")


def seconds_of(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(
            message("{!r} is not a number of seconds", text)
        )
    return seconds


def listing(language: str) -> str:
    """The exercises, and the signatures that each asks for."""
    width = max(map(len, TASKS))
    lines = []
    for name, exercise in TASKS.items():
        lines.append(f"{name:{width}}  {getattr(exercise.title, language)}")
        lines += [f"{'':{width}}    {x}" for x in exercise.signatures]
    return "\n".join(lines)


def run(options: argparse.Namespace) -> str:
    language = options.lang or language_of_locale()
    if options.list or options.explain:
        if options.exercise or options.stub:
            word = "list" if options.list else "explain"
            raise ValueError(message("--{} does not take an exercise", word))
        if options.list:
            return listing(language)
        return explain(options.explain, language)
    if not options.exercise:
        raise ValueError(message("pass an exercise; --list prints all"))
    if options.stub:
        return write_stub(exercise_name(options.exercise), options, language)
    if options.force:
        raise ValueError(message("--force goes with --stub"))
    # A link is not resolved: its target does not lie below its name.
    folder = Path(options.exercise).absolute()
    others = list[str]()
    if folder.is_dir() and not options.file:
        files, others = files_in(folder)
    else:
        name = exercise_name(options.exercise)
        if not options.file:
            raise ValueError(
                message(
                    "pass a file. First, attnref check {0} --stub writes "
                    "{0}.py; fill it in; then attnref check {0} {0}.py",
                    name,
                )
            )
        path = Path(options.file).resolve()
        if not path.is_file():
            text = "{} is a folder" if path.is_dir() else "{} does not exist"
            raise ValueError(message(text, options.file))
        files = [(name, path)]
    # Set before torch is imported: its threads cost more than they save here.
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    warnings.filterwarnings("ignore", NO_NUMPY)
    for passed, text in results(files, others, folder, language, options):
        if passed and not options.watch:
            return text
        print(text, flush=True)
    raise SystemExit(1)


def results(
    files: list[tuple[str, Path]],
    others: list[str],
    folder: Path,
    language: str,
    options: argparse.Namespace,
) -> Iterator[tuple[bool, str]]:
    """Check the files; yield whether all pass, and the text to print. With
    --watch, do so again whenever one of them has changed."""
    while True:
        times = [path.stat().st_mtime_ns for _, path in files]
        reports = [
            check_file(name, path, language=language, seconds=options.timeout)
            for name, path in files
        ]
        start = 0 if options.file else len(f"{folder}/")
        names = [str(path)[start:] for _, path in files]
        rows = [
            {"file": name} | report.as_json()
            for name, report in zip(names, reports, strict=True)
        ]
        rows += (row_of_other(name, language) for name in others)
        rows.sort(key=itemgetter("file"))
        if options.json:
            output = reports[0].as_json() if options.file else rows
            text = json.dumps(output, ensure_ascii=False, indent=2)
        elif options.file:
            colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
            text = reports[0].text(colour=colour, show=options.show)
        else:
            text = points(rows, language)
        if options.csv:
            write_table(options.csv, rows, language)
        yield all(report.passed for report in reports), text
        if not options.watch:
            return
        while times == [path.stat().st_mtime_ns for _, path in files]:
            time.sleep(INTERVAL)


def row_of_other(name: str, language: str) -> dict[str, Any]:
    """The row of a file that is named after no exercise."""
    error = getattr(WORDS["skipped"], language)
    empty = dict.fromkeys(("exercise", "passed", "points"))
    return {"file": name} | empty | {"error": error}


def write_table(path: str, rows: list[dict[str, Any]], language: str) -> None:
    with open(path, "w", encoding="utf-8-sig", newline="") as file:
        table = csv.writer(file)
        table.writerow([*COLUMNS, "why"])
        for row in rows:
            table.writerow([*map(row.get, COLUMNS), fault_of(row, language)])


def write_stub(name: str, options: argparse.Namespace, language: str) -> str:
    """Print or write the file to fill in."""
    text, target = file_to_fill(name, language), options.stub
    if target == "-":
        return text.removesuffix("\n")
    path = Path(target if target != STUB else f"{name}.py")
    mode = "w" if options.force else "x"
    try:
        with open(path, mode, encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise ValueError(
            message("{} already exists; --force overwrites it", path)
        ) from None
    return message("{}: {} lines", path, len(text.splitlines()))


def files_in(folder: Path) -> tuple[list[tuple[str, Path]], list[str]]:
    """The files named by an exercise, `gqa.py` or `gqa of Ann (1).ipynb`, and
    the names of all others."""
    files, others = list[tuple[str, Path]](), list[str]()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(part.startswith((".", "__pyc")) for part in name.parts)
        if hidden or path.suffix not in SUFFIXES or not path.is_file():
            continue
        stem = re.sub(r"\W+", "_", path.stem.lower())
        exercises = [n for n in TASKS if f"{stem}_".startswith(f"{n}_")]
        if exercises:
            files.append((max(exercises, key=len), path))
        else:
            others.append(str(name))
    if not files:
        raise ValueError(
            message("no file in {} is named after an exercise", folder)
        )
    return files, others


def fault_of(row: dict[str, Any], language: str) -> str:
    """What is wrong with a file, in a few words."""
    failures = (
        x["title"] for x in row.get("properties", ()) if not x["passed"]
    )
    titles = [x["title"] for ids in row.get("mistakes", ())[:1] for x in ids]
    comma = getattr(WORDS["and"], language)
    return comma.join(titles) or row["error"] or next(failures, "")


def points(rows: list[dict[str, Any]], language: str) -> str:
    """A line per file: its points, the maximum, and what is wrong."""
    width = max(len(row["file"]) for row in rows)
    lines = []
    for row in rows:
        score = " " * 5
        if row["exercise"]:
            score = f"{row['points']:2}/{row['maximum']:<2}"
        line = f"{row['file']:{width}}  {score}  {fault_of(row, language)}"
        lines.append(line.rstrip())
    note = wrapped(getattr(WORDS["points"], language), "")
    return "\n".join([*lines, "", *note])


def explain(id: str, language: str) -> str:
    from attnref.judge.catalogue import catalogue
    from attnref.judge.gradients import backward
    from attnref.judge.report import explanation
    from attnref.words import hint

    names = [*catalogue(), *backward()]
    if id not in names:
        end = hint(id, {name: name for name in names})
        raise ValueError(message("there is no mistake {!r}", id) + end)
    return explanation(id, language)


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="test your own attention, and name the mistake in it",
        description="Check that a solution of an exercise has the properties "
        "it must have, and name the mistake if it is a known one. Exit code: "
        "0 if all hold, 1 if not, 2 if the command is wrong. Gradients are "
        "judged where there is a graph of autograd: code in NumPy or under "
        "no_grad has none, and does not fail for it. The file runs "
        "with your rights: it can read your files and use the network. On "
        "Linux with Landlock it can write only in a temporary folder; "
        "elsewhere it can write and delete what you can.",
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
        const=STUB,
        metavar="FILE",
        help="write the file to fill in, EXERCISE.py unless named; - prints it",
    )
    add("--force", action="store_true", help="overwrite existing files")
    add("--json", action="store_true", help="for programs")
    add(
        "--csv", metavar="FILE", help="write the points of a folder, as a table"
    )
    add_language(parser)
    add(
        "--timeout",
        type=seconds_of,
        default=SECONDS,
        metavar="S",
        help="seconds of computing that the file may take (%(default)g; more "
        "for torch.compile); ten times as long if it only waits",
    )
    parser.set_defaults(run=run)
    _take_options_anywhere(parser)


def _take_options_anywhere(parser: argparse.ArgumentParser) -> None:
    """Let a file stand behind an option: `check gqa --json x.py`. argparse by
    itself refuses it, since an exercise without a file is complete."""

    def parse(*words: Any) -> Any:
        del vars(parser)["parse_known_args"]
        try:
            return parser.parse_known_intermixed_args(*words)
        finally:
            vars(parser)["parse_known_args"] = parse

    vars(parser)["parse_known_args"] = parse
