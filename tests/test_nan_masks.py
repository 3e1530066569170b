"""Statistics of the elements that are not NaN, under a mask: against NumPy's."""

import warnings

import numpy as np
import pytest

import numus as nm

NAMES = ("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin")
X = np.array([[1.0, np.nan, 3.0, 4.0], [np.nan, np.nan, np.nan, 2.0]])
MASK = np.array([[True, True, False, True], [True, True, True, False]])


def expected(name, options):
    options = {"correction": 0, **options} if name in ("nanvar", "nanstd") else options
    start = {"nanmax": -np.inf, "nanmin": np.inf}.get(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if start is None or "initial" in options:
            return getattr(np, name)(X, where=MASK, **options)
        found = getattr(np, name)(X, where=MASK, initial=start, **options)
    return np.where(np.isinf(found), np.nan, found)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, {"axis": 1}, {"axis": 0, "keepdims": True}], ids=str)
def test_masked(name, options):
    found = getattr(nm, name)(nm.asarray(X), where=nm.asarray(MASK), **options)
    np.testing.assert_allclose(found.numpy(), expected(name, options), rtol=1e-12)


@pytest.mark.parametrize("name", ["nansum", "nanprod", "nanmax", "nanmin"])
def test_started(name):
    options = {"axis": 1, "initial": 2.5}
    found = getattr(nm, name)(nm.asarray(X), where=nm.asarray(MASK), **options)
    np.testing.assert_allclose(found.numpy(), expected(name, options), rtol=1e-12)
