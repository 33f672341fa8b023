"""A function of sizes as a sum of products, which a page's script evaluates.

Bytes and FLOPs are linear in each size: `live.total` of live.js multiplies what
is read here off the functions of the package, and knows no formula itself.
"""

from collections.abc import Callable
from itertools import product

Terms = list[list[int | str]]


def terms(function: Callable[..., int], **sizes: int) -> Terms:
    """The products that add up to a function of these sizes, each as a number
    and the names of its factors. `sizes` are the least that it takes."""
    names = [*sizes]
    values: dict[tuple[int, ...], int] = {
        steps: function(**{n: sizes[n] + step for n, step in zip(names, steps, strict=True)})
        for steps in product((0, 1), repeat=len(names))
    }
    for i, name in enumerate(names):  # from two values to a constant and a slope
        for low in [steps for steps in values if not steps[i]]:
            high = (*low[:i], 1, *low[i + 1 :])
            values[high] -= values[low]
            values[low] -= sizes[name] * values[high]
    return [
        [value, *(n for n, step in zip(names, steps, strict=True) if step)]
        for steps, value in values.items()
        if value
    ]
