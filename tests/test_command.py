"""python -m attnref kv: the same numbers, and clear words for what is wrong."""

import json
import shlex
import subprocess
import sys

import pytest

from attnref.__main__ import main
from attnref.kv_memory import (
    DTYPES,
    Storage,
    growth,
    kv_bytes,
    largest_batch,
    longest_context,
    size,
    state_bytes,
)
from attnref.specs import find_model, models
from sitekit import ROOT
from sitekit.pages import body_of, markdown_files, render

GIB = 2**30


def kv(text):
    return main(["kv", *shlex.split(text)])


@pytest.mark.parametrize(
    "path", markdown_files("en"), ids=lambda path: path.stem
)
def test_a_command_on_a_page_prints_what_stands_below_it(path):
    blocks = render(body_of(path)).blocks
    for i, block in enumerate(blocks):
        if block.text.startswith("python -m attnref"):
            words = shlex.split(block.text)[3:]
            assert blocks[i + 1].language == "text"
            assert main(words) == blocks[i + 1].text.rstrip("\n")


def test_it_runs_as_a_program():
    command = [sys.executable, "-m", "attnref", "kv", "--model", "gpt2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "GPT-2 small" in done.stdout and "144 MiB" in done.stdout


@pytest.mark.parametrize("dtype", DTYPES)
def test_json_holds_what_the_package_computes(dtype):
    text = kv(
        f"--model gpt-oss-120b kimi-k3 --tokens 128K 1000 --batch 3 "
        f"--dtype {dtype} --ranks 2 --budget 24GiB --json"
    )
    found = json.loads(text)
    for name, told in zip(("gpt-oss-120b", "kimi-k3"), found, strict=True):
        model, how = find_model(name), {"dtype": dtype, "ranks": 2}
        assert told["id"] == name
        assert told["kv_bytes"] == {
            str(t): kv_bytes(model, t, batch=3, **how) for t in (131_072, 1000)
        }
        assert told["token_bytes"] == growth(model, **how)._asdict()
        assert told["state_bytes"] == state_bytes(model, ranks=2)
        assert told["longest_context"] == longest_context(
            model, 24 * GIB, batch=3, **how
        )
        assert told["largest_batch"]["1000"] == largest_batch(
            model, 1000, 24 * GIB, **how
        )
        assert list(told["sources"].values()) == [s.url for s in model.sources]


def test_scales_and_formats_as_shipped():
    (found,) = json.loads(
        kv("--model gpt2 --dtype int4 --scale 16/32 --tokens 10 --json")
    )
    storage = Storage(4, scale_bits=16, block=32)
    assert found["kv_bytes"]["10"] == kv_bytes(
        find_model("gpt2"), 10, dtype=storage
    )
    assert "int4" not in kv("--model gpt2 --dtype int4 --scale 16/32")
    text = kv("--model deepseek-v4.1-flash --dtype shipped")
    assert "890 B" in text


def test_the_list_names_every_model():
    lines = kv("--list").splitlines()
    assert [line.split()[0] for line in lines] == [*models()]
    assert len(json.loads(kv("--list --json"))) == len(models())


def test_one_model_is_told_with_its_layers():
    text = kv("--model gemma-3-27b --budget 8GiB")
    assert "52 layers: GQA 32/16, heads of 128, window 1,024" in text
    assert "a token: 507,904 B (496 KiB)" in text
    assert "once windows are full: 81,920 B (80 KiB)" in text
    longest = longest_context(find_model("gemma-3-27b"), 8 * GIB)
    assert f"longest in 8 GiB: {longest:,} tokens each" in text
    assert "sources: gemma" in text
    for model in models().values():
        told = kv(f"--model {model.id} --tokens 5")
        assert model.note in told
        assert f"{kv_bytes(model, 5):,}" in told
        assert "None" not in told


def test_what_was_asked_stands_above_the_numbers():
    how = "--batch 8 --dtype int8 --scale 16/32 --ranks 2"
    line = "8 sequences, 8 bits, scale 16/32, a device of 2:"
    for names in ("gpt2", "gpt2 falcon-7b"):
        assert line in kv(f"--model {names} {how}").splitlines()


@pytest.mark.parametrize("text", ["131072", "131,072", "131_072", "128k"])
def test_numbers_may_be_written_as_people_do(text):
    assert '"131072": 4831838208' in kv(f"--model gpt2 --tokens {text} --json")


def test_states_are_told_for_one_sequence_as_tokens_are():
    state = state_bytes(find_model("kimi-k3"))
    text = kv("--model kimi-k3 --tokens 4K --batch 8")
    told = f"whatever the length: {state:,} B ({size(state)}) a sequence"
    assert told in text.splitlines()


def test_several_models_are_told_in_lines():
    text = kv("--model mistral-7b gpt2 --tokens 1M --budget 1GiB")
    assert [" ".join(line.split()) for line in text.splitlines()] == [
        "one sequence, bf16:",
        "model a token later 1,048,576 tokens longest in 1 GiB",
        "mistral-7b 0 B 512 MiB any length",
        "gpt2 36 KiB 36 GiB 29,127",
    ]


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("80GiB", 80 * GIB),
        ("24GB", 24 * 10**9),
        ("1.5 GiB", 3 * GIB // 2),
        ("512MiB", 2**29),
        ("1000B", 1000),
        ("24gb", 24 * 10**9),
        ("80gib", 80 * GIB),
    ],
)
def test_a_budget_is_written_with_its_unit(text, bytes_):
    (found,) = json.loads(
        kv(f"--model gpt2 --tokens 1 --budget '{text}' --json")
    )
    model = find_model("gpt2")
    assert found["largest_batch"]["1"] == largest_batch(model, 1, bytes_)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--model lama-3.1-8b", "no model 'lama-3.1-8b'; near are llama-3.1"),
        ("--model Qwen3-8B", "near are qwen3-8b"),
        ("--model zzzz", "no model 'zzzz'"),
        ("--model gpt2 --dtype bf61", "no dtype 'bf61'; did you mean bf16?"),
        (
            "--model gpt2 --dtype shipped",
            "no source says how kernels store gpt2",
        ),
        ("--model gpt2 --dtype shipped --scale 16/32", "--scale goes with"),
        ("--model gpt2 --tokens 0", "'0' is no number from 1 on"),
        ("--model gpt2 --tokens -5", "--tokens"),
        ("--model gpt2 --tokens 1e6", "'1e6' is no number from 1 on"),
        ("--model gpt2 --tokens 1,,2", "'1,,2' is no number from 1 on"),
        ("--model gpt2 --tokens 12,34", "'12,34' is no number from 1 on"),
        ("--model gpt2 --batch 1.5", "'1.5' is no number from 1 on"),
        ("--model gpt2 --ranks x", "'x' is no number from 1 on"),
        ("--model gpt2 --budget 0GiB", "'0GiB' is no size"),
        ("--model gpt2 --budget 80", "'80' is no size like 80GiB"),
        ("--model gpt2 --dtype float16", "did you mean fp16?"),
        ("--model gpt2 --budget 8XB", "'8XB' is no size"),
        ("--model gpt2 --budget nanGiB", "'nanGiB' is no size"),
        ("--model gpt2 --scale 16", "'16' is no scale"),
        ("--model gpt2 --scale 0/32", "'0/32' is no scale"),
        ("", "pass --model with one or more ids, or --list"),
        ("--list --model gpt2", "pass --model with one or more ids, or --list"),
    ],
)
def test_what_is_wrong_is_said_and_ends_with_2(text, message, capsys):
    with pytest.raises(SystemExit) as end:
        kv(text)
    assert end.value.code == 2
    assert message in capsys.readouterr().err
