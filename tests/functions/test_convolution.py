"""Convolutions large enough for direct schedules, with gradients, against the reference device."""

from dataclasses import replace

import numpy as np
import pytest

import numus as nm
from numus.compiler import plan as plans
from numus.compiler.lower.conv import cpu_channels, cpu_depthwise, cpu_spatial
from numus.errors import DTypeError, ShapeError

# (shape of the data, of the weights, options)
CONVOLUTIONS = {
    "plain": (nm.conv2d, (3, 16, 19, 21), (33, 16, 3, 3), {"padding": 1}),
    "small images": (nm.conv2d, (5, 16, 7, 7), (24, 16, 3, 3), {"padding": 1}),
    "strided": (nm.conv2d, (3, 8, 16, 17), (24, 8, 3, 3), {"padding": 1, "stride": 2}),
    "groups": (nm.conv2d, (2, 8, 20, 17), (24, 4, 3, 5), {"padding": (1, 2), "groups": 2}),
    "stride of 3": (nm.conv2d, (2, 9, 20, 20), (12, 9, 2, 2), {"stride": 3}),
    "dilated": (nm.conv2d, (2, 9, 15, 30), (20, 9, 3, 3), {"padding": 2, "dilation": 2}),
    "stride over dilation": (
        *(nm.conv2d, (2, 8, 25, 25), (16, 8, 3, 3)),
        {"padding": 3, "dilation": 3, "stride": 2},
    ),
    "depthwise": (nm.conv2d, (2, 24, 18, 18), (24, 1, 3, 3), {"padding": 1, "groups": 24}),
    "depthwise, two outputs each": (
        *(nm.conv2d, (3, 5, 14, 37), (10, 1, 7, 5)),
        {"padding": (3, 1), "groups": 5},
    ),
    "depthwise, strided": (
        *(nm.conv2d, (2, 6, 29, 31), (6, 1, 5, 5)),
        {"padding": 2, "stride": 2, "groups": 6},
    ),
    "depthwise, dilated": (
        *(nm.conv2d, (2, 6, 30, 33), (6, 1, 3, 3)),
        {"padding": 1, "dilation": (3, 2), "stride": (2, 1), "groups": 6},
    ),
    "depthwise, large image": (
        *(nm.conv2d, (1, 2, 300, 301), (2, 1, 7, 7)),
        {"padding": 3, "groups": 2},
    ),
    "wide windows": (nm.conv2d, (2, 3, 40, 40), (16, 3, 7, 7), {"padding": 3, "stride": 2}),
    "points": (nm.conv2d, (4, 40, 13, 13), (30, 40, 1, 1), {}),
    "points, strided": (nm.conv2d, (4, 40, 13, 13), (30, 40, 1, 1), {"stride": 2}),
    "uneven margins": (nm.conv2d, (2, 8, 12, 14), (16, 8, 4, 4), {"padding": "same"}),
    "one place": (nm.conv2d, (2, 32, 6, 6), (32, 32, 6, 6), {}),
    "a long line": (nm.conv1d, (1, 3, 9_000), (4, 3, 9), {"padding": 4}),
    "lines, strided": (nm.conv1d, (2, 6, 301), (5, 6, 7), {"stride": 3}),
    "volumes": (
        *(nm.conv3d, (2, 6, 7, 8, 9), (10, 6, 3, 3, 3)),
        {"padding": 1, "stride": (1, 2, 1)},
    ),
    "transposed": (
        *(nm.conv_transpose2d, (2, 12, 9, 10), (12, 20, 3, 3)),
        {"stride": 2, "padding": 1, "output_padding": 1},
    ),
    "transposed, dilated": (
        *(nm.conv_transpose2d, (2, 12, 9, 10), (12, 20, 2, 3)),
        {"stride": 3, "dilation": 2},
    ),
    "transposed groups": (
        *(nm.conv_transpose1d, (2, 30, 40), (30, 9, 5)),
        {"stride": 2, "padding": 2, "groups": 3},
    ),
    "transposed volumes": (
        *(nm.conv_transpose3d, (1, 9, 4, 5, 6), (9, 11, 3, 3, 3)),
        {"stride": (1, 2, 2), "padding": 1},
    ),
    "everything": (
        *(nm.conv_general, (2, 9, 60), (12, 9, 5)),
        {
            "window_strides": (3,),
            "padding": [(4, 2)],
            "lhs_dilation": (2,),
            "rhs_dilation": (3,),
        },
    ),
    "dilations that share factors": (
        *(nm.conv_general, (2, 9, 60), (12, 9, 4)),
        {
            "window_strides": (4,),
            "padding": [(3, 2)],
            "lhs_dilation": (6,),
            "rhs_dilation": (4,),
        },
    ),
}


@pytest.fixture(params=["cost model", "NCHWc"])
def schedule(request, monkeypatch):
    """Every convolution of a test by the schedule of least cost, then by the NCHWc one."""
    plans.clear_plans()
    if request.param == "NCHWc":
        monkeypatch.setattr(cpu_channels, "CPU", replace(cpu_channels.CPU, min_packed_macs=0))
        monkeypatch.setattr(cpu_spatial, "spatial_cost", lambda *_: float("inf"))
        never = lambda *_: False
        monkeypatch.setattr(cpu_depthwise.DepthwiseConv, "supports", never)
    yield
    plans.clear_plans()


def results(function, arrays, options, device):
    """The value and the gradients of both operands."""
    tensors = [nm.asarray(a, device=device) for a in arrays]
    for t in tensors[:2]:
        t.requires_grad = True
    y = function(*tensors[:2], **options)
    y.backward(nm.ones_like(y) * tensors[2][: y.size].reshape(y.shape))
    return [r.numpy() for r in (y, tensors[0].grad, tensors[1].grad)]


def drawn(rng, dtype, *shapes):
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_values_and_gradients(name, schedule):
    function, x, w, options = CONVOLUTIONS[name]
    arrays = drawn(np.random.default_rng(1), "float32", x, w, (300_000,))
    got = results(function, arrays, options, "cpu")
    want = results(function, [a.astype("float64") for a in arrays], options, "reference")
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * np.abs(b).max())


@pytest.mark.on_cpu("kernels of its convolutions")
def test_small_images_use_the_nchwc_schedule():
    """It packs weights in a separate kernel; small convolutions do not."""
    x, w = nm.ones((8, 64, 8, 8)), nm.ones((64, 64, 3, 3))
    for count, expected in ((8, ["pack", "convolution"]), (1, ["convolution"])):
        report = nm.explain(nm.conv2d, x[:count], w[: 8 * count])
        assert [kernel.name for kernel in report.kernels] == expected


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32", "uint8", "int64"])
def test_other_dtypes(dtype, schedule):
    rng = np.random.default_rng(2)
    kind = nm.asarray(np.zeros(1), dtype=dtype).dtype
    x, w = (np.rint(4 * a) for a in drawn(rng, "float64", (2, 8, 14, 15), (12, 8, 3, 3)))
    x, w = np.abs(x), np.abs(w)
    got, want = (
        nm.conv2d(
            nm.asarray(x, device=d).astype(kind), nm.asarray(w, device=d).astype(kind), padding=1
        )
        for d in ("cpu", "reference")
    )
    assert got.dtype is kind
    assert np.array_equal(got.numpy(), want.numpy())  # small whole numbers: nothing is rounded


def test_infinities_do_not_spread(schedule):
    """No padding or dilation multiplies an infinity by a zero."""
    x = np.ones((2, 8, 12, 13), "float32")
    x[0, 3, 0, 0] = np.inf
    w = np.ones((16, 8, 3, 3), "float32")
    arrays = [x, w, np.ones(10_000, "float32")]
    for options in ({"padding": 1}, {"padding": 1, "stride": 2}):
        got, want = (results(nm.conv2d, arrays, options, d) for d in ("cpu", "reference"))
        for a, b in zip(got, want, strict=True):
            assert np.array_equal(np.isfinite(a), np.isfinite(b))


def test_operands_that_are_views_or_expressions(schedule):
    rng = np.random.default_rng(3)
    x, w, b, r = drawn(rng, "float32", (2, 15, 9, 12), (3, 3, 12, 16), (16,), (2, 16, 15, 9))

    def f(x, w, b, r):
        x, w = x.transpose(0, 3, 1, 2), w.transpose(3, 2, 1, 0)
        y = nm.conv2d(nm.relu(x), w * 0.5, b, padding=1)
        return nm.relu(y + r)

    got, want = (f(*(nm.asarray(a, device=d) for a in (x, w, b, r))) for d in ("cpu", "reference"))
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-5)


ERRORS = [
    (lambda x, w: nm.conv2d(x[0, 0], w), "with or without the batch"),
    (lambda x, w: nm.conv2d(x, w[0]), "weights are"),
    (lambda x, w: nm.conv2d(x[:, :2], w), "channels"),
    (lambda x, w: nm.conv2d(x, w, groups=0), "groups"),
    (lambda x, w: nm.conv2d(x, w[:, :1], groups=3), "output channels must be divisible"),
    (lambda x, w: nm.conv2d(x, w, nm.ones((3,))), "bias"),
    (lambda x, w: nm.conv2d(x, w, stride=0), "stride"),
    (lambda x, w: nm.conv2d(x, w, stride=(1, 2, 3)), "3 numbers for 2 axes"),
    (lambda x, w: nm.conv2d(x, w, padding="same", stride=2), "same"),
    (lambda x, w: nm.conv2d(x, nm.ones((4, 3, 9, 1))), "larger than"),
    (lambda x, w: nm.conv_transpose2d(x, w, output_padding=1), "weights|channels"),
    (
        lambda x, w: nm.conv_general(x, w, (1, 1), "VALID", dimension_numbers=("NCH", "OIH", "N")),
        "dimension_numbers",
    ),
]


@pytest.mark.parametrize("index", range(len(ERRORS)))
def test_errors(index):
    call, words = ERRORS[index]
    with pytest.raises(ShapeError, match=words):
        call(nm.ones((2, 3, 6, 6)), nm.ones((4, 3, 3, 3)))


def test_booleans_and_unknown_names_are_refused():
    x, w = nm.ones((1, 1, 4)), nm.ones((1, 1, 2))
    with pytest.raises(DTypeError, match="conv1d"):
        nm.conv1d(x > 0, w > 0)
    with pytest.raises(ValueError, match="padding"):
        nm.conv1d(x, w, padding="full")


def test_the_gradient_of_a_pooling_stays_inside_where_nothing_is_larger_than_minus_infinity():
    x = nm.full((1, 1, 5, 4), -np.inf)
    pool = lambda x: nm.max_pool2d(x, (2, 3), 1, 1, (2, 1), return_indices=True)
    best, places = pool(x)
    found = nm.grad(lambda x: pool(x)[0].sum())(x)
    wanted = np.bincount(places.numpy().ravel(), minlength=20)
    np.testing.assert_array_equal(found.numpy().ravel(), wanted)
    assert wanted.sum() == best.size
