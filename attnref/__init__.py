"""attnref: transformer attention, written to be read and safe to copy."""

from attnref.masks import (
    causal_mask,
    cross_mask,
    padding_mask,
    padding_mask_from_hf,
)
from attnref.sdpa import attention_weights, sdpa
from attnref.softmax import online_softmax, softmax

__all__ = [
    "attention_weights",
    "causal_mask",
    "cross_mask",
    "online_softmax",
    "padding_mask",
    "padding_mask_from_hf",
    "sdpa",
    "softmax",
]
__version__ = "0.1.0"
