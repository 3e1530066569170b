"""NaNs come with any bits behind their exponent: functions that work on bits must mind."""

import numpy as np
import pytest

import numus as nm

FUNCTIONS = "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh "
FUNCTIONS += "acosh atanh erf erfc erfinv ndtr sigmoid sqrt cbrt lgamma digamma"


@pytest.mark.parametrize("name", FUNCTIONS.split())
def test_every_nan_stays_one(name):
    single = np.array([0x7FFFFFFF, 0x7FC00000, 0xFFFFFFFF, 0x7F800001], np.uint32)
    double = np.array([0x7FFFFFFFFFFFFFFF, 0xFFF0000000000001, 0x7FF8000000000000], np.uint64)
    for x in (single.view(np.float32), double.view(np.float64)):
        assert np.isnan(getattr(nm, name)(nm.asarray(x)).numpy()).all()
