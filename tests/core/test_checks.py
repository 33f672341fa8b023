import numpy
import pytest

from attnref.core.checks import check_layer, whole_number


def test_a_whole_number_becomes_an_int():
    for number in 3, numpy.int64(3):
        assert type(whole_number("size", number)) is int
    for wrong in True, 3.0, numpy.int32(3):
        with pytest.raises(TypeError, match=r"^size is \w+; pass an int$"):
            whole_number("size", wrong)


def test_theta_is_above_0():
    sizes = 8, 2, 2, None, 0.0
    assert check_layer(*sizes, rope_theta=0.5) == 4
    with pytest.raises(ValueError, match=r"rope_theta=0\.0 must be positive"):
        check_layer(*sizes, rope_theta=0.0)
