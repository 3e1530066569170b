"""Column scans, a thread per row, on an interpreted GPU."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.compiler.lower.scan import gpu_columns
from numus.compiler.plan import clear_plans

simt_machine.install()
rng = np.random.default_rng(0)
WHOLE = ["scan_sum"]
PARTS = ["scan_sum_totals", "scan_sum", "scan_sum"]


def scanned(function, array):
    runtime = nm.device("simt").runtime
    runtime.launched.clear()
    clear_plans()
    found = function(nm.asarray(array, device="simt")).numpy()
    return found, [program.name for program in runtime.launched]


@pytest.mark.parametrize(
    ("shape", "axis", "names"),
    [
        ((100, 200), 0, WHOLE),
        ((3, 70, 65), 1, WHOLE),
        ((4, 3, 100), 0, WHOLE),
        ((1, 300), 0, WHOLE),
        ((999, 33), 0, PARTS),
        ((2, 640, 32), 1, PARTS),
    ],
)
def test_cumulative_sums(shape, axis, names):
    x = rng.integers(-50, 50, shape).astype(np.int32)
    found, launched = scanned(lambda x: nm.cumsum(x, axis=axis, dtype=nm.int32), x)
    assert launched == names
    np.testing.assert_array_equal(found, np.cumsum(x, axis=axis))
    reverse = np.flip(np.cumsum(np.flip(x, axis), axis=axis), axis)
    found, _ = scanned(lambda x: nm.flip(nm.cumsum(nm.flip(x, axis=axis), axis=axis), axis=axis), x)
    np.testing.assert_array_equal(found, reverse)


def test_parts_of_parts(monkeypatch):
    tuning = replace(gpu_columns.TUNING, min_part=8, words_in_flight=2)
    monkeypatch.setattr(gpu_columns, "TUNING", tuning)
    x = rng.integers(-50, 50, (700, 40)).astype(np.int32)
    found, launched = scanned(lambda x: nm.cumsum(x, axis=0, dtype=nm.int32), x)
    assert launched == [PARTS[0], *PARTS, "scan_sum"]
    np.testing.assert_array_equal(found, np.cumsum(x, axis=0))


@pytest.mark.parametrize("name", ["cumprod", "cummax", "logcumsumexp"])
def test_other_reductions(name):
    x = rng.standard_normal((500, 35))
    wide = {"cumprod": np.cumprod, "cummax": np.maximum.accumulate}.get(
        name, np.logaddexp.accumulate
    )
    found, launched = scanned(lambda x: getattr(nm, name)(x, axis=0), x)
    assert len(launched) == 3
    np.testing.assert_allclose(found, wide(x, axis=0), rtol=1e-12)


def test_complex_numbers_and_fused_operands():
    x = np.exp(1j * rng.random((400, 33)))
    found, _ = scanned(lambda x: nm.cumprod(x * 1j, axis=0), x)
    np.testing.assert_allclose(found, np.cumprod(x * 1j, axis=0), rtol=1e-12)
    y = rng.standard_normal((400, 33)).astype(np.float16)
    found, _ = scanned(lambda y: nm.cumsum(y, axis=0), y)
    np.testing.assert_allclose(found, np.cumsum(y.astype(np.float64), axis=0), rtol=2e-3, atol=1e-2)


def test_short_rows_get_small_blocks():
    """A block is no larger than a row can use."""
    x = rng.integers(-50, 50, (5, 250)).astype(np.int32)
    runtime = nm.device("simt").runtime
    found, launched = scanned(lambda x: nm.cumsum(x, axis=1, dtype=nm.int32), x)
    assert launched == WHOLE
    assert runtime.launched[0].kernel.block_size == 32
    np.testing.assert_array_equal(found, np.cumsum(x, axis=1))
