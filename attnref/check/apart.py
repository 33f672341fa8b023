"""A solution's file, run in a process of its own, with limits.

The file is somebody's code that may not end, may print without end or may end
the process. It runs in a temporary folder, as does what it starts, and both are
gone afterwards. This keeps accidents away, not attackers: the code can read and
write what its user can.

What the process answers is data, JSON of numbers. It is judged here, where the
code never runs. On Linux the process is forked from this one, which has torch
imported: that takes seconds, and would be done twice.
"""

import ast
import ctypes
import json
import linecache
import math
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from attnref.check.tasks import TASKS
from attnref.check.words import WORDS, told
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
SUBREAPER = 36  # of Linux: what a process of ours has started becomes ours


# ------------------------------------------------------------ in the process


def work(name: str, file: str, folder: str, seconds: float) -> None:
    """Answer all probes of an exercise with the solution in a file."""
    _settle(folder)
    import torch  # the file's own time begins after this

    from attnref.check.checker import again, ask, error_of, probes_of
    from attnref.check.exercises import (
        Solution,
        SolutionError,
        calls_attnref,
    )

    torch.set_num_threads(1)
    probes = probes_of(name)
    with open(Path(folder, "answers"), "wb", buffering=0) as answers:

        def tell(line: object) -> None:
            answers.write(json.dumps(line).encode() + b"\n")

        def made() -> Solution:
            return Solution(name, _module(file, TASKS[name].names))

        tell("begun")
        _limit(seconds)
        try:
            solution = made()
        except SolutionError as error:
            tell({"raised": error.text})
        except BaseException as error:
            raised, where = error_of(error)
            tell({"raised": raised, "where": where})
        else:
            tell({})
            for probe in probes:
                answer = ask(solution, probe, (BaseException,), spied=True)
                tell(_as_data(answer))
            if calls_attnref(solution):
                tell({"raised": WORDS["attnref"]})
            else:
                tell("done")
                with suppress(BaseException):
                    sys.stdout.flush()
                    warnings.simplefilter("ignore")  # what is closed warns
                    for each in ("stdout", "stderr"):
                        setattr(sys, each, None)
                    n, *anew = again(name, made)
                    tell([n, *map(_as_data, anew)])
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(0)  # threads of the solution may still run


def _settle(folder: str) -> None:
    """Whatever the process before this one has set: as in a new one."""
    inside = Path(folder, "inside")
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
    with suppress(ValueError, OSError):  # a lower one is there
        resource.setrlimit(resource.RLIMIT_CPU, (end, end + 1))
    for kind, most in (("DATA", MEMORY), ("FSIZE", 4 * ANSWERS), ("CORE", 0)):
        limit = getattr(resource, f"RLIMIT_{kind}")
        with suppress(ValueError, OSError):  # a lower one is there
            resource.setrlimit(limit, (most, resource.getrlimit(limit)[1]))


def _module(file: str, names: Sequence[str] = ()) -> ModuleType:
    """The file as a module; it may import files beside it."""
    module = ModuleType("solution")
    module.__file__ = file
    sys.modules["solution"] = module
    sys.path.insert(0, str(Path(file).parent))
    if file.endswith(".ipynb"):
        code = notebook(file, names)
    else:
        code = compile(Path(file).read_bytes(), file, "exec")
    exec(code, vars(module))
    return module


def notebook(file: str, names: Sequence[str]) -> Any:
    """What defines these names in the cells of a notebook: functions, classes
    and values, and what they need in turn. Magics are left out."""
    cells = json.loads(Path(file).read_text(encoding="utf-8"))["cells"]
    lines = list[str]()
    for cell in cells:
        if cell["cell_type"] == "code":
            lines += without_magics("".join(cell["source"])).splitlines()
    text = "\n".join(lines)
    linecache.cache[file] = (len(text), None, [f"{x}\n" for x in lines], file)
    body = ast.parse(text, file).body
    wanted, chosen = {*names}, set[int]()
    while True:
        more = {
            n
            for n, node in enumerate(body)
            if n not in chosen and wanted & _defined(node)
        }
        if not more:
            break
        chosen |= more
        for n in more:
            every = ast.walk(body[n])
            wanted |= {x.id for x in every if isinstance(x, ast.Name)}
    some = [node for n, node in enumerate(body) if n in chosen]
    return compile(ast.Module(some, []), file, "exec")


# `%time`, `!ls`, `files = !ls`, `?x`, `x.shape?`
MAGIC = r"(?m)^([ \t]*)(?:[%!?]|[\w., ]+=[ ]*[!%]|[\w.]+[?]{1,2};?[ ]*$).*"


def without_magics(cell: str) -> str:
    """What is Python of a cell: all, or but for its magics, or nothing of
    `%%bash`."""
    for text in (cell, re.sub(MAGIC, r"\1pass # magic", cell)):
        with suppress(SyntaxError):
            ast.parse(text)
            return text
    left = "\n" * len(cell.splitlines())
    return left if cell.startswith("%%") else text


def _defined(node: ast.stmt) -> set[str]:
    """The names that a statement at the top of a file defines; `*` is any."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(a.asname or a.name).partition(".")[0] for a in node.names}
    every = ast.walk(node)
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        names = (x for x in every if isinstance(x, ast.Name))
        return {x.id for x in names if isinstance(x.ctx, ast.Store)}
    return set()


def _as_data(answer: "Answer") -> dict[str, object]:
    def data(outputs: Any) -> list[Any]:
        return [
            [str(x.dtype), list(x.shape), x.double().flatten().tolist()]
            for x in outputs
        ]

    return {
        "outputs": data(answer.outputs),
        "calls": [data(outputs) for outputs in answer.calls],
        "raised": answer.raised,
        "where": answer.where,
        "modified": answer.modified,
    }


# ------------------------------------------------------------- outside of it


class Ran(NamedTuple):
    """What came back: lines of answers, what was printed, and how it ended."""

    lines: list[Any]
    printed: str
    code: int | None  # None: it was ended, as it waited too long


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


@contextmanager
def started(
    name: str, file: Path, seconds: float
) -> Iterator[tuple[Any, Path]]:
    """The process and its folder; afterwards nothing of it is left, nor of what
    it has started."""
    folder = tempfile.mkdtemp(prefix="attnref-")
    Path(folder, "inside").mkdir()
    import multiprocessing  # where nothing is checked, it is not needed

    context: Any = multiprocessing.get_context(START)
    process = context.Process(
        target=work, args=(name, str(file), folder, seconds)
    )
    with _adopting() as others, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forked with threads of the caller's
        process.start()
        before = {*others(), process.pid}
        try:
            yield process, Path(folder)
        finally:
            _end(process)
            while some := {*others()} - before:
                for pid in some:
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)
            _remove(folder)


@contextmanager
def _adopting() -> Iterator[Any]:
    """What a child of this process has started becomes a child of this one when
    the child has ended. Gives what lists them all; none but on Linux."""
    if sys.platform != "linux":
        yield lambda: ()
        return
    prctl = ctypes.CDLL(None).prctl

    def children() -> Iterator[int]:
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                parent = path.read_text().rpartition(")")[2].split()[1]
                if int(parent) == os.getpid():
                    yield int(path.parent.name)

    prctl(SUBREAPER, 1, 0, 0, 0)
    try:
        yield children
    finally:
        prctl(SUBREAPER, 0, 0, 0, 0)


def _end(process: Any) -> None:
    """End the process and its group."""
    with suppress(AttributeError, OSError):  # Windows; it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _remove(folder: str) -> None:
    """Remove a folder, those in it included that nobody may read."""
    for at, inner, _ in os.walk(folder):
        for name in inner:
            with suppress(OSError):
                os.chmod(os.path.join(at, name), 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def waited(process: Any, folder: Path, seconds: float) -> int | None:
    """The exit code, or None if it is there for longer than it may be."""
    answers = folder / "answers"
    until = time.monotonic() + STARTING
    begun = False
    while True:
        process.join(0.05)
        if process.exitcode is not None:
            return int(process.exitcode)
        if not begun and answers.exists() and answers.stat().st_size:
            begun, until = True, time.monotonic() + WAITING * seconds
        if time.monotonic() > until:
            return None


def read(folder: Path) -> list[Any]:
    """The lines that are whole, of a file in which may stand anything."""
    lines: list[Any] = []
    with (
        suppress(OSError, ValueError, RecursionError),
        open(folder / "answers", "rb") as answers,
    ):
        for line in answers.read(ANSWERS).splitlines():
            lines.append(json.loads(line))
    return lines


def check_file(
    exercise: str, path: Path, *, language: str, seconds: float = SECONDS
) -> "Report":
    """The report on a file: `check` in a process of its own."""
    import torch

    # Imported and computed here, before the process is forked.
    from attnref.check.checker import rights

    torch.set_num_threads(1)
    rights(exercise)
    with started(exercise, path, seconds) as (process, folder):
        code = waited(process, folder, seconds)
        ran = Ran(read(folder), printed(folder), code)
    return reported(exercise, ran, language, seconds, str(path))


def reported(
    name: str, ran: Ran, language: str, seconds: float, file: str = ""
) -> "Report":
    from attnref.check.checker import judged, rights
    from attnref.check.report import Report

    right, lines = rights(name), ran.lines
    error: Text | None = None
    where: tuple[str, ...] = ()
    answers, told_anew = [], ()
    try:
        end = lines.index("done") if "done" in lines else len(lines)
        last, anew = lines[-1] if lines[1:] else None, lines[end + 1 :]
        if isinstance(last, dict) and "raised" in last and len(last) < 3:
            error = Text(*map(str, last["raised"]))
            where = tuple(map(str, last.get("where", ())))
        elif end < len(lines):
            pairs = zip(lines[2:end], right.every, strict=True)
            answers = [_answer(data, like) for data, like in pairs]
            if anew:
                n, *both = anew[0]
                told_anew = (n, *(_answer(x, right.every[n]) for x in both))
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError):
        error = WORDS["unread"]
    if answers:
        report = judged(name, answers, told_anew, file=file)
    else:
        if error is None:
            sizes = [probe.sizes for probe in right.probes]
            error = _ended(ran, sizes, seconds)
        report = Report(name, error=error, where=where)
    return replace(report, printed=ran.printed, language=language)


def _answer(data: Any, like: "Answer") -> "Answer":
    """An answer, from what should be its data."""
    from attnref.check.checker import Answer

    raised = data["raised"] and Text(*map(str, data["raised"]))
    outputs = _outputs(data["outputs"])
    if not raised and len(outputs) != len(like.outputs):
        raise ValueError
    where, modified = (tuple(map(str, data[x])) for x in ("where", "modified"))
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
    if not ran.lines and ran.code == 0:  # `work` had begun, and ended it
        return WORDS["gone"]
    n = len(ran.lines) - 2
    if n < 0:
        at = WORDS["at while" if n == -1 else "at before"]
    else:
        at = told("at input", size=sizes[min(n, len(sizes) - 1)])
    if ran.code is None:
        return told("waited", seconds=seconds * WAITING, at=at)
    if ran.code == -getattr(signal, "SIGXCPU", math.inf):
        return told("computed", seconds=seconds, at=at)
    if ran.code < 0:
        return told("signal", name=signal.Signals(-ran.code).name, at=at)
    return told("code", code=ran.code, at=at)
