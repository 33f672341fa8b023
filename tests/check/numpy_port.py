"""A reader of known answers, and a port, as the page shows them: NumPy."""

# --8<-- [start:reader]
import json

import numpy as np

TYPES = {"F32": "<f4", "I64": "<i8", "BOOL": "?"}


def read(path):
    """The tensors of a case by name, and what is said of them."""
    with open(path, "rb") as file:
        data = file.read()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    about = json.loads(header.pop("__metadata__")["attnref"])
    tensors = {}
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        flat = np.frombuffer(data[end:][start:stop], TYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors, about


def compare(mine, tensors, about, dtype="float32"):
    """right, or the mistakes that give the same, or unknown and where."""
    right = tensors["output"]
    bound = about["tolerance"][dtype]["output"]

    def same(output, bound):
        return np.allclose(mine, output, rtol=0, atol=bound, equal_nan=True)

    if same(right, bound):
        return "right"
    bound = max(bound, 4e-4 * np.abs(right).max())
    for way, mistakes in about["mistakes"].items():
        if same(tensors[f"mistake/{way}/output"], bound):
            return ", ".join(mistakes)
    worst = np.argmax(np.abs(mine - right))
    return f"unknown, worst at {np.unravel_index(worst, right.shape)}"


# --8<-- [end:reader]


# --8<-- [start:port]
def rope(x, theta):
    T, D = x.shape[-2:]
    f = theta ** (-2 * np.arange(D // 2) / D)
    angle = np.arange(T)[:, None] * f
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def gqa(tensors, given, share):
    x, H, K, D = tensors["input/x"], given["H"], given["K"], given["D"]
    B, T, _ = x.shape

    def heads(name):
        w = tensors[f"weight/{name}_proj.weight"]
        return (x @ w.T).reshape(B, T, -1, D).swapaxes(1, 2)

    q, k = rope(heads("q"), given["theta"]), rope(heads("k"), given["theta"])
    k, v = share(k, H // K), share(heads("v"), H // K)
    scores = q @ k.swapaxes(-1, -2) / D**0.5
    scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = (weights @ v).swapaxes(1, 2).reshape(B, T, H * D)
    return out @ tensors["weight/o_proj.weight"].T


# --8<-- [end:port]
