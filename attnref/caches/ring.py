"""A ring of the last tokens, for layers that look no further back."""

# --8<-- [start:imports]
import torch
from torch import Tensor

from attnref.caches.kv_cache import Cache
from attnref.core.checks import check_counts, check_sizes
from attnref.core.masks import Rule, Window

# --8<-- [end:imports]


# --8<-- [start:ring]
def _list(x: int | Tensor) -> object:
    return x.squeeze(-1).tolist() if isinstance(x, Tensor) else x


class RingKVCache(Cache):
    """Keeps the last `window` tokens and the `first` ones, in fixed memory.

    Token `p` overwrites the one in slot `p % size`, where `size` is
    `window + reserve`; the first tokens have separate slots. A chunk of
    any length may be appended: it is returned after what the slots held
    before, and its last tokens stay. A single token is written in place, and
    the slots are returned in their own order.

    `crop` goes back by up to `reserve + 1` tokens, such as a draft that
    speculative decoding rejects, and refuses more: what they have overwritten
    would be missing.

    Examples:
        >>> cache, token = RingKVCache(3), torch.ones(1, 2, 1, 4)
        >>> for _ in range(100):
        ...     k, v = cache.append(token, token)
        >>> k.shape, cache.length, cache.nbytes
        (torch.Size([1, 2, 3, 4]), 100, 192)
        >>> cache.positions(0, k.device)
        tensor([99, 97, 98])
    """

    def __init__(
        self, window: int, *, first: int = 0, reserve: int = 0
    ) -> None:
        check_sizes(window=window)
        check_counts(first=first, reserve=reserve)
        self.keeps = self._rule = Window(window, first)
        super().__init__()
        self.size = window + reserve
        self._lost: int | Tensor = 0  # the first token that is still there

    @property
    def stored(self) -> tuple[Tensor, ...]:
        return self.buffers

    def positions(self, new: int, device: torch.device) -> Tensor:
        if new == 1:  # in place
            return self._held(self._lengths(device) + 1, device)
        held = self._held(self._lengths(device), device)
        after = self._lengths(device) + torch.arange(new, device=device)
        return torch.cat((held, after), dim=-1)

    def returns(self, new: int) -> Rule | None:
        if new > 1 or self.lengths is not None or self.size > self._rule.size:
            return None
        oldest = self.length + 1 - self.size
        full = oldest >= max(self._rule.first, self._lost)
        return self.keeps if full else None

    def _lengths(self, device: torch.device) -> int | Tensor:
        return self.length if self.lengths is None else self.lengths[:, None]

    def _held(self, length: int | Tensor, device: torch.device) -> Tensor:
        """Which token each slot holds after so many, -1 = none."""
        first = self._rule.first
        slots = torch.arange(first + self.size, device=device)
        at = length - 1 - (length - 1 - slots) % self.size
        at = at.where((at >= first) & (at >= self._lost), -1)
        return torch.where(slots < first, slots.where(slots < length, -1), at)

    def append(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        self._check(tensors)
        new, device = tensors[0].shape[2], tensors[0].device
        first, start = self._rule.first, self._lengths(device)
        with torch.inference_mode(False), torch.no_grad():
            if not self.buffers:
                B, K = tensors[0].shape[:2]
                room = B, K, first + self.size
                self.buffers = tuple(
                    t.new_zeros(*room, t.shape[3]) for t in tensors
                )
            if new == 1:
                p = start + torch.arange(1, device=device)
                slot = p.where(p < first, first + (p - first) % self.size)
                for buffer, t in zip(self.buffers, tensors, strict=True):
                    at = slot.view(-1, 1, 1, 1).expand_as(t)
                    buffer.scatter_(2, at, t)
                result = self.buffers
            else:
                result = self._after(tensors, start, device)
        end = start + new
        if isinstance(end, Tensor):
            self._lost = (end - self.size).clamp(min=self._lost)
        else:
            self._lost = max(self._lost, end - self.size)
        self._extend(new)
        return result

    def _after(
        self,
        tensors: tuple[Tensor, ...],
        start: int | Tensor,
        device: torch.device,
    ) -> tuple[Tensor, ...]:
        """What the slots held and the new tokens; each slot takes one."""
        held = self._held(start + tensors[0].shape[2], device)
        S = held.shape[-1]
        slots = torch.arange(S, device=device)
        source = slots.where(held < start, S + held - start)
        source = source.view(-1, 1, S, 1)
        result = []
        for buffer, t in zip(self.buffers, tensors, strict=True):
            both = torch.cat((buffer, t), dim=2)
            buffer.copy_(both.gather(2, source.expand_as(buffer)))
            result.append(both)
        return tuple(result)

    def _check_back(self, length: int | Tensor) -> None:
        window, end = self._rule.size, torch.as_tensor(length)[..., None]
        needed = (end - window + 1).clamp(min=self._rule.first)
        if (needed < end.clamp(max=self._lost)).any():
            raise ValueError(
                f"crop to {_list(length)}, kept from {_list(self._lost)} on: "
                f"the next token sees those from {_list(needed)} on, as window="
                f"{window}; reserve={self.size - window} goes back over "
                f"{self.size - window + 1} tokens of the longest text so far"
            )

    def crop(self, length: int | Tensor) -> None:
        super().crop(length)
        lost = self._lost
        if self.lengths is not None:
            self._lost = self.lengths[:, None].clamp(max=lost)
        else:  # the rows are alike, perhaps again
            lost = int(lost.max()) if isinstance(lost, Tensor) else lost
            self._lost = min(lost, self.length)

    def reset(self) -> None:
        super().reset()
        self._lost = 0

    def reorder(self, rows: Tensor) -> None:
        super().reorder(rows)
        if isinstance(self._lost, Tensor):
            self._lost = self._lost.index_select(0, rows)


# --8<-- [end:ring]
