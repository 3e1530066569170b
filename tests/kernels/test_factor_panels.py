"""Panels of tall matrices in registers of a cluster, and what large LU factorisations make of them:
on an interpreted GPU, and as rendered code on host threads."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine
import simt_threads

import numus as nm
from numus.codegen.nvptx import renderer
from numus.linalg.factor import blocked
from numus.primitives.linalg import factor
from numus.runtime import devices
from numus.tensor import Tensor

RNG = np.random.default_rng(0)


def rendered(index):
    made = simt_threads.Machine()
    made.target = replace(made.target, block_size=32, max_block_size=64, max_cluster_size=4)
    made.with_scratch = True
    return made


@pytest.fixture(scope="module", autouse=True)
def machines():
    target = replace(simt_machine.HOPPER, block_size=64, max_block_size=128)
    devices.BACKENDS["clusters"] = lambda index: simt_machine.Machine(target)
    devices.BACKENDS["rendered"] = rendered
    with nm.kernels.prefer("native"):
        yield


def drawn(shape, dtype):
    a = RNG.standard_normal(shape)
    return (a + 1j * RNG.standard_normal(shape) if dtype().dtype.kind == "c" else a).astype(dtype)


def on(device, function, a, *params):
    return Tensor(function(nm.asarray(a, device=nm.device(device))._node, *params)).numpy()


def agree(device, function, a, *params):
    found, want = (on(d, function, a, *params) for d in (device, "reference"))
    bound = 200 * np.finfo(found.dtype).eps
    np.testing.assert_allclose(found, want, rtol=bound, atol=bound * np.max(np.abs(want)))


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
@pytest.mark.parametrize("shape", [(2, 150, 8), (1, 515, 7), (1, 129, 1), (1, 40, 13)])
def test_panels(shape, dtype):
    a = drawn(shape, dtype)
    a[0, :, shape[2] // 2] = 0  # a column without a pivot
    agree("clusters", factor.lu, a)
    kernel = nm.device("clusters").runtime.launched[-1].kernel
    assert kernel.name == "lu_panel"
    assert kernel.cluster_blocks > 1 or shape[1] < 500


def test_equal_pivots_and_swaps():
    a = np.ones((1, 70, 4), np.float32)
    a[0, 40:] = -2
    a[0, 69, 3] = 5
    agree("clusters", factor.lu, a)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_rendered_panels(dtype):
    """Of several CTAs; and vectors of numbers in shared memory, real and complex."""
    agree("rendered", factor.lu, drawn((1, 300, 4), dtype))
    a = drawn((2, 7, 7), dtype)
    a = a @ np.conj(np.swapaxes(a, 1, 2)) + 7 * np.eye(7, dtype=dtype)
    agree("rendered", factor.lower_cholesky, a)
    agree("rendered", factor.cholesky_and_inverse, a)


def test_steps_take_turns_in_shared_memory():
    """On threads that run apart where no barrier holds them."""
    a = drawn((3, 13, 13), np.float32) / 26 + np.eye(13, dtype=np.float32)
    agree("rendered", factor.lower_inverse, a, True)
    agree("rendered", factor.cholesky_and_inverse, a @ np.swapaxes(a, 1, 2))
    given = [nm.asarray(x, device="rendered")._node for x in (a, a[..., :2])]
    found = Tensor(factor.direct_solve(*given)).numpy()
    np.testing.assert_allclose(a @ found, a[..., :2], atol=1e-5)


@pytest.mark.parametrize("redux", [True, False])
def test_pivots_are_maxima_over_warps(redux, monkeypatch):
    """Of keys of 64 bits, by halves: some differ in their lower ones alone."""
    monkeypatch.setattr(renderer, "_REDUX_MIN_CAPABILITY", 80 if redux else 100)
    a = drawn((2, 9, 9), np.float64) * 2.0**-30 + np.ones((9, 9))
    machine = rendered(0)
    devices.BACKENDS[f"redux {redux}"] = lambda index: machine
    a = nm.asarray(a, device=f"redux {redux}")
    found = Tensor(factor.direct_inverse(a._node)).numpy()
    np.testing.assert_allclose(found, np.linalg.inv(a.numpy()), rtol=1e-3)
    assert machine.rendered


@pytest.mark.parametrize("unit_diagonal", [False, True])
def test_inverses_of_triangles(unit_diagonal):
    for n, dtype in ((1, np.float32), (13, np.complex64), (64, np.float64)):
        a = drawn((2, n, n), dtype) / n + 2 * np.eye(n, dtype=dtype)
        agree("clusters", factor.lower_inverse, a, unit_diagonal)


@pytest.mark.parametrize("panels", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_systems_of_several_panels(panels, monkeypatch):
    monkeypatch.setattr(blocked, "LU_PANELS", panels)
    n = 150
    a, b = drawn((n, n), np.float32), drawn((n, 2), np.float32)
    given = [nm.asarray(x, device="clusters") for x in (a, b)]
    p, lower, upper = (x.numpy() for x in nm.linalg.lu(given[0]))
    bound = 10 * n * np.finfo(np.float32).eps
    assert np.max(np.abs(p @ lower @ upper - a)) <= bound * np.max(np.abs(a))
    x = nm.linalg.solve(*given).numpy()
    assert np.max(np.abs(a @ x - b)) <= bound * np.max(np.abs(a)) * np.max(np.abs(x))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, 100, 70), np.complex64),
        ((1, 70, 150), np.float32),
        pytest.param((1, 150, 150), np.float64, marks=pytest.mark.slow),
        pytest.param((1, 67, 67), np.complex128, marks=pytest.mark.slow),
    ],
)
def test_panels_and_what_is_right_of_them(shape, dtype):
    a = drawn(shape, dtype)
    agree("clusters", factor.lu, a)
    names = [program.kernel.name for program in nm.device("clusters").runtime.launched[-5:]]
    assert {"lu_panel", "lu_upper", "lu_update", "lu_rows"} >= set(names)
    assert names[-1] == "lu_rows"


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(70, 150), (150, 70), (33, 90)])
def test_wide_and_tall_matrices(shape):
    a = drawn((2, *shape), np.float32)
    found = nm.linalg.lu(nm.asarray(a, device="clusters"))
    p, lower, upper = (x.numpy() for x in found)
    bound = 10 * max(shape) * np.finfo(np.float32).eps
    assert np.max(np.abs(p @ lower @ upper - a)) <= bound * np.max(np.abs(a))
    assert np.max(np.abs(lower)) <= 1
