"""`attnref check`: files of strangers, and the reports on them."""

import csv
import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from attnref.__main__ import command, main
from attnref.commands import check as program
from attnref.judge import limits, process, report
from attnref.judge.catalogue import catalogue
from attnref.judge.checker import answer_key, check, error_of
from attnref.judge.process import Run, check_file, report_on
from attnref.judge.solution import module_of
from attnref.judge.tasks import TASKS
from sitekit import ROOT

RIGHT = """
def softmax(x, dim=-1):
    return x.softmax(dim).nan_to_num()
"""


def write(folder, text, name="mine.py"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def run_in_this_process(monkeypatch):
    """Let the command check files in this process."""

    def check_here(name, path, *, language, seconds):
        module = module_of(str(path), TASKS[name].names)
        return check(name, vars(module), language=language)

    monkeypatch.setattr(program, "check_file", check_here)
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_what_a_file_printed_is_its_own(tmp_path):
    """It is executed twice, and heard once."""
    path = write(tmp_path, RIGHT + "print('once')")
    words = ["-m", "attnref", "check", "softmax", str(path), "--json"]
    done = subprocess.run([sys.executable, *words], capture_output=True)
    assert json.loads(done.stdout)["printed"].strip() == "once"


# ------------------------------------------------------- files that are hostile


LEAVES = """
import helper_beside, os, subprocess, sys, tempfile, threading, time

threading.Thread(target=time.sleep, args=(600,)).start()
print("x" * 1_000_000)
print("\\033[31mred", file=sys.stderr)
sleeps = [sys.executable, "-c", "import time; time.sleep(600)", "MARK"]
subprocess.Popen(sleeps)
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()  # neither its group nor its child
        sys.argv[:] = ["forked"]
        time.sleep(600)
    os._exit(0)
open("left.txt", "w").write("left")
tempfile.mkdtemp(prefix="left-")
os.makedirs("a/b")
os.chmod("a", 0)
try:
    input()
except EOFError:
    sys.stdout.close()


def softmax(x, dim=-1):
    return helper_beside.softmax(x, dim)
"""


def running(mark, folder):
    """The processes that were started with this word, or in this folder."""
    names = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            cwd = os.readlink(path / "cwd")
        except OSError:
            continue
        names += [path.name] * (mark.encode() in words or str(folder) in cwd)
    return names


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_nothing_is_left_behind(tmp_path, monkeypatch, start):
    """Of what it starts, prints and writes; it may import what is beside it."""
    monkeypatch.setattr(process, "START_METHOD", start)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    mark = f"mark-{os.getpid()}"
    folder = tmp_path / "theirs"
    folder.mkdir()
    write(folder, RIGHT, "helper_beside.py")
    path = write(folder, LEAVES.replace("MARK", mark))
    report = check_file("softmax", path, language="en")
    assert report.passed, str(report)
    assert report.printed.startswith("xxx") and "\033" not in str(report)
    assert report.printed.endswith("bytes)") and len(report.printed) < 2500
    assert "What it printed:\n  xxx" in str(report)
    end = time.monotonic() + 60  # what is killed is gone a little later
    while running(mark, temporary) and time.monotonic() < end:
        time.sleep(0.01)
    assert not running(mark, temporary)
    assert [*temporary.iterdir()] == []
    assert {p.name for p in folder.iterdir()} == {"helper_beside.py", "mine.py"}


needs_linux = pytest.mark.skipif(not limits.LINUX, reason="Linux can")


@needs_linux
def test_what_waits_and_starts_others_in_other_sessions_is_ended_whole(
    tmp_path,
):
    mark = f"mark-{os.getpid()}"
    text = f"""
import subprocess, sys, time
sleeps = [sys.executable, "-c", "import time; time.sleep(600)", {mark!r}]
subprocess.Popen(sleeps, start_new_session=True, cwd="/")
time.sleep(600)
"""
    path = write(tmp_path, text)
    report = check_file("softmax", path, language="en", seconds=0.5)
    assert report.error.en.startswith("it did not end within 5 s")
    assert not running(mark, tmp_path)


@needs_linux
def test_processes_without_end_are_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = "import os\nwhile True:\n    os.fork()\n"
    report = check_file("softmax", write(tmp_path, text), language="en")
    assert report.error.en == "it starts more than 64 processes"
    assert not running("none", tmp_path)


@pytest.mark.skipif(not limits.version(), reason="this system has no Landlock")
@pytest.mark.parametrize(
    "act",
    [
        "shutil.rmtree({folder!r})",
        "open({file!r}, 'w')",
        "open({file!r}, 'a')",
        "os.truncate({file!r}, 0)",
        "os.remove({file!r})",
        "os.rename({file!r}, {file!r} + '2')",
        "os.symlink('/', {folder!r} + '/link')",
        "os.mkdir({folder!r} + '/new')",
        "os.kill(os.getppid(), 9)",
        "subprocess.check_output(['rm', '-r', {folder!r}], stderr=-2)",
    ],
)
def test_what_changes_files_outside_its_folder_is_refused(tmp_path, act):
    victim = tmp_path / "victim"
    victim.mkdir()
    file = write(victim, "kept", "file")
    act = act.format(folder=str(victim), file=str(file))
    path = write(tmp_path, f"import os, shutil, subprocess\n{act}\n" + RIGHT)
    report = check_file("softmax", path, language="en")
    kind = report.error.en.partition(":")[0]
    assert kind in ("PermissionError", "CalledProcessError")
    assert [*victim.iterdir()] == [file] and file.read_text() == "kept"
    # What it may do: write where it is, in a folder for it, and into nothing.
    text = """
import os, tempfile
for name in ("left", os.devnull, tempfile.mkstemp()[1]):
    with open(name, "a") as file:
        file.write("left")
os.makedirs("a/b"), os.rename("left", "a/b/left"), os.symlink("a", "c")
"""
    path = write(tmp_path, text + RIGHT)
    assert check_file("softmax", path, language="en").passed


@pytest.mark.parametrize(
    ("language", "rights"), [("en", "with your rights"), ("zh", "以你的权限")]
)
def test_help_and_page_say_with_whose_rights_a_file_runs(
    language, rights, capsys
):
    with pytest.raises(SystemExit):
        main(["check", "--help", "--lang", language])
    said = " ".join(capsys.readouterr().out.split())
    page = ROOT / f"docs/{language}/mistakes/check.md"
    for text in (said, page.read_text("utf-8")):
        assert rights in text and "Landlock" in text


@needs_linux
def test_what_the_caller_left_to_collect_is_not_collected_there(tmp_path):
    """A cycle may end a thread or a connection that a fork does not have."""

    class Connection:
        def __init__(self):
            self.itself, self.owner = self, os.getpid()

        def __del__(self):
            if os.getpid() != self.owner:
                os.kill(os.getpid(), signal.SIGSEGV)

    path = write(tmp_path, "import gc\ngc.collect()\n" + RIGHT)
    gc.disable()
    try:
        Connection()
        assert check_file("softmax", path, language="en").passed
    finally:
        gc.enable()


def test_where_a_process_was_ended_is_shown(tmp_path):
    lines = "import os\n\n\ndef softmax(x, dim=-1):\n    os.abort()\n"
    report = check_file("softmax", write(tmp_path, lines), language="en")
    assert "SIGABRT" in report.error.en
    assert 'mine.py", line 5 in softmax' in report.printed


def test_what_computes_without_end_is_ended(tmp_path, monkeypatch):
    """By seconds of computing, of which a busy machine takes none away: the
    clock on the wall ends it after minutes, where seconds are usual."""
    monkeypatch.setattr(process, "WALL_PER_CPU", 600)
    text = RIGHT.replace("return", "while x.dim() == 3: pass\n    return")
    path = write(tmp_path, text)
    report = check_file("softmax", path, language="en", seconds=0.5)
    sizes = next(
        p.sizes
        for p in answer_key("softmax").probes
        if p.inputs["x"].dim() == 3
    )
    assert report.error.en == (
        f"it computed for more than 0.5 s: it was ended on {sizes}"
    )


def test_what_waits_without_end_is_ended(tmp_path):
    path = write(tmp_path, "import time\ntime.sleep(600)\n")
    report = check_file("softmax", path, language="en", seconds=0.1)
    assert report.error.en == (
        "it did not end within 1 s: it was ended while the file was read"
    )


def test_a_file_that_calls_attnref_solves_nothing(tmp_path):
    text = "import attnref\n\n\ndef softmax(x, dim=-1):\n"
    path = write(tmp_path, text + "    return attnref.softmax(x, dim)\n")
    report = check_file("softmax", path, language="en")
    assert report.error.en.startswith("it calls attnref")


def test_what_ends_its_process_is_reported(tmp_path):
    path = write(tmp_path, "import os\nos._exit(7)\n")
    report = check_file("softmax", path, language="zh")
    assert not report.passed
    assert report.error.en == (
        "it ended the process with code 7, while the file was read"
    )
    assert str(report) == "softmax: 它让进程以代码 7 退出：在读文件时"


@needs_linux
@pytest.mark.parametrize(
    "hog",
    [
        "torch.zeros(2**31)",
        "b'x' * 2**33",
        "[b'x' * 2**20 for n in range(2**30)]",
        "[mmap.mmap(-1, 2**28) for n in range(99)]",
    ],
)
def test_memory_has_a_limit(tmp_path, monkeypatch, hog):
    monkeypatch.setattr(process, "MEMORY", 1 << 29)
    text = "import mmap, torch\n" + RIGHT.replace("return", f"{hog}; return")
    report = check_file("softmax", write(tmp_path, text), language="en")
    assert report.error.en.startswith("it needs more memory than it may use")
    assert report.where[0].startswith(f"mine.py:4: {hog}")


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        (b"\0\1\2\xff", "it is not Python (", ()),
        (b"\xff\xfe = 3", "it is not Python (SyntaxError: ", ()),
        (
            "a b c",
            "it is not Python (SyntaxError: invalid",
            ("mine.py:1: a b c",),
        ),
        ("\n\n1 / 0", "ZeroDivisionError: division by zero", None),
        (
            "import sys\nsys.exit(3)",
            "it ends the program (SystemExit: 3)",
            None,
        ),
        ("import nowhere", "ModuleNotFoundError: No module named 'now", None),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", None),
        ("def f(): f()\nf()", "RecursionError: maximum recursion", None),
        (
            "class E(Exception):\n    def __str__(self): 1 / 0\nraise E",
            "E",
            None,
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_reported(
    tmp_path, monkeypatch, text, message, where
):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = write(tmp_path, text)
    with pytest.raises(BaseException) as raised:
        module_of(str(path))
    error, lines = error_of(raised.value)
    assert error.en.startswith(message) and error.zh
    if where is not None:
        assert lines == where or (where == () and len(lines) <= 1)


REMEMBERS = {
    "mha_cached": """
from attnref_like import mha_cached as right
def mha_cached(x, w_q, w_k, w_v, w_o, n_heads, cache=[]):
    past = cache[-1] if cache else None
    out, kept = right(x, w_q, w_k, w_v, w_o, n_heads, past)
    cache.append(kept)
    return out, cache
""",
    "mla_absorbed": """
from attnref_like import mla_absorbed as right
kept = {}
def mla_absorbed(x, *weights, theta=1e4, cache=None):
    w = kept.setdefault(weights[3].shape, weights[3]).to(x.dtype)
    return right(x, *weights[:3], w, *weights[4:], theta=theta, cache=cache)
""",
}


@pytest.mark.parametrize("name", REMEMBERS)
def test_what_remembers_an_earlier_call_is_shown(tmp_path, name):
    """Its results depend on what was asked before."""
    text = (ROOT / "tests/check/solutions/einsum.py").read_text("utf-8")
    write(tmp_path, text, "attnref_like.py")
    path = write(tmp_path, REMEMBERS[name])
    report = check_file(name, path, language="en")
    assert report.stage == "memory" and report.mistakes == ()
    assert "earlier call" in str(report).splitlines()[0]
    done = subprocess.run(
        [sys.executable, "-c", report.smallest],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    assert done.returncode == 0, report.smallest + done.stderr
    (printed,) = re.findall("it gives (.*)", report.smallest)
    assert printed[:4] in done.stdout, report.smallest


def messages(name="softmax"):
    """Those of a solution that is right."""
    answers = (
        ["answer", process._as_data(x)] for x in answer_key(name).all_answers
    )
    every = [["begun"], ["read"], *answers, ["done"]]
    return json.loads(json.dumps(every))


def test_answers_are_data_and_nothing_else():
    result = report_on("softmax", Run(messages(), "", 0), "en", 1)
    assert result.passed
    for lines in (
        [*messages()[:-2], ["done"]],
        [*messages()[:-1], ["answer", {}], ["done"]],
        [["begun"], ["read"], *[None] * 3, ["done"]],
        [["begun"], ["error", 3, []]],
        [["begun"], ["error", ["a", "b", "c"], []]],
        [3],
        [{}],
    ):
        result = report_on("softmax", Run(lines, "", 0), "en", 1)
        assert result.error.en == "what it answers cannot be read", lines
    for key, value in (
        ("outputs", []),
        ("outputs", [["torch.load", [2], [0.5, 0.5]]]),
        ("outputs", [["torch.float64", [3], [0.5, 0.5]]]),
        ("outputs", [["torch.float64", [2], ["0.5", None]]]),
        ("changes", 3),
        ("error", 3),
    ):
        lines = messages()
        lines[2][1][key] = value
        result = report_on("softmax", Run(lines, "", 0), "en", 1)
        assert result.error.en == "what it answers cannot be read", (key, value)


def test_wrong_answers_are_not_believed():
    lines = messages()
    lines[2][1]["outputs"] = [["torch.float64", [2], [0.5, 0.5]]]
    result = report_on("softmax", Run(lines, "", 0), "en", 1)
    assert [v.name for v in result.failures] == ["same"]
    lines[2][1]["outputs"] = [["torch.bool", [3], [0, 1, 1]]]
    result = report_on("softmax", Run(lines, "", 0), "en", 1)
    assert (
        result.failures[0].fault.en == "the shape is (3,), and should be (2,)"
    )


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (Run([], "", 1), "it ended the process with code 1, before the file"),
        (
            Run([["begun"]], "", -9),
            "its process was ended by SIGKILL, while the",
        ),
        (
            Run(messages()[:3], "", -11),
            "its process was ended by SIGSEGV, on x (2, 3",
        ),
        (
            Run(messages()[:2], "", None),
            "it did not end within 20 s: it was ended on x",
        ),
        (
            Run(messages()[:2], "", -signal.SIGXCPU),
            "it computed for more than 2 s: it was ended on x",
        ),
        (Run(messages()[:-1], "", 0), "it ended the process with code 0, on x"),
    ],
)
def test_the_report_says_how_it_ended(run, message):
    report = report_on("softmax", run, "en", 2)
    assert not report.passed and report.error.en.startswith(message)


def test_what_it_sends_may_be_anything():
    reader, writer = Pipe(duplex=False)
    for sent in (b'["begun"', b"\xff\0", b"[" * 10_000, b""):
        writer.send_bytes(b'["begun"]')
        writer.send_bytes(sent)
        assert [*process._receive(reader)] == [["begun"]]
    writer.close()
    assert [*process._receive(reader)] == []


# -------------------------------------------------------------- the command


def test_a_run_ends_with_0_if_all_properties_hold_and_with_1_if_not(
    tmp_path, monkeypatch, capsys
):
    run_in_this_process(monkeypatch)
    right = write(tmp_path, RIGHT)
    output = main(["check", "softmax", str(right), "--lang", "en"])
    assert output.startswith("softmax: all 8 properties hold.")
    assert "It avoids 38 known mistakes, such as:\n" in output
    assert output.endswith("\nNext in the course: attnref check sdpa --stub")
    wrong = write(tmp_path, RIGHT.replace("return", "return 2 *"))
    for words in (
        ["check", "softmax", wrong],
        ["check", "softmax", "--json", wrong],
    ):
        monkeypatch.setattr(sys, "argv", ["attnref", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            command()
        assert end.value.code == 1
    text, _, output = capsys.readouterr().out.partition("\n{\n")
    assert "softmax: 6 of 8 properties do not hold." in text
    assert json.loads(f"{{{output}")["passed"] is False


def test_the_lines_of_a_textbook_are_right_but_for_an_edge_case(tmp_path):
    """A softmax over no key at all is NaN; nothing else is wrong."""
    file = write(
        tmp_path,
        "def sdpa(q, k, v, mask=None, scale=None):\n"
        "    s = q @ k.mT * (scale or q.shape[-1] ** -0.5)\n"
        "    if mask is not None:\n"
        "        s = s.masked_fill(~mask, float('-inf'))\n"
        "    return s.softmax(-1) @ v\n",
    )
    report = check_file("sdpa", file, language="en")
    assert report.text().startswith(
        f"sdpa: {catalogue()['empty-row-nan'].title.en}\n"
        "Right, but for an edge case: 2 of 12 properties.\n\nIt behaves"
    )
    assert report.mistakes == (("empty-row-nan",),)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "pass an exercise; --list prints all"),
        ("gpa", "there is no exercise 'gpa'; did you mean gqa"),
        ("zebra", "there is no exercise 'zebra'; --list prints all"),
        ("gqa", "pass a file. First, attnref check gqa --stub writes gqa.py;"),
        ("gqa nowhere.py", "nowhere.py does not exist"),
        ("gqa attnref", "attnref is a folder"),
        ("gqa --list", "--list does not take an exercise"),
        ("gqa x.py --timeout 0", "'0' is not a number of seconds"),
        ("gqa x.py --timeout soon", "'soon' is not a number of seconds"),
        ("gqa x.py --lang fr", "invalid choice: 'fr'"),
    ],
)
def test_what_is_wrong_with_the_command_ends_with_2(words, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(["check", *words.split()])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_a_stub_is_written_and_never_over_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["check", "kv-cache", "--stub"]) == "kv_cache.py: 24 lines"
    assert main(["check", "gqa", "--stub", "mine.py"]).startswith("mine.py: ")
    text = Path("mine.py").read_text(encoding="utf-8")
    assert main(["check", "gqa", "--stub", "-", "--lang", "en"]) + "\n" == text
    with pytest.raises(SystemExit) as end:
        main(["check", "gqa", "--stub", "mine.py"])
    assert end.value.code == 2
    assert "mine.py already exists; --force overwr" in capsys.readouterr().err
    assert Path("mine.py").read_text(encoding="utf-8") == text
    write(tmp_path, "not a stub")
    main(["check", "gqa", "--stub", "mine.py", "--force", "--lang", "en"])
    assert Path("mine.py").read_text(encoding="utf-8") == text
    with pytest.raises(SystemExit):  # which overwrites no solution
        main(["check", "gqa", "mine.py", "--force"])
    assert "--force goes with --stub" in capsys.readouterr().err
    run_in_this_process(monkeypatch)
    with pytest.raises(SystemExit):
        main(["check", "gqa", "mine.py", "--lang", "zh"])
    assert capsys.readouterr().out.startswith("gqa: 还没有写\n  mine.py:")


@pytest.mark.parametrize(
    ("env", "title"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "多头注意力"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "Multi-head attention"),
        ({"LC_MESSAGES": "zh_TW"}, "多头注意力"),
        ({"LANG": "de_DE"}, "Multi-head attention"),
    ],
)
def test_the_language_is_that_of_the_locale(env, title, monkeypatch):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    listed = main(["check", "--list"])
    assert title in listed
    assert [x.split()[0] for x in listed.splitlines() if x[0] != " "] == [
        *TASKS
    ]
    assert "Softmax" in main(["check", "--list", "--lang", "en"])


def test_colour_is_for_terminals_alone(tmp_path, monkeypatch):
    run_in_this_process(monkeypatch)
    words = ["check", "softmax", str(write(tmp_path, RIGHT))]
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\033[" not in main(words)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\033[32m" in main(words)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033[" not in main(words)


def test_a_reader_who_leaves_early_is_no_error(tmp_path, monkeypatch):
    """`attnref check gqa gqa.py | head`: as with the other commands."""
    run_in_this_process(monkeypatch)
    file = tmp_path / "gqa.py"
    file.write_text("gqa = None", encoding="utf-8")

    def fail(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", fail)
    with pytest.raises(BrokenPipeError):
        main(["check", "gqa", str(file)])


# ------------------------------------------------- folders, notebooks, changes


def test_a_folder_is_checked_at_once_with_points(tmp_path, monkeypatch, capsys):
    run_in_this_process(monkeypatch)
    write(tmp_path, RIGHT, "softmax.py")
    (tmp_path / "ann").mkdir()
    write(tmp_path / "ann", RIGHT.replace(".nan_to_num()", ""), "SoftMax_2.py")
    write(tmp_path, "def online_softmax(x): 1", "online_softmax.py")
    write(tmp_path, "1 / 0", "softmaxes.py")
    with pytest.raises(SystemExit):
        main(["check", str(tmp_path), "--lang", "en"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["ann/SoftMax_2.py", "7/8"]
    assert lines[0].endswith("A row in which every score is -inf gives NaN")
    assert lines[1].split()[:2] == ["online_softmax.py", "0/9"]
    assert "cannot be called as online_softmax(x, chunk)" in lines[1]
    assert lines[2].split() == ["softmax.py", "8/8"]
    assert lines[3].startswith("softmaxes.py   ")
    assert "no sandbox for grades" in " ".join(lines[5:]) and len(lines) == 8
    with pytest.raises(SystemExit):
        main(["check", str(tmp_path), "--json"])
    results = json.loads(capsys.readouterr().out)
    assert [x["passed"] for x in results] == [False, False, True, None]
    assert [x["points"] for x in results] == [7, 0, 8, None]
    assert results[0]["maximum"] == 8
    assert results[0]["versions"]["torch"] == torch.__version__
    table = tmp_path / "points.csv"
    with pytest.raises(SystemExit):
        main(["check", str(tmp_path), "--csv", str(table), "--lang", "zh"])
    capsys.readouterr()
    with open(table, encoding="utf-8-sig", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [x["points"] for x in rows] == ["7", "0", "8", ""]
    assert rows[0]["why"] == "一行的分数全是 -inf 时得到 NaN"
    assert rows[3]["file"] == "softmaxes.py" and "没有检查" in rows[3]["why"]
    (tmp_path / "none").mkdir()
    with pytest.raises(SystemExit) as end:
        main(["check", str(tmp_path / "none")])
    assert end.value.code == 2


@pytest.mark.parametrize(
    "folder", ["submissions", "./submissions", ".", "link", "../submissions"]
)
def test_a_folder_is_given_as_people_type_it(
    tmp_path, monkeypatch, capsys, folder
):
    """From another folder, from within, by a link; files may be links too."""
    run_in_this_process(monkeypatch)
    theirs = tmp_path / "submissions"
    theirs.mkdir()
    write(theirs, RIGHT, "softmax.py")
    write(tmp_path, RIGHT, "elsewhere.py")
    (theirs / "softmax_ann.py").symlink_to(tmp_path / "elsewhere.py")
    (tmp_path / "link").symlink_to(theirs)
    within = folder in (".", "../submissions")
    monkeypatch.chdir(theirs if within else tmp_path)
    lines = main(["check", folder, "--lang", "en"]).splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [
        ["softmax.py", "8/8"],
        ["softmax_ann.py", "8/8"],
    ]
    results = json.loads(main(["check", folder, "--json"]))
    assert [x["file"] for x in results] == ["softmax.py", "softmax_ann.py"]


def test_no_file_of_a_folder_is_left_out_in_silence(
    tmp_path, monkeypatch, capsys
):
    """Not a second download, nor one that is named otherwise."""
    run_in_this_process(monkeypatch)
    for name in ("Softmax (1).py", "attention.py", "softmax.ipynb.py"):
        write(tmp_path, RIGHT, name)
    (tmp_path / ".ipynb_checkpoints").mkdir()
    write(tmp_path / ".ipynb_checkpoints", RIGHT, "softmax-checkpoint.py")
    monkeypatch.chdir(tmp_path)
    texts = {"en": "not checked: its name does not", "zh": "没有检查：文件名"}
    for language, words in texts.items():
        lines = main(["check", ".", "--lang", language]).splitlines()
        one, two, three = lines[: lines.index("")]
        assert one.split()[:3] == ["Softmax", "(1).py", "8/8"]
        assert two.split()[0] == "attention.py" and words in two
        assert three.split()[:2] == ["softmax.ipynb.py", "8/8"]
    got = {x["file"]: x for x in json.loads(main(["check", ".", "--json"]))}
    assert got["Softmax (1).py"]["passed"] and len(got) == 3
    assert got["attention.py"]["exercise"] is None


def test_a_notebook_is_read_for_what_the_exercise_asks(tmp_path, monkeypatch):
    """And not run: its magics, its training, its plots."""
    run_in_this_process(monkeypatch)
    cells = [
        "%pip install torch\nimport torch\nimport nowhere",
        "fill = 0.0\nx.shape?\ntorch.softmax??\nfiles = !ls",
        "model = 1 / 0\n!ls\nprint(model)\na, b = %timeit -o f(x)",
        "%%bash\nls | head -3\nif [ -e x ]; then echo y; fi",
        "def softmax(x, dim=-1):\n    %time\n    return None",
        "def softmax(x, dim=-1):\n    return filled(torch.softmax(x, dim))",
        "def filled(x):\n    return x.nan_to_num(nan=fill)",
    ]
    code = [{"cell_type": "code", "source": c.splitlines(True)} for c in cells]
    result = [{"cell_type": "markdown", "source": ["# softmax"]}, *code]
    path = write(tmp_path, json.dumps({"cells": result}), "mine.ipynb")
    assert main(["check", "softmax", str(path)])
    code[6]["source"] = ["def filled(x):\n", "    raise KeyError\n"]
    path = write(tmp_path, json.dumps({"cells": result}), "mine.ipynb")
    result = check("softmax", vars(module_of(str(path), ["softmax"])))
    assert result.where[-1] == "mine.ipynb:21: raise KeyError"


def test_a_file_is_checked_again_when_it_changes(tmp_path, monkeypatch, capsys):
    run_in_this_process(monkeypatch)
    path = write(tmp_path, RIGHT.replace("return", "return 2 *"))
    looks = []

    def sleep(_):
        looks.append(path.stat().st_mtime_ns)
        if len(looks) == 2:
            path.write_text(RIGHT)
            os.utime(path, ns=(0, looks[0] + 10**9))
        if len(looks) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(program.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        main(["check", "softmax", str(path), "--watch", "--lang", "en"])
    lines = capsys.readouterr().out.splitlines()
    summaries = [line for line in lines if line.startswith("softmax:")]
    assert [line.split()[1] for line in summaries] == ["6", "all"]


def test_the_lines_of_a_mistake_come_on_demand(tmp_path, monkeypatch, capsys):
    run_in_this_process(monkeypatch)
    mistake = catalogue()["empty-row-nan"]
    wrong = mistake.variants[0][0].diff[0]
    path = write(tmp_path, RIGHT.replace(".nan_to_num()", ""))
    for more in ([], ["--show"]):
        with pytest.raises(SystemExit):
            main(["check", "softmax", str(path), "--lang", "en", *more])
        text = capsys.readouterr().out
        assert "every score is -inf" in text and "divide by 0" in text
        assert ("-    return weights" in text) == bool(more)
    text = main(["check", "--explain", mistake.id, "--lang", "zh"])
    assert text.startswith(mistake.title.zh) and wrong in text
    with pytest.raises(SystemExit) as end:
        main(["check", "--explain", "empty-row"])
    assert end.value.code == 2
    assert "no mistake 'empty-row'; did you mean" in capsys.readouterr().err


def test_an_entry_is_where_the_site_is_or_where_it_is_installed(monkeypatch):
    report.site.cache_clear()
    monkeypatch.setenv("SITE_URL", "https://example.org/attn")
    page = "mistakes/attention-mistakes/#empty-row-nan"
    for part, language in (("", "en"), ("zh/", "zh")):
        at = report.page_of("empty-row-nan", language)
        assert at == f"https://example.org/attn/{part}{page}"
    report.site.cache_clear()
    monkeypatch.setattr(report, "site", lambda: "")
    path, _, line = report.page_of("empty-row-nan", "en").rpartition(":")
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    assert lines[int(line) - 1] == "id: empty-row-nan"


def test_half_a_character_in_an_error_is_given_by_its_number(tmp_path):
    """No terminal can print it, and one file must not cost a class its
    points."""
    write(tmp_path, RIGHT, "softmax.py")
    text = 'def softmax(x, dim=-1):\n    raise ValueError("\\ud800")\n'
    write(tmp_path, text, "softmax_ann.py")
    words = [sys.executable, "-m", "attnref", "check", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stderr
    assert lines[0].split()[:2] == ["softmax.py", "8/8"]
    assert "\\ud800" in lines[1] and "0/8" in lines[1]
