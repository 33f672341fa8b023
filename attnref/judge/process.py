"""A solution's file, run in a process of its own, with limits.

The file is a stranger's code: it may never end, print without end or end its
process. It runs in a temporary folder, which is removed, and the process is
ended with all that it has started: on Linux in any session, elsewhere in its
own. This keeps accidents away, not attackers: the code can read what its user
can and use the network, and can write outside its folder where `limits` cannot
refuse it.

The process sends messages as JSON, a word and its data, and the answers in them
are numbers. They are judged in the parent, where the code never runs. On Linux
the process is forked from the parent, so that torch is imported only once.
"""

import faulthandler
import gc
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

from attnref.judge.tasks import TASKS
from attnref.judge.words import WORDS, phrase
from attnref.words import Text

if TYPE_CHECKING:
    from attnref.judge.checker import Answer
    from attnref.judge.report import Report

# Seconds of computing, so that a busy machine refuses no file; a right file
# takes less than one.
SECONDS = 20.0
# A file that waits computes nothing: by the clock on the wall it may take so
# many times as long, enough for one that gets a tenth of a core.
WALL_PER_CPU = 10
START_TIMEOUT = 600.0  # seconds until torch is imported: 2 to 5 are usual
END_TIMEOUT = 600.0  # seconds until a process that is told to end has ended
MEMORY = 4 << 30  # bytes for the file, or half of what the machine has
ANSWERS = 64 << 20  # bytes of a message that are read
PRINTED = 2000  # characters of output that are shown
NO_NUMPY = "Failed to initialize NumPy"  # torch's word; nothing here needs it
LINUX = sys.platform == "linux"
START_METHOD = "fork" if LINUX else "spawn"


# ------------------------------------------------------------ in the process


def work(
    name: str, file: str, folder: str, seconds: float, writer: Any
) -> None:
    """Send the messages of a file and an exercise; then end the process."""
    from attnref.judge.limits import PROCESSES, confine, supervise

    def send(*message: Any) -> None:
        writer.send_bytes(json.dumps(message).encode())

    gc.freeze()  # what the parent left to collect may need its threads
    inside = _settle(folder)
    supervise(lambda: send("error", phrase("processes", n=PROCESSES), ()))
    confine(inside)
    import torch  # the file's own time begins after this

    torch.set_num_threads(1)
    for message in _messages(name, file, seconds):
        send(*message)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)  # threads of the solution may still run


def _messages(
    name: str, file: str, seconds: float
) -> Iterator[tuple[Any, ...]]:
    """Run a file, and yield a word and its data for each step: "begun", "read",
    "answer" for each probe, "done" and "anew"; or "error", and nothing more."""
    from attnref.judge.checker import ask, ask_anew, error_of, probes_of
    from attnref.judge.exercises import (
        Solution,
        SolutionError,
        calls_attnref,
    )
    from attnref.judge.solution import module_of

    def make() -> Solution:
        return Solution(name, module_of(file, TASKS[name].names))

    probes = probes_of(name)
    yield ("begun",)
    _limit(seconds)
    try:
        solution = make()
    except SolutionError as error:
        yield "error", error.text, ()
        return
    except BaseException as error:
        yield "error", *error_of(error)
        return
    yield ("read",)
    no_memory = WORDS["memory"].en.partition("{")[0]
    for probe in probes:
        answer = ask(solution, probe, (BaseException,), record=True)
        if answer.error and answer.error.en.startswith(no_memory):
            yield "error", answer.error, answer.trace
            return  # each further attempt would take seconds
        yield "answer", _as_data(answer)
    if calls_attnref(solution):
        yield "error", WORDS["attnref"], ()
        return
    yield ("done",)
    with suppress(BaseException):
        # The file runs a second time: its output would be a repetition.
        warnings.simplefilter("ignore")  # closed streams warn
        sys.stdout.flush()
        sys.stdout = sys.stderr = None
        n, *answers = ask_anew(name, make)
        yield "anew", n, *map(_as_data, answers)


def _settle(folder: str) -> str:
    """Undo the settings of the parent, as if this process were a new one, and
    return the folder that it may write in."""
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
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(Path(folder, "printed"), os.O_WRONLY | os.O_CREAT)
    for number, file in enumerate((nothing, output, output)):
        os.dup2(file, number)
    sys.stdin = os.fdopen(0)
    for stream in ("stdout", "stderr"):
        setattr(sys, stream, os.fdopen(1, "w", 1, "utf-8", "replace"))
    faulthandler.enable(sys.stderr)  # prints where a signal ended the file
    return str(inside)


def _limit(seconds: float) -> None:
    """Limit the time, the memory and the files of this process."""
    try:
        import resource
    except ImportError:  # Windows
        return
    # SIGXCPU ends the process after whole seconds. A file may catch it, but not
    # the signal of the hard limit, one second later.
    end = math.ceil(time.process_time() + seconds)
    limits = {"CPU": end, "FSIZE": 4 * ANSWERS, "CORE": 0, "DATA": MEMORY}
    with suppress(OSError, ValueError):  # without this file, no limit of "AS"
        sizes = Path("/proc/self/statm").read_text("ascii").split()
        page, machine = map(os.sysconf, ("SC_PAGE_SIZE", "SC_PHYS_PAGES"))
        room = min(MEMORY, page * machine // 2)
        # Memory that is shared with other processes counts only as addresses.
        limits["DATA"] = page * int(sizes[5]) + room
        limits["AS"] = page * int(sizes[0]) + room
    for kind, soft in limits.items():
        hard = soft + (kind == "CPU")
        with suppress(ValueError, OSError):  # a lower limit is set already
            resource.setrlimit(
                getattr(resource, f"RLIMIT_{kind}"), (soft, hard)
            )


def _as_data(answer: "Answer") -> dict[str, object]:
    def data(outputs: Any) -> list[Any]:
        return [
            [str(x.dtype), list(x.shape), x.double().flatten().tolist()]
            for x in outputs
        ]

    calls = [*map(data, answer.calls)]
    return answer._asdict() | {"outputs": data(answer.outputs), "calls": calls}


# ------------------------------------------------------------ in the parent


class Run(NamedTuple):
    """What a process sent and printed, and how it ended."""

    messages: list[Any]
    printed: str
    code: int | None  # None: it waited too long and was ended


def check_file(
    exercise: str, path: Path, *, language: str, seconds: float = SECONDS
) -> "Report":
    """The report on a file, which runs in a process of its own."""
    import torch

    # The process is forked with this imported, and with the right answers.
    from attnref.judge.checker import answer_key

    torch.set_num_threads(1)
    answer_key(exercise)
    result = run(exercise, path, seconds)
    return report_on(exercise, result, language, seconds, str(path))


def run(name: str, file: Path, seconds: float) -> Run:
    """Start the process, read its messages, and end it."""
    # Imported here, since commands that check nothing do not need it.
    from multiprocessing import get_context

    context: Any = get_context(START_METHOD)
    reader, writer = context.Pipe(duplex=False)
    with (
        tempfile.TemporaryDirectory(
            prefix="attnref-", ignore_cleanup_errors=True
        ) as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # a fork warns of the caller's threads
        process = context.Process(
            target=work, args=(name, str(file), folder, seconds, writer)
        )
        process.start()
        writer.close()
        end, messages, code = (
            time.monotonic() + START_TIMEOUT,
            list[Any](),
            None,
        )
        try:
            while code is None and time.monotonic() < end:
                started = bool(messages)
                messages += _receive(reader)
                if messages and not started:
                    end = time.monotonic() + WALL_PER_CPU * seconds
                process.join(0.01)
                code = process.exitcode
            messages += _receive(reader)
        finally:
            if LINUX:  # it then ends what it has started
                process.terminate()
                process.join(END_TIMEOUT)
            with suppress(AttributeError, OSError):  # Windows; no such process
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
            reader.close()
        return Run(messages, output_in(Path(folder)), code)


def _receive(reader: Any) -> Iterator[Any]:
    """The messages so far. They may hold anything."""
    with suppress(EOFError, OSError, ValueError, RecursionError):
        while reader.poll(0.05):
            yield json.loads(reader.recv_bytes(ANSWERS))


def output_in(folder: Path) -> str:
    """The beginning of the output of a process."""
    with suppress(OSError), open(folder / "printed", "rb") as file:
        text = file.read(4 * PRINTED).decode("utf-8", "replace")
        size = os.fstat(file.fileno()).st_size
        text = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
        text = "\n".join(line[:200] for line in text.splitlines()[:20])
        text = text[:PRINTED].strip("\n")
        rest = size - len(text.encode())
        return f"{text}\n... ({size:,} bytes)" if rest > 200 else text
    return ""


def report_on(
    name: str, run: Run, language: str, seconds: float, file: str = ""
) -> "Report":
    """Judge the answers that a process sent, or say why there are none."""
    from attnref.judge.checker import Anew, answer_key, judge
    from attnref.judge.report import Report

    right, data = answer_key(name), defaultdict[str, list[Any]](list)
    answers, new_answers = list["Answer"](), None
    error: Text | None = None
    trace: tuple[str, ...] = ()
    try:
        for word, *values in run.messages:
            data[word].append(values)
        for text, lines in data["error"]:
            error, trace = Text(*map(_printable, text)), _strings(lines)
        if data["done"]:
            pairs = zip(data["answer"], right.all_answers, strict=True)
            answers = [_answer(value, model) for (value,), model in pairs]
        for n, *both in data["anew"]:
            model = right.all_answers[n]
            fresh, after_call = (_answer(value, model) for value in both)
            new_answers = Anew(n, fresh, after_call)
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError):
        error = WORDS["unread"]
    if answers:
        report = judge(name, answers, new_answers, file=file)
    else:
        if error is None:
            sizes = [probe.sizes for probe in right.probes]
            error = _end(run, sizes, seconds)
        report = Report(name, error=error, where=trace)
    return replace(report, printed=run.printed, language=language)


def _printable(text: object) -> str:
    """Replace half a character, which no terminal prints, by its number."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def _strings(values: Any) -> tuple[str, ...]:
    return tuple(map(_printable, values))


def _answer(data: Any, model: "Answer") -> "Answer":
    """An answer from its data, with as many outputs as the model."""
    from attnref.judge.checker import Answer

    error = data["error"] and Text(*map(_printable, data["error"]))
    outputs = _outputs(data["outputs"])
    if not error and len(outputs) != len(model.outputs):
        raise ValueError
    trace, changes = map(_strings, (data["trace"], data["changes"]))
    calls = tuple(map(_outputs, data["calls"]))
    return Answer(outputs, error, trace, changes, calls)


def _outputs(data: Any) -> tuple[Any, ...]:
    import torch

    outputs = []
    for name, shape, values in data:
        dtype = getattr(torch, str(name).removeprefix("torch."))
        numbers = torch.tensor(values, dtype=torch.float64)
        outputs.append(numbers.reshape(shape).to(dtype))
    return tuple(outputs)


def _end(run: Run, sizes: list[str], seconds: float) -> Text:
    """Say why answers are missing: how the process ended, and when."""
    n = len(run.messages) - 2  # answers after "begun" and "read"
    if n < 0:
        moment = WORDS["at while" if n == -1 else "at before"]
    else:
        moment = phrase("at input", size=sizes[min(n, len(sizes) - 1)])
    if run.code is None:
        return phrase("waited", seconds=seconds * WALL_PER_CPU, at=moment)
    if run.code == -getattr(signal, "SIGXCPU", math.inf):
        return phrase("computed", seconds=seconds, at=moment)
    if run.code < 0:
        name = signal.Signals(-run.code).name
        return phrase("signal", name=name, at=moment)
    return phrase("code", code=run.code, at=moment)
