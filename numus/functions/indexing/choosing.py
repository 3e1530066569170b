"""Elements chosen by conditions: choose, select, piecewise, compress, extract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions import api as nm
from numus.functions._base import method, operand
from numus.functions.indexing.index_checks import host_values
from numus.functions.spelling import spelled
from numus.shapes import normal_axis
from numus.tensor import ArrayLike, Tensor
from numus.transforms.vmap import vmap

__all__ = [
    "apply_along_axis", "apply_over_axes", "choose", "compress", "extract", "frompyfunc",
    "piecewise", "select", "vectorize",
]  # fmt: skip


def choose(x: ArrayLike, choices: Sequence[Any], /, *, mode: str = "raise") -> Tensor:
    """Element by element, that of the choice whose number x says.

    Args:
        mode: "wrap" takes numbers modulo the number of choices, "clip" moves them to the first or
            last one; "raise" refuses those that are not there, where they are known already.

    >>> nm.choose(nm.asarray([1, 0]), [nm.asarray([10, 20]), nm.asarray([30, 40])]).tolist()
    [30, 20]
    """
    op = "choose"
    which = operand(op, x)
    parts = [nm.asarray(c) for c in choices]
    if not parts or not (which.dtype.is_integer or which.dtype is dt.bool_):
        raise TypeError(f"{op}: takes integers and at least one choice, not {which.dtype.name}")
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(f'{op}: mode must be "raise", "wrap" or "clip", not {mode!r}')
    known = host_values(which._node) if mode == "raise" else None
    which = nm.astype(which, dt.int64)
    n = len(parts)
    if known is not None and known.size and not 0 <= known.min() <= known.max() < n:
        raise ValueError(f"{op}: a number is out of range for {n} choices: invalid entry")
    which = nm.remainder(which, n) if mode == "wrap" else nm.clip(which, 0, n - 1)
    out = parts[-1]
    for number in range(n - 1):
        out = nm.where(which == number, parts[number], out)
    return nm.broadcast_arrays(out, which)[0]


method("choose")(choose)


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Tensor:
    """Element by element, that of the choice whose condition is the first to hold.

    >>> x = nm.arange(4)
    >>> nm.select([x < 1, x > 2], [x, x * 10], 7).tolist()
    [0, 7, 7, 30]
    """
    if len(condlist) != len(choicelist) or not condlist:
        raise ValueError(
            f"select: needs as many conditions as choices, at least one, not {len(condlist)} and "
            f"{len(choicelist)}"
        )
    out: Any = default
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        if operand("select", condition).dtype is not dt.bool_:
            raise TypeError("select: conditions are boolean arrays; compare with x != 0")
        out = nm.where(condition, choice, out)
    return nm.asarray(out)


def piecewise(
    x: ArrayLike, /, condlist: Any, funclist: Sequence[Any], *args: Any, **kwargs: Any
) -> Tensor:
    """A function defined in pieces: where a condition holds (the last of several), its piece.

    Args:
        funclist: numbers, or functions of x, `args` and `kwargs`; one more than there are
            conditions is for where none holds (0, if there is none). Each is applied to all of
            x, so that no shape depends on values.

    >>> x = nm.asarray([-2.0, 3.0])
    >>> nm.piecewise(x, [x < 0, x >= 0], [lambda v: -v, 1.0]).tolist()
    [2.0, 1.0]
    """
    given = operand("piecewise", x)
    conditions = list(condlist) if isinstance(condlist, (list, tuple)) else [condlist]
    if len(funclist) not in (len(conditions), len(conditions) + 1):
        raise ValueError(
            f"piecewise: {len(conditions)} conditions take {len(conditions)} functions or one "
            f"more, not {len(funclist)}"
        )

    def piece(f: Any) -> Tensor:
        found = f(given, *args, **kwargs) if callable(f) else f
        return nm.astype(nm.asarray(found, device=given.device), given.dtype)

    out = piece(funclist[-1]) if len(funclist) > len(conditions) else nm.zeros_like(given)
    for condition, f in zip(conditions, funclist, strict=False):
        out = nm.where(nm.astype(nm.asarray(condition), dt.bool_), piece(f), out)
    return nm.broadcast_arrays(out, given)[0]


@method("compress")
def _compress_method(x: Tensor, condition: Any, axis: int | None = None) -> Tensor:
    """The parts along an axis for which a condition holds. Evaluates the condition."""
    return compress(condition, x, axis)


@spelled
def compress(condition: Any, x: ArrayLike, /, axis: int | None = None) -> Tensor:
    """The parts along an axis (None: of x flattened) for which a condition holds. Evaluates the
    condition, which may be shorter than the axis.

    >>> nm.compress([False, True], nm.asarray([[1, 2], [3, 4]]), axis=0).tolist()
    [[3, 4]]
    """
    given = operand("compress", x)
    given = nm.reshape(given, -1) if axis is None else given
    at = normal_axis(0 if axis is None else axis, given.ndim, "compress")
    hit = nm.asarray(condition, device=given.device)
    if hit.ndim != 1:
        raise ShapeError(f"compress: the condition is a vector, not an array of {hit.shape}")
    return nm.take(given, nm.flatnonzero(hit), axis=at)


def extract(condition: Any, x: ArrayLike, /) -> Tensor:
    """The elements for which a condition holds, in row-major order. Evaluates the condition.

    >>> nm.extract(nm.arange(5) % 2 == 0, nm.arange(5)).tolist()
    [0, 2, 4]
    """
    return compress(nm.reshape(nm.asarray(condition), -1), x)


def apply_along_axis(
    func1d: Callable[..., Any], axis: int, x: ArrayLike, *args: Any, **kwargs: Any
) -> Tensor:
    """A function of vectors applied to every line of x along an axis, all at once by `vmap`.

    >>> nm.apply_along_axis(lambda v: v[::-1], 1, nm.asarray([[1, 2], [3, 4]])).tolist()
    [[2, 1], [4, 3]]
    """
    given = operand("apply_along_axis", x)
    at = normal_axis(axis, given.ndim, "apply_along_axis")
    lines = nm.moveaxis(given, at, -1)
    lead = lines.shape[:-1]
    flat = nm.reshape(lines, (-1, given.shape[at]))
    out = vmap(lambda line: nm.asarray(func1d(line, *args, **kwargs)))(flat)
    out = nm.reshape(out, lead + out.shape[1:])
    new = out.ndim - len(lead)
    source = tuple(range(len(lead), out.ndim))
    return nm.moveaxis(out, source, tuple(at + i for i in range(new))) if new else out


def apply_over_axes(func: Callable[..., Any], x: ArrayLike, axes: Any) -> Tensor:
    """func(x, axis) for one axis after the other; axes that it reduces stay with extent 1.

    >>> nm.apply_over_axes(nm.sum, nm.ones((2, 3, 4)), [0, 2]).shape
    (1, 3, 1)
    """
    out = operand("apply_over_axes", x)
    for axis in axes if isinstance(axes, (list, tuple)) else [axes]:
        at = normal_axis(axis, out.ndim, "apply_over_axes")
        found = nm.asarray(func(out, at))
        if found.ndim not in (out.ndim, out.ndim - 1):
            raise ShapeError("apply_over_axes: the function must reduce one axis or none")
        out = found if found.ndim == out.ndim else nm.expand_dims(found, at)
    return out


class vectorize:  # noqa: N801
    """A function of numbers as a function of arrays, which broadcast; by `vmap`, not by a loop.

    Args:
        pyfunc: a function made of numus's functions; it gets tensors without axes.
        signature: NumPy's core dimensions, as in "(n),(n)->()", for a function of arrays.
        excluded: positions or names of arguments that are passed as they are.

    >>> f = nm.vectorize(lambda a, b: nm.where(a > b, a - b, a + b))
    >>> f(nm.asarray([1, 2, 3, 4]), 2).tolist()
    [3, 4, 1, 2]
    """

    def __init__(
        self,
        pyfunc: Callable[..., Any],
        otypes: Any = None,
        doc: str | None = None,
        excluded: Any = None,
        cache: bool = False,
        signature: str | None = None,
    ) -> None:
        self.pyfunc = pyfunc
        self.excluded = frozenset(excluded or ())
        self.signature = signature
        self._cores = _core_dimensions(signature)
        self.__doc__ = pyfunc.__doc__ if doc is None else doc

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function of all elements."""
        mapped = [i for i in range(len(args)) if i not in self.excluded]
        names = [k for k in kwargs if k not in self.excluded]
        arrays = [nm.asarray(args[i]) for i in mapped] + [nm.asarray(kwargs[k]) for k in names]
        cores = self._cores or [0] * len(arrays)
        if len(cores) != len(arrays):
            raise TypeError(f"vectorize: {self.signature} takes {len(cores)} arrays")
        tails = [x.shape[x.ndim - c :] for x, c in zip(arrays, cores, strict=True)]
        leads = [nm.zeros(x.shape[: x.ndim - c]) for x, c in zip(arrays, cores, strict=True)]
        shape = nm.broadcast_arrays(*leads)[0].shape if leads else ()
        flat = [
            nm.reshape(nm.broadcast_to(x, shape + tail), (-1, *tail))
            for x, tail in zip(arrays, tails, strict=True)
        ]

        def one(*xs: Any) -> Any:
            given, named = list(args), dict(kwargs)
            for i, value in zip(mapped, xs, strict=False):
                given[i] = value
            named.update(zip(names, xs[len(mapped) :], strict=True))
            found = self.pyfunc(*given, **named)
            return tuple(map(nm.asarray, found)) if isinstance(found, tuple) else nm.asarray(found)

        out = vmap(one)(*flat)
        if isinstance(out, tuple):
            return tuple(nm.reshape(y, shape + y.shape[1:]) for y in out)
        return nm.reshape(out, shape + out.shape[1:])


def _core_dimensions(signature: str | None) -> list[int] | None:
    """The number of core dimensions of each input."""
    if signature is None:
        return None
    inputs, arrow, _ = signature.replace(" ", "").partition("->")
    if not arrow or not inputs.startswith("(") or not inputs.endswith(")"):
        raise ValueError(f'vectorize: {signature!r} is no signature; one is "(n),(n)->()"')
    return [len([n for n in part.split(",") if n]) for part in inputs[1:-1].split("),(")]


def frompyfunc(func: Callable[..., Any], /, nin: int, nout: int) -> vectorize:
    """A function of numbers as a function of arrays: `vectorize`."""
    return vectorize(func)
