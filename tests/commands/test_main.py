"""The command line as a program: what it prints, and with which code it ends.

It needs no torch, nor does it wait for it.
"""

import argparse
import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from itertools import chain
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import attnref
from attnref.__main__ import command, main
from attnref.commands import match
from attnref.judge.tasks import file_to_fill
from attnref.judge.words import wide
from attnref.released.record import sized
from attnref.released.specs import configs, find_model, models
from attnref.words import message, speaking
from sitekit import ROOT
from tests.kit.pages import PAGES

BUFFERED = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
MODULE = [sys.executable, "-m", "attnref"]
WITHOUT = """
import json, sys

class Blocked:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {modules!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Blocked())
"""
BLOCKED = (
    WITHOUT.format(modules=["torch"])
    + """
import attnref
from attnref.__main__ import main
print(json.dumps([main(words) for words in json.loads(sys.argv[1])]))
try:
    attnref.sdpa
except ImportError as error:
    assert str(error) == "torch", error
else:
    raise SystemExit("torch is not blocked")
"""
)


def run(*words, **how):
    return subprocess.run(
        [*MODULE, *words], cwd=ROOT, capture_output=True, text=True, **how
    )


def test_every_command_runs_without_torch(tmp_path):
    size = "--tokens 4K --batch 3 --ranks 2 --budget 80GiB --weights bf16"
    calls = [
        ["kv", "--list"],
        ["kv", "--list", "--json"],
        ["kv", "--model", "llama-3.1-8b", *size.split()],
        ["kv", "--model", "gpt2", "kimi-k3", "--dtype", "int4"],
        ["kv", "--model", "gpt2", "--dtype", "int4", "--scale", "16/32"],
        ["kv", "--model", "deepseek-v3.2", "--dtype", "shipped", "--json"],
        ["copy", "--list"],
        ["copy", "gqa", "--lang", "zh"],
        ["copy", "--full", "gqa", "KVCache"],
        ["copy", "mla", "-o", str(tmp_path / "mla.py")],
        ["copy", "mla", "--folder", str(tmp_path / "folder")],
        ["check", "--list"],
        ["check", "gqa", "--stub", "-"],
        [],
    ]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, json.dumps(calls)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "folder")
    (tmp_path / "mla.py").unlink()
    assert json.loads(done.stdout) == [main(words) for words in calls]


LACKS = {
    "copy --config config.json": "jinja2",
    "diff config.json llama-3.1-8b": "torch",
    "check gqa my_gqa.py": "torch",
    "vectors answers": "torch",
    "vectors answers gqa": "safetensors",
    "match answers/gqa.safetensors mine.npy": "torch",
}


@pytest.mark.parametrize(("command", "module"), LACKS.items())
def test_what_is_not_installed_is_named_in_a_line(command, module, tmp_path):
    """Installed with --no-deps, the package has neither torch nor what torch
    brings, jinja2; and safetensors it never brings."""
    (tmp_path / "config.json").write_text(json.dumps(configs()["qwen3-8b"]))
    (tmp_path / "my_gqa.py").write_text(file_to_fill("gqa", "en"))
    np.save(tmp_path / "mine.npy", np.zeros(3))
    code = WITHOUT.format(modules=[module]) + (
        "from attnref.__main__ import main; main(sys.argv[1:])"
    )
    answers = command.startswith(("vectors", "match"))
    package = '"attnref[vectors]"' if answers else module
    for language, need in {"en": "it needs", "zh": "还缺"}.items():
        words = [*command.split(), "--lang", language]
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=tmp_path,
            env=BUFFERED | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        (line,) = done.stderr.splitlines()
        assert done.returncode == 2 and not done.stdout
        assert re.fullmatch(rf"attnref {words[0]}: .*", line)
        assert f"{need} {module}" in line
        assert line.endswith(f"pip install {package}")


def test_the_console_command_is_the_module():
    """Usage shows what was typed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    scripts = project["project"]["scripts"]
    assert scripts == {"attnref": "attnref.__main__:command"}
    as_typed = "import sys; sys.argv[0] = '/some/where/attnref.exe'"
    call = "from attnref.__main__ import command; sys.exit(command())"
    for words in (["kv"], ["copy", "gpa"], [], ["kv", "--help"]):
        script = [sys.executable, "-c", f"{as_typed}; {call}", *words]
        done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)
        ours = run(*words)
        for text in (ours.stdout, ours.stderr):
            assert ("python -m attnref" in text) == bool(text)
        short = [
            " ".join(text.replace("python -m attnref", "attnref").split())
            for text in (ours.stdout, ours.stderr)
        ]
        output = [" ".join(text.split()) for text in (done.stdout, done.stderr)]
        assert (done.returncode, output) == (ours.returncode, short)


def printed(path):
    """What a README or a page tells one to type, in words."""
    text = path.read_text("utf-8").replace("\\\n", "")
    for block in re.findall(r"^ *```bash\n(.*?)^ *```$", text, DEEP):
        for line in block.splitlines():
            yield tuple(shlex.split(line, comments=True))


DEEP = re.MULTILINE | re.DOTALL
READMES = [ROOT / "README.md", ROOT / "README.zh.md"]
PRINTED = {
    path.relative_to(ROOT).as_posix(): [*printed(path)]
    for path in (*READMES, *PAGES)
}
WAYS = (
    ("attnref",),
    ("python", "-m", "attnref"),
    ("uvx", "--torch-backend", "cpu", "attnref"),
    ("pipx", "run", "attnref"),
)
CALLS = {
    path: [
        words[len(way) :]
        for words in lines
        for way in WAYS
        if words[: len(way)] == way
    ]
    for path, lines in PRINTED.items()
}


def test_both_languages_print_the_same_commands():
    twins = {"README.md": "README.zh.md"}
    for path, calls in CALLS.items():
        if path in twins or path.startswith("docs/en/"):
            twin = twins.get(path, path.replace("docs/en/", "docs/zh/"))
            typed = " ".join(map(" ".join, CALLS[twin]))
            assert typed.replace(" --lang zh", "") == " ".join(
                map(" ".join, calls)
            )


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The known answers take a while: those of the first who asks."""
    return tmp_path_factory.mktemp("typed") / "answers"


@pytest.mark.parametrize(
    "path", [p for p, calls in CALLS.items() if calls and "zh" not in p]
)
def test_the_commands_of_a_page_work_in_order_in_one_empty_folder(
    path, tmp_path, monkeypatch, capsys, answers
):
    """But for a model's config, and what a reader makes meanwhile: the solution
    of an exercise, in the file to fill in, and the output of a port."""
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(configs()["qwen3-8b"]))
    ctrl_c = Mock(side_effect=KeyboardInterrupt)  # which ends --watch
    monkeypatch.setattr("time.sleep", ctrl_c)
    solution = (ROOT / "tests/check/solutions/einsum.py").read_text()
    cell = {"cell_type": "code", "source": solution}
    for words in CALLS[path]:
        if words[0] == "match":
            tensors, _ = match.read(Path("answers/gqa.safetensors"))
            np.save("mine.npy", tensors["output"].numpy())
        if words == ("vectors", "answers") and answers.exists():
            shutil.copytree(answers, "answers")
            continue
        written = {x.name for x in tmp_path.iterdir()}
        monkeypatch.setattr(sys, "argv", ["attnref", *words])
        if words[0] == "diff":  # these models differ
            with pytest.raises(SystemExit, match=r"^1$"):
                command()
        else:
            assert command() == (130 if "--watch" in words else 0), words
        assert capsys.readouterr().out.strip()
        for flag in {"-o", "--folder", "--stub"}.intersection(words):
            name = words[words.index(flag) + 1]
            assert Path(name).exists() and name not in written, words
            if flag == "--stub" and words[0] == "check":
                assert Path(name).read_text() == file_to_fill(words[1], "en")
                Path(name).write_text(solution)
                notebook = Path(name).with_suffix(".ipynb")
                notebook.write_text(json.dumps({"cells": [cell]}))
        if words == ("vectors", "answers"):
            shutil.copytree("answers", answers)


def test_what_else_is_printed_is_there_to_be_typed():
    """Targets of make, and of pip the versions of constraints.txt."""
    targets = re.findall(
        r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text("utf-8"), re.M
    )
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    programs = set()
    for program, *words in chain(*PRINTED.values()):
        programs.add(program)
        if program == "make":
            assert words[0] in targets
        for word in words:
            assert "==" not in word or word in pins
    typed = {"attnref", "python", "pip", "make", "mkdocs", "pytest"}
    assert programs == typed | {"uvx", "pipx"}
    for path in (ROOT / "CONTRIBUTING.md", *ROOT.glob("README*.md"), *PAGES):
        named = r"(?:`|^ {4})make ([\w-]+)"
        names = re.findall(named, path.read_text("utf-8"), re.M)
        assert {*names} <= {*targets}, path


def test_alone_it_tells_its_commands_a_line_each():
    done = run()
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("usage: python -m attnref ")
    assert lines[2].startswith("Sizes of the KV caches of released models")
    before, _, example = lines[-1].partition("example: python -m attnref ")
    assert before == "" and main(example.split()).startswith("Llama-3.1-8B, ")
    assert [x.split()[0] for x in lines if x[:4] == "    "] == [
        "kv",
        "copy",
        "diff",
        "check",
        "vectors",
        "match",
        "conform",
    ]
    assert run("--version").stdout == f"attnref {attnref.__version__}\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("kv --model lama3", "kv: error: there is no model 'lama3'; did you "),
        ("copy gpa", "copy: error: there is no 'gpa'; did you mean gqa"),
        ("copy zebra", "copy: error: there is no 'zebra'; --list prints all"),
        ("copy", "copy: error: pass one or more names; --list prints all"),
        ("copy ,", "copy: error: pass one or more names; --list prints all"),
        ("copy gqa --list", "copy: error: --list does not take names"),
        ("copy gqa -o README.md/x.py", "copy: error: README.md is a file, not"),
        ("copy gqa --folder README.md", "copy: error: README.md is a file, "),
        ("copy gqa -o docs --force", "copy: error: docs is a folder; pass it"),
        ("check gqa no.py", "check: error: no.py does not exist"),
        ("copy gqa -o new/", "copy: error: new/ is a folder; pass it as"),
    ],
)
def test_an_error_is_one_line_and_ends_with_2(words, error):
    done = run(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"python -m attnref {error}")


@pytest.mark.parametrize("words", ["copy --full mla Decoder", "--help"])
def test_nobody_need_read_all_that_is_printed(words):
    """As in `attnref copy gqa | head -1`, where the pipe is closed early."""
    program = subprocess.Popen(
        [*MODULE, *words.split()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=BUFFERED,
    )
    program.stdout.close()
    assert program.stderr.read() == b""
    program.stderr.close()
    assert program.wait() == 141


def test_ctrl_c_ends_it_without_a_traceback():
    call = (
        "import signal, sys, time, attnref.__main__ as program\n"
        # In the background of a shell it would be ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def waits(*_): print('there', flush=True); time.sleep(600)\n"
        "program.main = waits\n"
        "sys.exit(program.command())"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", call],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout.readline() == "there\n"
    program.send_signal(signal.SIGINT)
    assert program.communicate() == ("", "")
    assert program.returncode == 130


def texts_of(path):
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant)
    }


def test_each_message_that_has_chinese_is_used_somewhere():
    """In these English words, by the package or by argparse, as a text or as
    the first line of one, or it is a note of a model; both languages have the
    same places for values."""
    lines = (ROOT / "attnref" / "words.txt").read_text("utf-8").splitlines()[1:]
    texts = set().union(*map(texts_of, (ROOT / "attnref").rglob("*.py")))
    texts |= texts_of(Path(argparse.__file__))
    texts |= {str(text).partition("\n")[0] for text in texts}
    texts |= {model.note for model in models().values()}
    rows = sized().values()
    texts |= {row.fields.get("note", "").strip("'") for row in rows}
    for line in lines:
        english, chinese = line.split(" | ")
        assert english in texts, line
        assert english.count("{") == chinese.count("{"), line
        assert english.count("%") == chinese.count("%"), line
    assert len({line.split(" | ")[0] for line in lines}) == len(lines)


LAYERS = "configured", "expression"  # of code, not of a file


def test_each_message_of_a_command_has_chinese():
    """And each error of what reads a config.json is such a message."""
    lines = (ROOT / "attnref" / "words.txt").read_text("utf-8").splitlines()[1:]
    known = {line.split(" | ")[0] for line in lines}
    rooms = ("released", "commands")
    paths = [p for r in rooms for p in (ROOT / "attnref" / r).glob("*.py")]
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            first, name = node.args[0], ast.unparse(node.func)
            if name == "message" and isinstance(first, ast.Constant):
                assert first.value in known, path
            if name == "ValueError" and path.stem not in LAYERS:
                text = isinstance(first, ast.Constant | ast.JoinedStr)
                assert not text or "{error}" in ast.unparse(first), path
    assert len(paths) > 10


@pytest.mark.parametrize(
    "command",
    ["", "kv", "copy", "diff", "check", "vectors", "match", "conform"],
)
def test_help_is_in_the_language_of_the_command(capsys, command):
    """argparse cuts seven letters off its usage, and prints the rest again."""
    with pytest.raises(SystemExit):
        main([*command.split(), "--help", "--lang", "zh"])
    usage, *rest = capsys.readouterr().out.split("\n\n")
    assert usage.startswith(f"命令行的用法：attnref {command}")
    for line in "\n".join(rest).splitlines():
        assert wide(line) <= 80
        assert "例：" in line or not re.search("[a-z]{2} [a-z]{2}", line), line


def test_what_can_be_copied_is_listed_in_chinese():
    plain, *parts = main(["copy", "--list", "--lang", "zh"]).split("\n\n")
    assert all(re.search("[一-鿿]", line) for line in plain.splitlines())
    heads = [part.split("\n")[0].split()[1:] for part in parts]
    assert heads == [["行数", "包含的名字"], ["行数", "定义位置"]]


def test_threads_that_overlap_speak_their_own_languages():
    both, texts = threading.Barrier(2, timeout=60), {}

    def speak(language):
        with speaking(language):
            both.wait()
            texts[language] = message("there is no exercise {!r}", "gpa")
            both.wait()

    threads = [threading.Thread(target=speak, args=(x,)) for x in ("zh", "en")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {"en": "there is no exercise 'gpa'", "zh": "没有练习 'gpa'"}


@pytest.mark.parametrize("words", [["copy", "--config"], ["kv", "--config"]])
def test_what_a_config_holds_is_named_in_one_line(tmp_path, words):
    path = tmp_path / "config.json"
    config = {"model_type": "llama", "num_hidden_layers": 1, "kv_\nheads": 2}
    for text, says in (
        (json.dumps(config), r"kv_\nheads=2"),
        ("[1]", "the file contains list, not an object"),
    ):
        path.write_text(text, encoding="utf-8")
        done = run(*words, path)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
        assert says in done.stderr


def test_an_error_is_in_the_language_of_the_command(capsys):
    for words, error in (
        ("kv --model --lang zh", "参数 --model：后面至少要有一个值"),
        ("kv --lang zh --model lama3", "没有模型 'lama3'，是不是 "),
        ("kv --model lama3", "there is no model 'lama3'; did you mean "),
        ("check gpa --lang zh", "没有练习 'gpa'，是不是 gqa"),
        ("check --list gqa --lang zh", "--list 后面不用写练习名"),
        ("copy --list gqa --lang zh", "--list 后面不用写名字，它列出全部"),
        ("copy --lang zh", "请写出一个或多个名字，--list 列出全部"),
    ):
        with pytest.raises(SystemExit):
            main(words.split())
        assert f"error: {error}" in capsys.readouterr().err
    with pytest.raises(ValueError, match="there is no model 'lama3'"):
        find_model("lama3")


LOADED = """
import sys
before = {*sys.modules}
from attnref.__main__ import main
assert main(["kv", "--model", "llama-3.1-8b"])
print(*{*sys.modules} - before)
"""


def test_kv_loads_little_of_the_package_and_nothing_of_others():
    """And so it starts at once: nothing that computes with tensors, no
    catalogue of mistakes, and of the standard library what it needs."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {*done.stdout.split()}
    ours = {name for name in loaded if name.split(".")[0] == "attnref"}
    roots = {name.split(".")[0] for name in loaded - ours}
    assert roots <= {*sys.stdlib_module_names}
    rooms = {name.split(".")[1] for name in ours if "." in name}
    assert not rooms & {"caches", "layers"}
    asked = {"attnref.released.configured", "attnref.numbers.ranks"}
    assert not asked & ours
    assert {name for name in ours if name.startswith("attnref.core.")} == {
        "attnref.core.checks"
    }
    # On Python 3.11 they are 30 and 96.
    assert len(ours) <= 30 and len(loaded - ours) <= 150, sorted(loaded)
