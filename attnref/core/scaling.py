"""Other frequencies for RoPE: how models read texts longer than trained on."""

# --8<-- [start:imports]
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

# --8<-- [end:imports]


# --8<-- [start:scaling]
@dataclass(frozen=True)
class Scaling:
    """A change of RoPE's frequencies; each kind defines `slowed`."""

    def slowed(self, frequencies: Tensor, theta: float) -> Tensor:
        """The frequencies that replace these, which come from `theta`."""
        raise NotImplementedError

    @property
    def table_scale(self) -> float:
        """The factor by which all cosines and sines are multiplied."""
        return 1.0

    @property
    def softmax_scale(self) -> float:
        """The factor by which MLA multiplies the scale of its scores."""
        return 1.0

    def at(self, length: int) -> "Scaling":
        """The scaling of a text of this length: itself, unless lengths matter.

        Keys that were rotated at one length are stale at another where the
        two are not equal.
        """
        return self


def _at_least_1(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number >= 1:
            raise ValueError(f"{name}={number} must be at least 1")


# --8<-- [end:scaling]


# --8<-- [start:linear]
@dataclass(frozen=True)
class PositionInterpolation(Scaling):
    """All frequencies are divided by `factor`: `linear` in transformers.

    Examples:
        >>> PositionInterpolation(8.0).slowed(torch.tensor([1.0, 0.1]), 100.0)
        tensor([0.1250, 0.0125])
    """

    factor: float

    def __post_init__(self) -> None:
        _at_least_1(factor=self.factor)

    def slowed(self, frequencies: Tensor, theta: float) -> Tensor:
        """The frequencies, each divided by `factor`."""
        return frequencies / self.factor


@dataclass(frozen=True)
class Proportional(Scaling):
    """Only the first pairs turn, as in the full layers of Gemma 4.

    With `Rope(width=...)`, the pairs that turn have all frequencies from 1 to
    about 1 / theta. Here they keep those that they have among all pairs.

    Examples:
        >>> Proportional(0.5).slowed(torch.tensor([1.0, 0.1]), 100.0)
        tensor([1., 0.])
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share} must be in (0, 1]")

    def slowed(self, frequencies: Tensor, theta: float) -> Tensor:
        """The first frequencies, and zeros for the others."""
        slow = frequencies.clone()
        slow[int(self.share * len(slow)) :] = 0
        return slow


# --8<-- [end:linear]


# --8<-- [start:llama3]
@dataclass(frozen=True)
class Llama3(Scaling):
    """Llama 3.1: slow pairs are divided by `factor`, at every length.

    A pair that makes at least `high_freq_factor` turns within
    `original_max_len` tokens keeps its frequency, one that makes at most
    `low_freq_factor` has it divided, and those between are blended by turns.

    Examples:
        >>> scaling = Llama3(8.0, 1.0, 4.0, 8192)
        >>> scaling.slowed(torch.tensor([1.0, 0.002, 0.0001]), 500000.0)
        tensor([1.0000e+00, 1.1878e-03, 1.2500e-05])
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_len: int

    def __post_init__(self) -> None:
        _at_least_1(factor=self.factor, original_max_len=self.original_max_len)
        if not self.high_freq_factor > self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor={self.high_freq_factor} must be above "
                f"low_freq_factor={self.low_freq_factor}"
            )

    def slowed(self, frequencies: Tensor, theta: float) -> Tensor:
        """The frequencies, with the slow pairs divided by `factor`."""
        low, high = self.low_freq_factor, self.high_freq_factor
        turns = self.original_max_len * frequencies / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return frequencies * kept + frequencies / self.factor * (1 - kept)


# --8<-- [end:llama3]


# --8<-- [start:yarn]
@dataclass(frozen=True)
class Yarn(Scaling):
    """YaRN: slow pairs are divided by `factor`, and scores are sharper.

    A pair that makes at least `beta_fast` turns within `original_max_len`
    tokens keeps its frequency; one that makes at most `beta_slow` turns has it
    divided by `factor`; between the two, a linear ramp over the pairs blends
    both. `truncate` rounds the ends of the ramp to whole pairs. The tables are
    multiplied by `attention_factor` or, without it, as `mscale` says;
    `mscale_all_dim` scales the scores of MLA.

    Examples:
        >>> yarn = Yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
        >>> round(yarn.softmax_scale, 3)  # (0.1 * ln(40) + 1) ** 2
        1.874
    """

    factor: float
    original_max_len: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        _at_least_1(factor=self.factor, original_max_len=self.original_max_len)
        if not self.beta_fast >= self.beta_slow > 0:
            raise ValueError(
                f"beta_fast={self.beta_fast} must be at least "
                f"beta_slow={self.beta_slow}, and both above 0"
            )

    @property
    def table_scale(self) -> float:
        """The factor by which all cosines and sines are multiplied."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._scale(self.mscale) / self._scale(self.mscale_all_dim)
        return self._scale(1.0)

    @property
    def softmax_scale(self) -> float:
        """The factor by which MLA multiplies the scale of its scores."""
        return self._scale(self.mscale_all_dim) ** 2

    def _scale(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0

    def slowed(self, frequencies: Tensor, theta: float) -> Tensor:
        """The frequencies, with the low ones divided by `factor`."""
        D = 2 * len(frequencies)

        def pair(turns: float) -> float:
            """The index (a float) of the pair with so many turns."""
            wavelength = self.original_max_len / (turns * 2 * math.pi)
            return D * math.log(wavelength) / (2 * math.log(theta))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, D - 1)
        p = torch.arange(D // 2).to(frequencies)
        slow = ((p - low) / (high - low or 0.001)).clamp(0, 1)
        return frequencies * (1 - slow) + frequencies / self.factor * slow


# --8<-- [end:yarn]


# --8<-- [start:length]
@dataclass(frozen=True)
class Ntk(Scaling):
    """NTK-aware: a larger base, which divides the last pair by `factor`.

    Examples:
        >>> Ntk(8.0).slowed(torch.tensor([1.0, 0.1, 0.01]), 1000.0)
        tensor([1.0000, 0.0354, 0.0012])
    """

    factor: float

    def __post_init__(self) -> None:
        _at_least_1(factor=self.factor)

    def slowed(self, frequencies: Tensor, theta: float) -> Tensor:
        """The frequencies of the base `theta * factor ** (D / (D - 2))`."""
        n = len(frequencies)
        p = torch.arange(n).to(frequencies)
        return frequencies * self.factor ** (-p / max(n - 1, 1))


@dataclass(frozen=True)
class DynamicNtk(Ntk):
    """NTK-aware, by the text's length: unchanged up to `original_max_len`.

    Examples:
        >>> dynamic = DynamicNtk(2.0, 4096)
        >>> dynamic.at(4096), dynamic.at(8192)
        (Ntk(factor=1.0), Ntk(factor=3.0))
    """

    original_max_len: int

    def __post_init__(self) -> None:
        _at_least_1(factor=self.factor, original_max_len=self.original_max_len)

    def slowed(self, frequencies: Tensor, theta: float) -> Tensor:
        """Unchanged; `at` returns the scaling of a longer text."""
        return frequencies

    def at(self, length: int) -> Scaling:
        """NTK-aware, with the factor for a text of this length."""
        longer = max(length / self.original_max_len, 1.0)
        return Ntk(self.factor * longer - (self.factor - 1))


@dataclass(frozen=True)
class LongRope(Scaling):
    """LongRoPE: each pair is divided by its factor in one of two lists.

    `short` holds for texts of up to `original_max_len` tokens and `long` for
    longer ones, for all their tokens. `factor` is the longest text divided by
    `original_max_len`; it decides the scale of the tables, unless
    `attention_factor` does.

    Examples:
        >>> phi = LongRope([1.0, 1.0], [1.1, 64.0], 4096, factor=32.0)
        >>> phi.at(4097).slowed(torch.tensor([1.0, 0.01]), 10000.0)
        tensor([9.0909e-01, 1.5625e-04])
        >>> round(phi.table_scale, 4)  # sqrt(1 + ln(32) / ln(4096))
        1.1902
    """

    short: Sequence[float]
    long: Sequence[float]
    original_max_len: int
    factor: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        _at_least_1(factor=self.factor, original_max_len=self.original_max_len)
        if self.attention_factor is None and self.original_max_len == 1:
            raise ValueError(
                "original_max_len=1 gives no scale: divided by ln 1 = 0; pass "
                "attention_factor"
            )
        for name in ("short", "long"):  # a list has no hash
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.short) != len(self.long):
            raise ValueError(
                f"short has {len(self.short)} factors, long {len(self.long)}"
            )

    @property
    def table_scale(self) -> float:
        """The factor by which all cosines and sines are multiplied."""
        if self.attention_factor is not None:
            return self.attention_factor
        longer = math.log(self.factor)
        return math.sqrt(1 + longer / math.log(self.original_max_len))

    def slowed(self, frequencies: Tensor, theta: float) -> Tensor:
        """Divided by `short`; `at` returns the scaling of a longer text."""
        if len(self.short) != len(frequencies):
            raise ValueError(
                f"LongRope has {len(self.short)} factors, one per pair; RoPE "
                f"rotates {len(frequencies)} pairs"
            )
        return frequencies / torch.tensor(self.short).to(frequencies)

    def at(self, length: int) -> Scaling:
        """LongRoPE with the list of factors for a text of this length."""
        chosen = self.long if length > self.original_max_len else self.short
        return replace(self, short=chosen, long=chosen)


# --8<-- [end:length]
