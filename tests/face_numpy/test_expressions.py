"""`numus.numpy` against NumPy: the same text evaluated with both."""

import numpy
import pytest
from face_numpy.expressions import EXPRESSIONS

import numus as nm
import numus.numpy

LINES = [line for line in EXPRESSIONS.strip().splitlines() if not line.startswith("#")]


def names(np):
    f = np.array([[0.5, 1.5, 2.5], [0.25, 3.0, 1.0]], dtype=np.float32)
    i = np.array([[1, 2, 3], [4, 5, 6]])
    known = {"f": f, "i": i, "u": i.astype(np.uint8), "h": f.astype(np.float16), "b": i > 2}
    return {"np": np, "c": f + 1j * f, **known}


MINE, THEIRS = names(numus.numpy), names(numpy)


def assert_same(mine, theirs):
    if isinstance(theirs, (tuple, list)):
        assert isinstance(mine, (tuple, list))
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(theirs, numpy.ndarray):
        assert isinstance(mine, numus.numpy.ndarray)
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        narrow = theirs.dtype in (numpy.float16, numpy.float32, numpy.complex64)
        tolerance = 2e-3 if theirs.dtype == numpy.float16 else 1e-5 if narrow else 1e-12
        numpy.testing.assert_allclose(
            mine.__array__(), theirs, rtol=tolerance, atol=tolerance, strict=True
        )
    elif isinstance(theirs, numpy.generic):
        assert type(mine) is type(theirs)
        tolerance = 1e-5 if theirs.dtype.itemsize < 8 or theirs.dtype == numpy.complex64 else 1e-12
        numpy.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)
    else:
        assert type(mine) is type(theirs)
        assert mine == theirs


@pytest.mark.parametrize("line", LINES)
def test_same_as_numpy(line):
    assert_same(eval(line, dict(MINE)), eval(line, dict(THEIRS)))


def test_arrays_are_tensors():
    assert all(isinstance(MINE[name], nm.Tensor) for name in "fiubc")
