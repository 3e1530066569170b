"""Calls of cuSOLVER, of which SciPy's LAPACK computes the results, on a driver without a GPU."""

import ctypes

import fake_cuda_driver
import numpy as np
import pytest

import numus as nm
from numus import dtypes as dt
from numus.runtime.cuda import cublas, cusolver
from numus.runtime.lapack_routines import Routine, operand_lengths, result_length, segments

lapack = pytest.importorskip("scipy.linalg.lapack")
DTYPES = {0: np.float32, 1: np.float64, 4: np.complex64, 5: np.complex128}
LETTERS = dict(zip("SDCZ", DTYPES.values(), strict=True))
TYPED = ("getrf", "getrs", "laswp", "orgqr", "ungqr", "geam", "trsm_v2", "gesvdj")
RNG = np.random.default_rng(0)


def matrix(pointer, dtype, rows, columns, ld=None):
    """A column-major matrix in memory."""
    rows, columns = (getattr(n, "value", n) for n in (rows, columns))
    ld = rows if ld is None else getattr(ld, "value", ld)
    assert ld >= rows
    size = np.dtype(dtype).itemsize
    raw = (ctypes.c_char * (ld * columns * size)).from_address(pointer.value)
    return np.frombuffer(raw, dtype).reshape(columns, ld).T[:rows]


def numbers(pointer, count, dtype=np.int32):
    return matrix(pointer, dtype, count, 1)[:, 0]


class Library:
    """Functions whose names begin with those of SciPy's, as the headers declare them."""

    def __init__(self):
        self.called = []

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        base = name.removeprefix("cusolverDn").removeprefix("cublas")
        sized = base.endswith("_bufferSize")
        base = base.removesuffix("_bufferSize")
        typed = base[1:] in TYPED
        function = getattr(self, f"{'ask_' if sized else 'do_'}{base[1:] if typed else base}")

        def call(*arguments):
            self.called.append(name)
            function(*([LETTERS[base[0]]] if typed else []), *arguments)
            return 0

        return call

    def do_Create(self, handle):
        handle._obj.value = 1

    def do_SetStream(self, handle, stream):
        pass

    def do_CreateParams(self, parameters):
        parameters._obj.value = 2

    def do_Xpotrf(self, handle, params, uplo, n, kind, a, lda, compute, *rest):
        assert compute.value == kind.value
        at = matrix(a, DTYPES[kind.value], n, n, lda)
        found, info = lapack.get_lapack_funcs("potrf", (at,))(at, lower=uplo.value == 0, clean=0)
        at[:] = found
        self.end(rest, info)

    def ask_Xpotrf(self, handle, params, uplo, n, kind, a, lda, compute, device, host):
        self.sizes(device, host)

    def sizes(self, device, host):
        device._obj.value, host._obj.value = 24, 8

    def end(self, rest, info):
        device, device_bytes, host, host_bytes, at, *_ = rest
        assert (device_bytes.value, host_bytes.value) == (24, 8)
        numbers(device, 24, np.uint8)[:] = 255
        numbers(host, 8, np.uint8)[:] = 255
        numbers(at, 1)[:] = info

    def do_getrf(self, dtype, handle, m, n, a, lda, work, swaps, info):
        at = matrix(a, dtype, m, n, lda)
        at[:], found, number = lapack.get_lapack_funcs("getrf", (at,))(at)
        numbers(work, 3, dtype)[:] = 255
        numbers(swaps, min(m.value, n.value))[:] = found + 1
        numbers(info, 1)[:] = number

    def ask_getrf(self, dtype, handle, m, n, a, lda, count):
        count._obj.value = 3

    def do_getrs(self, dtype, handle, how, n, columns, a, lda, swaps, b, ldb, info):
        at, right = matrix(a, dtype, n, n, lda), matrix(b, dtype, n, columns, ldb)
        solve = lapack.get_lapack_funcs("getrs", (at,))
        right[:], _ = solve(at, numbers(swaps, n.value) - 1, right, trans=how.value)
        numbers(info, 1)[:] = 0

    def do_laswp(self, dtype, handle, columns, a, lda, first, last, swaps, step):
        at = matrix(a, dtype, lda, columns)
        assert first.value == step.value == 1
        for i, j in enumerate(numbers(swaps, last.value) - 1):
            at[[i, j]] = at[[j, i]]

    def do_Xgeqrf(self, handle, params, m, n, kind, a, lda, kind2, tau, compute, *rest):
        at = matrix(a, DTYPES[kind.value], m, n, lda)
        at[:], found, _, _ = lapack.get_lapack_funcs("geqrf", (at,))(at)
        numbers(tau, len(found), at.dtype)[:] = found
        self.end(rest, 0)

    def ask_Xgeqrf(self, handle, params, m, n, kind, a, lda, kind2, tau, compute, device, host):
        self.sizes(device, host)

    def do_orgqr(self, dtype, handle, m, n, k, a, lda, tau, work, count, info):
        at = matrix(a, dtype, m, n, lda)
        name = "ungqr" if at.dtype.kind == "c" else "orgqr"
        at[:] = lapack.get_lapack_funcs(name, (at,))(at, numbers(tau, k.value, dtype))[0]
        assert count.value == 3
        numbers(work, 3, dtype)[:] = 255
        numbers(info, 1)[:] = 0

    def ask_orgqr(self, dtype, handle, m, n, k, a, lda, tau, count):
        count._obj.value = 3

    do_ungqr, ask_ungqr = do_orgqr, ask_orgqr

    def do_Xsyevd(self, handle, params, job, uplo, n, kind, a, lda, real, w, compute, *rest):
        at = matrix(a, DTYPES[kind.value], n, n, lda)
        values, vectors = np.linalg.eigh(at, "LU"[uplo.value])
        numbers(w, n.value, DTYPES[real.value])[:] = values
        at[:] = vectors if job.value else 255
        self.end(rest, 0)

    def ask_Xsyevd(self, handle, params, job, uplo, n, kind, a, lda, real, w, compute, *sizes):
        self.sizes(*sizes)

    def do_CreateGesvdjInfo(self, made):
        made._obj.value = 3

    def do_XgesvdjSetTolerance(self, made, tolerance):
        assert (made.value, type(tolerance)) == (3, ctypes.c_double)

    def do_gesvdj(self, dtype, handle, job, econ, m, n, a, lda, s, *more):
        u, ldu, v, ldv, work, count, info, how = more
        at = matrix(a, dtype, m, n, lda)
        assert m.value >= n.value
        left, values, right = np.linalg.svd(at, full_matrices=not econ.value)
        numbers(s, n.value, values.dtype)[:] = values
        matrix(u, at.dtype, m, left.shape[1], ldu)[:] = left if job.value else 255
        matrix(v, at.dtype, n, n, ldv)[:] = right.conj().T if job.value else 255
        assert (count.value, how.value) == (3, 3)
        numbers(work, 3, dtype)[:] = 255
        numbers(info, 1)[:] = 0

    def ask_gesvdj(self, dtype, *arguments):
        *_, count, how = arguments
        assert how.value == 3
        count._obj.value = 3

    # -- cuBLAS

    def do_geam(self, dtype, handle, left, right, m, n, one, a, lda, none, b, ldb, c, ldc):
        assert (left.value, right.value, numbers(none, 1, dtype)[0]) == (2, 0, 0)
        out = matrix(c, dtype, m, n, ldc)
        out[:] = numbers(one, 1, dtype)[0] * matrix(a, dtype, n, m, lda).conj().T

    def do_trsm_v2(self, dtype, handle, side, uplo, how, diag, m, n, one, a, lda, b, ldb):
        at, right = matrix(a, dtype, n, n, lda), matrix(b, dtype, m, n, ldb)
        assert (side.value, how.value, numbers(one, 1, dtype)[0]) == (1, 0, 1)
        at = np.triu(at) if uplo.value else np.tril(at)
        if diag.value:
            np.fill_diagonal(at, 1)
        right[:] = np.linalg.solve(at.T, right.T).T


@pytest.fixture
def runtime(monkeypatch):
    _, name = fake_cuda_driver.install(monkeypatch)
    fake = Library()
    monkeypatch.setattr(cusolver, "library", lambda: fake)
    monkeypatch.setattr(cublas, "library", lambda: fake)
    monkeypatch.setattr(cublas, "handle", lambda context: (1, None))
    runtime = nm.device(name).runtime
    runtime.device_name = name
    return runtime


def run(runtime, name, option, *stacks, columns=0):
    """Results of a routine by name, of stacks in the order of memory that it is given them in."""
    first = stacks[0]
    batch, m, n = first.shape
    if name in ("lu", "qr"):
        m, n = n, m
    r = Routine(name, batch, m, n, first.dtype.name, option, columns)
    assert cusolver.is_supported(r)
    dtype = dt.as_dtype(r.dtype)
    assert [x[0].size for x in stacks] == operand_lengths(r)
    launch = cusolver.Factorisation(runtime, r)
    out = np.zeros((batch, result_length(r, dtype)), first.dtype)
    work = np.zeros(launch.workspace + 256, np.uint8)
    given = [np.ascontiguousarray(x) for x in stacks]
    launch([x.ctypes.data for x in (*given, out)], work.ctypes.data + -work.ctypes.data % 256)
    found, start = {}, 0
    for s in segments(r, dtype.is_complex):
        part = np.ascontiguousarray(out[:, start : start + s.elements(dtype)])
        start += s.elements(dtype)
        kinds = {"int": np.int32, "real": part.real.dtype}
        flat = part.view(kinds.get(s.part, part.dtype))[:, : int(np.prod(s.shape))]
        found[s.name] = flat.reshape(batch, *s.shape)
    return found


def drawn(shape, dtype):
    a = RNG.standard_normal(shape)
    return (a + 1j * RNG.standard_normal(shape) if dtype().dtype.kind == "c" else a).astype(dtype)


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


def close(x, y):
    scale = 200 * np.finfo(y.dtype).eps * max(1, np.abs(y).max())
    np.testing.assert_allclose(x, y, rtol=0, atol=scale)


by_dtype = pytest.mark.parametrize("dtype", DTYPES.values())


@by_dtype
def test_square(runtime, dtype):
    a = drawn((3, 7, 7), dtype)
    h = a @ adjoint(a) + np.eye(7, dtype=dtype)
    h[1] = np.diag([1, 4, -1, 1, 1, 1, 1])
    found = run(runtime, "cholesky", 0, np.tril(h))
    low = np.tril(found["factor"])
    close(low[::2] @ adjoint(low)[::2], h[::2])
    assert found["info"][:, 0].tolist() == [0, 3, 0]
    found = run(runtime, "eigh", 1, np.tril(h))
    vectors = adjoint(found["vectors"])
    close(h @ vectors, vectors * found["values"][:, None])
    close(run(runtime, "eigh", 0, np.tril(h))["values"], found["values"])
    b = drawn((3, 7, 4), dtype)
    found = run(runtime, "system", 0, a, b.swapaxes(1, 2), columns=4)
    close(a @ found["x"].swapaxes(1, 2), b)
    for option in range(4):
        lower, unit = option & 1, option >> 1
        t = np.tril(h) if lower else np.triu(h)
        t = t - (t - np.eye(7, dtype=dtype)) * np.eye(7, dtype=dtype) * unit
        x = run(runtime, "solve", option, h, b, columns=4)["x"]
        scale = np.abs(x).max() * np.abs(h).max()
        close(t @ x / scale, b / scale)


@by_dtype
@pytest.mark.parametrize(("m", "n"), [(6, 6), (8, 5), (5, 8)])
def test_rectangular(runtime, dtype, m, n):
    a, k = drawn((2, m, n), dtype), min(m, n)
    found = run(runtime, "lu", 0, a.swapaxes(1, 2))
    packed = found["factor"].swapaxes(1, 2)
    swaps = found["swaps"].view(np.float32)
    order = run(runtime, "order", m, swaps[..., None])["order"].astype(np.int64)
    low = np.tril(packed[:, :, :k], -1) + np.eye(m, k, dtype=dtype)
    close(low @ np.triu(packed[:, :k]), np.take_along_axis(a, order[:, :, None], 1))
    for columns in {k, m}:
        found = run(runtime, "qr", columns, a.swapaxes(1, 2))
        q, r = found["q"].swapaxes(1, 2), np.triu(found["r"].swapaxes(1, 2)[:, :columns])
        close(q[:, :, : r.shape[1]] @ r, a)
        close(adjoint(q) @ q, np.broadcast_to(np.eye(columns, dtype=dtype), (2, columns, columns)))
    if m <= n:
        for job in "SA":
            found = run(runtime, "svd", job, a)
            u, s, vh = (found[name] for name in ("u", "s", "vh"))
            assert vh.shape == (2, k if job == "S" else n, n)
            close((u * s[:, None]) @ vh[:, :k], a)
        close(run(runtime, "svd", "N", a)["s"], s)


def test_what_may_wait_is_not_captured(runtime):
    h = nm.asarray(np.eye(40, dtype=np.float32), device=runtime.device_name)

    def f(x):
        return nm.linalg.eigh_ex(nm.linalg.eigh_ex(x)[1] + 1)[1]

    names = [k.name for k in nm.explain(f, h).kernels]
    assert names.count("cusolver") == 2
    program = nm.jit(f)
    program(h)
    cusolver.library().called.clear()
    for _ in range(4):
        program(h)
    assert cusolver.library().called.count("cusolverDnXsyevd") == 8
    assert runtime.driver.calls["cuStreamBeginCapture"] == 0
    with nm.kernels.prefer("native"):
        assert "cusolver" not in [k.name for k in nm.explain(f, h).kernels]
