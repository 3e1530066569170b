"""Operands: promotion, weak scalars, subclasses of Tensor."""

import pytest

from numus import dtypes as dt
from numus.functions._base import common, pair
from numus.primitives.broadcast import full
from numus.tensor import Tensor


class Parameter(Tensor):
    __slots__ = ()


def test_scalars_stay_weak_beside_a_subclass_of_tensor():
    x = Parameter(full((2,), 1, dt.float16))
    for a, b in ((x, 2.0), (2.0, x), (x, True)):
        assert [n.dtype for n in pair("op", a, b)] == [dt.float16, dt.float16]


@pytest.mark.parametrize(
    ("a", "b", "dtype"),
    [(1, 2.5, dt.float32), (True, 1, dt.int64), (1j, 2, dt.complex64), (True, False, dt.bool_)],
)
def test_two_scalars_take_the_default_dtype_of_the_higher_kind(a, b, dtype):
    assert [n.dtype for n in pair("op", a, b)] == [dtype, dtype]
    assert [n.dtype for n in common("op", b, a)] == [dtype, dtype]
