"""Sees each operation that a layer calls while it runs."""

from torch.utils._python_dispatch import TorchDispatchMode


class Recorder(TorchDispatchMode):
    """A subclass writes down what its `__torch_dispatch__` is called for."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip its compiler, torch would have to import it
