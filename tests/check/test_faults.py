"""Faults that `python -m tests.check.kills LAYER` plants in a layer."""

from multiprocessing import get_context

import pytest

from sitekit import ROOT
from tests.check.faults import faults
from tests.check.kills import find_test

LAYER = """
class Layer(nn.Module):
    def __init__(self):
        self.scale = 2 * self.width

    def forward(self, x, cache):
        if x.shape[1] > self.limit:
            raise ValueError(f"{x.shape[1] * 2}")
        if cache is not None:
            cache.append(x)
        x = F.silu(x.float()) * -self.scale[0]
        return x - 1
"""


def test_each_step_of_a_layer_has_a_fault():
    planted_faults = faults(LAYER)
    assert [str(fault) for fault in planted_faults] == [
        "line 9: cache is not None -> False",
        "line 10: cache.append(x) -> left out",
        "line 10: cache.append(x) -> cache",
        "line 11: -self.scale[0] -> self.scale[0]",
        "line 11: F.silu(x.float()) -> x.float()",
        "line 11: F.silu(x.float()) * -self.scale[0] -> -self.scale[0]",
        "line 11: F.silu(x.float()) * -self.scale[0] -> F.silu(x.float())",
        "line 11: x = F.silu(x.float()) * -self.scale[0] -> left out",
        "line 11: x.float() -> x",
        "line 12: x - 1 -> x",
    ]
    sources = {fault.source for fault in planted_faults}
    assert len(sources) == len(planted_faults)
    for source in sources:
        compile(source, "layer.py", "exec")


@pytest.mark.audit
def test_a_fault_of_a_layer_is_noticed():
    source = (ROOT / "attnref/layers/lightning.py").read_text(encoding="utf-8")
    (fault,) = (x for x in faults(source) if x.right.startswith("-slopes"))
    same = fault._replace(source=source)
    # A new interpreter: this one may have the layer and its tests imported.
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        calls = [("lightning", fault), ("lightning", same)]
        noticed, unchanged = pool.starmap(find_test, calls, chunksize=1)
    assert noticed and not unchanged
