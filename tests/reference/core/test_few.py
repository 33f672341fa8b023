import sys

import pytest
import torch

from attnref import causal_mask
from attnref.core.few import few
from tests.kit.attention import B, H, Made, S, qkv, torch_sdpa
from tests.kit.compare import relative_error
from tests.kit.core import Core

CORE = Core(
    few,
    lacks={"dropout": "unexpected keyword argument 'dropout'"},
    internal=True,
    autocast_backward=False,
)


def test_keys_and_values_of_a_cache_are_not_copied_at_all():
    q, k, v = qkv(torch.float32, T=1, S=1009, D=61, DV=67)
    with Made(q, k, v) as made:
        few(q, k, v, causal_mask(1, 1009))
    assert made.largest == 4 * B * H * 1009, "scores are the largest"


def test_a_cache_in_half_precision_is_widened_in_parts():
    q, k, v = qkv(torch.bfloat16, B=1, H=8, K=4, T=3, S=5003, D=64, DV=67)
    with Made(q, k, v) as made:
        few(q, k, v)
    assert made.largest <= 4 * 2**20 < 4 * k.numel()
    for x in (q, k, v):
        x.requires_grad_()
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    upstream = torch.randn(1, 8, 3, 67)
    mask = torch.rand(3, 5003) > 0.3
    theirs = torch_sdpa(*wide, mask)
    ours = few(q, k, v, mask)
    assert ours.dtype == torch.bfloat16
    assert relative_error(ours, theirs) <= 2**-8  # one rounding
    with torch.no_grad():  # all parts in the same memory
        assert torch.equal(few(q, k, v, mask), ours)
    theirs.backward(upstream.double())
    ours.backward(upstream.bfloat16())
    for x, y in zip((q, k, v), wide, strict=True):
        assert relative_error(x.grad, y.grad) <= 2**-7


@torch.no_grad()
def test_which_parts_are_widened(monkeypatch):
    widened = sys.modules["attnref.core.few"]._widened
    for shape, slices in (
        ((1, 4, 5003, 64), [slice(0, 4096), slice(4096, 8192)]),
        ((0, 4, 3, 64), [slice(0, 2**20)]),
        ((1, 1, 3, 2**21), [slice(0, 1), slice(1, 2), slice(2, 3)]),
    ):
        x = torch.zeros(shape, dtype=torch.bfloat16)
        pairs = [*widened(x, torch.float32)]
        assert [at for at, _ in pairs] == slices
        assert len({part.data_ptr() for _, part in pairs}) == 1
        assert sum(part.shape[2] for _, part in pairs) == shape[2]
    with torch.enable_grad():
        pairs = [*widened(x, torch.float32)]
    assert len({part.data_ptr() for _, part in pairs}) == 3
    ((_, same),) = widened(x, torch.bfloat16)
    assert same is x
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    ((at, whole),) = widened(x, torch.float32)
    assert at == slice(None) and whole.shape == x.shape
    assert whole.dtype == torch.float32


def test_a_compiled_decode_step_multiplies_in_the_same_order():
    q, k, v = qkv(torch.float32, T=1, S=1009, D=61)
    torch.compiler.reset()
    compiled = torch.compile(few, backend="eager", fullgraph=True)
    # Bit by bit: the other order rounds in other places.
    assert torch.equal(compiled(q, k, v), few(q, k, v))


@pytest.mark.parametrize("rows, first", [(1, S), (8, S), (9, 9)])
def test_for_few_rows_the_keys_are_read_as_they_lie(rows, first):
    scores = sys.modules["attnref.core.few"]._products
    q, k, _ = qkv(torch.float32, H=1, K=1, T=rows)
    shapes = []

    class Products(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.bmm.default:
                shapes.append(args[0].shape[1])
            return func(*args, **(kwargs or {}))

    with Products():
        out = scores(q, k)
    assert shapes == [first] and out.is_contiguous()
