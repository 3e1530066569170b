"""Cosine and sine transforms: SciPy's names, arguments and normalisations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.fft.functions import LastAxis, Norm, check_norm, points
from numus.fft.multidimensional import Numbers, sizes_and_axes
from numus.fft.transform import real_input, resized, scaled
from numus.fft.trigonometric import COSINE, SINE
from numus.functions._base import computed, node_of
from numus.functions.spelling import spelled
from numus.functions.template_cache import templated
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.source import constant, iota
from numus.shapes import as_int
from numus.tensor import ArrayLike, Tensor

_INVERSE_TYPE = {1: 1, 2: 3, 3: 2, 4: 4}


def _check_type(op: str, kind: Any) -> int:
    found = as_int(kind, "type", f"fft.{op}")
    if found not in _INVERSE_TYPE:
        raise ValueError(f"fft.{op}: type is {found}; it must be 1, 2, 3 or 4")
    return found


def _at_ends(x: Node, first: bool, last: bool, factor: float) -> Node:
    """x with its first and last elements scaled, where asked for."""
    k = iota(x.shape[-1], dt.int64, x.device)
    ends = [at for at, wanted in ((0, first), (x.shape[-1] - 1, last)) if wanted]
    if not ends:
        return x
    here = ew.eq(k, constant(ends[0], dt.int64))
    for at in ends[1:]:
        here = ew.or_(here, ew.eq(k, constant(at, dt.int64)))
    return ew.where(here, scaled(x, factor), x)


class _Family:
    """The cosine or the sine transforms."""

    def __init__(self, transforms: dict[int, Callable[[Node], Node]], sine: bool) -> None:
        self.transforms = transforms
        self.sine = sine

    def period(self, op: str, kind: int, n: int) -> int:
        """The transform and its inverse multiply to this."""
        if kind > 1:
            return 2 * n
        if not self.sine and n < 2:
            raise ShapeError(f"fft.{op}: {n} points; a cosine transform of type 1 has at least 2")
        return 2 * (n + 1 if self.sine else n - 1)

    def along(
        self, op: str, x: Node, kind: int, n: Any, axis: int, norm: Norm, ortho: bool, inverse: bool
    ) -> Node:
        last = LastAxis(op, x, axis)
        count = points(op, n, last.x.shape[-1])
        period = self.period(op, kind, count)
        kind = _INVERSE_TYPE[kind] if inverse else kind
        x = resized(last.x, count)
        if ortho and kind in (1, 3) and not (self.sine and kind == 1):
            x = _at_ends(x, not self.sine, self.sine or kind == 1, math.sqrt(2))
        y = x if 0 in x.shape else self.transforms[kind](x)
        if ortho and kind in (1, 2) and not (self.sine and kind == 1):
            y = _at_ends(y, not self.sine, self.sine or kind == 1, math.sqrt(0.5))
        if norm == "ortho":
            y = scaled(y, 1 / math.sqrt(period))
        elif (norm == "forward") != inverse:
            y = scaled(y, 1 / period)
        return last.back(y)

    def one_axis(
        self, op: str, a: ArrayLike, kind: Any, n: Any, axis: int, norm: Norm, ortho: bool | None
    ) -> Tensor:
        kind, orthogonal = _check_type(op, kind), _orthogonal(op, norm, ortho)
        inverse = op.startswith("i")
        return computed(
            _by_parts(
                node_of(a, f"fft.{op}"),
                lambda x: self.along(op, x, kind, n, axis, norm, orthogonal, inverse),
            )
        )

    def several_axes(
        self, op: str, a: ArrayLike, kind: Any, s: Any, axes: Any, norm: Norm, ortho: bool | None
    ) -> Tensor:
        kind, orthogonal = _check_type(op, kind), _orthogonal(op, norm, ortho)
        inverse = op.startswith("i")

        def whole(x: Node) -> Node:
            sizes, where = sizes_and_axes(op, x, _listed(s), _listed(axes))
            for n, axis in zip(sizes, where, strict=True):
                x = self.along(op, x, kind, n, axis, norm, orthogonal, inverse)
            return x

        return computed(_by_parts(node_of(a, f"fft.{op}"), whole))


def _listed(numbers: Any) -> Any:
    return [numbers] if isinstance(numbers, int) else numbers


def _orthogonal(op: str, norm: Norm, ortho: bool | None) -> bool:
    check_norm(op, norm)
    return norm == "ortho" if ortho is None else bool(ortho)


def _by_parts(x: Node, function: Callable[[Node], Node]) -> Node:
    """A real linear function of real numbers, or of both parts of complex ones."""
    if not x.dtype.is_complex:
        return function(real_input(x))
    return ew.complex_(function(ew.real(x)), function(ew.imag(x)))


_cosine, _sine = _Family(COSINE, False), _Family(SINE, True)


@templated
@spelled
def dct(
    x: ArrayLike,
    /,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: Norm = None,
    *,
    orthogonalize: bool | None = None,
) -> Tensor:
    """The discrete cosine transform along an axis: of type 2, element k is twice the sum over j of
    x_j cos(pi k (2 j + 1) / 2n). Real transforms of the same length compute types 2 to 4.

    Args:
        type: 1, 2, 3 or 4, as SciPy numbers them.
        norm: where the factor 1 / 2n goes: to `idct` ("backward", the default), here ("forward"),
            or its square root to both ("ortho").
        orthogonalize: scale the elements at the ends so that an "ortho" transform is an orthogonal
            matrix; by default with that norm alone.

    >>> nm.fft.dct(nm.asarray([1.0, 3.0])).round(decimals=3).tolist()
    [8.0, -2.828000068664551]
    """
    return _cosine.one_axis("dct", x, type, n, axis, norm, orthogonalize)


@templated
@spelled
def idct(
    x: ArrayLike,
    /,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: Norm = None,
    *,
    orthogonalize: bool | None = None,
) -> Tensor:
    """The inverse of `dct` of the same type.

    >>> nm.fft.idct(nm.asarray([8.0, 0.0, 0.0, 0.0])).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    return _cosine.one_axis("idct", x, type, n, axis, norm, orthogonalize)


@templated
@spelled
def dst(
    x: ArrayLike,
    /,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: Norm = None,
    *,
    orthogonalize: bool | None = None,
) -> Tensor:
    """The discrete sine transform along an axis: of type 2, element k is twice the sum over j of
    x_j sin(pi (k + 1) (2 j + 1) / 2n). See `dct` for the arguments.

    >>> nm.fft.dst(nm.asarray([3.0, -1.0])).round(decimals=3).tolist()
    [2.828000068664551, 8.0]
    """
    return _sine.one_axis("dst", x, type, n, axis, norm, orthogonalize)


@templated
@spelled
def idst(
    x: ArrayLike,
    /,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: Norm = None,
    *,
    orthogonalize: bool | None = None,
) -> Tensor:
    """The inverse of `dst` of the same type.

    >>> nm.fft.idst(nm.asarray([0.0, 0.0, 0.0, 8.0])).tolist()
    [1.0, -1.0, 1.0, -1.0]
    """
    return _sine.one_axis("idst", x, type, n, axis, norm, orthogonalize)


@templated
@spelled
def dctn(
    x: ArrayLike,
    /,
    type: int = 2,
    s: Numbers = None,
    axes: Numbers = None,
    norm: Norm = None,
    *,
    orthogonalize: bool | None = None,
) -> Tensor:
    """The cosine transform along several axes, by default all; `s` has a length for each.

    >>> nm.fft.dctn(nm.ones((2, 2))).tolist()
    [[16.0, 0.0], [0.0, 0.0]]
    """
    return _cosine.several_axes("dctn", x, type, s, axes, norm, orthogonalize)


@templated
@spelled
def idctn(
    x: ArrayLike,
    /,
    type: int = 2,
    s: Numbers = None,
    axes: Numbers = None,
    norm: Norm = None,
    *,
    orthogonalize: bool | None = None,
) -> Tensor:
    """The inverse of `dctn`.

    >>> nm.fft.idctn(nm.fft.dctn(nm.ones((2, 2)))).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return _cosine.several_axes("idctn", x, type, s, axes, norm, orthogonalize)


@templated
@spelled
def dstn(
    x: ArrayLike,
    /,
    type: int = 2,
    s: Numbers = None,
    axes: Numbers = None,
    norm: Norm = None,
    *,
    orthogonalize: bool | None = None,
) -> Tensor:
    """The sine transform along several axes, by default all; `s` has a length for each.

    >>> nm.fft.dstn(nm.ones((2, 3)), axes=(1,)).shape
    (2, 3)
    """
    return _sine.several_axes("dstn", x, type, s, axes, norm, orthogonalize)


@templated
@spelled
def idstn(
    x: ArrayLike,
    /,
    type: int = 2,
    s: Numbers = None,
    axes: Numbers = None,
    norm: Norm = None,
    *,
    orthogonalize: bool | None = None,
) -> Tensor:
    """The inverse of `dstn`.

    >>> nm.fft.idstn(nm.fft.dstn(nm.ones((2, 2)), type=1), type=1).round(decimals=5).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return _sine.several_axes("idstn", x, type, s, axes, norm, orthogonalize)
