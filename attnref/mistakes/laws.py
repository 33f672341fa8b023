"""What wrong attention breaks: tests to copy, each of one function or layer.

Each asserts something of what it is given and needs PyTorch alone.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


# --8<-- [start:equals_torch]
def equals_torch(core: Callable[..., Tensor]) -> None:
    """`core(q, k, v, mask)` computes what PyTorch computes, grouped heads,
    a mask and keys of another width than the values included."""
    torch.manual_seed(0)
    q = 3 * torch.randn(3, 6, 5, 8, dtype=torch.float64)
    k = torch.randn(3, 2, 7, 8, dtype=torch.float64)
    v = torch.randn(3, 2, 7, 4, dtype=torch.float64)
    mask = torch.rand(3, 1, 5, 7) < 0.6
    mask[..., 0] = True
    for seen in (None, mask):
        wanted = F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, enable_gqa=True
        )
        found = core(q, k, v, seen)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


# --8<-- [end:equals_torch]


# --8<-- [start:future_is_hidden]
def future_is_hidden(layer: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Another last token changes no output before it."""
    other = x.clone()
    other[:, -1] += 1
    change = (layer(other) - layer(x)).abs().amax(dim=(0, 2))
    assert change[-1] > 0, "the last token does not see itself"
    assert change[:-1].max() == 0, f"outputs before it move: {change}"


# --8<-- [end:future_is_hidden]


# --8<-- [start:past_is_seen]
def past_is_seen(layer: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Another first token changes every output."""
    other = x.clone()
    other[:, 0] += 1
    change = (layer(other) - layer(x)).abs().amax(dim=(0, 2))
    assert change.min() > 0, f"outputs that do not move: {change}"


# --8<-- [end:past_is_seen]


# --8<-- [start:rows_are_apart]
def rows_are_apart(layer: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Each row of a batch gets what it gets alone."""
    alone = torch.cat([layer(row[None]) for row in x])
    torch.testing.assert_close(layer(x), alone)


# --8<-- [end:rows_are_apart]


# --8<-- [start:is_softmax]
def is_softmax(softmax: Callable[[Tensor], Tensor]) -> None:
    """Along the last axis: for large scores, for rows that lie far apart and
    may begin with -inf, and with a sum that half precision cannot hold."""
    inf = torch.inf
    x = torch.tensor(
        [
            [1.0, 2.0, 3.0, 4.0, 5.0],
            [1e4, 9999.0, -1e4, 0.0, 1.0],
            [-inf, -inf, -900.0, -901.0, -1e4],
        ]
    )
    torch.testing.assert_close(softmax(x), torch.softmax(x, -1))
    total = softmax(torch.zeros(70_000, dtype=torch.float16)).double().sum()
    assert 0.99 < total < 1.01, f"70,000 equal weights sum to {total}"


# --8<-- [end:is_softmax]


# --8<-- [start:empty_rows_are_zero]
def empty_rows_are_zero(core: Callable[..., Tensor]) -> None:
    """`core(q, k, v, mask)` gives zeros to a query that may see no key."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 3, 2, 5, 8)
    mask = torch.ones(5, 5, dtype=torch.bool).tril(-1)
    out = core(q, k, v, mask)
    assert (out[:, :, 0] == 0).all(), f"it gets {out[0, 0, 0].tolist()}"
    assert out.isfinite().all(), "the other queries are touched"


# --8<-- [end:empty_rows_are_zero]


# --8<-- [start:half_is_exact]
def half_is_exact(core: Callable[..., Tensor]) -> None:
    """In half precision, only inputs and output are rounded: large scores,
    whose differences are small, keep these differences."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 3, 2, 5, 64)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    for dtype in (torch.float16, torch.bfloat16):
        half = [x.to(dtype) for x in (10 + q, 10 + k, v)]
        exact = core(*(x.double() for x in half), mask)
        error = (core(*half, mask).double() - exact).abs().max()
        assert error < 0.02, f"{dtype}: {error:.2f} away from float64"


# --8<-- [end:half_is_exact]


# --8<-- [start:is_causal]
def is_causal(mask: Callable[[int, int], Tensor]) -> None:
    """`mask(T, S)` is True where a query may attend to a key. The `T` queries
    are the last of the `S` tokens."""
    for T, S in ((5, 5), (1, 5), (3, 5)):
        for i, seen in enumerate(mask(T, S).tolist()):
            wanted = [j <= i + S - T for j in range(S)]
            assert seen == wanted, f"query {i} of {T} sees {seen} of {S} keys"


# --8<-- [end:is_causal]


# --8<-- [start:is_window]
def is_window(mask: Callable[[int, int], Tensor]) -> None:
    """`mask(W, T)`: each of `T` tokens sees itself and `W - 1` before it."""
    for W in (1, 3, 9):
        for i, seen in enumerate(mask(W, 6).tolist()):
            wanted = [i - W < j <= i for j in range(6)]
            assert seen == wanted, f"{W=}: token {i} sees {seen}"


# --8<-- [end:is_window]


# --8<-- [start:pads_change_nothing]
def pads_change_nothing(attend: Callable[[Tensor, Tensor], Tensor]) -> None:
    """`attend(x, valid)`: real tokens get what they get without the pads.

    There are as many rows as tokens, so that axes that are mixed up fit.
    """
    torch.manual_seed(0)
    x, row = torch.randn(4, 4, 8), torch.arange(4)
    valid = row >= row[:, None]  # row n has n pads on the left
    out = attend(x, valid)
    for n in range(4):
        alone = attend(x[n : n + 1, n:], valid[n : n + 1, n:])
        assert (alone != 0).any(-1).all(), "a real token sees no key"
        error = (out[n, n:] - alone[0]).abs().max()
        assert error < 1e-5, f"{n} pads move the outputs by {error:.2f}"


# --8<-- [end:pads_change_nothing]


# --8<-- [start:documents_are_apart]
def documents_are_apart(attend: Callable[[Tensor, Tensor], Tensor]) -> None:
    """`attend(x, ids)`: packed documents get what each gets alone."""
    torch.manual_seed(0)
    x, ids = torch.randn(1, 7, 8), torch.tensor([0, 0, 0, 1, 1, 2, 2])
    packed = attend(x, ids)
    for n in range(3):
        alone = attend(x[:, ids == n], ids[ids == n])
        error = (packed[:, ids == n] - alone).abs().max()
        assert error < 1e-5, f"document {n} moves by {error:.2f}"


# --8<-- [end:documents_are_apart]
