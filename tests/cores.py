"""Every core of attention, found where it is tested.

A core says in its own test file, as `CORE = Core(...)`, how it is called and
what it lacks, or in `CORES` if the file tests several. The properties find them
so. `SOME_CORES` of `test_half_precision.py`, `test_families.py` and of the page
caches/same-output are chosen by name, and need no new one.
"""

from collections.abc import Callable

import pytest

from attnref import Attend
from tests.kit.core import Core
from tests.kit.declared import declared

CORES: dict[str, Core] = {
    name: core
    for folder in ("core", "kernels", "plain")
    for name, core in declared(folder, "CORE").items()
}
# What a layer may be given as `attend=` in tests, whose tensors are on the CPU.
ATTEND: dict[str, Attend] = {
    name: core.attend
    for name, core in CORES.items()
    if not (core.internal or core.absent or core.package != "torch")
    and core.device == "cpu"
}


def cores(
    condition: Callable[[Core], bool], *, sampled: bool = False
) -> pytest.MarkDecorator:
    """Parametrizes `core` with the cores that meet a condition; `sampled`: with
    those of Triton, which its interpreter makes slow, and those declared slow
    in the audit alone."""
    return pytest.mark.parametrize(
        "core",
        [
            pytest.param(
                core,
                id=name,
                marks=[
                    pytest.mark.skipif(bool(core.absent), reason=core.absent),
                    *[pytest.mark.audit]
                    * (sampled and (core.interpreted or core.slow)),
                ],
            )
            for name, core in CORES.items()
            if condition(core)
        ],
    )


each_core = cores(lambda core: True)
sampled_cores = cores(lambda core: True, sampled=True)


def each_core_with(*features: str) -> pytest.MarkDecorator:
    return cores(lambda core: core.offers(*features))
