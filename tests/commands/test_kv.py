"""attnref kv: the package's numbers, and clear error messages."""

import json
import re
import shlex
import subprocess
import sys
from argparse import ArgumentTypeError

import pytest

from attnref.__main__ import main
from attnref.commands.kv import a_rate
from attnref.numbers.engines import allocated
from attnref.numbers.kv_memory import (
    DTYPES,
    Storage,
    growth,
    kv_bytes,
    largest_batch,
    longest_context,
    size,
    state_bytes,
)
from attnref.released.specs import configs, find_model, models
from sitekit import ROOT
from sitekit.markdown.pages import body_of, markdown_files, render

GIB = 2**30
NUMBER = r"\d+(?:[,.]\d+)*"
ENGLISH = "one sequences of the tokens layers per windows full states any note "
ENGLISH += "longest context sources source confidence high medium left out fit"
COMMAND = "python -m attnref kv"


def kv(text):
    return main(["kv", *shlex.split(text)])


@pytest.mark.parametrize(
    "path",
    [
        p
        for language in ("en", "zh")
        for p in markdown_files(language)
        if f"\n{COMMAND}" in p.read_text(encoding="utf-8")
    ],
    ids=lambda path: f"{path.parts[-3]}-{path.stem}",
)
def test_a_command_on_a_page_prints_what_stands_below_it(path):
    blocks = render(body_of(path)).blocks
    for i, block in enumerate(blocks):
        if block.text.startswith(COMMAND):
            words = shlex.split(block.text.replace("\\\n", ""))[3:]
            assert blocks[i + 1].language == "text"
            assert ("zh" in words) == (path.parts[-3] == "zh")
            assert main(words) == blocks[i + 1].text.rstrip("\n")


def test_it_runs_as_a_program():
    command = [sys.executable, "-m", "attnref", "kv", "--model", "gpt2"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "GPT-2 small" in process.stdout and "144 MiB" in process.stdout


@pytest.mark.parametrize("dtype", DTYPES)
def test_json_holds_what_the_package_computes(dtype):
    text = kv(
        f"--model gpt-oss-120b kimi-k3 --tokens 128K 1000 --batch 3 "
        f"--dtype {dtype} --ranks 2 --budget 24GiB --weights 8GiB --json"
    )
    result = json.loads(text)
    for name, row in zip(("gpt-oss-120b", "kimi-k3"), result, strict=True):
        model, options = find_model(name), {"dtype": dtype, "ranks": 2}
        assert row["id"] == name
        assert row["kv_bytes"] == {
            str(t): kv_bytes(model, t, batch=3, **options)
            for t in (131_072, 1000)
        }
        assert row["token_bytes"] == growth(model, **options)._asdict()
        assert row["state_bytes"] == state_bytes(model, ranks=2)
        assert row["longest_context"] == longest_context(
            model, 20 * GIB, batch=3, **options
        )
        assert row["largest_batch"]["1000"] == largest_batch(
            model, 1000, 20 * GIB, **options
        )
        assert list(row["sources"].values()) == [s.url for s in model.sources]


def test_scales_and_formats_as_shipped():
    (row,) = json.loads(
        kv("--model gpt2 --dtype int4 --scale 16/32 --tokens 10 --json")
    )
    storage = Storage(4, scale_bits=16, block=32)
    assert row["kv_bytes"]["10"] == kv_bytes(
        find_model("gpt2"), 10, dtype=storage
    )
    assert "int4" not in kv("--model gpt2 --dtype int4 --scale 16/32")
    text = kv("--model deepseek-v4.1-flash --dtype shipped")
    assert "890 B" in text


def test_the_list_names_every_model():
    lines = kv("--list").splitlines()
    assert [line.split()[0] for line in lines] == [*models()]
    assert len(json.loads(kv("--list --json"))) == len(models())


def test_one_model_is_described_with_its_layers():
    text = kv("--model gemma-3-27b --budget 8GiB")
    assert "52 layers: GQA 32/16, heads of 128, window 1,024" in text
    assert "per token: 507,904 B (496 KiB)" in text
    assert "once windows are full: 81,920 B (80 KiB)" in text
    longest = longest_context(find_model("gemma-3-27b"), 8 * GIB)
    assert f"longest context in 8 GiB: {longest:,} tokens per sequence" in text
    assert "sources of the shape: gemma" in text
    for model in models().values():
        output = kv(f"--model {model.id} --tokens 5")
        assert model.note in output
        assert f"confidence in the shape: {model.confidence}" in output
        assert (model.context.label if model.context else "") in output
        assert f"{kv_bytes(model, 5):,}" in output
        assert "None" not in output


def test_the_arguments_stand_above_the_numbers():
    options = "--batch 8 --dtype int8 --scale 16/32 --ranks 2"
    line = "8 sequences, 8 bits, scale 16/32, on each of 2 devices:"
    for names in ("gpt2", "gpt2 falcon-7b"):
        assert line in kv(f"--model {names} {options}").splitlines()


@pytest.mark.parametrize(
    "text", ["131072", "131,072", "131_072", "128k", "1.31072e5"]
)
def test_numbers_may_be_written_as_people_do(text):
    assert '"131072": 4831838208' in kv(f"--model gpt2 --tokens {text} --json")
    assert '"131072": 4831838208' in kv(
        f"--model openai/GPT-2 --tokens {text} --json"
    )


def test_what_every_device_has_is_named():
    for args, words in (
        ("deepseek-v3 --ranks 8", "latent x 8"),
        ("deepseek-v3.2 --ranks 2", "latent x 2, index keys x 2"),
        ("llama-3.1-8b --ranks 12", "key/value heads x 1.5"),
        ("llama-3.1-8b --ranks 8", None),
        ("deepseek-v3", None),
    ):
        text = kv(f"--model {args}")
        lines = [x for x in text.splitlines() if x.startswith("replicated: ")]
        assert lines == ([f"replicated: {words}"] if words else [])
    rows = json.loads(kv("--model deepseek-v3 --ranks 8 --json"))
    assert rows[0]["replicated"] == {"latent": 8}


@pytest.mark.parametrize(
    ("args", "fits"),
    [
        ("llama-3.1-70b --ranks 6", "1, 2, 4, 8, 16, 32, 64"),
        ("llama-3.1-70b --ranks 16", ""),
        ("llama-3.1-70b --ranks 6 --dp-attention", ""),
        ("gpt2 --ranks 8", "1, 2, 3, 4, 6, 12"),
        ("deepseek-v3 --ranks 256", "1, 2, 4, 8, 16, 32, 64, 128"),
    ],
)
def test_devices_over_which_no_engine_splits_heads_are_named(args, fits):
    lines = kv(f"--model {args}").splitlines()
    n = args.split()[2]
    line = f"engines split whole heads: over {fits} devices, not over {n}"
    assert (line in lines) == bool(fits)
    assert fits or not any("whole heads" in line for line in lines)


@pytest.mark.parametrize(
    ("args", "ways"),
    [
        ("llama-3.1-8b", {"ring": 470_680_392, "ulysses": 294_519_624}),
        ("deepseek-v3", {"ring": 133_038_920}),
        ("llama-3.1-8b --dp-attention", None),
        ("gpt2", {"ring": 353_239_880}),  # 12 heads do not fit 8 devices
    ],
)
def test_what_long_texts_on_several_devices_send_is_said(args, ways):
    text = f"--model {args} --ranks 8 --tokens 32K 128K"
    (row,) = json.loads(kv(f"{text} --json"))
    assert row.get("sent_bytes") == ways
    line = (
        "a prompt of 131,072 tokens over the devices: each sends, per layer, "
    )
    assert (line in kv(text)) == bool(ways)


def test_gigabytes_are_what_a_page_and_the_help_say():
    """A GPU of 80 GB has nearly 80 GiB; "80GB" of a budget would be 74.5."""
    for size_of, gib in (("81559MiB", 80), ("97871MiB", 96)):
        text = kv(f"--model gpt2 --tokens 1 --budget {size_of} --json")
        left = json.loads(text)[0]["left_bytes"]
        assert 0.99 * gib < left / GIB < gib
        for language in ("en", "zh"):
            page = ROOT / f"docs/{language}/numbers/memory.md"
            assert f"{left // 2**20:,} MiB" in page.read_text("utf-8")
    help_of = subprocess.run(
        [sys.executable, "-m", "attnref", "kv", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout
    assert "81559MiB" in help_of and "97871MiB" in help_of
    assert "74.5" not in help_of


def test_states_are_counted_for_one_sequence_as_tokens_are():
    state = state_bytes(find_model("kimi-k3"))
    text = kv("--model kimi-k3 --tokens 4K --batch 8")
    line = f"states: {state:,} B ({size(state)}) per sequence, at any length"
    assert line in text.splitlines()


def words(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_several_models_have_a_line_each():
    text = kv("--model mistral-7b gpt2 --tokens 4K 1M --budget 1GiB")
    assert words(text) == [
        "one sequence, bf16:",
        "model per further token 4,096 tokens 1,048,576 tokens",
        "mistral-7b 0 B 512 MiB 512 MiB",
        "gpt2 36 KiB 144 MiB 36 GiB",
        "",
        "how many sequences fit, and the longest context that does:",
        "model for the cache 4,096 tokens 1,048,576 tokens longest",
        "mistral-7b 1 GiB 2 2 any length",
        "gpt2 1 GiB 7 0 29,127",
    ]


@pytest.mark.parametrize(
    ("args", "weights"),
    [
        ("--weights 672GB --ranks 8", 84 * 10**9),
        ("--weights fp8 --ranks 8", 671 * 10**9 // 8),
        ("--weights 100GB", 100 * 10**9),
    ],
)
def test_weights_that_do_not_fit_are_reported_with_the_numbers(args, weights):
    message = (
        f"the weights need {size(weights)} of {size(72 * 10**9)} per device: "
        "no cache fits"
    )
    single = kv(f"--model deepseek-v3 {args} --tokens 32K --budget 72GB")
    assert message in single.splitlines()
    assert "longest context in" not in single
    rows = words(single)
    assert rows[rows.index(message) - 1].endswith(" 0")
    several = kv(f"--model deepseek-v3 deepseek-v2-lite {args} --budget 72GB")
    assert f"deepseek-v3: {message}" in several.splitlines()
    assert "deepseek-v3 nothing 0 0 0 0 0" in words(several)


def test_what_weights_leave_is_for_the_cache():
    """Eight devices of 80 GiB, of which an engine takes nine tenths."""
    text = kv(
        "--model llama-3.1-70b --tokens 32K --ranks 8 --budget 72GiB "
        "--weights bf16"
    )
    weights = 2 * 70_553_706_496 / 8 / GIB  # 16.43, on each device
    assert f"{(72 - weights) / (32_768 * 327_680 / 8 / GIB):.2f}" == "44.46"
    assert "32,768 1,342,177,280 1.25 GiB 44" in words(text)
    assert (
        "the weights need 16.43 GiB of 72 GiB per device: 55.57 GiB left for "
        "the cache" in text.splitlines()
    )
    by_size = kv(
        "--model llama-3.1-70b --tokens 32K --ranks 8 --budget 72GiB "
        f"--weights {2 * 70_553_706_496}B"
    )
    assert by_size == text


def test_a_dtype_of_weights_is_that_of_all_published_parameters():
    args = "--budget 2TiB --tokens 1 --json --weights"
    for dtype, storage in DTYPES.items():
        ids = " ".join(m.id for m in models().values() if m.params)
        for row in json.loads(kv(f"--model {ids} {args} {dtype}")):
            model = find_model(row["id"])
            assert row["weight_bytes"] == -(-model.params * storage.bits // 8)
            assert row["left_bytes"] == 2**41 - row["weight_bytes"]
            label = model.params_in.label
            assert row["params_in"] == {label: model.params_in.url}


def test_what_is_known_of_some_models_only_keeps_back_no_other():
    ids = [m.id for m in models().values() if m.shipped]
    names = f"gpt2 {' '.join(ids)} kimi-k3"
    text = kv(f"--model {names} --tokens 4K --dtype shipped")
    assert [line.split()[0] for line in text.splitlines()[2:-2]] == ids
    assert [line.split(";")[0] for line in text.splitlines()[-2:]] == [
        f"left out: no source says how kernels store the cache of {id}"
        for id in ("gpt2", "kimi-k3")
    ]
    rows = json.loads(kv(f"--model {names} --dtype shipped --json"))
    assert [t["id"] for t in rows if "unknown" in t] == ["gpt2", "kimi-k3"]
    text = kv("--model gpt2 command-a --budget 80GiB --weights bf16")
    assert (
        "left out: no source gives the number of parameters of command-a"
        in text
    )


@pytest.mark.parametrize("text", ["0.0", ".000", "0", "1.1", "90%"])
def test_a_share_is_more_than_nothing_and_at_most_all(text, capsys):
    budget = "--budget 80GiB --utilisation"
    with pytest.raises(SystemExit):
        kv(f"--model gpt2 {budget} {text}")
    assert f"'{text}' is not a share such as 0.9" in capsys.readouterr().err
    assert kv(f"--model gpt2 {budget} 1") == kv("--model gpt2 --budget 80GiB")


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
    (row,) = json.loads(kv(f"--model gpt2 --tokens 1 --budget '{text}' --json"))
    model = find_model("gpt2")
    assert row["largest_batch"]["1"] == largest_batch(model, 1, bytes_)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_names_without_an_option_get_one(language, capsys, tmp_path):
    """The option is named if there is such a model or file."""
    file = tmp_path / "config.json"
    file.write_text("{}", "utf-8")
    for names, option in (
        ("gpt-oss-20b", "--model "),
        ("gpt2 openai/GPT-2 llama-3.1-8b", "--model "),
        (f"{file} {file}", "--config "),
        ("zebra", ""),
        ("lama-3.1-8b", ""),
        (f"gpt2 {tmp_path}", ""),
    ):
        with pytest.raises(SystemExit) as end:
            kv(f"{names} --lang {language}")
        assert end.value.code == 2
        error = capsys.readouterr().err
        assert f"{option}{names}" in error
        hint = {"en": "did you mean", "zh": "是不是想写"}[language]
        refusal = {"en": "unrecognized arg", "zh": "没有这样的参数"}[language]
        assert (hint in error, refusal in error) == (bool(option), not option)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "--model lama3",
            "there is no model 'lama3'; did you mean llama-3-8b, "
            "llama-3-70b, llama-3.1-8b, llama-3.2-1b, llama-3.2-3b, "
            "llama-3.3-70b, llama-3.1-70b, codellama-34b, "
            "llama-3.1-405b?\n",
        ),
        ("--model llama3", "did you mean llama-3-8b, llama-3-70b, llama-"),
        ("--model Llama-3.3-70", "did you mean llama-3.3-70b?\n"),
        ("--model x/Llama-3.1-8B-Instruct", "did you mean llama-3.1-8b?\n"),
        ("--model lama-3.1-8b", "did you mean llama-3.1-8b?\n"),
        ("--model deepseek", "did you mean deepseek-v2, deepseek-v3, "),
        ("--model deepsek", "did you mean deepseek-v2, deepseek-v3, deepsee"),
        ("--model 'deepseek r1'", "did you mean deepseek-v3?\n"),
        ("--model 'qwen 3'", "did you mean qwen3-8b, qwen3-4b, qwen3-32b, "),
        ("--model ''", "there is no model ''\n"),
        ("--model zzzz", "there is no model 'zzzz'\n"),
        ("--model gpt2 --dtype bf61", "no dtype 'bf61'; did you mean bf16?"),
        ("--model gpt2 command-a --dtype bf61", "did you mean bf16?"),
        (
            "--model gpt2 --dtype shipped",
            "no source says how kernels store the cache of gpt2; it is known "
            "for deepseek-v3.2, deepseek-v4-flash, ",
        ),
        ("--model gpt2 command-a --dtype shipped", "known for deepseek-v3.2, "),
        (
            "--model gpt2 --dtype shipped --scale 16/32",
            "--scale goes with one of fp32, ",
        ),
        ("--model gpt2 --tokens 0", "'0' is not a whole number of at least 1"),
        ("--model gpt2 --tokens 1.5", "least 1, such as 4096, 128K or 1e6\n"),
        ("--model gpt2 --tokens 1.5e0", "'1.5e0' is not a whole number"),
        ("--model gpt2 --tokens 1,,2", "'1,,2' is not a whole number"),
        ("--model gpt2 --batch 1.5", "'1.5' is not a whole number"),
        ("--model gpt2 --ranks x", "'x' is not a whole number"),
        ("--model gpt2 --budget 0GiB", "'0GiB' is not a size"),
        ("--model gpt2 --budget 80", "'80' is not a size with a unit, such as"),
        ("--model gpt2 --budget 8XB", "'8XB' is not a size"),
        ("--model gpt2 --budget nanGiB", "'nanGiB' is not a size"),
        ("--model gpt2 --weights 1GB", "--weights is subtracted from --b"),
        (
            "--model gpt2 --budget 8GB --weights 3",
            "'3' is not a size with a unit",
        ),
        (
            "--model gpt2 --budget 8GB --weights bf61",
            "'bf61' is neither a size with a unit, such as 141GB, nor a dtype: "
            "no dtype 'bf61'; did you mean bf16?",
        ),
        (
            "--model command-a --budget 8GB --weights bf16",
            "no source gives the number of parameters of command-a; pass the",
        ),
        (
            "--model gpt2 --scale 16",
            "'16' is not a scale such as 16/32: its bits, and",
        ),
        ("--model gpt2 --scale 0/32", "'0/32' is not a scale"),
        ("", "pass --model with one or more ids, --con"),
        ("--list --model gpt2", "pass --model with one or more ids, --con"),
    ],
)
def test_what_is_wrong_is_reported_and_ends_with_2(text, message, capsys):
    with pytest.raises(SystemExit) as end:
        kv(text)
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        kv(f"{text} --lang zh")
    assert end.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    words = re.sub(r"'.*?'|such as|--\w+|attnref|error", "", last)
    assert re.findall("[\u4e00-\u9fff]+", words), last
    assert not {"is", "no", "not", "did", "of"} & {*words.split()}, last


COMMANDS = (
    "--model gemma-3-27b --budget 80GiB",
    "--model kimi-k3 --batch 8 --ranks 12 --dtype int8 --scale 16/32",
    "--model llama-3.1-8b deepseek-v3 command-a --budget 72GiB --weights fp8",
    "--model deepseek-v3 --budget 72GiB --weights fp8 --ranks 8",
    *(f"--model {model.id}" for model in models().values() if model.note),
)


@pytest.mark.parametrize("text", COMMANDS)
def test_in_chinese_it_says_the_same_numbers(text, monkeypatch):
    """Of English, names are left: of models, sources, formats and libraries."""
    english, chinese = kv(text), kv(f"{text} --lang zh")
    numbers = [sorted(re.findall(NUMBER, x)) for x in (english, chinese)]
    assert numbers[0] == numbers[1]
    foreign = {*re.findall(r"\b[a-z]+\b", chinese)} & {*ENGLISH.split()}
    assert foreign == set()
    assert kv(f"{text} --lang zh --json") == kv(f"{text} --json")
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert kv(text) == chinese


@pytest.mark.parametrize(
    "family, fields, ids",
    [
        ("kimi_k3", {}, "kimi-k3"),
        ("llama", {}, ""),
        ("llama9", {"_name_or_path": "x/Llama-3.1-8B"}, "llama-3.1-8b"),
    ],
)
def test_a_config_that_is_refused_leads_to_the_sizes(
    family, fields, ids, tmp_path, capsys
):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": family} | fields))
    for language, hint in (("en", "; kv --model knows "), ("zh", "里有 ")):
        with pytest.raises(SystemExit):
            kv(f"--config {file} --lang {language}")
        error = capsys.readouterr().err
        assert ids in error and (hint in error) is bool(ids)


def test_a_config_with_a_field_that_nobody_knows_has_its_bytes(tmp_path):
    """The field, and what is not counted, are named below the numbers."""
    file, model = tmp_path / "config.json", find_model("deepseek-v4-flash")
    config = configs()[model.id] | {"use_mystery": 1}
    file.write_text(json.dumps(config))
    text = kv(f"--config {file} --tokens 128K")
    assert f"131,072  {kv_bytes(model, 131_072):,}" in text
    assert "without effect on bytes: use_mystery\n" in text
    assert "note: the state of the compressor is not counted\n" in text
    chinese = kv(f"--config {file} --tokens 128K --lang zh")
    assert "不影响字节数：use_mystery\n" in chinese
    assert "说明：压缩器的状态未计入\n" in chinese
    (row,) = json.loads(kv(f"--config {file} --json"))
    assert row["unread"] == ["use_mystery"]


LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "head_dim": 64}
LLAMA |= {"hidden_size": 256, "num_attention_heads": 4, "vocab_size": 100}
LLAMA |= {"intermediate_size": 512, "num_key_value_heads": 2}
OF_8_BITS = {"num_bits": 8, "type": "float"}


@pytest.mark.parametrize(
    "quant, algorithm, dtype, message",
    [
        ({}, None, "bf16", "as the config has no kv_cache_scheme"),
        ({"kv_cache_scheme": None}, None, "bf16", "no kv_cache_scheme"),
        ({"kv_cache_scheme": OF_8_BITS}, None, "fp8", "as the config says"),
        (
            {"kv_cache_scheme": {"num_bits": 8, "type": "int"}},
            None,
            "int8",
            "cache: int8",
        ),
        ({}, "FP8", "fp8", "cache: fp8"),
        ({}, "NVFP4", None, "a cache in NVFP4 is not counted; pass --dtype"),
        ({"kv_cache_scheme": {"num_bits": 3}}, None, None, "pass --dtype"),
    ],
)
def test_a_config_says_the_format_of_its_cache(
    quant, algorithm, dtype, message, tmp_path, capsys
):
    """A config of images too says it, around the config of its text model."""
    file = tmp_path / "config.json"
    if algorithm:
        text = json.dumps({"quantization": {"kv_cache_quant_algo": algorithm}})
        (tmp_path / "hf_quant_config.json").write_text(text)
    for config in (LLAMA, {"model_type": "llava", "text_config": LLAMA}):
        file.write_text(json.dumps(config | {"quantization_config": quant}))
        if dtype is None:
            with pytest.raises(SystemExit):
                kv(f"--config {file}")
            assert message in capsys.readouterr().err
        else:
            text = kv(f"--config {file} --tokens 10")
            size_in_bytes = 10 * 2 * 2 * 2 * 64 * DTYPES[dtype].bits // 8
            assert f" {size_in_bytes:,} " in text and message in text
            assert f", {dtype}:" in text
            assert "缓存按" in kv(f"--config {file} --lang zh")
            several = kv(f"--config {file} --model gpt2")
            assert f"{file}: cache: " in several
        explicit = kv(f"--config {file} --tokens 10 --dtype fp32")
        assert " 20,480 " in explicit and "cache:" not in explicit


def test_fp8_of_a_sparse_mla_is_that_of_its_kernels(tmp_path):
    """788 bytes per token and layer, for a file of the same widths too."""
    config = {"model_type": "glm_moe_dsa", "num_hidden_layers": 3}
    config |= {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "q_lora_rank": 64}
    config |= {"num_attention_heads": 4, "hidden_size": 256, "v_head_dim": 64}
    config |= {"index_head_dim": 128, "index_n_heads": 4, "index_topk": 8}
    config |= {"qk_nope_head_dim": 64}
    for rank, stored in ((512, 3 * 788), (256, None)):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(config | {"kv_lora_rank": rank}))
        options = (
            "kernels of this model store 2,364 B per further token: --dtype"
        )
        assert (options in kv(f"--config {file} --dtype fp8")) is bool(stored)
        if stored:
            (row,) = json.loads(kv(f"--config {file} --dtype shipped --json"))
            assert row["token_bytes"]["later"] == stored


def test_blocks_and_a_prefix_are_counted_and_said():
    text = kv(
        "--model llama-3.1-8b --tokens 1000 --batch 8 --block-size 16 "
        "--prefix 900 --budget 10GiB"
    )
    total = 8 * 1008 - 7 * 896  # tokens
    assert f"1,000   {total * 131_072:,}" in text
    assert (
        "8 sequences, bf16, blocks of 16 tokens, the first 900 shared:" in text
    )
    limit = 1 + (10 * GIB - 1008 * 131_072) // (112 * 131_072)
    assert f"  {limit}\n" in text
    chinese = kv("--model gpt2 --tokens 9 --block-size 4 --prefix 5 --lang zh")
    assert "每块 4 个 token，共用最前面的 5 个" in chinese
    with pytest.raises(SystemExit):
        kv("--model gpt2 --tokens 9 --prefix 9")


@pytest.mark.parametrize(
    "text, rate",
    [
        ("400Gb", 50 * 10**9),
        ("400 Gb/s", 50 * 10**9),
        ("50GB", 50 * 10**9),
        ("1.6Tbps", 2 * 10**11),
        ("400", None),
        ("0Gb", None),
        ("400GiB", None),
    ],
)
def test_a_link_is_in_bits_or_bytes(text, rate):
    if rate is None:
        with pytest.raises(ArgumentTypeError, match="is not a rate"):
            a_rate(text)
    else:
        assert a_rate(text) == rate


def test_a_link_sends_what_each_device_has():
    """128 KiB per token of Llama on two devices, 64 on each."""
    model = ["kv", "--model", "llama-3.1-8b", "--tokens", "32K"]
    [row] = json.loads(main([*model, "--tp", "2", "--link", "16Gb", "--json"]))
    seconds = 32_768 * 64 * 1024 / (2 * 10**9)
    assert row["transfer_seconds"] == {"32768": seconds}
    text = main([*model, "--tp", "2", "--link", "16Gb", "--lang", "en"])
    assert "sent in" in text and "1.07 s" in text
    fast = main([*model, "--link", "400Gb", "--lang", "zh"])
    assert "传输用时" in fast and "85.9 ms" in fast


def test_an_engine_is_named_with_what_it_allocates():
    args = ["kv", "--model", "qwen3.5-9b", "--tokens", "100", "--as"]
    text = main([*args, "vllm", "--lang", "en"])
    assert "as vllm allocates it, blocks of 528 tokens" in text
    assert "reserved" not in text
    [row] = json.loads(main([*args, "llama.cpp", "--json"]))
    served, block = allocated(find_model("qwen3.5-9b"), "llama.cpp")
    assert row["kv_bytes"] == {"100": kv_bytes(served, 100, block=block)}
    more = [*args, "llama.cpp", "--draft-layers", "1", "--json"]
    [drafts] = json.loads(main(more))
    assert drafts["kv_bytes"]["100"] - row["kv_bytes"]["100"] == 256 * 4096
    [narrow] = json.loads(main([*args, "vllm", "--block-size", "16", "--json"]))
    assert narrow["block"] == 16
