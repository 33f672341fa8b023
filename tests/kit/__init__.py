"""What several test files share: one module a subject."""

import pkgutil
from collections.abc import Callable, Iterable
from typing import Any

import pytest

# So that what fails in this folder says what it compared.
pytest.register_assert_rewrite(
    *(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__))
)


def sampled(
    values: Iterable[Any], in_test: Callable[[Any], bool] | Iterable[Any]
) -> list[Any]:
    """Parameters of which `make test` takes some and `make audit` the others.

    A tuple is several. Without `-m`, pytest runs all of them.
    """
    is_in_test = in_test if callable(in_test) else [*in_test].__contains__
    parameters = [
        pytest.param(
            *(value if isinstance(value, tuple) else [value]),
            marks=() if is_in_test(value) else pytest.mark.audit,
        )
        for value in values
    ]
    assert any(not p.marks for p in parameters), "nothing in make test"
    return parameters
