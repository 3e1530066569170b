"""The dtypes of a ufunc's call, as NumPy resolves them (NEP 50, `dtype=`, `signature=`).

NumPy's ufunc of the same name is asked which loop it would run for operands of these dtypes, where
Python's numbers are weak; no element is computed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.errors import DTypeError
from numus.tensor import Tensor

WEAK = (int, float, complex)


def as_engine_dtype(given: Any) -> Any:
    """The dtype of what NumPy takes as one; None stays None."""
    if given is None or isinstance(given, dt.DType):
        return given
    found = np.dtype(given)
    try:
        return dt.as_dtype(found.newbyteorder("=") if found.byteorder == ">" else found)
    except DTypeError as error:
        raise TypeError(f"numus.numpy: {error}") from None


@functools.lru_cache(8192)
def resolved(ufunc: Any, kinds: Any, signature: Any, casting: str) -> tuple[Any, Any]:
    """The dtypes that operands are cast to, and those of results."""
    missing = (None,) * ufunc.nout
    options = {} if signature is None else {"signature": signature}
    found = ufunc.resolve_dtypes(kinds + missing, casting=casting, **options)
    known = tuple(as_engine_dtype(d) for d in found)
    return known[: ufunc.nin], known[ufunc.nin :]


def kind_of(x: Any) -> Any:
    """What NumPy's resolution is told about an operand: a dtype, or a Python type that is weak."""
    if isinstance(x, Tensor):
        return x._node.dtype.np
    kind = type(x)
    if kind in WEAK:
        return kind
    return np.dtype(bool) if kind is bool else x.dtype


def as_signature(dtype: Any, signature: Any, nin: int, nout: int) -> Any:
    """The dtypes that a call asks for by `dtype=` or `signature=` ("dd->d"); None for no such."""
    if signature is None:
        return None if dtype is None else (None,) * nin + (np.dtype(dtype),) * nout
    if dtype is not None:
        raise TypeError("cannot specify both 'signature' and 'dtype'")
    if isinstance(signature, str):
        left, _, right = signature.partition("->")
        if not right:
            return (None,) * nin + tuple(map(np.dtype, left))
        return tuple(map(np.dtype, left + right))
    given = tuple(signature) if isinstance(signature, tuple) else (signature,)
    given = tuple(None if d is None else np.dtype(d) for d in given)
    return (None,) * nin + given * nout if len(given) == 1 else given


def comparable(operands: Sequence[Any], kinds: Any) -> tuple[Sequence[Any], Any]:
    """Comparisons with a Python integer that the array's dtype does not hold are still exact."""
    for i, other in ((0, 1), (1, 0)):
        if kinds[i] is int and not isinstance(kinds[other], type) and kinds[other].kind in "iu":
            low, high = dt.int_range(dt.as_dtype(kinds[other]))
            if not low <= operands[i] <= high:
                wide = list(operands)
                wide[i] = float(operands[i])
                return wide, tuple(map(kind_of, wide))
    return operands, kinds
