"""What the tests share."""

import pytest
import torch
from hypothesis import settings
from torch import Tensor

settings.register_profile("attnref", deadline=None, max_examples=60)
settings.load_profile("attnref")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest entry of the oracle."""
    if theirs.numel() == 0:
        assert ours.shape == theirs.shape
        return 0.0
    difference = (ours.double() - theirs.double()).abs().max()
    return float(difference / theirs.double().abs().max().clamp_min(1e-300))
