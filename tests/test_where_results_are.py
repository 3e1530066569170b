"""Results are on the device of the operands, whatever the default device is; also of nothing."""

from dataclasses import replace

import numpy as np
import pytest
from ops import ROWS
from ops.row import Drawn
from test_ops import flat

import numus as nm
from numus import dtypes as dt
from numus.errors import DeviceError, NumusError

ELSEWHERE = {"from_numpy", "full", "ndarray"}  # these make tensors on the default device


def without_elements(axis):
    def emptied(given):
        if not isinstance(given, Drawn) or not given.shape or given.values is not None:
            return given
        shape = list(given.shape)
        shape[axis] = 0
        return replace(given, shape=tuple(shape))

    return emptied


@pytest.mark.parametrize("row", [r for r in ROWS if r.name not in ELSEWHERE], ids=lambda r: r.name)
def test_results_are_where_operands_are(row):
    place = nm.device("reference")
    assert nm.default_device() is not place
    kinds = [d for d in ("float32", "int32") if d in row.dtypes] or row.dtypes[:1]
    changes = (lambda given: given, without_elements(0), without_elements(-1))
    for case, kind, change in ((c, k, f) for c in row.cases for k in kinds for f in changes):
        drawn = case.map(change).drawn(dt.as_dtype(kind), 0)
        if not any(isinstance(a, np.ndarray) for a in drawn.leaves()):
            continue
        given = drawn.map(lambda a: nm.asarray(a, device=place) if isinstance(a, np.ndarray) else a)
        try:
            results = flat(row(*given.args, **given.kwargs))
        except NumusError:
            if change is changes[0]:
                raise
            continue  # there must be elements
        for result in results:
            assert not isinstance(result, nm.Tensor) or result.device is place, str(case)


def test_numpy_arrays_go_where_tensors_are():
    place = nm.device("reference")
    x = nm.asarray(np.arange(6.0).reshape(2, 3), device=place)
    ones, mask = np.ones((2, 3)), np.array([[True, False, True]] * 2)
    written = x + 0
    written[0] = np.ones(3)
    written[mask] = np.zeros(4)
    results = {
        "x + a": x + ones,
        "a - x": ones - x,
        "a == x": nm.equal(ones, x),
        "logical_and": nm.logical_and(mask, x),
        "where(a, x, 0)": nm.where(mask, x, 0),
        "where(x, a, a)": nm.where(x > 1, ones, ones * 2),
        "clip": nm.clip(x, ones, ones * 2),
        "x @ a": x @ ones.T,
        "concat": nm.concatenate([ones, x]),
        "x[a]": x[mask],
        "x[a] = b": written,
        "masked_fill": nm.masked_fill(x, mask, 0),
        "index_add": nm.index_add(x, 0, np.array([0, 1]), ones),
        "layer_norm": nm.layer_norm(x, np.ones(3), np.ones(3)),
        "segment_sum": nm.segment_sum(x, np.array([0, 1])),
        "attention": nm.scaled_dot_product_attention(
            x, ones, ones, attn_mask=np.ones((2, 2), bool)
        ),
    }
    assert {name for name, result in results.items() if result.device is not place} == set()
    np.testing.assert_array_equal(results["a - x"].numpy(), ones - x.numpy())
    np.testing.assert_array_equal(written.numpy(), [[0, 1, 0], [0, 4, 0]])


def test_tensors_on_two_devices_are_an_error():
    with pytest.raises(DeviceError, match="on reference and cpu"):
        nm.ones(3, device="reference") + nm.ones(3, device="cpu")
