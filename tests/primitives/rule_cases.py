"""Sample inputs for every primitive: odd shapes, broadcasting, zero sizes, complex where taken."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.primitives import contract, custom, reduce, scan, sort, structure, views
from numus.primitives import elementwise as ew
from numus.primitives.attention import fused as at
from numus.primitives.broadcast import broadcast, reduce_sum, sliding_windows
from numus.primitives.convolve import Window, convolve
from numus.primitives.indexing import gather, nonzero, scatter
from numus.primitives.random.bits import normal_pair, threefry
from numus.primitives.source import constant, iota

_rng = np.random.default_rng(7)


@dataclass
class Case:
    """`build` applies the primitive to nodes of the arrays."""

    prim: str
    build: Any
    arrays: tuple
    label: str
    flat: bool = False  # its derivative is zero almost everywhere
    orders: int = 2  # how many times it can be differentiated

    @property
    def id(self):
        return f"{self.prim}-{self.label}"


CASES: list[Case] = []


def case(prim, build, *arrays, label="", **options):
    arrays = tuple(np.asarray(a) for a in arrays)
    label = "-".join(filter(None, [label, *("x".join(map(str, a.shape)) or "0d" for a in arrays)]))
    if any(np.iscomplexobj(a) for a in arrays):
        label += "-complex"
    CASES.append(Case(prim, build, arrays, label, **options))


def real(*shape, low=-2.0, high=2.0):
    """Distinct values, none near an end or a multiple of 1/4 (where kinks lie)."""
    size = int(np.prod(shape))
    steps = (np.arange(size) + 0.5) / max(size, 1)
    values = low + (high - low) * (0.03 + 0.94 * steps)
    values = np.where(np.abs(values * 4 - np.rint(values * 4)) < 0.1, values + 0.04, values)
    return _rng.permutation(values).reshape(shape)


def cplx(*shape, low=-2.0, high=2.0):
    return real(*shape, low=low, high=high) + 1j * real(*shape, low=low, high=high)


def ints(*shape, low=0, high=10):
    return _rng.integers(low, high, shape)


def bools(*shape):
    return _rng.integers(0, 2, shape).astype(bool)


# -- elementwise ----------------------------------------------------------------------------------

_UNARY = {
    "neg": (-2, 2, True),
    "sqrt": (0.3, 3, True),
    "rsqrt": (0.3, 3, True),
    "cbrt": (0.3, 3, False),
    "exp": (-2, 2, True),
    "exp2": (-2, 2, False),
    "expm1": (-2, 2, True),
    "log": (0.3, 3, True),
    "log2": (0.3, 3, True),
    "log10": (0.3, 3, True),
    "log1p": (-0.6, 3, True),
    "sin": (-3, 3, True),
    "cos": (-3, 3, True),
    "tan": (-1.2, 1.2, True),
    "asin": (-0.8, 0.8, True),
    "acos": (-0.8, 0.8, True),
    "atan": (-3, 3, True),
    "sinh": (-2, 2, True),
    "cosh": (-2, 2, True),
    "tanh": (-2, 2, True),
    "asinh": (-2, 2, True),
    "acosh": (1.3, 3, True),
    "atanh": (-0.8, 0.8, True),
    "erf": (-2, 2, False),
    "erfc": (-2, 2, False),
    "erfinv": (-0.8, 0.8, False),
    "ndtr": (-2, 2, False),
    "lgamma": (0.3, 4, False),
    "digamma": (0.3, 4, False),
    "trigamma": (0.3, 4, False),
    "sigmoid": (-3, 3, False),
    "abs": (-2, 2, True),
}
_NAMES = {"abs": "abs_"}

for _name, (_low, _high, _complex) in _UNARY.items():
    _f = getattr(ew, _NAMES.get(_name, _name))
    for _shape in ((), (3, 5), (2, 0)):
        case(_name, _f, real(*_shape, low=_low, high=_high))
    if _complex:
        case(_name, _f, cplx(7, low=max(_low, -0.9), high=_high))

case("cbrt", ew.cbrt, real(4, low=-3, high=-0.3), label="negative")
case("lgamma", ew.lgamma, real(4, low=-0.9, high=-0.2), label="negative")
case("digamma", ew.digamma, real(4, low=-0.9, high=-0.2), label="negative")
case("trigamma", ew.trigamma, real(4, low=-0.9, high=-0.2), label="negative")

for _name in ("sign", "floor", "ceil", "trunc", "rint"):
    case(_name, getattr(ew, _name), real(3, 5), flat=True)
    case(_name, getattr(ew, _name), real(2, 0), flat=True)
case("invert", ew.invert, ints(4), flat=True)
case("popcount", ew.popcount, ints(4), flat=True)

_BINARY = {
    "add": (-2, 2, True),
    "sub": (-2, 2, True),
    "mul": (-2, 2, True),
    "div": (0.4, 2, True),
    "pow": (0.4, 2, True),
    "atan2": (-2, 2, False),
    "hypot": (-2, 2, False),
    "maximum": (-2, 2, False),
    "minimum": (-2, 2, False),
    "mod": (0.4, 3, False),
    "copysign": (-2, 2, False),
}
_NAMES |= {"pow": "pow_", "and": "and_", "or": "or_"}
_SHAPES = [
    ((), ()),
    ((3, 5), (3, 5)),
    ((3, 1), (5,)),
    ((4,), ()),
    ((1, 3), (2, 1, 1)),
    ((2, 0), (1,)),
    ((1,), (0,)),
]
for _name, (_low, _high, _complex) in _BINARY.items():
    _f = getattr(ew, _NAMES.get(_name, _name))
    for _a, _b in _SHAPES:
        case(_name, _f, real(*_a, low=_low, high=_high), real(*_b, low=_low, high=_high) + 0.013)
    if _complex:
        case(_name, _f, cplx(3, 1, low=_low), cplx(2, low=_low))
for _power in (2.0, 3.0, -1.0, 0.0, 1.0):
    case(
        "pow",
        lambda x, p=_power: ew.pow_(x, constant(p, x.dtype)),
        real(4, low=-2, high=-0.3),
        label=f"negative-to-{_power}",
    )
case("sign", ew.sign, cplx(5))
case("div", ew.div, real(4), real(4, low=-2, high=-0.4), label="negative")

for _name in ("floor_divide", "nextafter"):
    case(_name, getattr(ew, _name), real(3, 5), real(5, low=0.4), flat=True)
for _name in ("lt", "le", "eq", "ne"):
    case(_name, getattr(ew, _name), real(3, 5), real(5), flat=True)
for _name in ("and", "or", "xor", "shift_left", "shift_right"):
    _f = getattr(ew, _NAMES.get(_name, _name))
    case(_name, _f, ints(3, 4), ints(4, high=5), flat=True)
    case(_name, _f, ints(3, 1), ints(2, 1, 1, high=5), flat=True)

for _c, _a, _b in (((3,), (3,), (3,)), ((3, 1), (5,), ()), ((), (2, 1), (3,)), ((2, 0), (), (1,))):
    case("where", ew.where, bools(*_c), real(*_a), real(*_b))
case("where", ew.where, bools(3, 1), cplx(4), cplx(3, 4))

case("cast", lambda x: ew.cast(ew.cast(x, dt.float32), dt.float64), real(4), label="f32", orders=0)
case("cast", lambda x: ew.cast(x, dt.complex128), real(4, 1))
case("cast", lambda x: ew.cast(x, dt.float64), cplx(4, 1))
case("cast", lambda x: ew.cast(x, dt.int64), real(4, 1), label="int", flat=True)
case("bitcast", lambda x: ew.bitcast(x, dt.int64), real(4), flat=True)
for _shape in ((), (3, 2), (0,)):
    case("real", ew.real, cplx(*_shape))
    case("imag", ew.imag, cplx(*_shape))
    case("conj", ew.conj, cplx(*_shape))
    case("stop_gradient", ew.stop_gradient, real(*_shape), flat=True)
case("complex", ew.complex_, real(3, 1), real(2))
case("complex", ew.complex_, real(), real(4))
case("complex", ew.complex_, real(2, 0), real(1))
_words = [ints(4, high=2**32).astype(np.uint32) for _ in range(4)]
case("normal", lambda a, b: normal_pair(a, b)[0], *_words[:2], flat=True)
case("threefry", lambda *ks: threefry(*ks)[0], *_words, flat=True)
case("threefry", lambda *ks: threefry(*ks)[1], *_words[:3], _words[3][:1], flat=True)

# -- views ----------------------------------------------------------------------------------------

for _make in (real, cplx):
    case("reshape", lambda x: views.reshape(x, (2, 6)), _make(3, 4))
    case("permute", lambda x: views.permute(x, (2, 0, 1)), _make(2, 3, 4))
    case("broadcast", lambda x: broadcast(x, (2, 3, 4)), _make(3, 1))
    case("broadcast", lambda x: broadcast(x, (3, 4)), _make())
    case("slice", lambda x: views.slice_(x, (1, 4), (2, -2), (2, 2)), _make(5, 6))
    case("pad", lambda x: views.pad(x, (1, 0), (0, 2), (1, 2)), _make(3, 2))
    case("shear", lambda x: views.shear(x, 0, 1, 4, 2, 1, -1, 1), _make(6, 3))
    case("shear", lambda x: views.shear(x, 1, 0, 5, 1, -1, 2, 2), _make(3, 4))
    case("shear", lambda x: sliding_windows(x, 0, 3, 2), _make(8, 2), label="windows")
case("reshape", lambda x: views.reshape(x, (0, 5)), real(3, 0))
case("broadcast", lambda x: broadcast(x, (0, 3)), real(1, 3), label="to-0")
case("broadcast", lambda x: broadcast(x, (2, 0)), real(0), label="from-0")
case("slice", lambda x: views.slice_(x, (0, 0), (1, 1), (0, 3)), real(4, 3), label="empty")
case("slice", lambda x: views.flip(x, (0, 1)), real(4, 3), label="flip")
case("pad", lambda x: views.pad(x, (2, 0), (1, 0)), real(0, 3))

# -- joining, memory ------------------------------------------------------------------------------

case("concat", lambda *xs: structure.concat(xs, 1), real(2, 3), real(2, 1), real(2, 0))
case("concat", lambda *xs: structure.concat(xs, 0), cplx(2), cplx(3))
case("copy", structure.copy, real(3, 2))
case("barrier", lambda x: structure.barrier(x, "here"), real(3, 2))
case("graft", custom.graft, real(3, 2), real(3, 2), label="straight", orders=0)

# -- reductions -----------------------------------------------------------------------------------

for _name in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_sqdev"):
    _f = getattr(reduce, _name)
    for _axes in ((0,), (1,), (0, 2), (0, 1, 2)):
        _label = "over" + "".join(map(str, _axes))
        case(_name, lambda x, f=_f, a=_axes: f(x, a), real(2, 3, 4), label=_label)
    case(_name, lambda x, f=_f: f(x, (1,)), real(0, 3), label="over1")
for _name in ("reduce_sum", "reduce_prod"):
    _f = getattr(reduce, _name)
    case(_name, lambda x, f=_f: f(x, (0,)), cplx(3, 2), label="over0")
    case(_name, lambda x, f=_f: f(x, (0,)), real(0, 2), label="nothing")
_zeros = real(5, 4)
_zeros[2, 1] = _zeros[1, 2] = _zeros[3, 2] = 0
case("reduce_prod", lambda x: reduce.reduce_prod(x, (0,)), _zeros, label="zeros")
case("argmax", lambda x: reduce.argmax(x, 1), real(3, 4), flat=True)
case("argmin", lambda x: reduce.argmin(x, 1), real(3, 4), flat=True)

# -- contraction ----------------------------------------------------------------------------------


def _contract(a, b):
    return contract.contract(a, b, a.dtype)


for _a, _b in (
    ((1, 2, 3), (1, 3, 4)),
    ((2, 3, 2), (2, 2, 1)),
    ((0, 2, 3), (0, 3, 2)),
    ((2, 2, 0), (2, 0, 3)),
):
    case("contract", _contract, real(*_a), real(*_b))
case("contract", _contract, cplx(1, 2, 3), cplx(1, 3, 2))
case("contract", _contract, real(3, 4), real(4, 2))
case("contract", _contract, cplx(2, 3), cplx(3, 2))

# -- indexing -------------------------------------------------------------------------------------

for _make in (real, cplx):
    case("gather", lambda x, i: gather(x, (i,), (1,)), _make(3, 4, 2), ints(2, 2, high=4))
    case(
        "gather",
        lambda x, i, j: gather(x, (i, j), (0, 2)),
        *(_make(3, 4, 2), ints(5, high=3), ints(5, high=2)),
    )
case("gather", lambda x, i: gather(x, (i,), (0,)), real(3, 2), np.array(2))
case("gather", lambda x, i: gather(x, (i,), (0,)), real(3, 2), np.zeros((0,), int))

_apart = np.array([3, 0, 1])
_meeting = np.array([1, 1, 3, 1, 9, -1])  # places that meet, and two outside
for _mode in ("set", "add", "mul", "max", "min"):
    for _index in (_apart, _meeting):
        _count = len(_index)
        case(
            "scatter",
            lambda x, u, i, m=_mode: scatter(x, (i,), u, (1,), m),
            *(real(2, 4), real(_count, 2) + 0.007, _index),
            label=_mode,
        )
    case(
        "scatter",
        lambda x, u, i, j, m=_mode: scatter(x, (i, j), u, (0, 2), m),
        *(real(3, 2, 4), real(2, 2) + 0.007, np.array([2, 0]), np.array([1, 3])),
        label=_mode,
    )
    case(
        "scatter",
        lambda x, u, i, m=_mode: scatter(x, (i,), u, (0,), m),
        *(real(3), real(0), np.zeros((0,), int)),
        label=_mode,
    )
for _mode in ("set", "add", "mul"):
    case(
        "scatter",
        lambda x, u, i, m=_mode: scatter(x, (i,), u, (0,), m),
        *(cplx(4), cplx(6), _meeting),
        label=_mode,
    )

for _zeros in ([], [0], [0, 1], [2, 4]):
    _u = real(6)
    _u[_zeros] = 0
    _x = real(4)
    _x[3] = 0
    case(
        "scatter",
        lambda x, u, i: scatter(x, (i,), u, (0,), "mul"),
        *(_x, _u, np.array([1, 1, 3, 1, 3, 0])),
        label="mul-zeros" + "".join(map(str, _zeros)),
    )

# -- convolutions ---------------------------------------------------------------------------------

for _label, _x, _w, _groups, _extents, _windows in (
    ("plain", (2, 3, 5), (4, 3, 2), 1, (4,), [(1, 1, 1, 0)]),
    ("padded", (1, 2, 4, 3), (3, 2, 3, 2), 1, (4, 4), [(1, 1, 1, 1), (1, 1, 1, 1)]),
    ("strided", (2, 2, 7), (2, 2, 3), 1, (3,), [(2, 1, 1, 0)]),
    ("dilated", (1, 2, 7), (2, 2, 3), 1, (4,), [(1, 2, 1, 1)]),
    ("gaps", (2, 2, 3), (2, 2, 3), 1, (7,), [(1, 1, 2, 1)]),
    ("everything", (1, 4, 5), (6, 2, 3), 2, (6,), [(2, 3, 2, 4)]),
    ("cut off", (1, 1, 6), (1, 1, 2), 1, (3,), [(1, 1, 1, -1)]),
    ("groups", (2, 6, 4), (4, 3, 2), 2, (3,), [(1, 1, 1, 0)]),
    ("depthwise", (2, 3, 4), (3, 1, 2), 3, (3,), [(1, 1, 1, 0)]),
    ("no space", (2, 3), (4, 3), 1, (), []),
    ("empty batch", (0, 3, 4), (2, 3, 2), 1, (3,), [(1, 1, 1, 0)]),
    ("no channels", (2, 0, 4), (2, 0, 2), 1, (3,), [(1, 1, 1, 0)]),
    ("no outputs", (2, 3, 4), (0, 3, 2), 1, (3,), [(1, 1, 1, 0)]),
    ("nothing to see", (2, 3, 0), (2, 3, 2), 1, (1,), [(1, 1, 1, 1)]),
):
    _params = (tuple(Window(*v) for v in _windows), _extents, _groups)
    _f = lambda x, w, p=_params: convolve(x, w, *p)
    case("convolve", _f, real(*_x), real(*_w), label=_label)
    if _label == "everything":
        case("convolve", _f, cplx(*_x), cplx(*_w), label=_label)

# -- where something holds ------------------------------------------------------------------------

case("nonzero", lambda m: nonzero(m, 3), bools(7), flat=True)
case("nonzero", lambda m: nonzero(m, 5), bools(2, 3, 4), flat=True)
case("nonzero", lambda m: nonzero(m, 2), bools(2, 0), flat=True)
case("nonzero", lambda m: nonzero(m, 0), bools(4), flat=True)

# -- scans and sorts ------------------------------------------------------------------------------

for _op in ("sum", "prod", "max", "min", "logsumexp"):
    for _reverse in (False, True):
        _label = _op + ("-reverse" if _reverse else "")
        _f = lambda x, axis=1, op=_op, r=_reverse: scan.scan(op, x, axis, r)
        case("scan", _f, real(2, 5), label=_label)
        case("scan", lambda x, f=_f: f(x, 0), real(3, 2), label=_label + "-axis0")
        case("scan", lambda x, f=_f: f(x, 0), real(1), label=_label)
        case("scan", lambda x, f=_f: f(x, 0), real(0, 2), label=_label)
for _op in ("sum", "prod"):
    case("scan", lambda x, op=_op: scan.scan(op, x, 0, False), cplx(5), label=_op)
for _places in ([0], [4], [2], [1, 3], [0, 1, 4]):
    _x = real(5)
    _x[_places] = 0
    case(
        "scan",
        lambda x: scan.scan("prod", x, 0, False),
        _x,
        label="prod-zeros" + "".join(map(str, _places)),
    )
for _descending in (False, True):
    _label = "descending" if _descending else "ascending"
    case("sort", lambda x, d=_descending: sort.sort(x, 1, d), real(3, 5), label=_label)
    for _shape, _axis, _count in (((3, 5), 1, 2), ((4, 2), 0, 4), ((0, 2), 0, 0)):
        _f = lambda x, d=_descending, a=_axis, n=_count: sort.topk(x, a, n, d)
        case("topk", _f, real(*_shape), label=_label, flat=True)
    case("sort", lambda x, d=_descending: sort.sort(x, 0, d), real(0, 2), label=_label)
    case(
        "argsort",
        lambda x, d=_descending: sort.argsort(x, 0, d),
        real(5, 2),
        label=_label,
        flat=True,
    )

# -- attention ------------------------------------------------------------------------------------


def _scale(q):
    return constant(0.6, dt.compute_dtype(q.dtype))


def _attention_lse(causal, q, k, bias=None):
    return at.attention_lse(q, k, _scale(q), bias, causal)


def _attention(q, k, v, *bias, keep=None, causal=False):
    b = ew.cast(bias[0], q.dtype) if bias else None
    return at.attention(q, k, v, _scale(q), bias=b, keep=keep, causal=causal)


def _attention_grad(which, q, k, v, g, *bias, keep=None, causal=False):
    b = ew.cast(bias[0], q.dtype) if bias else None
    lse = at.attention_lse(q, k, _scale(q), b, causal)
    delta = reduce_sum(ew.mul(g, _attention(q, k, v, *bias, keep=keep, causal=causal)), (2,))
    o = at.Operands(q, k, _scale(q), b, lse, v, keep, causal)
    return at.attention_grad(which, o, g, delta)


def _dropped(f):
    """With a third of the weights left out: a function of their place alone."""

    def build(q, k, v, *rest):
        n, rows, columns = *q.shape[:2], k.shape[1]
        place = views.reshape(iota(n * rows * columns, dt.int64, q.device), (n, rows, columns))
        kept = ew.ne(ew.mod(place, constant(3, dt.int64)), constant(0, dt.int64))
        keep = ew.where(kept, constant(1.5, q.dtype), constant(0.0, q.dtype))
        return f(q, k, v, *rest, keep=keep)

    return build


_SIZES = [(2, 4, 3, 2, 5), (1, 3, 5, 3, 1), (2, 2, 0, 3, 2), (0, 2, 3, 1, 2), (1, 3, 2, 0, 2)]
for _n, _l, _s, _e, _f in _SIZES:
    _q, _k, _v = real(_n, _l, _e), real(_n, _s, _e), real(_n, _s, _f)
    _g, _b = real(_n, _l, _f), real(_n, _l, _s)
    for _causal in (False, True):
        _label = "causal" if _causal else ""
        _make = partial(_attention, causal=_causal)
        if _s:  # without keys it is infinite
            _logs = lambda q, k, *b, c=_causal: at.attention_lse(
                q, k, _scale(q), *(b or (None,)), c
            )
            case("attention_lse", _logs, _q, _k, label=_label)
            case("attention_lse", _logs, _q, _k, _b, label="bias" + _label)
        case("attention", _make, _q, _k, _v, label=_label)
        for _which in "qkv":
            _grad = partial(_attention_grad, _which, causal=_causal)
            case("attention_grad", _grad, _q, _k, _v, _g, label=_which + _label)
    case("attention", _attention, _q, _k, _v, _b, label="bias")
_q, _k, _v, _g, _b = real(2, 3, 2), real(2, 4, 2), real(2, 4, 3), real(2, 3, 3), real(2, 3, 4)
case("attention", _dropped(_attention), _q, _k, _v, label="dropout")
for _which in "qkv":
    case(
        "attention_grad",
        _dropped(partial(_attention_grad, _which)),
        *(_q, _k, _v, _g, _b),
        label=_which + "-dropout-bias",
    )
