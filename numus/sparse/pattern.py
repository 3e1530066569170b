"""Compressed patterns: where the entries of a sparse matrix are, row by row (CSR without values).

A pattern is made on the host (a product's where its factors are used) and never changes, so what
follows from it (its transpose, the row of each entry, copies on devices) is found once and kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import numus as nm
from numus import dtypes as dt
from numus.errors import ShapeError
from numus.evaluation.evaluate import elements
from numus.graph import Node, grad_mode
from numus.primitives import sparse as primitives
from numus.primitives.elementwise import cast
from numus.primitives.indexing import gather
from numus.runtime.devices import Device, device
from numus.shapes import Shape
from numus.sparse.algorithms.column_blocks import column_blocks
from numus.sparse.algorithms.row_runs import row_runs
from numus.sparse.algorithms.row_templates import row_templates
from numus.tensor import Tensor

Array = np.ndarray[Any, Any]

_INT32_END = 2**31 - 1
_MIN_SEARCHED_ENTRIES = 1 << 12  # of patterns that are searched for runs and templates
_EVEN_ENTRIES = 64  # of a row, at most, where rows are even; and then
_EVEN_RATIO = 2  # no row is longer than so many average ones
_PRODUCTS_BEFORE_BLOCKS = 3  # whose time the search for blocks takes
_PARALLEL_PICKS = 1 << 16  # elements from which a kernel is faster than NumPy's loop


def index_dtype(*sizes: int) -> np.dtype[Any]:
    """The narrowest dtype of indices that counts up to these: half the bytes for most matrices."""
    return np.dtype(np.int32 if max(sizes, default=0) < _INT32_END else np.int64)


def frozen(array: Array) -> Array:
    """A view that nobody writes through."""
    view = array.view()
    view.flags.writeable = False
    return view


class OnDevices:
    """An array of the host, or of a device (a node that is evaluated), and its copies elsewhere,
    each made when it is first asked for."""

    __slots__ = ("_array", "_copies", "is_of_host", "patterns", "rules", "size")

    def __init__(self, given: Array | Node) -> None:
        self._copies: dict[Any, Node] = {}
        self._array: Array | None = None
        self.is_of_host = not isinstance(given, Node)
        if isinstance(given, Node):
            self.size = given.shape[0]
            self._copies[given.device] = given
        else:
            self._array = frozen(np.ascontiguousarray(given))
            self.size = int(self._array.size)
        self.patterns: dict[int, Pattern] = {}  # that select this order, by the number of entries
        self.rules: dict[Shape, Any] = {}  # of derivatives, by the shape of what is selected from

    @property
    def array(self) -> Array:
        if self._array is None:
            (node,) = self._copies.values()
            self._array = computed(node)
        return self._array

    def on(self, dev: Device | None) -> Node:
        """The array on a device; on the CPU it is the same memory."""
        dev = dev or device(nm.default_device())
        found = self._copies.get(dev)
        if found is None:
            array = self.array
            share = False if hasattr(dev.runtime, "wrap") and array.flags.aligned else None
            with grad_mode(False):
                tensor = nm.asarray(array, device=dev, copy=share)
            found = self._copies[dev] = tensor._node
        return found


def on_cpu(array: Array) -> Node:
    return OnDevices(array).on(device("cpu"))


def computed(node: Node) -> Array:
    """The value of a node as a host array. Patterns are constants in a trace too: nothing that is
    traced is among what it is computed from."""
    return frozen(elements(node))


def repeated_ranges(starts: Array, counts: Array) -> Array:
    """start, start + 1, … of each start, `count` of them, one after the other."""
    total = int(counts.sum())
    before = np.cumsum(counts) - counts
    return np.arange(total) + np.repeat(starts - before, counts)


class Pattern:
    """The entries of a matrix by rows: pointers (rows + 1) and the column of each entry."""

    def __init__(
        self, shape: tuple[int, int], pointers: Array | Node, indices: Array | Node
    ) -> None:
        self.shape = shape
        self.pointers, self.indices = OnDevices(pointers), OnDevices(indices)
        self._products = 0  # with a vector, on CPUs

    @property
    def nnz(self) -> int:
        return self.indices.size

    def arrays(self, dev: Device | None) -> tuple[Node, Node]:
        return self.pointers.on(dev), self.indices.on(dev)

    @functools.cached_property
    def counts(self) -> Array:
        """Entries of each row."""
        return np.diff(self.pointers.array)

    @functools.cached_property
    def longest(self) -> int:
        """Entries of the longest row."""
        return int(self.counts.max(initial=0))

    @functools.cached_property
    def rows(self) -> OnDevices:
        """The row of each entry."""
        dtype = self.indices.array.dtype
        return OnDevices(np.repeat(np.arange(self.shape[0], dtype=dtype), self.counts))

    @functools.cached_property
    def runs(self) -> tuple[OnDevices, ...]:
        """Runs of rows whose columns move with the row, for products on CPUs; empty where there are
        few. About as much work as two or three products, and a glance where there are none."""
        pointers, indices = self.pointers.array, self.indices.array
        if self.nnz < _MIN_SEARCHED_ENTRIES or indices.dtype != np.int32:
            return ()
        found = row_runs(pointers.astype(np.int32, copy=False), indices)
        if found is None:
            return ()
        return tuple(map(OnDevices, (found.tasks, found.first, found.template, found.offsets)))

    @functools.cached_property
    def blocks(self) -> tuple[OnDevices, ...]:
        """Blocks of columns, for products on CPUs; empty where a vector is not read in random
        order. About as much work as two or three products, and a glance where there are none."""
        pointers, indices = self.pointers.array, self.indices.array
        if indices.dtype != np.int32:
            return ()
        target = device("cpu").runtime.target
        found = column_blocks(self.shape[1], pointers.astype(np.int32, copy=False), indices, target)
        if found is None:
            return ()
        return tuple(map(OnDevices, (found.panels, found.starts, found.offsets, found.places)))

    @functools.cached_property
    def templates(self) -> tuple[OnDevices, ...]:
        """Templates of rows and their offsets, for products on GPUs; empty where there are few, and
        where a device made the pattern. A pass over the indices, and a glance where there are
        none."""
        is_of_host = self.pointers.is_of_host and self.indices.is_of_host
        if self.nnz < _MIN_SEARCHED_ENTRIES or not is_of_host:
            return ()
        pointers, indices = self.pointers.array, self.indices.array
        if indices.dtype != np.int32:
            return ()
        found = row_templates(self.shape[1], pointers.astype(np.int32, copy=False), indices)
        return () if found is None else tuple(map(OnDevices, found))

    @functools.cached_property
    def is_even(self) -> bool:
        """Rows are short, and about as long as each other; not known of a device's pattern."""
        if not self.pointers.is_of_host or not self.nnz:
            return False
        even = _EVEN_RATIO * -(-self.nnz // self.shape[0])
        return self.longest <= min(even, _EVEN_ENTRIES)

    def known_rows(self, dev: Device, is_known: bool = True) -> tuple[str | None, list[Node]]:
        """What a product with one column on a device is told of the rows, and the arrays of it.
        Blocks are for products that come again: those of operands that are not known, as in
        programs and loops, and those after a few others."""
        is_gpu = dev.runtime.target.simt
        arrays = self.templates if is_gpu else self.runs
        if arrays:
            return "templates" if is_gpu else "runs", [a.on(dev) for a in arrays]
        if is_gpu:
            return "even" if self.is_even else None, []
        self._products += 1
        again = not is_known or self._products > _PRODUCTS_BEFORE_BLOCKS
        if again and self.blocks:
            return "blocks", [a.on(dev) for a in self.blocks]
        return None, []

    @functools.cached_property
    def transposed(self) -> tuple[Pattern, OnDevices]:
        """The pattern by columns, and the entry that each of its entries is."""
        swapped, order = _transposed(self)
        known = self.__dict__.get("swapped")
        return (swapped, OnDevices(order)) if known is None else (known, OnDevices(order.copy()))

    @functools.cached_property
    def swapped(self) -> Pattern:
        """The pattern by columns alone, for values that are one number: a third of the memory of
        `transposed` less."""
        if "transposed" in self.__dict__:
            return self.transposed[0]
        found, _ = _transposed(self)
        own = Pattern(found.shape, found.pointers.array.copy(), found.indices.array.copy())
        if found.__dict__.get("is_canonical"):
            own.__dict__["is_canonical"] = True
        return own

    @functools.cached_property
    def is_canonical(self) -> bool:
        """Columns ascend in every row: none of them is twice in one."""
        return bool(self._new(np.greater).all())

    def _new(self, compare: Callable[[Array, Array], Array]) -> Array:
        """For each entry whether it starts a row, or compares so with the one before."""
        new = np.ones(self.nnz, bool)
        columns, starts = self.indices.array, self.pointers.array[:-1]
        new[1:] = compare(columns[1:], columns[:-1])
        new[starts[starts < self.nnz]] = True
        return new

    @functools.cached_property
    def canonical(self) -> tuple[Pattern, Pattern]:
        """The pattern with columns sorted and duplicates merged, and which entries each of its
        entries adds up: a pattern itself, of rows (entries of the new) × entries of the old."""
        by_column, first = _transposed(self)
        ordered, second = _transposed(by_column)
        order = picked(first, second)
        new = ordered._new(np.not_equal)
        before = np.zeros(self.nnz + 1, order.dtype)
        np.cumsum(new, out=before[1:])
        merged = ordered
        if before[-1] != self.nnz:
            pointers = before[ordered.pointers.array]
            merged = Pattern(self.shape, pointers, ordered.indices.array[new])
        merged.__dict__["is_canonical"] = True
        ends = np.append(np.flatnonzero(new), self.nnz).astype(order.dtype)
        return merged, Pattern((merged.nnz, self.nnz), ends, order)

    def __repr__(self) -> str:
        return f"Pattern({self.shape[0]}×{self.shape[1]}, nnz={self.nnz})"


def _transposed(pattern: Pattern) -> tuple[Pattern, Array]:
    """The pattern by columns, and the order of its entries, by a counting sort."""
    columns, nnz = pattern.shape[1], pattern.nnz
    found = computed(primitives.csr_transpose(*pattern.arrays(device("cpu")), columns))
    starts, order, rows = np.split(found, (columns + 1, columns + 1 + nnz))
    swapped = Pattern(pattern.shape[::-1], starts, rows)
    if pattern.__dict__.get("is_canonical"):  # rows come in order, each once
        swapped.__dict__["is_canonical"] = True
    return swapped, order


def picked(array: Array, order: Array) -> Array:
    """array[order] of one axis; long ones on all cores."""
    if order.size < _PARALLEL_PICKS:
        return array[order]
    with grad_mode(False):
        return computed(gather(on_cpu(array), (cast(on_cpu(order), dt.int64),), (0,)))


def grouped(keys: Array, count: int) -> tuple[Array, Array]:
    """A stable counting sort: the start of each of `count` groups, and the order of the keys."""
    dtype = index_dtype(count, keys.shape[0])
    node = primitives.group(on_cpu(keys.astype(dtype, copy=False)), count)
    found = computed(node)
    return found[: count + 1], found[count + 1 :]


def from_coordinates(rows: Array, columns: Array, shape: tuple[int, int]) -> tuple[Pattern, Array]:
    """The pattern of entries in any order, and the order in which it has them."""
    dtype = index_dtype(*shape, rows.shape[0])
    starts, order = grouped(rows, shape[0])
    return Pattern(shape, starts, picked(columns.astype(dtype, copy=False), order)), order


def product_pattern(a: Pattern, b: Pattern, used_on: Device | None = None) -> Pattern:
    """The pattern of a product: Gustavson's symbolic phase, on the device that it is used on where
    that has warps."""
    if a.shape[1] != b.shape[0]:
        raise ShapeError(f"matmul: sparse {a.shape} and {b.shape} do not match")
    has_warps = used_on is not None and used_on.runtime.target.subgroup_size > 0
    dev = used_on if has_warps and used_on is not None else device("cpu")
    shape, bits = (a.shape[0], b.shape[1]), b.longest.bit_length() if has_warps else 0
    factors = (a.arrays(dev), b.arrays(dev))
    with grad_mode(False):
        counts = Tensor(primitives.csr_product_counts(*factors, shape[1], bits))
        ends = nm.cumsum(counts)
        nm.eval(ends)
        total = int(ends[-1]) if shape[0] else 0
        dtype = nm.int32 if index_dtype(*shape, total) == np.int32 else nm.int64
        starts = nm.pad(ends, (1, 0)).astype(dtype)
        nm.eval(starts)
        node = primitives.csr_product_columns(*factors, starts._node, shape[1], total, bits)
        nm.eval(Tensor(node))
    made = (starts._node, node) if has_warps else (computed(starts._node), computed(node))
    found = Pattern(shape, *made)
    found.__dict__["is_canonical"] = True
    return found
