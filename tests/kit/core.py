"""What a core of attention says of itself in its test file: see
`tests/cores.py`, and `reference/core/test_cores.py` for what is tested."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

NOTHING: dict[str, Any] = {}
FEATURES = {
    "bias",
    "compile",
    "dropout",
    "float64",
    "gradients",
    "masks",
    "meta",
    "second derivatives",
    "sinks",
    "softcap",
    "torch.func",
}


class Core(NamedTuple):
    """A function of q, k, v and a mask that computes attention.

    It is tested for all that `sdpa` can do, except for the features that it
    lacks: these it must refuse.
    """

    function: Callable[..., Tensor]
    # Ways to call it, with tiles smaller than the inputs; layers use the first.
    options: tuple[dict[str, Any], ...] = (NOTHING,)
    # A feature, and the beginning of the error with which it is refused.
    lacks: dict[str, str] = NOTHING
    # Without "masks", those of EVERY_MASK that it takes.
    masks: tuple[str, ...] = ()
    # Another core calls it with inputs that are checked; no layer takes it.
    internal: bool = False
    # Whether it skips blocks of scores that a rule hides; None where PyTorch
    # cannot count FLOPs.
    blocks: bool | None = False
    # Whether a single query makes it copy the keys; None where what it makes
    # cannot be recorded. And whether it keeps all scores of a prompt.
    copies_keys: bool | None = False
    keeps_scores: bool = False
    # Whether the gradients are the same to the bit with autocast around the
    # backward pass.
    autocast_backward: bool = True
    # Its largest relative error in float32.
    float32: float = 2e-6
    # In half precision, its error as a multiple of torch's, for heads that
    # torch's FlashAttention takes; and for groups of heads of two widths.
    half: float = 1.5
    half_grouped: float = 1.5
    # Whether it is so slow that only the audit tries it with all masks.
    slow: bool = False
    # Where it computes, and the package that it imports when it is called.
    device: str = "cpu"
    package: str = "torch"

    @property
    def attend(self) -> Callable[..., Tensor]:
        """The function with its first options, as layers take it."""
        first = self.options[0]
        return partial(self.function, **first) if first else self.function

    @property
    def exact(self) -> list[tuple[torch.dtype, float]]:
        """The dtypes that are not half, widest first, and its error in each."""
        dtypes = [(torch.float64, 1e-12), (torch.float32, self.float32)]
        return dtypes if self.offers("float64") else dtypes[1:]

    @property
    def interpreted(self) -> bool:
        """Whether its programs run one by one, in Triton's interpreter."""
        return self.package == "triton" and self.device == "cpu"

    @property
    def absent(self) -> str:
        """Why it cannot run on this machine, or nothing."""
        if find_spec(self.package) is None:
            return f"{self.package} is not installed"
        if self.device == "cuda" and not torch.cuda.is_available():
            return "there is no GPU"
        return ""

    def offers(self, *features: str) -> bool:
        assert FEATURES.issuperset(features), features
        return not {*features} & {*self.lacks}
