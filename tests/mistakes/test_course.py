"""What a course's own tests can be: plain pytest, and `attnref.check`."""

# --8<-- [start:course]
import pytest
import torch

import attnref


def softmax(x, dim=-1):
    """A student's, who subtracts one maximum from all rows."""
    e = torch.exp(x - x.max())
    return e / e.sum(dim, keepdim=True)


SOLUTIONS = {"softmax": softmax}


@pytest.mark.parametrize("exercise", SOLUTIONS)
def test_solutions_are_wrong_as_expected(exercise):
    report = attnref.check(exercise, SOLUTIONS[exercise])
    assert not report.passed, str(report)
    broken = [verdict.law for verdict in report.failures]
    assert broken == ["empty", "large"]


# --8<-- [end:course]
