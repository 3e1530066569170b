"""Shifted-data variance: around the mean of a sample, in one pass over memory."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.runtime import devices

RNG = np.random.default_rng(7)


@pytest.fixture(scope="module", autouse=True)
def machine():
    devices.BACKENDS["sampling"] = lambda index: simt_machine.Machine(simt_machine.HOPPER)
    return nm.device("sampling").runtime


def columns(rows=2103, many=24):
    return RNG.standard_normal((rows, many))


def unlike(first, rest):
    """A sample that is not representative."""
    x = columns()
    x[: x.shape[0] // 2] += first
    x[x.shape[0] // 2 :] += rest
    x[::257] += first
    return x


NUMBERS = {
    "plain": columns,
    "far from zero": lambda: columns() + 1e3,
    "rising": lambda: np.sort(columns() * 100, axis=0),
    "in two halves": lambda: unlike(0, 1e4),
    "equal": lambda: np.full((2103, 24), 1 / 3),
    "one outlier first": lambda: np.concatenate([np.full((1, 24), 1e6), columns()]),
    "one outlier last": lambda: np.concatenate([columns(), np.full((1, 24), 1e6)]),
    "narrow": lambda: columns(6144, 3) + 50,
    "wide": lambda: columns(700, 520) - 50,
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_variances_are_accurate(name, dtype):
    x = NUMBERS[name]().astype(dtype)
    found = nm.var(nm.asarray(x, device="sampling"), axis=0).numpy()
    want = x.astype(np.longdouble).var(0)
    rtol, atol = (4e-6, 1e-12) if dtype is np.float32 else (1e-13, 1e-25)
    np.testing.assert_allclose(found, want.astype(dtype), rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_of_16_bit_floats(dtype):
    x = nm.asarray(columns() + 3, device="sampling").astype(getattr(nm, dtype))
    exact = x.astype(nm.float64).numpy()
    found = nm.var(x.astype(nm.float32), axis=0).numpy()
    np.testing.assert_allclose(found, exact.var(0), rtol=4e-6)
    rounded = nm.var(x, axis=0).astype(nm.float32).numpy()
    np.testing.assert_allclose(rounded, exact.var(0), rtol=2e-2 if dtype == "bfloat16" else 2e-3)


def test_with_other_reductions(machine):
    x = columns(3000, 90).astype(np.float32)
    t = nm.asarray(x, device="sampling")
    wanted = [x.mean(0), x.var(0), x.max(0), (x * 2).sum(0), x.argmin(0)]
    found = [t.mean(0), t.var(0), t.max(0), (t * 2).sum(0), t.argmin(0)]
    nm.eval(*found)
    for mine, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine.numpy(), want, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 900, 40), 1), ((1200, 3, 40), 0), ((40, 64, 90), 1)]
)
def test_along_axes_in_the_middle(shape, axis):
    x = (RNG.standard_normal(shape) + 20).astype(np.float32)
    found = nm.std(nm.asarray(x, device="sampling"), axis=axis).numpy()
    np.testing.assert_allclose(found, x.astype(np.float64).std(axis), rtol=3e-6)


@pytest.mark.parametrize("row", [0, 3, 300, 2102])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_values_that_are_not_finite(row, number):
    x = columns().astype(np.float32)
    x[row, 5:9] = number
    t = nm.asarray(x, device="sampling")
    mean, var = t.mean(0), t.var(0)
    nm.eval(mean, var)
    np.testing.assert_array_equal(np.isnan(var.numpy()), ~np.isfinite(x.mean(0)))
    bad = mean.numpy()[5:9]
    assert (np.isnan(bad) if np.isnan(number) else bad == number).all()
    np.testing.assert_allclose(mean.numpy()[9:], x.mean(0)[9:], atol=1e-6)


@pytest.mark.parametrize("shape", [(70_000,), (3, 41_111), (9, 5, 30, 31)])
def test_along_rows(shape):
    axes = (0, 2, 3) if len(shape) == 4 else (len(shape) - 1,)
    x = (RNG.standard_normal(shape) - 30).astype(np.float32)
    x[..., 0] = 1e3
    t = nm.asarray(x, device="sampling")
    mean, var = t.mean(axes), t.var(axes)
    nm.eval(mean, var)
    np.testing.assert_allclose(mean.numpy(), x.astype(np.float64).mean(axes), rtol=1e-6)
    np.testing.assert_allclose(var.numpy(), x.astype(np.float64).var(axes), rtol=4e-6)


def test_memory_is_read_once(machine):
    x = nm.asarray(columns(4096, 64).astype(np.float32), device="sampling")
    nm.eval(x)
    machine.launched.clear()
    nm.eval(x.mean(0), x.var(0))
    assert [p.name for p in machine.launched] == ["split_reduction", "combine_partials"]
