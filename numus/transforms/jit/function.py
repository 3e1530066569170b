"""nm.jit: a function traced once per structure of its arguments."""

from __future__ import annotations

import functools
import inspect
import operator
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, overload

import numpy as np

from numus import dtypes as dt
from numus.dispatch.call_cache import GUARD_FAILED
from numus.evaluation import storage_lock
from numus.evaluation.evaluate import evaluate, from_host
from numus.graph import has_active_hook, mode
from numus.lru import LruTable
from numus.runtime.devices import default
from numus.shapes import is_sequence
from numus.tensor import Tensor
from numus.transforms import tree
from numus.transforms.jit.executable import Executables
from numus.transforms.jit.scalars import Scalar
from numus.transforms.jit.traced import TraceReader
from numus.transforms.jit.tracing import Trace, TraceBailout
from numus.transforms.jit.variables import Variables
from numus.transforms.tape import is_tracked_leaf
from numus.transforms.trace import require_function
from numus.transforms.vmap import argument_name

Function = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")
Numbers = list[tuple[int, type]]  # leaves that are Python numbers, and their types

_WARNING_STACK_LEVEL = 6  # the line that called the function
_WARN_AFTER_TRACES = 8
_MAX_TRACES = 512  # of a function: shapes, dtypes and static values
_MAX_VARIANTS = 32  # of a trace: captured tensors that were replaced
_MAX_COMPARED = 8  # traces that a new one is compared with, for the log
_NUMBERS = (int, float, complex)


class Static:
    """An argument whose value is part of the key: 0.0 differs from -0.0, and 1 from 1.0."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = _exact_key(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and bool(self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)


def _exact_key(value: Any) -> Any:
    """Equal for values of equal types and bits."""
    kind = type(value)
    if kind is float:
        value = value.hex()
    elif kind is complex:
        value = (value.real.hex(), value.imag.hex())
    elif kind is tuple:
        value = tuple(map(_exact_key, value))
    elif kind is frozenset:
        value = frozenset(map(_exact_key, value))
    return (kind, value)


class Jitted:
    """The traces and executables of a function."""

    def __init__(
        self,
        f: Function,
        static_argnums: int | Iterable[int],
        static_argnames: str | Iterable[str],
        donate: int | Iterable[int],
    ) -> None:
        self._f = f
        self._name = getattr(f, "__qualname__", type(f).__name__)
        static, self._donated = (
            frozenset(map(operator.index, given if is_sequence(given) else [given]))
            for given in (static_argnums, donate)
        )
        names = {static_argnames} if isinstance(static_argnames, str) else set(static_argnames)
        _check_arguments(f, self._name, names, static_argnums=static, donate=self._donated)
        self._static_argnums, self._static_argnames = _statics(f, static, names)
        # None: not traceable
        self._traced: LruTable[Any, list[Executables | None]] = LruTable(_MAX_TRACES)
        self._count = 0
        # that of the last call, if its arguments were positional
        self._fast_path: Callable[..., Any] = lambda *args: GUARD_FAILED

    def function(self) -> Function:
        """The function that users call: a plain one is cheapest, and binds as a method."""

        @functools.wraps(self._f)
        def jitted(*args: Any, **kwargs: Any) -> Any:
            if not kwargs:
                result = self._fast_path(*args)
                if result is not GUARD_FAILED:
                    return result
            return self._slow_path(args, kwargs)

        return jitted

    def _slow_path(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if has_active_hook():
            return self._f(*args, **kwargs)
        leaves, structure = self._flattened(args, kwargs)
        try:
            specs, numbers = self._read(leaves, structure)
            key = (structure, specs, mode.grad, mode.autocast, default.device)
            with storage_lock.lock:
                return self._call(key, leaves, numbers)
        except TraceBailout:
            return self._f(*args, **kwargs)

    # -- arguments --------------------------------------------------------------------------------

    def _flattened(self, args: Any, kwargs: Any) -> tuple[list[Any], tree.Structure]:
        static, names = self._static_argnums, self._static_argnames
        if static or names:
            args = tuple(
                Static(x) if i in static or i - len(args) in static else x
                for i, x in enumerate(args)
            )
            kwargs = {k: Static(v) if k in names else v for k, v in kwargs.items()}
        return tree.flatten((args, kwargs))

    def _read(self, leaves: list[Any], structure: tree.Structure) -> tuple[Any, Numbers]:
        """The arguments' specs, and the numbers among them; bails out in other transformations."""
        pending = [x._node for x in leaves if isinstance(x, Tensor) and x._node.view is None]
        if any(n.abstract for n in pending):
            raise TraceBailout
        if pending:
            evaluate(pending)
        specs: list[Any] = []
        numbers: Numbers = []
        for i, x in enumerate(leaves):
            if isinstance(x, np.generic) and dt.scalar_kind(x) is not None:
                leaves[i] = x = x.item()
            kind = type(x)
            if isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind in "biufcV":
                array = np.asarray(x)
                leaves[i] = x = Tensor(from_host(array, dt.as_dtype(array.dtype), default.device))
            if isinstance(x, Tensor):
                node = x._node
                leaf = is_tracked_leaf(node)
                if node.tracked and mode.grad and not leaf:
                    raise TraceBailout
                specs.append((node.shape, node.dtype, node.device, leaf))
            elif kind in _NUMBERS:
                specs.append(kind)
                numbers.append((i, kind))
            else:
                specs.append(self._static(x, structure, i))
        return tuple(specs), numbers

    def _static(self, x: Any, structure: tree.Structure, i: int) -> Any:
        static = x if isinstance(x, Static) else Static(x)
        try:
            hash(static.value)
        except TypeError:
            where, kind = argument_name(tree.paths(structure)[i]), type(static.value).__name__
            raise TypeError(
                f"nm.jit of {self._name}: {where} is a {kind}, which is neither a tensor, a number "
                "nor a container of them, and cannot be compared by value (it is not hashable); "
                "make it hashable, or reach it through a closure"
            ) from None
        return static

    # -- calls ------------------------------------------------------------------------------------

    def _call(self, key: Any, leaves: list[Any], numbers: Numbers) -> Any:
        executable = None
        for traced in self._traced.get(key) or ():
            if traced is None:
                raise TraceBailout
            executable = traced.get(leaves)
            if executable is not None:
                break
        else:
            executable = self._trace(key, leaves, numbers).get(leaves)
        result = GUARD_FAILED if executable is None else executable(leaves)
        if executable is None or result is GUARD_FAILED:
            raise TraceBailout
        if not self._static_argnums and _is_positional(key):
            self._fast_path = _of_arguments(key[0].children[0], executable.fast_path())
        return result

    def _trace(self, key: Any, leaves: list[Any], numbers: Numbers) -> Executables:
        structure, specs = key[0], key[1]
        trace = Trace(self._name)
        arguments: dict[int, tuple[Tensor, Tensor]] = {}
        inner: list[Any] = []
        same: dict[int, Tensor] = {}
        for i, x in enumerate(leaves):
            if isinstance(x, Tensor):
                if id(x) not in same:
                    same[id(x)] = Tensor(trace.argument(i, x._node))
                else:
                    trace.inputs[i] = same[id(x)]._node
                arguments[i] = (x, same[id(x)])
                inner.append(same[id(x)])
            elif specs[i] in _NUMBERS:
                inner.append(Scalar(trace, operator.itemgetter(numbers.index((i, type(x)))), x))
            else:
                inner.append(x.value if isinstance(x, Static) else x)
        args, kwargs = tree.unflatten(structure, inner)
        began = time.perf_counter()
        cause = self._retrace_cause(key)
        variants = self._traced.setdefault(key, list)
        variants[:] = [v for v in variants if v is None or not v.spec.is_dead()]
        del variants[:-_MAX_VARIANTS]
        donated = self._donated_leaves(structure, specs)
        statics = [x for x in inner if not isinstance(x, (Tensor, Scalar))]
        variables = Variables([self._f, *statics])
        try:
            try:
                result = trace.run(self._f, args, kwargs)
            except BaseException:
                variables.undo()
                raise
            variables.compare()
            reader = TraceReader(trace, arguments, variables)
            traced = Executables(reader.read(numbers, donated, result))
        except TraceBailout:
            variants.append(None)
            raise
        finally:
            trace.close()
            log = getattr(default.device.runtime, "compile_log", None)
            if log is not None:
                log.append(TraceRecord(self._name, (cause,), time.perf_counter() - began))
        variants.append(traced)
        self._warn_of_retracing()
        return traced

    def _donated_leaves(self, structure: tree.Structure, specs: Sequence[Any]) -> list[int]:
        """The donated tensors among the leaves."""
        found: list[int] = []
        at = 0
        args = structure.children[0].children
        for i, child in enumerate(args):
            if i in self._donated or i - len(args) in self._donated:
                found += [k for k in range(at, at + child.count) if _is_tensor(specs[k])]
            at += child.count
        return found

    def _retrace_cause(self, key: Any) -> str:
        """How a call differs from those traced before, in words."""
        if not self._traced:
            return "the first call"
        if key in self._traced:
            return (
                "a captured tensor was replaced, or its shape, dtype or requires_grad changed, "
                "or a .grad was set or cleared"
            )
        structure, specs, *modes = key
        notes: list[list[str]] = []
        for other_structure, other_specs, *other_modes in self._traced.recent(_MAX_COMPARED):
            if other_structure != structure:
                found = [f"the arguments differ at {tree.difference(other_structure, structure)}"]
            else:
                pairs = zip(tree.paths(structure), other_specs, specs, strict=True)
                found = [
                    f"{argument_name(path)}: {_text(new)} where {_text(old)} was"
                    for path, old, new in pairs
                    if old != new
                ]
            if modes != other_modes:
                found.append("another mode (gradients, autocast, default device)")
            notes.append(found)
        fewest = min(notes, key=len)
        return "; ".join(fewest)

    def _warn_of_retracing(self) -> None:
        self._count += 1
        if self._count == _WARN_AFTER_TRACES + 1:
            warnings.warn(
                f"nm.jit of {self._name} has been traced for {self._count} structures of its "
                "arguments: each new shape, dtype or static value is a trace of its own; "
                "nm.compile_log() says what changed",
                RuntimeWarning,
                stacklevel=_WARNING_STACK_LEVEL,
            )


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One trace of a function, in `nm.compile_log`."""

    name: str
    notes: tuple[str, ...]  # how the call differed from those traced before
    seconds: float
    cause: str = "traced"
    source: str = ""


def _is_tensor(spec: Any) -> bool:
    return isinstance(spec, tuple) and len(spec) == 4


def _text(spec: Any) -> str:
    """An argument leaf in the log."""
    if _is_tensor(spec):
        shape, dtype, device, leaf = spec
        return f"{dtype.name}{list(shape)} on {device}" + " that requires gradients" * leaf
    return str(spec.__name__) if isinstance(spec, type) else repr(spec.value)


def _is_positional(key: Any) -> bool:
    """True if all arguments are positional tensors and numbers, or containers of them."""
    structure, specs = key[:2]
    return not structure.children[1].children and all(
        spec in _NUMBERS or _is_tensor(spec) for spec in specs
    )


def _of_arguments(structure: tree.Structure, call: Callable[..., Any]) -> Callable[..., Any]:
    """A call of leaves as one of the arguments whose leaves they are."""
    if all(child.kind is None for child in structure.children):
        return call

    def nested(*args: Any) -> Any:
        leaves: list[Any] = []
        if not tree.flatten_equal(structure, args, leaves):
            return GUARD_FAILED
        return call(*leaves)

    return nested


def _parameters(f: Function) -> tuple[list[inspect.Parameter], list[str]]:
    """All parameters, and the names of positional ones; raises if f has no signature."""
    every = list(inspect.signature(f).parameters.values())
    return every, [p.name for p in every if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _check_arguments(f: Function, name: str, names: set[str], **given: frozenset[int]) -> None:
    """Raise for static names, and positions of options, that f does not have."""
    try:
        parameters, positional = _parameters(f)
    except (TypeError, ValueError):
        return
    unknown = names - {p.name for p in parameters}
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise ValueError(f"jit: static_argnames names {unknown}, which f does not take")
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    count = len(positional)
    for option, positions in given.items():
        for position in sorted(positions):
            if not -count <= position < count:
                raise ValueError(
                    f"jit of {name}: {option} names argument {position}, but {name} takes {count} "
                    "positional arguments"
                )


def _statics(f: Function, positions: frozenset[int], names: set[str]) -> tuple[Any, Any]:
    """Static arguments by position and by name: each implies the other, where f has a signature."""
    try:
        positional = _parameters(f)[1]
    except (TypeError, ValueError):
        return positions, names
    count = len(positional)
    names = names | {positional[i] for i in positions if -count <= i < count}
    return positions | {positional.index(x) for x in names if x in positional}, names


@overload
def jit(
    f: Callable[P, R],
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate: int | Sequence[int] = (),
) -> Callable[P, R]: ...
@overload
def jit(
    f: None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate: int | Sequence[int] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def jit(
    f: Function | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate: int | Sequence[int] = (),
) -> Any:
    """Trace f once per structure of its arguments, and run it as one compiled program.

    Structure is what decides which operations run: shapes, dtypes, devices, the nesting of
    containers, static values, grad mode. Tensors and Python's numbers may differ at each call.
    Captured tensors are read at each call, and side effects (in-place updates, `.grad`) are
    repeated by each; see docs/jit.md.

    Args:
        static_argnums: positions of arguments whose values are part of the structure.
        static_argnames: names of such arguments.
        donate: positions of arguments whose memory results may be written to; these tensors cannot
            be used afterwards.

    >>> import numus as nm
    >>> @nm.jit
    ... def f(x, y):
    ...     return nm.sin(x) * y
    >>> f(nm.asarray([0.0, 1.0]), 2.0).shape
    (2,)
    """
    if f is None:
        return functools.partial(
            jit, static_argnums=static_argnums, static_argnames=static_argnames, donate=donate
        )
    require_function(f, "jit")
    if inspect.isgeneratorfunction(f) or inspect.iscoroutinefunction(f):
        raise TypeError(
            f"jit of {getattr(f, '__qualname__', f)}: a generator or coroutine cannot be "
            "traced; jit the functions that it calls"
        )
    return Jitted(f, static_argnums, static_argnames, donate).function()
