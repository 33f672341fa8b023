"""Parts of today's heads: norms, gates, sinks, another scale, K = V."""

# --8<-- [start:imports]
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnref.core.biases import Bias
from attnref.core.heads import merge_heads, split_heads

# --8<-- [end:imports]


# --8<-- [start:record]
@dataclass(frozen=True)
class Norm:
    """A norm of queries, keys or values.

    `over` is what one mean runs over: a `"head"`, with one weight for all
    heads or, as `"each"`, one per head; or the whole `"width"` of all heads.
    Weights are `"w"`, `"1 + w"` or None.
    """

    over: Literal["head", "each", "width"] = "head"
    kind: Literal["rms", "layer"] = "rms"
    weight: Literal["w", "1 + w"] | None = "w"
    eps: float = 1e-6


@dataclass(frozen=True)
class Gate:
    """What multiplies the output of the heads, before `o_proj`.

    `over` is `"element"` or `"head"`: how many numbers there are per head.
    They come from `gate_proj` or, `in_query`, from `q_proj`, whose rows are
    then the query and the gate of each head, head by head.
    """

    over: Literal["element", "head"] = "element"
    activation: Literal["sigmoid", "softplus"] = "sigmoid"
    in_query: bool = False


@dataclass(frozen=True)
class LongQueries:
    """Queries grow with their position `i`, in steps of `length` tokens.

    The factor is `1 + strength * log(1 + floor((i + shift) / length))`:
    `shift` is 1 in Llama 4 and 0 in Ministral 3.
    """

    strength: float
    length: int
    shift: int = 0

    def factor(self, positions: Tensor) -> Tensor:
        """Of queries at `positions` `(T,)` or `(B, T)`; float32."""
        steps = ((positions.float() + self.shift) / self.length).floor()
        return 1 + self.strength * steps.log1p()


@dataclass(frozen=True)
class HeadParts:
    """What a layer has beside its projections and RoPE: `parts=`.

    Examples:
        >>> HeadParts(norm=Norm(), softcap=50.0).told()
        {'softcap': 50.0}
    """

    norm: Norm | None = None
    norm_after_rope: bool = False
    value_norm: Norm | None = None
    key_is_value: bool = False
    long_queries: LongQueries | None = None
    scale: float | None = None
    bias: Bias | None = None
    softcap: float | None = None
    sinks: bool = False
    gate: Gate | None = None

    def told(self) -> dict[str, Any]:
        """What a core is told, and only what is set."""
        given = {n: getattr(self, n) for n in ("scale", "bias", "softcap")}
        return {n: value for n, value in given.items() if value is not None}


# --8<-- [end:record]


# --8<-- [start:modules]
class HeadNorm(nn.Module):
    """A `Norm` of `n_heads` heads of width `head_dim`."""

    def __init__(self, n_heads: int, head_dim: int, norm: Norm) -> None:
        super().__init__()
        self.norm = norm
        shapes = {"width": (n_heads * head_dim,), "each": (n_heads, head_dim)}
        shape = shapes.get(norm.over, (head_dim,))
        if norm.weight is None:
            self.weight = None
        elif norm.weight == "w":
            self.weight = nn.Parameter(torch.ones(shape))
        else:
            self.weight = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x` `(B, H, T, D)`."""
        B, H, T, D = x.shape
        y = x.to(torch.promote_types(x.dtype, torch.float32))  # (B, H, T, D)
        if self.norm.over == "width":
            y = merge_heads(y)  # (B, T, H * D)
        if self.norm.kind == "layer":
            y = y - y.mean(dim=-1, keepdim=True)
        square = y.square().mean(dim=-1, keepdim=True)
        y = y * (square + self.norm.eps).rsqrt()
        if self.weight is not None:
            w = self.weight if self.norm.weight == "w" else 1 + self.weight
            y = y * (w[:, None] if self.norm.over == "each" else w)
        if self.norm.over == "width":
            y = split_heads(y, H)  # (B, H, T, D)
        return y.to(x.dtype)


def add_parts(layer: Any, parts: HeadParts | None) -> HeadParts:
    """Give a layer the modules of its parts, named as in Hugging Face."""
    if parts is None:
        return HeadParts()
    H, D = layer.n_heads, layer.head_dim
    E, biased = layer.d_model, layer.q_proj.bias is not None
    K = layer.k_proj.out_features // D
    if parts.norm is not None:
        layer.q_norm = HeadNorm(H, D, parts.norm)
        layer.k_norm = HeadNorm(K, D, parts.norm)
    if parts.value_norm is not None:
        layer.v_norm = HeadNorm(K, D, parts.value_norm)
    if parts.key_is_value:
        layer.v_proj = None
    if parts.sinks:
        layer.sinks = nn.Parameter(torch.zeros(H))
    if parts.gate is not None:
        width = 1 if parts.gate.over == "head" else D
        if parts.gate.in_query:
            layer.q_proj = nn.Linear(E, H * (D + width), bias=biased)
        else:
            layer.gate_proj = nn.Linear(E, H * width, bias=False)
    return parts


def output_gate(layer: Any, x: Tensor, q: Tensor) -> tuple[Tensor, Any]:
    """The queries, and the gate `(B, H, T, D)` or `(B, H, T, 1)` or None."""
    gate = layer.parts.gate
    if gate is None:
        return q, None
    if gate.in_query:
        q, z = q.tensor_split((layer.head_dim,), dim=-1)
    else:
        z = split_heads(layer.gate_proj(x), layer.n_heads)
    return q, z.sigmoid() if gate.activation == "sigmoid" else F.softplus(z)


# --8<-- [end:modules]
