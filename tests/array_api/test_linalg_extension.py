"""The array API standard's extension `linalg`, version 2024.12: every function, against NumPy or by
what defines its result."""

import inspect

import numpy as np
import pytest
from extension_strategies import (
    DEVICES,
    REQUIRED,
    adjoint,
    agrees,
    alone,
    broadcast_shapes,
    close,
    conditioned,
    drawn_rtol,
    dtypes_of,
    elements,
    floats,
    has,
    hermitian,
    known_rank,
    matrices,
    norm_of,
    numbers,
    on,
    over_examples,
    promoted,
    real_name,
    signature_is,
    size_of_sum,
    squares,
    stacks,
    two_dtypes,
    wide,
)
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import numus as nm

X, PAIR = [("x", REQUIRED)], [("x1", REQUIRED), ("x2", REQUIRED)]
SIGNATURES = {
    "cholesky": (X, {"upper": False}),
    "cross": (PAIR, {"axis": -1}),
    "det": (X, {}),
    "diagonal": (X, {"offset": 0}),
    "eigh": (X, {}),
    "eigvalsh": (X, {}),
    "inv": (X, {}),
    "matmul": (PAIR, {}),
    "matrix_norm": (X, {"keepdims": False, "ord": "fro"}),
    "matrix_power": ([*X, ("n", REQUIRED)], {}),
    "matrix_rank": (X, {"rtol": None}),
    "matrix_transpose": (X, {}),
    "outer": (PAIR, {}),
    "pinv": (X, {"rtol": None}),
    "qr": (X, {"mode": "reduced"}),
    "slogdet": (X, {}),
    "solve": (PAIR, {}),
    "svd": (X, {"full_matrices": True}),
    "svdvals": (X, {}),
    "tensordot": (PAIR, {"axes": 2}),
    "trace": (X, {"offset": 0, "dtype": None}),
    "vecdot": (PAIR, {"axis": -1}),
    "vector_norm": (X, {"axis": None, "keepdims": False, "ord": 2}),
}
IN_BOTH = ("matmul", "matrix_transpose", "tensordot", "vecdot")
SQUARE_ONLY = ("cholesky", "det", "eigh", "eigvalsh", "inv", "slogdet")
MATRICES_ONLY = (
    *SQUARE_ONLY,
    *("diagonal", "matrix_norm", "matrix_rank", "matrix_transpose", "pinv", "qr", "svd"),
    *("svdvals", "trace"),
)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    signature_is(getattr(nm.linalg, name), *SIGNATURES[name])


@pytest.mark.parametrize("name", IN_BOTH)
def test_functions_of_both_namespaces(name):
    assert inspect.signature(getattr(nm, name)) == inspect.signature(getattr(nm.linalg, name))


# -- factors --------------------------------------------------------------------------------------


@over_examples
def test_cholesky(draw, place):
    dtype, upper = draw(floats(place)), draw(st.booleans(), label="upper")
    a = hermitian(draw, draw(squares()), dtype, positive=True)
    got = nm.linalg.cholesky(nm.asarray(a), upper=upper)
    want = np.linalg.cholesky(wide(a))
    agrees(got, adjoint(want) if upper else want, dtype, place)
    factor = got.numpy()
    np.testing.assert_array_equal(factor, np.triu(factor) if upper else np.tril(factor))
    alone(lambda m: nm.linalg.cholesky(m, upper=upper), got, a)


@over_examples
def test_qr(draw, place):
    dtype, shape = draw(floats(place)), draw(matrices())
    mode = draw(st.sampled_from([None, "reduced", "complete"]), label="mode")
    (*batch, m, n), a = shape, elements(draw, shape, dtype)
    got = nm.linalg.qr(nm.asarray(a), **({} if mode is None else {"mode": mode}))
    assert got._fields == ("Q", "R")
    k = m if mode == "complete" else min(m, n)
    has(got.Q, (*batch, m, k), dtype, place)
    has(got.R, (*batch, k, n), dtype, place)
    q, r = wide(got.Q.numpy()), wide(got.R.numpy())
    close(q @ r, wide(a), dtype)
    close(adjoint(q) @ q, np.broadcast_to(np.eye(k), (*batch, k, k)), dtype)
    np.testing.assert_array_equal(r, np.triu(r))
    assert np.all(np.imag(np.diagonal(r, axis1=-2, axis2=-1)) == 0)


@over_examples
def test_svd(draw, place):
    dtype, shape = draw(floats(place)), draw(matrices())
    full = draw(st.none() | st.booleans(), label="full_matrices")
    (*batch, m, n), a = shape, elements(draw, shape, dtype)
    got = nm.linalg.svd(nm.asarray(a), **({} if full is None else {"full_matrices": full}))
    assert got._fields == ("U", "S", "Vh")
    k = min(m, n)
    rows, columns = (k, k) if full is False else (m, n)
    has(got.U, (*batch, m, rows), dtype, place)
    has(got.Vh, (*batch, columns, n), dtype, place)
    agrees(got.S, np.linalg.svd(wide(a), compute_uv=False), real_name(dtype), place)
    u, s, vh = (wide(part.numpy()) for part in got)
    close(u[..., :k] * s[..., None, :] @ vh[..., :k, :], wide(a), dtype)
    close(adjoint(u) @ u, np.broadcast_to(np.eye(rows), (*batch, rows, rows)), dtype)
    close(vh @ adjoint(vh), np.broadcast_to(np.eye(columns), (*batch, columns, columns)), dtype)
    assert np.all(s >= 0)
    assert np.all(np.diff(s, axis=-1) <= 0)


@over_examples
def test_svdvals(draw, place):
    dtype = draw(floats(place))
    a = elements(draw, draw(matrices()), dtype)
    got = nm.linalg.svdvals(nm.asarray(a))
    agrees(got, np.linalg.svd(wide(a), compute_uv=False), real_name(dtype), place)
    assert np.all(np.diff(got.numpy(), axis=-1) <= 0)
    alone(nm.linalg.svdvals, got, a)


@over_examples
def test_eigh(draw, place):
    dtype, shape = draw(floats(place)), draw(squares())
    a = hermitian(draw, shape, dtype)
    got = nm.linalg.eigh(nm.asarray(a))
    assert got._fields == ("eigenvalues", "eigenvectors")
    has(got.eigenvalues, shape[:-1], real_name(dtype), place)
    has(got.eigenvectors, shape, dtype, place)
    values, q = (wide(part.numpy()) for part in got)
    close(np.sort(values, axis=-1), np.linalg.eigvalsh(wide(a)), dtype)  # in any order
    close(q * values[..., None, :] @ adjoint(q), wide(a), dtype)
    close(adjoint(q) @ q, np.broadcast_to(np.eye(shape[-1]), shape), dtype)


@over_examples
def test_eigvalsh(draw, place):
    dtype, shape = draw(floats(place)), draw(squares())
    a = hermitian(draw, shape, dtype)
    got = nm.linalg.eigvalsh(nm.asarray(a))
    has(got, shape[:-1], real_name(dtype), place)
    close(np.sort(got.numpy(), axis=-1), np.linalg.eigvalsh(wide(a)), dtype)
    alone(nm.linalg.eigvalsh, got, a)


# -- inverses -------------------------------------------------------------------------------------


@over_examples
def test_inv(draw, place):
    dtype = draw(floats(place))
    a = conditioned(draw, draw(squares()), dtype)
    got = nm.linalg.inv(nm.asarray(a))
    agrees(got, np.linalg.inv(wide(a)), dtype, place)
    alone(nm.linalg.inv, got, a)


@over_examples
def test_solve(draw, place):
    """Right sides that are a vector or a stack of matrices, whose stacks are broadcast."""
    first, second, result = two_dtypes(draw, place)
    n, k = draw(st.integers(0, 4)), draw(st.integers(0, 3))
    drawn = draw(broadcast_shapes())
    left, right = drawn.input_shapes
    is_vector = draw(st.booleans(), label="a vector")
    a = conditioned(draw, (*left, n, n), first)
    b = elements(draw, (n,) if is_vector else (*right, n, k), second)
    got = nm.linalg.solve(nm.asarray(a), nm.asarray(b))
    want = np.linalg.inv(wide(a)) @ wide(b)
    has(got, (*left, n) if is_vector else (*drawn.result_shape, n, k), result, place)
    agrees(got, want, result, place, size_of_sum(b))
    if is_vector:
        alone(lambda m: nm.linalg.solve(m, nm.asarray(b)), got, a)


@over_examples
def test_matrix_rank(draw, place):
    dtype, shape = draw(floats(place)), draw(matrices())
    a = known_rank(draw, shape, dtype)
    rtol, powers = drawn_rtol(draw, shape, place)
    got = nm.linalg.matrix_rank(nm.asarray(a), rtol=rtol)
    default = nm.__array_namespace_info__().default_dtypes(device=place)["integral"].name
    agrees(got, np.minimum(powers + 1, min(shape[-2:])), default, place)


@over_examples
def test_matrix_rank_by_default(draw, place):
    """The tolerance is max(M, N) eps."""
    dtype, (*batch, m, n) = draw(floats(place)), draw(matrices(1))
    large = draw(st.integers(0, min(m, n)), label="rank")
    a = np.zeros((*batch, m, n), dtype)
    a[..., range(large), range(large)] = 1
    if 0 < large < min(m, n):
        times = draw(st.sampled_from([0.5, 2.0]), label="times the tolerance")
        a[..., large, large] = times * max(m, n) * np.finfo(dtype).eps
        large += times > 1
    got = nm.linalg.matrix_rank(nm.asarray(a))
    np.testing.assert_array_equal(got.numpy(), np.full(batch, large))


@over_examples
def test_pinv(draw, place):
    """The four identities of Penrose, of the matrix without its small singular values."""
    dtype, shape = draw(floats(place)), draw(matrices())
    a = known_rank(draw, shape, dtype)
    rtol, powers = drawn_rtol(draw, shape, place)
    got = nm.linalg.pinv(nm.asarray(a), rtol=rtol)
    has(got, (*shape[:-2], shape[-1], shape[-2]), dtype, place)
    u, s, vh = np.linalg.svd(wide(a), full_matrices=False)
    kept = np.arange(s.shape[-1]) <= powers[..., None]
    inverse = np.divide(1, s, out=np.zeros_like(s), where=kept)
    agrees(got, adjoint(vh) * inverse[..., None, :] @ adjoint(u), dtype, place, 1e6)


# -- determinants, powers, norms ------------------------------------------------------------------


@over_examples
def test_det(draw, place):
    dtype = draw(floats(place))
    a = conditioned(draw, draw(squares()), dtype)
    got = nm.linalg.det(nm.asarray(a))
    agrees(got, np.linalg.det(wide(a)), dtype, place)
    alone(nm.linalg.det, got, a)


@over_examples
def test_slogdet(draw, place):
    dtype = draw(floats(place))
    a = conditioned(draw, draw(squares()), dtype)
    got = nm.linalg.slogdet(nm.asarray(a))
    assert got._fields == ("sign", "logabsdet")
    want = np.linalg.slogdet(wide(a))
    agrees(got.sign, want.sign, dtype, place)
    agrees(got.logabsdet, want.logabsdet, real_name(dtype), place)
    alone(nm.linalg.slogdet, got, a)


@over_examples
def test_determinants_that_are_zero(draw, place):
    dtype, n = draw(floats(place)), draw(st.integers(1, 4))
    a = elements(draw, (2, n, n), dtype)
    a[0, draw(st.integers(0, n - 1))] = 0
    assert nm.linalg.det(nm.asarray(a)).numpy()[0] == 0
    sign, size = (part.numpy()[0] for part in nm.linalg.slogdet(nm.asarray(a)))
    assert sign == 0
    assert size == -np.inf


@over_examples
def test_matrix_power(draw, place):
    dtype, n = draw(floats(place)), draw(st.integers(-3, 5), label="n")
    a = conditioned(draw, draw(squares()), dtype)
    got = nm.linalg.matrix_power(nm.asarray(a), n)
    agrees(got, np.linalg.matrix_power(wide(a), n), dtype, place)
    alone(lambda m: nm.linalg.matrix_power(m, n), got, a)


@over_examples
def test_matrix_norm(draw, place):
    dtype = draw(floats(place))
    a = elements(draw, draw(matrices(min_side=1)), dtype)
    orders = ["fro", "nuc", 1, 2, np.inf, -1, -2, -np.inf]
    chosen = draw(st.none() | st.sampled_from(orders), label="ord")
    keywords = {} if chosen is None else {"ord": chosen}
    keepdims = draw(st.booleans(), label="keepdims")
    got = nm.linalg.matrix_norm(nm.asarray(a), keepdims=keepdims, **keywords)
    want = np.linalg.norm(wide(a), chosen or "fro", axis=(-2, -1), keepdims=keepdims)
    agrees(got, want, real_name(dtype), place)
    if not keepdims:
        alone(lambda m: nm.linalg.matrix_norm(m, **keywords), got, a)


@over_examples
def test_vector_norm(draw, place):
    """Along all axes, one, or several; of any order."""
    dtype = draw(floats(place))
    order = draw(
        st.sampled_from([None, 1, 2, 3, 0, np.inf, -np.inf, -1, -2, 0.5, 2.5]), label="ord"
    )
    least = 0 if order in (None, 1, 2) else 1
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=least, max_side=4))
    ndim = len(shape)
    several = hnp.valid_tuple_axes(ndim, min_size=1) if ndim else st.none()
    axis = draw(st.none() | several.filter(lambda a: a is not None), label="axis") if ndim else None
    if axis is not None and len(axis) == 1 and draw(st.booleans()):
        axis = axis[0]
    keepdims = draw(st.booleans(), label="keepdims")
    a = elements(draw, shape, dtype)
    keywords = {} if order is None else {"ord": order}
    got = nm.linalg.vector_norm(nm.asarray(a), axis=axis, keepdims=keepdims, **keywords)
    want = norm_of(a, axis, 2 if order is None else order, keepdims)
    agrees(got, want, real_name(dtype), place)


# -- products -------------------------------------------------------------------------------------


@over_examples
def test_matmul(draw, place):
    first, second, result = two_dtypes(draw, place, numbers)
    shapes = hnp.mutually_broadcastable_shapes(
        signature=np.matmul.signature, max_dims=2, min_side=0, max_side=4
    )
    left, right = draw(shapes, label="shapes").input_shapes
    a, b = elements(draw, left, first), elements(draw, right, second)
    got = nm.linalg.matmul(nm.asarray(a), nm.asarray(b))
    agrees(got, np.matmul(wide(a), wide(b)), result, place, size_of_sum(a, b))


@over_examples
def test_vecdot(draw, place):
    """The first vector is conjugated; the other axes are broadcast."""
    first, second, result = two_dtypes(draw, place, numbers)
    drawn = draw(broadcast_shapes())
    left, right = drawn.input_shapes
    axis = draw(st.integers(-min(len(left), len(right)) - 1, -1), label="axis")
    n = draw(st.integers(0, 5), label="n")
    a, b = (
        np.moveaxis(elements(draw, (*shape, n), name), -1, axis)
        for shape, name in ((left, first), (right, second))
    )
    got = nm.linalg.vecdot(nm.asarray(a), nm.asarray(b), axis=axis)
    products = np.conj(wide(np.moveaxis(a, axis, -1))) * wide(np.moveaxis(b, axis, -1))
    want = np.sum(products, axis=-1, dtype=products.dtype)
    agrees(got, want, result, place, size_of_sum(a, b))


@over_examples
def test_tensordot(draw, place):
    """Over a number of axes, and over pairs of them, which may be negative."""
    first, second, result = two_dtypes(draw, place, numbers)
    shared = draw(st.lists(st.integers(0, 3), max_size=2), label="shared")
    left, right = (draw(stacks(2), label="rest") for _ in range(2))
    a, b = elements(draw, (*left, *shared), first), elements(draw, (*shared, *right), second)
    want = np.tensordot(wide(a), wide(b), axes=len(shared)).astype(wide(np.ones(1, result)).dtype)
    size = size_of_sum(a, b) * 3
    if draw(st.booleans(), label="as a number"):
        keywords = {} if len(shared) == 2 else {"axes": len(shared)}
        got = nm.linalg.tensordot(nm.asarray(a), nm.asarray(b), **keywords)
        return agrees(got, want, result, place, size)
    of_a, of_b = (draw(st.permutations(range(x.ndim)), label="order") for x in (a, b))
    axes_a = [of_a.index(len(left) + i) for i in range(len(shared))]
    axes_b = [of_b.index(i) for i in range(len(shared))]
    if draw(st.booleans(), label="negative"):
        axes_a = [i - a.ndim for i in axes_a]
    rest_a = [i for i in of_a if i < len(left)]
    rest_b = [i - len(shared) for i in of_b if i >= len(shared)]
    want = want.transpose(*rest_a, *(len(left) + i for i in rest_b))
    given = nm.asarray(a.transpose(of_a)), nm.asarray(b.transpose(of_b))
    agrees(nm.linalg.tensordot(*given, axes=(axes_a, axes_b)), want, result, place, size)
    return None


@over_examples
def test_outer(draw, place):
    first, second, result = two_dtypes(draw, place, numbers)
    a, b = (elements(draw, draw(st.integers(0, 5)), name) for name in (first, second))
    got = nm.linalg.outer(nm.asarray(a), nm.asarray(b))
    agrees(got, wide(a)[:, None] * wide(b), result, place)


@over_examples
def test_cross(draw, place):
    """Along an axis from the end; the other axes are broadcast."""
    signed = lambda place: numbers(place).filter(lambda name: not name.startswith("u"))
    first = draw(signed(place), label="dtype")
    second = first if first.startswith("int") else draw(floats(place))
    drawn = draw(broadcast_shapes())
    left, right = drawn.input_shapes
    axis = draw(st.integers(-min(len(left), len(right)) - 1, -1), label="axis")
    a, b = elements(draw, (*left, 3), first), elements(draw, (*right, 3), second)
    moved = (nm.asarray(np.moveaxis(x, -1, axis)) for x in (a, b))
    got = nm.linalg.cross(*moved, **({} if axis == -1 else {"axis": axis}))
    u, v = np.moveaxis(wide(a), -1, 0), np.moveaxis(wide(b), -1, 0)
    want = [u[i - 2] * v[i - 1] - u[i - 1] * v[i - 2] for i in range(3)]
    want = np.moveaxis(np.stack(want, axis=-1), -1, axis)
    agrees(got, want, promoted(first, second), place, size_of_sum(a, b))


# -- parts of matrices ----------------------------------------------------------------------------


@over_examples
def test_matrix_transpose(draw, place):
    a = elements(draw, draw(matrices()), draw(numbers(place)))
    got = nm.linalg.matrix_transpose(nm.asarray(a))
    agrees(got, wide(np.swapaxes(a, -1, -2)), a.dtype.name, place)


@over_examples
def test_diagonal(draw, place):
    """Also of diagonals that are outside of the matrix."""
    a = elements(draw, draw(matrices()), draw(numbers(place)))
    offset = draw(st.integers(-5, 5), label="offset")
    got = nm.linalg.diagonal(nm.asarray(a), offset=offset)
    m, n = a.shape[-2:]
    indices = [(i, i + offset) for i in range(m) if 0 <= i + offset < n]
    rows, columns = np.array(indices, int).reshape(-1, 2).T
    agrees(got, wide(a[..., rows, columns]), a.dtype.name, place)


@over_examples
def test_trace(draw, place):
    """Sums of integers are in the default integer dtype, those of unsigned ones in uint64."""
    a = elements(draw, draw(matrices()), draw(numbers(place)))
    offset = draw(st.integers(-5, 5), label="offset")
    kind = a.dtype.kind
    result = {"i": "int64", "u": "uint64"}.get(kind, a.dtype.name)
    named = draw(st.none() | floats(place), label="dtype")
    if named is not None and (kind != "c" or named.startswith("complex")):
        result, keywords = named, {"dtype": getattr(nm, named)}
    else:
        keywords = {}
    if result not in dtypes_of(place, "numeric"):
        return
    got = nm.linalg.trace(nm.asarray(a), offset=offset, **keywords)
    want = np.trace(wide(a), offset=offset, axis1=-2, axis2=-1)
    agrees(got, want.astype(wide(np.ones(1, result)).dtype), result, place, 10)


# -- what is refused ------------------------------------------------------------------------------

REFUSED = {
    "cross of two elements": lambda x: nm.linalg.cross(x((4, 2)), x((4, 2))),
    "cross of one element": lambda x: nm.linalg.cross(x((4, 3)), x((4, 1))),
    "cross along another axis": lambda x: nm.linalg.cross(x((3, 4)), x((3, 4))),
    "matmul of numbers": lambda x: nm.linalg.matmul(x(()), x((2, 2))),
    "matmul by a number": lambda x: nm.linalg.matmul(x((2, 2)), x(())),
    "matmul of vectors": lambda x: nm.linalg.matmul(x((2,)), x((3,))),
    "matmul of one column": lambda x: nm.linalg.matmul(x((2, 1)), x((3, 2))),
    "matmul of stacks": lambda x: nm.linalg.matmul(x((2, 3, 3)), x((4, 3, 3))),
    "solve of other rows": lambda x: nm.linalg.solve(x((2, 2)), x((3, 1))),
    "solve of a row": lambda x: nm.linalg.solve(x((2, 3)), x((2,))),
    "vecdot of other lengths": lambda x: nm.linalg.vecdot(x((2, 3)), x((2, 4))),
    "vecdot of one element": lambda x: nm.linalg.vecdot(x((2, 3)), x((2, 1))),
    "tensordot of other lengths": lambda x: nm.linalg.tensordot(x((2, 3)), x((3, 2))),
    "tensordot of one element": lambda x: nm.linalg.tensordot(x((2, 1)), x((3, 2)), axes=1),
    "tensordot of too many axes": lambda x: nm.linalg.tensordot(x((2,)), x((2,)), axes=2),
    "outer of matrices": lambda x: nm.linalg.outer(x((2, 2)), x((2,))),
    "outer of numbers": lambda x: nm.linalg.outer(x((2,)), x(())),
    "power of a row": lambda x: nm.linalg.matrix_power(x((1, 2)), 2),
    "mode of qr": lambda x: nm.linalg.qr(x((2, 2)), mode="some"),
    "norm of another order": lambda x: nm.linalg.matrix_norm(x((2, 2)), ord="max"),
    "axis of vector_norm": lambda x: nm.linalg.vector_norm(x((2, 2)), axis=2),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("what", REFUSED)
def test_refused(what, device):
    with on(device), pytest.raises((ValueError, IndexError)):
        REFUSED[what](lambda shape: nm.ones(shape, dtype=nm.float32))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MATRICES_ONLY)
def test_refused_shapes(name, device):
    with on(device):
        shapes = [(), (3,), (2, 2, 3)] if name in SQUARE_ONLY else [(), (3,)]
        for shape in shapes:
            with pytest.raises(ValueError, match=r"shape|dimension|axes|matri"):
                getattr(nm.linalg, name)(nm.ones(shape, dtype=nm.float32))
