"""Ours beside an oracle."""

from torch import Tensor


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest entry of the oracle."""
    if theirs.numel() == 0:
        assert ours.shape == theirs.shape
        return 0.0
    ours, theirs = ours.detach(), theirs.detach()
    difference = (ours.double() - theirs.double()).abs().max()
    return float(difference / theirs.double().abs().max().clamp_min(1e-300))
