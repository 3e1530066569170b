"""Peaks of a signal, with SciPy's conditions and properties.

How many there are depends on values: the signal is evaluated, and searched on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import numus as nm
from numus.errors import DTypeError, ShapeError
from numus.signal._arguments import Array, host
from numus.tensor import Tensor

__all__ = ["find_peaks"]

_CHUNK = 64  # samples that a search for a higher one begins with


def _plateaus(x: Array) -> tuple[Array, Array, Array]:
    """Middles and edges of runs of equal samples between lower ones."""
    starts = np.concatenate([[0], np.flatnonzero(x[1:] != x[:-1]) + 1])
    ends = np.concatenate([starts[1:] - 1, [len(x) - 1]])
    values = x[starts]
    higher = (values[1:-1] > values[:-2]) & (values[1:-1] > values[2:])
    left, right = starts[1:-1][higher], ends[1:-1][higher]
    return (left + right) // 2, left, right


def _interval(op: str, name: str, bounds: Any, size: int, peaks: Array) -> tuple[Any, Any]:
    """The least and the greatest value, or arrays of them at the peaks."""
    pair = bounds if isinstance(bounds, (tuple, list)) and len(bounds) == 2 else (bounds, None)
    found = []
    for bound in pair:
        if isinstance(bound, Tensor):
            bound = bound.numpy()
        if isinstance(bound, np.ndarray) and bound.ndim:
            if bound.size != size:
                raise ShapeError(f"signal.{op}: {name} has {bound.size} bounds for {size} samples")
            bound = bound[peaks]
        found.append(bound)
    return found[0], found[1]


def _within(values: Array, low: Any, high: Any) -> Array:
    keep = np.ones(values.size, bool)
    if low is not None:
        keep &= low <= values
    if high is not None:
        keep &= values <= high
    return keep


def _far_enough(peaks: Array, heights: Array, distance: int) -> Array:
    """From the highest peak down, the lower ones nearer than the distance are dropped."""
    keep = np.ones(peaks.size, bool)
    for i in np.argsort(heights)[::-1]:
        if keep[i]:
            low, high = np.searchsorted(peaks, (peaks[i] - distance + 1, peaks[i] + distance))
            keep[low:high] = False
            keep[i] = True
    return keep


def _until(ok: Callable[[int, int], Array], most: int) -> int:
    """How many of at most `most` steps hold, looked at in chunks of growing size."""
    start, size = 0, _CHUNK
    while start < most:
        found = ok(start, min(start + size, most))
        if not found.all():
            return start + int(np.argmin(found))
        start, size = min(start + size, most), 2 * size
    return most


def _base(x: Array, peak: int, step: int, most: int) -> int:
    """The lowest sample (the nearest of equals) before a higher one on a side of a peak."""
    side = x[peak::step][: most + 1]
    count = _until(lambda a, b: side[a:b] <= x[peak], len(side))
    return peak + step * int(np.argmin(side[:count]))


def _prominences(x: Array, peaks: Array, wlen: Any) -> dict[str, Array]:
    half = len(x) if wlen is None else math.ceil(wlen) // 2
    left = np.array([_base(x, p, -1, min(p, half)) for p in peaks], np.int64)
    right = np.array([_base(x, p, 1, min(len(x) - 1 - p, half)) for p in peaks], np.int64)
    tops = x[peaks] - np.maximum(x[left], x[right]) if peaks.size else np.zeros(0)
    return {"prominences": tops, "left_bases": left, "right_bases": right}


def _crossing(x: Array, peak: int, base: int, height: float, step: int) -> float:
    """Where the signal falls to a height on a side of a peak, between samples."""
    most = abs(peak - base)
    side = x[peak::step][: most + 1]
    count = min(_until(lambda a, b: side[a:b] > height, len(side)), most)
    at = peak + step * count
    if x[at] < height:
        return at - step * (height - x[at]) / (x[at - step] - x[at])
    return float(at)


def _widths(x: Array, peaks: Array, rel_height: float, found: dict[str, Array]) -> dict[str, Array]:
    if rel_height < 0:
        raise ValueError(f"signal.find_peaks: rel_height is {rel_height}; it must be at least 0")
    heights = x[peaks] - found["prominences"] * rel_height
    sides = []
    for name, step in (("left_bases", -1), ("right_bases", 1)):
        rows = zip(peaks, found[name], heights, strict=True)
        sides.append(np.array([_crossing(x, p, b, h, step) for p, b, h in rows], float))
    return {
        "widths": sides[1] - sides[0],
        "width_heights": heights,
        "left_ips": sides[0],
        "right_ips": sides[1],
    }


def find_peaks(
    x: Any,
    height: Any = None,
    threshold: Any = None,
    distance: float | None = None,
    prominence: Any = None,
    width: Any = None,
    wlen: int | None = None,
    rel_height: float = 0.5,
    plateau_size: Any = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Local maxima of a vector that meet conditions, and the properties they were asked for.

    Conditions are a least value, a pair (least, greatest), or arrays of them, one per sample.

    Args:
        height: of the peak.
        threshold: its height above both neighbours.
        distance: least samples between peaks; lower ones are dropped.
        prominence: height above the higher of the lowest samples before a higher peak on each side.
        width: in samples, at `rel_height` of the prominence; `wlen` limits how far both look.
        plateau_size: samples of a flat top.

    >>> peaks, found = nm.signal.find_peaks([0.0, 2.0, 0.0, 1.0, 0.0, 3.0, 0.0], height=1.5)
    >>> peaks.tolist(), found["peak_heights"].tolist()
    ([1, 5], [2.0, 3.0])
    """
    op = "find_peaks"
    values = host(op, x, "x")
    if values.dtype.kind == "c":
        raise DTypeError(f"signal.{op}: complex numbers have no peaks")
    values = values.astype(np.float64)
    if values.ndim != 1:
        raise ShapeError(f"signal.{op}: x has shape {values.shape}; it must be a vector")
    if distance is not None and distance < 1:
        raise ValueError(f"signal.{op}: distance is {distance}; it must be at least 1")
    if wlen is not None and wlen <= 1:
        raise ValueError(f"signal.{op}: wlen is {wlen}; it must be above 1")
    peaks, left, right = _plateaus(values) if values.size > 2 else (np.zeros(0, np.int64),) * 3
    found: dict[str, Array] = {}

    def keep(mask: Array) -> None:
        nonlocal peaks, found
        peaks, found = peaks[mask], {name: each[mask] for name, each in found.items()}

    def select(name: str, bounds: Any) -> None:
        keep(_within(found[name], *_interval(op, name, bounds, values.size, peaks)))

    if plateau_size is not None:
        found = {"plateau_sizes": right - left + 1, "left_edges": left, "right_edges": right}
        select("plateau_sizes", plateau_size)
    if height is not None:
        found["peak_heights"] = values[peaks]
        select("peak_heights", height)
    if threshold is not None:
        found["left_thresholds"] = values[peaks] - values[peaks - 1]
        found["right_thresholds"] = values[peaks] - values[peaks + 1]
        low, high = _interval(op, "threshold", threshold, values.size, peaks)
        sides = np.stack([found["left_thresholds"], found["right_thresholds"]])
        keep(_within(sides.min(axis=0), low, None) & _within(sides.max(axis=0), None, high))
    if distance is not None:
        keep(_far_enough(peaks, values[peaks], math.ceil(distance)))
    if prominence is not None or width is not None:
        found |= _prominences(values, peaks, wlen)
        if prominence is not None:
            select("prominences", prominence)
    if width is not None:
        found |= _widths(values, peaks, rel_height, found)
        select("widths", width)
    device = x.device if isinstance(x, Tensor) else None

    def made(each: Array) -> Tensor:
        whole = each.dtype.kind == "i"
        dtype = nm.int64 if whole else getattr(x, "dtype", nm.float64)
        if not whole and (not isinstance(x, Tensor) or x.dtype.kind != "float"):
            dtype = nm.float32
        return nm.asarray(np.ascontiguousarray(each), dtype=dtype, device=device)

    return made(peaks.astype(np.int64)), {name: made(each) for name, each in found.items()}
