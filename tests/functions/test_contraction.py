"""Products of matrices and einsum, against NumPy."""

import functools

import derivatives
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import numus as nm
from numus import dtypes as dt
from numus.errors import DTypeError, ShapeError
from numus.functions._base import node_of

few = settings(max_examples=15, deadline=None)
DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES += ["bool", "float32", "float64", "complex64", "complex128"]


def T(array):
    return nm.Tensor(node_of(np.asarray(array), "test"))


def rng(seed=0):
    return np.random.default_rng(seed)


def some(shape, name="float64", seed=0):
    if name == "bool":
        return rng(seed).random(shape) < 0.3
    values = rng(seed).integers(-9, 9, shape)
    if name.startswith("complex"):
        values = values + 1j * rng(seed + 1).integers(-9, 9, shape)
    with np.errstate(all="ignore"):
        return values.astype(dt.as_dtype(name).np)


def same(ours, theirs):
    assert ours.shape == np.shape(theirs)
    assert ours.dtype is dt.as_dtype(np.asarray(theirs).dtype)
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6, atol=1e-6)


# -- matmul ---------------------------------------------------------------------------------------


@few
@given(
    hnp.mutually_broadcastable_shapes(
        signature=np.matmul.signature, max_dims=3, min_side=0, max_side=4
    )
)
def test_matmul_of_all_shapes(shapes):
    a, b = (some(s, seed=i) for i, s in enumerate(shapes.input_shapes))
    same(nm.matmul(T(a), T(b)), a @ b)
    same(T(a) @ T(b), a @ b)


@pytest.mark.parametrize("name", DTYPES)
def test_matmul_of_all_dtypes(name):
    a, b = some((2, 3, 4), name), some((4, 5), name, 1)
    same(nm.matmul(T(a), T(b)), a @ b)
    same(nm.matmul(T(a), T(some((2, 4, 1), name, 2))), a @ some((2, 4, 1), name, 2))
    same(nm.matmul(T(b[:, 0]), T(b)), b[:, 0] @ b)
    same(nm.matmul(T(b[:, 0]), T(b[:, 1])), b[:, 0] @ b[:, 1])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_matmul_of_narrow_floats(name):
    narrow = dt.as_dtype(name).np
    a, b = (rng(i).standard_normal(s).astype(narrow) for i, s in enumerate([(3, 50), (50, 4)]))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    y = nm.matmul(T(a), T(b))
    assert y.dtype is dt.as_dtype(name)
    rounding = 1.01 * 2.0 ** -(y.dtype.mantissa + 1)
    np.testing.assert_allclose(y.numpy().astype(float), exact, rounding, atol=0.01 * rounding)
    wide = nm.matmul(T(a), T(b), dtype=nm.float32)
    np.testing.assert_allclose(wide.numpy(), exact, rtol=1e-5)
    for ours in (nm.vecdot(T(a), T(b.T[:3])), nm.einsum("ij,ij->i", T(a), T(b.T[:3]))):
        expected = (a.astype(np.float64) * b.T[:3].astype(np.float64)).sum(1)
        got = ours.numpy().astype(float)
        np.testing.assert_allclose(got, expected, rounding, atol=0.01 * rounding)


def test_matmul_with_a_wider_result():
    a, b = some((3, 100), "int8"), some((100, 4), "int8", 1)
    whole = a.astype(int) @ b.astype(int)
    y = nm.matmul(T(a), T(b), dtype=nm.int32)
    assert y.dtype is nm.int32
    np.testing.assert_array_equal(y.numpy(), whole)
    same(nm.matmul(T(a), T(b), dtype=nm.float64), whole.astype(np.float64))
    same(nm.matmul(T(a > 0), T(b > 0), dtype=nm.int64), (a > 0).astype(int) @ (b > 0))
    f = rng().standard_normal((2, 300)).astype(np.float32)
    exact = f.astype(np.float64) @ f.T.astype(np.float64)
    np.testing.assert_allclose(nm.matmul(T(f), T(f.T), dtype="float64").numpy(), exact, rtol=1e-14)
    with pytest.raises(DTypeError, match="int32"):
        nm.matmul(T(f), T(f.T), dtype=nm.int32)


def test_mixed_dtypes_are_promoted():
    a, b = some((2, 3), "int8"), some((3, 2), "float32")
    assert nm.matmul(T(a), T(b)).dtype is dt.promote(dt.int8, dt.float32)
    same(
        nm.matmul(T(some((2, 3), "float32")), T(some((3, 2), "complex128"))),
        some((2, 3), "float32") @ some((3, 2), "complex128"),
    )


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3), (2, 3)), ((3,), (2,)), ((2, 2, 3), (3, 3, 1)), ((), (3,)), ((3,), ())]
)
def test_matmul_errors(a, b):
    with pytest.raises(ShapeError, match="matmul"):
        nm.matmul(T(np.ones(a)), T(np.ones(b)))


def test_operators_defer():
    class Other:
        def __rmatmul__(self, other):
            return "theirs"

    assert T(np.ones(2)) @ Other() == "theirs"
    same(T(np.ones((2, 2))).__rmatmul__(np.eye(2)), np.ones((2, 2)))


def test_one_matrix_against_a_stack_is_one_product():
    """No batch in the contraction when only the left side has one."""
    y = nm.matmul(T(np.ones((4, 5, 3))), T(np.ones((3, 2))))._node
    assert y.prim.name == "reshape"
    assert y.inputs[0].shape == (20, 2)
    y = nm.matmul(T(np.ones((7, 4, 5, 3))), T(np.ones((1, 4, 3, 2))))._node
    found = [y]
    while found[-1].prim.name != "contract":
        found.append(found[-1].inputs[0])
    assert found[-1].shape == (4, 35, 2)


def test_named_products():
    a, b, v = some((3, 4)), some((4, 5)), some((4,))
    same(nm.mm(T(a), T(b)), a @ b)
    same(nm.mv(T(a), T(v)), a @ v)
    s, t = some((2, 3, 4)), some((2, 4, 5))
    same(T(s).bmm(T(t)), s @ t)
    c = some((3, 5), seed=3)
    same(nm.addmm(T(c), T(a), T(b), beta=0.5, alpha=2), 0.5 * c + 2 * (a @ b))
    same(nm.addmm(T(np.full(5, np.nan)), T(a), T(b), beta=0), a @ b)
    same(nm.baddbmm(T(c), T(s), T(t), alpha=3), c + 3 * (s @ t))
    same(nm.addbmm(T(c), T(s), T(t)), c + (s @ t).sum(0))
    for op, given_ in (("mm", (a, v)), ("bmm", (s, t[:1])), ("mv", (a, b)), ("bmm", (a, b))):
        with pytest.raises(ShapeError, match=op):
            getattr(nm, op)(*(T(x) for x in given_))
    with pytest.raises(ShapeError, match="addmm"):
        nm.addmm(T(np.ones((2, 3, 5))), T(a), T(b))


# -- other products -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bool", "int16", "float64", "complex128"])
def test_dot_inner_outer_kron(name):
    shapes = [(), (3,), (2, 3), (4, 2, 3)]
    for i, left in enumerate(shapes):
        for right in shapes:
            a, b = some(left, name, i), some(right, name, 9)
            if len(right) < 2:
                same(nm.dot(T(a), T(b)), np.dot(a, b))
            else:
                turned = np.swapaxes(b, -1, -2)
                same(nm.dot(T(a), T(turned)), np.dot(a, turned))
            same(nm.inner(T(a), T(b)), np.inner(a, b))
            same(nm.outer(T(a), T(b)), np.outer(a, b))
            same(nm.kron(T(a), T(b)), np.kron(a, b))
    for op in ("dot", "inner"):
        with pytest.raises(ShapeError, match=op):
            getattr(nm, op)(T(np.ones((2, 3))), T(np.ones((2, 4))))


@pytest.mark.parametrize("name", ["bool", "uint8", "float64", "complex128"])
def test_vecdot(name):
    for left, right, axis in [((3,), (3,), -1), ((4, 3), (2, 1, 3), -1), ((3, 4), (3, 1), -2)]:
        a, b = some(left, name), some(right, name, 1)
        if name == "bool":
            moved = (np.moveaxis(x, axis, -1) for x in (a, b))
            expected = np.logical_and(*moved).any(-1)
        else:
            expected = np.vecdot(a, b, axis=axis)
        same(nm.vecdot(T(a), T(b), axis=axis), expected)
    with pytest.raises(ShapeError, match="vecdot"):
        nm.vecdot(T(np.ones(3)), T(np.ones(1)))
    with pytest.raises(ShapeError, match="vecdot"):
        nm.vecdot(T(np.ones(())), T(np.ones(1)))


@pytest.mark.parametrize("name", ["bool", "int32", "float64", "complex64"])
def test_tensordot(name):
    a, b = some((2, 3, 4), name), some((4, 3, 5), name, 1)
    cases = [1, 0, ((2,), (0,)), ((1, 2), (1, 0)), ((-1, 1), (0, -2)), ((), ())]
    for axes in cases:
        same(nm.tensordot(T(a), T(b), axes=axes), np.tensordot(a, b, axes=axes))
    square = some((3, 4, 3, 4), name)
    same(nm.tensordot(T(square), T(square)), np.tensordot(square, np.swapaxes(square, 0, 0)))
    for axes in (2, 4, -1, ((0,), (0, 1)), ((0,), (2,)), ((0, 0), (1, 1))):
        with pytest.raises(ShapeError, match="tensordot"):
            nm.tensordot(T(a), T(b), axes=axes)


@pytest.mark.parametrize("offset", [-5, -2, -1, 0, 1, 3, 9])
@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (4, 2), (0, 3)])
def test_trace(shape, offset):
    x = some(shape)
    same(nm.trace(T(x), offset), np.trace(x, offset))
    stack = some((2, *shape), "int8")
    theirs = np.trace(stack, offset, axis1=-1, axis2=1)
    same(nm.trace(T(stack), offset, -1, 1), theirs)


# -- einsum ---------------------------------------------------------------------------------------

SIZES = dict(zip("abcdefghij", (2, 3, 4, 5, 2, 3, 1, 2, 3, 2), strict=True))
SPECS = [
    *("a->a", "a->", "ab->ba", "ab->b", "ab->", "aa->a", "aa->", "aa", "aab->b", "aba->ba"),
    *("aaa->a", "abab->ab", "abba->", "ba", "cab", "a,a->a", "a,a->", "a,a", "a,b->ab", "a,b->ba"),
    *("ab,bc->ac", "ab,bc->ca", "ab,cb->ac", "ba,bc", "ab,b->a", "ab,b->", "ab,ab->", "ab,ba->"),
    *("ab,bc->abc", "abc,acd->abd", "abc,adc->abd", "abc,bcd->d", "abcd,bd->ca", "ab,cd->abcd"),
    *("ab,cd->", "abc,cd->abd", "bc,acd->abd", "ab,acb->ca", "abc,cab->", "aab,b->a", "ab,bb->ab"),
    *(
        "abc,dc->bda",
        "abcd,aecd->abe",
        "abcd,ebcd->ae",
        "ab,bc,cd->ad",
        "ab,bc,cd->",
        "ab,bc,cd,de",
    ),
    *("a,b,c->abc", "a,a,a->a", "ab,ab,ab->b", "abc,bd,ce->ade", "ab,cb,cd,ad->", "a,ab,b->"),
    *("ga,ab->gb", "gg,g->", "abcde,fghij->", "abc,dce,ef->abdf", "ab,ac,ad->abcd", "ea,eb->ab"),
]


def operands_for(spec, name="float64"):
    terms = spec.split("->")[0].split(",")
    return [some(tuple(SIZES[c] for c in t), name, i) for i, t in enumerate(terms)]


@pytest.mark.parametrize("spec", SPECS)
def test_einsum(spec):
    arrays = operands_for(spec)
    same(nm.einsum(spec, *map(T, arrays)), np.einsum(spec, *arrays))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("spec", ["aa->a", "ab,bc->ca", "ab,ab->a", "a,b->ab", "ab,bc,c->a"])
def test_einsum_of_all_dtypes(spec, name):
    arrays = operands_for(spec, name)
    if name == "bool":  # NumPy has no loop for some of these
        counts = np.einsum(spec, *(a.astype(int) for a in arrays))
        return same(nm.einsum(spec, *map(T, arrays)), counts > 0)
    return same(nm.einsum(spec, *map(T, arrays)), np.einsum(spec, *arrays))


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("...", [(2, 3)]),
        ("...a->a...", [(2, 3, 4)]),
        ("a...->...a", [(2, 3, 4)]),
        ("...ab->...ba", [(2, 3)]),
        ("...a,...a->...", [(2, 3), (4, 2, 3)]),
        ("...ab,...bc->...ac", [(2, 3, 4), (5, 1, 4, 2)]),
        ("...ab,bc", [(2, 3, 4), (4, 2)]),
        ("a...b,b->a...", [(2, 5, 6, 3), (3,)]),
        ("...,...", [(2, 3), (3,)]),
        ("...a,a...->...", [(3, 2), (2, 3)]),
        ("a...a->...", [(2, 3, 2)]),
        ("ab,bc->ac", [(2, 1), (3, 4)]),
        ("ab,ab->ab", [(1, 3), (2, 1)]),
        ("ab,b->a", [(2, 0), (0,)]),
        ("ab,bc->ac", [(0, 3), (3, 2)]),
        (" a b , b c -> a c ", [(2, 3), (3, 4)]),
        (",ab->ab", [(), (2, 3)]),
        (",->", [(), ()]),
    ],
)
def test_einsum_with_ellipsis_and_broadcasting(spec, shapes):
    arrays = [some(s, seed=i) for i, s in enumerate(shapes)]
    same(nm.einsum(spec, *map(T, arrays)), np.einsum(spec, *arrays))


@st.composite
def specs(draw):
    terms = draw(st.lists(st.text("abcde", max_size=4), min_size=1, max_size=4))
    letters = sorted(set("".join(terms)))
    if draw(st.booleans()):
        return ",".join(terms)
    out = draw(st.permutations(letters))[: draw(st.integers(0, len(letters)))]
    return ",".join(terms) + "->" + "".join(out)


@few
@given(specs())
def test_einsum_of_any_spec(spec):
    arrays = operands_for(spec)
    ours, theirs = nm.einsum(spec, *map(T, arrays)), np.einsum(spec, *arrays)
    assert ours.shape == np.shape(theirs)
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-10)


def test_einsum_with_integer_labels():
    a, b = some((2, 3)), some((3, 4))
    same(nm.einsum(T(a), [0, 1], T(b), [1, 2], [0, 2]), a @ b)
    same(nm.einsum(T(a), [5, 1], T(b), [1, 2]), np.einsum(a, [5, 1], b, [1, 2]))
    same(nm.einsum(T(a), [..., 0], T(b), [0, 7], [..., 7]), a @ b)


@pytest.mark.parametrize(
    ("spec", "shapes", "message"),
    [
        ("ab,bc->ac", [(2, 3)], "2 operands"),
        ("ab->a", [(2, 3, 4)], "3 axes"),
        ("ab,bc->ac", [(2, 3), (4, 5)], "extents 3 and 4"),
        ("ab->c", [(2, 3)], "no operand"),
        ("ab->aa", [(2, 3)], "twice"),
        ("aa->a", [(2, 3)], "extents"),
        ("...a->a", [(2, 3)], "needs"),
        ("a1->a", [(2, 3)], "letters"),
    ],
)
def test_einsum_errors(spec, shapes, message):
    with pytest.raises(ShapeError, match=message):
        nm.einsum(spec, *(T(np.ones(s)) for s in shapes))


def test_einsum_pairs_so_that_intermediates_stay_small():
    a, b, c = T(np.ones((1, 1000))), T(np.ones((1000, 1000))), T(np.ones((1000, 1)))
    node = nm.einsum("ab,bc,cd->ad", a, b, c)._node
    sizes, stack = [], [node]
    while stack:
        n = stack.pop()
        if n.prim.name == "contract":
            sizes.append(n.shape)
        stack.extend(n.inputs)
    assert sorted(sizes) in ([(1, 1000)], [(1, 1), (1, 1000)], [(1, 1), (1000, 1)])


def test_preferred_element_type():
    a = np.full((3, 50), 100, np.int8)
    b = np.full((50, 4), 99, np.int8)
    whole = a.astype(np.int32) @ b.astype(np.int32)
    for y in (
        nm.matmul(T(a), T(b), preferred_element_type=nm.int32),
        nm.einsum("ij,jk->ik", T(a), T(b), preferred_element_type=nm.int32),
        nm.tensordot(T(a), T(b), axes=1, preferred_element_type=nm.int32),
    ):
        assert y.dtype == nm.int32
        same(y, whole)
    half = np.full((2, 3000), 1 / 3, np.float16)
    y = nm.einsum("ij,kj->ik", T(half), T(half), preferred_element_type="float32")
    np.testing.assert_allclose(y.numpy(), half.astype("f") @ half.T.astype("f"), rtol=1e-4)
    with pytest.raises(DTypeError, match=r"einsum: .*int32 cannot hold .*float16"):
        nm.einsum("ij,kj->ik", T(half), T(half), preferred_element_type="int32")
    with pytest.raises(TypeError, match="one argument"):
        nm.matmul(T(a), T(b), dtype="int32", preferred_element_type="int32")


# -- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [s for s in SPECS if len(s) < 14])
def test_einsum_gradients(spec):
    derivatives.check(lambda *xs: nm.einsum(spec, *xs), *operands_for(spec), atol=1e-5)


def chained(n, extent=2):
    """einsum's arguments for the product of n matrices, and its value."""
    matrices = np.random.default_rng(3).normal(size=(n, extent, extent))
    named = [part for i, m in enumerate(matrices) for part in (nm.asarray(m), [i, i + 1])]
    return [*named, [0, n]], functools.reduce(np.matmul, matrices)


@pytest.mark.parametrize("n", [3, 12, 13, 30])
def test_einsum_of_many_operands(n):
    arguments, expected = chained(n)
    np.testing.assert_allclose(nm.einsum(*arguments).numpy(), expected, rtol=1e-9)
    vectors = np.random.default_rng(n).normal(size=(n, 3))
    named = [part for v in vectors for part in (nm.asarray(v), [0])]
    np.testing.assert_allclose(nm.einsum(*named, [0]).numpy(), vectors.prod(0), rtol=1e-9)
    apart = [part for i, v in enumerate(vectors) for part in (nm.asarray(v), [i])]
    np.testing.assert_allclose(nm.einsum(*apart, []).numpy(), vectors.sum(1).prod(), rtol=1e-9)


def test_ordering_many_operands_is_bounded():
    """160 operands took 36 s to order, as their number to the fourth power."""
    from numus.functions.linear import einsum as module

    counts = []
    for n in (40, 160):
        changes = 0
        change = module._Contraction.change

        def counted(self, i, j, change=change):
            nonlocal changes
            changes += 1
            return change(self, i, j)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module._Contraction, "change", counted)
            nm.einsum(*chained(n)[0])
            nm.einsum(*[part for _ in range(n) for part in (nm.ones(2), [0])], [0])
        counts.append(changes)
    assert counts[1] < 8 * counts[0]
