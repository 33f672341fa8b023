"""Known mistakes, each as wrong lines in the place of right ones, and the
checker that finds them in other code.

`attnref.check` is this folder once a module of it is imported, and by then the
function of `checker`, which users call by that name, would be gone: so the
folder can be called as it is.
"""

import sys
from types import ModuleType
from typing import Any


class _Check(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        from attnref.check.checker import check

        return check(*args, **options)


sys.modules[__name__].__class__ = _Check
