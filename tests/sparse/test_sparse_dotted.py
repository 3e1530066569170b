"""Products with a vector that add up the dot product of both, interpreted."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import sparse
from numus.sparse import pattern
from numus.sparse.linalg import cg

simt_machine.install()
RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def every_size(monkeypatch):
    monkeypatch.setattr(pattern, "_MIN_SEARCHED_ENTRIES", 1)


def poisson(n):
    line = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    return np.kron(line, np.eye(n)) + np.kron(np.eye(n), line)


def test_products_of_loops_add_up_their_dot_product():
    """On GPUs one kernel multiplies by the direction and adds up."""
    whole = poisson(25)
    a = sparse.from_dense(nm.asarray(whole.astype("float32")))
    b = RNG.standard_normal(len(whole)).astype("float32")
    runtime = nm.device("simt_sm90").runtime
    runtime.launched.clear()
    found = cg(a.to("simt_sm90"), nm.asarray(b, device="simt_sm90"), rtol=1e-30, maxiter=8)
    x = found.x.numpy()
    notes = {p.notes for p in runtime.launched}
    assert ("csr_dotted", "templates of rows") in notes
    wanted = cg(a, nm.asarray(b), rtol=1e-30, maxiter=8)
    np.testing.assert_allclose(x, wanted.x.numpy(), 1e-3, 1e-5)
    several = np.stack([b, 2 * b])
    given = nm.asarray(several, device="simt_sm90")
    found = nm.vmap(lambda b: cg(a.to("simt_sm90"), b, rtol=1e-30, maxiter=8).x)(given)
    np.testing.assert_allclose(found.numpy(), [x, 2 * x], 1e-3, 1e-5)
