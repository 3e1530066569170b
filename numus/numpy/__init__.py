"""NumPy's interface over numus's engine: `import numus.numpy as np`.

Names, signatures, defaults and dtype rules are NumPy 2's; arrays are numus's: lazy, fused,
compiled, on any device, and differentiable by `nm.grad`. Names are made when first asked for.

>>> import numus.numpy as np
>>> a = np.arange(6).reshape(2, 3)
>>> a / a.sum()
array([[0.        , 0.06666667, 0.13333333],
       [0.2       , 0.26666667, 0.33333333]])
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as _host

from numus.numpy._array import ndarray
from numus.numpy._iteration import flatiter

__version__ = _host.__version__
__array_api_version__ = "2024.12"

# What is NumPy's own: dtypes and scalars, constants, text, and settings.
_NUMPYS = """
    False_ True_ ScalarType base_repr binary_repr bool bool_ byte cdouble character
    clongdouble complex128 complex64 complexfloating csingle double dtype dtypes e
    errstate euler_gamma exceptions finfo flexible float16 float32 float64 floating
    format_float_positional format_float_scientific generic get_include get_printoptions getbufsize
    geterr geterrcall half iinfo index_exp inexact inf info int16 int32 int64 int8 int_ intc integer
    intp isdtype isscalar issubdtype iterable little_endian long longdouble longlong mintypecode nan
    ndindex newaxis number pi printoptions promote_types s_ sctypeDict set_printoptions setbufsize
    seterr seterrcall short show_config show_runtime signedinteger single typecodes typename typing
    ubyte uint uint16 uint32 uint64 uint8 uintc uintp ulong ulonglong unsignedinteger ushort
    broadcast_shapes object_ str_ bytes_ void datetime64 timedelta64
""".split()
_MODULES = "fft lib linalg polynomial random testing".split()


def __getattr__(name: str) -> Any:
    found = _find(name)
    globals()[name] = found
    return found


def _find(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"numus.numpy.{name}")
    if name in _NUMPYS:
        return getattr(_host, name)
    if name == "poly1d":
        return __getattr__("polynomial").poly1d
    if not name.startswith("_"):
        found = importlib.import_module("numus.numpy._functions").find(name)
        if found is not None:
            return found
        reference = getattr(_host, name, None)
        if isinstance(reference, _host.ufunc) and name not in ("isnat",):
            from numus.numpy._ufuncs import ufunc

            known = reference.__name__
            return ufunc(name) if known == name else globals().get(known) or __getattr__(known)
    raise AttributeError(f"module 'numus.numpy' has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    functions = importlib.import_module("numus.numpy._functions")
    ufuncs = [n for n in dir(_host) if isinstance(getattr(_host, n), _host.ufunc)]
    known = [*_NUMPYS, *_MODULES, *functions.names(), *ufuncs, "ndarray", "flatiter", "__version__"]
    return sorted({*known} - {"isnat"})


def __array_namespace_info__() -> Any:  # noqa: N807
    """The array API's inspection: NumPy's answers."""
    return _host.__array_namespace_info__()


__all__ = ["flatiter", "ndarray"]
