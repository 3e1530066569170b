"""Templates of rows: lists of offsets that rows share, found natively and as Python."""

import numpy as np
import pytest

from numus.kernels.sparse.gpu_templates import PADDING
from numus.sparse.algorithms import row_templates as module
from numus.sparse.algorithms.row_templates import find_templates, row_templates

RNG = np.random.default_rng(2)


def arrays_of(rows):
    return np.cumsum([0, *map(len, rows)]).astype(np.int32), np.concatenate(rows).astype(np.int32)


def listed(rows, columns):
    """The columns of each row by its template, and where rows have none."""
    found = row_templates(columns, *arrays_of(rows))
    if found is None:
        return None
    starts, offsets = found
    return [
        None if s < 0 else (offsets[s : s + len(row)] + i).tolist()
        for i, (row, s) in enumerate(zip(rows, starts, strict=True))
    ]


def banded(n, extra=()):
    """Rows of three kinds, in any order of columns."""
    kinds = [[0, -1, 5], [], [2, 2, -3, 7]]
    rows = [[i + o for o in kinds[i % 7 % 3]] for i in range(n)]
    for i in extra:
        rows[i] = RNG.integers(0, n, 4).tolist()
    return [np.clip(row, 0, n - 1).tolist() for row in rows]


def test_templates_are_the_rows():
    rows = banded(3000)
    assert listed(rows, 3000) == rows


def test_templates_are_padded_with_offsets_of_their_rows():
    rows = banded(3000)
    starts, offsets = row_templates(3000, *arrays_of(rows))
    for i in range(0, 3000, 7):
        if rows[i]:
            end = starts[i] + len(rows[i])
            assert set(offsets[end : end + PADDING] + i) <= set(rows[i])


def test_rows_past_the_most_templates_have_none(monkeypatch):
    monkeypatch.setattr(module, "MAX_TEMPLATES", 12)
    rows = banded(9000, range(40, 9000, 90))
    found = listed(rows, 9000)
    assert sum(f is None for f in found) > 50
    assert all(f is None or f == row for f, row in zip(found, rows, strict=True))


def test_long_rows_have_none():
    rows = banded(4000)
    rows[7] = list(range(module.MAX_LENGTH + 1))
    found = listed(rows, 4000)
    assert found[7] is None
    assert found[8:] == rows[8:]


def test_columns_out_of_bounds_are_in_no_template():
    rows = [[i, i + 1] for i in range(5000)]
    rows[0] = [-1, 0]
    found = listed(rows, 5000)
    assert (found[0], found[-1]) == (None, None)
    assert found[1:-1] == rows[1:-1]


@pytest.mark.parametrize("n", [3000, 30_000])
def test_irregular_rows_have_no_templates(n):
    assert row_templates(n, *arrays_of(RNG.integers(0, n, (n, 5)))) is None


def test_native_as_python():
    """Few slots, so that templates collide."""
    pointers, indices = arrays_of(banded(300, range(0, 300, 9)))
    given = (pointers, indices, np.full(64, -1), np.zeros(41), np.zeros(200), np.empty(300))
    arrays = [np.asarray(x).astype(np.int32) for x in given]
    lists = [x.tolist() for x in arrays]  # whose elements are unbounded, as in native code
    found = []
    for find, own in ((find_templates, arrays), (find_templates.python, lists)):
        found.append([find(300, 300, *own[:2], 300, 64, 8, 40, 200, *own[2:]), *own[2:]])
    for native, python in zip(*found, strict=True):
        np.testing.assert_array_equal(native, python)
