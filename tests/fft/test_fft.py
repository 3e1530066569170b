"""Transforms: arguments and errors as NumPy has them, tables, fusion, GPU schedules."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import scipy.fft
import simt_machine

import numus as nm
from numus import dtypes as dt
from numus.compiler import hooks
from numus.fft import tables
from numus.ir import kernel_text
from numus.kernels.fft.radices import is_mixed_radix, prime_factors, radices_of, split
from numus.kernels.fft.roots import PI, unit_roots
from numus.kernels.fft.tables import vector_of
from numus.runtime import devices

NULL = nm.device("null")


def noise(*shape, dtype="complex64"):
    rng = np.random.default_rng(len(shape) + sum(shape))
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


def close(got, want, bound=1e-6):
    assert np.linalg.norm(np.asarray(got) - want) <= bound * np.linalg.norm(want)


# -- arguments ------------------------------------------------------------------------------------

X = np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: f.fft(x, n=0),
        lambda f, x: f.fft(x, n=-3),
        lambda f, x: f.fft(x[:, :0]),
        lambda f, x: f.irfft(x[:, :1]),
        lambda f, x: f.irfft(x[:, :0]),
        lambda f, x: f.fft(x, norm="both"),
        lambda f, x: f.fft(x, axis=2),
        lambda f, x: f.fft(x, n=2.5),
        lambda f, x: f.fft(x[0, 0]),
        lambda f, x: f.rfft(x * 1j),
        lambda f, x: f.fftn(x, s=(2, 2), axes=(0,)),
        lambda f, x: f.fftn(x, axes=(0, 2)),
        lambda f, x: f.fftn(x, s=(2, 2, 2)),
        lambda f, x: f.irfftn(x, s=(2, 2, 2)),
        lambda f, x: f.rfftn(x, axes=()),
        lambda f, x: f.hfft(x, norm="none"),
        lambda f, x: f.fftfreq(2.5),
        lambda f, x: f.fftshift(x, axes=3),
    ],
)
def test_what_numpy_refuses_is_refused(call):
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        call(np.fft, X)
    with pytest.raises((ValueError, TypeError, IndexError)) as ours:
        call(nm.fft, nm.asarray(X))
    assert str(ours.value).startswith("fft.")
    # one of NumPy's kinds, AxisError being both a ValueError and an IndexError
    numpy_error = type(theirs.value)
    assert isinstance(ours.value, (numpy_error, ValueError, TypeError))


@pytest.mark.parametrize("name", ["irfftn", "irfft2", "hfftn"])
def test_last_lengths_of_real_results(name):
    call = getattr(nm.fft, name)
    x = nm.asarray(noise(3, 4))
    default = call(x, axes=(0, 1))
    np.testing.assert_array_equal(call(x, s=(3, None), axes=(0, 1)).numpy(), default.numpy())
    assert call(x, s=(None, None), axes=(0, 1)).shape == default.shape == (3, 6)
    assert call(x, s=(-1, -1), axes=(0, 1)).shape == (3, 4)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [("float16", "complex64"), ("bfloat16", "complex64"), ("float32", "complex64"),
     ("float64", "complex128"), ("int8", "complex64"), ("bool", "complex64")],
)  # fmt: skip
def test_dtypes(dtype, result):
    x = nm.ones(4).astype(dtype)
    assert nm.fft.fft(x).dtype.name == result
    assert nm.fft.rfft(x).dtype.name == result
    assert nm.fft.irfft(x).dtype.name == dt.real_of(dt.BY_NAME[result]).name


def test_batches_without_elements():
    assert nm.fft.fft(nm.zeros((0, 8))).shape == (0, 8)
    assert nm.fft.rfft(nm.zeros((2, 0, 8))).shape == (2, 0, 5)
    assert nm.fft.irfft(nm.zeros((0, 5))).shape == (0, 8)
    assert nm.fft.fft(nm.zeros((0, 67 * 211))).shape == (0, 67 * 211)


def test_views_are_read_in_place():
    z = noise(6, 32, 5)
    t = nm.asarray(z)
    close(nm.fft.fft(t[::2, ::-1, 1], axis=1), np.fft.fft(z[::2, ::-1, 1], axis=1))
    close(
        nm.fft.fft(nm.permute_dims(t, (2, 0, 1)), axis=0), np.fft.fft(z.transpose(2, 0, 1), axis=0)
    )


# -- tables and plans -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 8, 12, 100, 243])
def test_roots_are_symmetric_to_the_last_bit(n):
    w = unit_roots(np.arange(n), n, dt.complex128)
    np.testing.assert_array_equal(w[1:], np.conj(w[:0:-1]))
    if n % 4 == 0:
        np.testing.assert_array_equal(w[n // 4 :].real, w[: n - n // 4].imag)
    angle = 2 * PI * np.arange(n, dtype=np.longdouble) / n
    want = np.cos(angle) - 1j * np.sin(angle)
    assert np.abs(w - want).max() <= 2**-53


@pytest.mark.on_cpu("tables of two devices")
def test_tables_are_held_once_and_bounded(monkeypatch):
    held = tables._Tables()
    monkeypatch.setattr(tables, "_tables", held)
    device = nm.device("cpu")
    tables.roots(60, dt.complex64, device)
    monkeypatch.setattr(tables, "MAX_TABLE_BYTES", held.nbytes)
    assert tables.roots(60, dt.complex64, device) is tables.roots(60, dt.complex64, None)
    tables.roots(50, dt.complex64, device)
    assert [key[1] for key in held.found] == [50]
    tables.roots(1000, dt.complex64, device)
    assert (len(held.found), held.nbytes) == (0, 0)


def test_graph_templates_hold_no_table_that_was_dropped(monkeypatch):
    x = noise(3, 20)
    for _ in range(4):  # from the third call on, a template
        close(nm.fft.fft(nm.asarray(x)), np.fft.fft(x))
        close(nm.fft.dct(nm.asarray(x.real)), scipy.fft.dct(x.real))
    held = weakref.ref(next(node for key, node in tables._tables.found.items() if key[1] == 20))
    monkeypatch.setattr(tables, "MAX_TABLE_BYTES", 0)
    monkeypatch.setattr(tables, "MAX_MEMORY_SHARE", 1 << 60)
    y = noise(3, 21)
    close(nm.fft.fft(y), np.fft.fft(y))
    gc.collect()
    assert held() is None
    close(nm.fft.fft(nm.asarray(x)), np.fft.fft(x))


def test_radices_and_splits():
    for n in range(2, 3000):
        if is_mixed_radix(n):
            assert np.prod(radices_of(n, 16, 13)) == n
            parts = split(n, 199)
            assert np.prod(parts) == n
            assert max(parts) <= 199
    assert prime_factors(2 * 3 * 3 * 127) == (2, 3, 3, 127)
    assert radices_of(17, 16, 13) == (1, 17)


@pytest.mark.parametrize("real", [False, True])
def test_fast_lengths_are_those_of_scipy(real):
    for n in (*range(1, 1500), 10**6 + 3, 2**20 + 1, 2**31 - 1):
        assert nm.fft.next_fast_len(n, real) == scipy.fft.next_fast_len(n, real)
        assert nm.fft.prev_fast_len(n, real) == scipy.fft.prev_fast_len(n, real)
    for function in (nm.fft.next_fast_len, nm.fft.prev_fast_len):
        with pytest.raises(ValueError, match="at least 1 point"):
            function(0)
        with pytest.raises(TypeError, match="integer"):
            function(2.5)


@pytest.mark.parametrize("n", [2**13, 3 * 2**16, 5**7, 2**17])
def test_four_steps_on_the_cpu(n):
    z = noise(2, n)
    close(nm.fft.fft(z), np.fft.fft(z))
    close(nm.fft.ifft(z[0]), np.fft.ifft(z[0]))


def planes_of(*shape):
    """Enough planes of a shape for all cores: each is transformed along both axes at once."""
    return noise(4 * nm.device("cpu").runtime.target.num_cores + 3, *shape)


@pytest.mark.parametrize("shape", [(16, 12), (9, 48), (3, 256), (17, 13)])
def test_planes_on_the_cpu(shape):
    z = planes_of(*shape)
    t = nm.asarray(z)
    close(nm.fft.fftn(t, axes=(1, 2)), np.fft.fftn(z, axes=(1, 2)))
    close(nm.fft.ifftn(t, axes=(2, 1), norm="ortho"), np.fft.ifftn(z, axes=(2, 1), norm="ortho"))
    moved = nm.permute_dims(t, (1, 0, 2))
    close(nm.fft.fftn(moved, axes=(0, 2)), np.fft.fftn(z.transpose(1, 0, 2), axes=(0, 2)))
    close(nm.fft.fftn(t, (8, 7), axes=(1, 2)), np.fft.fftn(z, (8, 7), axes=(1, 2)))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("rows", [2, 5, 8])
def test_planes_whose_rows_end_in_half_vectors(rows, dtype):
    lanes = vector_of(dt.as_dtype(dtype), nm.device("cpu").runtime.target)
    z = planes_of(rows, max(2, lanes**2 // 2)).astype(dtype)
    t = nm.asarray(z)
    close(nm.fft.fft2(t), np.fft.fft2(z))
    close(nm.fft.ifft2(t), np.fft.ifft2(z))
    close(nm.abs(nm.fft.fft2(t * t)), abs(np.fft.fft2(z * z)))
    turned = nm.flip(t, axis=2)
    close(nm.fft.fft2(turned), np.fft.fft2(z[:, :, ::-1]))


def test_derivatives_and_batches_of_planes():
    x, y = (nm.asarray(planes_of(4, 6) * k) for k in (1, 1j))

    def along_each(x):
        return nm.fft.fft(nm.fft.fft(x, axis=-1), axis=-2)

    for one, other in (
        (nm.jvp(nm.fft.fft2, (x,), (y,))[1], along_each(y)),
        (nm.vjp(nm.fft.fft2, x)[1](y)[0], nm.vjp(along_each, x)[1](y)[0]),
        (nm.vmap(nm.fft.fft2)(nm.stack([x, y])), nm.stack([along_each(x), along_each(y)])),
        (nm.jit(nm.fft.fft2)(x), along_each(x)),
    ):
        close(one, np.asarray(other))


@pytest.mark.parametrize("lengths", [(202, 206, 214), (301, 329, 511), (323, 361), (348, 444)])
def test_lengths_of_one_structure_share_a_kernel(lengths):
    """Loops of CPUs serve all large primes; kernels of GPUs are made for a length."""
    texts = set()
    for n in lengths:
        steps = []
        hooks.before_run.append(lambda _, plan, *__, found=steps: found.extend(plan.steps))
        try:
            nm.eval(nm.fft.fft(nm.asarray(noise(2, n), device="cpu")))
        finally:
            hooks.before_run.pop()
        (kernel,) = (step.kernel for step in steps)
        texts.add(kernel_text(kernel))
    assert len(texts) == 1


# -- fusion ---------------------------------------------------------------------------------------


def kernels(function, *shapes, dtype="complex64"):
    tensors = [nm.asarray(np.zeros(s, dtype), device=NULL) for s in shapes]
    nm.eval(function(*tensors))  # tables are made once
    NULL.runtime.reset()
    nm.eval(function(*tensors))
    return NULL.runtime.reset().kernels


def test_elementwise_code_runs_inside_transforms():
    assert kernels(nm.fft.fft, (4, 64)) == 1
    assert kernels(lambda x, w: nm.fft.fft(x * w), (4, 64), (64,)) == 1
    assert kernels(lambda x: nm.abs(nm.fft.fft(x, n=128)) ** 2, (4, 64)) == 1
    assert kernels(lambda x, h: nm.fft.ifft(nm.fft.fft(x) * h), (4, 64), (64,)) == 2
    assert kernels(nm.fft.rfft, (4, 64), dtype="float32") == 1
    assert kernels(lambda x: nm.abs(nm.fft.rfft(x * x)), (4, 64), dtype="float32") == 1
    assert kernels(nm.fft.irfft, (4, 65)) == 1
    assert kernels(nm.fft.fft2, (64, 64)) == 2
    planes = 4 * NULL.runtime.target.num_cores
    assert kernels(lambda x: nm.abs(nm.fft.fft2(x * x)), (planes, 16, 16)) == 1
    assert kernels(lambda x: nm.fft.fft2(x, axes=(0, 1)), (16, 16, planes)) == 2


def test_rows_in_cache_are_one_kernel():
    """Rows too long for a lane each take both of their steps in one kernel."""
    rows = 4 * NULL.runtime.target.num_cores
    assert kernels(lambda x: nm.abs(nm.fft.fft(x * 2)), (rows, 11_025)) == 1
    assert kernels(nm.fft.fft, (11_025,)) == 2


# -- GPU schedules --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu():
    devices.BACKENDS["transforming"] = lambda index: simt_machine.Machine(simt_machine.TARGET)
    return nm.device("transforming")


@pytest.mark.parametrize("shape", [(8,), (3, 16), (50, 12), (2, 34), (3, 143), (1000,), (3, 51)])
def test_gpu_schedules(gpu, shape):
    z = noise(*shape)
    t = nm.asarray(z, device=gpu)
    close(nm.fft.fft(t).numpy(), np.fft.fft(z))
    close(nm.fft.ifft(t * 2).numpy(), np.fft.ifft(z * 2))


@pytest.mark.parametrize("shape", [(3, 24), (5, 68), (50, 12), (7, 286), (2, 102)])
def test_gpu_real_schedules(gpu, shape):
    """Half the transform is unpacked from the buffer that the last pass stores to."""
    x = noise(*shape).real
    close(nm.fft.rfft(nm.asarray(x, device=gpu)).numpy(), np.fft.rfft(x))


def test_three_steps_on_a_small_block(gpu):
    """Sixteen points of shared memory: a length of three factors."""
    small = replace(simt_machine.TARGET, shared_bytes=16 * 16)
    devices.BACKENDS["transforming_small"] = lambda index: simt_machine.Machine(small)
    z = noise(2, 8 * 9 * 10)
    t = nm.asarray(z, device="transforming_small")
    close(nm.abs(nm.fft.fft(t)).numpy(), np.abs(np.fft.fft(z)))


@pytest.mark.parametrize("shape", [(40, 24), (3, 16, 20), (5, 64)])
def test_adjacent_rows_on_a_block(gpu, shape):
    """Along the first axes, adjacent rows are adjacent in memory: threads run over them."""
    z = noise(*shape)
    t = nm.asarray(z, device=gpu)
    for axis in range(len(shape)):
        close(nm.fft.fft(t, axis=axis).numpy(), np.fft.fft(z, axis=axis))
    close(nm.fft.fftn(t).numpy(), np.fft.fftn(z))
