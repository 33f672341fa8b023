"""The error of a layer in half precision, early in a text and late."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.kit import sampled

LENGTH, SPAN, FEW = 4000, 500, 32
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
Read = Callable[[nn.Module, Tensor], Tensor]


def in_half_precision(names: Iterable[str], in_test: str) -> Any:
    """Each of the names in both dtypes; in `make test`, those that `in_test`
    has, `"gqa bfloat16"`."""
    chosen = {line.strip() for line in in_test.strip().splitlines()}
    cases = [f"{name} {dtype}" for name, dtype in product(names, HALF)]
    assert chosen <= {*cases}
    return pytest.mark.parametrize("case", sampled(cases, chosen))


def parsed(case: str) -> tuple[str, torch.dtype]:
    name, dtype = case.rsplit(" ", 1)
    return name, HALF[dtype]


def slow(layer: nn.Module) -> nn.Module:
    """With heads that forget in 1 to 10,000 tokens and write little of each:
    the first channel of `texts` is read by what they write alone. The files of
    some models leave weights empty."""
    for path, weight in layer.named_parameters():
        name = ".".join(path.rsplit(".", 2)[-2:])
        if name.endswith("A_log"):
            rates = torch.linspace(-7, 3, weight.numel())
            weight.data = rates.view_as(weight).to(weight)
        elif name.endswith("dt_bias"):
            weight.data.fill_(-2)
        elif name == "igate_preact.bias":
            weight.data.fill_(-12)
        elif name == "fgate_preact.bias":
            weight.data = torch.linspace(-3, 9, weight.numel()).to(weight)
        elif name == "fgate_preact.weight":
            nn.init.normal_(weight, std=(9 * weight[0].numel()) ** -0.5)
            weight.data[:, 0] = 0
        elif weight.dim() > 1:
            nn.init.normal_(weight, std=(3 * weight[0].numel()) ** -0.5)
            weight.data[:, : weight.dim() == 2] = 0
        elif "norm" not in name:
            nn.init.normal_(weight, std=0.3)
        if name in ("in_proj_b.weight", "b_proj.weight"):
            weight.data[:, 0] = -1
    return layer


def texts(width: int, dtype: torch.dtype, length: int = LENGTH) -> Tensor:
    """`(1, T, E)`; the first channel is the same in all tokens."""
    x = torch.randn(1, length, width)
    x[..., 0] = 4
    return x.to(dtype)


def parts(x: Tensor, *, state: bool = False) -> tuple[Tensor, ...]:
    """How a text is read: a few tokens one by one, and many 500 at a time; if a
    state is stored, which may round it, a thousand of them one by one."""
    length = x.shape[1]
    single = length if length <= FEW else 1000 if state else 0
    single = min(single, length)
    spans, tokens = x.split((length - single, single), dim=1)
    return *spans.split(SPAN, dim=1), *tokens.split(1, dim=1)


def difference(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm())


def in_half(
    layer: nn.Module, dtype: torch.dtype
) -> tuple[nn.Module, nn.Module]:
    """The layer in half precision, and in float64 with the same weights."""
    rounded = layer.eval().to(dtype)
    return rounded, deepcopy(rounded).double()


@torch.no_grad()
def growth(
    layer: nn.Module,
    read: Read,
    dtype: torch.dtype,
    width: int,
    *,
    choosing: bool = False,
    tie: float = 0.0,
) -> float:
    """The largest error of any 500 tokens in a text of 4,000, as a multiple of
    what rounding costs a token: the error of texts of a single one, or of the
    first 32. Where a layer chooses keys, rounding also changes a choice among
    such that nearly tie: it is that of the first 500, and at least `tie`.
    """
    rounded, exact = in_half(layer, dtype)
    x = texts(width, dtype)
    tokens = x[:, :256].transpose(0, 1)  # texts of one token
    least = difference(read(rounded, tokens), read(exact, tokens.double()))
    ours, expected = read(rounded, x), read(exact, x.double())
    assert ours.dtype == dtype
    first = x[:, : SPAN if choosing else FEW]
    early = difference(read(rounded, first), read(exact, first.double()))
    early = max(early, tie)
    spans = zip(
        ours.split(SPAN, dim=1), expected.split(SPAN, dim=1), strict=True
    )
    return max(difference(*span) for span in spans) / max(least, early)
