import re
import shutil
import sys
import sysconfig
import warnings
from pathlib import Path

import pytest
import torch
from torch.nn.attention import flex_attention

from attnref import Causal, Documents, Prefix, RuleMask, Window, flex, sdpa
from attnref.core.flex import _Kernel, _kernel
from tests.kit.attention import B, Blocks, H, S, T, qkv
from tests.kit.compare import relative_error
from tests.kit.core import Core

# Else PyTorch traces even the form that is not compiled, for each shape anew.
flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
CORE = Core(
    flex,
    ({"compiled": False},),
    lacks={
        "dropout": "flex has no dropout; use fused, flash or sdpa",
        "gradients": "flex has no gradients on a CPU; call it under",
        "meta": "FlexAttention is only supported on",
    },
    blocks=None,
    copies_keys=None,
    half=2,
    half_grouped=2.5,
)


def test_a_window_over_documents():
    # --8<-- [start:flex]
    import warnings

    from attnref import Documents, RuleMask, Window

    ids = torch.tensor([[0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]])
    mask = RuleMask(Window(3) & Documents(ids), T=7, S=7, past=0)
    q = torch.randn(2, 6, 7, 5)
    k = torch.randn(2, 3, 7, 5)
    v = torch.randn(2, 3, 7, 13)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch asks to compile it
        out = flex(q, k, v, mask, compiled=False)
    torch.testing.assert_close(out, sdpa(q, k, v, mask))
    # --8<-- [end:flex]


def test_a_step_of_decoding_takes_its_row_of_tiles():
    # --8<-- [start:flex_step]
    import warnings

    from torch.nn.attention.flex_attention import (
        create_block_mask,
        flex_attention,
    )

    from attnref import sdpa
    from attnref.plain.masks import window_mask

    def window(b, h, i, j):
        return (j <= i) & (j > i - 100)

    S = 512  # room in the cache
    whole = create_block_mask(window, None, None, S, S, device="cpu")
    k, v = torch.randn(2, 1, 2, S, 16)  # what is not written is hidden
    for length in (torch.tensor(5), torch.tensor(300)):
        row = whole[:, :, length // 128]  # the tiles of 128 queries
        row.mask_mod = lambda b, h, i, j, n=length: window(b, h, i + n, j)
        row.seq_lengths = 1, S
        q = torch.randn(1, 2, 1, 16)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch asks to compile it
            out = flex_attention(q, k, v, block_mask=row)
        seen = window_mask(1, int(length) + 1, 100)
        keys, values = (x[:, :, : length + 1] for x in (k, v))
        torch.testing.assert_close(out, sdpa(q, keys, values, seen))
    # --8<-- [end:flex_step]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT",
    reason="PyTorch compiles flex_attention for AVX2 and more",
)
@pytest.mark.skipif(
    not shutil.which("g++")
    or not Path(sysconfig.get_path("include"), "Python.h").exists()
    or " " in torch.__file__,
    reason="inductor needs g++, Python.h, and a path of torch without spaces",
)
@torch.no_grad()
def test_compiled_it_is_sdpa():
    torch.compiler.reset()
    ids = torch.tensor([[0] * 4 + [1] * 7, [0] * 8 + [1] * 3])
    mask = RuleMask(Window(5) & Documents(ids), T, S, S - T)
    q, k, v = qkv(torch.float32)
    want = sdpa(q, k, v, mask)
    assert relative_error(flex(q, k, v, mask), want) <= 2e-6


def test_without_a_kernel_for_float64_on_a_cpu_it_says_so():
    message = "^flex is not compiled for float64 on a CPU"
    with pytest.raises(TypeError, match=message):
        flex(*qkv())


def test_in_a_graph_of_its_caller_it_compiles_nothing(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.delattr(torch, "compile")
    module = torch.nn.attention.flex_attention
    plain = module.flex_attention

    def attention(*given, **options):
        assert all(x.is_contiguous() for x in given)
        return plain(*given, **options)

    monkeypatch.setattr(module, "flex_attention", attention)
    q, k, v = qkv(torch.float32)
    k = k.transpose(1, 2).contiguous().transpose(1, 2)  # as projections leave
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch asks to compile it
        for mask in None, RuleMask(Window(3), T, S, S - T):
            want = sdpa(q, k, v, mask, scale=0.7)
            got = flex(q, k, v, mask, scale=0.7)
            assert relative_error(got, want) <= 2e-6


def test_a_block_mask_is_kept_where_numbers_say_all_of_it(monkeypatch):
    kernel, made = _Kernel(compiled=False), []
    create = kernel.create
    kernel.create = lambda *given: made.append(given) or create(*given)
    monkeypatch.setattr("attnref.core.flex._kernel", lambda compiled: kernel)
    ids, pads = torch.arange(T) // 4, torch.rand(B, 1, 1, T) > 0.4
    numbers = torch.arange(T)

    def new(rule, T=T, S=T, past=0, **named):
        before = len(made)
        q, k, v = qkv(torch.float32, T=T, S=S)
        mask = RuleMask(rule, T, S, past, **named)
        assert relative_error(flex(q, k, v, mask), sdpa(q, k, v, mask)) < 2e-6
        return len(made) - before

    for rule in Causal(), Window(3), Window(4), Causal() & Prefix(2), Blocks():
        assert (new(rule), new(rule)) == (1, 0)  # each of its own
    for sizes, count in (
        ((T, T, 0), 0),
        ((T - 1, T, 0), 1),
        ((T, T - 1, 0), 1),
        ((T, T, 2), 1),
    ):
        assert new(Window(3), *sizes) == count
    # Tensors may have changed since.
    for rule, named in (
        (Documents(ids), {}),
        (Window(3), {"mask": pads}),
        (Window(3), {"positions": numbers}),
        (Window(3), {"token_positions": numbers[None]}),
    ):
        assert (new(rule, **named), new(rule, **named)) == (1, 1)
    kernel.cached = dict.fromkeys(range(64))
    assert (new(Window(3)), len(kernel.cached)) == (1, 1)


def test_a_mask_is_as_large_as_its_rows_and_heads_differ(monkeypatch):
    kernel, calls = _Kernel(compiled=False), []
    kernel.attention = lambda q, k, v, **how: calls.append(how) or q
    rows = torch.arange(B * S).reshape(B, S) // 4
    documents = RuleMask(Causal() & Documents(rows), T, S, S - T)
    monkeypatch.setattr("attnref.core.flex._kernel", lambda compiled: kernel)
    for mask, kv_heads, sizes in (
        (None, 3, None),
        (torch.rand(T, S) > 0.4, 3, (1, 1)),
        (torch.rand(B, 1, 1, S) > 0.4, 3, (B, 1)),
        (torch.rand(1, H, T, S) > 0.4, H, (1, H)),
        (RuleMask(Window(3), T, S, S - T), H, (1, 1)),
        (documents, 1, (B, 1)),
    ):
        flex(*qkv(torch.float32, K=kv_heads), mask)
        how = calls.pop()
        tiles = how["block_mask"]
        assert sizes == (tiles if mask is None else tuple(tiles.shape[:2]))
        assert how["enable_gqa"] is (kv_heads != H)


@pytest.mark.parametrize("mended", [True, False])
def test_a_length_that_cannot_vary_is_compiled_by_itself(monkeypatch, mended):
    """PyTorch 2.13 on a CPU writes C++ with an undeclared name for it."""
    compilations = []

    def compiler(function, dynamic=None):
        def compiled(*given, **options):
            compilations.append(dynamic)
            if mended and dynamic is False:
                return sdpa(*given, scale=options["scale"])
            error = OSError("no name\nof g++")
            raise torch._dynamo.exc.BackendCompilerFailed(compiler, error, None)

        return compiled

    monkeypatch.setattr(torch, "compile", compiler)
    _kernel.cache_clear()
    q, k, v = (x.float() for x in qkv())
    for _ in range(2):
        if mended:
            want = sdpa(q, k, v, scale=0.7)
            assert torch.equal(flex(q, k, v, scale=0.7), want)
        else:
            text = "cannot compile flex_attention here: no name; it needs a C"
            with pytest.raises(RuntimeError, match=re.escape(text)):
                flex(q, k, v)
    assert compilations == [None, False, False]  # one failure is remembered
    _kernel.cache_clear()


def test_a_pytorch_without_flex_attention_is_refused(monkeypatch):
    module = "torch.nn.attention.flex_attention"
    monkeypatch.setitem(sys.modules, module, None)
    _kernel.cache_clear()
    with pytest.raises(RuntimeError, match=r"flex needs 2\.5 or later"):
        flex(*qkv(), compiled=False)
