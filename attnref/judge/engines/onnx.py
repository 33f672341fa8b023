"""The reference of ONNX, operator Attention, opset 23. Needs onnx."""

from onnx.reference import ReferenceEvaluator

from attnref.judge.engines._onnx import model


def attend(q, k, v, mask=None, causal=False, scale=None, softcap=None):
    described, inputs = model(q, k, v, mask, causal, scale, softcap)
    return ReferenceEvaluator(described).run(None, inputs)[0]
