"""MLX's own call, which asks for the scale. Needs mlx."""

import mlx.core as mx

mx.set_default_device(mx.cpu)


def attend(q, k, v, mask=None, causal=False, scale=None, sinks=None):
    if causal and mask is not None:
        raise ValueError("one mask alone: 'causal' or an array")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = map(mx.array, (q, k, v))
    mask = "causal" if causal else None if mask is None else mx.array(mask)
    sinks = None if sinks is None else mx.array(sinks)
    return mx.fast.scaled_dot_product_attention(
        q, k, v, scale=scale, mask=mask, sinks=sinks
    )


def rotate(x, positions, theta):
    return mx.fast.rope(
        mx.array(x),
        x.shape[-1],
        traditional=False,
        base=theta,
        scale=1.0,
        offset=int(positions[0]),
    )
