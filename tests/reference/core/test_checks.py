import numpy
import pytest

from attnref.core.checks import whole_number


def test_a_whole_number_becomes_an_int():
    for number in 3, numpy.int64(3):
        assert type(whole_number("size", number)) is int
    for wrong in True, 3.0, numpy.int32(3):
        with pytest.raises(TypeError, match=r"^size is \w+; pass an int$"):
            whole_number("size", wrong)
