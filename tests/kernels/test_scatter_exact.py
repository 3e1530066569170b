"""Scatter-adds of floats by integer atomics on an interpreted GPU: exact, whatever the order."""

import math
from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.compiler.lower.scatter import gpu_exact
from numus.compiler.plan import clear_plans
from numus.functions._base import wrap
from numus.primitives.indexing import scatter

simt_machine.install()
DEVICE = "simt_ordered"
COUNT = 4200  # updates, more than are sorted by one block


def added(base, index, updates, dtype="float32"):
    """The sums, and the kernels that computed them."""
    b, u = (nm.asarray(x, device=DEVICE).astype(dtype) for x in (base, updates))
    i = nm.asarray(index, device=DEVICE)
    nm.eval((b, u))
    runtime = nm.device(DEVICE).runtime
    runtime.launched.clear()
    out = wrap(scatter(b._node, (i._node,), u._node, (0,), "add"))
    nm.eval(out)
    names = [p.name for p in runtime.launched]
    return out.astype("float32").numpy(), names


def exact(base, index, updates):
    """Correctly rounded sums."""
    terms = {}
    for i, u in zip(index.tolist(), updates.tolist(), strict=True):
        terms.setdefault(i, []).append(u)
    return np.array([math.fsum([b, *terms.get(i, ())]) for i, b in enumerate(base.tolist())])


def drawn(size, seed):
    """A base, indices (some outside) and updates of all magnitudes."""
    rng = np.random.default_rng(seed)
    updates = rng.standard_normal(COUNT) * 2.0 ** rng.integers(-140, 100, COUNT)
    return (
        rng.standard_normal(size).astype(np.float32),
        rng.integers(-1, size + 1, COUNT),
        updates.astype(np.float32),
    )


@pytest.mark.parametrize(
    ("size", "surveyed", "kernel"),
    [
        (50, False, "scatter_exact_private"),
        (700, False, "scatter_exact"),
        (700, True, "scatter_survey"),
    ],
)
def test_sums_are_rounded_once_and_depend_on_no_order(size, surveyed, kernel, monkeypatch):
    if surveyed:
        monkeypatch.setattr(gpu_exact, "TUNING", replace(gpu_exact.TUNING, surveyed_bytes=0))
        clear_plans()
    base, index, updates = drawn(size, size)
    found, names = added(base, index, updates)
    assert kernel in names
    np.testing.assert_array_equal(found, exact(base, index, updates).astype(np.float32))
    order = np.random.default_rng(0).permutation(COUNT)
    again, _ = added(base, index[order], updates[order])
    np.testing.assert_array_equal(again.view(np.uint32), found.view(np.uint32))
    clear_plans()


@pytest.mark.parametrize("size", [50, 700])
def test_infinities_nan_and_zeros(size):
    index = np.arange(COUNT) % size
    updates = np.zeros(COUNT, np.float32)
    updates[[0, 1, 2, size + 2, 3, 4]] = np.inf, -np.inf, np.inf, -np.inf, np.nan, -0.0
    base = np.full(size, -0.0, np.float32)
    base[5] = np.inf
    found, _ = added(base, index, updates)
    np.testing.assert_array_equal(found[:4], [np.inf, -np.inf, np.nan, np.nan])
    assert found[5] == np.inf
    assert (found[6:] == 0).all()
    assert np.signbit(found[6:]).all()


def test_short_rows_of_16_bit_floats():
    rng = np.random.default_rng(5)
    index = rng.integers(0, 300, COUNT)
    updates = rng.integers(-9, 9, (COUNT, 3)).astype(np.float32)
    found, names = added(np.ones((300, 3), np.float32), index, updates, "bfloat16")
    assert "scatter_exact" in names
    wanted = np.ones((300, 3), np.float32)
    np.add.at(wanted, index, updates)
    np.testing.assert_array_equal(found, nm.asarray(wanted).astype("bfloat16").astype("float32"))


def test_sums_may_be_unordered():
    base, index, updates = drawn(700, 1)
    updates = np.round(updates.clip(-100, 100))
    with nm.kernels.deterministic(False):
        assert not nm.kernels.is_deterministic()
        found, names = added(base, index, updates)
    assert "scatter_atomics" in names
    np.testing.assert_allclose(found, exact(base, index, updates), rtol=1e-5, atol=1e-5)
    assert nm.kernels.is_deterministic()
    assert "scatter_exact" in added(base, index, updates)[1]
    with pytest.raises(TypeError, match="takes True or False"):
        nm.kernels.deterministic("no")


def test_the_pytorch_face_sets_it():
    import numus.torch as face

    assert face.are_deterministic_algorithms_enabled()
    face.use_deterministic_algorithms(False)
    try:
        assert not nm.kernels.is_deterministic()
    finally:
        face.use_deterministic_algorithms(True)
    assert nm.kernels.is_deterministic()
