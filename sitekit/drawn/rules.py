"""Rules as heat maps: of all keys, and of keys in the slots of a cache."""

from torch import Tensor

import attnref


def mask_of(rule: attnref.Rule, length: int) -> Tensor:
    return attnref.RuleMask(rule, length, length, 0).dense()


def prefix(length: int, seen: int) -> Tensor:
    return mask_of(attnref.Prefix(seen), length)


def slots(numbers: Tensor, size: int) -> Tensor:
    """A window of `size`, for tokens 3 and 4 and the keys of these numbers."""
    rule = attnref.Window(size)
    return attnref.RuleMask(rule, 2, len(numbers), 3, numbers).dense()
