"""Keras on its backend; its heads stand behind the tokens. Needs keras."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras


def attend(q, k, v, mask=None, causal=False, scale=None):
    q, k, v = (
        keras.ops.transpose(keras.ops.convert_to_tensor(x), (0, 2, 1, 3))
        for x in (q, k, v)
    )
    bias = None
    if mask is not None and mask.dtype.kind == "f":
        bias, mask = mask, None
    out = keras.ops.dot_product_attention(
        q, k, v, bias=bias, mask=mask, scale=scale, is_causal=causal
    )
    return keras.ops.convert_to_numpy(keras.ops.transpose(out, (0, 2, 1, 3)))
