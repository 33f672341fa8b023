"""What attention has to be: tests to copy, each of one function or layer.

A page shows them, `attnref check` asks them of solutions, and our own tests of
layers and of the plain forms. Each needs only PyTorch.
"""

# --8<-- [start:imports]
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Pairs = Iterator[tuple[Any, ...]]


class Property:
    """What yields pairs, observed and expected: a call asserts that they are
    close, or that they differ by no more than a third number."""

    def __init__(self, pairs: Callable[..., Pairs]) -> None:
        self.pairs, self.__name__ = pairs, pairs.__name__
        self.__doc__ = pairs.__doc__

    def __call__(self, *arguments: Any) -> None:
        for observed, expected, *limit in self.pairs(*arguments):
            options = {"rtol": 0.0, "atol": limit[0]} if limit else {}
            torch.testing.assert_close(
                observed, expected, **options, msg=self.message
            )

    def message(self, difference: str) -> str:
        return f"{self.__name__}: {self.__doc__}\n{difference}"


# --8<-- [end:imports]


# --8<-- [start:equals_torch]
@Property
def equals_torch(core: Callable[..., Tensor]) -> Pairs:
    """`core(q, k, v, mask)` computes what PyTorch computes, grouped heads,
    a mask and keys of another width than the values included."""
    torch.manual_seed(0)
    q = 3 * torch.randn(3, 6, 5, 8, dtype=torch.float64)
    k = torch.randn(3, 2, 7, 8, dtype=torch.float64)
    v = torch.randn(3, 2, 7, 4, dtype=torch.float64)
    mask = torch.rand(3, 6, 5, 7) < 0.6
    mask[..., 0] = True
    copies = [x.clone() for x in (q, k, v, mask)]
    for attn_mask in (None, mask):
        expected = F.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, enable_gqa=True
        )
        yield core(q, k, v, attn_mask), expected, 1e-12
    yield [q, k, v, mask], copies, 0  # the inputs are not modified


# --8<-- [end:equals_torch]


# --8<-- [start:future_is_hidden]
@Property
def future_is_hidden(layer: Callable[[Tensor], Tensor], x: Tensor) -> Pairs:
    """Another last token changes its own output and none before it."""
    new_x = x.clone()
    new_x[..., -1, :] += 1
    out, new_out = layer(x), layer(new_x)
    yield new_out[..., :-1, :], out[..., :-1, :], 0
    moves = (new_out != out)[..., -1, :].any()
    yield moves, torch.tensor(True)


# --8<-- [end:future_is_hidden]


# --8<-- [start:past_is_seen]
@Property
def past_is_seen(layer: Callable[[Tensor], Tensor], x: Tensor) -> Pairs:
    """Another first token changes every output."""
    new_x = x.clone()
    new_x[:, 0] += 1
    change = (layer(new_x) - layer(x)).abs().amax(dim=(0, 2))
    yield change > 0, torch.ones_like(change) > 0


# --8<-- [end:past_is_seen]


# --8<-- [start:rows_are_apart]
@Property
def rows_are_apart(layer: Callable[..., Tensor], *x: Tensor) -> Pairs:
    """Each row of a batch gets what it gets by itself."""
    rows = range(len(x[0]))
    outs = [layer(*(y[b : b + 1] for y in x)) for b in rows]
    yield layer(*x), torch.cat(outs)


# --8<-- [end:rows_are_apart]


# --8<-- [start:heads_are_apart]
@Property
def heads_are_apart(core: Callable[..., Tensor], *heads: Tensor) -> Pairs:
    """`core(q, k, v)`, each `(B, H, T, D)`: another first head changes its own
    output and that of no other head."""
    new_heads = [x.clone() for x in heads]
    for x in new_heads:
        x[:, 0] += 1
    out, new_out = core(*heads), core(*new_heads)
    yield new_out[:, 1:], out[:, 1:], 0
    moves = (new_out != out)[:, 0].any()
    yield moves, torch.tensor(True)


# --8<-- [end:heads_are_apart]


# --8<-- [start:is_softmax]
@Property
def is_softmax(softmax: Callable[[Tensor], Tensor]) -> Pairs:
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
    yield softmax(x), torch.softmax(x, -1)


# --8<-- [end:is_softmax]


# --8<-- [start:long_rows_sum_to_one]
@Property
def long_rows_sum_to_one(softmax: Callable[[Tensor], Tensor]) -> Pairs:
    """In half precision too, which holds no sum above 65504."""
    total = softmax(torch.zeros(70_000, dtype=torch.float16)).double().sum()
    yield total, torch.ones_like(total), 0.01


# --8<-- [end:long_rows_sum_to_one]


# --8<-- [start:empty_rows_are_zero]
@Property
def empty_rows_are_zero(core: Callable[..., Tensor]) -> Pairs:
    """`core(q, k, v, mask)` gives zeros to a query that may see no key, and
    numbers to the others."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 3, 2, 5, 8)
    mask = torch.ones(5, 5, dtype=torch.bool).tril(-1)
    out = core(q, k, v, mask)
    yield out[:, :, 0], torch.zeros_like(out[:, :, 0]), 0
    yield out.isfinite(), torch.ones_like(out) > 0


# --8<-- [end:empty_rows_are_zero]


# --8<-- [start:half_is_exact]
@Property
def half_is_exact(core: Callable[..., Tensor]) -> Pairs:
    """In half precision, only inputs and output are rounded: large scores,
    whose differences are small, keep these differences."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 3, 2, 5, 64)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    for dtype in (torch.float16, torch.bfloat16):
        inputs = [x.to(dtype) for x in (10 + q, 10 + k, v)]
        exact = core(*(x.double() for x in inputs), mask)
        yield core(*inputs, mask).double(), exact, 0.02


# --8<-- [end:half_is_exact]


# --8<-- [start:is_causal]
@Property
def is_causal(mask: Callable[[int, int], Tensor]) -> Pairs:
    """`mask(T, S)` is True where a query may attend to a key. The `T` queries
    are the last of the `S` tokens."""
    for T, S in ((5, 5), (1, 5), (3, 5)):
        i, j = torch.arange(S - T, S)[:, None], torch.arange(S)
        yield mask(T, S), j <= i


# --8<-- [end:is_causal]


# --8<-- [start:is_window]
@Property
def is_window(mask: Callable[[int, int], Tensor]) -> Pairs:
    """`mask(W, T)`: each of `T` tokens sees itself and `W - 1` before it."""
    i, j = torch.arange(6)[:, None], torch.arange(6)
    for W in (1, 3, 9):
        yield mask(W, 6), (j <= i) & (j > i - W)


# --8<-- [end:is_window]


# --8<-- [start:pads_change_nothing]
@Property
def pads_change_nothing(attend: Callable[[Tensor, Tensor], Tensor]) -> Pairs:
    """`attend(x, valid)`: real tokens get what they get without the pads.

    There are as many rows as tokens, so that mixed-up axes fit.
    """
    torch.manual_seed(0)
    x, row = torch.randn(4, 4, 8), torch.arange(4)
    valid = row >= row[:, None]  # row n has n pads on the left
    out = attend(x, valid)
    for n in range(4):
        row_out = attend(x[n : n + 1, n:], valid[n : n + 1, n:])[0]
        sees = (row_out != 0).any(-1)
        yield sees, torch.ones_like(sees)  # each real token sees a key
        yield out[n, n:], row_out, 1e-5


# --8<-- [end:pads_change_nothing]


# --8<-- [start:documents_are_apart]
@Property
def documents_are_apart(attend: Callable[[Tensor, Tensor], Tensor]) -> Pairs:
    """`attend(x, ids)`: packed documents get what each gets by itself."""
    torch.manual_seed(0)
    x, ids = torch.randn(1, 7, 8), torch.tensor([0, 0, 0, 1, 1, 2, 2])
    out = attend(x, ids)
    for n in range(3):
        document = attend(x[:, ids == n], ids[ids == n])
        yield out[:, ids == n], document, 1e-5


# --8<-- [end:documents_are_apart]


# --8<-- [start:layer_equals_torch]
@Property
def layer_equals_torch(
    layer: Any,
    x: Tensor,
    n_heads: int,
    n_kv_heads: int,
    context: Tensor | None = None,
) -> Pairs:
    """A layer is its four projections around PyTorch's attention: causal
    without a context, and with one over all of it."""
    B, T, _ = x.shape
    inputs = (x,) if context is None else (x, context)
    k, v = layer.k_proj(inputs[-1]), layer.v_proj(inputs[-1])
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
    expected = layer.o_proj(heads.transpose(1, 2).reshape(B, T, -1))
    yield layer(*inputs), expected


# --8<-- [end:layer_equals_torch]


# --8<-- [start:every_weight_is_used]
@Property
def every_weight_is_used(
    run: Callable[[], Tensor], weights: Iterable[Tensor]
) -> Pairs:
    """Each element of each weight has an effect on what `run()` returns."""
    weights = [weight.requires_grad_() for weight in weights]
    slopes = torch.autograd.grad(
        run().square().sum(), weights, materialize_grads=True
    )
    for slope in slopes:
        yield slope != 0, torch.ones_like(slope) > 0


# --8<-- [end:every_weight_is_used]


# --8<-- [start:evaluation_repeats]
@Property
def evaluation_repeats(layer: Any, x: Tensor) -> Pairs:
    """In evaluation, the same input gives the same output."""
    layer.eval()
    yield layer(x), layer(x), 0


# --8<-- [end:evaluation_repeats]


# --8<-- [start:pads_are_unseen]
@Property
def pads_are_unseen(
    layer: Callable[[Tensor, Tensor], Tensor], x: Tensor
) -> Pairs:
    """`layer(x, valid)`, True = a real token: what stands in the place of a
    pad changes no output but its own. Row n has n + 1 pads on the left."""
    B, T = x.shape[:2]
    valid = torch.arange(T) > torch.arange(B)[:, None]
    new_x = x.clone()
    new_x[~valid] += 1
    out, new_out = layer(x, valid), layer(new_x, valid)
    yield new_out[valid], out[valid], 0


# --8<-- [end:pads_are_unseen]


# --8<-- [start:context_is_seen]
@Property
def context_is_seen(
    layer: Callable[[Tensor, Tensor], Tensor], x: Tensor, context: Tensor
) -> Pairs:
    """Every query of a cross-attention sees every token of the context."""
    out = layer(x, context)
    for j in range(context.shape[1]):
        new_context = context.clone()
        new_context[:, j] += 1
        change = (layer(x, new_context) - out).abs().amax(dim=(0, 2))
        yield change > 0, torch.ones_like(change) > 0


# --8<-- [end:context_is_seen]


# --8<-- [start:new_context_is_read]
@Property
@torch.no_grad()
def new_context_is_read(
    layer: Callable[..., Tensor], x: Tensor, context: Tensor, cache: Any
) -> Pairs:
    """A cache that holds one context does not answer for another."""
    expected = layer(x, -context)
    layer(x, context, cache=cache)
    try:
        out = layer(x, -context, cache=cache)
    except ValueError:
        return  # refused, which is right too
    yield out, expected


# --8<-- [end:new_context_is_read]


# --8<-- [start:equal_heads_pool]
@Property
def equal_heads_pool(
    convert: Callable[[Any], Any], mha: Any, x: Tensor, n_kv_heads: int
) -> Pairs:
    """MHA in which the heads of each group are equal is that GQA exactly."""
    with torch.no_grad():
        for weight in (mha.k_proj.weight, mha.v_proj.weight):
            heads = weight.view(mha.n_heads, -1, weight.shape[1])
            groups = heads.unflatten(0, (n_kv_heads, -1))
            groups.copy_(groups[:, :1].expand_as(groups).clone())
    yield convert(mha)(x), mha(x)


# --8<-- [end:equal_heads_pool]


# --8<-- [start:equals_multihead_attention]
@Property
def equals_multihead_attention(load: Callable[[Any], Any]) -> Pairs:
    """`load(theirs)` makes a layer with the weights of an
    `nn.MultiheadAttention`, which computes the same."""
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(24, 6, batch_first=True)
    x = torch.randn(2, 5, 24)
    expected, _ = theirs(x, x, x, need_weights=False)
    yield load(theirs)(x), expected


# --8<-- [end:equals_multihead_attention]


# --8<-- [start:layouts_agree]
@Property
def layouts_agree(
    reorder: Callable[[Tensor, int], Tensor],
    rotate: Callable[[Tensor, str], Tensor],
) -> Pairs:
    """Rows reordered from the interleaved RoPE layout to halves give the same
    scores: `reorder(weight, head_dim)`, then `rotate(x, layout)`."""
    torch.manual_seed(0)
    x, weights = torch.randn(5, 16), torch.randn(2, 16, 16)

    def scores(weights: Iterable[Tensor], layout: str) -> Tensor:
        heads = ((x @ w.mT).view(1, 5, 2, 8).transpose(1, 2) for w in weights)
        q, k = (rotate(head, layout) for head in heads)
        return q @ k.mT

    halves = scores((reorder(weight, 8) for weight in weights), "half")
    yield halves, scores(weights, "interleaved")


# --8<-- [end:layouts_agree]


# --8<-- [start:float8_is_near]
@Property
def float8_is_near(
    dequantise: Callable[[Tensor, Tensor, int], Tensor],
) -> Pairs:
    """Weights stored in float8, with a scale for each block of 2 by 2, are
    what they were to within the 3 bits of their mantissa."""
    torch.manual_seed(0)
    weight = 0.02 * torch.randn(4, 6)
    largest = weight.view(2, 2, 3, 2).abs().amax(dim=(1, 3))
    scales = largest / torch.finfo(torch.float8_e4m3fn).max
    element_scales = scales.repeat_interleave(2, 0).repeat_interleave(2, 1)
    narrow = (weight / element_scales).to(torch.float8_e4m3fn)
    ratio = dequantise(narrow, scales, 2) / weight
    yield ratio, torch.ones_like(ratio), 0.1


# --8<-- [end:float8_is_near]


# --8<-- [start:residual_passes]
@Property
def residual_passes(block: Any, x: Tensor) -> Pairs:
    """A block whose attention and MLP return zeros returns its input."""
    with torch.no_grad():
        block.self_attn.o_proj.weight.zero_()
        block.mlp.down_proj.weight.zero_()
    yield block(x), x


# --8<-- [end:residual_passes]


# --8<-- [start:refusal_changes_nothing]
@Property
def refusal_changes_nothing(
    call: Callable[[], object], state: Callable[[], object]
) -> Pairs:
    """A call that is refused leaves what `state()` returns as it was."""
    old_state = state()
    try:
        call()
    except ValueError:
        yield state(), old_state
    else:
        raise AssertionError("it was not refused")


# --8<-- [end:refusal_changes_nothing]


# --8<-- [start:rope_is_as_published]
@Property
def rope_is_as_published(
    rope: Callable[[Tensor, Tensor], Tensor],
    theta: float = 10000.0,
    interleaved: bool = False,
) -> Pairs:
    """`rope(x, positions)` turns pair p of `x` `(B, H, T, D)` at position i
    by the angle i * theta ** (-2 p / D)."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    positions = torch.tensor([0, 1, 7, 1001, 100_003])
    angles = positions[:, None] * theta ** (-torch.arange(4).double() / 4)
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    pairs = torch.complex(a, b) * torch.polar(torch.ones_like(angles), angles)
    parts = (pairs.real, pairs.imag)
    expected = torch.stack(parts, dim=-1 if interleaved else -2).flatten(-2)
    yield rope(x, positions), expected
    yield rope(x.bfloat16(), positions).double(), expected, 0.05


# --8<-- [end:rope_is_as_published]


# --8<-- [start:lengths_are_kept]
@Property
def lengths_are_kept(
    rope: Callable[[Tensor, Tensor], Tensor], x: Tensor, positions: Tensor
) -> Pairs:
    """`rope(x, positions)` rotates: no vector becomes longer or shorter."""
    yield rope(x, positions).norm(dim=-1), x.norm(dim=-1)


# --8<-- [end:lengths_are_kept]


# --8<-- [start:scores_are_relative]
@Property
def scores_are_relative(
    rope: Callable[[Tensor, Tensor], Tensor], x: Tensor, positions: Tensor
) -> Pairs:
    """Products of vectors `rope(x, positions)` depend only on distances."""
    near, far = rope(x, positions), rope(x, positions + 13)
    yield near @ near.mT, far @ far.mT


# --8<-- [end:scores_are_relative]


# --8<-- [start:order_is_seen]
@Property
def order_is_seen(layer: Callable[[Tensor], Tensor], x: Tensor) -> Pairs:
    """Swapping the first two tokens changes the last output."""
    order = [1, 0, *range(2, x.shape[1])]
    change = (layer(x[:, order]) - layer(x))[:, -1].abs().max()
    yield change > 1e-3, torch.tensor(True)


# --8<-- [end:order_is_seen]


# --8<-- [start:distances_alone_count]
@Property
def distances_alone_count(
    layer: Callable[[Tensor, Tensor], Tensor], x: Tensor
) -> Pairs:
    """`layer(x, positions)` with RoPE: the same if all positions are shifted,
    another if they are spread, and each row by its own positions."""
    positions = torch.arange(x.shape[1])
    out, spread = layer(x, positions), layer(x, 3 * positions)
    yield layer(x, positions + 1000), out
    yield (spread - out).abs().max() > 1e-3, torch.tensor(True)
    rows = torch.stack([positions] + [3 * positions] * (len(x) - 1))
    yield layer(x, rows), torch.cat((out[:1], spread[1:]))


# --8<-- [end:distances_alone_count]


# --8<-- [start:positions_count_tokens]
@Property
def positions_count_tokens(positions: Callable[[Tensor], Tensor]) -> Pairs:
    """`positions(valid)` counts the real tokens of each row from 0."""
    valid = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 0, 0, 1, 1]])
    valid = valid.bool()
    for row, real in zip(positions(valid), valid, strict=True):
        yield row[real].cpu(), torch.arange(int(real.sum()))
        yield row >= 0, torch.ones_like(real)  # each is an index


# --8<-- [end:positions_count_tokens]


# --8<-- [start:decoding_is_the_full_pass]
@Property
def decoding_is_the_full_pass(
    layer: Callable[..., Tensor], new_cache: Callable[[], object], x: Tensor
) -> Pairs:
    """`layer(x, cache)` chunk by chunk gives what `layer(x)` gives at once."""
    T, out = x.shape[1], layer(x)
    for cuts in (list(range(1, T)), [T - 2, T - 1], [2, T - 1]):
        cache, chunks = new_cache(), x.tensor_split(cuts, dim=1)
        outs = [layer(chunk, cache) for chunk in chunks if chunk.shape[1]]
        yield torch.cat(outs, dim=1), out, 1e-4


# --8<-- [end:decoding_is_the_full_pass]


# --8<-- [start:sequences_are_apart]
@Property
def sequences_are_apart(
    layer: Callable[..., Tensor], new_cache: Callable[[], object], x: Tensor
) -> Pairs:
    """Two sequences that are decoded in turns, each with its own cache, get
    what each gets alone."""
    sequences = x, 2 - x
    caches = [new_cache() for _ in sequences]
    for t in range(x.shape[1]):
        for sequence, cache in zip(sequences, caches, strict=True):
            out = layer(sequence[:, t : t + 1], cache)
            yield out, layer(sequence[:, : t + 1])[:, -1:], 1e-4


# --8<-- [end:sequences_are_apart]


# --8<-- [start:cache_is_a_list]
@Property
def cache_is_a_list(new_cache: Callable[[int], Any]) -> Pairs:
    """A cache returns the tokens that it was given, in order, also after
    `crop`, `reorder` and `reset`."""
    torch.manual_seed(0)
    rows, k = torch.tensor([2, 0, 0]), torch.randn(3, 2, 5, 4)
    old, new = k[:, :, :4], k[:, :, 4:]
    for name, args, past in (
        ("crop", [4], old),
        ("crop", [2], old[:, :, :2]),
        ("crop", [0], old[:, :, :0]),
        ("reorder", [rows], old[rows]),
        ("reset", [], old[:, :, :0]),
    ):
        cache = new_cache(6)
        cache.append(old, -old)
        getattr(cache, name)(*args)
        expected = torch.cat((past, new), dim=2)
        keys, values = cache.append(new, -new)
        yield keys, expected, 0
        yield values, -expected, 0


# --8<-- [end:cache_is_a_list]


# --8<-- [start:full_cache_refuses]
@Property
def full_cache_refuses(new_cache: Callable[[int], Any]) -> Pairs:
    """A cache with room for two tokens refuses a third."""
    cache, token = new_cache(2), torch.ones(3, 2, 1, 4)
    cache.append(token, token)
    cache.append(token, token)
    refuses = False
    try:
        cache.append(token, token)
    except (ValueError, RuntimeError, IndexError):
        refuses = True
    yield refuses, True


# --8<-- [end:full_cache_refuses]


# --8<-- [start:caches_are_apart]
@Property
def caches_are_apart(new_cache: Callable[[int], Any]) -> Pairs:
    """Two caches that are filled in turns return their own tokens."""
    first, second = new_cache(3), new_cache(3)
    for n in range(3):
        token = torch.full((3, 2, 1, 4), float(n))
        keys, _ = first.append(token, token)
        second.append(-token, -token)
        yield keys[0, 0, :, 0], torch.arange(n + 1.0), 0


# --8<-- [end:caches_are_apart]


# --8<-- [start:cache_keeps_no_graph]
@Property
def cache_keeps_no_graph(new_cache: Callable[[int], Any]) -> Pairs:
    """What a cache returns is cut off from the weights, or it refuses:
    otherwise each step keeps the graphs of all earlier ones."""
    weight = torch.randn(5, 5, requires_grad=True)
    cache = new_cache(6)
    for _ in range(3):
        k = torch.randn(3, 2, 1, 5) @ weight
        try:
            keys, values = cache.append(k, k)
        except (ValueError, RuntimeError):
            return
        yield [keys.requires_grad, values.requires_grad], [False, False]


# --8<-- [end:cache_keeps_no_graph]


# --8<-- [start:cache_is_small]
@Property
def cache_is_small(
    layer: Callable[..., Tensor],
    new_cache: Callable[[int], Any],
    x: Tensor,
    n_kv_heads: int,
    head_dim: int,
) -> Pairs:
    """After `layer(x, cache)` the cache has the bytes of one key and one value
    per token and key/value head, in the dtype of `x`."""
    B, T, _ = x.shape
    cache = new_cache(T)
    layer(x, cache)
    yield cache.nbytes, 2 * B * T * n_kv_heads * head_dim * x.element_size()


# --8<-- [end:cache_is_small]


# --8<-- [start:generation_is_the_same]
@Property
def generation_is_the_same(generate: Callable[..., Tensor]) -> Pairs:
    """`generate(prompt, valid, cached)` gives the same tokens with a cache,
    without one, and for each row of a left-padded batch by itself."""
    torch.manual_seed(0)
    prompt = torch.randint(50, (3, 5))
    pads = [0, 2, 3]
    valid = torch.arange(5) >= torch.tensor(pads)[:, None]
    tokens = generate(prompt, valid, True)
    yield tokens, generate(prompt, valid, False)
    for row, n in enumerate(pads):
        part = slice(row, row + 1), slice(n, None)
        yield tokens[part], generate(prompt[part], valid[part], True)


# --8<-- [end:generation_is_the_same]


# --8<-- [start:far_scores]
@Property
def far_scores(core: Callable[..., Tensor]) -> Pairs:
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
    weights = core(scores[None, None] * 6**0.5, unit, unit, mask)[0, 0]
    yield weights, scores.masked_fill(~mask, -torch.inf).softmax(dim=1)


# --8<-- [end:far_scores]


# --8<-- [start:gradients_equal_torch]
@Property
def gradients_equal_torch(core: Callable[..., Tensor]) -> Pairs:
    """`core(q, k, v, mask)` has the gradients of PyTorch's own attention."""
    torch.manual_seed(0)
    q, k, v, upstream = torch.randn(4, 2, 3, 7, 4, dtype=torch.float64)

    def gradients(attend: Callable[..., Tensor], mask: Tensor | None) -> Any:
        qkv = [x.clone().requires_grad_() for x in (3 * q, k, v)]
        return torch.autograd.grad(attend(*qkv, mask), qkv, upstream)

    for mask in (None, torch.ones(7, 7).tril() > 0):
        expected = gradients(F.scaled_dot_product_attention, mask)
        yield gradients(core, mask), expected


# --8<-- [end:gradients_equal_torch]


# --8<-- [start:gradients_are_slopes]
@Property
def gradients_are_slopes(core: Callable[..., Tensor]) -> Pairs:
    """The gradients of `core(q, k, v)` are how much its output changes. With
    dropout, `core` sets the seed itself."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 3, 2, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (3 * q, k, v)]
    yield torch.autograd.gradcheck(core, inputs), True


# --8<-- [end:gradients_are_slopes]


# --8<-- [start:parts_make_the_whole]
@Property
def parts_make_the_whole(
    attend: Callable[..., tuple[Tensor, Tensor]],
    merge: Callable[..., tuple[Tensor, Tensor]],
) -> Pairs:
    """`attend(q, k, v, mask)` gives the output and the log-sum-exp of the
    scores. Merged one by one from parts of the keys, they are the same."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 6, 4, dtype=torch.float64)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    mask[3] = False  # this query sees no key at all
    scores = (3 * q @ k.mT / 2).masked_fill(~mask, -torch.inf)
    expected = scores.softmax(-1).nan_to_num(0) @ v, scores.logsumexp(-1)
    cuts = slice(4, 6), slice(2, 4), slice(0, 2)
    parts = [attend(3 * q, k[:, :, i], v[:, :, i], mask[:, i]) for i in cuts]
    total = parts[0]
    for part in parts[1:]:
        total = merge([total[0], part[0]], [total[1], part[1]])
    yield total, expected


# --8<-- [end:parts_make_the_whole]


# --8<-- [start:sinks_take_weight]
@Property
def sinks_take_weight(core: Callable[..., Tensor]) -> Pairs:
    """`core(q, k, v, sinks, mask)` has one sink per query head: one more key,
    whose score is the sink and whose value is 0, for PyTorch."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 3, 4, 6, 16, dtype=torch.float64)
    sinks = torch.tensor([-2.0, 0.0, 1.0, 3.0]).double()
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    scores = torch.zeros(4, 6, 7).double()
    scores[..., :6] = scores[..., :6].masked_fill(~mask, -torch.inf)
    scores[..., 6] = sinks[:, None]
    expected = F.scaled_dot_product_attention(
        q, F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)), scores
    )
    yield core(q, k, v, sinks, mask), expected


# --8<-- [end:sinks_take_weight]


# --8<-- [start:first_tokens_are_kept]
@Property
def first_tokens_are_kept(mask: Callable[..., Tensor]) -> Pairs:
    """`mask(T, S, first, window)` shows the first tokens and the last ones."""
    rows = mask(2, 9, 2, 3).int().tolist()
    yield rows, [[1, 1, 0, 0, 0, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0, 1, 1, 1]]
    yield mask(2, 2, 2, 3).int().tolist(), [[1, 0], [1, 1]]  # not before


# --8<-- [end:first_tokens_are_kept]


# --8<-- [start:is_alibi]
@Property
def is_alibi(alibi: Callable[[int, int, int], Tensor]) -> Pairs:
    """`alibi(n_heads, T, S)` is ALiBi's bias for the last T of S tokens."""
    powers = [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]
    for n_heads in (8, 12):
        bias = alibi(n_heads, 2, 5)
        for h, power in enumerate(powers[:n_heads]):
            far = -torch.tensor([[3.0, 2, 1, 0], [4.0, 3, 2, 1]])
            yield bias[h, :, :4], far / 2**power


# --8<-- [end:is_alibi]


# --8<-- [start:scores_are_biased_and_capped]
@Property
def scores_are_biased_and_capped(core: Callable[..., Tensor]) -> Pairs:
    """`core(q, k, v, bias, softcap, mask)` does both after the scale and
    before the mask: PyTorch gets the scores as a mask of queries that are 0."""
    torch.manual_seed(0)
    q, k, v = 3 * torch.randn(3, 3, 4, 6, 16, dtype=torch.float64)
    bias, scores = torch.randn(4, 6, 6).double(), q @ k.mT / 4
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    for term, cap in ((bias, None), (None, 2.0), (bias, 2.0)):
        logits = scores if term is None else scores + term
        if cap is not None:
            logits = cap * torch.tanh(logits / cap)
        logits = logits.masked_fill(~mask, -torch.inf)
        expected = F.scaled_dot_product_attention(0 * q, k, v, logits)
        yield core(q, k, v, term, cap, mask), expected


# --8<-- [end:scores_are_biased_and_capped]


# --8<-- [start:chunks_are_apart]
@Property
def chunks_are_apart(mask: Callable[[int, int], Tensor]) -> Pairs:
    """`mask(T, size)` shows each token only the past of its own chunk."""
    block = torch.ones(3, 3, dtype=torch.bool).tril()
    yield mask(6, 3), torch.block_diag(block, block).bool()


# --8<-- [end:chunks_are_apart]


# --8<-- [start:ring_is_a_window]
@Property
def ring_is_a_window(
    new_cache: Callable[[int], Any], sees: Callable[..., Tensor]
) -> Pairs:
    """A ring of 4 slots gives what attention under a window of 4 gives:
    `append(k, v)` returns keys, values and positions, for `sees(i, j, 4)`."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 3, 2, 11, 8, dtype=torch.float64)
    positions = torch.arange(11)
    distance = positions[:, None] - positions
    window = (distance >= 0) & (distance < 4)
    expected = F.scaled_dot_product_attention(q, k, v, window)
    for cuts in (list(range(1, 11)), [6, 7, 8, 9, 10], [3, 5]):
        cache, outs = new_cache(4), []
        for i in positions.tensor_split(cuts):
            keys, values, j = cache.append(k[:, :, i], v[:, :, i])
            query, mask = q[:, :, i], sees(i, j, 4)
            out = F.scaled_dot_product_attention(query, keys, values, mask)
            outs.append(out)
        yield torch.cat(outs, dim=2), expected


# --8<-- [end:ring_is_a_window]


# --8<-- [start:ranks_are_one_device]
@Property
def ranks_are_one_device(
    on_ranks: Callable[..., Any], on_one: Callable[..., Tensor], *inputs: Tensor
) -> Pairs:
    """`on_ranks(*inputs, d_out)` are the output and the gradients of all
    inputs, computed on several devices: those of `on_one(*inputs)`."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = on_one(*leaves)
    d_out = torch.randn_like(out)
    expected = out.detach(), *torch.autograd.grad(out, leaves, d_out)
    for answer, right in zip(on_ranks(*inputs, d_out), expected, strict=True):
        yield answer, right, 1e-10


# --8<-- [end:ranks_are_one_device]


# --8<-- [start:blocks_hold_each_text]
SHARING = "a0abcdefgh b=a b+x a+ij c2abcdefg a-0 b+yz d0defabc z? d-4 d+zz c-0"
SHARING += " e1defa e-0 d-0 b-0 f2abcdefghijklm g0defq g-0 h1abcdef"
SHARING += " i4abcdefghijklmn f-0 i-13 i+j h-0 i-0 k0zyxwvutsrqponmlkjihgf"


@Property
def blocks_hold_each_text(
    new_pool: Callable[..., Any],
    script: str = SHARING,
    size: int = 3,
    dtype: torch.dtype = torch.float64,
) -> Pairs:
    """Texts that share 7 blocks get back what each has stored, after each step
    of a script: `c2abc` is text c, which finds 2 blocks of its beginning, and
    `c+de` goes on; `b=a` forks a, `a-4` rolls back to 4 tokens, 0 is the end;
    `z?` does not fit."""
    pool = new_pool(7, size, (2, 3, 5), dtype)
    tables, texts = dict[str, Any](), dict[str, str]()

    def entries(text: str) -> Tensor:  # each depends on the tokens before it
        codes = torch.tensor([float(ord(letter)) for letter in text]).cumsum(0)
        values = codes[:, None] / 7 * torch.arange(30.0).view(2, 3, 1, 5)
        return values.to(dtype)

    for step in script.split():
        name, act, word = step[0], step[1], step[2:]
        if act == "=":
            tables[name], texts[name] = pool.fork(tables[word]), texts[word]
        elif act == "-":
            texts[name] = texts[name][: int(word)]
            pool.release(tables[name], int(word))
        elif act == "?":
            refuses = False
            try:
                pool.append([], list("z" * 99), entries("z" * 99))
            except (ValueError, RuntimeError, IndexError):
                refuses = True
            yield refuses, True
        else:
            if act != "+":
                tables[name], texts[name] = pool.find(list(word)), ""
                yield len(tables[name]), int(act)
            past = len(texts[name]) or size * len(tables[name])
            texts[name] += word
            new = entries(texts[name])[:, :, past:]
            pool.append(tables[name], list(texts[name]), new)
        for key, text in texts.items():
            yield pool.gather(tables[key], len(text)), entries(text)


# --8<-- [end:blocks_hold_each_text]


# --8<-- [start:rejected_tokens_leave_nothing]
@Property
def rejected_tokens_leave_nothing(
    layer: Callable[..., Tensor], new_cache: Callable[[], Any], x: Tensor
) -> Pairs:
    """After `cache.crop`, decoding is as if the tokens had never been there,
    or `crop` refuses with a ValueError."""
    out, T = layer(x), x.shape[1]
    for back in (1, 2, 3):
        cache = new_cache()
        for t in range(T):
            layer(x[:, t : t + 1] + (t >= T - back), cache)
        try:
            cache.crop(T - back)
        except ValueError:
            continue
        yield layer(x[:, T - back :], cache), out[:, T - back :]


# --8<-- [end:rejected_tokens_leave_nothing]


# --8<-- [start:parts_are_in_order]
@Property
def parts_are_in_order(heads: Callable[..., Tensor]) -> Pairs:
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
    expected = F.scaled_dot_product_attention(0 * q, k0, v0, scores)
    out = heads(q, k, v, gate, q_weight, k_weight, turn, 2.0, sinks, mask)
    yield out, expected * gate.sigmoid()


# --8<-- [end:parts_are_in_order]


# --8<-- [start:norms_are_as_published]
@Property
def norms_are_as_published(norm: Callable[..., Tensor]) -> Pairs:
    """`norm(x, w, over, plus)` is an RMS norm of heads (B, H, T, D), over each
    `"head"` or the whole `"width"`, times `w` or, with `plus`, `1 + w`."""
    torch.manual_seed(0)
    scale = torch.tensor([1.0, 2.0, 5.0])[:, None, None]
    x, w = torch.randn(3, 3, 4, 8) * scale, torch.randn(24)
    flat = x.transpose(1, 2).flatten(2)
    width_norm = F.rms_norm(flat, (24,), w, 1e-6).unflatten(-1, (3, 8))
    yield norm(x, w, "width", False), width_norm.transpose(1, 2)
    head_norm = F.rms_norm(x, (8,), 1 + w[:8], 1e-6)
    yield norm(x, w[:8], "head", True), head_norm


# --8<-- [end:norms_are_as_published]


# --8<-- [start:gates_are_of_their_heads]
@Property
def gates_are_of_their_heads(
    split: Callable[[Tensor, int], tuple[Tensor, ...]],
) -> Pairs:
    """`split(both, n_heads)` gives queries and gates (B, H, T, D): `both`, the
    output of `q_proj`, holds first those of head 0, then those of head 1."""
    torch.manual_seed(0)
    both = torch.randn(2, 5, 3 * 2 * 4)
    q, gate = split(both, 3)
    for h in range(3):
        yield q[:, h], both[..., 8 * h : 8 * h + 4]
        yield gate[:, h], both[..., 8 * h + 4 : 8 * h + 8]


# --8<-- [end:gates_are_of_their_heads]


# --8<-- [start:frequencies_are_as_published]
@Property
def frequencies_are_as_published(
    slowed: Callable[[str, Tensor, float], Tensor],
    attention_factor: Callable[[], float],
) -> Pairs:
    """`slowed(kind, frequencies, theta)` of a factor of 8, for 4096 tokens at
    first, each kind in the words of its authors."""
    theta, D, length = 5e5, 64, 4096
    pair = torch.arange(D // 2, dtype=torch.float64)
    f = theta ** (-2 * pair / D)
    larger = theta * 8 ** (D / (D - 2))
    expected = {"linear": f / 8, "ntk": larger ** (-2 * pair / D)}
    wave = 2 * math.pi / f
    blend = (length / wave - 1) / (4 - 1)
    smooth = (1 - blend) * f / 8 + blend * f
    slow = torch.where(wave > length, f / 8, smooth)
    expected["llama3"] = torch.where(wave < length / 4, f, slow)
    low, high = (
        D * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (32, 1)
    )
    low, high = math.floor(low), math.ceil(high)
    ramp = ((pair - low) / (high - low)).clamp(0, 1)
    expected["yarn"] = f / 8 * ramp + f * (1 - ramp)
    expected["step"] = torch.where(pair < high, f, f / 8)  # both betas are 1
    for kind, frequencies in expected.items():
        yield slowed(kind, f, theta), frequencies
    yield attention_factor(), 0.1 * math.log(8) + 1


# --8<-- [end:frequencies_are_as_published]


# --8<-- [start:longer_text_is_read_again]
@Property
def longer_text_is_read_again(
    layer: Callable[..., Tensor], new_cache: Callable[[], object], x: Tensor
) -> Pairs:
    """`layer(x, cache)` of one token gives what `layer(x)` gives for it at the
    end of the text so far, or is refused: frequencies may depend on the length
    of a text."""
    cache = new_cache()
    for T in range(1, x.shape[1] + 1):
        try:
            out = layer(x[:, T - 1 : T], cache)
        except ValueError:
            return
        yield out, layer(x[:, :T])[:, -1:], 1e-4


# --8<-- [end:longer_text_is_read_again]


# --8<-- [start:is_mla]
@Property
def is_mla(
    layer: Callable[[Tensor], Tensor],
    weights: dict[str, Tensor],
    x: Tensor,
    sizes: tuple[int, int, int, int, int],
) -> Pairs:
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
        pairs = a * cos - b * sin, b * cos + a * sin
        return torch.stack(pairs, dim=2).flatten(1)

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
    expected = torch.cat(heads, dim=1) @ weights["o_proj.weight"].mT
    yield layer(x[None])[0], expected


# --8<-- [end:is_mla]


# --8<-- [start:is_compressed]
@Property
def is_compressed(
    layer: Callable[[Tensor], Tensor],
    weights: dict[str, Tensor],
    x: Tensor,
    sizes: tuple[int, int, int, int],
    f: Tensor,
) -> Pairs:
    """`layer(x)` is attention of DeepSeek-V4 with entries, of a checkpoint's
    weights, all of which its indexer chooses if it has one.

    `x` is `(T, E)`; `sizes` are the heads, the window, the tokens per entry
    and the groups of the output; `f` are RoPE's angles per token.
    """
    (H, W, rate, G), T, Dr = sizes, len(x), 2 * len(f)

    def project(name: str, y: Tensor) -> Tensor:
        return y @ weights[f"{name}.weight"].mT

    def norm(y: Tensor) -> Tensor:
        return y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt()

    def rotate(y: Tensor, t: int) -> Tensor:  # the last elements alone
        z = torch.view_as_complex(y[..., -Dr:].unflatten(-1, (-1, 2)))
        z = z * torch.polar(torch.ones_like(f), t * f)
        return torch.cat((y[..., :-Dr], torch.view_as_real(z).flatten(-2)), -1)

    kv = norm(project("kv_proj", x)) * weights["kv_norm.weight"]
    D = kv.shape[1]
    latent = norm(project("q_a_proj", x)) * weights["q_a_norm.weight"]
    q = norm(project("q_b_proj", latent).view(T, H, D))
    raw, gate = (project(f"compressor.{n}_proj", x) for n in ("kv", "gate"))
    bias, entries = weights["compressor.position_bias"], []
    for n in range(0, T - rate + 1, rate):
        parts, gates = [raw[n : n + rate, -D:]], [gate[n : n + rate] + bias]
        gates[0] = gates[0][:, -D:]
        if n and bias.shape[1] > D:  # the block before, by the first half
            parts.append(raw[n - rate : n, :D])
            gates.append((gate[n - rate : n] + bias)[:, :D])
        mean = (torch.cat(gates).softmax(0) * torch.cat(parts)).sum(0)
        mean = norm(mean) * weights["compressor.kv_norm.weight"]
        entries.append(rotate(mean, n))
    outs = []
    for t in range(T):
        window = [rotate(kv[j], j) for j in range(max(0, t - W + 1), t + 1)]
        keys = torch.stack(window + entries[: (t + 1) // rate])
        scores = rotate(q[t], t) @ keys.mT * D**-0.5
        scores = torch.cat((scores, weights["sinks"][:, None]), dim=1)
        heads = rotate(scores.softmax(1)[:, :-1] @ keys, -t)
        groups = weights["o_a_proj.weight"].view(G, -1, H * D // G)
        outs.append((groups @ heads.view(G, -1, 1)).flatten())
    yield layer(x[None])[0], project("o_b_proj", torch.stack(outs)), 1e-4


# --8<-- [end:is_compressed]


# --8<-- [start:is_dsa]
@Property
def is_dsa(
    layer: Callable[[Tensor], Tensor],
    weights: dict[str, Tensor],
    x: Tensor,
    sizes: tuple[int, int, int, int, int],
    index: tuple[int, int, bool],
) -> Pairs:
    """`layer(x)` is DSA as DeepSeek-V3.2 defines it, of a checkpoint's weights.

    `x` is `(T, E)`; `sizes` are those of `is_mla`. `index` are the heads of the
    indexer, how many keys a query reads, and whether its RoPE pairs halves.
    """
    H, R, Dn, Dr, Dv = sizes
    Hi, topk, halves = index
    i = torch.arange(len(x), dtype=x.dtype)[:, None]
    angles = i * 10000.0 ** (-torch.arange(0, Dr, 2, dtype=x.dtype) / Dr)
    turns = torch.polar(torch.ones_like(angles), angles)

    def rope(y: Tensor, halves: bool) -> Tensor:
        part, rest = y[:, :Dr], y[:, Dr:]
        pairs = (
            part.view(len(y), 2, -1).mT
            if halves
            else part.unflatten(1, (-1, 2))
        )
        pair = torch.view_as_real(
            torch.view_as_complex(pairs.contiguous()) * turns
        )
        pair = pair.mT if halves else pair
        return torch.cat((pair.flatten(1), rest), dim=1)

    def project(name: str, y: Tensor) -> Tensor:
        return y @ weights[f"{name}.weight"].mT

    def norm(name: str, y: Tensor) -> Tensor:
        y = y * (y.square().mean(1, keepdim=True) + 1e-6).rsqrt()
        return y * weights[f"{name}.weight"]

    c_q = norm("q_a_layernorm", project("q_a_proj", x))
    joint = project("kv_a_proj_with_mqa", x)
    c, k_rope = (
        norm("kv_a_layernorm", joint[:, :R]),
        rope(joint[:, R:], False),
    )
    k = project("indexer.wk", x)
    k = k - k.mean(1, keepdim=True)
    k = k * (k.square().mean(1, keepdim=True) + 1e-6).rsqrt()
    k = k * weights["indexer.k_norm.weight"] + weights["indexer.k_norm.bias"]
    k = rope(k, halves)
    scores = torch.zeros(len(x), len(x), dtype=x.dtype)
    votes = project("indexer.weights_proj", x)
    for h, q in enumerate(project("indexer.wq_b", c_q).chunk(Hi, dim=1)):
        scores += votes[:, h, None] * (rope(q, halves) @ k.mT).clamp(min=0)
    mask = torch.zeros_like(scores, dtype=torch.bool)
    for t, row in enumerate(scores):
        mask[t, row[: t + 1].sort(descending=True).indices[:topk]] = True
    queries = project("q_b_proj", c_q).chunk(H, dim=1)
    heads = []
    for q, up in zip(
        queries, project("kv_b_proj", c).chunk(H, dim=1), strict=True
    ):
        scores = q[:, :Dn] @ up[:, :Dn].mT + rope(q[:, Dn:], False) @ k_rope.mT
        scores = scores * (Dn + Dr) ** -0.5
        p = scores.masked_fill(~mask, -torch.inf).softmax(dim=1)
        heads.append(p @ up[:, Dn:])
    yield layer(x[None])[0], project("o_proj", torch.cat(heads, dim=1))


# --8<-- [end:is_dsa]


# --8<-- [start:module_is_called]
@Property
def module_is_called(
    layer: Callable[[Tensor], Tensor], module: torch.nn.Module, x: Tensor
) -> Pairs:
    """What wraps a part of a layer takes effect: here, a hook that doubles."""

    def double(module: torch.nn.Module, args: Any, out: Any) -> Any:
        return 2 * out

    out, handle = layer(x), module.register_forward_hook(double)
    new_out = layer(x)
    handle.remove()
    yield torch.allclose(new_out, out), False


# --8<-- [end:module_is_called]


# --8<-- [start:latent_is_cached]
@Property
def latent_is_cached(
    stored: Callable[[Tensor], list[Tensor]], x: Tensor, width: int
) -> Pairs:
    """`stored(x)` are the tensors that a cache holds after `x` `(B, T, E)`:
    for each token, a latent and a RoPE key, together of `width` elements."""
    n_elements = sum(tensor.numel() for tensor in stored(x))
    yield n_elements, x.shape[0] * x.shape[1] * width


# --8<-- [end:latent_is_cached]


# --8<-- [start:yarn_scales_scores]
@Property
def yarn_scales_scores(
    scale: float, width: int, factor: float, mscale_all_dim: float
) -> Pairs:
    """The `scale` of scores of this `width`, in a model stretched by YaRN."""
    mscale = 0.1 * mscale_all_dim * math.log(factor) + 1
    yield scale, mscale**2 / math.sqrt(width)


# --8<-- [end:yarn_scales_scores]


# --8<-- [start:closed_gate_halves]
@Property
def closed_gate_halves(gated: Tensor, ungated: Tensor) -> Pairs:
    """The output with a gate whose weights are 0, and without a gate."""
    yield gated, ungated / 2


# --8<-- [end:closed_gate_halves]


# --8<-- [start:head_width_is_free]
@Property
def head_width_is_free(make: Callable[[int], Any], n_heads: int) -> Pairs:
    """`make(head_dim)` gives a layer of such heads, whatever its width is."""
    for head_dim in (4, 16):
        yield make(head_dim).q_proj.weight.shape[0], n_heads * head_dim


# --8<-- [end:head_width_is_free]


# --8<-- [start:is_gated_delta]
@Property
def is_gated_delta(
    layer: Callable[[Tensor], Tensor],
    weights: dict[str, Tensor],
    x: Tensor,
    sizes: tuple[int, int, int, int],
) -> Pairs:
    """`layer(x)` is Gated DeltaNet as in Qwen3.5, of a checkpoint's weights.

    `x` is `(T, E)`; `sizes` are the numbers of key and of value heads, and the
    widths of both.
    """
    K, H, D, Dv = sizes
    qkv = x @ weights["in_proj_qkv.weight"].mT
    taps, rows = weights["conv1d.weight"][:, 0], range(len(x))
    past = torch.cat((torch.zeros_like(qkv[:1]).expand(3, -1), qkv))
    qkv = F.silu(
        torch.stack([(past[t : t + 4].mT * taps).sum(1) for t in rows])
    )
    q, k, v = qkv.split((K * D, K * D, H * Dv), dim=1)
    betas = (x @ weights["in_proj_b.weight"].mT).sigmoid()
    step = F.softplus(x @ weights["in_proj_a.weight"].mT + weights["dt_bias"])
    decays = (-weights["A_log"].exp() * step).exp()
    gates = F.silu(x @ weights["in_proj_z.weight"].mT).split(Dv, dim=1)
    heads = []
    for h, value in enumerate(v.split(Dv, dim=1)):
        query, key = (y.split(D, dim=1)[h // (H // K)] for y in (q, k))
        state, out = x.new_zeros(Dv, D), []
        for t in rows:  # as in the paper, whose state is the transpose
            unit = key[t] * (key[t].square().sum() + 1e-6).rsqrt()
            erase = torch.eye(D).to(x) - betas[t, h] * unit.outer(unit)
            write = betas[t, h] * value[t].outer(unit)
            state = decays[t, h] * state @ erase + write
            unit = query[t] * (query[t].square().sum() + 1e-6).rsqrt()
            out.append(state @ unit / math.sqrt(D))
        norm = F.rms_norm(torch.stack(out), (Dv,), weights["norm.weight"], 1e-6)
        heads.append(norm * gates[h])
    expected = torch.cat(heads, dim=1) @ weights["out_proj.weight"].mT
    yield layer(x[None])[0], expected


# --8<-- [end:is_gated_delta]


# --8<-- [start:decay_is_bounded]
@Property
def decay_is_bounded(
    decay: Callable[[float, float], float], bound: float
) -> Pairs:
    """The logarithm of a decay, for a `step` and a `rate`, `exp(A_log)`."""
    for step, rate in ((-2.0, 1.0), (0.0, 1.0), (0.3, 4.0), (50.0, 1.0)):
        yield decay(step, rate), bound / (1 + math.exp(-rate * step))


# --8<-- [end:decay_is_bounded]


# --8<-- [start:is_lightning]
@Property
def is_lightning(
    layer: Callable[[Tensor], Tensor],
    weights: dict[str, Tensor],
    x: Tensor,
    n_heads: int,
    place: float,
) -> Pairs:
    """`layer(x)` is lightning attention of MiniMax-01, `x` is `(T, E)`.

    `place` is where the layer stands in its model, 0 for the first and 1 for
    the last. It is attention without softmax, under a decay by distance.
    """
    distance = torch.arange(len(x))[:, None] - torch.arange(len(x))
    qkv = F.silu(x @ weights["qkv_proj.weight"].mT)
    heads = []
    for h, head in enumerate(qkv.chunk(n_heads, dim=1)):
        q, k, v = head.chunk(3, dim=1)
        slope = 2 ** (-8 * (h + 1) / n_heads) * (1 - place + 1e-5)
        heads.append((q @ k.mT * torch.exp(-slope * distance)).tril() @ v)
    joint = torch.cat(heads, dim=1)
    joint = F.rms_norm(joint, joint.shape[1:], weights["norm.weight"], 1e-6)
    gate = (x @ weights["output_gate.weight"].mT).sigmoid()
    expected = (gate * joint) @ weights["out_proj.weight"].mT
    yield layer(x[None])[0], expected, 1e-5


# --8<-- [end:is_lightning]


# --8<-- [start:pads_leave_a_state]
@Property
def pads_leave_a_state(
    layer: Callable[..., Tensor], new_cache: Callable[[], object], x: Tensor
) -> Pairs:
    """`layer(x, cache, valid)`, True = a real token: pads after the beginning
    of a row change nothing that is read later. Row n has n of them."""
    B, T, _ = x.shape
    t, pads = torch.arange(T), torch.arange(B)[:, None]
    valid = (t < 3) | (t >= 3 + pads)
    x = torch.where(valid[..., None], x, 9 * x.flip(1))
    cache, outs = new_cache(), []
    for begin, end in ((0, 4), (4, 5), (5, T)):  # one pad alone, too
        outs.append(layer(x[:, begin:end], cache, valid[:, :end]))
    out = torch.cat(outs, dim=1)
    for row, real in enumerate(valid):
        row_out = layer(x[row : row + 1, real])
        yield out[row, real], row_out[0], 1e-4


# --8<-- [end:pads_leave_a_state]
