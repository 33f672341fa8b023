"""What wrong attention breaks: tests to copy, each of one function or layer.

Each asserts something of what it is given and needs PyTorch alone.
"""

import math
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


# --8<-- [start:far_scores]
def far_scores(core: Callable[..., Tensor]) -> None:
    """`core(q, k, v, mask)` is a softmax also where scores are far from zero,
    far from each other, or hidden."""
    low = [-20000.0, -20001, -20002, -20000, -20001, -20002]
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
    """`core(q, k, v)` has the gradients of PyTorch's own attention."""
    torch.manual_seed(0)
    q, k, v, above = torch.randn(4, 2, 3, 7, 4, dtype=torch.float64)
    found = []
    for attend in (core, F.scaled_dot_product_attention):
        given = [x.clone().requires_grad_() for x in (3 * q, k, v)]
        found.append(torch.autograd.grad(attend(*given), given, above))
    for name, ours, theirs in zip("qkv", *found, strict=True):
        assert torch.allclose(ours, theirs), f"the gradient of {name} is wrong"


# --8<-- [end:gradients_equal_torch]


# --8<-- [start:gradients_are_slopes]
def gradients_are_slopes(core: Callable[..., Tensor]) -> None:
    """The gradients of `core(q, k, v)` are how much its output changes. With
    dropout, `core` sets the seed itself."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 5, 3, dtype=torch.float64)
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


# --8<-- [start:causal_at_the_end]
def causal_at_the_end(core: Callable[..., Tensor]) -> None:
    """`core(q, k, v)` is causal, and the queries are the last tokens."""
    torch.manual_seed(0)
    q = 3 * torch.randn(2, 4, 7, 8, dtype=torch.float64)
    k, v = torch.randn(2, 2, 2, 7, 8, dtype=torch.float64)
    whole = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    for new in (7, 3, 1):
        out = core(q[:, :, -new:], k, v)
        torch.testing.assert_close(out, whole[:, :, -new:])


# --8<-- [end:causal_at_the_end]


# --8<-- [start:wide_values]
def wide_values(core: Callable[..., Tensor]) -> None:
    """`core(q, k, v)`: the scale depends on the keys, and not on values that
    are wider."""
    torch.manual_seed(0)
    q, k = 3 * torch.randn(2, 2, 3, 7, 4, dtype=torch.float64)
    v = torch.randn(2, 3, 7, 9, dtype=torch.float64)
    wanted = (q @ k.mT / 2).softmax(-1) @ v
    torch.testing.assert_close(core(q, k, v), wanted)


# --8<-- [end:wide_values]


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
    before = layer(x)
    handle = module.register_forward_hook(lambda module, args, out: 2 * out)
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
