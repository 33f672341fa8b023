"""Of softmax, masks and attention."""

from functools import partial

from tests.mistakes.laws import is_softmax

SUITES = {
    "plain.softmax": (
        (is_softmax, lambda p: (p.softmax.softmax,)),
        (is_softmax, lambda p: (partial(p.softmax.online_softmax, chunk=2),)),
    ),
}
