"""A state of fixed size, for layers that read their tokens in order."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache
from attnref.caches.past import view_of
from attnref.core.recurrence import chunked
from attnref.core.sdpa import without_autocast


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

    `wanted` are the shapes and dtypes of its tensors. A state with others is
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


class InOrder:
    """A call of a recurrent layer: its new tokens, and the state before them.

    `x` `(B, T, E)` are the tokens as if all pads came last, each a zero, and
    `wide` is the dtype of a state. Pads change nothing, whatever they hold, and
    nothing passes from one packed document to the next.
    """

    def __init__(
        self,
        layer: Any,
        x: Tensor,
        *,
        cache: Cache | None,
        mask: Tensor | None,
        positions: Tensor | None,
    ) -> None:
        view = view_of(layer, cache, x, mask=mask, positions=positions)
        real, self.cache, self.order = view.real(), cache, None
        self.document = view.documents(layer.causal)
        if real is not None:
            self.order = (~real).int().argsort(dim=1, stable=True)  # (B, T)
            x = x.gather(1, self.order[..., None].expand_as(x))  # (B, T, E)
            T, n_real = x.shape[1], real.sum(1, keepdim=True)
            real = torch.arange(T, device=x.device) < n_real  # (B, T)
            x = x.where(real[..., None], 0)  # (B, T, E); a pad may hold NaN
            if self.document is not None:  # pads are of the last
                document = self.document.gather(1, self.order)
                self.document = document.cummax(1).values  # (B, T)
        self.x, self.real = x, real
        self.wide = torch.promote_types(x.dtype, torch.float32)

    def state(
        self, *wanted: tuple[tuple[int, ...], torch.dtype]
    ) -> tuple[Tensor, ...]:
        """What `state_of` returns: the state before these tokens."""
        return state_of(self.cache, self.x.device, *wanted)

    def convolved(
        self, conv: nn.Conv1d, mixed: Tensor, inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A causal convolution of each channel, and its last inputs.

        `mixed` is `(B, T, C)`; `inputs`, `(B, C, kernel - 1)`, are the last
        ones before it, and then those for the next call.
        """
        T, past = mixed.shape[1], inputs.shape[2]
        mixed = torch.cat((inputs, mixed.mT), dim=-1)  # (B, C, past + T)
        last = torch.arange(past, device=mixed.device).expand(len(mixed), -1)
        last = last + (T if self.real is None else self.real.sum(1)[:, None])
        inputs = mixed.gather(2, last[:, None].expand_as(inputs))
        if self.document is None:
            return conv(mixed).mT, inputs
        # Inputs of another document count as zeros.
        number = F.pad(self.document, (past, 0))  # (B, past + T)
        same = number.unfold(1, past + 1, 1) == self.document[..., None]
        windows = mixed.unfold(2, past + 1, 1) * same[:, None]
        out = (windows * conv.weight).sum(dim=-1)  # (B, C, T)
        if conv.bias is not None:
            out = out + conv.bias[:, None]
        same = number.gather(1, last) == self.document[:, -1:]
        return out.to(mixed.dtype).mT, inputs * same[:, None]

    def read(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        decay: Tensor,
        state: Tensor,
        *,
        beta: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What `chunked` returns: reads, and the state after these tokens."""
        if self.real is not None:  # a pad writes nothing and lets none decay
            real = self.real[:, None, :, None]  # (B, 1, T, 1)
            decay = decay * (real if decay.dim() == 4 else real[..., 0])
            if beta is None:
                k = k * real
            else:
                beta = beta * real[..., 0]
        with without_autocast(q.device):  # a state in float32
            return chunked(
                q, k, v, decay, state, beta=beta, document=self.document
            )

    def end(self, out: Tensor, *state: Tensor) -> Tensor:
        """The output, zeros at its pads; the cache now holds the state."""
        if self.cache is not None:
            self.cache.update(out.shape[1], *state)
        if self.order is None or self.real is None:
            return out
        out = out.where(self.real[..., None], 0)  # (B, T, E)
        back = self.order.argsort(dim=1)[..., None]
        return out.gather(1, back.expand_as(out))
