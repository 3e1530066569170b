"""Products and builders of nm.linalg: what the op table does not say."""

import numpy as np
import pytest

import numus as nm
from numus.errors import ShapeError

ONES = nm.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nm.linalg.cross(ONES, nm.ones(4)), "3 elements along axis -1"),
        (lambda: nm.linalg.cross(nm.ones(2), nm.ones(2)), "3 elements along axis -1"),
        (lambda: nm.linalg.cross(ONES, nm.ones((2, 1))), r"\(2, 3\) and \(2, 1\)"),
        (lambda: nm.linalg.outer(ONES, nm.ones(3)), r"vectors, not shapes \(2, 3\) and \(3,\)"),
        (lambda: nm.linalg.vdot(ONES, nm.ones(5)), "6 and 5 elements"),
        (lambda: nm.linalg.khatri_rao(ONES, nm.ones((2, 2))), "equally many columns"),
        (lambda: nm.linalg.multi_dot([ONES, ONES]), r"\(2, 3\), \(2, 3\)"),
        (lambda: nm.linalg.multi_dot([ONES]), "two arrays or more"),
        (lambda: nm.linalg.semiring_matmul(ONES, ONES), "inner extents are equal"),
        (lambda: nm.linalg.semiring_matmul(ONES, ONES.mT, "plus"), "one of 'min_plus'"),
        (lambda: nm.linalg.trace(nm.ones(3)), "takes matrices"),
        (lambda: nm.linalg.toeplitz(nm.asarray(1.0)), "takes vectors"),
        (lambda: nm.linalg.companion(nm.ones(1)), "two coefficients"),
        (lambda: nm.linalg.vander(nm.ones(3), -1), "not be negative"),
        (lambda: nm.linalg.block_diag(), "one array or more"),
    ],
)
def test_errors_name_the_function(call, message):
    with pytest.raises((ShapeError, ValueError), match=message) as error:
        call()
    assert str(error.value).startswith("linalg.")


def test_block_diag_broadcasts_leading_axes():
    found = nm.linalg.block_diag(nm.ones((2, 1, 2, 2)), nm.ones((3, 1, 1)))
    assert found.shape == (2, 3, 3, 3)
    np.testing.assert_array_equal(found[1, 2].numpy(), [[1, 1, 0], [1, 1, 0], [0, 0, 1]])


def test_multi_dot_takes_the_cheap_order():
    """The chain (a b) c of these shapes would need 1000 times the multiplications of a (b c)."""
    a, b, c = nm.ones((1000, 1)), nm.ones((1, 1000)), nm.ones((1000, 1))
    made = nm.explain(lambda *xs: nm.linalg.multi_dot(xs), a, b, c)
    assert "1000, 1000" not in str(made)


def test_semirings_of_graphs():
    edge = nm.asarray([[False, True, False], [False, False, True], [False, False, False]])
    reach = nm.linalg.semiring_matmul(edge, edge, "or_and")
    assert reach.dtype is nm.bool
    assert reach.tolist() == [[False, False, True], [False] * 3, [False] * 3]
