"""Functions composed of others, under NumPy's names, against NumPy itself."""

import os

import numpy as np
import pytest

import numus as nm
from numus.functions.reduction import correlation

DEVICES = os.environ.get("NUMUS_TEST_DEVICES", "cpu").split(",")
rng = np.random.default_rng(0)
LINE = rng.standard_normal(9)
OTHER = rng.standard_normal(9)
PLANE = rng.standard_normal((4, 5))
CUBE = rng.standard_normal((3, 4, 2))
COMPLEX = rng.standard_normal(4) + 1j * rng.standard_normal(4)
WHOLE = np.array([12, -18, 0, 7, 30])
BYTES = rng.integers(0, 256, (2, 3)).astype(np.uint8)
BITS = rng.integers(0, 2, (3, 11)).astype(np.uint8)
ZEROS = np.array([0, 0, 3, 0, 4, 0, 0])
nan, inf = np.nan, np.inf
HOLES = np.array([[1.0, nan, 3.0, -2.0], [nan, 5.0, 2.0, 2.0], [0.5, 1.0, nan, 4.0]])
SPECIAL = np.array([0.0, -0.0, 1.5, -2.75, 1e-310, -3e300, inf, -inf, nan])


def given(*args, **kwargs):
    return args, kwargs


CALLS = {
    "append": [given(LINE, OTHER), given(PLANE, PLANE[:1], axis=0), given(PLANE, [1.0])],
    "apply_along_axis": [
        given(np.sort, 1, PLANE),
        given(lambda v: v[:2], 1, CUBE),
        given(lambda v: v.sum(), 0, CUBE),
    ],
    "apply_over_axes": [given(np.sum, CUBE, [0, 2])],
    "around": [given(LINE, 2)],
    "array_equal": [given(LINE, LINE), given(LINE, PLANE), given(HOLES, HOLES, equal_nan=True)],
    "array_equiv": [given(np.ones((2, 3)), np.ones(3)), given(LINE, PLANE)],
    "ascontiguousarray": [given(PLANE.T), given(np.float64(3.0))],
    "asanyarray": [given([1, 2])],
    "asarray_chkfinite": [given(LINE)],
    "bartlett": [given(n) for n in (0, 1, 2, 7)],
    "blackman": [given(n) for n in (0, 1, 7, 8)],
    "hamming": [given(n) for n in (1, 7, 8)],
    "hanning": [given(n) for n in (1, 7, 8)],
    "kaiser": [given(7, 14.0), given(8, 0.0), given(1, 5.0)],
    "block": [given([[PLANE, PLANE], [PLANE, PLANE]]), given([LINE, 1.0]), given(LINE)],
    "broadcast_shapes": [given((3, 1), (1, 4), (4,))],
    "choose": [given(np.array([0, 2, 1]), [LINE[:3], OTHER[:3], LINE[3:6]])],
    "compress": [given([True, False, True], PLANE, axis=1), given(LINE > 0, LINE)],
    "convolve": [
        *(given(LINE, OTHER[:4], m) for m in ("full", "same", "valid")),
        *(given(LINE[:3], OTHER, m) for m in ("full", "same", "valid")),
        *(given(WHOLE, WHOLE[:2], m) for m in ("full", "same")),
    ],
    "correlate": [
        *(given(LINE, OTHER[:4], m) for m in ("full", "same", "valid")),
        *(given(LINE, OTHER[:3], m) for m in ("full", "same", "valid")),
        *(given(LINE[:3], OTHER, m) for m in ("full", "same", "valid")),
        *(given(LINE[:4], OTHER, m) for m in ("full", "same", "valid")),
        given(COMPLEX, COMPLEX[:3] * 1j, "full"),
    ],
    "corrcoef": [given(PLANE), given(LINE, OTHER), given(PLANE, rowvar=False), given(LINE)],
    "cov": [
        given(PLANE),
        given(LINE, OTHER),
        given(LINE),
        given(PLANE, rowvar=False, bias=True),
        given(PLANE, ddof=0),
        given(PLANE, fweights=np.array([1, 2, 1, 3, 1])),
        given(PLANE, aweights=np.array([0.5, 1, 2, 1, 1])),
        given(PLANE, fweights=np.array([1, 2, 1, 3, 1]), aweights=np.array([0.5, 1, 2, 1, 1])),
        given(np.outer(COMPLEX, COMPLEX)),
    ],
    "delete": [given(LINE, 2), given(PLANE, [0, -1], axis=1), given(PLANE, slice(0, 3, 2), axis=0)],
    "diag_indices": [given(3), given(2, 3)],
    "diag_indices_from": [given(np.ones((3, 3)))],
    "diagflat": [given(PLANE[:2, :2], 1)],
    "ediff1d": [given(PLANE), given(WHOLE, to_begin=[1, 2], to_end=9)],
    "extract": [given(PLANE > 0, PLANE)],
    "fabs": [given(LINE)],
    "fliplr": [given(CUBE)],
    "flipud": [given(CUBE)],
    "frexp": [given(SPECIAL), given(LINE.astype(np.float32))],
    "fromiter": [given([1, 2, 3], np.float64)],
    "fromstring": [given("1.5 2", np.float64, sep=" ")],
    "gcd": [given(WHOLE, 12), given(np.array([[4], [9]]), WHOLE), given(BYTES, BYTES[:1])],
    "lcm": [given(WHOLE, 12), given(BYTES.astype(np.int64), np.array([7, 9, 2]))],
    "geomspace": [given(1, 256, 9), given(-1, -100, 3), given(1, 1000, 3, endpoint=False)],
    "gradient": [
        given(LINE),
        given(LINE, 0.5, edge_order=2),
        given(LINE, np.cumsum(np.abs(OTHER)), edge_order=1),
        given(LINE, np.cumsum(np.abs(OTHER)), edge_order=2),
        given(PLANE),
        given(PLANE, 2.0, np.arange(5.0) ** 2, axis=(0, 1)),
        given(CUBE, axis=1),
    ],
    "histogram2d": [given(LINE, OTHER, 3), given(LINE, OTHER, [2, 4], density=True)],
    "histogram_bin_edges": [given(LINE, 4), given(LINE, "fd"), given(LINE, 3, (-1, 2))],
    "histogramdd": [given(CUBE.reshape(-1, 2), (3, 2)), given(PLANE, 2, weights=np.arange(4.0))],
    "hsplit": [given(PLANE[:, :4], 2), given(LINE, 3)],
    "vsplit": [given(PLANE, 2)],
    "dsplit": [given(CUBE, 2)],
    "indices": [given((2, 3)), given((2, 3), sparse=True)],
    "insert": [
        given(LINE, 2, 5.0),
        given(LINE, [1, 1, -1], [5.0, 6.0, 7.0]),
        given(PLANE, 1, OTHER[:4], axis=1),
        given(PLANE, [0, 2], OTHER[:5], axis=0),
        given(PLANE, 1, np.ones((2, 5)), axis=0),
    ],
    "interp": [
        given(PLANE, np.sort(LINE), OTHER),
        given(LINE, np.sort(OTHER), LINE, left=-9.0, right=9.0),
        given(LINE * 3, LINE, OTHER, period=1.5),
        given(SPECIAL, np.sort(LINE), OTHER),
        given(LINE, np.sort(OTHER)[:4], COMPLEX),
    ],
    "iscomplex": [given(COMPLEX), given(LINE)],
    "isreal": [given(COMPLEX), given(np.array([1 + 0j, 2j]))],
    "iscomplexobj": [given(COMPLEX), given(LINE)],
    "isrealobj": [given(COMPLEX), given(LINE)],
    "isscalar": [given(3.0), given(LINE)],
    "iterable": [given(LINE), given(3)],
    "ix_": [given([0, 2], [True, False, True])],
    "ldexp": [
        given(LINE, WHOLE[[0, 1, 2, 3, 4, 0, 1, 2, 3]]),
        given(SPECIAL[2:4], np.array([-1074, 1022])),
    ],
    "logaddexp2": [
        given(LINE, OTHER),
        given(np.array([inf, -inf, 3.0]), np.array([inf, -inf, -inf])),
    ],
    "mask_indices": [given(3, np.triu)],
    "matvec": [given(CUBE, np.ones((3, 2)))],
    "vecmat": [given(np.ones((3, 4)), CUBE), given(COMPLEX, np.eye(4) * 1j)],
    "median": [given(LINE), given(PLANE, axis=1), given(CUBE, (0, 2), keepdims=True), given(HOLES)],
    "modf": [given(SPECIAL), given(LINE)],
    "nanargmax": [given(HOLES, axis=1), given(HOLES)],
    "nanargmin": [given(HOLES, axis=0), given(HOLES)],
    "nancumprod": [given(HOLES, axis=1)],
    "nancumsum": [given(HOLES), given(HOLES, axis=0)],
    "nanmedian": [given(HOLES), given(HOLES, axis=0)],
    "nanpercentile": [given(HOLES, [10, 50], axis=1)],
    "nanprod": [given(HOLES, axis=1)],
    "nanquantile": [given(HOLES, 0.3, axis=0), given(HOLES, [0.0, 1.0], keepdims=True)],
    "nanstd": [given(HOLES, axis=1)],
    "nanvar": [given(HOLES), given(HOLES, axis=0)],
    "ndim": [given(CUBE)],
    "shape": [given(CUBE)],
    "size": [given(CUBE), given(CUBE, 1)],
    "packbits": [given(BITS), given(BITS, axis=1, bitorder="little"), given(BITS, axis=0)],
    "unpackbits": [given(BYTES), given(BYTES, axis=0, count=5), given(BYTES, axis=1, count=-3)],
    "percentile": [given(PLANE, [0, 25, 100], axis=0), given(LINE, 33, method="hazen")],
    "piecewise": [given(LINE, [LINE < 0, LINE > 1], [lambda v: -v, 2.0, lambda v: v * v])],
    "quantile": [given(PLANE, 0.3, axis=0)],
    "ravel_multi_index": [
        given((np.array([1, 5]), np.array([2, -1])), (2, 3), mode=("clip", "wrap")),
        given((np.array([1, 0]), np.array([2, 1])), (2, 3), order="F"),
    ],
    "unravel_index": [given(np.array([5, 2]), (2, 3)), given(np.array([5, 2]), (2, 3), order="F")],
    "real_if_close": [given(np.array([2 + 1e-15j])), given(COMPLEX)],
    "resize": [given(LINE, (2, 7)), given(LINE, (3,))],
    "rollaxis": [given(CUBE, 2), given(CUBE, 0, 3), given(CUBE, 1, -1)],
    "select": [given([LINE > 1, LINE < 0], [LINE, -LINE], 7.0)],
    "sort_complex": [given(LINE)],
    "spacing": [given(LINE)],
    "trapezoid": [given(LINE), given(PLANE, dx=0.5, axis=0), given(LINE, np.sort(OTHER))],
    "tril_indices": [given(3), given(3, 1, 4)],
    "triu_indices": [given(3, -1), given(2, 0, 4)],
    "tril_indices_from": [given(PLANE)],
    "triu_indices_from": [given(PLANE, 1)],
    "trim_zeros": [given(ZEROS), given(ZEROS, "f"), given(ZEROS, "b"), given(np.zeros(3))],
    "unwrap": [given(np.cumsum(PLANE * 4, 1)), given(np.array([0, 2, 7, 11]), period=6)],
    "vectorize": [],
    "partition": [],
    "argpartition": [],
}
if not hasattr(np, "vecmat"):
    del CALLS["vecmat"], CALLS["matvec"]


def parts(found):
    """The arrays and Python values of a result, in order."""
    if isinstance(found, (tuple, list)) and not isinstance(found, nm.Tensor):
        return [p for part in found for p in parts(part)]
    return [found.numpy() if isinstance(found, nm.Tensor) else found]


def converted(value):
    if isinstance(value, np.ndarray):
        return nm.asarray(value)
    if type(value) in (tuple, list) and any(isinstance(v, (np.ndarray, list)) for v in value):
        return type(value)(converted(v) for v in value)
    if getattr(np, getattr(value, "__name__", ""), None) is value and not isinstance(value, type):
        return getattr(nm, value.__name__)
    return value


@pytest.fixture(params=["reference", *(pytest.param(d, marks=pytest.mark.slow) for d in DEVICES)])
def device(request):
    """Compositions need no compiler to be right; `slow` runs them compiled."""
    before = nm.default_device()
    nm.set_default_device(request.param)
    yield
    nm.set_default_device(before)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", CALLS)
def test_values_are_those_of_numpy(name):
    for args, kwargs in CALLS[name]:
        with np.errstate(all="ignore"):
            wants = parts(getattr(np, name)(*args, **kwargs))
        kwargs = {k: converted(v) for k, v in kwargs.items()}
        founds = parts(getattr(nm, name)(*map(converted, args), **kwargs))
        assert len(founds) == len(wants)
        for found, want in zip(founds, wants, strict=True):
            if isinstance(want, (bool, int)):
                assert found == want
                continue
            assert found.shape == np.shape(want), (args, kwargs)
            wide = 1e-12 if found.dtype in (np.float64, np.complex128) else 2e-6
            np.testing.assert_allclose(found, want, rtol=wide, atol=1e-15, err_msg=str(kwargs))


def test_parts_of_numbers_are_exact():
    mantissa, exponent = nm.frexp(nm.asarray(SPECIAL))
    want, power = np.frexp(SPECIAL)
    np.testing.assert_array_equal(mantissa.numpy(), want)
    np.testing.assert_array_equal(exponent.numpy(), power)
    np.testing.assert_array_equal(nm.ldexp(mantissa, exponent).numpy(), SPECIAL)


def test_partitions_hold_the_kth_element_in_place():
    x = nm.asarray(LINE)
    assert nm.partition(x, 4)[4].item() == np.sort(LINE)[4]
    assert x[nm.argpartition(x, 4)[4]].item() == np.sort(LINE)[4]
    with pytest.raises(ValueError, match="out of range"):
        nm.partition(x, 9)


def test_writes_in_place_are_seen_through_views():
    for name, args in {
        "copyto": (PLANE.T[:1],),
        "fill_diagonal": (7.0,),
        "putmask": (PLANE.T > 0, np.array([1.0, 2.0, 3.0])),
        "place": (PLANE.T > 0, np.array([1.0, 2.0, 3.0])),
    }.items():
        base, want = nm.asarray(PLANE), PLANE.copy()
        getattr(nm, name)(base.T, *map(converted, args))
        getattr(np, name)(want.T, *args)
        np.testing.assert_array_equal(base.numpy(), want, err_msg=name)
    tall, want = nm.zeros((7, 3)), np.zeros((7, 3))
    nm.fill_diagonal(tall, nm.asarray([1.0, 2.0]), wrap=True)
    np.fill_diagonal(want, [1.0, 2.0], wrap=True)
    np.testing.assert_array_equal(tall.numpy(), want)
    x = nm.zeros(3)
    nm.copyto(x, 5, where=nm.asarray([True, False, True]))
    assert x.tolist() == [5, 0, 5]
    with pytest.raises(TypeError, match="astype"):
        nm.copyto(nm.zeros(3, dtype=nm.int32), nm.ones(3))


def test_meshes_and_index_expressions():
    np.testing.assert_allclose(nm.mgrid[0:2, 0:1:3j].numpy(), np.mgrid[0:2, 0:1:3j])
    for found, want in zip(nm.ogrid[0:2, 0:1:3j], np.ogrid[0:2, 0:1:3j], strict=True):
        np.testing.assert_allclose(found.numpy(), want)
    a = np.array([1, 2])
    x = nm.asarray(a)
    np.testing.assert_array_equal(nm.r_[x, 0, 3:6].numpy(), np.r_[a, 0, 3:6])
    np.testing.assert_array_equal(nm.c_[x, x].numpy(), np.c_[a, a])
    np.testing.assert_array_equal(nm.r_["0,2", x, x].numpy(), np.r_["0,2", a, a])
    np.testing.assert_array_equal(nm.r_["0,2,0", x, x].numpy(), np.r_["0,2,0", a, a])
    np.testing.assert_array_equal(nm.r_["1,2,0", x, x].numpy(), np.r_["1,2,0", a, a])
    assert nm.s_[1:3, ...] == np.s_[1:3, ...]
    assert nm.index_exp[2] == (2,)
    assert list(nm.ndindex((2, 2))) == list(np.ndindex((2, 2)))
    assert list(nm.ndenumerate(x)) == [((0,), 1), ((1,), 2)]


def test_vectorize_maps_functions_over_broadcast_arguments():
    def f(a, b):
        return nm.where(a > b, a - b, a + b)

    found = nm.vectorize(f)(nm.asarray(PLANE), nm.asarray(PLANE[:1]))
    np.testing.assert_allclose(
        found, np.where(PLANE[:1] < PLANE, PLANE - PLANE[:1], PLANE + PLANE[:1])
    )
    dot = nm.vectorize(lambda a, b: nm.sum(a * b), signature="(n),(n)->()")
    np.testing.assert_allclose(dot(nm.asarray(PLANE), nm.asarray(PLANE[0])), PLANE @ PLANE[0])
    power = nm.vectorize(lambda a, n: a**n, excluded={1})
    np.testing.assert_allclose(power(nm.asarray(LINE), 2), LINE**2)


@pytest.mark.on_cpu("the text of its tensors")
def test_print_options_hold_for_the_length_of_a_with():
    x = nm.asarray([3.14159, 1e-9])
    with nm.printoptions(precision=2, suppress=True):
        assert repr(x) == "tensor([3.14, 0.  ])"
        assert nm.get_printoptions()["precision"] == 2
    assert nm.array_repr(x) == repr(x)
    assert nm.array_str(x) == str(x)
    before = nm.get_printoptions()
    nm.set_printoptions(profile="short")
    assert nm.get_printoptions()["precision"] == 2
    np.set_printoptions(**{k: v for k, v in before.items() if k != "override_repr"})


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: nm.quantile(nm.ones(3), 1.5), "between 0 and 1"),
        (lambda: nm.quantile(nm.ones(3), 0.5, method="best"), "method must be one of"),
        (lambda: nm.quantile(nm.ones(3), 0.5, weights=nm.ones(3)), "inverted_cdf"),
        (lambda: nm.cov(nm.ones((2, 2, 2))), "vector or a matrix"),
        (lambda: nm.convolve(nm.ones(0), nm.ones(2)), "not empty"),
        (lambda: nm.gradient(nm.ones(1)), "at least"),
        (lambda: nm.interp(nm.ones(2), nm.ones(3), nm.ones(2)), "as many values as points"),
        (lambda: nm.delete(nm.ones(3), 5), "out of range"),
        (lambda: nm.block([[nm.ones(2)], nm.ones(2)]), "equally deep"),
        (lambda: nm.unravel_index(7, (2, 3)), "out of range"),
        (lambda: nm.gcd(nm.ones(2), 3), "takes bool, uint, int"),
        (lambda: nm.choose(nm.ones(2), [1]), "takes integers"),
        (lambda: nm.select([], []), "at least one"),
        (lambda: nm.asarray_chkfinite([np.inf]), "infinities or NaN"),
    ],
)
def test_errors_say_what_must_hold(call, error):
    with pytest.raises((ValueError, TypeError, IndexError), match=error):
        call()


WITHOUT_ARRAYS = ("array_equal", "array_equiv", "fromstring", "fromiter", "geomspace")


@pytest.mark.parametrize("name", [n for n in CALLS if n not in WITHOUT_ARRAYS])
def test_results_are_where_operands_are(name):
    """Also where that is not the default device: what a function makes by itself is there, too."""
    place = nm.device("reference")
    made = []

    def there(value):
        value = converted(value)
        if isinstance(value, nm.Tensor):
            value = value.to_device(place)
            made.append(value)
        elif type(value) in (tuple, list):
            return type(value)(there(v) for v in value)
        return value

    for args, kwargs in CALLS[name]:
        made.clear()
        args, kwargs = [there(a) for a in args], {k: there(v) for k, v in kwargs.items()}
        found = getattr(nm, name)(*args, **kwargs)
        for part in found if isinstance(found, (tuple, list)) else (found,):
            if made and isinstance(part, nm.Tensor):
                assert part._node.device is place


@pytest.mark.parametrize("n", [6, 7, 9])
def test_products_of_many_rows_are_mirrored(monkeypatch, n):
    monkeypatch.setattr(correlation, "_BLOCK", 2)
    draw = np.random.default_rng(0)
    for x in (draw.random((n, 5)), draw.random((n, 5)) + 1j * draw.random((n, 5))):
        np.testing.assert_allclose(nm.cov(nm.asarray(x)).numpy(), np.cov(x), rtol=1e-12)
        np.testing.assert_allclose(nm.corrcoef(nm.asarray(x)).numpy(), np.corrcoef(x), rtol=1e-12)
