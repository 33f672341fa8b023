"""Masks: bool, True = may attend, joined by `&`."""

# --8<-- [start:imports]
import torch
from torch import Tensor

# --8<-- [end:imports]


# --8<-- [start:causal]
def causal_mask(
    T: int, S: int | None = None, *, device: torch.device | str | None = None
) -> Tensor:
    """No query sees a later key: `(T, S)`, bottom-right aligned.

    The `T` queries are the last `T` of the `S` positions: query `i` may
    attend to key `j` where `j <= i + S - T`, and the last query sees every
    key. With `T = S` (the default) that is the lower triangle.

    Examples:
        >>> causal_mask(2, 5).int()
        tensor([[1, 1, 1, 1, 0],
                [1, 1, 1, 1, 1]], dtype=torch.int32)
    """
    S = T if S is None else S
    if T < 0 or S < 0:
        raise ValueError(f"{T=} and {S=} must not be negative")
    full = torch.ones(T, S, dtype=torch.bool, device=device)  # (T, S)
    return full.tril(S - T)  # (T, S)


# --8<-- [end:causal]


# --8<-- [start:padding]
def padding_mask(valid: Tensor) -> Tensor:
    """No query sees a pad: `(B, 1, 1, S)` from `valid` `(B, S)`.

    True = a real token. Right or left padding makes no difference; the axes
    of size 1 stand for every head and every query.

    Examples:
        >>> valid = torch.tensor([[True, True, True], [True, False, False]])
        >>> padding_mask(valid).shape
        torch.Size([2, 1, 1, 3])
    """
    _check_valid("valid", valid)
    return valid[:, None, None, :]  # (B, 1, 1, S)


# --8<-- [end:padding]


# --8<-- [start:cross]
def cross_mask(valid: Tensor, context_valid: Tensor) -> Tensor:
    """Real queries see the real keys of another sequence: `(B, 1, T, S)`.

    `valid` `(B, T)` marks the real queries, `context_valid` `(B, S)` the
    real keys, True = real. A padded query sees nothing and yields zeros.

    Examples:
        >>> valid = torch.tensor([[True, True, False]])
        >>> context_valid = torch.tensor([[True, False]])
        >>> cross_mask(valid, context_valid)[0, 0].int()
        tensor([[1, 0],
                [1, 0],
                [0, 0]], dtype=torch.int32)
    """
    _check_valid("valid", valid)
    _check_valid("context_valid", context_valid)
    if len(valid) != len(context_valid):
        raise ValueError(
            f"valid has B={len(valid)}, context_valid B={len(context_valid)}"
        )
    if valid.device != context_valid.device:
        raise ValueError(
            f"valid is on {valid.device}, context_valid on "
            f"{context_valid.device}"
        )
    queries = valid[:, None, :, None]  # (B, 1, T, 1)
    keys = context_valid[:, None, None, :]  # (B, 1, 1, S)
    return queries & keys  # (B, 1, T, S)


# --8<-- [end:cross]


# --8<-- [start:hf]
def padding_mask_from_hf(attention_mask: Tensor) -> Tensor:
    """The padding mask, from a Hugging Face tokenizer's `attention_mask`.

    `(B, S)` of 0 and 1, 1 = real, becomes `(B, 1, 1, S)` bool, True = real.
    The numbers are looked at, so on an accelerator this waits for it.

    Examples:
        >>> padding_mask_from_hf(torch.tensor([[1, 1, 0]]))
        tensor([[[[ True,  True, False]]]])
    """
    if attention_mask.dim() != 2:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; "
            "a tokenizer gives (B, S)"
        )
    if attention_mask.dtype == torch.bool:
        return padding_mask(attention_mask)  # (B, 1, 1, S)
    real = attention_mask == 1
    if not (real | (attention_mask == 0)).all():
        raise ValueError(
            "attention_mask holds other numbers than 0 and 1; an additive "
            "mask (0 = may attend) becomes bool by `mask == 0`"
        )
    return padding_mask(real)  # (B, 1, 1, S)


# --8<-- [end:hf]


# --8<-- [start:check]
def _check_valid(name: str, valid: Tensor) -> None:
    if valid.dtype != torch.bool:
        raise TypeError(
            f"{name} is {valid.dtype}; pass bool, True = a real token "
            f"(from a tokenizer's 0/1 mask: {name}.bool())"
        )
    if valid.dim() != 2:
        raise ValueError(
            f"{name} has shape {tuple(valid.shape)}; one row a sequence is "
            "(B, S)"
        )


# --8<-- [end:check]
