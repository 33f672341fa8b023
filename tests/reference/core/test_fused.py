import itertools

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from attnref import (
    Causal,
    RuleMask,
    causal_mask,
    fused,
    fused_backend,
    sdpa,
)
from attnref.core.few import few
from attnref.core.fused import _measured_slow
from tests.kit.attention import (
    DV,
    H,
    K,
    Made,
    S,
    T,
    qkv,
)
from tests.kit.compare import relative_error
from tests.kit.core import Core

CORE = Core(
    fused,
    lacks={
        "second derivatives": "^derivative for aten::_scaled_dot_product_flash",
        "sinks": "^fused has no sinks; use flex, flash or sdpa",
        "softcap": "^fused has no softcap; use flex, flash or sdpa",
    },
    autocast_backward=False,  # few queries are those of `few`
    half_grouped=4,
)


def test_dropped_weights_are_those_of_sdpa():
    q, k, v = qkv()
    for mask in None, causal_mask(T, S), RuleMask(Causal(), T, S, S - T):
        dropped = []
        for core in sdpa, fused:
            torch.manual_seed(1)
            dropped.append(core(q, k, v, mask, dropout=0.4))
        assert relative_error(*dropped) <= 1e-12


def test_a_causal_prompt_needs_no_mask():
    """And the same mask as a tensor becomes floats, once for all heads."""
    n = 256
    for kv_heads in 8, 2:
        q, k, v = qkv(
            torch.float32, B=1, H=8, K=kv_heads, T=n, S=n, D=16, DV=16
        )
        lazy, largest = RuleMask(Causal(), n, n, 0), []
        dense = lazy.dense()
        for mask in lazy, dense:
            with Made(q, k, v, dense) as made:
                out = fused(q, k, v, mask)
            largest.append(made.largest)
            assert relative_error(out, sdpa(q, k, v, dense)) < 1e-5
        assert largest == [q.nbytes, 4 * n * n]


def test_a_causal_prompt_without_enable_gqa(monkeypatch):
    """PyTorch 2.4, which has no such argument."""
    kernel, causal = F.scaled_dot_product_attention, []

    def old(
        query, key, value, attn_mask, dropout_p=0.0, is_causal=False, scale=None
    ):
        given = query, key, value
        assert len({x.shape[1] for x in given}) == 1
        causal.append(is_causal)
        out = kernel(*given, attn_mask, dropout_p, is_causal, scale=scale)
        if attn_mask is not None:  # a query without keys gets NaN
            none = ~attn_mask.any(dim=-1, keepdim=True)
            out = out.masked_fill(none, torch.nan)
        return out

    monkeypatch.setattr("attnref.core.fused.HAS_GQA", False)
    monkeypatch.setattr(F, "scaled_dot_product_attention", old)
    for kv_heads in 6, 2:
        q, k, v = qkv(H=6, K=kv_heads, T=7, S=7)
        lazy = RuleMask(Causal(), 7, 7, 0)
        assert relative_error(fused(q, k, v, lazy), sdpa(q, k, v, lazy)) < 1e-12
    assert causal == [True, False]
    empty = causal_mask(7) & (torch.arange(7)[:, None] != 2)
    assert relative_error(fused(q, k, v, empty), sdpa(q, k, v, empty)) < 1e-12


def test_a_gpu_gets_the_heads_as_they_are_where_no_mask_is_passed(monkeypatch):
    """As its kernels divide the keys of a few sequences only then."""
    kernel, enabled = F.scaled_dot_product_attention, []

    def counted(**given):
        enabled.append(given.get("enable_gqa", False))
        return kernel(**given)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    monkeypatch.setattr("attnref.core.fused._is_ampere", lambda device: True)
    q, k, v = (x.bfloat16() for x in qkv(H=6, K=2, D=32, Dv=32, T=5))
    for mask in None, causal_mask(5, S):
        assert relative_error(fused(q, k, v, mask), sdpa(q, k, v, mask)) < 2e-2
    fused(q.float(), k.float(), v.float())  # no kernel for unlike heads
    assert enabled == [True, False, False]


@pytest.mark.parametrize("new", [1, 2, 4])
def test_a_cached_chunk_is_aligned_at_the_right(new):
    """Where PyTorch's `is_causal` would align it at the left."""
    q, k, v = qkv(T=new)
    mask = RuleMask(Causal(), new, S, S - new)
    want = sdpa(q, k, v, causal_mask(new, S))
    assert relative_error(fused(q, k, v, mask), want) <= 1e-12
    left = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    assert relative_error(left, want) > 0.1


class Kernels(TorchDispatchMode):
    """The kinds of attention kernels that run."""

    def __init__(self):
        super().__init__()
        self.ran = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kinds = {"flash": "_flash_", "math": "_safe_softmax"}
        self.ran |= {kind for kind, part in kinds.items() if part in str(func)}
        return func(*args, **(kwargs or {}))


def test_the_kernel_that_is_named_is_the_one_that_runs():
    lazy = RuleMask(Causal(), T, T, 0)
    for sizes, options, kind in (
        ({"K": H}, {"mask": lazy}, "flash"),
        ({}, {"mask": lazy}, "flash"),
        ({}, {"mask": causal_mask(T)}, "flash"),
        ({}, {"scale": 0.7}, "flash"),
        ({}, {"dropout": 0.5}, "math"),
        ({"D": 12, "DV": 8}, {"dropout": 0.5}, "math"),
    ):
        sizes = {"S": T, "D": DV, "DV": DV} | sizes
        for dtype in torch.float64, torch.float32, torch.bfloat16:
            for learns in False, True:
                q, k, v = (
                    x.requires_grad_(learns) for x in qkv(dtype, **sizes)
                )
                assert fused_backend(q, k, v, **options) == kind
                with Kernels() as kernels:
                    fused(q, k, v, **options)
                assert kernels.ran == {kind}


@pytest.mark.parametrize("slow", [F.scaled_dot_product_attention, few])
def test_which_way_is_faster_here_is_measured_once(slow, monkeypatch):
    """By a clock that goes on where the slow one runs, and in no mode of the
    caller: there are data, and no operation is counted."""
    module, clock, times = "attnref.core.fused", itertools.count(), []

    def timed(way):
        def run(*given, **options):
            times.append([next(clock) for _ in range(9 if way is slow else 1)])
            return way(*given, **options)

        return run

    monkeypatch.setattr(f"{module}.perf_counter", lambda: next(clock))
    monkeypatch.setattr(f"{module}.few", timed(few))
    kernel = timed(F.scaled_dot_product_attention)
    monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    _measured_slow.cache_clear()
    with FlopCounterMode(display=False) as counter, FakeTensorMode():
        got = [_measured_slow(torch.float32, 1, 1) for _ in "ab"]
    _measured_slow.cache_clear()
    assert got == 2 * [slow is not few]
    assert len(times) == 14
    assert counter.get_total_flops() == 0


def test_a_step_takes_what_is_faster_on_so_many_threads(monkeypatch):
    """PyTorch gives a thread blocks of 32 queries of a key head; half precision
    has to be widened in `few`."""
    single, half = torch.float32, torch.bfloat16
    monkeypatch.setattr("attnref.core.fused._measured_slow", lambda *_: True)
    for threads, B, K, H, dtype, kind in (
        (2, 1, 2, 10, single, "flash"),
        (3, 1, 2, 10, single, "few"),
        (6, 3, 2, 10, single, "flash"),
        (7, 3, 2, 10, single, "few"),
        (8, 1, 1, 10, single, "flash"),
        (9, 1, 1, 10, single, "few"),
        (3, 1, 1, 33, single, "few"),
        (99, 1, 1, 134, single, "flash"),
        (99, 1, 1, 32, half, "flash"),
        # Four queries of a key head, and in half precision one: as measured.
        (8, 4, 2, 8, single, "few"),
        (9, 5, 2, 8, single, "flash"),
        (8, 4, 2, 2, half, "few"),
        (9, 5, 2, 2, half, "flash"),
        (1, 4, 2, 4, half, "flash"),
        (3, 1, 1, 33, half, "few"),  # as in absorbed MLA
    ):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=threads: n)
        S = -(-(2**20) // (B * K * 401))
        q, k, v = qkv(dtype, B=B, T=1, S=S, K=K, H=H, D=401, DV=401)
        with Kernels() as kernels:
            got = fused(q, k, v)
        assert kernels.ran == {kind} - {"few"}, (threads, B, K, H, dtype)
        want = "math" if kind == "few" else kind
        assert fused_backend(q, k, v) == want
        assert relative_error(got, sdpa(q, k, v)) < 0.02
        shorter = k[:, :, 1:], v[:, :, 1:]  # one call costs less than ten
        assert fused_backend(q, *shorter) == "flash"
    q, k, v = qkv(single, B=1, T=1, S=1604, K=2, H=8, D=401, DV=401)
    monkeypatch.setattr("attnref.core.fused.few", None)  # has no dropout
    assert not torch.equal(*(fused(q, k, v, dropout=0.5) for _ in "ab"))
    assert fused(*(x.to("meta") for x in (q, k, v))).is_meta
    with pytest.raises(TypeError):
        fused(q, k, v)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    fused(q, k, v)  # no number of keys is compared in a graph


class Spy:
    """What `fused` gives PyTorch's kernel, and `fused_backend` its choice."""

    def __init__(self, monkeypatch):
        self.calls, self.chosen = [], 1
        kernel = F.scaled_dot_product_attention

        def recorded(**given):
            self.note(given)
            return kernel(**given)

        def choice(**given):
            self.note(given)
            return self.chosen

        def written_out(*given, **options):
            self.calls.append("few")
            return few(*given, **options)

        monkeypatch.setattr(F, "scaled_dot_product_attention", recorded)
        monkeypatch.setattr(torch.ops.aten, "_fused_sdp_choice", choice)
        monkeypatch.setattr("attnref.core.fused.few", written_out)

    def note(self, given):
        q, k, v, mask = (
            given[name] for name in ("query", "key", "value", "attn_mask")
        )
        kind = "shared" if v.data_ptr() == k.data_ptr() else "apart"
        if q.device.type == "meta":
            kind = "apart"
        widths = q.shape[3], k.shape[3], v.shape[3]
        seen = None if mask is None else tuple(mask.shape)
        self.calls.append((kind, widths, seen))


WIDE = ("apart", (12, 12, 12), None)


@pytest.mark.parametrize(
    ("sizes", "how", "want"),
    [
        # Two heads a group: the scores of `3 * 2 * T` rows, or a wider copy.
        ({"T": 2, "D": 12, "DV": 9}, "", "few"),
        ({"T": 2, "D": 9, "DV": 12}, "", "few"),
        ({"T": 3, "D": 12, "DV": 9}, "", WIDE),
        ({"T": 3, "D": 12, "DV": 11}, "", WIDE),
        ({"T": 3, "D": 9, "DV": 12}, "", WIDE),
        ({"T": 4, "D": 20, "DV": 9}, "", ("apart", (20, 20, 20), None)),
        ({"T": 1, "D": 12, "DV": 12}, "", WIDE),
        # What is not widened: dropout, and other devices.
        ({"T": 1, "D": 12, "DV": 9}, "drop", ("apart", (12, 12, 9), None)),
        ({"T": 1, "D": 12, "DV": 9}, "meta", ("apart", (12, 12, 9), None)),
        # A compiler sees any T above 1, and no memory.
        ({"T": 1, "D": 12, "DV": 9}, "compiled", "few"),
        ({"T": 2, "D": 12, "DV": 9}, "compiled", WIDE),
        ({"T": 3, "D": 12, "DV": 9}, "compiled part", WIDE),
        # Values that are part of the keys are these, where nothing learns.
        ({"T": 1, "D": 12, "DV": 9}, "part", ("shared", (12,) * 3, None)),
        ({"T": 3, "D": 12, "DV": 9}, "part k", WIDE),
        ({"T": 3, "D": 12, "DV": 9}, "part v", WIDE),
        ({"T": 3, "D": 12, "DV": 9}, "part k v no_grad",
         ("shared", (12,) * 3, None)),
    ],
)  # fmt: skip
def test_what_pytorch_is_given(sizes, how, want, monkeypatch):
    spy, how = Spy(monkeypatch), how.split()
    q, k, v = qkv(B=2, H=4, K=2, S=5, **sizes)
    if "part" in how:
        v = k.detach()[..., :9]
    for name, x in ("k", k), ("v", v):
        x.requires_grad_(name in how)
    if "meta" in how:
        q, k, v = (x.to("meta") for x in (q, k, v))
    if "compiled" in how:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    options = {"scale": 0.7, "dropout": 0.5 if "drop" in how else 0.0}
    with torch.set_grad_enabled("no_grad" not in how):
        got = fused(q, k, v, **options)
        named = fused_backend(q, k, v, **options)
    assert named == ("math" if want == "few" else "flash")
    calls = [want] if want == "few" else [want, want]
    assert spy.calls == calls
    if not options["dropout"] and "meta" not in how:
        assert relative_error(got, sdpa(q, k, v, scale=0.7)) <= 1e-12


def test_only_a_mask_of_the_queries_is_stacked(monkeypatch):
    spy = Spy(monkeypatch)

    def given(heads, mask, T=5, device="cpu"):
        sizes = {"B": 3, "H": 6, "K": heads, "T": T, "S": 7, "D": 8, "DV": 8}
        q, k, v = (x.to(device) for x in qkv(**sizes))
        fused(q, k, v, torch.rand(mask, device=device) > 0.4)
        return spy.calls.pop()[2]

    for heads, mask, shape in (
        (2, (5, 7), (1, 1, 15, 7)),
        (2, (3, 1, 1, 7), (3, 1, 1, 7)),  # pads: as small as it was
        (2, (3, 1, 5, 7), (3, 1, 15, 7)),
        (2, (1, 6, 1, 7), (1, 2, 15, 7)),
        (6, (1, 6, 1, 7), (1, 6, 1, 7)),
    ):
        assert given(heads, mask) == shape
    # With many queries it is shared by the heads, where PyTorch can.
    assert given(2, (64, 7), 64) == (1, 1, 192, 7)
    assert given(2, (65, 7), 65) == (1, 1, 65, 7)
    assert given(2, (1, 6, 65, 7), 65) == (1, 2, 195, 7)
    assert given(2, (65, 7), 65, "meta") == (1, 1, 195, 7)
    with monkeypatch.context() as patch:  # of any number above 1, in a graph
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert given(2, (2, 7), 2) == (1, 1, 2, 7)
    monkeypatch.setattr("attnref.core.fused.HAS_GQA", False)
    assert given(2, (65, 7), 65) == (1, 1, 195, 7)


def test_a_kernel_has_the_name_that_pytorch_gives_it(monkeypatch):
    spy, (q, k, v) = Spy(monkeypatch), qkv(DV=5)
    for spy.chosen, name in enumerate(("math", "flash", "efficient", "cudnn")):
        assert fused_backend(q, k, v) == name
    spy.chosen = 9
    assert fused_backend(q, k, v) == "number 9 of SDPBackend"
    with pytest.raises(ValueError, match="they must agree"):
        fused_backend(q, k, v[:, :1])


def test_keys_and_values_are_never_copied():
    q, k, v = qkv(torch.float32, T=1, S=1009, D=61, DV=61)
    with Made(q, k, v) as made:
        fused(q, k, v)
    assert made.largest < k.nbytes / 4
    with Made(q, k, v) as made:
        F.scaled_dot_product_attention(
            q, *(x.repeat_interleave(H // K, dim=1) for x in (k, v))
        )
    assert made.largest == H // K * k.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_of_another_width_take_a_fused_kernel(dtype):
    """On a CPU, PyTorch alone has all scores in memory, or copies of keys."""
    n, bound = 401, 1e-5 if dtype == torch.float32 else 0.02
    q, k, v = qkv(dtype, B=1, H=4, K=4, T=n, S=n, D=67, DV=41)
    part, lazy = k[..., :41], RuleMask(Causal(), n, n, 0)  # as in absorbed MLA
    chunk = RuleMask(Causal(), 50, n, n - 50)
    widened = 0 if dtype == torch.float32 else 4 * k.numel()  # in `few`
    for new, keys, values, mask, most in (
        (n, k, v, lazy, k.nbytes),
        (n, k, part, lazy, k.nbytes),
        (50, k, v, chunk, 4 * k.numel()),
        (50, k[:, :1], part[:, :1], chunk, 4 * 200 * n),
        (1, k[:, :1], part[:, :1], None, 4 * q.itemsize * 67),
        (3, k, v, None, max(widened, 4 * 12 * n)),
        (1, k, v, None, max(widened, 4 * 4 * n)),
    ):
        given = q[:, :, :new], keys, values
        want = sdpa(*(x.double() for x in given), mask)
        with torch.no_grad(), Made(*given) as made:
            got = fused(*given, mask)
        assert relative_error(got, want) < bound
        assert made.largest <= most, new


def test_values_that_are_part_of_the_keys_have_their_own_gradient():
    q, k, v = qkv(T=41, DV=3)
    for of_keys in (lambda k: k[..., :3], lambda k: k.detach()[..., :3]):
        grads = []
        for core in sdpa, fused:
            keys = k.clone().requires_grad_()
            core(q, keys, of_keys(keys)).square().sum().backward()
            grads.append(keys.grad)
        assert relative_error(*grads) <= 1e-12
