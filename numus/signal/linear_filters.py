"""Recursive filters: lfilter and sosfilt, forwards or in both directions, with SciPy's states."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.evaluation.evaluate import is_known
from numus.signal import gustafsson, state_space
from numus.signal._arguments import axis_of, choice, host, positive, signal, slice_along
from numus.signal.convolution import convolve
from numus.signal.state_space import StateSpace, transposed_direct_form
from numus.tensor import Tensor

__all__ = ["filtfilt", "lfilter", "lfilter_zi", "sosfilt", "sosfilt_zi", "sosfiltfilt"]


def _coefficients(op: str, values: Any, name: str, x: Tensor | None, ndim: int) -> Any:
    """A float64 array on the host, or, where gradients flow or values are not known, a tensor in
    the signal's dtype and on its device."""
    if isinstance(values, Tensor) and (values.requires_grad or not is_known(values._node)):
        assert x is not None
        dtype = values.dtype if values.dtype.itemsize >= x.dtype.itemsize else x.dtype
        found: Any = values.astype(dtype)
    else:
        found = host(op, values, name)
        found = found.astype(complex if found.dtype.kind == "c" else float)
    if ndim == 1 and found.ndim == 0:
        found = found.reshape(1)
    if found.ndim != ndim or 0 in found.shape:
        raise ShapeError(f"signal.{op}: {name} has shape {tuple(found.shape)}; it must have "
                         f"{ndim} axes and elements")  # fmt: skip
    return found


def _shared(*values: Any) -> list[Any]:
    """All as tensors, if one is."""
    like = next((v for v in values if isinstance(v, Tensor)), None)
    if like is None:
        return list(values)
    return [
        v if isinstance(v, Tensor) else nm.asarray(v, dtype=like.dtype, device=like.device)
        for v in values
    ]


def _normalized(op: str, b: Any, a: Any, x: Tensor | None) -> tuple[Any, Any]:
    b, a = _coefficients(op, b, "b", x, 1), _coefficients(op, a, "a", x, 1)
    if isinstance(a, np.ndarray) and a[0] == 0:
        if not a.any():
            raise ValueError(f"signal.{op}: all of a is zero")
        raise ValueError(f"signal.{op}: a[0] is zero; it must not be")
    b, a = _shared(b, a)
    return b / a[0], a / a[0]


def _padded(b: Any, a: Any) -> tuple[Any, Any]:
    xp = nm if isinstance(b, Tensor) else np
    size = max(b.shape[0], a.shape[0])
    return tuple(xp.pad(c, (0, size - c.shape[0])) for c in (b, a))


def _with_complex(x: Tensor, *coefficients: Any) -> Tensor:
    """x, in a complex dtype where a coefficient is complex."""
    if any(nm.isdtype(c.dtype, "complex floating") if isinstance(c, Tensor) else c.dtype.kind == "c"
           for c in coefficients) and x.dtype.kind != "complex":  # fmt: skip
        return x.astype(nm.complex128 if x.dtype is nm.float64 else nm.complex64)
    return x


def _run(system: StateSpace, x: Tensor, at: int, z: Tensor | None) -> tuple[Tensor, Tensor]:
    """Filters along an axis; the state is along the last axis, in place of the signal's."""
    narrow = x.dtype
    wide = x.astype(nm.float32) if x.dtype.itemsize < 4 else x
    y, last = state_space.run(system, nm.moveaxis(wide, at, -1), z)
    return nm.moveaxis(y, -1, at).astype(narrow), last.astype(narrow)


def _state(op: str, zi: Any, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An initial state, broadcast to its shape."""
    z = (zi if isinstance(zi, Tensor) else nm.asarray(zi, device=x.device)).astype(x.dtype)
    if z.ndim != len(shape) or any(n not in (1, m) for n, m in zip(z.shape, shape, strict=True)):
        raise ShapeError(f"signal.{op}: zi has shape {z.shape}; for this signal it is {shape}")
    return nm.broadcast_to(z, shape)


def lfilter(b: Any, a: Any, x: Any, axis: int = -1, zi: Any = None) -> Any:
    """The signal filtered by b / a along an axis: a[0] y[n] = sum of b[k] x[n - k] minus that of
    a[k] y[n - k].

    Blocks of samples are filtered in parallel, as products of matrices. Coefficients take the
    signal's dtype and device; gradients flow to the signal, the state and to coefficients that are
    tensors with gradients.

    Args:
        zi: the state before the first sample, max(len(a), len(b)) - 1 numbers in place of the
            axis; if given, the result is (y, state after the last sample).

    >>> nm.signal.lfilter([1.0], [1.0, -0.5], nm.asarray([1.0, 0.0, 0.0])).tolist()
    [1.0, 0.5, 0.25]
    """
    op = "lfilter"
    x = signal(op, x)
    at = axis_of(op, x, axis)
    b, a = _normalized(op, b, a, x)
    x = _with_complex(x, b, a)
    order = max(b.shape[0], a.shape[0]) - 1
    shape = tuple(order if i == at else n for i, n in enumerate(x.shape))
    z = None if zi is None else nm.moveaxis(_state(op, zi, x, shape), at, -1)
    if order == 0:
        y, last = x * state_space.on(b, x), nm.moveaxis(x, at, -1)[..., :0]
    elif a.shape[0] == 1:
        y, last = _convolved(b, x, at, z)
    else:
        y, last = _run(transposed_direct_form(*_padded(b, a)), x, at, z)
    return y if zi is None else (y, nm.moveaxis(last, -1, at))


def _convolved(b: Any, x: Tensor, at: int, z: Tensor | None) -> tuple[Tensor, Tensor]:
    """A filter without poles, and what remains of it after the signal."""
    taps = state_space.on(b, x)
    rows = nm.moveaxis(x, at, -1)
    n, order = rows.shape[-1], taps.shape[0] - 1
    if not n:
        lead = rows.shape[:-1]
        rest = nm.zeros((*lead, order), dtype=x.dtype, device=x.device) if z is None else z
        return x, rest
    full = convolve(rows, taps.reshape((1,) * (rows.ndim - 1) + taps.shape))
    if z is not None:
        full = full + nm.pad(z, ((0, 0),) * (rows.ndim - 1) + ((0, n),))
    return nm.moveaxis(full[..., :n], -1, at), full[..., n:]


def _sections(op: str, sos: Any, x: Tensor | None) -> Any:
    sos = _coefficients(op, sos, "sos", x, 2)
    if sos.shape[1] != 6:
        raise ShapeError(f"signal.{op}: sos has shape {tuple(sos.shape)}; it must be (sections, 6)")
    if isinstance(sos, np.ndarray) and not np.allclose(sos[:, 3], 1):
        raise ValueError(f"signal.{op}: sos[:, 3] must be all ones")
    return sos


def _cascade(sos: Any) -> StateSpace:
    systems = [transposed_direct_form(s[:3], s[3:]) for s in sos]
    return functools.reduce(StateSpace.then, systems)


def sosfilt(sos: Any, x: Any, axis: int = -1, zi: Any = None) -> Any:
    """The signal filtered by second-order sections, one after another, along an axis.

    Args:
        sos: (sections, 6), as `butter(..., output="sos")` gives them.
        zi: the states before the first sample, (sections, *shape with 2 in place of the axis); if
            given, the result is (y, states after the last sample).

    >>> sos = nm.signal.butter(2, 0.5, output="sos")
    >>> nm.signal.sosfilt(sos, nm.asarray([1.0, 0.0, 0.0])).round(decimals=4).tolist()
    [0.2928999960422516, 0.5857999920845032, 0.2425999939441681]
    """
    op = "sosfilt"
    x = signal(op, x)
    at = axis_of(op, x, axis)
    sos = _sections(op, sos, x)
    x = _with_complex(x, sos)
    count = sos.shape[0]
    shape = (count, *(2 if i == at else n for i, n in enumerate(x.shape)))
    z = None if zi is None else _joined_states(_state(op, zi, x, shape), at)
    y, last = _run(_cascade(sos), x, at, z)
    if zi is None:
        return y
    parts = last.reshape(*last.shape[:-1], count, 2)
    return y, nm.moveaxis(nm.moveaxis(parts, -2, 0), -1, at + 1)


def _joined_states(z: Tensor, at: int) -> Tensor:
    """(sections, ..., 2, ...) as (..., 2 sections)."""
    moved = nm.moveaxis(nm.moveaxis(z, at + 1, -1), 0, -2)
    return moved.reshape(*moved.shape[:-2], -1)


def _steady_state(system: StateSpace) -> Any:
    """The state that a constant input of 1 keeps."""
    xp = system.xp
    return xp.linalg.solve(xp.eye(system.order, dtype=system.A.dtype) - system.A, system.B)[:, 0]


def lfilter_zi(b: Any, a: Any) -> Tensor:
    """The state of `lfilter` in which a constant input of 1 gives a constant output (float64).

    >>> nm.signal.lfilter_zi([1.0], [1.0, -0.5]).tolist()
    [1.0]
    """
    b, a = (_coefficients("lfilter_zi", host("lfilter_zi", c, n), n, None, 1)
            for c, n in ((b, "b"), (a, "a")))  # fmt: skip
    b, a = _padded(*_normalized("lfilter_zi", b, a, None))
    if b.shape[0] == 1:
        return nm.zeros(0, dtype=nm.float64, device="cpu")
    return nm.asarray(_steady_state(transposed_direct_form(b, a)), device="cpu")


def sosfilt_zi(sos: Any) -> Tensor:
    """The states of `sosfilt` in which a constant input of 1 gives a constant output: (sections, 2)
    in float64.

    >>> nm.signal.sosfilt_zi(nm.signal.butter(2, 0.5, output="sos")).shape
    (1, 2)
    """
    sections = _sections("sosfilt_zi", host("sosfilt_zi", sos, "sos"), None)
    return nm.asarray(_steady_state(_cascade(sections)).reshape(-1, 2), device="cpu")


def _extended(op: str, x: Tensor, at: int, padtype: str | None, edge: int) -> Tensor:
    """The signal continued at both ends: mirrored ("even"), mirrored through its end points
    ("odd"), or held ("constant")."""
    if not edge:
        return x
    n = x.shape[at]
    if n <= edge:
        raise ShapeError(f"signal.{op}: an axis of {n} samples must be longer than padlen={edge}")
    first, last = slice_along(x, at, 0, 1), slice_along(x, at, n - 1, n)
    before = nm.flip(slice_along(x, at, 1, edge + 1), axis=at)
    after = nm.flip(slice_along(x, at, n - 1 - edge, n - 1), axis=at)
    if padtype == "odd":
        before, after = 2 * first - before, 2 * last - after
    elif padtype == "constant":
        before, after = before * 0 + first, after * 0 + last
    return nm.concat([before, x, after], axis=at)


def _both_ways(
    op: str,
    x: Tensor,
    at: int,
    padtype: str | None,
    padlen: Any,
    default: int,
    zi: Tensor,
    run: Any,
) -> Tensor:
    choice(op, padtype, "padtype", "odd", "even", "constant", None)
    edge = default if padlen is None else positive(op, padlen, "padlen", 0)
    ext = _extended(op, x, at, padtype, 0 if padtype is None else edge)
    edge = 0 if padtype is None else edge
    y = ext
    for _ in range(2):  # forwards, then backwards
        y = nm.flip(run(y, zi, slice_along(y, at, 0, 1)), axis=at)
    return slice_along(y, at, edge, y.shape[at] - edge)


def filtfilt(
    b: Any,
    a: Any,
    x: Any,
    axis: int = -1,
    padtype: str | None = "odd",
    padlen: int | None = None,
    method: str = "pad",
    irlen: int | None = None,
) -> Tensor:
    """The signal filtered forwards and backwards: no phase, twice the order.

    Args:
        padtype: how the signal is continued at both ends: "odd", "even", "constant" or None.
        padlen: by how many samples; by default 3 max(len(a), len(b)).
        method: "pad", or "gust": the initial states for which the order of the directions does not
            matter (Gustafsson 1996), without padding.
        irlen: of "gust", how many samples the impulse response takes to vanish; by default all.

    >>> b, a = nm.signal.butter(1, 0.5)
    >>> nm.signal.filtfilt(b, a, nm.ones(9)).round(decimals=4)[4].item()
    1.0
    """
    op = "filtfilt"
    choice(op, method, "method", "pad", "gust")
    x = signal(op, x)
    at = axis_of(op, x, axis)
    b, a = _normalized(op, b, a, x)
    taps = max(b.shape[0], a.shape[0])
    if method == "gust":
        return _from_optimal_states(op, b, a, x, at, irlen)
    zi = _steady_state(transposed_direct_form(*_padded(b, a))) if taps > 1 else np.zeros(0)
    z = state_space.on(zi, x).reshape(tuple(taps - 1 if i == at else 1 for i in range(x.ndim)))

    def run(y: Tensor, z: Tensor, first: Tensor) -> Tensor:
        found: Tensor = lfilter(b, a, y, at, zi=z * first)[0]
        return found

    return _both_ways(op, x, at, padtype, padlen, 3 * taps, z, run)


def _from_optimal_states(op: str, b: Any, a: Any, x: Tensor, at: int, irlen: int | None) -> Tensor:
    order = max(b.shape[0], a.shape[0]) - 1
    if order == 0:
        return x * state_space.on(b, x) ** 2
    if irlen is not None:
        irlen = positive(op, irlen, "irlen")
    # known coefficients have known responses: in the highest precision there is
    like = b if isinstance(b, Tensor) else nm.asarray(b, device="cpu")

    def run(y: Tensor, z: Tensor | None) -> Tensor:
        found: Tensor = lfilter(b, a, y) if z is None else lfilter(b, a, y, zi=z)[0]
        return found

    rows = nm.moveaxis(_with_complex(x, b, a), at, -1)
    return nm.moveaxis(gustafsson.filtered(run, order, rows, irlen, like), -1, at)


def sosfiltfilt(
    sos: Any, x: Any, axis: int = -1, padtype: str | None = "odd", padlen: int | None = None
) -> Tensor:
    """The signal filtered by second-order sections forwards and backwards. See `filtfilt`.

    >>> sos = nm.signal.butter(2, 0.5, output="sos")
    >>> nm.signal.sosfiltfilt(sos, nm.ones(12)).round(decimals=4)[4].item()
    1.0
    """
    op = "sosfiltfilt"
    x = signal(op, x)
    at = axis_of(op, x, axis)
    sections = _sections(op, sos, x)
    count = sections.shape[0]
    zi = state_space.on(_steady_state(_cascade(sections)), x)
    z = zi.reshape((count, *(2 if i == at else 1 for i in range(x.ndim))))
    padding = 0
    if padlen is None:
        if isinstance(sections, Tensor) and not is_known(sections._node):
            raise ValueError(f"signal.{op}: padlen depends on the values of sos; name it")
        values = host(op, sections, "sos")
        lower = min(int((values[:, 2] == 0).sum()), int((values[:, 5] == 0).sum()))
        padding = 3 * (2 * count + 1 - lower)

    def run(y: Tensor, z: Tensor, first: Tensor) -> Tensor:
        found: Tensor = sosfilt(sections, y, at, zi=z * first[None])[0]
        return found

    return _both_ways(op, x, at, padtype, padlen, padding, z, run)
