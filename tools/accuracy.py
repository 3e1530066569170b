"""Errors of the math functions in units in the last place (ulp).

    python -m tools.accuracy [NAME ...]     print the table and write docs/accuracy.md
    python -m tools.accuracy --quick        few points, no file

A function is measured on random bit patterns (every exponent, subnormals, huge numbers) and on
intervals where it is difficult or common. float32 is compared with NumPy's and SciPy's float64,
float64 with the C library's extended precision where NumPy has the function and the machine the
format, else with mpmath. Special values (zeros, infinities, NaN, the limits of the range) are
compared with the C library's, signs of zero included.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import scipy.special as sp

from numus import dtypes as dt
from numus.dtypes import DType
from numus.kernels.math import FUNCTIONS
from tools.lanes import Lanes

Array = np.ndarray[Any, Any]
EXTENDED = np.finfo(np.longdouble).nmant >= 63
PRECISION = 130
TARGET = Path(__file__).parents[1] / "docs/accuracy.md"


@dataclass(frozen=True)
class Case:
    """A function, its references and test intervals.

    double: float64 array -> float64 array; extended: the same in long double, or None; exact: on
    mpmath numbers. `wide`: the range of random bit patterns that is used. `floor`: errors count in
    ulp of at least this value, for functions whose zeros are not floats.
    """

    name: str
    double: Callable[..., Any]
    extended: Callable[..., Any] | None
    exact: Callable[..., Any]
    intervals: tuple[Any, ...]
    bars: tuple[float, float] = (2.0, 4.0)
    wide: tuple[float, float] = (-math.inf, math.inf)
    floor: float = 0.0
    special: Callable[..., Any] | None = None  # reference at special values, if not `double`


def _mp_erfc(x: Any) -> Any:
    return mp.erfc(x) if abs(x) < 1000 else mp.mpf(1) - mp.sign(x)


def _lgamma(x: Array) -> Array:
    """The C library's: SciPy's differs at -inf and at subnormals."""
    infinite = (np.abs(x) > 1e306) | (x == 0) | ((x < 0) & (x == np.floor(x)))
    return np.array([math.inf if i else math.lgamma(v) for v, i in zip(x, infinite, strict=True)])


def _mp_ndtr(x: Any) -> Any:
    return _mp_erfc(-x / mp.sqrt(2)) / 2


def _mp_erfinv(x: Any) -> Any:
    if x == 0 or abs(x) >= 1:
        return mp.sign(x) * mp.inf if abs(x) == 1 else x if x == 0 else mp.nan
    if abs(x) < mp.mpf(10) ** -30:
        return x * mp.sqrt(mp.pi) / 2
    size, start = abs(x), float(sp.erfinv(float(abs(x))))
    t = mp.mpf(start) if 0 < start < math.inf else size
    for _ in range(4):
        miss = mp.erf(t) - size if size < 0.5 else (1 - size) - mp.erfc(t)
        t -= miss * mp.exp(t * t) * mp.sqrt(mp.pi) / 2
    return mp.sign(x) * t


def _mp_lgamma(x: Any) -> Any:
    if x == mp.floor(x) and x <= 0:
        return mp.inf
    if x > 0:
        return mp.loggamma(x)
    return mp.log(mp.pi / abs(x * mp.sinpi(x))) - mp.loggamma(-x)


def _mp_trigamma(x: Any) -> Any:
    if x > 0:
        return mp.zeta(2, x) if x < 100 else mp.psi(1, x)
    return (mp.pi / mp.sinpi(x)) ** 2 - _mp_trigamma(1 - x)


def _np(name: str) -> tuple[Any, Any]:
    f = getattr(np, name)
    return f, f


UNARY: tuple[Case, ...] = (
    Case("exp", *_np("exp"), mp.exp, ((-1, 1), (-104, 90), (-746, 710))),
    Case("exp2", *_np("exp2"), lambda x: mp.mpf(2) ** x, ((-1, 1), (-150, 129), (-1080, 1025))),
    Case("expm1", *_np("expm1"), mp.expm1, ((-1, 1), (-0.01, 0.01), (-20, 90), (-40, 710))),
    Case("log", *_np("log"), mp.log, ((0.5, 2), (0.99, 1.01), (0, 100)), wide=(0, math.inf)),
    Case(
        *("log2", *_np("log2"), lambda x: mp.log(x, 2)),
        ((0.5, 2), (0.99, 1.01), (0, 100)),
        wide=(0, math.inf),
    ),
    Case(
        *("log10", *_np("log10"), lambda x: mp.log(x, 10)),
        ((0.5, 2), (0.99, 1.01), (0, 100)),
        wide=(0, math.inf),
    ),
    Case("log1p", *_np("log1p"), mp.log1p, ((-1, 1), (-0.01, 0.01), (0, 100)), wide=(-1, math.inf)),
    Case("sin", *_np("sin"), mp.sin, ((-1, 1), (-10, 10), (-7e4, 7e4), (0, 1e10))),
    Case("cos", *_np("cos"), mp.cos, ((-1, 1), (-10, 10), (-7e4, 7e4), (0, 1e10))),
    Case("tan", *_np("tan"), mp.tan, ((-1, 1), (-10, 10), (-7e4, 7e4), (0, 1e10))),
    Case("asin", *_np("arcsin"), mp.asin, ((-1, 1), (-0.01, 0.01), (0.99, 1)), wide=(-1, 1)),
    Case("acos", *_np("arccos"), mp.acos, ((-1, 1), (-0.01, 0.01), (0.99, 1)), wide=(-1, 1)),
    Case("atan", *_np("arctan"), mp.atan, ((-1, 1), (-10, 10))),
    Case("sinh", *_np("sinh"), mp.sinh, ((-1, 1), (-10, 10), (-90, 90), (-711, 711))),
    Case("cosh", *_np("cosh"), mp.cosh, ((-1, 1), (-10, 10), (-90, 90), (-711, 711))),
    Case("tanh", *_np("tanh"), mp.tanh, ((-1, 1), (-10, 10), (-0.01, 0.01), (-20, 20))),
    Case("asinh", *_np("arcsinh"), mp.asinh, ((-1, 1), (-10, 10), (-1e4, 1e4))),
    Case("acosh", *_np("arccosh"), mp.acosh, ((1, 1.01), (1, 2), (1, 100)), wide=(1, math.inf)),
    Case("atanh", *_np("arctanh"), mp.atanh, ((-1, 1), (-0.01, 0.01), (0.99, 1)), wide=(-1, 1)),
    Case("cbrt", *_np("cbrt"), mp.cbrt, ((-1, 1), (1, 8))),
    Case(
        *("rsqrt", lambda x: 1 / np.sqrt(x), lambda x: 1 / np.sqrt(x), lambda x: 1 / mp.sqrt(x)),
        ((0, 4),),
        bars=(1, 1),
        wide=(0, math.inf),
    ),
    Case("erf", sp.erf, None, mp.erf, ((-1, 1), (-6, 6), (1, 1.5))),
    Case("erfc", sp.erfc, None, _mp_erfc, ((-1, 1), (-6, 10.2), (0, 27.5)), bars=(4, 8)),
    Case("ndtr", sp.ndtr, None, _mp_ndtr, ((-1, 1), (-14.4, 6), (-38.6, 0)), bars=(6, 8)),
    Case(
        *("erfinv", sp.erfinv, None, _mp_erfinv),
        ((-1, 1), (-0.01, 0.01), (0.99, 1), (0.999999, 1)),
        wide=(-1, 1),
    ),
    Case(
        *("lgamma", sp.gammaln, None, _mp_lgamma),
        ((0, 1), (0.9, 1.1), (1.9, 2.1), (0, 10), (0, 1e3), (-3, 0), (-30, 0), "poles"),
        bars=(4, 8),
        floor=1.0,
        special=_lgamma,
    ),
    Case(
        *("digamma", sp.digamma, None, mp.digamma),
        ((0, 1), (1.4, 1.5), (1, 10), (0, 1e3), (-10, 0)),
        bars=(6, 8),
        wide=(-1, math.inf),
        floor=1.0,
    ),
    Case(
        *("trigamma", lambda x: sp.polygamma(1, x), None, _mp_trigamma),
        ((0.01, 1), (1, 10), (0.1, 1e3), (-5, 0)),
        bars=(6, 8),
        wide=(1e-3, 1e4),
        special=lambda x: np.where(x == -np.inf, np.nan, sp.polygamma(1, x)),
    ),
    Case(
        *("sigmoid", sp.expit, lambda x: 1 / (1 + np.exp(-x)), lambda x: 1 / (1 + mp.exp(-x))),
        ((-1, 1), (-30, 30), (-100, 20)),
        bars=(3, 4),
        wide=(-1e3, math.inf),
    ),
)

BINARY: tuple[Case, ...] = (
    Case("pow", *_np("power"), mp.power, ("base", "near one", "whole")),
    Case("atan2", *_np("arctan2"), mp.atan2, ("plane",)),
    Case("hypot", *_np("hypot"), mp.hypot, ("plane",)),
    Case(
        *("logaddexp", *_np("logaddexp"), lambda x, y: mp.log(mp.exp(x) + mp.exp(y))),
        ("plane",),
        wide=(-1e4, 1e4),
        floor=1.0,
    ),
    Case("fmod", *_np("fmod"), mp.fmod, ("plane", "far"), bars=(0, 0)),
    Case("nextafter", *_np("nextafter"), mp.mpf, ("plane",), bars=(0, 0)),
)
CASES = {case.name: case for case in (*UNARY, *BINARY)}


# -- test points ----------------------------------------------------------------------------------


def random_bits(rng: np.random.Generator, dtype: DType, count: int, wide: Sequence[float]) -> Array:
    """Random bit patterns inside a range: all exponents are equally likely."""
    word = np.dtype(f"uint{dtype.bits}")
    found: list[Array] = []
    while sum(map(len, found)) < count:
        x = rng.integers(0, 2**dtype.bits, count, dtype=word).view(dtype.np)
        found.append(x[(x >= wide[0]) & (x <= wide[1])])
    return np.concatenate(found)[:count]


def near_poles(rng: np.random.Generator, dtype: DType, count: int) -> Array:
    """Numbers at all distances from the negative integers."""
    return -rng.integers(1, 30, count) * (
        1 + rng.choice([-1, 1], count) * 2.0 ** rng.uniform(-dtype.mantissa, -1, count)
    )


def unary_points(case: Case, dtype: DType, count: int) -> list[Array]:
    rng = np.random.default_rng(7)
    inside = [
        near_poles(rng, dtype, count) if i == "poles" else rng.uniform(*i, count)
        for i in case.intervals
    ]
    points = np.concatenate(inside)
    with np.errstate(over="ignore"):
        points = points.astype(dtype.np)
    points = points[(points >= case.wide[0]) & (points <= case.wide[1])]
    return [np.concatenate([random_bits(rng, dtype, count, case.wide), points])]


def binary_points(case: Case, dtype: DType, count: int) -> list[Array]:
    """Pairs: random bits, random bits of similar magnitude, and the case's intervals."""
    rng = np.random.default_rng(7)
    x = [random_bits(rng, dtype, count, case.wide), random_bits(rng, dtype, count, case.wide)]
    with np.errstate(all="ignore"):
        similar = (x[1] * rng.uniform(-8, 8, count)).astype(dtype.np)
    y = [random_bits(rng, dtype, count, case.wide), similar]
    largest = 128 if dtype is dt.float32 else 1024
    for kind in case.intervals:
        if kind == "plane":
            pair = rng.uniform(-10, 10, (2, count))
        elif kind == "far":
            pair = np.array([rng.uniform(-1e30, 1e30, count), rng.uniform(-10, 10, count)])
        elif kind == "base":
            base = np.exp(rng.uniform(-80, 80, count))
            pair = np.array([base, rng.uniform(-1.2, 1.1, count) * largest / np.log2(base)])
        elif kind == "near one":
            base = 1 + rng.uniform(-1, 1, count) * 10.0 ** rng.uniform(-7, -1, count)
            base = base.astype(dtype.np).astype(np.float64)
            base[base == 1] = 2
            pair = np.array([base, rng.uniform(-1.2, 1.1, count) * largest / np.log2(base)])
        else:
            pair = np.array([rng.uniform(-10, 10, count), rng.integers(-40, 40, count)])
        x.append(pair[0].astype(dtype.np))
        y.append(pair[1].astype(dtype.np))
    xs, ys = np.concatenate(x), np.concatenate(y)
    keep = np.isfinite(xs) & np.isfinite(ys)
    return [xs[keep], ys[keep]]


# -- measuring ------------------------------------------------------------------------------------


def errors(got: Array, want: Array, dtype: DType, floor: float = 0.0) -> Array:
    """Errors in ulp of the expected values, which have more precision than the dtype."""
    info = np.finfo(dtype.np)
    with np.errstate(all="ignore"):
        rounded = want.astype(dtype.np)
        _, exponent = np.frexp(np.maximum(np.abs(want), want.dtype.type(floor)))
        # frexp's mantissa is in [1/2, 1); 2**minexp is the smallest normal number
        exponent = np.clip(exponent - 1, info.minexp, info.maxexp - 1) - info.nmant
        ulp = np.ldexp(want.dtype.type(1), exponent)
        size = np.abs(got.astype(want.dtype) - want) / ulp
        same = (got == rounded) & ~np.isfinite(rounded) | (np.isnan(got) & np.isnan(want))
        size = np.where(same, 0, size)
    return np.where(np.isnan(size), np.inf, size).astype(np.float64)


def by_mpmath(exact: Callable[..., Any], arrays: Sequence[Array]) -> Array:
    """The exact function at each point, rounded to the widest float NumPy has."""
    out = np.empty(len(arrays[0]), np.longdouble)
    with mp.workprec(PRECISION):
        for i, values in enumerate(zip(*(a.tolist() for a in arrays), strict=True)):
            try:
                value = exact(*map(mp.mpf, values))
            except (ValueError, ZeroDivisionError, OverflowError):
                value = mp.nan
            value = mp.nan if isinstance(value, mp.mpc) else value
            # Two parts carry more than the 53 bits of a Python float.
            high = float(value)
            low = float(value - high) if math.isfinite(high) else 0.0
            out[i] = np.longdouble(high) + np.longdouble(low)
    return out


@dataclass(frozen=True)
class Measured:
    name: str
    dtype: DType
    worst: float
    where: tuple[float, ...]
    mean: float
    points: int
    bar: float
    special: int  # special values that agree
    disagree: tuple[tuple[float, ...], ...]  # and those that do not


def compiled(name: str, dtype: DType, arguments: int) -> Lanes:
    return Lanes(FUNCTIONS[name], [dtype] * arguments)


def measure(case: Case, dtype: DType, count: int, exact_count: int) -> Measured:
    """Errors of a function at `count` points per region, `exact_count` where mpmath is needed."""
    arguments = 2 if case in BINARY else 1
    run = compiled(case.name, dtype, arguments)
    slow = dtype is dt.float64 and (case.extended is None or not EXTENDED)
    make = binary_points if arguments == 2 else unary_points
    arrays = make(case, dtype, exact_count if slow else count)
    with np.errstate(all="ignore"):
        if dtype is dt.float32:
            want = case.double(*(a.astype(np.float64) for a in arrays))
        elif slow and case.bars[1] > 0:
            want = by_mpmath(case.exact, arrays)
        else:
            want = (case.extended or case.double)(*(a.astype(np.longdouble) for a in arrays))
        if case.name == "nextafter":  # of this dtype, not of a wider one
            want = np.nextafter(*arrays).astype(np.longdouble)
    ulps = errors(run(*arrays), want, dtype, case.floor)
    worst = int(ulps.argmax())
    special, disagree = special_values(case, dtype, run)
    return Measured(
        name=case.name,
        dtype=dtype,
        worst=float(ulps[worst]),
        where=tuple(float(a[worst]) for a in arrays),
        mean=float(ulps.mean()),
        points=len(ulps),
        bar=case.bars[0 if dtype is dt.float32 else 1],
        special=special,
        disagree=disagree,
    )


def special_values(case: Case, dtype: DType, run: Lanes) -> tuple[int, tuple[Any, ...]]:
    """The number of special values that agree with the C library, and those that do not."""
    info = np.finfo(dtype.np)
    sizes = [0.0, math.inf, 1.0, 0.5, 2.0, 3.0, float(info.max), float(info.tiny)]
    sizes.append(float(info.smallest_subnormal))
    if dtype is dt.float32:
        sizes.append(2.0**24)
    values = [*sizes, *(-v for v in sizes), math.nan]
    arguments = len(run.inputs)
    table = np.array(list(itertools.product(values, repeat=arguments)), dtype.np)
    arrays = list(table.T)
    with np.errstate(all="ignore"):
        want = np.asarray((case.special or case.double)(*arrays)).astype(dtype.np)
    got = run(*arrays)
    bar = case.bars[0 if dtype is dt.float32 else 1] + 1.0
    wide = np.longdouble if dtype is dt.float64 else np.float64
    good = errors(got, want.astype(wide), dtype, case.floor) <= bar
    good &= np.isnan(want) | (np.signbit(got) == np.signbit(want)) | (np.abs(want) < case.floor)
    bad = tuple(tuple(float(a[i]) for a in arrays) for i in np.flatnonzero(~good))
    return int(good.sum()), bad


# -- reporting ------------------------------------------------------------------------------------

HEAD = """# Accuracy of the math functions

Maximum and mean error in units in the last place (ulp), on random bit patterns over the whole range
and on difficult intervals; 0.5 is correctly rounded. "Special" counts zeros, infinities, NaN and
the limits of the range, which all follow C99's Annex F. `lgamma`, `digamma` and `logaddexp` have
zeros that are not floats: near them errors are in ulp of 1.

Written by `python -m tools.accuracy`.

| function | dtype | maximum | at | mean | points | special |
|---|---|---:|---|---:|---:|---:|
"""


def row(m: Measured) -> str:
    where = ", ".join(f"{v:.9g}" if m.dtype is dt.float32 else repr(v) for v in m.where)
    wrong = f" ({len(m.disagree)} differ)" if m.disagree else ""
    return (
        f"| {m.name} | {m.dtype.name} | {m.worst:.3f} | {where} | {m.mean:.3f} | {m.points} "
        f"| {m.special}{wrong} |"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Errors of the math functions in ulp")
    parser.add_argument("names", nargs="*", help="functions; all by default")
    parser.add_argument("--quick", action="store_true", help="few points, and no file")
    parser.add_argument("--points", type=int, default=1_000_000, help="per region")
    parser.add_argument(
        "--exact", type=int, default=4000, help="per region, where mpmath is needed"
    )
    given = parser.parse_args(arguments)
    points, exact = (4000, 200) if given.quick else (given.points, given.exact)
    rows, late = [], False
    for name in given.names or CASES:
        for dtype in (dt.float32, dt.float64):
            start = time.perf_counter()
            m = measure(CASES[name], dtype, points, exact)
            over = m.worst > m.bar or bool(m.disagree)
            late |= over
            rows.append(row(m))
            print(
                f"{rows[-1]} {time.perf_counter() - start:.1f} s{' OVER' if over else ''}",
                flush=True,
            )
            for values in m.disagree[:8]:
                print("    special:", values)
    if not given.names and not given.quick:
        TARGET.write_text(HEAD + "\n".join(rows) + "\n")
    return int(late)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
