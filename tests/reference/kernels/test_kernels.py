"""Each kernel against float64, and with mistakes planted in it."""

import sys
from importlib import import_module

import pytest
import torch

from attnref.kernels.flash import attend
from attnref.kernels.launch import Kernel, span_for
from tests.kit import kernels, sampled
from tests.kit.core import Core
from tests.kit.kernels import (
    BF16,
    BOUND,
    CHECKS,
    DEVICE,
    F16,
    F32,
    check_mla_decode,
    draw,
    exact,
    near,
    rule,
)
from tests.kit.layers import B, H, K, R, S, T
from tests.kit.planted import PLANTED, module_of, wrong_text
from tests.kit.refusals import refusals

pytestmark = pytest.mark.skipif(
    bool(kernels.ABSENT), reason=kernels.ABSENT or "-"
)
CORE = Core(
    attend,
    lacks={
        "bias": "^this kernel has no bias; use attnref.flash",
        "compile": "",  # the interpreter is not compiled
        "dropout": "^this kernel has no dropout; use attnref.flash",
        "float64": "^flash takes float32, float16 or bfloat16",
        "masks": "^this kernel has causal masks and windows",
        "meta": "^flash runs on a GPU, and the inputs are on meta",
        "second derivatives": "differentiate twice",
        "torch.func": "override the setup_context staticmethod",
    },
    masks=("none", "lazy", "window"),
    blocks=None,
    float32=BOUND[F32],
    half_grouped=3,
    device=DEVICE,
    package="triton",
)
# The others are no cores: `decode` takes one query per sequence, and lengths or
# a block table where a core takes a mask; the cache of `mla_decode` has neither
# keys nor values, and its output no value matrix yet; `gated_delta` has no
# scores to mask.
EACH = [(x, check) for x, checks in CHECKS.items() for check in checks]
QUICK = {
    "flash causal-top-left",
    "flash group-not-summed",
    "flash sinks-gradient-positive",
    "decode offset-in-32-bits",
    "decode table-of-the-first",
    "mla_decode tf32",
    "merge plain-mean",
    "gated_delta inverse-by-doubling",
}


def shapes():
    """For the shape comments: no two sides of a block are equal."""
    if not kernels.INTERPRETED:
        return
    kernels.prepare()
    files = {x: import_module(f"attnref.kernels.{x}") for x in CHECKS}
    lengths = torch.tensor([S, 1, S - 3], dtype=torch.int32)
    q, k, v = draw(B, H, T, 40), draw(B, K, S, 40), draw(B, K, S, 70)
    files["flash"].flash(q, k, v, block=(16, 32))
    files["decode"].decode(q[:, :, :1], k, v, lengths, block=32)
    latents = draw(B, S, R + 20)
    options = {"scale": 1.0, "block": 128, "rows": 16}
    files["mla_decode"].mla_decode(
        draw(B, H, 1, R + 20), latents, lengths, R, **options
    )
    more = -draw(B, H, T).exp(), draw(B, H, T), draw(B, H, 40, 70)
    files["gated_delta"].gated_delta(
        *(q, q, draw(B, H, T, 70), *more), columns=32
    )


@pytest.fixture(autouse=True)
def _interpreter():
    kernels.prepare()


@pytest.mark.parametrize("dtype", sampled([F32, F16, BF16], [F32, BF16]))
@pytest.mark.parametrize(("stem", "check"), EACH)
def test_it_is_attention_in_float64(stem, check, dtype):
    check(import_module(f"attnref.kernels.{stem}"), dtype)


@pytest.mark.audit
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_mla_of_the_size_of_deepseek_v3(dtype):
    file = import_module("attnref.kernels.mla_decode")
    sizes = {"H": 128, "R": 512, "DR": 64, "block": 32, "rows": 64}
    check_mla_decode(file, dtype, **sizes)


@pytest.mark.parametrize("name", sampled(PLANTED, QUICK))
@pytest.mark.skipif(DEVICE == "cuda", reason="a fault may end the process")
def test_a_planted_mistake_is_noticed(name, tmp_path, monkeypatch):
    stem, _ = name.split()
    file = module_of(tmp_path / f"{stem}.py", wrong_text(name))
    users = [stem]
    if stem == "merge":
        decode = import_module("attnref.kernels.decode")
        monkeypatch.setattr(decode, "merge_parts", file.merge_parts)
        users, file = ["decode"], decode
    with pytest.raises(Exception, match=r" > |-inf|elem|NaN|invalid|changed"):
        for check in (check for user in users for check in CHECKS[user]):
            check(file, F32)


def test_a_layer_takes_it_for_a_prompt_a_chunk_and_a_window():
    from attnref import (
        Causal,
        GroupedQueryAttention,
        KVCache,
        RuleMask,
        Window,
        causal_mask,
        sdpa,
    )

    sizes = {"d_model": 32, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16}
    for causal in True, Window(3):
        layer = GroupedQueryAttention(**sizes, causal=causal).to(DEVICE)
        x, cache = draw(3, 9, 32, sharp=3), KVCache(9)
        with torch.no_grad():
            want = layer(x)
            layer.attend = attend
            torch.testing.assert_close(layer(x), want)
            got = [layer(part, cache=cache) for part in x.split(7, dim=1)]
        torch.testing.assert_close(torch.cat(got, dim=1), want)
    q, k, v = draw(3, 3, 2, 5, 16)
    torch.testing.assert_close(attend(q, k, v), attend(q, k, v, None))
    sinks = draw(2, seed=4)
    for mask in None, RuleMask(Causal(), 5, 5, 0, device=DEVICE):
        parts = {"scale": 0.5, "softcap": 2.0, "sinks": sinks}
        want = sdpa(q, k, v, mask, **parts)
        torch.testing.assert_close(attend(q, k, v, mask, **parts), want)
    for mask, options in (
        (causal_mask(5), {}),
        (RuleMask(Window(3, first=1), 5, 5, 0), {}),
        (RuleMask(Causal(), 5, 5, 1), {}),
        (RuleMask(Causal(), 5, 5, 0, mask=causal_mask(5)), {}),
        (None, {"dropout": 0.5}),
        (None, {"bias": torch.zeros(5, 5)}),
    ):
        with pytest.raises(ValueError, match=r"^this kernel has "):
            attend(q, k, v, mask, **options)


def cpu(*shape):
    return torch.zeros(shape, device=DEVICE)


@refusals(
    """
    >>> flash(*cpu(3, 1, 2, 5, 16).double())
    TypeError: flash takes float32, float16 or bfloat16, ... and not float64
    >>> flash(cpu(1, 3, 5, 16), *cpu(2, 1, 2, 5, 16))
    ValueError: q has H=3 heads, k has K=2: K must divide H
    >>> flash(*cpu(3, 1, 2, 5, 16), window=0)
    ValueError: window=0 must be at least 1
    >>> flash(*cpu(3, 1, 2, 5, 16), softcap=0.0)
    ValueError: softcap=0.0 must be above 0; without one, pass None
    >>> flash(*cpu(3, 1, 2, 5, 16), sinks=cpu(3))
    ValueError: sinks has shape (3,); it needs one logit per query head
    >>> flash(*torch.zeros(3, 1, 2, 5, 16, device="meta"))
    ValueError: flash runs on a GPU, and the inputs are on meta
    >>> flash(*cpu(2, 1, 2, 5, 16), torch.zeros(1, 2, 5, 16, device="meta"))
    ValueError: flash: the inputs are on
    >>> decode(*cpu(3, 1, 2, 5, 16), cpu(1).int())
    ValueError: decode takes one query per sequence: q (1, 2, 5, 16), k
    >>> decode(cpu(3, 2, 1, 16), *cpu(2, 3, 2, 5, 16), cpu(2).int())
    ValueError: decode takes one query per sequence: ...lengths (2,)
    >>> mla_decode(cpu(3, 2, 1, 24), cpu(3, 5, 24), cpu(3).int(), 24, scale=1.0)
    ValueError: mla_decode takes one query per sequence: ...R=24
    >>> mla_decode(cpu(3, 2, 1, 24), cpu(3, 5, 24), cpu(2).int(), 16, scale=1.0)
    ValueError: tuple(lengths.shape)=(2,) must be (3,)
    >>> gated_delta(*cpu(3, 1, 2, 5, 16), *cpu(2, 1, 2, 5), cpu(1, 2, 16, 8))
    ValueError: state has (1, 2, 16, 8), not (1, 2, 16, 16)
    >>> gated_delta(*heads(), *cpu(2, 1, 2, 5).half(), cpu(1, 2, 16, 16))
    TypeError: decay is torch.float16; pass float32
    >>> gated_delta(*heads().requires_grad_(), *cpu(2, 1, 2, 5), state())
    RuntimeError: gated_delta has no backward pass
    """
)
def test_what_does_not_fit_is_refused_by_name(call, error, message):
    names = {
        stem: getattr(import_module(f"attnref.kernels.{stem}"), stem)
        for stem in CHECKS
    }
    names |= {"cpu": cpu, "torch": torch, "heads": lambda: cpu(3, 1, 2, 5, 16)}
    names["state"] = lambda: cpu(1, 2, 16, 16)
    with pytest.raises(error, match=message):
        eval(call, names)


def test_of_nothing_there_is_nothing():
    """No row, no query, no key."""
    from attnref.kernels.flash import flash

    for B, T, S in (0, 3, 3), (2, 0, 3), (2, 3, 0):
        q = cpu(B, 2, T, 16).requires_grad_()
        k = cpu(B, 2, S, 16).requires_grad_()
        out, lse = flash(q, k, k)
        assert out.shape == (B, 2, T, 16) and not out.any()
        assert S or (lse == -torch.inf).all()
        out.sum().backward()
        assert not q.grad.any() and not k.grad.any()


def test_keys_are_split_among_programs_and_whole_if_there_are_many():
    assert span_for(131_072, rows=8, programs=512, block=64) == 2048
    assert span_for(131_072, rows=1024, programs=512, block=64) == 131_072
    assert span_for(100, rows=1, programs=512, block=64) == 64
    assert span_for(0, rows=8, programs=512, block=64) == 64


def test_without_triton_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    kernel = Kernel(lambda: None)
    with pytest.raises(ImportError, match=r'pip install "attnref\[kernels\]"'):
        _ = kernel.compiled


@pytest.mark.skipif(DEVICE == "cuda", reason="of the interpreter")
def test_the_interpreter_is_mended(tmp_path):
    """Without its mending each of these is wrong and silent."""
    text = """
from attnref.kernels.launch import Kernel, constexpr

@Kernel
def product(x, out, ROUND: constexpr):
    i = tl.arange(0, 16)
    a = tl.load(x + i[:, None] * 16 + i)
    if ROUND:
        tl.store(out + i[:, None] * 16 + i, tl.dot(a, a))
    else:
        c = tl.dot(a, a, input_precision="ieee")
        tl.store(out + i[:, None] * 16 + i, c)

@Kernel
def beyond(x, out):
    tl.store(out + 1, tl.load(x + 1))

@Kernel
def twice(x, out):
    tl.store(out, tl.load(x))

@Kernel
def stale(x, out):
    tl.store(out + tl.program_id(0), tl.load(out + 1))

@Kernel
def narrow(x, out):
    tl.store(out, tl.load(x) * tl.load(x))
"""
    file = module_of(tmp_path / "kernels.py", text)
    x = torch.randn(16, 16)
    out, want = torch.empty(16, 16), x.double() @ x.double()
    file.product[(1,)](x, out, ROUND=False)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    file.product[(1,)](x, out, ROUND=True)
    error = (out - want).abs().max()
    assert 1e-4 < error < 1e-2  # TF32 has ten bits
    half = x.bfloat16()
    file.product[(1,)](half, out, ROUND=False)
    want = half.double() @ half.double()
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    rounded = torch.empty(16, 16, dtype=torch.bfloat16)
    file.product[(1,)](half, rounded, ROUND=False)
    assert torch.equal(rounded, out.bfloat16())
    one = torch.zeros(1)
    for name, grid, inputs, why in (
        ("beyond", 1, (one, one.clone()), "outside every tensor"),
        ("twice", 2, (one, one.clone()), "stored by two programs"),
        ("stale", 2, (one, torch.zeros(2)), "of another program read"),
        ("narrow", 1, (one.bfloat16(), one.clone()), "on bfloat16"),
    ):
        with pytest.raises(Exception, match=f"FaultError.*{why}|{why}"):
            getattr(file, name)[(grid,)](*inputs)


def test_what_the_page_shows():
    # --8<-- [start:proof]
    import os

    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

    import torch

    from attnref import causal_mask, sdpa
    from attnref.kernels.flash import flash

    q = 4 * torch.randn(3, 4, 21, 16)  # (B, H, T, D)
    k, v = torch.randn(2, 3, 2, 37, 16)  # (B, K, S, D)
    out, lse = flash(q, k, v, block=(16, 16))
    torch.testing.assert_close(out, sdpa(q, k, v, causal_mask(21, 37)))
    # --8<-- [end:proof]
    want = exact(q.double(), k.double(), v.double(), rule(21, 37))[1]
    near(lse, want, BOUND[F32], "log-sum-exp")
