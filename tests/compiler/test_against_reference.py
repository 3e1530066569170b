"""Every primitive, compiled, against its NumPy reference."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import check, sample

from numus import dtypes as dt
from numus.primitives import elementwise as ew
from numus.primitives import views
from numus.primitives.broadcast import broadcast, reduce_sum, sliding_windows
from numus.primitives.contract import contract
from numus.primitives.indexing import gather, scatter
from numus.primitives.reduce import (
    argmax,
    argmin,
    reduce_max,
    reduce_min,
    reduce_prod,
    reduce_sqdev,
)
from numus.primitives.scan import scan
from numus.primitives.sort import argsort, sort
from numus.primitives.source import constant, iota
from numus.primitives.structure import concat, copy

SHAPES = [(), (1,), (7,), (70,), (5, 33), (3, 1, 17), (0,), (4, 0)]
REAL = [d for d in dt.ALL if not d.is_complex]


@pytest.mark.parametrize("dtype", dt.ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_arithmetic(shape, dtype):
    a, b = sample(shape, dtype), sample(shape, dtype, 1)
    check(lambda a, b: ew.add(ew.mul(a, b), a), a, b)
    check(lambda a, b: (ew.eq(a, b), ew.ne(a, a), ew.where(ew.eq(a, a), a, b)), a, b)
    if not dtype.is_complex:
        check(lambda a, b: (ew.maximum(a, b), ew.minimum(a, b), ew.lt(a, b), ew.le(a, b)), a, b)


@pytest.mark.parametrize("target", dt.ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("source", dt.ALL, ids=lambda d: d.name)
def test_casts(source, target):
    check(lambda x: ew.cast(x, target), sample((41,), source))


@pytest.mark.parametrize("dtype", REAL, ids=lambda d: d.name)
def test_integer_like(dtype):
    a, b = sample((50,), dtype), sample((50,), dtype, 1)
    if dtype is dt.bool_:
        check(lambda a, b: (ew.and_(a, b), ew.or_(a, b), ew.xor(a, b), ew.invert(a)), a, b)
        return
    check(lambda a, b: (ew.mod(a, b), ew.floor_divide(a, b)), a, b)
    check(lambda a: (ew.sign(a), ew.floor(a), ew.rint(a), ew.abs_(a), ew.neg(a)), a)
    if dtype.is_integer:
        check(lambda a, b: (ew.and_(a, b), ew.shift_left(a, b), ew.shift_right(a, b)), a, b)
        check(lambda a, b: ew.pow_(a, b), a, np.abs(b).astype(b.dtype))


@pytest.mark.parametrize("dtype", dt.ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(7,), (5, 33), (4, 3, 20), (300, 5), (2, 70000)], ids=str)
def test_reductions(shape, dtype):
    x = sample(shape, dtype)
    last = len(shape) - 1
    rtol = 2e-2 if dtype.is_low_precision else None
    if dtype is not dt.bool_ and not dtype.is_low_precision:
        check(lambda x: (reduce_sum(x, (0,)), reduce_sum(x, (last,))), x, rtol=rtol)
        check(lambda x: reduce_sum(x, tuple(range(last + 1))), x, rtol=rtol)
    if not dtype.is_complex:
        check(lambda x: (reduce_max(x, (0,)), reduce_min(x, (last,))), x)
        check(lambda x: (argmax(x, 0), argmin(x, last)), x)
    if dtype in (dt.float32, dt.float64):
        check(lambda x: (reduce_sqdev(x, (last,)), reduce_sum(x, (last,))), x, rtol=1e-5)
        check(lambda x: reduce_sqdev(x, tuple(range(last + 1))), x, rtol=1e-5)
    if shape == (7,) and dtype is not dt.bool_ and not dtype.is_low_precision:
        check(lambda x: reduce_prod(x, (0,)), x, rtol=1e-5)


@pytest.mark.parametrize("dtype", [dt.float32, dt.complex64, dt.bool_, dt.int16, dt.bfloat16])
def test_views(dtype):
    x = sample((6, 8, 5), dtype)
    check(lambda x: copy(views.permute(x, (2, 0, 1))), x)
    check(lambda x: copy(views.reshape(views.permute(x, (1, 0, 2)), (12, 20))), x)
    check(lambda x: copy(views.reshape(ew.add(x, x), (3, 2, 40))), x)
    check(lambda x: copy(views.flip(x, (1, 2))), x)
    check(lambda x: views.pad(x, (1, 0, 2), (0, 3, 1), (0, 1, 2)), x)
    check(lambda x: copy(views.slice_(x, (1, 7, 0), (2, -3, 1), (2, 3, 5))), x)
    check(lambda x: copy(sliding_windows(x, 1, 3, 2)), x)
    check(lambda x: views.shear(x, 0, 1, 9, 1, -1, 2, 1), x)
    check(lambda x: views.shear(ew.add(x, x), 0, 2, 9, 1, 1, -3, 2), x)
    check(lambda x: copy(broadcast(views.reshape(x, (6, 1, 8, 5)), (6, 3, 8, 5))), x)
    check(lambda x: ew.add(views.permute(x, (2, 1, 0)), views.permute(ew.mul(x, x), (2, 1, 0))), x)


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.complex128, dt.int32, dt.float16])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 5, 7, 3), (1, 70, 33, 65), (3, 4, 0, 5)])
def test_contraction(dtype, sizes):
    b, m, k, n = sizes
    x, y = sample((b, m, k), dtype), sample((b, k, n), dtype, 1)
    check(lambda x, y: contract(x, y, x.dtype), x, y, rtol=1e-2 if dtype is dt.float16 else 1e-5)
    check(
        lambda x, y: ew.add(
            contract(x, views.permute(views.permute(y, (0, 2, 1)), (0, 2, 1)), x.dtype),
            constant(1, x.dtype),
        ),
        *(x, y),
        rtol=1e-2 if dtype is dt.float16 else 1e-5,
    )


@pytest.mark.parametrize("dtype", [dt.float32, dt.int8, dt.complex64, dt.bool_, dt.float16])
def test_gather_and_scatter(dtype):
    x = sample((5, 6, 7), dtype)
    i = np.array([[0, 4, -3], [9, 1, 1]])
    j = np.array([[5, 0, 2], [2, 3, 3]])
    check(lambda x, i, j: gather(x, (i, j), (0, 1)), x, i, j)
    check(lambda x, i: gather(ew.where(ew.eq(x, x), x, x), (i,), (1,)), x, i)
    u = sample((2, 3, 7), dtype, 1)
    for mode in ("set", "add", "mul", "max", "min"):
        if dtype.is_complex and mode in ("max", "min"):
            continue
        check(lambda x, u, i, j, mode=mode: scatter(x, (i, j), u, (0, 1), mode), x, u, i, j)
    check(lambda x, n: concat((x, x, ew.add(n, n)), 1), x, sample((5, 2, 7), dtype))
    check(lambda x: ew.add(iota(7, dt.int64, x.device), constant(3, dt.int64)), x)


@pytest.mark.parametrize("dtype", REAL, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(9,), (4, 70), (3, 5, 6), (0, 3)], ids=str)
def test_scans_and_sorts(shape, dtype):
    x = sample(shape, dtype)
    if dtype.kind == "float" and x.size > 4:
        x.reshape(-1)[[1, 3]] = np.nan, -0.0
    for axis in range(len(shape)):
        check(lambda x, a=axis: (sort(x, a), argsort(x, a), sort(x, a, True)), x)
        check(lambda x, a=axis: argsort(x, a, True), x)
        if dtype is dt.bool_ or dtype.is_low_precision:
            continue
        check(lambda x, a=axis: (scan("sum", x, a), scan("max", x, a, True)), x)
        check(lambda x, a=axis: (scan("prod", x, a), scan("min", x, a)), x, rtol=1e-5)
        if dtype.kind == "float":
            check(lambda x, a=axis: scan("logsumexp", x, a), x, rtol=1e-5)
