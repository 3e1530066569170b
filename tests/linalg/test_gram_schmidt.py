"""QR by block Gram-Schmidt, which CPUs have no use for: backward errors, orthogonality, and what is
done for columns that are dependent."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.linalg.factor import gram_schmidt, qr

RNG = np.random.default_rng(0)
simt_machine.install()


def drawn(shape, dtype):
    a = RNG.standard_normal(shape)
    return (a + 1j * RNG.standard_normal(shape) if dtype().dtype.kind == "c" else a).astype(dtype)


def check(a, q, r):
    bound = 10 * a.shape[0] * np.finfo(a.dtype).eps
    assert np.max(np.abs(q @ r - a)) <= bound * max(np.linalg.norm(a, 2), 1e-300)
    assert np.max(np.abs(np.conj(q.T) @ q - np.eye(q.shape[1]))) <= bound
    assert not np.tril(r, -1).any()


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_blocks(dtype, monkeypatch):
    monkeypatch.setattr(gram_schmidt, "register_block", lambda a: 16)
    falling = 10.0 ** -np.linspace(0, np.finfo(dtype).precision - 2, 40)
    for m, n in ((40, 40), (57, 40), (20, 40)):
        a = drawn((4, m, n), dtype)
        a[1] *= falling.astype(dtype)
        a[2, :, 7] = a[2, :, 3]
        a[3] = 0
        for i in range(4):
            found = qr._by_gram_schmidt(nm.asarray(a[i : i + 1], device="reference"))
            check(a[i], *(x.numpy()[0] for x in found))
        lost = gram_schmidt.qr(nm.asarray(a[:, :, :m], device="reference"))[2]
        assert lost.item()  # of one of the stack


@pytest.mark.slow
def test_on_a_gpu():
    a = drawn((80, 66), np.float32)
    with nm.kernels.prefer("native"):
        q, r = nm.linalg.qr(nm.asarray(a, device="simt"))
    check(a, q.numpy(), r.numpy())
