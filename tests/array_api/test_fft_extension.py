"""The array API standard's extension `fft`, version 2024.12: every function, against NumPy."""

import inspect

import numpy as np
import pytest
from extension_strategies import (
    DEVICES,
    REQUIRED,
    agrees,
    complex_name,
    complexes,
    dtypes_of,
    elements,
    floats,
    has,
    numbers,
    on,
    over_examples,
    real_name,
    reals,
    signature_is,
    wide,
)
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import numus as nm

ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
MANY_AXES = ("fftn", "ifftn", "rfftn", "irfftn")
SHIFTS = ("fftshift", "ifftshift")
NORMS = st.sampled_from(["backward", "ortho", "forward"])
OF_REALS = ("rfft", "rfftn", "ihfft")  # and their results are complex
TO_REALS = ("irfft", "irfftn", "hfft")
ROUND_TRIPS = [("fft", "ifft"), ("rfft", "irfft"), ("ihfft", "hfft")]
SIDES = (st.integers(0, 4), st.integers(1, 9))


def given_dtype(name, place):
    return reals(place) if name in OF_REALS else complexes(place)


def result_name(name, dtype):
    if name in OF_REALS:
        return complex_name(dtype)
    return real_name(dtype) if name in TO_REALS else dtype


def drawn_shape(draw, axes_of, max_dims=3):
    """A shape, and axes along which it is not empty, which may be negative."""
    ndim = draw(st.integers(1, max_dims), label="ndim")
    axes = draw(axes_of(ndim), label="axes")
    along = {a % ndim for a in axes}
    return tuple(draw(SIDES[i in along]) for i in range(ndim)), axes


def one_axis(ndim):
    return st.tuples(st.integers(-ndim, ndim - 1))


def some_axes(ndim):
    """Distinct axes, in any order."""
    chosen = st.permutations(range(ndim)).flatmap(
        lambda order: st.integers(1, ndim).map(lambda count: order[:count])
    )
    return st.tuples(chosen, st.lists(st.booleans(), min_size=ndim, max_size=ndim)).map(
        lambda drawn: tuple(
            a - ndim if flip else a for a, flip in zip(drawn[0], drawn[1], strict=False)
        )
    )


def reference(name, x, **keywords):
    """NumPy's result in double precision."""
    with np.errstate(all="ignore"):
        return getattr(np.fft, name)(wide(x), **keywords)


def compared(name, x, place, **keywords):
    """numus's result, which is NumPy's; errors grow with the sums that a transform takes."""
    got = getattr(nm.fft, name)(nm.asarray(x), **keywords)
    want = reference(name, x, **keywords)
    size = max(1.0, np.max(np.abs(want), initial=0.0), np.sum(np.abs(x)) / max(want.size, 1))
    agrees(got, want, result_name(name, x.dtype.name), place, size)
    return got


# -- one axis -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONE)
def test_signature_of_one_axis(name):
    function = getattr(nm.fft, name)
    norm = inspect.signature(function).parameters["norm"].default
    assert norm in (None, "backward")  # None is the same: test_the_default_norm
    signature_is(function, [("x", REQUIRED)], {"n": None, "axis": -1, "norm": norm})


@pytest.mark.parametrize("name", MANY_AXES)
def test_signature_of_many_axes(name):
    function = getattr(nm.fft, name)
    norm = inspect.signature(function).parameters["norm"].default
    assert norm in (None, "backward")
    signature_is(function, [("x", REQUIRED)], {"s": None, "axes": None, "norm": norm})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ONE + MANY_AXES)
def test_the_default_norm(name, device):
    with on(device):
        x = nm.ones((2, 3), dtype=nm.float32 if name in OF_REALS else nm.complex64)
        function = getattr(nm.fft, name)
        backward, ortho = function(x, norm="backward").numpy(), function(x, norm="ortho").numpy()
        np.testing.assert_array_equal(function(x).numpy(), backward)
        assert not np.array_equal(backward, ortho)


def check_one_axis(name, draw, place):
    """Values, shapes and dtypes for all n, axis and norm: padded, trimmed and as they are."""
    shape, (axis,) = drawn_shape(draw, one_axis)
    n = draw(st.none() | st.integers(1, 12), label="n")
    if n is None and name in TO_REALS and shape[axis] == 1:
        n = 1  # 2 (m - 1) would be no points
    x = elements(draw, shape, draw(given_dtype(name, place), label="dtype"))
    keywords = {"n": n, "axis": axis, "norm": draw(NORMS, label="norm")}
    got = compared(name, x, place, **keywords)
    points = n or (2 * (shape[axis] - 1) if name in TO_REALS else shape[axis])
    want = list(shape)
    want[axis] = points // 2 + 1 if name in OF_REALS else points
    assert got.shape == tuple(want)


@over_examples
def test_fft(draw, place):
    check_one_axis("fft", draw, place)


@over_examples
def test_ifft(draw, place):
    check_one_axis("ifft", draw, place)


@over_examples
def test_rfft(draw, place):
    check_one_axis("rfft", draw, place)


@over_examples
def test_irfft(draw, place):
    check_one_axis("irfft", draw, place)


@over_examples
def test_hfft(draw, place):
    check_one_axis("hfft", draw, place)


@over_examples
def test_ihfft(draw, place):
    check_one_axis("ihfft", draw, place)


@over_examples
def test_one_axis_there_and_back(draw, place):
    """The inverse, with the same arguments, gives the array back."""
    there, back = draw(st.sampled_from(ROUND_TRIPS), label="pair")
    shape, (axis,) = drawn_shape(draw, one_axis)
    dtype = draw(given_dtype(there, place), label="dtype")
    x, norm = elements(draw, shape, dtype), draw(NORMS, label="norm")
    halfway = getattr(nm.fft, there)(nm.asarray(x), axis=axis, norm=norm)
    got = getattr(nm.fft, back)(halfway, n=shape[axis], axis=axis, norm=norm)
    agrees(got, wide(x), dtype, place)


@over_examples
def test_each_row_alone(draw, place):
    """The transform along the last axis is that of each row."""
    name = draw(st.sampled_from(ONE), label="name")
    x = elements(draw, (draw(st.integers(1, 3)), draw(st.integers(2, 9))), "float32")
    if name not in OF_REALS:
        x = x.astype("complex64")
    function = getattr(nm.fft, name)
    together = function(nm.asarray(x)).numpy()
    for row, whole in zip(x, together, strict=True):
        agrees(function(nm.asarray(row)), wide(whole), result_name(name, x.dtype.name), place)


# -- several axes ---------------------------------------------------------------------------------


def check_many_axes(name, draw, place):
    """Values, shapes and dtypes for all s, axes and norm; -1 in s takes an axis as it is."""
    every = draw(st.booleans(), label="all axes")
    of_all = lambda ndim: st.just(tuple(range(ndim)))
    shape, axes = drawn_shape(draw, of_all if every else some_axes)
    sizes = st.integers(1, 6) | st.just(-1)
    # Of -1 as the last length of irfftn the standard says nothing that could be meant.
    last = st.integers(1, 6) if name == "irfftn" else sizes
    s = None if every else draw(st.none() | st.tuples(*[sizes] * (len(axes) - 1), last), label="s")
    if name == "irfftn" and shape[axes[-1]] == 1 and s is None:
        s = (*(shape[a] for a in axes[:-1]), 1)
        every = False
    x = elements(draw, shape, draw(given_dtype(name, place), label="dtype"))
    norm = draw(NORMS, label="norm")
    got = getattr(nm.fft, name)(nm.asarray(x), s=s, axes=None if every else axes, norm=norm)

    points = [shape[a] for a in axes]
    if name == "irfftn":
        points[-1] = 2 * (points[-1] - 1)
    known = [p if s is None or s[i] == -1 else s[i] for i, p in enumerate(points)]
    want = reference(name, x, s=known, axes=axes, norm=norm)
    size = max(1.0, np.max(np.abs(want), initial=0.0), np.sum(np.abs(x)) / max(want.size, 1))
    agrees(got, want, result_name(name, x.dtype.name), place, size)
    for i, a in enumerate(axes):
        halved = name == "rfftn" and i == len(axes) - 1
        assert got.shape[a] == (known[i] // 2 + 1 if halved else known[i])


@over_examples
def test_fftn(draw, place):
    check_many_axes("fftn", draw, place)


@over_examples
def test_ifftn(draw, place):
    check_many_axes("ifftn", draw, place)


@over_examples
def test_rfftn(draw, place):
    check_many_axes("rfftn", draw, place)


@over_examples
def test_irfftn(draw, place):
    check_many_axes("irfftn", draw, place)


@over_examples
def test_many_axes_there_and_back(draw, place):
    """The inverse, with the same arguments, gives the array back."""
    real = draw(st.booleans(), label="real")
    shape, axes = drawn_shape(draw, some_axes)
    dtype = draw(reals(place) if real else complexes(place), label="dtype")
    x, norm = elements(draw, shape, dtype), draw(NORMS, label="norm")
    s = [shape[a] for a in axes]
    there, back = (nm.fft.rfftn, nm.fft.irfftn) if real else (nm.fft.fftn, nm.fft.ifftn)
    got = back(there(nm.asarray(x), axes=axes, norm=norm), s=s, axes=axes, norm=norm)
    agrees(got, wide(x), dtype, place)


@over_examples
def test_many_axes_are_one_after_the_other(draw, place):
    shape, axes = drawn_shape(draw, some_axes)
    x = nm.asarray(elements(draw, shape, "complex64"))
    want = x
    for a in axes:
        want = nm.fft.fft(want, axis=a)
    agrees(nm.fft.fftn(x, axes=axes), wide(want.numpy()), "complex64", place)


# -- frequencies and shifts -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fftfreq", "rfftfreq"])
def test_signature_of_frequencies(name):
    signature_is(
        getattr(nm.fft, name), [("n", REQUIRED)], {"d": 1.0, "dtype": None, "device": None}
    )


def check_frequencies(name, draw, place):
    """Values in each dtype, on each device; the default floating-point dtype if none is named."""
    n = draw(st.integers(1, 40), label="n")
    d = draw(st.floats(0.125, 8) | st.floats(-8, -0.125), label="d")
    dtype = draw(st.none() | reals(place), label="dtype")
    keywords = {} if dtype is None else {"dtype": getattr(nm, dtype)}
    if draw(st.booleans(), label="named device"):
        keywords["device"] = place
    default = nm.__array_namespace_info__().default_dtypes(device=place)["real floating"].name
    want = getattr(np.fft, name)(n, d)
    got = getattr(nm.fft, name)(n, d=d, **keywords)
    agrees(got, want, dtype or default, place)
    assert got.shape == (n // 2 + 1 if name == "rfftfreq" else n,)
    has(getattr(nm.fft, name)(n), got.shape, default, place)


@over_examples
def test_fftfreq(draw, place):
    check_frequencies("fftfreq", draw, place)


@over_examples
def test_rfftfreq(draw, place):
    check_frequencies("rfftfreq", draw, place)


@pytest.mark.parametrize("name", SHIFTS)
def test_signature_of_shifts(name):
    signature_is(getattr(nm.fft, name), [("x", REQUIRED)], {"axes": None})


def check_shift(name, draw, place):
    """Elements keep their values and dtype; axes are all, one, or several."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5), label="shape")
    ndim = len(shape)
    axes = draw(st.none() | st.integers(-ndim, ndim - 1) | some_axes(ndim), label="axes")
    x = elements(draw, shape, draw(floats(place) | numbers(place), label="dtype"))
    got = getattr(nm.fft, name)(nm.asarray(x), axes=axes)
    has(got, shape, x.dtype.name, place)
    np.testing.assert_array_equal(got.numpy(), getattr(np.fft, name)(x, axes))
    other = SHIFTS[name == SHIFTS[0]]
    np.testing.assert_array_equal(getattr(nm.fft, other)(got, axes=axes).numpy(), x)


@over_examples
def test_fftshift(draw, place):
    check_shift("fftshift", draw, place)


@over_examples
def test_ifftshift(draw, place):
    check_shift("ifftshift", draw, place)


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ONE)
def test_axis_out_of_range(name, device):
    with on(device):
        x = nm.ones((2, 3), dtype=nm.float32 if name in OF_REALS else nm.complex64)
        for axis in (2, -3):
            with pytest.raises((ValueError, IndexError)):
                getattr(nm.fft, name)(x, axis=axis)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MANY_AXES + SHIFTS)
def test_axes_out_of_range(name, device):
    with on(device):
        x = nm.ones((2, 3), dtype=nm.float32 if name in OF_REALS else nm.complex64)
        for axes in ((2,), (0, -3)):
            with pytest.raises((ValueError, IndexError)):
                getattr(nm.fft, name)(x, axes=axes)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OF_REALS)
def test_complex_numbers_are_not_real(name, device):
    with on(device) as place:
        for dtype in dtypes_of(place, "complex floating"):
            with pytest.raises(TypeError):
                getattr(nm.fft, name)(nm.ones((2, 3), dtype=getattr(nm, dtype)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ONE + MANY_AXES)
def test_other_norms(name, device):
    with on(device):
        x = nm.ones((2, 3), dtype=nm.float32 if name in OF_REALS else nm.complex64)
        with pytest.raises(ValueError, match="norm"):
            getattr(nm.fft, name)(x, norm="unitary")
