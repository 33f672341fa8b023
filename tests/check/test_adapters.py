"""What `attnref conform` and pytest say of adapters that strangers write: no
convention fails, nothing broken passes, and each error is one line."""

import json
import os
import subprocess
import sys

import pytest

from attnref.__main__ import main
from attnref.commands import conform as command
from attnref.judge import conform
from sitekit import ROOT
from tests.check.plugin import run_pytest

ENGINE = """
import numpy as np

def attend(q, k, v, mask=None, causal=False, scale=None):
    (H, T, D), S = q.shape[1:], k.shape[2]
    k, v = (np.repeat(x, H // k.shape[1], 1) for x in (k, v))
    z = q @ k.swapaxes(2, 3) * (D ** -0.5 if scale is None else scale)
    if causal:
        z = np.where(np.tri(T, S, S - T, dtype=bool), z, -np.inf)
    if mask is not None:
        z = np.where(mask, z, -np.inf) if mask.dtype == bool else z + mask
    with np.errstate(all="ignore"):
        w = np.exp(z - z.max(-1, keepdims=True, initial=-1e30))
        return np.nan_to_num(w / w.sum(-1, keepdims=True)) @ v
"""
RING = """
import numpy as np

class Cache:
    window = 4
    slots = returned = 4

    def __init__(self):
        self.k, self.v = np.zeros((2, 2, 3, self.slots, 4), np.float32)
        self.n = 0

    def append(self, k, v):
        n, self.n = self.n, self.n + k.shape[2]
        kept = np.arange(max(0, n - self.returned), n) % self.slots
        new = np.concatenate((self.k[:, :, kept], k), 2)
        both = new, np.concatenate((self.v[:, :, kept], v), 2)
        for t in range(k.shape[2]):
            s = (n + t) % self.slots
            self.k[:, :, s], self.v[:, :, s] = k[:, :, t], v[:, :, t]
        if k.shape[2] == 1:
            kept = np.arange(max(0, self.n - self.returned), self.n)
            kept = kept % self.slots
            return self.k[:, :, kept], self.v[:, :, kept]
        return both
"""
TILE = "np.tile(x, (1, H // k.shape[1], 1, 1))"
LIST = """
import torch

class Cache:
    def __init__(self):
        self.k = self.v = torch.empty(2, 3, 0, 4)

    def append(self, k, v):
        self.k, self.v = torch.cat((self.k, k), 2), torch.cat((self.v, v), 2)
        return self.k, self.v
"""


def asked(tmp_path, text, name="mine"):
    """Its answers by behaviour, of a file with this text."""
    path = tmp_path / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    answers = conform.conform(conform.load(str(path)))
    return {x.behaviour: x for x in answers if x.answer != conform.ABSENT}


def of_cache(tmp_path, text):
    return asked(tmp_path, text)["cache-together"].detail


def refusal(tmp_path, capsys, text):
    """What the command says of an adapter that it cannot ask."""
    path = tmp_path / "broken.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["conform", str(path)])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def run_beside_a_test(tmp_path, text, *words, **locale):
    """`pytest --attnref mine.py`, in a folder with a test of its own."""
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    return run_pytest(tmp_path, "mine.py", *words, **locale)


# -------------------------------------------------------------------- caches


def test_a_cache_that_returns_more_than_its_window_is_noticed(tmp_path):
    assert of_cache(tmp_path, RING) == ""
    one_more = RING.replace("returned = 4", "returned = 5")
    kept = "append(4); append(1): row 0: 5 tokens returned, a window of 4 has 4"
    hint = "; if a mask hides the rest, write exact = False"
    assert of_cache(tmp_path, one_more) == kept + hint
    masked = one_more.replace("window = 4", "window, exact = 4, False")
    assert of_cache(tmp_path, masked) == ""
    # All that was ever appended.
    assert of_cache(tmp_path, LIST + "    window = 4\n") == kept + hint


def test_a_buffer_of_one_slot_too_many_is_found_before_its_chunks(tmp_path):
    """A chunk longer than the ring is another limit, and a harmless one."""
    buffer = RING.replace("returned = 4", "returned = 5").replace(
        "== 1", ">= 1"
    )
    assert "5 tokens returned" in of_cache(tmp_path, buffer)
    right = RING.replace("== 1", ">= 1")
    said = "append(5): row 0: token 0, which is new, is missing"
    assert of_cache(tmp_path, right) == said


def test_a_cache_may_take_one_token_at_a_time(tmp_path):
    refuse = "        if k.shape[2] > 1: raise ValueError('one')\n        n, "
    text = RING.replace("        n, ", refuse)
    assert of_cache(tmp_path, text) == (
        "append(2): append raises ValueError: one; if it takes one token at a "
        "time, write chunk = 1"
    )
    one = text.replace("window = 4", "window, chunk = 4, 1")
    assert of_cache(tmp_path, one) == ""
    more = one.replace("returned = 4", "returned = 5")
    assert of_cache(tmp_path, more).startswith("append(1); append(1); append(1")


@pytest.mark.parametrize(
    "operation, said",
    [
        (
            "crop(self, length): return False",
            "append(1); crop(0); append(1): 2 keys instead of 1: row 0 still "
            "has token 0, which crop(0) removed",
        ),
        (
            "reorder(self, rows): self.k = self.k[rows]",
            "append(1); reorder([1, 1]); append(1): row 0: the value of token "
            "0 is that of token 0, which reorder([1, 1]) removed",
        ),
    ],
)
def test_a_history_says_which_step_removed_what_is_still_there(
    tmp_path, operation, said
):
    assert of_cache(tmp_path, f"{LIST}\n    def {operation}\n") == said


def test_what_a_cache_returns_instead_is_said(tmp_path):
    for returned, said in {
        "None": "append returned None, not (k, v)",
        "k": "keys are (3, 1, 4), not (2, 3, 4, 4)",
        "(k, v, 1, 2, 3)[:1]": "append returned a tuple of 1, not (k, v)",
        "k[:, 0], v": "keys are (2, 1, 4), not (2, 3, 4, 4)",
        "k, v, [[0, 1, 2]]": "the tokens of 1 slots are (1, 3): return (S,) or "
        "(B, S)",
    }.items():
        text = LIST.replace("return self.k, self.v", f"return {returned}")
        assert of_cache(tmp_path, text) == f"append(1): {said}"


def test_findings_are_in_the_language_of_the_command(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(RING.replace("returned = 4", "returned = 5"))
    rows = printed_with_1("--json", "--lang", "zh", path)
    (words,) = {x["words"] for x in json.loads(rows) if x["is"] == "differs"}
    assert "返回了 5 个 token" in words and "tokens" not in words


# ------------------------------------------------------- adapters that fail

BROKEN = {
    "def attend(q, k, v, mask=None): return np.nothing(q)": "NameError: name",
    "def attend(q, k, v): pass": "attend returned None, not an array",
    "def attend(q, k, v): return q, None": "attend returned a tuple of 2, not",
    "def attend(q, k, v): raise SystemExit": "SystemExit",
    "raise SystemExit(3)": "SystemExit: 3",
    "class Cache:\n def __init__(self, config): 0\n append = 0": "'config'",
    "class Cache: pass": "Cache has no append",
    LIST + "    window = 4096": "Cache.window is 4096: write one below 32",
    f"{LIST}\ndef attend(q, k, v): return np.nothing(q)": "every call of att",
    f"{ENGINE}\nEXPECTED = {{'alignment': 'bottomright'}}": "EXPECTED: alignm"
    "ent has no answer bottomright; it has top-left, bottom-right, ref",
}


@pytest.mark.parametrize("text, said", BROKEN.items())
def test_an_adapter_that_cannot_be_asked_is_one_line(
    tmp_path, capsys, text, said
):
    assert said in refusal(tmp_path, capsys, text)


def test_an_engine_that_refuses_all_fails_in_pytest_too(tmp_path):
    text = "def attend(q, k, v, mask=None): return q.nothing(k)"
    code, said = run_beside_a_test(tmp_path, text)
    assert code == 2 and "mine: every call of attend fails: Attribu" in said


@pytest.mark.parametrize(
    "returned, word", [("q, k", "other"), ("q.nothing(k)", "refused")]
)
def test_gradients_that_always_fail_are_no_refusal(tmp_path, returned, word):
    text = f"{ENGINE}\ndef gradients(q, k, v, cotangent): return {returned}"
    answer = asked(tmp_path, text)["gradients"]
    assert answer.answer == word and conform.failure(answer, {})


def test_keyword_arguments_offer_no_option(tmp_path):
    text = ENGINE.replace("scale=None)", "scale=None, is_causal=0, **kw)")
    result = asked(tmp_path, text)
    assert "scale-passed" in result and "log-sum-exp" not in result
    said = main(["conform", str(tmp_path / "mine.py")])
    assert "arguments of attend that are not asked: is_causal, **kw\n" in said


@pytest.mark.parametrize(
    "returned, said",
    [
        ("q.swapaxes(1, 2)", "(3, 3, 4, 16), not (3, 4, 3, 16): swap axes 1"),
        ("q[..., :1]", "the output is (3, 4, 3, 1), not (3, 4, 3, 16)"),
        ("q + np.nan", "576 of 576 elements are NaN or infinite"),
        ("q * 0 + 9", "off by "),
    ],
)
def test_what_is_no_answer_says_why(tmp_path, returned, said):
    text = f"import numpy as np\ndef attend(q, k, v): return {returned}"
    answer = asked(tmp_path, text)["default-scale"]
    assert answer.answer == conform.OTHER and said in answer.detail


def test_one_array_instead_of_two_is_no_answer(tmp_path):
    result = asked(tmp_path, ENGINE.replace("causal", "log_sum_exp"))
    answer = result["log-sum-exp"]
    said = "attend(log_sum_exp=True) returned one array, not 2 arrays"
    assert (answer.answer, answer.detail) == ("other", said)
    assert result["default-scale"].answer == "width"


# --------------------------------------------------------------- conventions


def test_a_mask_that_is_read_as_bools_is_a_convention(tmp_path):
    """Then -inf may attend and 0 hides; or the other way round."""
    both = "np.where(mask, z, -np.inf) if mask.dtype == bool else z + mask"
    for hides, word in {
        "z, -np.inf": "may-attend",
        "-np.inf, z": "is-hidden",
    }.items():
        cast = f"np.where(mask, {hides})"
        result = asked(tmp_path, ENGINE.replace(both, cast))
        assert result["mask-of-numbers"].answer == f"nonzero-{word}"
        assert not [x for x in result.values() if conform.failure(x, {})]


def test_bfloat16_is_read_and_is_no_mistake(tmp_path):
    text = ENGINE.replace("import numpy as np", "import numpy as np, torch")
    text = text.replace("(q, k, v, mask", "(q, k, v, mask")
    text += """
exact = attend
def attend(q, k, v, mask=None, causal=False):
    if mask is not None:
        mask = mask.numpy()
    out = exact(q.numpy(), k.numpy(), v.numpy(), mask, causal)
    return torch.from_numpy(out).bfloat16()
"""
    result = asked(tmp_path, text)
    assert result["output-dtype"].answer == "bfloat16"
    assert not [x for x in result.values() if conform.failure(x, {})]


# ----------------------------------------------------- what the command says


def printed_with_1(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "attnref", "conform", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    return done.stdout


def test_the_exit_code_is_that_of_what_the_adapter_expects(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(ENGINE, encoding="utf-8")
    assert "40 asked" in main(["conform", str(path)])  # no exit: 0
    for text, failed in {
        f"{ENGINE}\nEXPECTED = {{'alignment': 'top-left'}}": "alignment",
        ENGINE.replace("S - T", "S - T + 1"): "alignment, causal",
        RING.replace("slots = returned = 4", "slots, returned = 4, 5"): "cache",
    }.items():
        path.write_text(text, encoding="utf-8")
        assert f" failed: {failed}" in printed_with_1(path)
    # A cache that is known to differ, and a refusal that is expected.
    path.write_text(f"{text}\nEXPECTED = dict.fromkeys(('cache-append', 'cache"
                    "-together'), 'differs')", encoding="utf-8")  # fmt: skip
    assert "2 asked" in main(["conform", str(path)])


def test_json_has_the_words(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(RING.replace("returned = 4", "returned = 5"))
    rows = {
        x["behaviour"]: x for x in json.loads(printed_with_1("--json", path))
    }
    assert "5 tokens returned" in rows["cache-append"]["words"]
    assert rows["alignment"]["words"] == "there is no function attend"


def test_of_two_engines_the_differences_are_printed(tmp_path):
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text(ENGINE.replace("causal", "is_causal"), encoding="utf-8")
    tiled = ENGINE.replace("np.repeat(x, H // k.shape[1], 1)", TILE)
    two.write_text(tiled, encoding="utf-8")
    text = main(["conform", str(one), str(two), "--lang", "en"])
    head, *answers, same, alone = text.splitlines()
    assert head.startswith("head-order: Which query heads share a key head")
    assert answers == ["    one  contiguous", "    two  interleaved"]
    assert same == "the same in all: 34"
    assert alone.startswith("not offered by all: alignment, causal, ")


def test_a_terminal_shows_what_is_asked(tmp_path, capsys, monkeypatch):
    path = tmp_path / "mine.py"
    path.write_text(LIST, encoding="utf-8")
    monkeypatch.setattr(command.sys.stderr, "isatty", lambda: True, False)
    main(["conform", str(path)])
    assert "mine: cache-append" in capsys.readouterr().err


# -------------------------------------------------------------------- pytest


def test_pytest_runs_the_other_tests_and_every_adapter(tmp_path):
    (tmp_path / "other.py").write_text(ENGINE, encoding="utf-8")
    code, said = run_beside_a_test(tmp_path, LIST, "--attnref", "other.py")
    assert (code, "43 passed" in said) == (0, True), said  # 2, 40 and its own
    code, said = run_beside_a_test(tmp_path, LIST, "test_own.py")
    assert (code, "3 passed" in said) == (0, True), said


def test_pytest_says_what_an_expected_behaviour_lacks(tmp_path):
    text = ENGINE + "\nEXPECTED = {'dropout': 'right'}"
    code, said = run_beside_a_test(tmp_path, text)
    lacks = "not-offered, where right is expected: attend has no argument drop"
    assert code == 1 and lacks in said


def test_pytest_says_it_in_the_language_of_the_locale(tmp_path):
    text = ENGINE + "\nEXPECTED = {'dropout': 'right', 'no-such': ''}"
    code, said = run_beside_a_test(tmp_path, text, locale="zh_CN.UTF-8")
    assert code == 2 and "这个行为" in said, said
    text = text.replace(", 'no-such': ''", "")
    code, said = run_beside_a_test(tmp_path, text, locale="zh_CN.UTF-8")
    assert code == 1 and "是 not-offered，而期望的是 right：" in said
