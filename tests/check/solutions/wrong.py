"""Wrong solutions: what is right about them hides what is wrong.

SOLUTIONS says for each its exercise, and all properties that it breaks.
"""

import torch
import torch.nn.functional as F

from tests.check.solutions import einsum, fused

INF = torch.inf


def eps_in_the_sum(x, dim=-1):
    e = (x - x.amax(dim, keepdim=True).nan_to_num(neginf=0.0)).exp()
    return e / (e.sum(dim, keepdim=True) + 1e-2)


def eps_of_1e_5(x, dim=-1):
    e = (x - x.amax(dim, keepdim=True).nan_to_num(neginf=0.0)).exp()
    return e / (e.sum(dim, keepdim=True) + 1e-5)


def eps_lost_in_half(x, dim=-1):
    e = (x - x.amax(dim, keepdim=True).nan_to_num(neginf=0.0)).exp()
    return e / (e.sum(dim, keepdim=True) + 1e-8)


def one_maximum_for_all(x, dim=-1):
    e = (x - x.max()).exp()
    total = e.sum(dim, keepdim=True)
    return e / total.where(total > 0, 1)


def without_chunks(x, chunk):
    return einsum.softmax(x)


def maximum_from_zero(x, chunk):
    m, total = torch.zeros_like(x[..., :1]), 0
    for part in x.split(chunk, dim=-1):
        larger = torch.maximum(m, part.amax(-1, keepdim=True))
        total = total * (m - larger).exp()
        total = total + (part - larger).exp().sum(-1, keepdim=True)
        m = larger
    return ((x - m).exp() / total).nan_to_num()


def minus_1e9(q, k, v, mask=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    return scores.softmax(-1) @ v


def weights_detached(q, k, v, mask=None):
    return einsum.sdpa(q.detach(), k.detach(), v, mask)


def nan_in_the_gradient(q, k, v, mask=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores + torch.zeros_like(scores).masked_fill(~mask, -INF)
    return scores.softmax(-1).nan_to_num() @ v


def dropout_always(q, k, v, mask=None):
    return F.dropout(einsum.sdpa(q, k, v, mask), 0.1)


def mask_of_the_first_head(q, k, v, mask=None):
    first = mask[:, :1] if mask is not None and mask.dim() == 4 else mask
    return einsum.sdpa(q, k, v, first)


def mask_of_the_first_row(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    first = mask[:1] if mask is not None and mask.dim() == 4 else mask
    return einsum.mha(x, w_q, w_k, w_v, w_o, n_heads, first)


def scale_of_the_context(x, context, w_q, *rest, mask=None):
    return fused.cross(
        x, context, w_q * (x.shape[2] / context.shape[2]) ** 0.5, *rest, mask
    )


def angles_in_the_dtype_of_x(x, positions, theta=10000.0):
    D = x.shape[-1]
    frequency = (theta ** -(torch.arange(0, D, 2).double() / D)).to(x.dtype)
    angle = positions.to(x.dtype)[:, None] * frequency
    a, b = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def table_of_2048(x, positions, theta=10000.0):
    return einsum.rope(x, positions.clamp(max=2047), theta)


class ChangedBeforeRaise:
    def __init__(self, max_len):
        self.max_len, self.length = max_len, 0
        self.keys, self.values = [], []

    def append(self, k, v):
        self.keys.append(k)
        self.values.append(v)
        self.length += k.shape[2]
        if self.length > self.max_len:
            raise ValueError("no room")
        return torch.cat(self.keys, 2), torch.cat(self.values, 2)


class OfTheClass(einsum.KVCache):
    keys, values = [], []

    def __init__(self, max_len):
        self.max_len, self.length = max_len, 0


def mask_top_left(x, w_q, w_k, w_v, w_o, n_heads, cache=None):
    q, k, v = (
        (x @ w.mT).unflatten(-1, (n_heads, -1)).transpose(1, 2)
        for w in (w_q, w_k, w_v)
    )
    if cache is not None:
        k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
    mask = torch.ones(x.shape[1], k.shape[2], dtype=torch.bool).tril()
    heads = einsum.sdpa(q, k, v, mask).transpose(1, 2)
    return heads.flatten(2) @ w_o.mT, (k, v)


def theta_of_llama_3(*args, theta=5e5, cache=None):
    return einsum.llama(*args, theta=theta, cache=cache)


def repeated_heads_cached(*args, theta=1e4, cache=None):
    x, w_q, w_k, w_v, w_o, H, K = args
    w_k, w_v = (
        w.unflatten(0, (K, -1)).repeat_interleave(H // K, 0).flatten(0, 1)
        for w in (w_k, w_v)
    )
    return einsum.llama(x, w_q, w_k, w_v, w_o, H, H, theta, cache)


def positions_up_to_2048(*args, theta=1e4, cache=None):
    if cache is not None and cache["k"].shape[2] > 2040:
        cache = {name: y[:, :, -2040:] for name, y in cache.items()}
    return einsum.llama(*args, theta=theta, cache=cache)


def other_eps(x, w_q, w_kv_a, w_norm, *rest, theta=1e4, cache=None):
    R = len(w_norm)  # the norm of c / sqrt(10) is that of c with 10 * eps
    w_kv_a = torch.cat((w_kv_a[:R] / 10**0.5, w_kv_a[R:]))
    args = (x, w_q, w_kv_a, w_norm, *rest)
    return einsum.mla_latent(*args, theta=theta, cache=cache)


def keys_expanded(*args, theta=1e4, cache=None):
    return einsum.mla_latent(*args, theta=theta, cache=cache)


def strided_groups(w_k, w_v, n_heads, n_kv_heads):
    def pool(w):
        groups = w.view(n_heads // n_kv_heads, -1, w.shape[1])
        return groups.mean(0)

    return pool(w_k), pool(w_v)


def without_tiles(q, k, v, mask=None, tile=(2, 4)):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -INF)
    return einsum.softmax(scores) @ v, scores.logsumexp(-1)


def lse_of_the_last_tile(q, k, v, mask=None, tile=(2, 4)):
    out, _ = einsum.flash(q, k, v, mask, tile)
    mask = torch.ones(k.shape[2], dtype=torch.bool) if mask is None else mask
    last = mask.expand(*q.shape[:3], k.shape[2])[..., -tile[1] :]
    return out, einsum.flash(q, *(y[:, :, -tile[1] :] for y in (k, v)), last)[1]


def nan_where_all_are_empty(outs, lses):
    lse = torch.stack(lses).logsumexp(0)
    shares = (torch.stack(lses) - lse).exp()
    return (shares[..., None] * torch.stack(outs)).sum(0), lse


def sink_outside_the_maximum(q, k, v, sinks, mask=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -INF)
    m = scores.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
    e = (scores - m).exp()
    return e / (e.sum(-1, keepdim=True) + (sinks[:, None, None] - m).exp()) @ v


class SinksOfThese:
    streaming_mask = staticmethod(einsum.streaming_mask)
    attention_with_sinks = staticmethod(sink_outside_the_maximum)


class StoredInHalf(einsum.KVCache):
    def append(self, k, v):
        pair = super().append(k.half(), v.half())
        return tuple(x.to(k.dtype) for x in pair)


class ValuesInFloat32(einsum.KVCache):
    def append(self, k, v):
        keys, values = super().append(k, v)
        return keys, values.float()


def values_in_float32(*args):
    k, v = einsum.mha_to_gqa(*args)
    return k, v.float()


def half_cache(*args, cache=None):
    if cache is not None:
        cache = [x.to(args[0].dtype) for x in cache]
    out, cache = einsum.mha_cached(*args, cache=cache)
    return out, [x.half() for x in cache]


def half_inputs(q, k, v, mask=None):
    q, k, v = (x.half().to(x.dtype) for x in (q, k, v))
    return einsum.sdpa(q, k, v, mask)


def up_to_64(q, k, v, mask=None):
    return einsum.sdpa(q[:, :, :64], k, v, mask)


def mask_of_one_row(*args, mask=None):
    if mask is not None and mask.dim() == 4 and len(args[0]) == 1:
        mask = mask[0, 0]
    return einsum.gqa(*args, mask)


def tokens_after_256(x, *rest, mask=None):
    x = torch.cat((x[:, :256], 0 * x[:, 256:]), 1)
    return einsum.mha(x, *rest, mask)


def window_of_4096(*args, theta=1e4, cache=None):
    if cache is not None:  # the first are never seen again
        k = cache["k"].clone()
        k[:, :, : max(k.shape[2] - 4096, 0)] = 0
        cache = {"k": k, "v": cache["v"]}
    return einsum.llama(*args, theta=theta, cache=cache)


def half_angles(*args, theta=1e4, cache=None):
    """A model does so if its buffer of frequencies is cast with its weights."""
    right = einsum.rope
    einsum.rope = angles_in_the_dtype_of_x
    try:
        return einsum.llama(*args, theta=theta, cache=cache)
    finally:
        einsum.rope = right


class PadsAsQueries:
    causal_mask = staticmethod(einsum.causal_mask)
    window_mask = staticmethod(einsum.window_mask)
    document_mask = staticmethod(einsum.document_mask)

    @staticmethod
    def padding_mask(valid):
        return valid[:, None, :, None]


SOLUTIONS = {
    "eps_in_the_sum": ("softmax", "same large sums gradients empty dtype"),
    "eps_of_1e_5": ("softmax", "sums"),
    "eps_lost_in_half": ("softmax", "empty"),
    "one_maximum_for_all": ("softmax", "large"),
    "without_chunks": ("online_softmax", "pieces"),
    "maximum_from_zero": ("online_softmax", "large"),
    "minus_1e9": ("sdpa", "empty gradients"),
    "weights_detached": ("sdpa", "gradients"),
    "nan_in_the_gradient": ("sdpa", "gradients"),
    "dropout_always": (
        "sdpa",
        "same empty large future pads sums rows heads gradients dtype twice",
    ),
    "mask_of_the_first_head": ("sdpa", "same empty gradients"),
    "mask_of_the_first_row": ("mha", "same empty pads rows gradients"),
    "scale_of_the_context": ("cross", "same large empty gradients dtype"),
    "angles_in_the_dtype_of_x": ("rope", "dtype"),
    "table_of_2048": ("rope", "far"),
    "ChangedBeforeRaise": ("kv_cache", "full"),
    "OfTheClass": ("kv_cache", "same full rows apart dtype twice"),
    "mask_top_left": (
        "mha_cached",
        "chunks same apart large dtype far gradients",
    ),
    "theta_of_llama_3": ("llama", "same"),
    "repeated_heads_cached": ("llama", "small"),
    "positions_up_to_2048": ("llama", "far"),
    "other_eps": ("mla_latent", "same"),
    "keys_expanded": ("mla_absorbed", "absorbed"),
    "strided_groups": ("mha_to_gqa", "same dtype"),
    "without_tiles": ("flash", "tiles"),
    "lse_of_the_last_tile": ("flash", "same empty large dtype"),
    "nan_where_all_are_empty": ("merge", "empty"),
    "PadsAsQueries": ("masks", "same"),
    "SinksOfThese": ("sinks", "gradients"),
    "StoredInHalf": ("kv_cache", "same full"),
    "ValuesInFloat32": ("kv_cache", "dtype"),
    "values_in_float32": ("mha_to_gqa", "dtype"),
    "half_cache": ("mha_cached", "same gradients"),
    "half_inputs": ("sdpa", "same large gradients"),
    "up_to_64": ("sdpa", "same twice"),
    "mask_of_one_row": ("gqa", "same"),
    "tokens_after_256": ("mha", "same"),
    "window_of_4096": ("llama", "far"),
    "half_angles": ("llama", "far"),
}
