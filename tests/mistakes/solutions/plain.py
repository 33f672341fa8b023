"""By the plain forms of the package."""

from functools import partial

from torch.func import functional_call

from attnref.plain.attention import attention as sdpa
from attnref.plain.flash import flash
from attnref.plain.gqa import GQA
from attnref.plain.kv_cache import KVCache
from attnref.plain.masks import (
    causal_mask,
    document_mask,
    padding_mask,
    window_mask,
)
from attnref.plain.merge import merge
from attnref.plain.mla import MLA
from attnref.plain.rope import rope
from attnref.plain.softmax import online_softmax, softmax

__all__ = ["causal_mask", "document_mask", "flash", "merge", "online_softmax"]
__all__ += ["padding_mask", "rope", "sdpa", "softmax", "window_mask"]

# What an exercise asks for, and its plain form does not have.
WITHOUT = {
    "mha": "its plain form is causal; the exercise gives any mask",
    "mha_cached": "its plain form has no cache",
    "mqa": "GQA with one head is causal and has RoPE",
    "gqa": "its plain form is causal and has RoPE: the exercise llama",
    "cross": "its plain form takes the pads of the context, not any mask",
    "mha_to_gqa": "a conversion of weights, without a plain form",
}


def called(layer, weights, x, cache, **form):
    """The layer with these weights, by name, and the cache of the call."""
    cache = KVCache(max_len=2100) if cache is None else cache
    weights = {f"{name}.weight": w for name, w in weights.items()}
    return functional_call(layer, weights, (x, cache), form), cache


def llama(
    x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads, theta=10000.0, cache=None
):
    layer = GQA(x.shape[2], n_heads, n_kv_heads, theta=theta)
    weights = {"q_proj": w_q, "k_proj": w_k, "v_proj": w_v, "o_proj": w_o}
    return called(layer, weights, x, cache)


def mla(
    x, w_q, w_kv_a, w_norm, w_kv_b, w_o, n_heads, theta=1e4, cache=None, **form
):
    R, H = len(w_norm), n_heads
    Dr, Dv = len(w_kv_a) - R, w_o.shape[1] // H
    layer = MLA(x.shape[2], H, R, len(w_q) // H - Dr, Dr, Dv, theta=theta)
    weights = {"q_proj": w_q, "kv_a_proj_with_mqa": w_kv_a}
    weights |= {"kv_a_layernorm": w_norm, "kv_b_proj": w_kv_b, "o_proj": w_o}
    return called(layer, weights, x, cache, **form)


mla_latent = partial(mla, absorbed=False)
mla_absorbed = partial(mla, absorbed=True)
