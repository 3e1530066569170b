"""Rows of the op table in the dtypes that take the same way as others: 16-bit floats, complex64."""

import pytest
import test_ops
from ops import linalg, linalg_spectral

MORE = [
    row.replace(dtypes=("float16", "bfloat16", *(["complex64"] * ("complex128" in row.dtypes))))
    for row in (*linalg.SOLVERS, *linalg.SPECTRA, *linalg_spectral.ROWS)
    if "float64" in row.dtypes and "int32" not in row.dtypes
]


@pytest.mark.slow
@pytest.mark.parametrize("row", MORE, ids=lambda r: r.name)
def test_values(row):
    test_ops.check_values(row, "cpu", lambda calls: calls)
