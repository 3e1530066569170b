"""The graph: immutable nodes, each one primitive applied to others.

A node is pending until it has a `view`: strided storage on its device. Evaluated nodes drop their
inputs unless a gradient may need them (`tracked`), so that memory is freed with the last reference
to a value.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from numus.errors import GradientError
from numus.runtime.devices import default
from numus.shapes import Shape

if TYPE_CHECKING:
    from numus.dtypes import DType
    from numus.runtime.devices import Device


class Storage:
    """A block of device memory and its host access."""

    __slots__ = ("__weakref__", "host", "host_access", "memory")

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.host: Any = None  # a host copy of uploaded indices, to be checked there
        self.host_access: Any = None  # readers on the host: see evaluation/storage_lock.py

    def copy(self) -> Storage:
        """Copy-on-write sharing of the memory."""
        found = Storage(self.memory)
        found.host = self.host
        return found


class View:
    """The strided layout of a realised node: storage, offset and strides in elements."""

    __slots__ = ("offset", "storage", "strides")

    def __init__(self, storage: Storage, offset: int, strides: Shape) -> None:
        self.storage = storage
        self.offset = offset
        self.strides = strides


def _sole_reference() -> int | None:
    view = View(Storage(None), 0, ())
    return sys.getrefcount(view.storage) if hasattr(sys, "getrefcount") else None


# `sys.getrefcount(owner.attribute)` of an object that only its owner references; None where this
# Python does not count references.
SOLE_REFERENCE = _sole_reference()

next_serial = itertools.count(1).__next__


def now() -> int:
    """A number above the serials of all nodes that exist and below those of all to come."""
    return next_serial()


class Node:
    """One operation, or one realised value."""

    __slots__ = (
        "__weakref__", "abstract", "depth", "device", "dtype", "grad_slot", "handle", "inputs",
        "params", "prim", "retained_bytes", "serial", "shape", "tracked", "view",
    )  # fmt: skip

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
        self.device = device  # None: a constant, of any device
        self.view: View | None = None
        self.serial = next_serial()  # nodes are numbered as they are made: inputs before results
        # depends on a placeholder: the trace it belongs to, or True in other transformations
        self.abstract: Any = False
        self.tracked = False  # a gradient may need its inputs
        self.grad_slot: Any = None  # where reverse mode stores its gradient (leaves, retained)
        self.handle: Any = None  # a weak reference to its tensor, or a tuple of them
        self.depth = 0  # levels of pending nodes below it
        self.retained_bytes = 0  # of memory that it keeps alive while it is pending

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def type_text(self) -> str:
        """The dtype and shape in messages: float32[2, 3]."""
        return f"{self.dtype.name}{list(self.shape)}"

    def __repr__(self) -> str:
        state = "realised" if self.view is not None else "pending"
        return f"<{self.prim.name} {self.type_text} {state}>"


Array = np.ndarray[Any, Any]
Nodes = Sequence[Node]
Tangents = Sequence[Node | None]  # or cotangents: None is zero
Vjp = Callable[[Node, Node], Tangents]
Jvp = Callable[[Node, Tangents], Node | None]
Batch = Callable[[Node, Nodes, Sequence[bool], int], Node]
Reference = Callable[..., Array]

PRIMITIVES: dict[str, Primitive] = {}

# Public names of primitives, for errors.
_PUBLIC = {
    **{"sub": "subtract", "mul": "multiply", "div": "divide", "mod": "remainder"},
    **{"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"},
    **{"shift_left": "bitwise_left_shift", "shift_right": "bitwise_right_shift"},
    **{"lt": "less", "le": "less_equal", "eq": "equal", "ne": "not_equal"},
    **{"contract": "matmul", "convolve": "convolution"},
}


class Primitive:
    """One operation. `kind` is its fusion class:

    source, elementwise, view, reduce, contract, convolve, gather, scatter, scan, sort, topk,
    nonzero, fft, factor, sparse, barrier

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


# Evaluates the inputs of a pending node when the graph has reached its bound; set by `evaluation`.
flush: Callable[[Node], None] = _no_evaluator
# Evaluates a node; set by `evaluation`.
realise: Callable[[Node], None] = _no_evaluator
# Memory that another library may write to, by id: what reads it is evaluated at once, before that
# library changes it. Each has an entry in `active_hooks`.
lent_memory: dict[int, int] = {}

mode = default  # gradients, autocast, trace and hooks of this thread
TF32 = "tf32"  # float32 matmuls may round to 11 bits (nm.matmul_precision)
# One entry per active trace and hook in any thread. Lists, because append and pop are atomic.
observers: list[None] = []
# These, and one per memory that is lent: empty, operations take fast paths.
active_hooks: list[None] = []


class _hooked:  # noqa: N801
    """A hook of this thread for the length of a `with`. An interrupt may end any call: the lists
    are changed without one, so that at most one that comes as `__exit__` begins leaves traces."""

    __slots__ = ("_before", "_hook", "_kind")

    def __init__(self, kind: str, hook: Any) -> None:
        self._kind, self._hook = kind, hook

    def __enter__(self) -> None:
        self._before = getattr(mode, self._kind)
        try:
            active_hooks[:0] = observers[:0] = (None,)
            setattr(mode, self._kind, self._hook)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        del active_hooks[:1], observers[:1]
        setattr(mode, self._kind, self._before)


def tracing(trace: Any) -> AbstractContextManager[None]:
    """Report operations to a trace: their nodes, tensors and gradients."""
    return _hooked("trace", trace)


def calling_node_hook(hook: Any) -> AbstractContextManager[None]:
    """Call a hook for each new concrete node."""
    return _hooked("node_hook", hook)


def checking_effects(check: Any) -> AbstractContextManager[None]:
    """Check the side effects of a vmapped function or loop body, which also draws random keys."""
    return _hooked("effects", check)


def has_active_hook() -> bool:
    """True if this thread has a trace or a node hook."""
    return bool(active_hooks) and (mode.trace is not None or mode.node_hook is not None)


def current_trace() -> Any:
    """The trace of this thread, or None."""
    return mode.trace if active_hooks else None


def is_captured(node: Node) -> bool:
    """True if the node is older than this thread's trace.

    Its value may differ at the next call: it can be neither read nor aliased now.
    """
    return bool(active_hooks) and mode.trace is not None and bool(mode.trace.captures(node))


class grad_mode:  # noqa: N801
    """Track operations for gradients, or not, for the length of a `with`."""

    __slots__ = ("_before", "_enabled")

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    def __enter__(self) -> None:
        self._before = mode.grad
        mode.grad = self._enabled

    def __exit__(self, *_: object) -> None:
        mode.grad = self._before
