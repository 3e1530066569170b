"""What the tests of the array API's extensions share: devices, dtypes, shapes and comparisons.

Shapes, dtypes and keywords are drawn by Hypothesis; elements come from a generator whose seed is
drawn, so that the condition of matrices is known.
"""

import inspect
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from test_ops import DEVICES, on

import numus as nm

FEW, MANY = 8, 100
SINGLE = ("float32", "complex64")
REQUIRED = inspect.Parameter.empty


def over_examples(body):
    """A test of a body(draw, place), on each device: a few examples, and many where it is slow."""

    @pytest.mark.parametrize(
        "examples",
        [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.slow)],
    )
    @pytest.mark.parametrize("device", DEVICES)
    def test(device, examples):
        default = settings.default.max_examples
        count = default if default > settings.get_profile("steady").max_examples else examples

        @settings(max_examples=count, suppress_health_check=[HealthCheck.too_slow])
        @given(st.data())
        def run(data):
            body(data.draw, place)

        with on(device) as place:
            run()

    test.__doc__ = body.__doc__
    test.__name__ = test.__qualname__ = body.__name__
    test.__module__ = body.__module__
    return test


# -- what is drawn --------------------------------------------------------------------------------


def dtypes_of(place, *kinds):
    """The names of the standard's dtypes of some kinds that a device has."""
    return list(nm.__array_namespace_info__().dtypes(device=place, kind=kinds))


def reals(place):
    return st.sampled_from(dtypes_of(place, "real floating"))


def complexes(place):
    return st.sampled_from(dtypes_of(place, "complex floating"))


def floats(place):
    """Real and complex floats."""
    return st.sampled_from(dtypes_of(place, "real floating", "complex floating"))


def numbers(place):
    return st.sampled_from(dtypes_of(place, "numeric"))


def stacks(max_dims=2, min_side=0, max_side=3):
    """The axes in front of those of the matrices."""
    return hnp.array_shapes(min_dims=0, max_dims=max_dims, min_side=min_side, max_side=max_side)


def matrices(min_side=0, max_dims=2):
    """Shapes of stacks of matrices."""
    side = st.integers(min_side, 4)
    return st.tuples(stacks(max_dims, min_side), side, side).map(lambda s: (*s[0], s[1], s[2]))


def squares(min_side=0):
    """Shapes of stacks of square matrices."""
    return st.tuples(stacks(), st.integers(min_side, 4)).map(lambda s: (*s[0], s[1], s[1]))


def generator(draw):
    return np.random.default_rng(draw(st.integers(0, 2**16), label="seed"))


def elements(draw, shape, name):
    """Small integers in integer dtypes; normal numbers in the others."""
    rng, dtype = generator(draw), np.dtype(name)
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -5, 6, shape).astype(dtype)
    values = rng.standard_normal(shape)
    if dtype.kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return np.asarray(values).astype(dtype)


def orthonormal(draw, shape, name):
    """Square matrices with orthonormal columns, in double precision."""
    wide = "complex128" if np.dtype(name).kind == "c" else "float64"
    return np.linalg.qr(elements(draw, shape, wide))[0]


def conditioned(draw, shape, name):
    """Square matrices whose singular values are between 1 and 3."""
    n = shape[-1]
    left, right = (orthonormal(draw, shape, name) for _ in range(2))
    return ((left * np.linspace(1, 3, n)) @ right).astype(name)


def hermitian(draw, shape, name, positive=False):
    """Hermitian matrices whose eigenvalues are distinct, and between 1 and 3 if positive."""
    n = shape[-1]
    q = orthonormal(draw, shape, name)
    values = np.linspace(1, 3, n) if positive else np.linspace(-2, 3, n)
    a = (q * values) @ adjoint(q)
    return ((a + adjoint(a)) / 2).astype(name)


def two_dtypes(draw, place, strategy=floats):
    """The dtypes of two operands, mostly the same; and that of the result."""
    first = draw(strategy(place), label="dtype 1")
    if strategy is numbers and np.dtype(first).kind in "iu":
        return first, first, first
    second = draw(st.just(first) | floats(place), label="dtype 2")
    return first, second, promoted(first, second)


def known_rank(draw, shape, dtype):
    """Matrices with the singular values 1, 1/10, 1/100, ..."""
    *batch, m, n = shape
    k = min(m, n)
    u, v = (orthonormal(draw, (*batch, side, side), dtype) for side in (m, n))
    return (u[..., :k] * 10.0 ** -np.arange(k) @ v[..., :k, :]).astype(dtype)


def drawn_rtol(draw, shape, place):
    """A tolerance between the singular values of known_rank: none, a number, or one per matrix."""
    kind = draw(st.sampled_from(["none", "number", "tensor"]), label="kind of rtol")
    powers = np.random.default_rng(len(shape)).integers(0, 3, shape[:-2])
    if kind == "none":
        return None, np.full(shape[:-2], 4)
    if kind == "number":
        return 0.03, np.full(shape[:-2], 1)
    dtype = draw(st.sampled_from(dtypes_of(place, "real floating")), label="dtype of rtol")
    return nm.asarray((0.3 * 10.0**-powers).astype(dtype)), powers


def broadcast_shapes():
    """Two shapes that are broadcast against each other."""
    return hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=2, min_side=0, max_side=3)


# -- comparisons ----------------------------------------------------------------------------------


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


def wide(array):
    """The same numbers in double precision."""
    kind = np.asarray(array).dtype.kind
    return np.asarray(array).astype({"c": "complex128", "f": "float64"}.get(kind, array.dtype))


def real_name(name):
    """The real dtype of the precision of another."""
    return np.finfo(name).dtype.name


def complex_name(name):
    """The complex dtype of the precision of another."""
    return "complex64" if name in SINGLE else "complex128"


def has(got, shape, name, place):
    """A result has this shape and dtype, and is on the device of the test."""
    assert isinstance(got, nm.Tensor)
    assert got.shape == tuple(shape)
    assert got.dtype.name == name
    assert got.device == place


def close(found, want, name, size=None):
    """found is want up to the rounding of a dtype, relative to a size; exactly, in integers."""
    found, want = np.asarray(found), np.asarray(want)
    assert found.shape == want.shape
    if np.dtype(name).kind in "biu":
        np.testing.assert_array_equal(found, want)
        return
    if size is None:
        size = np.max(np.abs(want), initial=1.0)
    error = np.max(np.abs(wide(found) - want), initial=0.0)
    assert error <= 200 * np.finfo(name).eps * size, f"{found}\nis not\n{want}"


def agrees(got, want, name, place, size=None):
    """A result has the shape of an array, a dtype, and the array's values."""
    has(got, np.shape(want), name, place)
    close(got.numpy(), want, name, size)


def size_of_sum(*arrays):
    """What the rounding of a product is relative to."""
    return max(1.0, 5 * math.prod(float(np.max(np.abs(wide(a)), initial=1)) for a in arrays))


def alone(function, got, *stacked, core=2, most=4):
    """Each matrix of a stack has the result that the function gives of the matrix alone."""
    batch = stacked[0].shape[: stacked[0].ndim - core]
    indices = list(np.ndindex(batch))
    for index in indices[:: max(1, math.ceil(len(indices) / most))]:
        single = function(*(nm.asarray(np.asarray(a[index])) for a in stacked))
        parts = (got, single) if isinstance(got, tuple) else ((got,), (single,))
        for whole, part in zip(*parts, strict=True):
            assert whole.dtype is part.dtype
            found = np.asarray(whole.numpy()[index])
            close(found, part.numpy(), whole.dtype.name)


def promoted(*names):
    return np.result_type(*names).name


def norm_of(a, axis, order, keepdims):
    """The norm of vectors along axes, from its definition."""
    sizes = np.abs(wide(a))
    if math.isinf(order):
        reduced = np.max if order > 0 else np.min
        return reduced(sizes, axis=axis, keepdims=keepdims)
    if order == 0:
        return np.sum(sizes != 0, axis=axis, keepdims=keepdims).astype(float)
    return np.sum(sizes**order, axis=axis, keepdims=keepdims) ** (1 / order)


# -- signatures -----------------------------------------------------------------------------------


def signature_is(function, positional, keywords):
    """The parameters of the standard, by position alone or by name, and their defaults; more ones
    may follow if they are optional."""
    parameters = list(inspect.signature(function).parameters.values())
    for parameter, (name, default) in zip(parameters, positional, strict=False):
        assert parameter.name == name
        assert parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        assert parameter.default == default
    assert len(parameters) >= len(positional)
    rest = {p.name: p for p in parameters[len(positional) :]}
    assert rest.keys() >= keywords.keys()
    for name, parameter in rest.items():
        if name not in keywords:
            assert parameter.default is not REQUIRED
            continue
        assert parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        assert parameter.default == keywords[name]
