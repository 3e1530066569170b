"""NumPy's assertions, which see the elements of numus's arrays."""

from __future__ import annotations

from typing import Any

import numpy.testing as _testing

from numus.numpy._convert import renamed
from numus.tensor import Tensor
from numus.transforms import tree


def _seen(x: Any) -> Any:
    """Arrays as NumPy's own, nested or not; those without axes as scalars."""
    if type(x) in (list, tuple, dict):
        return tree.map(_seen, x, is_leaf=lambda y: y is not x)
    return x.__array__()[() if not x.shape else ...] if isinstance(x, Tensor) else x


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
