"""OpenVINO's operator, on a CPU, in float32. Needs openvino."""

import openvino
from openvino import opset13


def attend(q, k, v, mask=None, causal=False, scale=None):
    inputs = [q, k, v] if mask is None else [q, k, v, mask]
    parameters = [opset13.parameter([*x.shape], x.dtype) for x in inputs]
    arguments = [*parameters]
    if scale is not None:
        if mask is None:  # the scale stands behind the mask
            arguments.append(opset13.constant(0.0, q.dtype))
        arguments.append(opset13.constant(scale, q.dtype))
    node = opset13.scaled_dot_product_attention(*arguments, causal=causal)
    model = openvino.Model([node], parameters)
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    return openvino.Core().compile_model(model, "CPU", exact)(inputs)[0]
