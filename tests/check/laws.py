"""What wrong attention breaks: tests to copy, each of one function or layer.

Each asserts something of what it is given and needs PyTorch alone.
"""

# --8<-- [start:imports]
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# --8<-- [end:imports]


# --8<-- [start:equals_torch]
def equals_torch(core: Callable[..., Tensor]) -> None:
    """`core(q, k, v, mask)` computes what PyTorch computes, grouped heads,
    a mask and keys of another width than the values included."""
    torch.manual_seed(0)
    q = 3 * torch.randn(3, 6, 5, 8, dtype=torch.float64)
    k = torch.randn(3, 2, 7, 8, dtype=torch.float64)
    v = torch.randn(3, 2, 7, 4, dtype=torch.float64)
    mask = torch.rand(3, 6, 5, 7) < 0.6
    mask[..., 0] = True
    given = [x.clone() for x in (q, k, v, mask)]
    for seen in (None, mask):
        wanted = F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, enable_gqa=True
        )
        found = core(q, k, v, seen)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert all(map(torch.equal, given, (q, k, v, mask))), "inputs are modified"


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
    """Along the last axis: for large scores, and for rows that lie far apart
    and may begin with -inf."""
    inf = torch.inf
    x = torch.tensor(
        [
            [1.0, 2.0, 3.0, 4.0, 5.0],
            [1e4, 9999.0, -1e4, 0.0, 1.0],
            [-inf, -inf, -900.0, -901.0, -1e4],
        ]
    )
    torch.testing.assert_close(softmax(x), torch.softmax(x, -1))


# --8<-- [end:is_softmax]


# --8<-- [start:long_rows_sum_to_one]
def long_rows_sum_to_one(softmax: Callable[[Tensor], Tensor]) -> None:
    """In half precision too, which holds no sum above 65504."""
    total = softmax(torch.zeros(70_000, dtype=torch.float16)).double().sum()
    assert 0.99 < total < 1.01, f"70,000 equal weights sum to {total}"


# --8<-- [end:long_rows_sum_to_one]


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


# --8<-- [start:layer_equals_torch]
def layer_equals_torch(
    layer: Any,
    x: Tensor,
    n_heads: int,
    n_kv_heads: int,
    context: Tensor | None = None,
) -> None:
    """A layer is its four projections around PyTorch's attention: causal
    without a context, and with one over all of it."""
    B, T, _ = x.shape
    given = (x,) if context is None else (x, context)
    k, v = layer.k_proj(given[-1]), layer.v_proj(given[-1])
    q, k, v = (
        part.view(B, -1, n, part.shape[2] // n).transpose(1, 2)
        for part, n in (
            (layer.q_proj(x), n_heads),
            (k, n_kv_heads),
            (v, n_kv_heads),
        )
    )
    heads = F.scaled_dot_product_attention(
        q, k, v, is_causal=context is None, enable_gqa=True
    )
    wanted = layer.o_proj(heads.transpose(1, 2).reshape(B, T, -1))
    torch.testing.assert_close(layer(*given), wanted)


# --8<-- [end:layer_equals_torch]


# --8<-- [start:every_weight_is_used]
def every_weight_is_used(
    run: Callable[[], Tensor], weights: Iterable[Tensor]
) -> None:
    """Each element of each weight has an effect on what `run()` returns."""
    weights = [weight.requires_grad_() for weight in weights]
    slopes = torch.autograd.grad(
        run().square().sum(), weights, materialize_grads=True
    )
    for weight, slope in zip(weights, slopes, strict=True):
        unused = int((slope == 0).sum())
        assert not unused, (
            f"{unused} elements of a weight {tuple(weight.shape)} are not used"
        )


# --8<-- [end:every_weight_is_used]


# --8<-- [start:evaluation_repeats]
def evaluation_repeats(layer: Any, x: Tensor) -> None:
    """In evaluation, the same input gives the same output."""
    layer.eval()
    assert torch.equal(layer(x), layer(x)), "two calls differ after eval()"


# --8<-- [end:evaluation_repeats]


# --8<-- [start:pads_are_unseen]
def pads_are_unseen(
    layer: Callable[[Tensor, Tensor], Tensor], x: Tensor
) -> None:
    """`layer(x, valid)`, True = a real token: what stands in the place of a
    pad changes no output but its own."""
    valid = torch.ones(x.shape[:2], dtype=torch.bool)
    valid[:, 0] = False
    other = x.clone()
    other[:, 0] += 1
    change = (layer(other, valid) - layer(x, valid)).abs().amax(dim=(0, 2))
    assert change[1:].max() == 0, f"outputs of real tokens move: {change}"


# --8<-- [end:pads_are_unseen]


# --8<-- [start:context_is_seen]
def context_is_seen(
    layer: Callable[[Tensor, Tensor], Tensor], x: Tensor, context: Tensor
) -> None:
    """Every query of a cross-attention sees every token of the context."""
    before = layer(x, context)
    for j in range(context.shape[1]):
        other = context.clone()
        other[:, j] += 1
        change = (layer(x, other) - before).abs().amax(dim=(0, 2))
        assert change.min() > 0, f"token {j} is not seen by all: {change}"


# --8<-- [end:context_is_seen]


# --8<-- [start:new_context_is_read]
@torch.no_grad()
def new_context_is_read(
    layer: Callable[..., Tensor], x: Tensor, context: Tensor, cache: Any
) -> None:
    """A cache that holds one context does not answer for another."""
    wanted = layer(x, -context)
    layer(x, context, cache=cache)
    try:
        got = layer(x, -context, cache=cache)
    except ValueError:
        return  # refused, which is right too
    torch.testing.assert_close(got, wanted)


# --8<-- [end:new_context_is_read]


# --8<-- [start:equal_heads_pool]
def equal_heads_pool(
    convert: Callable[[Any], Any], mha: Any, x: Tensor, n_kv_heads: int
) -> None:
    """MHA in which the heads of each group are equal is that GQA exactly."""
    with torch.no_grad():
        for weight in (mha.k_proj.weight, mha.v_proj.weight):
            heads = weight.view(mha.n_heads, -1, weight.shape[1])
            groups = heads.unflatten(0, (n_kv_heads, -1))
            groups.copy_(groups[:, :1].expand_as(groups).clone())
    torch.testing.assert_close(convert(mha)(x), mha(x))


# --8<-- [end:equal_heads_pool]


# --8<-- [start:equals_multihead_attention]
def equals_multihead_attention(load: Callable[[Any], Any]) -> None:
    """`load(theirs)` makes a layer with the weights of an
    `nn.MultiheadAttention`, which computes the same."""
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(24, 6, batch_first=True)
    x = torch.randn(2, 5, 24)
    wanted, _ = theirs(x, x, x, need_weights=False)
    torch.testing.assert_close(load(theirs)(x), wanted)


# --8<-- [end:equals_multihead_attention]


# --8<-- [start:layouts_agree]
def layouts_agree(
    reorder: Callable[[Tensor, int], Tensor],
    rotate: Callable[[Tensor, str], Tensor],
) -> None:
    """Rows reordered from the interleaved RoPE layout to halves give the same
    scores: `reorder(weight, head_dim)`, then `rotate(x, layout)`."""
    torch.manual_seed(0)
    x, weights = torch.randn(5, 16), torch.randn(2, 16, 16)

    def scores(weights: Iterable[Tensor], layout: str) -> Tensor:
        heads = ((x @ w.mT).view(1, 5, 2, 8).transpose(1, 2) for w in weights)
        q, k = (rotate(each, layout) for each in heads)
        return q @ k.mT

    halves = scores((reorder(weight, 8) for weight in weights), "half")
    torch.testing.assert_close(halves, scores(weights, "interleaved"))


# --8<-- [end:layouts_agree]


# --8<-- [start:float8_is_near]
def float8_is_near(
    dequantise: Callable[[Tensor, Tensor, int], Tensor],
) -> None:
    """Weights stored in float8, with a scale for each block of 2 by 2, are
    what they were to within the 3 bits of their mantissa."""
    torch.manual_seed(0)
    weight = 0.02 * torch.randn(4, 6)
    largest = weight.view(2, 2, 3, 2).abs().amax(dim=(1, 3))
    scales = largest / torch.finfo(torch.float8_e4m3fn).max
    each = scales.repeat_interleave(2, 0).repeat_interleave(2, 1)
    narrow = (weight / each).to(torch.float8_e4m3fn)
    error = (dequantise(narrow, scales, 2) - weight).abs() / weight.abs()
    assert error.max() < 0.1, f"off by a factor of {error.max():.3g}"


# --8<-- [end:float8_is_near]


# --8<-- [start:residual_passes]
def residual_passes(block: Any, x: Tensor) -> None:
    """A block whose attention and MLP give zeros gives what it gets."""
    with torch.no_grad():
        block.self_attn.o_proj.weight.zero_()
        block.mlp.down_proj.weight.zero_()
    torch.testing.assert_close(block(x), x)


# --8<-- [end:residual_passes]


# --8<-- [start:refusal_changes_nothing]
def refusal_changes_nothing(
    call: Callable[[], object], state: Callable[[], object]
) -> None:
    """A call that is refused leaves what `state()` returns as it was."""
    before = state()
    try:
        call()
    except ValueError:
        assert state() == before, f"{before} is {state()} after a refusal"
    else:
        raise AssertionError("it was not refused")


# --8<-- [end:refusal_changes_nothing]


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
    narrow = rope(x.bfloat16(), at).double()
    torch.testing.assert_close(narrow, wanted, rtol=0, atol=0.05)


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


# --8<-- [start:caches_are_apart]
def caches_are_apart(new_cache: Callable[[int], Any]) -> None:
    """Two caches that are filled in turns return their own tokens."""
    first, second = new_cache(3), new_cache(3)
    for n in range(3):
        token = torch.full((3, 2, 1, 4), float(n))
        keys, _ = first.append(token, token)
        second.append(-token, -token)
        stored = keys[0, 0, :, 0].tolist()
        assert stored == list(range(n + 1)), f"{stored} after {n + 1} tokens"


# --8<-- [end:caches_are_apart]


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


# --8<-- [start:far_scores]
def far_scores(core: Callable[..., Tensor]) -> None:
    """`core(q, k, v, mask)` is a softmax also where scores are far from zero,
    far from each other, or hidden."""
    low = [-70000.0, -70001, -70002, -70000, -70001, -70002]
    falling, rising = [1000, 999, 998, 2, 1, 0], [0, 1, 2, 998, 999, 1000]
    scores = torch.tensor([low, low, falling, rising], dtype=torch.float64)
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[1, :3] = mask[3, 3:] = False  # of the last row, the largest ones
    unit = torch.eye(6, dtype=torch.float64)[None, None]
    # With unit vectors as keys, a query is its scores; as values, they give
    # the weights.
    found = core(scores[None, None] * 6**0.5, unit, unit, mask)[0, 0]
    wanted = scores.masked_fill(~mask, -torch.inf).softmax(dim=1)
    torch.testing.assert_close(found, wanted)


# --8<-- [end:far_scores]


# --8<-- [start:gradients_equal_torch]
def gradients_equal_torch(core: Callable[..., Tensor]) -> None:
    """`core(q, k, v, mask)` has the gradients of PyTorch's own attention."""
    torch.manual_seed(0)
    q, k, v, above = torch.randn(4, 2, 3, 7, 4, dtype=torch.float64)
    for mask in (None, torch.ones(7, 7).tril() > 0):
        found = []
        for attend in (core, F.scaled_dot_product_attention):
            qkv = [x.clone().requires_grad_() for x in (3 * q, k, v)]
            found.append(torch.autograd.grad(attend(*qkv, mask), qkv, above))
        for name, ours, theirs in zip("qkv", *found, strict=True):
            assert torch.allclose(ours, theirs), f"wrong gradient of {name}"


# --8<-- [end:gradients_equal_torch]


# --8<-- [start:gradients_are_slopes]
def gradients_are_slopes(core: Callable[..., Tensor]) -> None:
    """The gradients of `core(q, k, v)` are how much its output changes. With
    dropout, `core` sets the seed itself."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 3, 2, dtype=torch.float64)
    given = [x.requires_grad_() for x in (3 * q, k, v)]
    assert torch.autograd.gradcheck(core, given)


# --8<-- [end:gradients_are_slopes]


# --8<-- [start:parts_make_the_whole]
def parts_make_the_whole(
    attend: Callable[..., tuple[Tensor, Tensor]],
    merge: Callable[..., tuple[Tensor, Tensor]],
) -> None:
    """`attend(q, k, v, mask)` gives the output and the log-sum-exp of the
    scores. Of parts of the keys, merged one by one, they are those of all."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 6, 4, dtype=torch.float64)
    seen = torch.ones(6, 6, dtype=torch.bool).tril()
    seen[3] = False  # this query sees no key at all
    scores = (3 * q @ k.mT / 2).masked_fill(~seen, -torch.inf)
    wanted = scores.softmax(-1).nan_to_num(0) @ v, scores.logsumexp(-1)
    cuts = slice(4, 6), slice(2, 4), slice(0, 2)
    parts = [attend(3 * q, k[:, :, i], v[:, :, i], seen[:, i]) for i in cuts]
    found = parts[0]
    for part in parts[1:]:
        found = merge([found[0], part[0]], [found[1], part[1]])
    torch.testing.assert_close(found, wanted)


# --8<-- [end:parts_make_the_whole]


# --8<-- [start:sinks_take_weight]
def sinks_take_weight(core: Callable[..., Tensor]) -> None:
    """`core(q, k, v, sinks, mask)` has one sink per query head: one more key,
    whose score is the sink and whose value is 0, for PyTorch."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 3, 4, 6, 16, dtype=torch.float64)
    sinks = torch.tensor([-2.0, 0.0, 1.0, 3.0]).double()
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    scores = torch.zeros(4, 6, 7).double()
    scores[..., :6] = scores[..., :6].masked_fill(~mask, -torch.inf)
    scores[..., 6] = sinks[:, None]
    wanted = F.scaled_dot_product_attention(
        q, F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)), scores
    )
    torch.testing.assert_close(core(q, k, v, sinks, mask), wanted)


# --8<-- [end:sinks_take_weight]


# --8<-- [start:first_tokens_are_kept]
def first_tokens_are_kept(mask: Callable[..., Tensor]) -> None:
    """`mask(T, S, first, window)` shows the first tokens and the last ones."""
    seen = mask(2, 9, 2, 3).int().tolist()
    assert seen == [[1, 1, 0, 0, 0, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0, 1, 1, 1]]
    assert mask(2, 2, 2, 3).int().tolist() == [[1, 0], [1, 1]]  # not before


# --8<-- [end:first_tokens_are_kept]


# --8<-- [start:is_alibi]
def is_alibi(alibi: Callable[[int, int, int], Tensor]) -> None:
    """`alibi(n_heads, T, S)` is ALiBi's bias for the last T of S tokens."""
    powers = [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]
    for n_heads in (8, 12):
        bias = alibi(n_heads, 2, 5)
        for h, power in enumerate(powers[:n_heads]):
            far = -torch.tensor([[3.0, 2, 1, 0], [4.0, 3, 2, 1]])
            torch.testing.assert_close(bias[h, :, :4], far / 2**power)


# --8<-- [end:is_alibi]


# --8<-- [start:scores_are_biased_and_capped]
def scores_are_biased_and_capped(core: Callable[..., Tensor]) -> None:
    """`core(q, k, v, bias, softcap, mask)` does both after the scale and
    before the mask: PyTorch gets the scores as a mask of queries that are 0."""
    torch.manual_seed(0)
    q, k, v = 3 * torch.randn(3, 3, 4, 6, 16, dtype=torch.float64)
    bias, scores = torch.randn(4, 6, 6).double(), q @ k.mT / 4
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    for added, cap in ((bias, None), (None, 2.0), (bias, 2.0)):
        changed = scores if added is None else scores + added
        if cap is not None:
            changed = cap * torch.tanh(changed / cap)
        given = changed.masked_fill(~mask, -torch.inf)
        wanted = F.scaled_dot_product_attention(0 * q, k, v, given)
        found = core(q, k, v, added, cap, mask)
        torch.testing.assert_close(found, wanted)


# --8<-- [end:scores_are_biased_and_capped]


# --8<-- [start:chunks_are_apart]
def chunks_are_apart(mask: Callable[[int, int], Tensor]) -> None:
    """`mask(T, size)` shows each token the past of its own chunk alone."""
    block = torch.ones(3, 3, dtype=torch.bool).tril()
    assert mask(6, 3).equal(torch.block_diag(block, block).bool())


# --8<-- [end:chunks_are_apart]


# --8<-- [start:ring_is_a_window]
def ring_is_a_window(
    new_cache: Callable[[int], Any], sees: Callable[..., Tensor]
) -> None:
    """A ring of 4 slots gives what attention under a window of 4 gives:
    `append(k, v)` returns keys, values and positions, for `sees(i, j, 4)`."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 3, 2, 11, 8, dtype=torch.float64)
    at = torch.arange(11)
    far = at[:, None] - at
    near = (far >= 0) & (far < 4)
    wanted = F.scaled_dot_product_attention(q, k, v, near)
    for cuts in (list(range(1, 11)), [6, 7, 8, 9, 10], [3, 5]):
        cache, got = new_cache(4), []
        for i in at.tensor_split(cuts):
            keys, values, j = cache.append(k[:, :, i], v[:, :, i])
            new, seen = q[:, :, i], sees(i, j, 4)
            out = F.scaled_dot_product_attention(new, keys, values, seen)
            got.append(out)
        torch.testing.assert_close(torch.cat(got, dim=2), wanted)


# --8<-- [end:ring_is_a_window]


# --8<-- [start:rejected_tokens_leave_nothing]
def rejected_tokens_leave_nothing(
    layer: Callable[..., Tensor], new_cache: Callable[[], Any], x: Tensor
) -> None:
    """After `cache.crop`, decoding is as if the tokens had never been there,
    or `crop` refuses with a ValueError."""
    whole, T = layer(x), x.shape[1]
    for back in (1, 2, 3):
        cache = new_cache()
        for t in range(T):
            layer(x[:, t : t + 1] + (t >= T - back), cache)
        try:
            cache.crop(T - back)
        except ValueError:
            continue
        got = layer(x[:, T - back :], cache)
        torch.testing.assert_close(got, whole[:, T - back :])


# --8<-- [end:rejected_tokens_leave_nothing]


# --8<-- [start:parts_are_in_order]
def parts_are_in_order(heads: Callable[..., Tensor]) -> None:
    """QK-norm, RoPE, scale, softcap, mask, sinks, values, gate: PyTorch gets
    the finished scores as a mask, and a sink as one more key."""
    torch.manual_seed(0)
    q, k, v, gate = 2 * torch.randn(4, 3, 4, 6, 8, dtype=torch.float64)
    q_weight, k_weight = 3 * torch.rand(2, 8, dtype=torch.float64)
    sinks = torch.tensor([-2.0, 0.0, 1.0, 3.0]).double()
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    angles = torch.arange(6.0).double()[:, None] / torch.arange(1.0, 5.0)
    turns = torch.polar(torch.ones_like(angles), angles)

    def turn(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turns).flatten(-2)

    new_q = turn(F.rms_norm(q, (8,), q_weight, 1e-6))
    new_k = turn(F.rms_norm(k, (8,), k_weight, 1e-6))
    scores = 2 * torch.tanh(new_q @ new_k.mT / 8**0.5 / 2)
    scores = scores.masked_fill(~mask, -torch.inf)
    scores = torch.cat((scores, sinks.view(4, 1, 1).expand(3, 4, 6, 1)), -1)
    k0, v0 = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    wanted = F.scaled_dot_product_attention(0 * q, k0, v0, scores)
    found = heads(q, k, v, gate, q_weight, k_weight, turn, 2.0, sinks, mask)
    torch.testing.assert_close(found, wanted * gate.sigmoid())


# --8<-- [end:parts_are_in_order]


# --8<-- [start:norms_are_as_published]
def norms_are_as_published(norm: Callable[..., Tensor]) -> None:
    """`norm(x, w, over, plus)` is an RMS norm of heads (B, H, T, D), over each
    `"head"` or the whole `"width"`, times `w` or, with `plus`, `1 + w`."""
    torch.manual_seed(0)
    scale = torch.tensor([1.0, 2.0, 5.0])[:, None, None]
    x, w = torch.randn(3, 3, 4, 8) * scale, torch.randn(24)
    flat = x.transpose(1, 2).flatten(2)
    wide = F.rms_norm(flat, (24,), w, 1e-6).unflatten(-1, (3, 8))
    found = norm(x, w, "width", False)
    torch.testing.assert_close(found, wide.transpose(1, 2))
    one = F.rms_norm(x, (8,), 1 + w[:8], 1e-6)
    torch.testing.assert_close(norm(x, w[:8], "head", True), one)


# --8<-- [end:norms_are_as_published]


# --8<-- [start:gates_are_of_their_heads]
def gates_are_of_their_heads(layer: Any, x: Tensor) -> None:
    """`q_proj` has the rows of each query head and then those of its gate:
    with gates of 0, only those of head 0 excepted, the output is half."""
    H, rows = layer.n_heads, layer.q_proj.weight.detach()
    heads = rows.view(H, 2, -1, rows.shape[-1])
    heads[:, 1] = 0
    layer.o_proj.weight.detach().copy_(torch.eye(len(layer.o_proj.weight)))
    before = layer(x).unflatten(-1, (H, -1))
    heads[0, 1] = 1
    after = layer(x).unflatten(-1, (H, -1))
    gate = 2 * x.sum(-1).sigmoid()
    wanted = before[:, :, 0] * gate[..., None]
    torch.testing.assert_close(after[:, :, 0], wanted)
    torch.testing.assert_close(after[:, :, 1:], before[:, :, 1:])


# --8<-- [end:gates_are_of_their_heads]


# --8<-- [start:frequencies_are_as_published]
def frequencies_are_as_published(
    slowed: Callable[[str, Tensor, float], Tensor],
    attention_factor: Callable[[], float],
) -> None:
    """`slowed(kind, frequencies, theta)` of a factor of 8, for 4096 tokens at
    first, each kind in the words of its authors."""
    theta, D, length = 5e5, 64, 4096
    pair = torch.arange(D // 2, dtype=torch.float64)
    f = theta ** (-2 * pair / D)
    larger = theta * 8 ** (D / (D - 2))
    wanted = {"linear": f / 8, "ntk": larger ** (-2 * pair / D)}
    wave = 2 * math.pi / f
    blend = (length / wave - 1) / (4 - 1)
    smooth = (1 - blend) * f / 8 + blend * f
    slow = torch.where(wave > length, f / 8, smooth)
    wanted["llama3"] = torch.where(wave < length / 4, f, slow)
    low, high = (
        D * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (32, 1)
    )
    low, high = math.floor(low), math.ceil(high)
    ramp = ((pair - low) / (high - low)).clamp(0, 1)
    wanted["yarn"] = f / 8 * ramp + f * (1 - ramp)
    wanted["step"] = torch.where(pair < high, f, f / 8)  # both betas are 1
    for kind, frequencies in wanted.items():
        torch.testing.assert_close(slowed(kind, f, theta), frequencies)
    assert math.isclose(attention_factor(), 0.1 * math.log(8) + 1)


# --8<-- [end:frequencies_are_as_published]


# --8<-- [start:longer_text_is_read_again]
def longer_text_is_read_again(
    layer: Callable[..., Tensor], new_cache: Callable[[], object], x: Tensor
) -> None:
    """`layer(x, cache)` of one token gives what `layer(x)` gives for it at the
    end of the text so far, or is refused: frequencies may depend on the length
    of a text."""
    cache = new_cache()
    for T in range(1, x.shape[1] + 1):
        try:
            got = layer(x[:, T - 1 : T], cache)
        except ValueError:
            return
        error = (got - layer(x[:, :T])[:, -1:]).abs().max()
        assert error < 1e-4, f"token {T} is off by {error}"


# --8<-- [end:longer_text_is_read_again]


# --8<-- [start:is_mla]
def is_mla(
    layer: Callable[[Tensor], Tensor],
    weights: dict[str, Tensor],
    x: Tensor,
    sizes: tuple[int, int, int, int, int],
) -> None:
    """`layer(x)` is MLA as DeepSeek-V2 defines it, of a checkpoint's weights.

    `x` is `(T, E)`; `sizes` are the heads, the rank of the latent, and the
    widths of a head: without position, with RoPE, and of the values.
    """
    H, R, Dn, Dr, Dv = sizes
    t = torch.arange(len(x), dtype=x.dtype)[:, None]
    angles = t * 10000.0 ** (-torch.arange(0, Dr, 2, dtype=x.dtype) / Dr)

    def rope(y: Tensor) -> Tensor:
        a, b = y[:, 0::2], y[:, 1::2]  # a pair: two neighbours
        cos, sin = angles.cos(), angles.sin()
        turned = a * cos - b * sin, b * cos + a * sin
        return torch.stack(turned, dim=2).flatten(1)

    joint = x @ weights["kv_a_proj_with_mqa.weight"].mT
    c, k_rope = joint[:, :R], rope(joint[:, R:])
    c = c * (c.square().mean(1, keepdim=True) + 1e-6).rsqrt()
    c = c * weights["kv_a_layernorm.weight"]
    queries = (x @ weights["q_proj.weight"].mT).view(len(x), H, -1)
    ups = (c @ weights["kv_b_proj.weight"].mT).view(len(x), H, -1)
    heads = []
    for q, up in zip(queries.unbind(1), ups.unbind(1), strict=True):
        scores = q[:, :Dn] @ up[:, :Dn].mT + rope(q[:, Dn:]) @ k_rope.mT
        scores = scores * (Dn + Dr) ** -0.5
        future = torch.ones_like(scores).triu(1).bool()
        p = scores.masked_fill(future, -torch.inf).softmax(dim=1)
        heads.append(p @ up[:, Dn:])
    wanted = torch.cat(heads, dim=1) @ weights["o_proj.weight"].mT
    torch.testing.assert_close(layer(x[None])[0], wanted)


# --8<-- [end:is_mla]


# --8<-- [start:module_is_called]
def module_is_called(
    layer: Callable[[Tensor], Tensor], module: torch.nn.Module, x: Tensor
) -> None:
    """What wraps a part of a layer takes effect: here, a hook that doubles."""

    def doubled(module: torch.nn.Module, args: Any, out: Any) -> Any:
        return 2 * out

    before, handle = layer(x), module.register_forward_hook(doubled)
    after = layer(x)
    handle.remove()
    assert not torch.allclose(after, before), "its forward is not called"


# --8<-- [end:module_is_called]


# --8<-- [start:latent_is_cached]
def latent_is_cached(
    stored: Callable[[Tensor], list[Tensor]], x: Tensor, width: int
) -> None:
    """`stored(x)` are the tensors that a cache holds after `x` `(B, T, E)`:
    for each token, a latent and a RoPE key, together of `width` elements."""
    held = sum(tensor.numel() for tensor in stored(x))
    tokens = x.shape[0] * x.shape[1]
    assert held == tokens * width, f"{held / tokens} elements per token"


# --8<-- [end:latent_is_cached]


# --8<-- [start:yarn_scales_scores]
def yarn_scales_scores(
    scale: float, width: int, factor: float, mscale_all_dim: float
) -> None:
    """The `scale` of scores of that `width`, of a model stretched by YaRN."""
    mscale = 0.1 * mscale_all_dim * math.log(factor) + 1
    wanted = mscale**2 / math.sqrt(width)
    assert math.isclose(scale, wanted), f"{scale} instead of {wanted}"


# --8<-- [end:yarn_scales_scores]


# --8<-- [start:head_width_is_free]
def head_width_is_free(make: Callable[[int], Any], n_heads: int) -> None:
    """`make(head_dim)` gives a layer of such heads, whatever its width is."""
    for head_dim in (4, 16):
        rows = make(head_dim).q_proj.weight.shape[0]
        assert rows == n_heads * head_dim, (
            f"q_proj has {rows} rows for {n_heads} heads of {head_dim}"
        )


# --8<-- [end:head_width_is_free]
