"""Products with the first vectors of a basis, against NumPy; what comes after is not read."""

import numpy as np
import pytest

import numus as nm
from numus.primitives.linalg.krylov import basis_products, basis_remainder
from numus.tensor import Tensor

pytestmark = pytest.mark.on_cpu("GPUs read whole bases")


def products(count, basis, *others):
    return Tensor(basis_products(count._node, basis._node, *(x._node for x in others)))


def remainder(count, basis, y, x):
    return Tensor(basis_remainder(count._node, basis._node, y._node, x._node))


@pytest.mark.parametrize(
    ("dtype", "shape", "counts"),
    [
        (np.float64, (1, 31, 5000), [7]),
        (np.float32, (3, 9, 2049), [9, 20, -4]),
        (np.float64, (2, 5, 1), [0, 5]),
        (np.float64, (1, 1, 0), [1]),
    ],
)
def test_values(dtype, shape, counts):
    rng = np.random.default_rng(0)
    basis = rng.standard_normal(shape).astype(dtype)
    x, z = rng.standard_normal((2, shape[0], shape[2])).astype(dtype)
    y = rng.standard_normal(shape[:2]).astype(dtype)
    kept = np.clip(counts, 0, shape[1])
    for b, k in enumerate(kept):
        basis[b, k:] = np.nan
    args = [nm.asarray(a) for a in (np.array(counts, np.int32), basis, x, z, y)]
    found, rest = products(*args[:4]).numpy(), remainder(*args[:2], args[4], args[2]).numpy()
    near = {"rtol": 1e-4, "atol": 2e-3} if dtype is np.float32 else {"rtol": 1e-11, "atol": 1e-11}
    for b, k in enumerate(kept):
        wanted = np.stack([basis[b, :k] @ x[b], basis[b, :k] @ z[b]])
        np.testing.assert_allclose(found[b, :, :k], wanted, **near)
        assert (found[b, :, k:] == 0).all()
        np.testing.assert_allclose(rest[b], x[b] - y[b, :k] @ basis[b, :k], **near)


def test_batches_and_threads():
    rng = np.random.default_rng(1)
    basis, x = (nm.asarray(rng.standard_normal(s)) for s in ((4, 1, 6, 3000), (4, 1, 3000)))
    counts = nm.asarray(np.array([[1], [6], [3], [0]], np.int32))
    found = nm.vmap(lambda c, b, x: products(c, b, x))(counts, basis, x).numpy()
    for i in range(4):
        assert np.array_equal(found[i], products(counts[i], basis[i], x[i]).numpy())
