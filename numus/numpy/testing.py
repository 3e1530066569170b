"""NumPy's assertions, which see the elements of numus's arrays."""

from __future__ import annotations

from typing import Any

import numpy.testing as _testing

from numus.numpy._convert import renamed
from numus.tensor import Tensor


def _seen(x: Any) -> Any:
    """Arrays as NumPy's own, nested or not; those without axes as scalars."""
    if isinstance(x, Tensor):
        return x.__array__() if x.shape else x.__array__()[()]
    if type(x) in (list, tuple):
        return type(x)(map(_seen, x))
    return {k: _seen(v) for k, v in x.items()} if type(x) is dict else x


def _assertion(name: Any) -> Any:
    check = getattr(_testing, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return check(*map(_seen, args), **{k: _seen(v) for k, v in kwargs.items()})

    return renamed(call, name)


_ASSERTIONS = """
    assert_allclose assert_almost_equal assert_approx_equal assert_array_almost_equal
    assert_array_almost_equal_nulp assert_array_equal assert_array_less assert_array_max_ulp
    assert_equal assert_string_equal
""".split()
globals().update({name: _assertion(name) for name in _ASSERTIONS})


def __getattr__(name: Any) -> Any:
    return getattr(_testing, name)


__all__ = [*_ASSERTIONS]
