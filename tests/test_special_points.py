"""First and second derivatives at special points: 0, ties, kinks and the ends of clamps.

The op table draws its arguments away from these. Values are analytic; at a kink the slope is the
one that PyTorch takes, and a second derivative that jumps has the value of that side.
"""

import math

import numpy as np
import pytest
from ops import elementwise, transcendental

import numus as nm
import numus.nn.functional as F
from numus.nn.functional import activations, classification, metric, regression

inf, nan = math.inf, math.nan
E, PI = math.e, math.pi
SELU = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717


def number(value):
    return nm.asarray(np.float64(value))


def numbers(*values):
    return nm.asarray(np.array(values, np.float64))


def logistic(x):
    return 1 / (1 + math.exp(-x))


def bell(x):
    """The slope of the logistic function."""
    return logistic(x) * logistic(-x)


# -- one argument: {point: (first, second)} -------------------------------------------------------

SMOOTH_AT_ZERO = {
    "negative": (-1, 0), "positive": (1, 0), "square": (0, 2), "exp": (1, 1),
    "exp2": (math.log(2), math.log(2) ** 2), "expm1": (1, 1), "log1p": (1, -1), "sin": (1, 0),
    "cos": (0, -1), "tan": (1, 0), "asin": (1, 0), "acos": (-1, 0), "atan": (1, 0),
    "sinh": (1, 0), "cosh": (0, 1), "tanh": (1, 0), "asinh": (1, 0), "atanh": (1, 0),
    "deg2rad": (PI / 180, 0), "rad2deg": (180 / PI, 0), "sinc": (0, -(PI**2) / 3),
    "erf": (2 / PI**0.5, 0), "erfc": (-2 / PI**0.5, 0), "erfinv": (PI**0.5 / 2, 0),
    "ndtr": ((2 * PI) ** -0.5, 0), "sigmoid": (0.25, 0), "silu": (0.5, 0.5),
    "gelu": (0.5, 2 * (2 * PI) ** -0.5), "softplus": (0.5, 0.25), "real": (1, 0), "conj": (1, 0),
}  # fmt: skip

ONE = {
    **{name: (getattr(nm, name), {0.0: d}) for name, d in SMOOTH_AT_ZERO.items()},
    "abs": (nm.abs, {0.0: (0, 0), 1.0: (1, 0), -1.0: (-1, 0)}),
    "sign": (nm.sign, {0.0: (0, 0), 2.0: (0, 0)}),
    "angle": (nm.angle, {1.0: (0, 0), -1.0: (0, 0)}),
    "imag": (lambda x: nm.imag(x) + x, {0.0: (1, 0)}),
    "nan_to_num": (nm.nan_to_num, {0.0: (1, 0), inf: (0, 0), -inf: (0, 0), nan: (0, 0)}),
    "reciprocal": (nm.reciprocal, {1.0: (-1, 2), -1.0: (-1, -2)}),
    "sqrt": (nm.sqrt, {0.0: (inf, -inf), 1.0: (0.5, -0.25)}),
    "rsqrt": (nm.rsqrt, {1.0: (-0.5, 0.75)}),
    "cbrt": (nm.cbrt, {1.0: (1 / 3, -2 / 9), -1.0: (1 / 3, 2 / 9)}),
    "log": (nm.log, {1.0: (1, -1)}),
    "log2": (nm.log2, {1.0: (1 / math.log(2), -1 / math.log(2))}),
    "log10": (nm.log10, {1.0: (1 / math.log(10), -1 / math.log(10))}),
    "acosh": (nm.acosh, {1.0: (inf, -inf)}),
    "lgamma": (nm.lgamma, {1.0: (-0.5772156649015329, PI**2 / 6)}),
    "digamma": (nm.digamma, {1.0: (PI**2 / 6, -2 * 1.2020569031595942)}),
    "clip": (lambda x: nm.clip(x, -1, 1), {-2.0: (0, 0), -1.0: (1, 0), 1.0: (1, 0), 2.0: (0, 0)}),
    "square of abs": (lambda x: nm.abs(x) ** 2, {1.0: (2, 2)}),
    "pow 2": (lambda x: x**2, {0.0: (0, 2)}),
    "pow 3": (lambda x: x**3, {0.0: (0, 0)}),
    "pow tensor 2": (lambda x: nm.pow(x, number(2)), {0.0: (0, 2), -1.0: (-2, 2)}),
    "pow tensor 1": (lambda x: nm.pow(x, number(1)), {0.0: (1, 0), -1.0: (1, 0)}),
    "pow tensor 0": (lambda x: nm.pow(x, number(0)), {0.0: (0, 0), -1.0: (0, 0)}),
    "float_power": (lambda x: nm.float_power(x, 2), {0.0: (0, 2), -1.0: (-2, 2)}),
    "0 to a power": (lambda x: nm.pow(number(0), x), {0.0: (0, 0), 2.0: (0, 0), -1.0: (-inf, inf)}),
    # -- activations
    "relu": (F.relu, {0.0: (0, 0), 1.0: (1, 0)}),
    "relu6": (F.relu6, {0.0: (0, 0), 6.0: (0, 0), 3.0: (1, 0)}),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), {0.0: (0.1, 0), 1.0: (1, 0)}),
    "elu": (lambda x: F.elu(x, 2.0), {0.0: (2, 2), 1.0: (1, 0)}),
    "selu": (F.selu, {0.0: (SELU[0] * SELU[1], SELU[0] * SELU[1]), 1.0: (SELU[0], 0)}),
    "celu": (lambda x: F.celu(x, 2.0), {0.0: (1, 0), -2.0: (1 / E, 0.5 / E)}),
    "threshold": (lambda x: F.threshold(x, 1.0, 5.0), {1.0: (0, 0), 2.0: (1, 0)}),
    "hardtanh": (F.hardtanh, {-1.0: (0, 0), 1.0: (0, 0), 0.0: (1, 0)}),
    "hardsigmoid": (F.hardsigmoid, {-3.0: (0, 0), 3.0: (0, 0), 0.0: (1 / 6, 0)}),
    "hardswish": (F.hardswish, {-3.0: (0, 0), 3.0: (1, 0), 0.0: (0.5, 1 / 3)}),
    "hardshrink": (F.hardshrink, {-0.5: (0, 0), 0.5: (0, 0), 1.0: (1, 0)}),
    "softshrink": (F.softshrink, {-0.5: (0, 0), 0.5: (0, 0), 1.0: (1, 0)}),
    "rrelu": (lambda x: F.rrelu(x, 0.1, 0.3), {0.0: (0.2, 0), 1.0: (1, 0)}),
    "softplus far out": (nm.softplus, {800.0: (1, 0), -800.0: (0, 0), 1.0: (logistic(1), bell(1))}),
    "softplus beta": (lambda x: nm.softplus(x, 2.0), {0.0: (0.5, 0.5)}),
    "F.softplus": (lambda x: F.softplus(x, 2.0, 1.0), {0.0: (0.5, 0.5), 1.0: (1, 0)}),
    "mish": (F.mish, {0.0: (0.6, 0.64)}),
    "logsigmoid": (F.logsigmoid, {0.0: (0.5, -0.25), -800.0: (1, 0)}),
    "softsign": (F.softsign, {0.0: (1, 0), 1.0: (0.25, -0.25)}),
    "tanhshrink": (F.tanhshrink, {0.0: (0, 0)}),
    "gelu tanh": (lambda x: F.gelu(x, "tanh"), {0.0: (0.5, 2 * (2 * PI) ** -0.5)}),
    # -- over a row
    "softmax": (lambda x: F.softmax(nm.stack([x, -x]), 0)[0], {0.0: (0.5, 0)}),
    "softmin": (lambda x: F.softmin(nm.stack([x, -x]), 0)[0], {0.0: (-0.5, 0)}),
    "log_softmax": (lambda x: F.log_softmax(nm.stack([x, -x]), 0)[0], {0.0: (1, -1)}),
    "logsumexp": (lambda x: nm.logsumexp(nm.stack([x, -x])), {0.0: (0, 1)}),
    "logcumsumexp": (lambda x: nm.logcumsumexp(nm.stack([x, -x]))[1], {0.0: (0, 1)}),
    "prod": (lambda x: nm.prod(nm.stack([x, x, x + 1])), {0.0: (0, 2)}),
    "cumprod": (lambda x: nm.cumprod(nm.stack([x, x + 1, x]))[2], {0.0: (0, 2)}),
    "vector_norm": (lambda x: nm.vector_norm(nm.stack([x, 2 * x])), {0.0: (0, 0)}),
    "vector_norm 1": (lambda x: nm.vector_norm(nm.stack([x, x]), ord=1), {0.0: (0, 0)}),
    "max of ties": (lambda x: nm.max(nm.stack([x, 3 * x])), {0.0: (2, 0)}),
    "min of ties": (lambda x: nm.min(nm.stack([x, 3 * x])), {0.0: (2, 0)}),
    "var of equals": (lambda x: nm.var(nm.stack([x, 3 * x])), {0.0: (0, 2)}),
    "glu": (lambda x: F.glu(nm.stack([x, x]))[0], {0.0: (0.5, 0.5)}),
    "swiglu": (lambda x: F.swiglu(nm.stack([x, x]))[0], {0.0: (0, 1)}),
    "geglu": (lambda x: F.geglu(nm.stack([x, x]))[0], {0.0: (0, 1)}),
    # -- losses of one score
    "hinge_embedding_loss": (
        lambda x: F.hinge_embedding_loss(x, number(-1)),
        {1.0: (-1, 0), 0.0: (-1, 0), 2.0: (0, 0)},
    ),
    "soft_margin_loss": (
        lambda x: F.soft_margin_loss(x, number(1)),
        {0.0: (-0.5, 0.25), 1.0: (-logistic(-1), bell(1)), -800.0: (-1, 0)},
    ),
    "multilabel_soft_margin_loss": (
        lambda x: F.multilabel_soft_margin_loss(nm.stack([x, 2 * x]), numbers(1, 0)),
        {0.0: (0.25, 0.625)},
    ),
    "multilabel_margin_loss": (
        lambda x: F.multilabel_margin_loss(nm.stack([x, 2 * x]), nm.asarray([0, -1])),
        {-1.0: (0, 0), 0.0: (0.5, 0)},
    ),
    "multi_margin_loss": (
        lambda x: F.multi_margin_loss(nm.stack([x, 2 * x]), nm.asarray(0), p=2),
        {-1.0: (0, 0), 0.0: (1, 1)},
    ),
    "cross_entropy": (
        lambda x: F.cross_entropy(nm.stack([x, -x]), nm.asarray(0)),
        {0.0: (-1, 1), 800.0: (0, 0)},
    ),
    "nll_loss": (lambda x: F.nll_loss(nm.stack([x, -x]), nm.asarray(0)), {0.0: (-1, 0)}),
    "focal_loss": (  # (1 - p)^2 softplus(-2x), with p = logistic(2x)
        lambda x: F.focal_loss(nm.stack([x, -x]), nm.asarray(0)),
        {0.0: (-0.25 - 0.5 * math.log(2), 0.25 + 1 + 0.5 * math.log(2)), 800.0: (0, 0)},
    ),
    "focal_loss 1.5": (
        lambda x: F.focal_loss(nm.stack([x, -x]), nm.asarray(0), gamma=1.5),
        {800.0: (0, 0)},
    ),
    "focal_loss 0.5": (
        lambda x: F.focal_loss(nm.stack([x, -x]), nm.asarray(0), gamma=0.5),
        {800.0: (0, 0)},
    ),
    "sigmoid_focal_loss": (  # logistic(-x)^2 softplus(-x)
        lambda x: F.sigmoid_focal_loss(x, number(1), alpha=-1),
        {0.0: (-0.125 - 0.25 * math.log(2), 0.3125 + 0.125 * math.log(2)), 800.0: (0, 0)},
    ),
    "sigmoid_focal_loss 0.5": (
        lambda x: F.sigmoid_focal_loss(x, number(1), gamma=0.5),
        {800.0: (0, 0)},
    ),
    "kl_div": (lambda x: F.kl_div(x, number(0)), {0.0: (0, 0)}),
}  # fmt: skip


# -- two arguments: {point: (gradient, Hessian)} --------------------------------------------------

FLAT = ((0, 0), (0, 0))
QUARTER = ((0.25, -0.25), (-0.25, 0.25))


def squared(scale):
    return ((scale, -scale), (-scale, scale))


TWO = {
    "add": (nm.add, {(0, 0): ((1, 1), FLAT)}),
    "subtract": (nm.subtract, {(0, 0): ((1, -1), FLAT)}),
    "multiply": (nm.multiply, {(0, 0): ((0, 0), ((0, 1), (1, 0)))}),
    "divide": (nm.divide, {(0, 1): ((1, 0), ((0, -1), (-1, 0)))}),
    "remainder": (nm.remainder, {(0, 2): ((1, 0), FLAT), (4, 2): ((1, -2), FLAT)}),
    "fmod": (
        nm.fmod,
        {(0, 2): ((1, 0), FLAT), (-4, 2): ((1, 2), FLAT)},
    ),
    "divmod": (lambda x, y: sum(nm.divmod(x, y)), {(0, 2): ((1, 0), FLAT)}),
    "lerp": (lambda x, y: nm.lerp(x, y, 0.5), {(0, 0): ((0.5, 0.5), FLAT)}),
    "pow": (
        nm.pow,
        {
            (0, 0): ((0, 0), FLAT),
            (0, 2): ((0, 0), ((2, 0), (0, 0))),
            (1, 1): ((1, 0), ((0, 1), (1, 0))),
        },
    ),
    "hypot": (
        nm.hypot,
        {(0, 0): ((0, 0), FLAT), (0, 2): ((0, 1), ((0.5, 0), (0, 0)))},
    ),
    "atan2": (
        nm.atan2,
        {
            (0, 0): ((0, 0), FLAT),
            (0, 1): ((1, 0), ((0, -1), (-1, 0))),
            (1, 0): ((0, -1), ((0, 1), (1, 0))),
        },
    ),
    "copysign": (nm.copysign, {(0, 1): ((0, 0), FLAT), (2, -1): ((-1, 0), FLAT)}),
    "heaviside": (nm.heaviside, {(0, 3): ((0, 1), FLAT), (1, 3): ((0, 0), FLAT)}),
    "maximum": (nm.maximum, {(1, 1): ((0.5, 0.5), FLAT), (2, 1): ((1, 0), FLAT)}),
    "minimum": (nm.minimum, {(1, 1): ((0.5, 0.5), FLAT), (2, 1): ((0, 1), FLAT)}),
    "fmax": (nm.fmax, {(1, 1): ((1, 0), FLAT), (nan, 1): ((0, 1), FLAT), (1, 2): ((0, 1), FLAT)}),
    "fmin": (nm.fmin, {(1, 1): ((1, 0), FLAT), (1, nan): ((1, 0), FLAT), (2, 1): ((0, 1), FLAT)}),
    "where": (lambda x, y: nm.where(x > y, x, y), {(1, 1): ((0, 1), FLAT)}),
    "clip to a tensor": (nm.clip, {(1, 1): ((1, 0), FLAT), (0, 1): ((0, 1), FLAT)}),
    "logaddexp": (
        nm.logaddexp,
        {
            (0, 0): ((0.5, 0.5), QUARTER),
            (3, 3): ((0.5, 0.5), QUARTER),
            (1000, 0): ((1, 0), FLAT),
            (0, 1000): ((0, 1), FLAT),
            (-inf, 0): ((0, 1), FLAT),
            (inf, 0): ((1, 0), FLAT),
        },
    ),
    "prelu": (F.prelu, {(0, 0.25): ((0.25, 0), ((0, 1), (1, 0))), (1, 0.25): ((1, 0), FLAT)}),
    # -- losses
    "mse_loss": (F.mse_loss, {(1, 1): ((0, 0), squared(2))}),
    "l1_loss": (F.l1_loss, {(1, 1): ((0, 0), FLAT)}),
    "huber_loss": (
        lambda x, y: F.huber_loss(x, y, delta=2.0),
        {
            (1, 1): ((0, 0), squared(1)),
            (0, 0): ((0, 0), squared(1)),
            (3, 1): ((2, -2), FLAT),
            (1, 3): ((-2, 2), FLAT),
        },
    ),
    "smooth_l1_loss": (
        lambda x, y: F.smooth_l1_loss(x, y, beta=2.0),
        {
            (1, 1): ((0, 0), squared(0.5)),
            (0, 0): ((0, 0), squared(0.5)),
            (3, 1): ((1, -1), FLAT),
        },
    ),
    "smooth_l1_loss 0": (lambda x, y: F.smooth_l1_loss(x, y, beta=0.0), {(1, 1): ((0, 0), FLAT)}),
    "poisson_nll_loss": (F.poisson_nll_loss, {(0, 1): ((0, 0), ((1, -1), (-1, 0)))}),
    "gaussian_nll_loss": (
        lambda x, y: F.gaussian_nll_loss(x[None], y[None], numbers(1)),
        {(1, 1): ((0, 0), squared(1))},
    ),
    "binary_cross_entropy": (
        F.binary_cross_entropy,
        {
            (0.5, 0.5): ((0, 0), ((4, -4), (-4, 0))),
            (0, 0): ((0, 100), None),  # clamped: no finite curvature there
            (1, 1): ((0, -100), None),
        },
    ),
    "binary_cross_entropy_with_logits": (
        F.binary_cross_entropy_with_logits,
        {
            (0, 0): ((0.5, 0), ((0.25, -1), (-1, 0))),
            (0, 1): ((-0.5, 0), ((0.25, -1), (-1, 0))),
            (800, 1): ((0, -800), ((0, -1), (-1, 0))),
        },
    ),
    "margin_ranking_loss": (
        lambda x, y: F.margin_ranking_loss(x, y, number(1), 1.0),
        {(1, 0): ((-1, 1), FLAT), (2, 0): ((0, 0), FLAT)},
    ),
    "cosine_embedding_loss": (
        lambda x, y: F.cosine_embedding_loss(
            nm.stack([x, x * 0]), nm.stack([y, y + 1]), number(-1)
        ),
        {(1, 0): ((0, 1), None)},
    ),
    "triplet_margin_loss": (
        lambda x, y: F.triplet_margin_loss(x[None], y[None], x[None] + 1, eps=0.0),
        {(0, 0): ((0, 0), FLAT), (1, 0): ((1, -1), FLAT)},
    ),
    "triplet_margin_with_distance_loss": (
        lambda x, y: F.triplet_margin_with_distance_loss(
            x, y, x + 1, distance_function=lambda a, b: nm.square(a - b)
        ),
        {(0, 0): ((0, 0), squared(2))},
    ),
    "contrastive_loss": (
        lambda x, y: F.contrastive_loss(x[None], y[None], numbers(0), margin=1.0 + 1e-6),
        {(2, 0): ((0, 0), FLAT)},
    ),
    "normalize": (
        lambda x, y: F.normalize(nm.stack([x, y]), dim=0)[0],
        {(1, 0): ((0, 0), ((0, 0), (0, -1))), (0, 1): ((1, 0), ((0, -1), (-1, 0)))},
    ),
    "cosine_similarity": (
        lambda x, y: F.cosine_similarity(nm.stack([x, y]), numbers(1, 0), dim=0),
        {(1, 0): ((0, 0), ((0, 0), (0, -1))), (0, 1): ((1, 0), ((0, -1), (-1, 0)))},
    ),
}  # fmt: skip

# -- checks ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def reference_device():
    before = nm.default_device()
    nm.set_default_device(nm.device("reference"))
    yield
    nm.set_default_device(before)


def derivatives_at(f, point):
    """The gradient, and the Hessian in reverse over reverse and in forward over reverse mode."""
    at = tuple(map(number, point))
    every = tuple(range(len(at)))
    gradient = nm.grad(lambda *xs: nm.sum(f(*xs)), every)
    first = [g.item() for g in gradient(*at)]
    rows = [nm.grad(lambda *xs, i=i: gradient(*xs)[i], every)(*at) for i in every]
    units = [tuple(number(i == j) for j in every) for i in every]
    columns = [nm.jvp(gradient, at, unit)[1] for unit in units]
    return (
        first,
        [[h.item() for h in row] for row in rows],
        [[columns[j][i].item() for j in every] for i in every],
    )


def check(f, point, first, second):
    got, reverse, forward = derivatives_at(f, point)
    close = {"rtol": 1e-9, "atol": 1e-12}
    np.testing.assert_allclose(got, first, **close, err_msg=f"gradient at {point}")
    if second is not None:
        np.testing.assert_allclose(reverse, second, **close, err_msg=f"Hessian at {point}")
        np.testing.assert_allclose(forward, second, **close, err_msg=f"jvp of grad at {point}")


@pytest.mark.parametrize("name", ONE)
def test_one_argument(name):
    f, points = ONE[name]
    for x, (first, second) in points.items():
        for at in (0.0, -0.0) if x == 0 and math.isfinite(first) else (x,):
            check(f, (at,), [first], [[second]])


@pytest.mark.parametrize("name", TWO)
def test_two_arguments(name):
    f, points = TWO[name]
    for point, (first, second) in points.items():
        check(f, point, first, second)


# -- complex functions on their axes --------------------------------------------------------------

HOLOMORPHIC = {  # first and second derivative
    "log": (nm.log, lambda z: (1 / z, -1 / z**2)),
    "log2": (nm.log2, lambda z: (1 / z / math.log(2), -1 / z**2 / math.log(2))),
    "log10": (nm.log10, lambda z: (1 / z / math.log(10), -1 / z**2 / math.log(10))),
    "log1p": (lambda z: nm.log1p(z - 1), lambda z: (1 / z, -1 / z**2)),
    "sqrt": (nm.sqrt, lambda z: (0.5 / np.sqrt(z), -0.25 / np.sqrt(z) / z)),
    "pow": (lambda z: nm.pow(z, nm.asarray(3 + 0j)), lambda z: (3 * z**2, 6 * z)),
    "square": (nm.square, lambda z: (2 * z, 2 + 0j)),
    "exp": (nm.exp, lambda z: (np.exp(z), np.exp(z))),
    "expm1": (nm.expm1, lambda z: (np.exp(z), np.exp(z))),
    "sinh": (nm.sinh, lambda z: (np.cosh(z), np.sinh(z))),
    "cosh": (nm.cosh, lambda z: (np.sinh(z), np.cosh(z))),
    "tanh": (nm.tanh, lambda z: (1 / np.cosh(z) ** 2, -2 * np.tanh(z) / np.cosh(z) ** 2)),
}


@pytest.mark.parametrize("name", HOLOMORPHIC)
def test_complex_functions_on_axes(name):
    """By real and imaginary part: f_xx = f'', f_xy = i f'', f_yy = -f''."""
    f, exact = HOLOMORPHIC[name]
    for z in (1 + 0j, 1j, complex(-0.0, -1), 0.6 + 0.8j):
        first, second = exact(np.complex128(z))

        def mixed(x, y):  # both parts, with weights
            w = f(x.astype(nm.complex128) + y.astype(nm.complex128) * 1j)
            return nm.real(w) + 2 * nm.imag(w)

        def part(d):
            return d.real + 2 * d.imag

        hessian = [[part(second), part(1j * second)], [part(1j * second), part(-second)]]
        check(mixed, (z.real, z.imag), (part(first), part(1j * first)), hessian)


# -- rows of zeros and of ties --------------------------------------------------------------------

ROW_POINTS = ((0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, -1), (1, 1, -1, -1))
SMOOTH_ROWS = {
    "layer_norm": lambda x: nm.layer_norm(x, eps=0.1),
    "rms_norm": lambda x: nm.rms_norm(x, eps=0.1),
    "batch_norm": lambda x: nm.batch_norm(x.reshape((2, 2)), training=True, eps=0.1),
    "softmax": nm.softmax,
    "log_softmax": nm.log_softmax,
    "logsumexp": nm.logsumexp,
    "logcumsumexp": nm.logcumsumexp,
    "var": nm.var,
    "prod": nm.prod,
    "cumprod": nm.cumprod,
    "segment_prod": lambda x: nm.segment_prod(x, nm.asarray([0, 0, 1, 1])),
    "vector_norm": lambda x: nm.vector_norm(nm.concat([x, numbers(1)])),
    "vector_norm 4": lambda x: nm.vector_norm(nm.concat([x, numbers(1)]), ord=4),
    "normalize": lambda x: F.normalize(nm.concat([x, numbers(1)]), dim=0),
    "lp_pool1d": lambda x: F.lp_pool1d(nm.concat([x, numbers(1, 1)])[None, None], 2.0, 6),
    "attention": lambda x: nm.scaled_dot_product_attention(*[x.reshape((1, 2, 2))] * 3),
    "local_response_norm": lambda x: F.local_response_norm(x.reshape((1, 4, 1)), 3),
    "focal_loss": lambda x: F.focal_loss(x.reshape((2, 2)), nm.asarray([0, 1])),
    "cross_entropy": lambda x: F.cross_entropy(x.reshape((2, 2)), nm.asarray([0, 1])),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(
        nm.sigmoid(x), numbers(0, 1, 0.5, 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH_ROWS)
def test_rows_of_zeros_and_ties(name):
    """Smooth there: the Hessian is what differences of the gradient say."""
    f = SMOOTH_ROWS[name]

    def weighted(x):
        y = f(x).reshape((-1,))
        return nm.sum(y * nm.cos(nm.arange(y.size, dtype=nm.float64)))

    gradient = nm.grad(weighted)
    for point in ROW_POINTS:
        at, step = np.array(point, np.float64), 1e-5
        moved = [nm.asarray(at + sign * step * unit) for unit in np.eye(4) for sign in (1, -1)]
        ends = np.stack([gradient(x).numpy() for x in moved])
        expected = (ends[::2] - ends[1::2]) / (2 * step)
        found = nm.hessian(weighted)(nm.asarray(at)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6, err_msg=str(point))


# -- completeness ---------------------------------------------------------------------------------

NO_SPECIAL_POINTS = {
    "astype", "Tensor.half", "Tensor.bfloat16", "Tensor.float", "Tensor.double", "Tensor.to",
    "Tensor.to_dtype", "Tensor.real", "Tensor.imag", "Tensor.broadcast_add",
    "Tensor.broadcast_sub", "Tensor.broadcast_mul", "gumbel_softmax", "cross_entropy_loss",
}  # fmt: skip


def test_every_composite_is_here():
    rows = {r.name for table in (elementwise, transcendental) for r in table.ROWS if r.orders}
    layers = (activations, classification, metric, regression)
    public = rows.union(*(module.__all__ for module in layers))
    assert public - {*ONE, *TWO, *NO_SPECIAL_POINTS} == set()
