"""Operations with kernels of the user's own: `nm.kernels.CustomOp`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numus.dtypes import DType, as_dtype
from numus.errors import DeviceError, DTypeError, GradientError, ShapeError
from numus.evaluation.evaluate import elements, evaluate
from numus.functions.creation.conversion import asarray
from numus.graph import Node, Storage, View, grad_mode
from numus.primitives.control import call
from numus.primitives.source import value
from numus.primitives.structure import concat, copy
from numus.primitives.views import reshape
from numus.runtime import contract, get
from numus.runtime.devices import Device, default, device
from numus.shapes import Shape, row_major, size_of
from numus.tensor import Tensor
from numus.transforms.custom import custom_vjp

Function = Callable[..., Any]
Numbers = dict[str, int | float]
Source = str | Mapping[str, str]  # one text for all dtypes, or texts by the name of the first dtype


@dataclass(frozen=True)
class Spec:
    """The shape and dtype of an operand or result of a kernel."""

    shape: Shape
    dtype: DType

    @property
    def size(self) -> int:
        """The number of elements."""
        return size_of(self.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


class CustomOp:
    """An operation whose kernels the user writes, once for all devices or for each kind of them.

    Calling it is like calling any other function of tensors: it is lazy, works in `nm.jit` and in
    `nm.vmap` (where it runs once per entry), and is differentiated by `backward`. docs/custom.md
    works through an example.

    Args:
        name: what errors call it.
        inputs: the names of its tensors, in the order in which they are given.
        outputs: for each result its name and a function of the inputs' specs (`shape`, `dtype`) and
            of the scalars, by name, that gives the result's: a `Spec`, or one of the inputs.
        scalars: names and dtypes of numbers that a call is given by keyword. Instead of a dtype, a
            pair of it and a function of the inputs' specs: a number that follows from shapes.
        portable: a kernel for every device, in Python: `f(k, *inputs, *outputs, **scalars)` says
            what is done for element `k.index` of the first result (or of `count`).
        wgsl: a shader for WebGPU. Inputs, outputs and scalars (`p.name`) are declared for it, or by
            it: bound in that order. `scalar` is the type of the first input.
        cuda: a kernel for CUDA: PTX, or CUDA C++ (an `extern "C" __global__` function), of pointers
            to inputs and outputs, then scalars.
        count: how many elements there are, where it is not the size of the first result: a function
            of specs and scalars.
        grid: how many workgroups or blocks, where it is not one thread per element: a function of
            specs and scalars that gives a number, or up to three.
        threads: of a block, for CUDA.
        backward: `f(inputs, outputs, cotangents, **scalars)`, three tuples of tensors, gives a
            tuple of cotangents for the inputs; None for zero.
        reference: `f(*arrays, **scalars)` by NumPy, for the reference device.

    >>> scaled = nm.kernels.CustomOp(
    ...     "scaled",
    ...     inputs=("x",),
    ...     outputs={"y": lambda x, by: x},
    ...     scalars={"by": nm.float32},
    ...     portable=lambda k, x, y, by: y.__setitem__(k.index, x[k.index] * by),
    ... )
    >>> scaled(nm.arange(3.0), by=2.0)
    tensor([0., 2., 4.])
    """

    def __init__(
        self,
        name: str,
        *,
        inputs: Sequence[str],
        outputs: Mapping[str, Function],
        scalars: Mapping[str, Any] | None = None,
        portable: Function | None = None,
        wgsl: Source | None = None,
        cuda: Source | None = None,
        count: Function | None = None,
        grid: Function | None = None,
        threads: int = 256,
        backward: Function | None = None,
        reference: Function | None = None,
    ) -> None:
        self.name = name
        self.inputs = tuple(inputs)
        self.outputs = dict(outputs)
        self.scalars: dict[str, DType] = {}
        self._derived: dict[str, Function] = {}
        for scalar, given in (scalars or {}).items():
            dtype, derive = given if isinstance(given, tuple) else (given, None)
            self.scalars[scalar] = as_dtype(dtype)
            if derive is not None:
                self._derived[scalar] = derive
        names = (*self.inputs, *self.outputs, *self.scalars)
        if len(set(names)) != len(names) or not all(n.isidentifier() for n in names):
            raise ValueError(f"CustomOp {name}: names are to be different identifiers: {names}")
        if not self.outputs:
            raise ValueError(f"CustomOp {name}: there has to be a result (outputs=...)")
        if portable is None and wgsl is None and cuda is None:
            raise ValueError(f"CustomOp {name}: give a kernel: portable=, wgsl= or cuda=")
        self.portable, self.wgsl, self.cuda, self.reference = portable, wgsl, cuda, reference
        self.threads = threads
        self._count, self._grid, self._backward = count, grid, backward
        self._kernels: dict[Any, Any] = {}  # runners by device, dtypes and ranks
        self._differentiable = custom_vjp(self._launched, nondiff_argnums=(0,))
        self._differentiable.defvjp(self._forward, self._pull)

    def __call__(self, *tensors: Any, **scalars: Any) -> Any:
        if len(tensors) != len(self.inputs):
            raise TypeError(
                f"{self.name} takes {len(self.inputs)} tensors ({', '.join(self.inputs)}), and was "
                f"given {len(tensors)}"
            )
        given = [x if isinstance(x, Tensor) else asarray(x) for x in tensors]
        specs = tuple(Spec(x.shape, x.dtype) for x in given)
        numbers = self._numbers(specs, scalars)
        dev = next((x._node.device for x in given if x._node.device), default.device)
        results = self._differentiable(_Launch(self, dev, specs, numbers), *given)
        return results[0] if len(results) == 1 else results

    def _numbers(self, specs: Sequence[Spec], given: Mapping[str, Any]) -> Numbers:
        wanted = self.scalars.keys() - self._derived.keys()
        if given.keys() != wanted:
            raise TypeError(
                f"{self.name} takes the scalars {sorted(wanted)}, and was given {sorted(given)}"
            )
        numbers: Numbers = {}
        for name, dtype in self.scalars.items():
            number = self._derived[name](*specs) if name in self._derived else given[name]
            if isinstance(number, np.generic):
                number = number.item()
            if not isinstance(number, (int, float)):
                raise TypeError(
                    f"{self.name}: the scalar {name!r} is a Python number, not a "
                    f"{type(number).__name__}; what is a tensor has to be among the inputs"
                )
            if not dtype.is_floating and number != int(number):
                raise DTypeError(f"{self.name}: the scalar {name!r} is {dtype.name}, not {number}")
            numbers[name] = float(number) if dtype.is_floating else int(number)
        return numbers

    def _launched(self, launch: _Launch, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(Tensor(y) for y in call(launch, tuple(x._node for x in tensors)))

    def _forward(self, launch: _Launch, *tensors: Tensor) -> Any:
        results = self._launched(launch, *tensors)
        return results, (tensors, results)

    def _pull(self, launch: _Launch, saved: Any, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._backward is None:
            raise GradientError(
                f"{self.name} has no derivative: give CustomOp a backward=, or call it on "
                "detached tensors"
            )
        found = self._backward(*saved, cotangents, **launch.numbers)
        return tuple(found) if isinstance(found, (tuple, list)) else (found,)

    def _result_specs(self, specs: Sequence[Spec], numbers: Numbers) -> list[Spec]:
        found = []
        for name, rule in self.outputs.items():
            like = rule(*specs, **numbers)
            try:
                shape = tuple(int(n) for n in like.shape)
                dtype = as_dtype(like.dtype)
            except (AttributeError, TypeError) as error:
                raise TypeError(
                    f"{self.name}: the rule of the result {name!r} has to give a Spec, or one of "
                    f"the inputs; it gave {like!r}"
                ) from error
            if any(n < 0 for n in shape):
                raise ShapeError(f"{self.name}: the result {name!r} would have shape {shape}")
            found.append(Spec(shape, dtype))
        return found


class _Batchable:
    def batched(
        self, operands: Sequence[Node], flags: Sequence[bool], size: int
    ) -> tuple[_Loop, tuple[Node, ...]]:
        # the inner axis, where an operand has both, comes after the new one
        return _Loop(self, tuple(flags), size), tuple(operands)


class _Launch(_Batchable):
    """One call of an op, as a node of the graph (`primitives.control.Call`)."""

    def __init__(
        self, op: CustomOp, dev: Device, specs: tuple[Spec, ...], numbers: Numbers
    ) -> None:
        self.op, self.specs, self.numbers = op, specs, numbers
        self.name = op.name
        self.outputs = op._result_specs(specs, numbers)
        self.results = [(s.shape, s.dtype) for s in self.outputs]
        self.batch_axes = [0] * len(self.results)
        self._runner(dev)  # a missing kernel is an error at the user's line

    def run(self, dev: Device, operands: Sequence[Node]) -> list[View]:
        runner = self._runner(dev)
        given = [dense(x, dev, runner.alignment) for x in operands]
        rule = self.op._count
        count = self.outputs[0].size if rule is None else int(rule(*self.specs, **self.numbers))
        made = [value_of(s, dev) for s in self.outputs]
        if count and any(s.size for s in self.outputs):
            runner.run(self, given, made, count)
        return [y.view for y in made if y.view is not None]

    def grid(self, count: int, threads: int) -> list[int]:
        """The number of workgroups or blocks along each dimension."""
        rule = self.op._grid
        if rule is None:
            if not threads:
                raise ValueError(
                    f"{self.name}: the number of threads of a workgroup cannot be read off the "
                    "shader: write it as a number, or give grid="
                )
            return [-(-count // threads)]
        found = rule(*self.specs, **self.numbers)
        return [int(i) for i in (found if isinstance(found, (tuple, list)) else (found,))]

    def _runner(self, dev: Device) -> Any:
        """The runner for a device and these dtypes; an error where there is no kernel for it."""
        op = self.op
        key = (dev, tuple((s.dtype, s.ndim) for s in (*self.specs, *self.outputs)))
        if key not in op._kernels:
            op._kernels[key] = self._new_runner(dev)
        return op._kernels[key]

    def _new_runner(self, dev: Device) -> Any:
        op = self.op
        for spec in (*self.specs, *self.outputs):
            dev.require(spec.dtype, self.name)
        language = dev.runtime.target.language
        if language == "wgsl" and op.wgsl is not None:
            return _WgslRunner(self, dev)
        if language == "ptx" and op.cuda is not None:
            return _CudaRunner(self, dev)
        if dev.kind == "reference" and op.reference is not None:
            return _ReferenceRunner()
        if op.portable is not None:
            return _ThroughCpu() if dev.kind == "reference" else _PortableRunner(self, dev)
        there = [k for k in ("wgsl", "cuda") if getattr(op, k) is not None]
        raise DeviceError(
            f"{self.name} has no kernel for {dev}: it has one in {' and in '.join(there)} only; "
            "give CustomOp a portable= one as well, or move the operands"
        )

    def named(self) -> tuple[Any, Any, Any]:
        """Names and dtypes of inputs, outputs and scalars."""
        return (
            [(n, s.dtype) for n, s in zip(self.op.inputs, self.specs, strict=True)],
            [(n, s.dtype) for n, s in zip(self.op.outputs, self.outputs, strict=True)],
            list(self.op.scalars.items()),
        )

    def source(self, given: Source, language: str) -> str:
        """The text for the dtype of the first operand."""
        if isinstance(given, str):
            return given
        first = (*self.specs, *self.outputs)[0].dtype
        if first.name not in given:
            raise DTypeError(
                f"{self.name} has a {language} kernel for {', '.join(given)}, not for {first.name}"
            )
        return given[first.name]


class _Loop(_Batchable):
    """A launch for each entry of a batch."""

    def __init__(self, inner: Any, flags: tuple[bool, ...], size: int) -> None:
        self._inner, self._flags, self._size = inner, flags, size
        self.name = inner.name
        self.results = [((size, *shape), dtype) for shape, dtype in inner.results]
        self.batch_axes = [0] * len(self.results)

    def run(self, dev: Device, operands: Sequence[Node]) -> list[View]:
        found: list[list[Node]] = [[] for _ in self.results]
        for i in range(self._size):
            flagged = zip(operands, self._flags, strict=True)
            views = self._inner.run(dev, [_entry(x, i, dev) if f else x for x, f in flagged])
            for parts, view, (shape, dtype) in zip(found, views, self._inner.results, strict=True):
                parts.append(value(view, shape, dtype, dev))
        whole = []
        with grad_mode(False):
            for parts, (shape, dtype) in zip(found, self.results, strict=True):
                rows = tuple(reshape(y, (1, *y.shape)) for y in parts)
                new = copy(concat(rows, 0)) if rows else value_of(Spec(shape, dtype), dev)
                whole.append(new)
        evaluate(whole)
        return [y.view for y in whole if y.view is not None]


def _entry(x: Node, i: int, dev: Device) -> Node:
    """One entry along the first axis of a realised node."""
    assert x.view is not None
    view = View(x.view.storage, x.view.offset + i * x.view.strides[0], x.view.strides[1:])
    return value(view, x.shape[1:], x.dtype, dev)


def value_of(spec: Spec, dev: Device) -> Node:
    """New memory for a result."""
    memory = dev.runtime.allocate(spec.size * spec.dtype.itemsize)
    return value(View(Storage(memory), 0, row_major(spec.shape)), spec.shape, spec.dtype, dev)


def dense(x: Node, dev: Device, alignment: int) -> Node:
    """A realised node whose elements are contiguous, at an offset that can be bound."""
    assert x.view is not None
    strides = row_major(x.shape)
    gaps = any(n != 1 and a != b for n, a, b in zip(x.shape, x.view.strides, strides, strict=True))
    if x.device is dev and not gaps and x.view.offset * x.dtype.itemsize % alignment == 0:
        return x
    with grad_mode(False):
        found = copy(x)
    found.device = dev
    evaluate([found])
    return found


class _PortableRunner:
    alignment = 1

    def __init__(self, launch: _Launch, dev: Device) -> None:
        # Imported late: the compiler is needed only by those who run something.
        from numus.compiler.lower.custom_kernel import build

        op = launch.op
        assert op.portable is not None
        inputs, outputs, scalars = launch.named()
        ranked_inputs = [(*n, s.ndim) for n, s in zip(inputs, launch.specs, strict=True)]
        ranked_outputs = [(*n, s.ndim) for n, s in zip(outputs, launch.outputs, strict=True)]
        target = dev.runtime.target
        made = build(op.name, op.portable, ranked_inputs, ranked_outputs, scalars, target)
        self._block = made.block
        self._program, self._runtime = dev.runtime.compile(made.kernel), dev.runtime
        self._slots = [(i, 0) for i in range(len(inputs) + len(outputs))]
        self._prepared: dict[tuple[int, ...], Any] = {}

    def run(self, launch: _Launch, operands: list[Node], made: list[Node], count: int) -> None:
        nodes = [*operands, *made]
        nbytes = tuple(size_of(x.shape) * x.dtype.itemsize for x in nodes)
        prepared = self._prepared.get(nbytes)
        if prepared is None:
            if len(self._prepared) > 64:
                self._prepared.clear()
            step = contract.LaunchStep(self._program, self._slots, nbytes)
            prepared = self._runtime.prepare([step], len(nodes))
            self._prepared[nbytes] = prepared
        extents = [n for x in nodes for n in x.shape]
        numbers = [int(v) if isinstance(v, bool) else v for v in launch.numbers.values()]
        prepared.run(_addresses(nodes), [-(-count // self._block), count, *extents, *numbers])


class _WgslRunner:
    def __init__(self, launch: _Launch, dev: Device) -> None:
        from numus.runtime.webgpu import user_kernels

        assert launch.op.wgsl is not None
        text, runtime = launch.source(launch.op.wgsl, "WGSL"), get(dev.name)
        features = runtime.context.features
        self._shader = user_kernels.parse(launch.name, text, *launch.named(), features)
        self._user_kernels = runtime.user_kernels
        self.alignment = self._user_kernels.alignment

    def run(self, launch: _Launch, operands: list[Node], made: list[Node], count: int) -> None:
        blocks = []
        for x in (*operands, *made):
            assert x.view is not None
            size = x.dtype.itemsize
            blocks.append((x.view.storage.memory, x.view.offset * size, size_of(x.shape) * size))
        grid = launch.grid(count, self._shader.threads)
        self._user_kernels.launch(self._shader, blocks, launch.numbers, grid)


class _CudaRunner:
    alignment = 1

    def __init__(self, launch: _Launch, dev: Device) -> None:
        from numus.runtime.cuda import user_kernels

        assert launch.op.cuda is not None
        text = launch.source(launch.op.cuda, "CUDA")
        self._kernel = user_kernels.parse(launch.name, text, *launch.named())
        self._user_kernels = get(dev.name).user_kernels

    def run(self, launch: _Launch, operands: list[Node], made: list[Node], count: int) -> None:
        threads = launch.op.threads
        addresses, grid = _addresses([*operands, *made]), launch.grid(count, threads)
        self._user_kernels.launch(self._kernel, addresses, launch.numbers, grid, threads)


class _ReferenceRunner:
    alignment = 1

    def run(self, launch: _Launch, operands: list[Node], made: list[Node], count: int) -> None:
        assert launch.op.reference is not None
        found = launch.op.reference(*(elements(x) for x in operands), **launch.numbers)
        arrays = found if isinstance(found, (tuple, list)) else (found,)
        for x, array in zip(made, map(np.asarray, arrays), strict=True):
            if array.shape != x.shape:
                raise ShapeError(
                    f"{launch.name}: the reference gave {array.shape} for a result of {x.shape}"
                )
            elements(x)[...] = array


class _ThroughCpu:
    """The portable kernel for the reference device, which has no compiler of its own."""

    alignment = 1

    def run(self, launch: _Launch, operands: list[Node], made: list[Node], count: int) -> None:
        cpu = device("cpu")
        copies = [value_of(Spec(x.shape, x.dtype), cpu) for x in operands]
        for x, on_cpu in zip(operands, copies, strict=True):
            elements(on_cpu)[...] = elements(x)
        for x, view in zip(made, launch.run(cpu, copies), strict=True):
            elements(x)[...] = elements(value(view, x.shape, x.dtype, cpu))


def _addresses(nodes: Sequence[Node]) -> list[int]:
    return [
        x.view.storage.memory.address + x.view.offset * x.dtype.itemsize
        for x in nodes
        if x.view is not None
    ]
