"""The operator Attention of ONNX as a model. Needs onnx."""

from onnx import helper


def model(q, k, v, mask, causal, scale, softcap, opset=23):
    """The model, and its inputs by name."""
    inputs = {"q": q, "k": k, "v": v}
    if mask is not None:
        inputs["mask"] = mask
    options = {"is_causal": int(causal), "scale": scale, "softcap": softcap}
    options = {name: x for name, x in options.items() if x is not None}
    node = helper.make_node("Attention", [*inputs], ["output"], **options)
    kinds = {
        name: helper.np_dtype_to_tensor_dtype(x.dtype)
        for name, x in inputs.items()
    }
    described = [
        helper.make_tensor_value_info(name, kinds[name], x.shape)
        for name, x in inputs.items()
    ]
    output = helper.make_tensor_value_info("output", kinds["q"], None)
    graph = helper.make_graph([node], "attention", described, [output])
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), inputs
