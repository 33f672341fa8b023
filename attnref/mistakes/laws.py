"""What wrong attention breaks: tests to copy, each of one function or layer.

Each asserts something of what it is given and needs PyTorch alone.
"""

from collections.abc import Callable, Iterable
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


# --8<-- [start:head_width_is_free]
def head_width_is_free(make: Callable[[int], Any], n_heads: int) -> None:
    """`make(head_dim)` gives a layer of such heads, whatever its width is."""
    for head_dim in (4, 16):
        rows = make(head_dim).q_proj.weight.shape[0]
        assert rows == n_heads * head_dim, (
            f"q_proj has {rows} rows for {n_heads} heads of {head_dim}"
        )


# --8<-- [end:head_width_is_free]
