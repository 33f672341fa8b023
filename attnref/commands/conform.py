"""attnref conform: what an attention engine does where engines differ."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnref.words import add_language, language_of_locale, message

if TYPE_CHECKING:
    from attnref.judge.conform import Answer, Engine


def write_stub(path: Path) -> str:
    stub = Path(__file__).parents[1] / "judge/engines/_stub.py"
    if path.exists():
        raise ValueError(message("{} exists", path))
    path.write_text(stub.read_text("utf-8"), encoding="utf-8")
    return message("{} is written: call your engine in it", path)


def find(name: str) -> "list[Engine]":
    """An engine of this package, an adapter, or all those of a folder."""
    from attnref.judge.conform import builtin, known, load

    if name in known():
        return [builtin(name)]
    if Path(name).is_dir():
        return [load(str(x)) for x in sorted(Path(name).glob("[!_]*.py"))]
    if ".py" in name:
        return [load(name)]
    text = "there is no engine {!r}; there are {}, or pass a file.py"
    raise ValueError(message(text, name, ", ".join(known())))


def ask(engine: "Engine") -> "list[Answer]":
    """Its answers; a terminal shows meanwhile what is asked."""
    from attnref.judge.conform import conform

    if not sys.stderr.isatty():
        return conform(engine)
    clear = "\r\x1b[K"

    def show(id: str) -> None:
        sys.stderr.write(f"{clear}{engine.name}: {id}")
        sys.stderr.flush()

    try:
        return conform(engine, show)
    finally:
        sys.stderr.write(clear)


def said(answer: "Answer") -> str:
    """The answer and, in brackets, what there is to say of it."""
    if answer.mistake:
        words = message("; this is the mistake {}", answer.mistake)
        return f"{answer.answer}{words}"
    detail = f" ({answer.detail})" if answer.detail else ""
    return f"{answer.answer}{detail}"


def offered(answers: "list[Answer]") -> "tuple[list[Answer], list[str]]":
    """What was asked, and the behaviours that were not: of caches none if
    there is no cache, and of attention neither."""
    from attnref.judge.conform import ABSENT, behaviours

    def of_cache(answer: "Answer") -> bool:
        return behaviours()[answer.behaviour].call == "cache"

    asked = [x for x in answers if x.answer != ABSENT]
    kinds = {of_cache(x) for x in asked}
    absent = [x for x in answers if x.answer == ABSENT and of_cache(x) in kinds]
    return asked, [x.behaviour for x in absent]


def table(engine: "Engine", answers: "list[Answer]", language: str) -> str:
    """Two lines for each behaviour that the engine offers, and a summary."""
    from attnref.judge.conform import behaviours

    lines = list[str]()
    asked, absent = offered(answers)
    for answer in asked:
        question = behaviours()[answer.behaviour].text
        lines.append(f"{answer.behaviour}: {said(answer)}")
        lines.append(f"    {getattr(question, language)}")
    if absent:
        names = message(", ").join(absent)
        lines.append(message("not offered: {}", names))
    if engine.others:
        text = "arguments of attend that are not asked: {}"
        lines.append(message(text, message(", ").join(engine.others)))
    return "\n".join([*lines, *summary(engine, asked)])


def summary(engine: "Engine", asked: "list[Answer]") -> Iterator[str]:
    """How many were asked, which are refused, and which fail in pytest."""
    from attnref.judge.conform import REFUSED, failure

    yield message("{} asked", len(asked))
    refused = [x.behaviour for x in asked if x.answer == REFUSED]
    failed = [x.behaviour for x in asked if failure(x, engine.expected)]
    groups = {"{} refused: {}": refused, "{} failed: {}": failed}
    for count, ids in groups.items():
        if ids:
            names = message(", ").join(ids)
            yield "    " + message(count, len(ids), names)


def comparison(
    results: "dict[Engine, list[Answer]]", language: str
) -> Iterator[str]:
    """What two engines or more do differently, and what fails in any."""
    from attnref.judge.conform import ABSENT, behaviours, failure

    same, alone = list[str](), list[str]()
    width = max(len(x.name) for x in results)
    for row in zip(*results.values(), strict=True):
        id, answers = row[0].behaviour, {x.answer for x in row}
        failed = [
            bool(failure(x, engine.expected))
            for engine, x in zip(results, row, strict=True)
        ]
        if answers == {ABSENT}:
            continue
        if len(answers - {ABSENT}) == 1 and not any(failed):
            (alone if ABSENT in answers else same).append(id)
        else:
            yield f"{id}: {getattr(behaviours()[id].text, language)}"
            for x in row:
                yield f"    {x.engine:{width}}  {said(x)}"
    yield message("the same in all: {}", len(same))
    if alone:
        names = message(", ").join(alone)
        yield message("not offered by all: {}", names)


def listing() -> str:
    from attnref.judge.conform import installed, known

    here, suffix = installed(), message(" (not installed)")
    return "\n".join(x if x in here else x + suffix for x in known())


def run(options: argparse.Namespace) -> str:
    if options.stub:
        return write_stub(Path(options.stub))
    if not options.engine:
        return listing()
    from attnref.judge.conform import failure

    language = options.lang or language_of_locale()
    found = [engine for name in options.engine for engine in find(name)]
    results = {engine: ask(engine) for engine in found}
    if options.json:
        rows = [x.as_json() for answers in results.values() for x in answers]
        text = json.dumps(rows, ensure_ascii=False, indent=1)
    elif len(results) == 1:
        ((engine, answers),) = results.items()
        text = table(engine, answers, language)
    else:
        text = "\n".join(comparison(results, language))
    if any(
        failure(answer, engine.expected)
        for engine, answers in results.items()
        for answer in answers
    ):
        print(text, flush=True)
        raise SystemExit(1)
    return text


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "conform",
        help="what an engine does where engines differ",
        description="Ask an attention engine some sixty small questions whose "
        "answers differ from engine to engine: alignment, empty rows, the "
        "polarity of masks, the scale, and so on. Where an answer is that of a "
        "known mistake, it is named. The adapter's code runs as your own. "
        "Exit code: 0 if nothing fails; 1 for a mistake, an output that is no "
        "answer, a cache that differs from lists, or an answer that EXPECTED "
        "in the adapter does not expect; 2 if it cannot be asked. pytest "
        "--attnref fails for the same.",
        epilog=message("example: {}", "%(prog)s torch my_engine.py:attend"),
    )
    add = parser.add_argument
    add(
        "engine",
        nargs="*",
        help="torch, jax, ...; my_engine.py, my_engine.py:attend, or a folder "
        "of such files; of two or more, what differs is printed; without, the "
        "engines are listed",
    )
    add("--stub", metavar="FILE", help="write an adapter to fill in")
    add("--json", action="store_true", help="for programs")
    add_language(parser)
    parser.set_defaults(run=run)
