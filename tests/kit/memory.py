"""Bytes that a call takes, as torch counts them: a process's own memory also
depends on what ran before, and on the machine."""

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode


def allocated(call: Callable[[], object]) -> int:
    """The bytes that one call allocates, inside kernels too."""
    call()  # the first call also allocates what is kept
    with profile(profile_memory=True) as log:
        call()
    return sum(max(event.self_cpu_memory_usage, 0) for event in log.events())


class Held(TorchDispatchMode):
    """The most bytes that tensors took at one time; not inside kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.most, self.users = 0, Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            memory = out.untyped_storage()
            place = memory.data_ptr(), memory.nbytes()
            self.users[place] += 1
            weakref.finalize(out, self.users.subtract, [place])
            now = sum(n for (_, n), users in self.users.items() if users)
            self.most = max(self.most, now)
        return out
