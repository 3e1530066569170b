"""Arithmetic, comparisons, logic, bits, choosing."""

import math

import numpy as np

import numus as nm
from ops.row import (
    ALL,
    ANY,
    BOOL,
    COMPLEX,
    COMPLEX_FRACTIONS,
    DTYPE,
    FLOATS,
    FRACTIONS,
    INTEGERS,
    NUMBERS,
    REALS,
    always,
    case,
    exactly,
    fraction,
    op,
    real,
    same,
    size,
    whole,
    x,
)

inf, nan = math.inf, math.nan
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, -3.0, inf, -inf, nan)
_GRID = np.meshgrid(SPECIAL, SPECIAL)
PAIRS = case(*(exactly(*g.ravel().tolist()) for g in _GRID))
_UNEQUAL = [(a, b) for a in SPECIAL for b in SPECIAL if not a == b == 0]
# of zeros with different signs, either is the larger
UNEQUAL_PAIRS = case(*(exactly(*side) for side in zip(*_UNEQUAL, strict=True)))
NARROWED = ("float32", "int8", "bool")  # no float64: its differences are lost on the way
ENDS = tuple(v for v in SPECIAL if v == v)


def one(name, reference, low=-4.0, high=4.0, **options):
    """A function of one argument, with special values as well."""
    options = {"values": [case(exactly(*SPECIAL))], **options}
    shapes = ((3, 5), (), (2, 0))
    cases = [case(x(*shape, low=low, high=high)) for shape in shapes]
    return op(name, reference, *cases, **options)


def two(name, reference, low=-2.0, high=2.0, low2=None, high2=None, **options):
    """A function of two arguments that broadcast."""
    options = {"values": [PAIRS], **options}
    second = {"low": low if low2 is None else low2, "high": high if high2 is None else high2}
    shapes = [((3, 1, 5), (4, 5)), ((), (3,)), ((2, 0), (1,))]
    cases = [case(x(*a, low=low, high=high), x(*b, **second)) for a, b in shapes]
    cases += [case(x(3, low=low, high=high), 2)]
    return op(name, reference, *cases, **options)


def bits(name, reference, dtypes=INTEGERS, high=100, **options):
    return two(name, reference, -100, 100, 0, high, dtypes=dtypes, values=[], orders=0, **options)


def floor_divide(a, b):
    """The standard asks for the floor of the quotient at infinities, where NumPy has NaN."""
    quotient = np.floor_divide(a, b)
    if quotient.dtype.kind != "f":
        return quotient
    return np.where(np.isinf(a) | np.isinf(b), np.floor(a / b), quotient)


def half_even(a, decimals=0):
    return np.round(a, decimals)


def lerp(a, b, w):
    return a + w * (b - a)


ROWS = [
    # -- sums and products
    two("add", np.add, dtypes=ALL, signs=True),
    two("subtract", np.subtract, dtypes=[d for d in ALL if d != "bool"], signs=True),
    two("multiply", np.multiply, dtypes=ALL, signs=True),
    two(
        *("divide", np.divide, 0.4, 3),
        dtypes=COMPLEX_FRACTIONS,
        out=fraction,
        signs=True,
        aliases=["true_divide"],
    ),
    two("floor_divide", floor_divide, 0.4, 9, -3, -0.3, dtypes=(*REALS, *INTEGERS), orders=0),
    two(
        "remainder",
        np.remainder,
        0.4,
        9,
        dtypes=(*REALS, "bool"),
        out=whole,
        signs=True,
        aliases=["mod"],
    ),
    two("fmod", np.fmod, -9, -0.4, 0.4, 3, dtypes=REALS),
    two("divmod", np.divmod, 0.4, 9, dtypes=REALS, out=(same, same), orders=1, values=[]),
    one("negative", np.negative, dtypes=NUMBERS, signs=True, aliases=["Tensor.__neg__"]),
    one("positive", np.positive, dtypes=NUMBERS, signs=True, aliases=["Tensor.__pos__"]),
    one("reciprocal", lambda a: 1 / a, 0.3, 3, dtypes=COMPLEX_FRACTIONS, out=fraction),
    op(
        "lerp",
        lerp,
        case(x(3, 1), x(4), x(4, low=0.1, high=0.9)),
        case(x(), x(2), 0.25),
        case(x(2, 0), x(1), x(1)),
        values=[case(exactly(1.0, 2.0), exactly(3.0, 3e4), exactly(0.0, 1.0))],
        relative=False,
    ),
    # -- powers and roots
    one("square", np.square, dtypes=NUMBERS),
    one("sqrt", np.sqrt, 0.3, 3, dtypes=COMPLEX_FRACTIONS, out=fraction, signs=True),
    one("rsqrt", lambda a: 1 / np.sqrt(a), 0.3, 3, dtypes=COMPLEX_FRACTIONS, out=fraction),
    one("cbrt", np.cbrt, 0.3, 3, dtypes=FRACTIONS, out=fraction, signs=True),
    two(
        *("pow", np.power, 0.3, 3, 0, 4),
        dtypes=(*NUMBERS, "bool"),
        out=whole,
        ulps=8,
        signs=True,
        aliases=["power"],
    ),
    two(
        *("float_power", np.float_power, 0.3, 3, 0, 4),
        dtypes=("float64", "float32", "int32", "complex64"),
        out=lambda d: nm.complex128 if d.is_complex else nm.float64,
        ulps=8,
        orders=1,
    ),
    two("hypot", np.hypot, dtypes=FRACTIONS, out=fraction, signs=True),
    # -- signs and sizes
    one("abs", np.abs, dtypes=ANY, out=size, aliases=["absolute", "Tensor.__abs__"], signs=True),
    one("sign", np.sign, dtypes=NUMBERS, signs=True),
    one("signbit", np.signbit, dtypes=REALS, out=BOOL, orders=0),
    two("copysign", np.copysign, dtypes=FRACTIONS, out=fraction, signs=True),
    two("nextafter", np.nextafter, dtypes=FLOATS, widen=False, orders=0),
    two("heaviside", np.heaviside, dtypes=FRACTIONS, out=fraction),
    # -- extremes
    two("maximum", np.maximum, dtypes=(*REALS, "bool"), values=[UNEQUAL_PAIRS], signs=True),
    two("minimum", np.minimum, dtypes=(*REALS, "bool"), values=[UNEQUAL_PAIRS], signs=True),
    two("fmax", np.fmax, dtypes=REALS, values=[UNEQUAL_PAIRS], signs=True),
    two("fmin", np.fmin, dtypes=REALS, values=[UNEQUAL_PAIRS], signs=True),
    op(
        "clip",
        np.clip,
        case(x(3, 5, low=-1, high=5), 1, 3),
        case(x(3, 1), x(4, low=-1.4, high=-0.6), None),
        case(x(), min=None, max=0.5),
        case(x(2, 0), 0, 1),
        values=[
            case(exactly(*SPECIAL), -1, 2),
            case(exactly(*SPECIAL), nan, 1),
            case(exactly(*ENDS), exactly(*reversed(ENDS)), inf),
        ],
        dtypes=REALS,
        aliases=["clamp"],
    ),
    # -- rounding
    one("floor", np.floor, dtypes=REALS, orders=0, signs=True, aliases=["Tensor.__floor__"]),
    one("ceil", np.ceil, dtypes=REALS, orders=0, signs=True, aliases=["Tensor.__ceil__"]),
    one("trunc", np.trunc, dtypes=REALS, orders=0, signs=True, aliases=["Tensor.__trunc__"]),
    one("rint", np.rint, dtypes=FLOATS, orders=0, signs=True),
    op(
        "round",
        half_even,
        case(x(3, 5, low=-30, high=30)),
        case(x(), 1),
        case(x(7, low=-300, high=300), decimals=-1),
        case(x(2, 0)),
        values=[case(exactly(*SPECIAL)), case(exactly(15, 25, 24, 151, 115), -1)],
        dtypes=NUMBERS,
        orders=0,
    ),
    # -- comparisons
    two("equal", np.equal, dtypes=ALL, out=BOOL, orders=0),
    two("not_equal", np.not_equal, dtypes=ALL, out=BOOL, orders=0),
    two("less", np.less, dtypes=(*REALS, "bool"), out=BOOL, orders=0),
    two("less_equal", np.less_equal, dtypes=(*REALS, "bool"), out=BOOL, orders=0),
    two("greater", np.greater, dtypes=(*REALS, "bool"), out=BOOL, orders=0),
    two("greater_equal", np.greater_equal, dtypes=(*REALS, "bool"), out=BOOL, orders=0),
    op(
        "isclose",
        np.isclose,
        case(x(3, 1), x(4)),
        case(x(5), x(5), rtol=0.1, atol=1.0),
        values=[PAIRS, case(*PAIRS.args, equal_nan=True)],
        dtypes=NUMBERS,
        out=BOOL,
        orders=0,
    ),
    op(
        "allclose",
        np.allclose,
        case(x(3, 1), x(4)),
        case(x(5, low=1, high=1.1), 1.0, rtol=0.5),
        case(x(0), x(0)),
        values=[case(exactly(1.0, inf, nan), exactly(1.0, inf, nan), equal_nan=True)],
        dtypes=NUMBERS,
        out=BOOL,
        orders=0,
    ),
    # -- what kind of number
    one("isfinite", np.isfinite, dtypes=ANY, out=BOOL, orders=0),
    one("isnan", np.isnan, dtypes=ANY, out=BOOL, orders=0),
    one("isinf", np.isinf, dtypes=ANY, out=BOOL, orders=0),
    one("isposinf", np.isposinf, dtypes=REALS, out=BOOL, orders=0),
    one("isneginf", np.isneginf, dtypes=REALS, out=BOOL, orders=0),
    op(
        "nan_to_num",
        np.nan_to_num,
        case(x(3, 5)),
        case(x()),
        values=[case(exactly(*SPECIAL)), case(exactly(*SPECIAL), nan=3.0, posinf=5, neginf=-7)],
        dtypes=("float32", "float64", "float16", "int32", *COMPLEX),
        widen=False,
    ),
    # -- logic and bits
    two("logical_and", np.logical_and, dtypes=ANY, out=BOOL, orders=0),
    two("logical_or", np.logical_or, dtypes=ANY, out=BOOL, orders=0),
    two("logical_xor", np.logical_xor, dtypes=ANY, out=BOOL, orders=0),
    one("logical_not", np.logical_not, dtypes=ANY, out=BOOL, orders=0),
    bits("bitwise_and", np.bitwise_and, (*INTEGERS, "bool")),
    bits("bitwise_or", np.bitwise_or, (*INTEGERS, "bool")),
    bits("bitwise_xor", np.bitwise_xor, (*INTEGERS, "bool")),
    bits("bitwise_left_shift", np.left_shift, high=9, aliases=["left_shift"]),
    bits("bitwise_right_shift", np.right_shift, high=9, aliases=["right_shift"]),
    one(
        *("bitwise_invert", np.invert, -100, 100),
        dtypes=(*INTEGERS, "bool"),
        values=[],
        orders=0,
        aliases=["bitwise_not", "invert", "Tensor.__invert__"],
    ),
    one(
        *("bitwise_count", np.bitwise_count, -100, 100),
        dtypes=INTEGERS,
        values=[],
        out=always(nm.uint8),
        orders=0,
    ),
    # -- choosing
    op(
        "where",
        np.where,
        case(np.array([[True], [False], [True]]), x(3, 4), x(4)),
        case(np.array(True), x(), 2),
        case(np.zeros((2, 0), bool), x(), x(1)),
        values=[case(np.arange(13) % 2 == 0, exactly(*SPECIAL), nan)],
        dtypes=ALL,
    ),
    # -- parts of complex numbers
    one("real", np.real, dtypes=ANY, out=size, signs=True),
    one("imag", np.imag, dtypes=ANY, out=size),
    one("conj", np.conj, dtypes=NUMBERS, aliases=["conjugate"]),
    one("angle", np.angle, 0.3, 2, dtypes=(*FLOATS, *COMPLEX), out=real, values=[]),
    op("angle", np.angle, case(x(5), deg=True), dtypes=("complex64",), out=real),
    one("Tensor.real", np.real, dtypes=("complex64",), out=size),
    one("Tensor.imag", np.imag, dtypes=("complex64", "float32"), out=size),
    # -- dtypes
    op(
        "astype",
        lambda a, dtype: a.astype(dtype),
        case(x(3, 5), DTYPE),
        case(x(2, 0), DTYPE),
        dtypes=ALL,
    ),
    op("Tensor.half", lambda a: a, case(x(3, 5)), dtypes=NARROWED, out=always(nm.float16)),
    op("Tensor.bfloat16", lambda a: a, case(x(3)), dtypes=NARROWED, out=always(nm.bfloat16)),
    op("Tensor.float", lambda a: a, case(x(3)), dtypes=NARROWED, out=always(nm.float32)),
    op("Tensor.double", lambda a: a, case(x(3)), dtypes=REALS, out=always(nm.float64), ulps=0),
    op(
        *("Tensor.int", np.trunc, case(x(3, low=-90, high=90))),
        dtypes=REALS,
        out=always(nm.int32),
        orders=0,
    ),
    op(
        *("Tensor.long", np.trunc, case(x(3, low=-90, high=90))),
        dtypes=REALS,
        out=always(nm.int64),
        orders=0,
    ),
    op("Tensor.bool", lambda a: a != 0, case(x(9)), dtypes=ANY, out=BOOL, orders=0),
    op("Tensor.to", lambda a, d: a, case(x(3), nm.float64), dtypes=REALS, out=always(nm.float64)),
    op("Tensor.to_dtype", lambda a, d: a, case(x(3), nm.float64), out=always(nm.float64)),
    # -- their long names
    op("Tensor.broadcast_add", np.add, case(x(3, 1), x(4)), dtypes=NUMBERS),
    op("Tensor.broadcast_sub", np.subtract, case(x(3, 1), x(4)), dtypes=NUMBERS),
    op("Tensor.broadcast_mul", np.multiply, case(x(3, 1), x(4)), dtypes=NUMBERS),
]
