"""A solution's file, run in a process of its own, with limits.

The file is somebody's code that may not end, may print without end or may end
the process. It runs in a temporary folder, as does what it starts, and both are
gone afterwards. This keeps accidents away, not attackers: the code can read and
write what its user can.

What the process answers is data, JSON of numbers. It is judged here, where the
code never runs.
"""

import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from attnref.mistakes.catalogue import Text
    from attnref.mistakes.checker import Answer, Report

HERE = Path(__file__).resolve()
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
START = """
import sys
sys.path[0] = sys.argv[1]
from attnref.mistakes.apart import work
work(*sys.argv[2:])
"""


# ------------------------------------------------------------ in the process


def work(name: str, file: str, folder: str, seconds: str) -> None:
    """Answer all probes of an exercise with the solution in a file."""
    warnings.filterwarnings("ignore", NO_NUMPY)
    import torch  # noqa: F401  # the file's own time begins after this

    from attnref.mistakes.checker import ask, error_of
    from attnref.mistakes.exercises import EXERCISES, Solution, SolutionError

    probes = [*EXERCISES[name].probes()]
    with open(Path(folder, "answers"), "wb", buffering=0) as answers:

        def tell(line: object) -> None:
            answers.write(json.dumps(line).encode() + b"\n")

        tell("begun")
        _limit(float(seconds))
        try:
            solution = Solution(name, _module(file))
        except SolutionError as error:
            tell({"raised": error.text})
        except BaseException as error:
            raised, where = error_of(error)
            tell({"raised": raised, "where": where})
        else:
            tell({})
            for probe in probes:
                tell(_as_data(ask(solution, probe, (BaseException,))))
            tell("done")
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(0)  # threads of the solution may still run


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


def _module(file: str) -> ModuleType:
    """The file as a module; it may import files beside it."""
    module = ModuleType("solution")
    module.__file__ = file
    sys.modules["solution"] = module
    sys.path.insert(0, str(Path(file).parent))
    exec(compile(Path(file).read_bytes(), file, "exec"), vars(module))
    return module


def _as_data(answer: "Answer") -> dict[str, object]:
    return {
        "outputs": [
            [str(x.dtype), list(x.shape), x.double().flatten().tolist()]
            for x in answer.outputs
        ],
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


class _Drain(threading.Thread):
    """Reads all that is printed, and stores the beginning."""

    def __init__(self, stream: Any) -> None:
        super().__init__(daemon=True)
        self.stream, self.beginning, self.size = stream, b"", 0

    def run(self) -> None:
        with suppress(ValueError, OSError):
            while some := self.stream.read1(1 << 16):
                self.size += len(some)
                self.beginning = (self.beginning + some)[: 4 * PRINTED]

    def text(self) -> str:
        text = self.beginning.decode("utf-8", "replace")
        text = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
        text = "\n".join(line[:200] for line in text.splitlines()[:20])
        text = text[:PRINTED].strip("\n")
        left = self.size - len(text.encode())
        return f"{text}\n... ({self.size:,} bytes)" if left > 200 else text


@contextmanager
def started(
    name: str, file: Path, seconds: float
) -> Iterator[tuple[Any, Path, _Drain]]:
    """The process, its folder and its output; afterwards nothing of it is
    left, nor of what it has started."""
    token = f"ATTNREF_CHECK={secrets.token_hex(16)}"
    folder = tempfile.mkdtemp(prefix="attnref-")
    inside = Path(folder, "inside")
    inside.mkdir()
    key, _, value = token.partition("=")
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", START, str(HERE.parents[2])),
            *(name, str(file), folder, str(seconds)),
        ],
        cwd=inside,
        env=os.environ
        | {
            key: value,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONIOENCODING": "utf-8",
            "TMPDIR": str(inside),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    drain = _Drain(process.stdout)
    drain.start()
    try:
        yield process, Path(folder), drain
    finally:
        _end(process, token.encode())
        drain.join(timeout=60)  # milliseconds, unless something is wrong
        process.stdout.close()
        _remove(folder)


def _end(process: Any, token: bytes) -> None:
    """End the process, its group, and what has left its group."""
    if not hasattr(os, "killpg"):  # Windows
        process.kill()
        process.wait()
        return
    for _ in range(20):  # what is ended may have just started another
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        others = [*_with_token(token)]
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not others:
            return
        time.sleep(0.01)


def _with_token(token: bytes) -> Iterator[int]:
    """The processes that have this in their environment, where /proc tells."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if token in (path / "environ").read_bytes():
                yield int(path.name)


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
        with suppress(subprocess.TimeoutExpired):
            return int(process.wait(timeout=0.02))
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
    with started(exercise, path, seconds) as (process, folder, drain):
        # Meanwhile torch is imported here too, and the right answers made.
        from attnref.mistakes.checker import rights

        rights(exercise)
        code = waited(process, folder, seconds)
        lines = read(folder)
    return reported(exercise, Ran(lines, drain.text(), code), language, seconds)


def reported(name: str, ran: Ran, language: str, seconds: float) -> "Report":
    from attnref.mistakes.catalogue import Text
    from attnref.mistakes.checker import Report, judged, rights

    right, lines = rights(name), ran.lines
    error: Text | None = None
    where: tuple[str, ...] = ()
    answers = []
    try:
        if lines[1:] and "raised" in lines[1]:
            error = Text(*map(str, lines[1]["raised"]))
            where = tuple(map(str, lines[1].get("where", ())))
        elif lines[-1:] == ["done"]:
            pairs = zip(lines[2:-1], right.answers, strict=True)
            answers = [_answer(data, like) for data, like in pairs]
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError):
        error = Text("what it answers cannot be read", "它的回答无法读取")
    if answers:
        return judged(name, answers, language=language, printed=ran.printed)
    if error is None:
        sizes = [probe.sizes for probe in right.probes]
        error = _ended(ran, sizes, seconds)
    return Report(
        name, error=error, where=where, printed=ran.printed, language=language
    )


def _answer(data: Any, like: "Answer") -> "Answer":
    """An answer, from what should be its data."""
    import torch

    from attnref.mistakes.catalogue import Text
    from attnref.mistakes.checker import Answer

    outputs = []
    for dtype, shape, values in data["outputs"]:
        kind = getattr(torch, str(dtype).removeprefix("torch."))
        numbers = torch.tensor(values, dtype=torch.float64)
        outputs.append(numbers.reshape(shape).to(kind))
    raised = data["raised"] and Text(*map(str, data["raised"]))
    if not raised and len(outputs) != len(like.outputs):
        raise ValueError
    where, modified = (tuple(map(str, data[x])) for x in ("where", "modified"))
    return Answer(tuple(outputs), raised, where, modified)


def _ended(ran: Ran, sizes: list[str], seconds: float) -> "Text":
    """Why there are not all answers."""
    from attnref.mistakes.catalogue import Text

    if not ran.lines and ran.code == 0:  # `work` had begun, and ended it
        return Text(
            "its answers are gone: files outside of its folder were deleted "
            "or overwritten",
            "它的回答不见了：它自己文件夹以外的文件被删除或覆盖了",
        )
    n = len(ran.lines) - 2
    if n < -1:
        at = Text("before the file was read", "在读文件之前")
    elif n < 0:
        at = Text("while the file was read", "在读文件时")
    else:
        size = sizes[min(n, len(sizes) - 1)]
        at = Text(f"on {size}", f"输入 {size}")
    if ran.code is None:
        seconds *= WAITING
        return Text(
            f"it did not end within {seconds:g} s: it was ended {at.en}",
            f"{seconds:g} 秒内没有结束，被终止：{at.zh}",
        )
    if ran.code == -getattr(signal, "SIGXCPU", math.inf):
        return Text(
            f"it computed for more than {seconds:g} s: it was ended {at.en}",
            f"计算超过了 {seconds:g} 秒，被终止：{at.zh}",
        )
    if ran.code < 0:
        name = signal.Signals(-ran.code).name
        return Text(
            f"its process was ended by {name}, {at.en}",
            f"进程被 {name} 终止：{at.zh}",
        )
    return Text(
        f"it ended the process with code {ran.code}, {at.en}",
        f"它让进程以代码 {ran.code} 退出：{at.zh}",
    )
