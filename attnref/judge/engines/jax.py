"""JAX's own call; its heads stand behind the tokens. Needs jax."""

import jax
import jax.numpy as jnp


def attend(q, k, v, mask=None, causal=False, scale=None, window=None):
    q, k, v = (jnp.asarray(x).swapaxes(1, 2) for x in (q, k, v))
    bias = None
    if mask is not None and mask.dtype.kind == "f":
        bias, mask = jnp.asarray(mask), None
    if mask is not None:
        mask = jnp.asarray(mask)
    out = jax.nn.dot_product_attention(
        q,
        k,
        v,
        bias=bias,
        mask=mask,
        is_causal=causal,
        scale=scale,
        local_window_size=window,
    )
    return out.swapaxes(1, 2)


def gradients(q, k, v, cotangent, **options):
    _, backward = jax.vjp(lambda *x: attend(*x, **options), q, k, v)
    return backward(jnp.asarray(cotangent))
