"""Mixed precision: inside `nm.autocast`, functions choose the float they compute in.

Products (matmul, einsum, convolutions, attention) take their operands in a low-precision float and
accumulate in float32. Functions that lose digits or leave the range of such floats (exponentials,
powers, sums, norms, softmax, losses) take and give float32. All others compute in the dtype they
are given. float64 stays as it is. `nm.matmul_precision` is the precision of float32 products.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from numus import dtypes as dt
from numus.errors import DTypeError
from numus.functions._base import node_of, wrap
from numus.graph import TF32, mode
from numus.primitives import elementwise as ew
from numus.tensor import Tensor

__all__ = ["autocast", "matmul_precision"]

Function = TypeVar("Function", bound=Callable[..., Any])


class _ComputeMode:
    """A context manager and decorator that sets `mode.autocast`."""

    def __init__(self, dtype: Any) -> None:
        self._mode = dtype
        self._before: list[Any] = []

    def __enter__(self) -> None:
        self._before.append(mode.autocast)
        mode.autocast = self._mode

    def __exit__(self, *_: object) -> None:
        mode.autocast = self._before.pop()

    def __call__(self, function: Function) -> Function:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with _ComputeMode(self._mode):
                return function(*args, **kwargs)

        return run  # type: ignore[return-value]


class autocast(_ComputeMode):  # noqa: N801
    """A context (or decorator) in which products are computed in a low-precision float.

    >>> x, w = nm.ones((2, 3)), nm.ones((3, 4))
    >>> with nm.autocast("bf16"):
    ...     y = x @ w
    ...     p = nm.softmax(y)
    >>> y.dtype, p.dtype
    (numus.bfloat16, numus.float32)

    Args:
        dtype: "bf16" or "f16"; float16 needs its losses scaled (`optim.GradScaler`).
        enabled: False computes in the dtypes given, also within another autocast.
    """

    def __init__(self, dtype: Any = dt.bfloat16, enabled: bool = True) -> None:
        low = dt.as_dtype(dtype) if enabled else None
        if low not in (None, dt.bfloat16, dt.float16):
            raise DTypeError(f"autocast: takes bfloat16 or float16, not {low}")
        super().__init__(low)


_PRECISIONS = {
    **dict.fromkeys(("highest", "float32"), None),
    **dict.fromkeys(("tf32", "tensorfloat32", "high"), TF32),
}


class matmul_precision(_ComputeMode):  # noqa: N801
    """A context (or decorator) that says how exact products of float32 have to be.

    "highest" (or "float32"), as products are where nothing is said, looks at every digit. "tf32"
    (or "tensorfloat32", "high") lets a device round operands to 11 bits where that is quicker:
    NVIDIA GPUs do from Ampere on, other devices compute as always. Sums are float32 either way, and
    so are results. It is for matmul, einsum, convolutions and all that is made of them; a gradient
    is as exact as the product that it is of. Inside an `autocast`, the innermost of the two holds.

    >>> x = nm.ones((2, 3))
    >>> with nm.matmul_precision("tf32"):
    ...     y = x @ x.T
    >>> y.tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """

    def __init__(self, precision: str) -> None:
        if precision not in _PRECISIONS:
            raise ValueError(
                f"matmul_precision: {precision!r} must be one of "
                f"{', '.join(map(repr, _PRECISIONS))}; for 16-bit floats see nm.autocast"
            )
        super().__init__(_PRECISIONS[precision])


def _cast(x: Any, dtype: dt.DType) -> Any:
    """A float that is neither of this dtype nor float64, in this dtype."""
    if isinstance(x, (Tensor, np.ndarray)):
        node = node_of(x, "autocast")
        if node.dtype.is_floating and node.dtype is not dtype and node.dtype is not dt.float64:
            return wrap(ew.cast(node, dtype))
    return x


def _casts(function: Function, wide: dt.DType | None) -> Function:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        low = mode.autocast
        if low is None or low is TF32:
            return function(*args, **kwargs)
        dtype = wide or low
        cast_kwargs = {k: x if k == "out" else _cast(x, dtype) for k, x in kwargs.items()}
        return function(*(_cast(x, dtype) for x in args), **cast_kwargs)

    return run  # type: ignore[return-value]


def lowers(function: Function) -> Function:
    """Let a function take its operands in the low-precision float of the enclosing autocast."""
    return _casts(function, None)


def widens(function: Function) -> Function:
    """Let a function take and return float32 instead of low-precision floats in an autocast."""
    return _casts(function, dt.float32)
