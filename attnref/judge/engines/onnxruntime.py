"""ONNX Runtime, operator Attention, opset 23. Needs onnx, onnxruntime."""

import onnxruntime

from attnref.judge.engines._onnx import model

onnxruntime.set_default_logger_severity(4)  # errors are raised, too


def attend(q, k, v, mask=None, causal=False, scale=None, softcap=None):
    described, inputs = model(q, k, v, mask, causal, scale, softcap)
    session = onnxruntime.InferenceSession(
        described.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs)[0]
