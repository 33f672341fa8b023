"""What wrong attention breaks: tests to copy, each of one function or layer.

Each asserts something of what it is given and needs PyTorch alone.
"""

from collections.abc import Callable
from typing import Any

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
        torch.testing.assert_close(core(q, k, v, seen), wanted)


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


# --8<-- [start:rope_is_as_published]
def rope_is_as_published(
    rope: Callable[[Tensor, Tensor], Tensor],
    theta: float = 10000.0,
    interleaved: bool = False,
) -> None:
    """`rope(x, positions)` turns pair p of `x` `(B, H, T, D)` at position i
    by the angle i * theta ** (-2 p / D)."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    at = torch.tensor([0, 1, 7, 1001, 100_003])
    angles = at[:, None] * theta ** (-torch.arange(4).double() / 4)
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angles), angles)
    parts = (turned.real, turned.imag)
    wanted = torch.stack(parts, dim=-1 if interleaved else -2).flatten(-2)
    torch.testing.assert_close(rope(x, at), wanted)


# --8<-- [end:rope_is_as_published]


# --8<-- [start:order_is_seen]
def order_is_seen(layer: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Exchanging the first two tokens changes the last output."""
    order = [1, 0, *range(2, x.shape[1])]
    change = (layer(x[:, order]) - layer(x))[:, -1].abs().max()
    assert change > 1e-3, f"the last output moves by {change} only"


# --8<-- [end:order_is_seen]


# --8<-- [start:distances_alone_count]
def distances_alone_count(
    layer: Callable[[Tensor, Tensor], Tensor], x: Tensor
) -> None:
    """`layer(x, positions)` with RoPE: the same if all positions are shifted,
    another if they are spread, and each row by its own positions."""
    at = torch.arange(x.shape[1])
    here, spread = layer(x, at), layer(x, 3 * at)
    torch.testing.assert_close(layer(x, at + 1000), here)
    change = (spread - here).abs().max()
    assert change > 1e-3, f"the positions change it by {change} only"
    rows = torch.stack([at] + [3 * at] * (len(x) - 1))
    wanted = torch.cat((here[:1], spread[1:]))
    torch.testing.assert_close(layer(x, rows), wanted)


# --8<-- [end:distances_alone_count]


# --8<-- [start:positions_count_tokens]
def positions_count_tokens(positions: Callable[[Tensor], Tensor]) -> None:
    """`positions(valid)` counts the real tokens of each row from 0."""
    valid = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 0, 0, 1, 1]])
    valid = valid.bool()
    for row, real in zip(positions(valid), valid, strict=True):
        counted = torch.arange(int(real.sum()))
        assert torch.equal(row[real].cpu(), counted), f"{row} for {real}"
        assert row.min() >= 0, f"{row} is no index"


# --8<-- [end:positions_count_tokens]


# --8<-- [start:decoding_is_the_full_pass]
def decoding_is_the_full_pass(
    layer: Callable[..., Tensor], new_cache: Callable[[], object], x: Tensor
) -> None:
    """`layer(x, cache)` chunk by chunk gives what `layer(x)` gives at once."""
    T, whole = x.shape[1], layer(x)
    for cuts in (list(range(1, T)), [T - 2, T - 1], [2, T - 1]):
        cache, chunks = new_cache(), x.tensor_split(cuts, dim=1)
        got = torch.cat([layer(chunk, cache) for chunk in chunks], dim=1)
        error = (got - whole).abs().max()
        assert error < 1e-4, f"cut before tokens {cuts} it is off by {error}"


# --8<-- [end:decoding_is_the_full_pass]


# --8<-- [start:cache_is_a_list]
def cache_is_a_list(new_cache: Callable[[int], Any]) -> None:
    """A cache returns the tokens that it was given, in order, also after
    `crop`, `reorder` and `reset`."""
    torch.manual_seed(0)
    rows, k = torch.tensor([2, 0, 0]), torch.randn(3, 2, 5, 4)
    old, new = k[:, :, :4], k[:, :, 4:]
    for name, told, kept in (
        ("crop", [4], old),
        ("crop", [2], old[:, :, :2]),
        ("crop", [0], old[:, :, :0]),
        ("reorder", [rows], old[rows]),
        ("reset", [], old[:, :, :0]),
    ):
        cache = new_cache(6)
        cache.append(old, -old)
        getattr(cache, name)(*told)
        wanted = torch.cat((kept, new), dim=2)
        keys, values = cache.append(new, -new)
        assert torch.equal(keys, wanted), f"keys after {name}{tuple(told)}"
        assert torch.equal(values, -wanted), f"values after {name}"


# --8<-- [end:cache_is_a_list]


# --8<-- [start:full_cache_refuses]
def full_cache_refuses(new_cache: Callable[[int], Any]) -> None:
    """A cache with room for two tokens refuses a third."""
    cache, token = new_cache(2), torch.ones(3, 2, 1, 4)
    cache.append(token, token)
    cache.append(token, token)
    try:
        cache.append(token, token)
    except (ValueError, RuntimeError, IndexError):
        return
    raise AssertionError("a third token was taken, and there is no room")


# --8<-- [end:full_cache_refuses]


# --8<-- [start:cache_keeps_no_graph]
def cache_keeps_no_graph(new_cache: Callable[[int], Any]) -> None:
    """What a cache returns is cut off from the weights, or it refuses."""
    weight = torch.randn(5, 5, requires_grad=True)
    cache = new_cache(6)
    for _ in range(3):
        k = torch.randn(3, 2, 1, 5) @ weight
        try:
            keys, values = cache.append(k, k)
        except (ValueError, RuntimeError):
            return
        assert keys.grad_fn is None, "each step keeps the graphs of all before"
        assert values.grad_fn is None


# --8<-- [end:cache_keeps_no_graph]


# --8<-- [start:cache_is_small]
def cache_is_small(
    layer: Callable[..., Tensor],
    new_cache: Callable[[int], Any],
    x: Tensor,
    n_kv_heads: int,
    head_dim: int,
) -> None:
    """After `layer(x, cache)` the cache has the bytes of one key and one value
    per token and key/value head, in the dtype of `x`."""
    B, T, _ = x.shape
    cache = new_cache(T)
    layer(x, cache)
    wanted = 2 * B * T * n_kv_heads * head_dim * x.element_size()
    assert cache.nbytes == wanted, f"{cache.nbytes} bytes, not {wanted}"


# --8<-- [end:cache_is_small]


# --8<-- [start:generation_is_the_same]
def generation_is_the_same(generate: Callable[..., Tensor]) -> None:
    """`generate(prompt, valid, cached)` gives the same tokens with a cache,
    without one, and for each row of a left-padded batch alone."""
    torch.manual_seed(0)
    prompt = torch.randint(50, (3, 5))
    pads = [0, 2, 3]
    valid = torch.arange(5) >= torch.tensor(pads)[:, None]
    got = generate(prompt, valid, True)
    assert torch.equal(got, generate(prompt, valid, False)), "with a cache"
    for row, n in enumerate(pads):
        alone = slice(row, row + 1), slice(n, None)
        wanted = generate(prompt[alone], valid[alone], True)
        assert torch.equal(got[alone], wanted), f"row {row}, with {n} pads"


# --8<-- [end:generation_is_the_same]
