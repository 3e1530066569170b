"""The graph: immutable nodes, each one primitive applied to others.

A node is pending until it has a `view`: storage on its device, laid out by strides. Evaluated nodes
drop their inputs unless a gradient can still ask for them (`tracked`), so memory goes back as soon
as nobody holds a value.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numus.errors import GradientError
from numus.runtime.devices import default
from numus.shapes import Shape

if TYPE_CHECKING:
    from numus.dtypes import DType
    from numus.runtime.devices import Device


_ref = weakref.ref
_MANY_ALIASES = 16  # from so many on, those that are gone are looked for now and then


class Storage:
    """A block of device memory and who may touch it from the host."""

    __slots__ = ("__weakref__", "aliases", "guard", "host", "memory")

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        # what was copied to a device: indices that came from the host can be looked at there; what
        # is computed has none
        self.host: Any = None
        self.guard: Any = None  # who reads it on the host: see guards.py
        # nodes of views that see what is written, by id, and some that are gone; made when needed
        self.aliases: dict[int, weakref.ref[Node]] | None = None

    def copy(self) -> Storage:
        """The same memory, which both give up when one is written to."""
        found = Storage(self.memory)
        found.host = self.host
        return found

    def share(self, *nodes: Node) -> None:
        """These nodes are views of one another: a write through one is seen by all."""
        aliases = self.aliases
        if aliases is None:
            aliases = self.aliases = {}
        before = len(aliases)
        for node in nodes:
            aliases[id(node)] = _ref(node)
        now = len(aliases)
        if now > before and now >= _MANY_ALIASES and (now ^ before) > before:  # twice as many
            for key in [key for key, ref in aliases.items() if ref() is None]:
                del aliases[key]

    def sharers(self) -> set[Node]:
        """The nodes that see what is written."""
        refs = [] if self.aliases is None else list(self.aliases.values())
        return {node for ref in refs if (node := ref()) is not None}


class View:
    """Where a realised node's elements lie: storage, offset and strides in elements."""

    __slots__ = ("offset", "storage", "strides")

    def __init__(self, storage: Storage, offset: int, strides: Shape) -> None:
        self.storage = storage
        self.offset = offset
        self.strides = strides


class _Owner:
    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = object()


def _held_once() -> int | None:
    owner = _Owner()
    return sys.getrefcount(owner.held) if hasattr(sys, "getrefcount") else None


# What `sys.getrefcount(owner.attribute)` says of an object that only its owner holds; None where
# this Python cannot tell.
ONE_HOLDER = _held_once()

next_serial = itertools.count(1).__next__


def now() -> int:
    """A number above the serials of all nodes that exist and below those of all to come."""
    return next_serial()


class Node:
    """One operation, or one realised value."""

    __slots__ = (
        "__weakref__",
        "abstract",
        "depth",
        "device",
        "dtype",
        "grad_slot",
        "handle",
        "inputs",
        "params",
        "pinned",
        "prim",
        "serial",
        "shape",
        "tracked",
        "view",
    )

    def __init__(
        self,
        prim: Primitive,
        inputs: tuple[Node, ...],
        params: Any,
        shape: Shape,
        dtype: DType,
        device: Device | None,
    ) -> None:
        self.prim = prim
        self.inputs = inputs
        self.params = params
        self.shape = shape
        self.dtype = dtype
        self.device = device  # None: a constant, at home on any device
        self.view: View | None = None
        self.serial = next_serial()  # nodes are numbered as they are made: inputs before results
        # whether it stands on a placeholder, so that it has no value yet: the trace it belongs to,
        # or True inside other transformations
        self.abstract: Any = False
        self.tracked = False  # whether a gradient may ask for what this was computed from
        self.grad_slot: Any = None  # where reverse mode leaves its gradient (leaves, retained)
        self.handle: Any = None  # a weak reference to the tensor that stands for it, or several
        self.depth = 0
        self.pinned = 0

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        state = "realised" if self.view is not None else "pending"
        return f"<{self.prim.name} {self.dtype.name}{list(self.shape)} {state}>"


Array = np.ndarray[Any, Any]
Vjp = Callable[[Node, Node], Sequence[Node | None]]
Jvp = Callable[[Node, Sequence[Node | None]], Node | None]
Batch = Callable[[Node, Sequence[Node], Sequence[bool], int], Node]
Reference = Callable[..., Array]

PRIMITIVES: dict[str, Primitive] = {}

# What users call the primitives with short names: errors speak their language.
_PUBLIC = {
    **{"sub": "subtract", "mul": "multiply", "div": "divide", "mod": "remainder"},
    **{"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"},
    **{"shift_left": "bitwise_left_shift", "shift_right": "bitwise_right_shift"},
    **{"lt": "less", "le": "less_equal", "eq": "equal", "ne": "not_equal"},
    **{"contract": "matmul", "convolve": "convolution"},
}


class Primitive:
    """One operation. `kind` tells the compiler what shape of kernel it belongs to:

    source, elementwise, view, reduce, contract, convolve, gather, scatter, scan, sort, topk,
    compact, barrier

    A primitive is a paragraph: its shape and dtype rule, its derivatives both ways, its batching
    rule and a NumPy reference, in consecutive lines. Everything else in numus is composed of these,
    so each function works on every backend, forwards and backwards, from the day it is written.

    The rules work on nodes:
        vjp(node, g)            -> one cotangent (or None) per input, in terms of other primitives;
                                   inputs that are not tracked need none
        jvp(node, tangents)     -> the tangent of the output; a tangent may be None (zero)
        batch(node, inputs, batched, size) -> the node over a new leading axis of extent `size`;
                                `inputs` are the replaced inputs, `batched[i]` says which carry it
        reference(node, *arrays) -> the value, by NumPy
    """

    __slots__ = ("batch", "jvp", "kind", "name", "public", "reference", "vjp")

    def __init__(
        self,
        name: str,
        kind: str,
        *,
        reference: Reference,
        vjp: Vjp | None = None,
        jvp: Jvp | None = None,
        batch: Batch | None = None,
    ) -> None:
        self.name = name
        self.public = _PUBLIC.get(name, name)  # as errors call it
        self.kind = kind
        self.reference = reference
        self.vjp = vjp or self._no_gradient
        self.jvp = jvp or self._no_gradient
        self.batch = batch or self._no_batch
        if name in PRIMITIVES:
            raise ValueError(f"primitive {name!r} is defined twice")
        PRIMITIVES[name] = self

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"

    def _no_gradient(self, *_: Any) -> Any:
        raise GradientError(f"{self.public} has no gradient")

    def _no_batch(self, *_: Any) -> Any:
        raise GradientError(f"vmap: {self.public} has no batching rule")


def _no_evaluator(node: Node) -> None:
    raise AssertionError("numus.evaluation has not been imported")


# Evaluates the inputs of a pending node once the graph has reached its bound; `evaluation` sets it.
flush: Callable[[Node], None] = _no_evaluator

mode = default  # gradients, autocast, traces and watchers of this thread
TF32 = "tf32"  # float32 that products may round to 11 bits (nm.matmul_precision)
# One for each trace and watcher that runs, in all threads: what keeps the path of everybody else
# short. A list, because threads that come and go at the same time must not lose count.
observers: list[None] = []


@contextlib.contextmanager
def tracing(trace: Any) -> Iterator[None]:
    """Let a trace see the operations inside: which nodes, tensors and gradients they meet."""
    observers.append(None)
    mode.trace = trace
    try:
        yield
    finally:
        mode.trace = None
        observers.pop()


@contextlib.contextmanager
def watching(watcher: Any) -> Iterator[None]:
    """Let somebody look at each node that is made inside and has a value."""
    before = mode.watcher
    observers.append(None)
    mode.watcher = watcher
    try:
        yield
    finally:
        mode.watcher = before
        observers.pop()


@contextlib.contextmanager
def running_inside(function: Any) -> Iterator[None]:
    """Let a function of many examples or turns see which tensors are bound and gradients written,
    and give the keys of random numbers.
    """
    before = mode.inside
    observers.append(None)
    mode.inside = function
    try:
        yield
    finally:
        mode.inside = before
        observers.pop()


def is_observed() -> bool:
    """Whether each operation counts in this thread: a trace is recorded, or nodes are watched."""
    return bool(observers) and (mode.trace is not None or mode.watcher is not None)


def current_trace() -> Any:
    """The trace that this thread records; None where there is none."""
    return mode.trace if observers else None


def is_captured(node: Node) -> bool:
    """Whether a trace is recorded in this thread and the node is older than it.

    Its value will be another one at the next call: now it may be neither looked at nor shared.
    """
    return bool(observers) and mode.trace is not None and bool(mode.trace.captures(node))


@contextlib.contextmanager
def grad_mode(enabled: bool) -> Iterator[None]:
    """Whether operations inside record what gradients need."""
    before = mode.grad
    mode.grad = enabled
    try:
        yield
    finally:
        mode.grad = before
