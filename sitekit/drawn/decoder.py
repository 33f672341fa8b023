"""What a whole model is made of, and where its parameters are."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch

from attnref.plain.llama import Llama
from sitekit.drawn.merge import Stages
from sitekit.markdown.render import Row, Word

SMALL: dict[str, Any] = {"d_model": 96, "d_ff": 160, "n_layers": 2}
SMALL |= {"vocab": 101, "n_heads": 6, "n_kv_heads": 3}
# Llama-3.1-8B: arXiv:2407.21783, table 3; vocab is that of its tokenizer.
LLAMA: dict[str, Any] = {"d_model": 4096, "d_ff": 14336, "n_layers": 32}
LLAMA |= {"vocab": 128256, "n_heads": 32, "n_kv_heads": 8}


def shapes(*names: str) -> Stages:
    """What these modules of a small model give for 3 rows of 7 tokens."""
    model = Llama(**SMALL)
    outputs = {"": "3 x 7"}
    for name in names:

        def keep(_: Any, __: Any, out: torch.Tensor, name: str = name) -> None:
            outputs[name] = " x ".join(map(str, out.shape))

        if name:
            model.get_submodule(name).register_forward_hook(keep)
    with torch.no_grad():
        model(torch.zeros(3, 7, dtype=torch.long))
    kinds = ["on" if "self_attn" in name else "off" for name in names]
    return Stages([(k, [outputs[n]]) for k, n in zip(kinds, names, strict=True)])


def model() -> Stages:
    names = "embed_tokens", "layers.0", "layers.1", "norm"
    return shapes("", *(f"model.{name}" for name in names), "lm_head")


def block() -> Stages:
    names = "input_layernorm", "self_attn", "post_attention_layernorm", "mlp"
    return shapes(*(f"model.layers.0.{name}" for name in names))


def parameters() -> Iterator[Row]:
    """Parameters of the plain model in the sizes of Llama-3.1-8B, by part."""
    # For a normal distribution on meta, torch would import its compiler.
    with torch.device("meta"), patch("torch.nn.init.normal_"):
        model = Llama(**LLAMA)
    parts = dict.fromkeys(("self_attn", "mlp", "embed_tokens", "lm_head"), 0)
    for name, weight in model.named_parameters():
        matches = [part for part in parts if part in name]
        if matches:
            parts[matches[0]] += weight.numel()
    total = sum(p.numel() for p in model.parameters())
    parts["norms"] = total - sum(parts.values())
    for part, number in [*parts.items(), ("total", total)]:
        yield [Word(part), f"{number:,}", f"{number / total:.2%}"]


def numbers() -> dict[str, object]:
    """What a note says of logits in float32."""
    return {"logits": LLAMA["vocab"] * 8192 * 4 / 2**30}
