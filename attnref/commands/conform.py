"""attnref conform: what an attention engine does where engines differ."""

import argparse
import json
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


def table(answers: "list[Answer]", language: str) -> str:
    """Two lines for each behaviour that the engine offers."""
    from attnref.judge.conform import ABSENT, behaviours

    lines, absent = list[str](), list[str]()
    # Of caches nothing is said if there is none; of attention neither.
    of_caches = {
        behaviours()[x.behaviour].call == "cache"
        for x in answers
        if x.answer != ABSENT
    }
    for answer in answers:
        if answer.answer == ABSENT:
            if (behaviours()[answer.behaviour].call == "cache") in of_caches:
                absent.append(answer.behaviour)
            continue
        text = behaviours()[answer.behaviour].text
        line = f"{answer.behaviour}: {answer.answer}"
        if answer.mistake:
            line += message("; this is the mistake {}", answer.mistake)
        elif answer.detail:
            line += f" ({answer.detail})"
        lines += [line, f"    {getattr(text, language)}"]
    if absent:
        names = message(", ").join(absent)
        lines.append(message("not offered: {}", names))
    return "\n".join(lines)


def listing() -> str:
    from attnref.judge.conform import installed, known

    here, suffix = installed(), message(" (not installed)")
    return "\n".join(x if x in here else x + suffix for x in known())


def run(options: argparse.Namespace) -> str:
    from attnref.judge.conform import ABSENT, REFUSED, conform

    useless = {ABSENT, REFUSED, "unchanged"}
    if options.stub:
        return write_stub(Path(options.stub))
    if not options.engine:
        return listing()
    language = options.lang or language_of_locale()
    found = [engine for name in options.engine for engine in find(name)]
    results = {engine.name: conform(engine) for engine in found}
    for name, answers in results.items():
        refused = [x.detail for x in answers if x.answer == REFUSED]
        if len(refused) > 1 and {x.answer for x in answers} <= useless:
            text = "{} refuses every call: {}"
            raise ValueError(message(text, name, refused[0]))
    if options.json:
        rows = [x.as_json() for answers in results.values() for x in answers]
        return json.dumps(rows, ensure_ascii=False, indent=1)
    tables = {name: table(x, language) for name, x in results.items()}
    if len(tables) == 1:
        return "".join(tables.values())
    return "\n\n".join(f"# {name}\n{text}" for name, text in tables.items())


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "conform",
        help="what an engine does where engines differ",
        description="Ask an attention engine some sixty small questions whose "
        "answers differ from engine to engine: alignment, empty rows, the "
        "polarity of masks, the scale, and so on. Where an answer is that of a "
        "known mistake, it is named. The adapter's code runs as your own.",
        epilog=message("example: {}", "%(prog)s torch my_engine.py:attend"),
    )
    add = parser.add_argument
    add(
        "engine",
        nargs="*",
        help="torch, jax, ...; my_engine.py, my_engine.py:attend, or a folder "
        "of such files; without, the engines are listed",
    )
    add("--stub", metavar="FILE", help="write an adapter to fill in")
    add("--json", action="store_true", help="for programs")
    add_language(parser)
    parser.set_defaults(run=run)
