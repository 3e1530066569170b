"""nm.distance against SciPy."""

import numpy as np
import pytest
import scipy.spatial.distance as sd

import numus as nm

rng = np.random.default_rng(2)
A, B = rng.standard_normal((5, 4)), rng.standard_normal((7, 4))
BITS = rng.integers(0, 2, (5, 4)).astype(bool)
METRICS = "braycurtis canberra chebyshev correlation cosine euclidean sqeuclidean cityblock".split()
VI = np.linalg.inv(np.cov(np.concatenate([A, B]).T))


@pytest.fixture
def reference():
    """Compositions need no compiler to be right."""
    before = nm.default_device()
    nm.set_default_device("reference")
    yield
    nm.set_default_device(before)


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize("metric", METRICS)
def test_metrics(metric):
    a, b = nm.asarray(A), nm.asarray(B)
    np.testing.assert_allclose(nm.distance.cdist(a, b, metric), sd.cdist(A, B, metric), rtol=1e-12)
    np.testing.assert_allclose(nm.distance.pdist(a, metric), sd.pdist(A, metric), rtol=1e-12)
    found = getattr(nm.distance, metric)(a[0], b[0])
    np.testing.assert_allclose(found, getattr(sd, metric)(A[0], B[0]), rtol=1e-12)
    if metric != "chebyshev":
        w = np.array([1.0, 0.5, 2.0, 1.0])
        want = getattr(sd, metric)(A[0], B[0], w=w)
        np.testing.assert_allclose(getattr(nm.distance, metric)(a[0], b[0], w=w), want, rtol=1e-6)


@pytest.mark.usefixtures("reference")
def test_metrics_with_parameters():
    a, b = nm.asarray(A), nm.asarray(B)
    for p in (1, 2, 3.5, np.inf):
        want = sd.cdist(A, B, "minkowski", p=p) if p != np.inf else sd.cdist(A, B, "chebyshev")
        np.testing.assert_allclose(nm.distance.cdist(a, b, "minkowski", p=p), want, rtol=1e-12)
    want = sd.cdist(A, B, "mahalanobis", VI=VI)
    np.testing.assert_allclose(nm.distance.cdist(a, b, "mahalanobis"), want, rtol=1e-9)
    for name in ("hamming", "jaccard"):
        x = nm.asarray(BITS)
        found = nm.distance.pdist(x, name)
        np.testing.assert_allclose(found, sd.pdist(BITS, name), rtol=1e-6)

    def metric(u, v):
        return nm.sum((u - v) ** 4)

    np.testing.assert_allclose(
        nm.distance.cdist(a, b, metric), ((A[:, None] - B) ** 4).sum(-1), rtol=1e-12
    )
    with pytest.raises(ValueError, match="no metric"):
        nm.distance.cdist(a, b, "unknown")
    with pytest.raises(ValueError, match="rows of matrices"):
        nm.distance.cdist(a, b[:, :3])


@pytest.mark.parametrize("near", [False, True])
def test_products_are_used_where_they_are_accurate(near):
    x = rng.standard_normal((150, 64)).astype(np.float32) + 100
    y = rng.standard_normal((150, 64)).astype(np.float32) + 100
    if near:
        y[:5] = x[:5] + 1e-3
    found = nm.distance.cdist(nm.asarray(x), nm.asarray(y))
    want = sd.cdist(x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(found, want, rtol=3e-6)


def test_condensed_and_square_forms():
    line = sd.pdist(A)
    np.testing.assert_array_equal(nm.distance.squareform(nm.asarray(line)), sd.squareform(line))
    square = nm.asarray(sd.squareform(line))
    np.testing.assert_array_equal(nm.distance.squareform(square), line)
    with pytest.raises(ValueError, match="all pairs"):
        nm.distance.squareform(nm.ones(4))


@pytest.mark.usefixtures("reference")
def test_neighbors_come_in_order():
    found = nm.distance.nearest_neighbors(nm.asarray(A), nm.asarray(B), 3, batch_size=2)
    gaps = sd.cdist(A, B)
    np.testing.assert_array_equal(found.indices, np.argsort(gaps, 1)[:, :3])
    np.testing.assert_allclose(found.distances, np.sort(gaps, 1)[:, :3], rtol=1e-12)
    want = sd.directed_hausdorff(A, B)
    got = [x.item() for x in nm.distance.directed_hausdorff(nm.asarray(A), nm.asarray(B))]
    assert got == pytest.approx(want, rel=1e-12)


def test_gradients_at_zero_distance_are_finite():
    slope = nm.grad(lambda x: nm.sum(nm.distance.cdist(x, x)))(nm.asarray(A))
    assert np.isfinite(slope.numpy()).all()
