"""What is done to scores besides scale and mask: all cores give the same."""

import itertools
import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from attnref import (
    Alibi,
    Causal,
    RelativeBias,
    RuleMask,
    Window,
    attention_weights,
    causal_mask,
    sdpa,
    split_kv,
)
from attnref.core.few import few
from attnref.plain import alibi as plain
from tests.cores import ATTEND, CORES, each_core_with
from tests.kit.attention import leaves
from tests.kit.compare import relative_error
from tests.kit.refusals import refusals

B, T, S, H, D, DV = 3, 7, 11, 6, 5, 13


def pads():
    valid = torch.ones(B, S, dtype=torch.bool)
    valid[0, :3] = valid[1, :9] = False  # some queries see no key at all
    return valid[:, None, None]


def numbers_with_gaps():
    """Each row has positions of its own, as beside left pads."""
    return torch.arange(S) - torch.tensor([[0], [2], [5]])


MASKS = {
    "none": lambda: None,
    "causal": lambda: causal_mask(T, S),
    "per head": lambda: torch.rand(B, H, T, S) > 0.6,
    "one for all": lambda: torch.zeros(1, S, dtype=torch.bool),
    "window": lambda: RuleMask(Window(3), T, S, S - T),
    "pads": lambda: RuleMask(Causal(), T, S, S - T, None, pads()),
    "slots": lambda: RuleMask(
        Causal(), T, S, 9, torch.tensor([12, 13, 14, 15, 0, -1, 1, 2, 3, 9, 10])
    ),
    "positions": lambda: RuleMask(
        Window(4), T, S, S - T, token_positions=numbers_with_gaps()
    ),
}
PARTS = {
    "softcap": lambda: {"softcap": 3.0},
    "sinks": lambda: {"sinks": 3 * torch.randn(H).double()},
    "bias": lambda: {"bias": torch.randn(H, T, S).double()},
    "bias of keys": lambda: {"bias": torch.randn(B, 1, 1, S).double()},
    "alibi": lambda: {"bias": Alibi(H)},
    "relative": lambda: {"bias": RelativeBias(torch.randn(9, H).double(), 20)},
    "all": lambda: {
        "softcap": 3.0,
        "sinks": 3 * torch.randn(H).double(),
        "bias": RelativeBias(torch.randn(9, H).double(), 20),
    },
}


def results(core, parts, mask, kv_heads, dtype=torch.float64):
    """The output and the gradients of all that can have one."""
    torch.manual_seed(1)
    shapes = (H, T, D), (kv_heads, S, D), (kv_heads, S, DV)
    q, k, v = leaves(*(torch.randn(B, *x, dtype=dtype) for x in shapes))
    options, learned = dict(parts), []
    if "sinks" in options:
        (options["sinks"],) = leaves(options["sinks"])
        learned.append(options["sinks"])
    if isinstance(options.get("bias"), torch.Tensor):
        (options["bias"],) = leaves(options["bias"])
        learned.append(options["bias"])
    elif isinstance(options.get("bias"), RelativeBias):
        (table,) = leaves(options["bias"].table)
        options["bias"] = RelativeBias(table, 20)
        learned.append(table)
    if not core.offers("gradients"):
        with torch.no_grad():
            return [core.attend(q, k, v, mask, scale=1.3, **options)]
    out = core.attend(q, k, v, mask, scale=1.3, **options)
    torch.manual_seed(2)
    out.backward(torch.randn_like(out))
    return [out.detach(), *(x.grad for x in (q, k, v, *learned))]


@pytest.mark.filterwarnings("ignore")  # flex asks to be compiled
@pytest.mark.parametrize("part", PARTS)
@each_core_with("float64")
def test_each_part_in_each_core_is_that_of_sdpa(core, part):
    for make, kv_heads in itertools.product(MASKS.values(), (1, 3, 6)):
        torch.manual_seed(0)
        mask, options = make(), PARTS[part]()
        if not core.offers(*options):
            return  # refused: see test_cores.py
        got = results(core, options, mask, kv_heads)
        want = results(CORES["sdpa"], options, mask, kv_heads)
        for ours, theirs in zip(got, want, strict=core.offers("gradients")):
            assert relative_error(ours, theirs) <= 1e-12


@pytest.mark.parametrize("part", PARTS)
def test_float32_is_as_good_as_its_rounding(part):
    q, k, v = (torch.randn(B, n, m, D) for n, m in ((H, T), (3, S), (3, S)))
    options = PARTS[part]()
    want = sdpa(*(x.double() for x in (q, k, v)), causal_mask(T, S), **options)
    for core in (sdpa, ATTEND["flash"], split_kv, few):
        got = core(q, k, v, causal_mask(T, S), **options)
        assert got.dtype == torch.float32
        assert relative_error(got, want) <= 2e-6


def test_a_bias_is_a_float_mask_of_torch():
    q, k, v = (torch.randn(B, H, n, D).double() for n in (T, S, S))
    bias, seen = torch.randn(B, H, T, S).double(), MASKS["per head"]()
    mask = bias.masked_fill(~seen, -torch.inf)
    want = F.scaled_dot_product_attention(q, k, v, mask)
    assert relative_error(sdpa(q, k, v, seen, bias=bias), want) <= 1e-12


@pytest.mark.filterwarnings("ignore")  # it is not compiled here
def test_softcap_and_alibi_are_those_of_torchs_score_mod():
    q, k, v = (torch.randn(B, H, n, D).double() for n in (T, S, S))
    slopes = torch.tensor([2.0**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])

    def score_mod(score, b, h, i, j):
        score = score + slopes[h] * (j - (i + S - T))
        return 2 * torch.tanh(score / 2)

    def mask_mod(b, h, i, j):
        return j <= i + S - T

    seen = create_block_mask(mask_mod, None, None, T, S, device="cpu")
    want = flex_attention(q, k, v, score_mod=score_mod, block_mask=seen)
    got = sdpa(q, k, v, causal_mask(T, S), softcap=2.0, bias=Alibi(H))
    assert relative_error(got, want) <= 1e-12


def test_a_sink_takes_weight_and_gives_no_value():
    q, k, v = (torch.randn(B, H, n, D).double() for n in (T, S, S))
    sinks = torch.tensor([-torch.inf, 0, 1, 2, 3, 40]).double()
    seen = causal_mask(T, S) & (torch.arange(T) != 2)[:, None]
    weights = attention_weights(q, k, seen, sinks=sinks)
    plain = attention_weights(q, k, seen)
    assert relative_error(weights[:, 0], plain[:, 0]) <= 1e-12
    scores = (q @ k.mT / D**0.5).masked_fill(~seen, -torch.inf)
    # The softmax with 1 added below the line.
    by_one = scores[:, 1].exp() / (1 + scores[:, 1].exp().sum(-1, True))
    assert relative_error(weights[:, 1], by_one) <= 1e-12
    assert (weights[:, :, 2] == 0).all()  # this query sees no key
    for core in (sdpa, ATTEND["flash"], split_kv):
        copies = leaves(q, k, v, sinks)
        out = core(*copies[:3], seen, sinks=copies[3])
        assert relative_error(out, weights @ v) <= 1e-12
        out.sum().backward()
        assert all(x.grad.isfinite().all() for x in copies)


@pytest.mark.parametrize("n_heads", [1, 2, 6, 8, 12, 71])
def test_slopes_of_any_number_of_heads_are_those_of_the_paper(n_heads):
    def slopes(n):  # of the paper's code
        closest = 2 ** math.floor(math.log2(n))
        if closest < n:
            return slopes(closest) + slopes(2 * closest)[0::2][: n - closest]
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    h, place = torch.arange(n_heads), torch.tensor([7, 6])
    wanted = torch.tensor(slopes(n_heads))
    alone = torch.stack([-Alibi(n_heads)(each, *place) for each in h])
    # To the bit, of any number at once: a lane of a vector may round otherwise.
    for got in (-Alibi(n_heads)(h, *place), alone, plain.slopes(n_heads)):
        assert torch.equal(got, wanted)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
@pytest.mark.parametrize("core", ["sdpa", "flash"])
@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_compiled(core, part):
    torch.compiler.reset()
    core, options = ATTEND[core], PARTS[part]()
    q, k, v = (torch.randn(B, H, n, D).double() for n in (T, S, S))
    compiled = torch.compile(core, backend="eager", fullgraph=True)
    got = compiled(q, k, v, causal_mask(T, S), **options)
    want = core(q, k, v, causal_mask(T, S), **options)
    assert relative_error(got, want) <= 1e-12


@pytest.mark.parametrize(("name", "core"), ATTEND.items(), ids=ATTEND)
@refusals(
    """
    >>> core(q, k, v, softcap=0.0)
    ValueError: softcap=0.0 must be above 0
    >>> core(q, k, v, sinks=[1.0])
    TypeError: sinks is list; pass a tensor
    >>> core(q, k, v, sinks=torch.zeros(3))
    ValueError: sinks has shape (3,); it
    >>> core(q, k, v, sinks=torch.zeros(6).int())
    TypeError: sinks is torch.int32
    >>> core(q, k, v, bias=torch.ones(T, S).bool())
    TypeError: bias is torch.bool; it needs a floating dtype: a bool tensor is
    >>> core(q, k, v, bias=torch.ones(T, T))
    ValueError: bias has shape (7, 7), which does not broadcast to (B, H, T, S)
        = (3, 6, 7, 11)
    >>> core(q, k, v, bias=torch.ones(S))
    ValueError: bias has shape (11,), which
    >>> core(q, k, v, bias=Alibi(8))
    ValueError: bias has 8 heads, q has H=6
    >>> core(q, k, v, bias=1.0)
    TypeError: bias is float; pass a tensor or a Bias
    >>> core(q, k, v, bias=torch.ones(T, S, device="meta"))
    ValueError: bias is on meta, q on cpu
    """
)
def test_what_does_not_fit_is_refused(name, core, call, error, message):
    feature = re.search(r"(\w+)=", call)[1]
    if CORES[name].offers(feature):  # else refused: see test_cores.py
        q, k, v = (torch.randn(B, n, m, D) for n, m in ((H, T), (3, S), (3, S)))
        with pytest.raises(error, match=message):
            eval(call)
