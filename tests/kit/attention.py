"""Inputs and masks for attention functions, and a record of their memory."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from attnref import (
    Causal,
    Documents,
    Prefix,
    RuleMask,
    Window,
    causal_mask,
    padding_mask,
)

B, T, S, H, K, D, DV = 2, 7, 11, 6, 3, 5, 13


def qkv(dtype=torch.float64, *, sharp=4.0, **sizes):
    """Random q, k, v with a prime an axis; sharp enough to peak softmax."""
    s = {"B": B, "T": T, "S": S, "H": H, "K": K, "D": D, "DV": DV} | sizes
    q = sharp * torch.randn(s["B"], s["H"], s["T"], s["D"])
    k = torch.randn(s["B"], s["K"], s["S"], s["D"])
    v = torch.randn(s["B"], s["K"], s["S"], s["DV"])
    return tuple(x.to(dtype) for x in (q, k, v))


def torch_sdpa(q, k, v, mask=None, scale=None):
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scale, enable_gqa=True
    )


MASKS = {
    "none": lambda: None,
    "causal": lambda: causal_mask(T, S),
    "padding": lambda: padding_mask(torch.rand(B, S) > 0.4),
    "per head": lambda: torch.rand(1, H, T, S) > 0.4,
    "per batch": lambda: torch.rand(B, 1, T, S) > 0.4,
    "full": lambda: torch.rand(B, H, T, S) > 0.6,
    "one row": lambda: torch.rand(1, S) > 0.4,
    "nothing": lambda: torch.zeros(T, S, dtype=torch.bool),
}


def wrong_masks(B, H, T, S):
    """Masks that no core accepts for these sizes, each with its error."""

    def true(*shape):
        return torch.ones(*shape, dtype=torch.bool)

    no = f", which does not broadcast to (B, H, T, S) = {(B, H, T, S)}"
    three = ": 3 axes can mean (B, T, S) or (H, T, S); write mask[:, None] or"
    masks = {}
    for name, mask, says in (
        (
            "valid",
            true(B, S),
            f"{no}; padding_mask(valid) gives {(B, 1, 1, S)}",
        ),
        ("1 axis", true(S), no),
        ("3 axes", true(B, T, S), three),
        ("5 axes", true(1, B, 1, T, S), no),
        ("transposed", true(S, T), no),
        ("too many queries", true(T + 2, S), no),
        ("too many keys", true(B, 1, 1, S + 2), no),
        ("another batch", true(B + 2, 1, 1, S), no),
    ):
        says = f"mask has shape {tuple(mask.shape)}{says}"
        masks[name] = mask, ValueError, says
    for name, mask, remedy in (
        ("additive", torch.zeros(T, S), "mask == 0 if"),
        ("whole numbers", true(T, S).int(), "mask.bool()"),
        ("a tokenizer's", true(B, S).long(), "padding_mask_from_hf"),
    ):
        says = f"mask is {mask.dtype}; pass bool, True = may attend: {remedy}"
        masks[name] = mask, TypeError, says
    rule = "mask is Causal; pass a rule as a layer's `causal`, or in a RuleMask"
    return masks | {
        "elsewhere": (true(T, S).to("meta"), ValueError, "mask is on meta, q"),
        "a word": ("causal", TypeError, "mask is str; pass a bool tensor"),
        "a rule": (Causal(), TypeError, rule),
    }


# --8<-- [start:made]
class Made(torch.utils._python_dispatch.TorchDispatchMode):
    """Records the largest new tensor in bytes; views of inputs are not new."""

    def __init__(self, *inputs):
        super().__init__()
        self.inputs = {x.untyped_storage().data_ptr() for x in inputs}
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple) else (out,):
            if isinstance(x, torch.Tensor):
                memory = x.untyped_storage()
                if memory.data_ptr() not in self.inputs:
                    self.largest = max(self.largest, memory.nbytes())
        return out


# --8<-- [end:made]


@dataclass(frozen=True)
class Blocks(Causal):
    """Shows a token the earlier tokens of its own block of three."""

    def shows(self, i, j):
        return super().shows(i, j) & (j // 3 == i // 3)


EVERY_MASK = MASKS | {
    "lazy": lambda: RuleMask(Causal(), T, S, S - T),
    "lazy with pads": lambda: RuleMask(
        Causal(), T, S, S - T, None, torch.rand(B, 1, 1, S) > 0.4
    ),
    "lazy, keys elsewhere": lambda: RuleMask(
        Causal(), T, S, S - T, torch.randperm(S).masked_fill_(torch.tensor(
            [False] * (S - 2) + [True] * 2), -1)
    ),
    "blocks": lambda: RuleMask(Blocks(), T, S, S - T),
    "an empty row": lambda: torch.arange(T)[:, None] != 2,
    "one head": lambda: torch.rand(B, H, 1, S) > 0.4,
    "window": lambda: RuleMask(Window(3), T, S, S - T),
    "prefix": lambda: RuleMask(Prefix(torch.tensor([7, 0])), T, S, S - T),
    "documents": lambda: RuleMask(
        Causal() & Documents(torch.arange(B * S).reshape(B, S) // 4),
        T, S, S - T,
    ),
}  # fmt: skip


def leaves(*tensors):
    return tuple(x.detach().clone().requires_grad_() for x in tensors)


def gradients(core, inputs, output_gradient, *args, **options):
    """The gradients of q, k and v for this gradient of the output."""
    copies = leaves(*inputs)
    core(*copies, *args, **options).backward(output_gradient)
    return tuple(x.grad for x in copies)
