"""A solution's file, run in a process of its own, with limits.

The file is somebody's code that may not end, may print without end or may end
the process. It runs in a temporary folder, which is removed, and is ended with
all that it has started in its session. This keeps accidents away, not
attackers: the code can read and write what its user can, and what it starts in
another session goes on.

What the process answers is data, JSON of numbers. It is judged here, where the
code never runs. On Linux the process is forked from this one, which has torch
imported: that takes seconds, and would be done twice.
"""

import json
import math
import os
import signal
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnref.check.tasks import TASKS
from attnref.check.words import WORDS, phrase
from attnref.words import Text

if TYPE_CHECKING:
    from attnref.check.checker import Answer
    from attnref.check.report import Report

# Of computing: a busy machine refuses no file. A right one takes less than one.
SECONDS = 20.0
# What waits computes nothing. A file may be there so many times as long, by
# the clock on the wall: enough for one that gets a tenth of a core.
WAITING = 10
STARTING = 600.0  # seconds until torch is imported: 2 to 5 are usual
MEMORY = 4 << 30  # bytes
ANSWERS = 64 << 20  # bytes of answers that are read
PRINTED = 2000  # characters of output that are shown
NO_NUMPY = "Failed to initialize NumPy"  # torch's word; nothing here needs it
START = "fork" if sys.platform == "linux" else "spawn"


# ------------------------------------------------------------ in the process


def work(name: str, file: str, folder: str, seconds: float, to: Any) -> None:
    """Send what happens, and the answers to all probes of an exercise."""
    _settle(folder)
    import torch  # the file's own time begins after this

    torch.set_num_threads(1)
    for message in _messages(name, file, seconds):
        to.send_bytes(json.dumps(message).encode())
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)  # threads of the solution may still run


def _messages(
    name: str, file: str, seconds: float
) -> Iterator[tuple[Any, ...]]:
    """What happens, a word, and its data."""
    from attnref.check.checker import again, ask, error_of, probes_of
    from attnref.check.exercises import (
        Solution,
        SolutionError,
        calls_attnref,
    )
    from attnref.check.solution import module_of

    def made() -> Solution:
        return Solution(name, module_of(file, TASKS[name].names))

    probes = probes_of(name)
    yield ("begun",)
    _limit(seconds)
    try:
        solution = made()
    except SolutionError as error:
        yield "raised", error.text, ()
        return
    except BaseException as error:
        yield "raised", *error_of(error)
        return
    yield ("read",)
    for probe in probes:
        answer = ask(solution, probe, (BaseException,), spied=True)
        yield "answer", _as_data(answer)
    if calls_attnref(solution):
        yield "raised", WORDS["attnref"], ()
        return
    yield ("done",)
    with suppress(BaseException):
        # Of what it prints, the rest is a repetition.
        warnings.simplefilter("ignore")  # what is closed warns
        sys.stdout.flush()
        sys.stdout = sys.stderr = None
        n, *anew = again(name, made)
        yield "again", n, *map(_as_data, anew)


def _settle(folder: str) -> None:
    """Whatever the process before this one has set: as in a new one."""
    inside = Path(folder, "inside")
    inside.mkdir()
    with suppress(AttributeError, OSError):  # Windows
        os.setsid()
    os.chdir(inside)
    os.environ |= {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(inside),
    }
    tempfile.tempdir = None
    sys.dont_write_bytecode = True
    sys.settrace(None)
    sys.setprofile(None)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.resetwarnings()
    warnings.filterwarnings("ignore", NO_NUMPY)
    file = os.open(Path(folder, "printed"), os.O_WRONLY | os.O_CREAT)
    for number, to in enumerate((os.open(os.devnull, os.O_RDONLY), file, file)):
        os.dup2(to, number)
    sys.stdin = os.fdopen(0)
    for stream in ("stdout", "stderr"):
        setattr(sys, stream, os.fdopen(1, "w", 1, "utf-8", "replace"))


def _limit(seconds: float) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    # Whole seconds, at which SIGXCPU ends the process. It may be caught:
    # one second later nothing can.
    end = math.ceil(time.process_time() + seconds)
    for kind, limits in {
        "CPU": (end, end + 1),
        "DATA": (MEMORY, MEMORY),
        "FSIZE": (4 * ANSWERS, 4 * ANSWERS),
        "CORE": (0, 0),
    }.items():
        with suppress(ValueError, OSError):  # a lower one is there
            resource.setrlimit(getattr(resource, f"RLIMIT_{kind}"), limits)


def _as_data(answer: "Answer") -> dict[str, object]:
    def data(outputs: Any) -> list[Any]:
        return [
            [str(x.dtype), list(x.shape), x.double().flatten().tolist()]
            for x in outputs
        ]

    every = {
        "outputs": data(answer.outputs),
        "calls": [*map(data, answer.calls)],
    }
    return answer._asdict() | every


# ------------------------------------------------------------- outside of it


class Ran(NamedTuple):
    """What came back: lines of answers, what was printed, and how it ended."""

    lines: list[Any]
    printed: str
    code: int | None  # None: it was ended, as it waited too long


def check_file(
    exercise: str, path: Path, *, language: str, seconds: float = SECONDS
) -> "Report":
    """The report on a file: `check` in a process of its own."""
    import torch

    # Imported and computed here, before the process is forked.
    from attnref.check.checker import rights

    torch.set_num_threads(1)
    rights(exercise)
    result = run(exercise, path, seconds)
    return reported(exercise, result, language, seconds, str(path))


def run(name: str, file: Path, seconds: float) -> Ran:
    """The process, from its start to its end."""
    # Where nothing is checked, it is not needed.
    from multiprocessing import get_context

    context: Any = get_context(START)
    reader, writer = context.Pipe(duplex=False)
    with (
        tempfile.TemporaryDirectory(
            prefix="attnref-", ignore_cleanup_errors=True
        ) as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # forked with threads of the caller's
        process = context.Process(
            target=work, args=(name, str(file), folder, seconds, writer)
        )
        process.start()
        writer.close()
        end, lines, code = time.monotonic() + STARTING, list[Any](), None
        try:
            while code is None and time.monotonic() < end:
                begun = bool(lines)
                lines += _received(reader)
                if lines and not begun:
                    end = time.monotonic() + WAITING * seconds
                process.join(0.01)
                code = process.exitcode
            lines += _received(reader)
        finally:
            with suppress(AttributeError, OSError):  # Windows; it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
            reader.close()
        return Ran(lines, printed(Path(folder)), code)


def _received(reader: Any) -> Iterator[Any]:
    """What it has sent by now, in which may stand anything."""
    with suppress(EOFError, OSError, ValueError, RecursionError):
        while reader.poll(0.05):
            yield json.loads(reader.recv_bytes(ANSWERS))


def printed(folder: Path) -> str:
    """The beginning of what was printed."""
    with suppress(OSError), open(folder / "printed", "rb") as file:
        text = file.read(4 * PRINTED).decode("utf-8", "replace")
        size = os.fstat(file.fileno()).st_size
        text = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
        text = "\n".join(line[:200] for line in text.splitlines()[:20])
        text = text[:PRINTED].strip("\n")
        left = size - len(text.encode())
        return f"{text}\n... ({size:,} bytes)" if left > 200 else text
    return ""


def reported(
    name: str, ran: Ran, language: str, seconds: float, file: str = ""
) -> "Report":
    from attnref.check.checker import judged, rights
    from attnref.check.report import Report

    right, lines = rights(name), defaultdict[str, list[Any]](list)
    answers, anew = list["Answer"](), ()
    error: Text | None = None
    where: tuple[str, ...] = ()
    try:
        for kind, *data in ran.lines:
            lines[kind].append(data)
        for text, of in lines["raised"]:
            error, where = Text(*map(_plain, text)), tuple(map(_plain, of))
        if lines["done"]:
            pairs = zip(lines["answer"], right.every, strict=True)
            answers = [_answer(data, like) for (data,), like in pairs]
        for n, *both in lines["again"]:
            anew = (n, *(_answer(data, right.every[n]) for data in both))
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError):
        error = WORDS["unread"]
    if answers:
        report = judged(name, answers, anew, file=file)
    else:
        if error is None:
            sizes = [probe.sizes for probe in right.probes]
            error = _ended(ran, sizes, seconds)
        report = Report(name, error=error, where=where)
    return replace(report, printed=ran.printed, language=language)


def _plain(text: object) -> str:
    """Of half a character, which no terminal can print, its number."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def _answer(data: Any, like: "Answer") -> "Answer":
    """An answer, from what should be its data."""
    from attnref.check.checker import Answer

    raised = data["raised"] and Text(*map(_plain, data["raised"]))
    outputs = _outputs(data["outputs"])
    if not raised and len(outputs) != len(like.outputs):
        raise ValueError
    where, modified = (
        tuple(map(_plain, data[x])) for x in ("where", "modified")
    )
    calls = tuple(map(_outputs, data["calls"]))
    return Answer(outputs, raised, where, modified, calls)


def _outputs(data: Any) -> tuple[Any, ...]:
    import torch

    outputs = []
    for dtype, shape, values in data:
        kind = getattr(torch, str(dtype).removeprefix("torch."))
        numbers = torch.tensor(values, dtype=torch.float64)
        outputs.append(numbers.reshape(shape).to(kind))
    return tuple(outputs)


def _ended(ran: Ran, sizes: list[str], seconds: float) -> Text:
    """Why there are not all answers."""
    n = len(ran.lines) - 2
    if n < 0:
        at = WORDS["at while" if n == -1 else "at before"]
    else:
        at = phrase("at input", size=sizes[min(n, len(sizes) - 1)])
    if ran.code is None:
        return phrase("waited", seconds=seconds * WAITING, at=at)
    if ran.code == -getattr(signal, "SIGXCPU", math.inf):
        return phrase("computed", seconds=seconds, at=at)
    if ran.code < 0:
        return phrase("signal", name=signal.Signals(-ran.code).name, at=at)
    return phrase("code", code=ran.code, at=at)
