"""A state of fixed size, for layers that read their tokens in order."""

import torch
from torch import Tensor

from attnref.caches.kv_cache import Cache


class StateCache(Cache):
    """What a recurrent layer keeps of all earlier tokens: a few tensors.

    Their sizes and dtypes, which the layer chooses, do not depend on the length
    of the text. The first axis is the batch. A state cannot be cropped: go back
    by a snapshot.

    Examples:
        >>> cache = StateCache()
        >>> cache.update(5, torch.ones(2, 3, 4, 4))
        >>> before = cache.snapshot()
        >>> cache.update(1, torch.zeros(2, 3, 4, 4))
        >>> cache.restore(before)
        >>> cache.length, cache.nbytes, cache.state[0].mean()
        (5, 384, tensor(1.))
    """

    can: tuple[str, ...] = ("state",)

    @property
    def stored(self) -> tuple[Tensor, ...]:
        return self.buffers

    @property
    def state(self) -> tuple[Tensor, ...]:
        return self.buffers

    def append(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        raise self._cannot("append")

    def update(self, new: int, *state: Tensor) -> None:
        if torch.is_grad_enabled() and any(t.requires_grad for t in state):
            raise ValueError(
                "a cache keeps no gradients: decode under torch.no_grad()"
            )
        # A part of a larger tensor would keep all of it in memory.
        self.buffers = tuple(t.clone() for t in state)
        self.length += new


def state_of(
    cache: Cache | None,
    device: torch.device,
    *wanted: tuple[tuple[int, ...], torch.dtype],
) -> tuple[Tensor, ...]:
    """The state before a call; zeros where nothing has been read.

    `wanted` are the shapes and dtypes of its tensors. A state of others is
    refused.
    """
    state = () if cache is None else cache.state
    if not state:
        return tuple(
            torch.zeros(shape, dtype=dtype, device=device)
            for shape, dtype in wanted
        )
    there = [(tuple(t.shape), t.dtype, t.device) for t in state]
    needed = [(shape, dtype, device) for shape, dtype in wanted]
    if there != needed:
        raise ValueError(
            f"the cache holds {_described(there)}, and the layer needs "
            f"{_described(needed)}"
        )
    return state


def _described(
    tensors: list[tuple[tuple[int, ...], torch.dtype, torch.device]],
) -> str:
    return " and ".join(
        f"{shape} {str(dtype).removeprefix('torch.')} on {device}"
        for shape, dtype, device in tensors
    )
