"""Templates of lowered groups: kernels that serve every size for which lowering decides the same.

A new size of a known structure costs an evaluation of the recorded arithmetic and its guards
instead of a lowering. Templates are kept for the life of the process, by structure: operations,
dtypes, parameters, and which sizes are equal.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import GEMM_KINDS, SIZED_OPS, Layouts, Value
from numus.compiler.hooks import on_clear_plans
from numus.compiler.lower import autotune, stored_templates
from numus.compiler.lower.dispatch import lower_group
from numus.compiler.lower.emitter import Kernels, LoweredKernel
from numus.dtypes import DType
from numus.ir import Kernel, kernel_text
from numus.ir.stored_kernel import pack_kernel, unpack_kernel
from numus.ir.symbolic_size import Recorder, pack_function, unpack_function
from numus.kernels.vendor.registry import kernel_choice_key
from numus.lru import LruTable
from numus.runtime.contract import Runtime
from numus.shapes import Shape
from numus.target import Target

_MAX_STRUCTURES = 256
_MAX_TEMPLATES = 24  # of one structure
_FIXED_KINDS = ("factor", "fft", "spectral")  # whose lowering is made for one size
_SIMPLE = (int, float, str, bool, type(None))

Mapping = dict[Value, Value]
Numbers = tuple[int, ...]


class Step(NamedTuple):
    """A kernel of a template. Values have numbers: those of the group, then intermediates."""

    kernel: Kernel
    buffers: tuple[int, ...]
    scalars: tuple[tuple[int, str] | None, ...]  # a constant and its part; None for numbers
    scratch: int  # the number of scratch buffers


class StepArguments(NamedTuple):
    """The numbers of one kernel of a template; a scalar may be a value's number and its part."""

    kernel: Kernel
    grid: int
    scratch: list[int]
    scalars: list[Any]


class _Fresh(NamedTuple):
    """An intermediate that lowering made."""

    op: str
    kind: str
    inputs: tuple[int, ...]  # -1: one that is in no memory
    params: Any
    rank: int
    dtype: DType


class Template:
    """The kernels of a group, with numbers that follow from sizes."""

    _packed: tuple[bytes, Any]  # of one from the disk: steps and function

    def __init__(self, steps: list[Step], fresh: list[_Fresh], function: Any) -> None:
        self.steps, self.fresh, self.function = steps, fresh, function

    # As bytes: one of the disk's templates is read as far as it is used.

    def __getstate__(self) -> Any:
        packed = self._packed_steps, pack_function(self.function)
        return {"_packed": packed, "fresh": self.fresh, "shape": self.shape}

    @functools.cached_property
    def _packed_steps(self) -> bytes:
        """Kept: a template is stored by itself, and with plans."""
        steps = [(pack_kernel(kernel), *rest) for kernel, *rest in self.steps]
        return pickle.dumps(steps, pickle.HIGHEST_PROTOCOL)

    @functools.cached_property
    def steps(self) -> list[Step]:
        return [
            Step(unpack_kernel(kernel), *rest) for kernel, *rest in pickle.loads(self._packed[0])
        ]

    @functools.cached_property
    def function(self) -> Any:
        """The numbers of all kernels, for sizes."""
        return unpack_function(self._packed[1])

    @staticmethod
    def of(lowered: Kernels, values: list[Value], recorder: Recorder) -> Template:
        """The template of kernels that were lowered on symbolic sizes."""
        position = {v: i for i, v in enumerate(values)}
        constants = {v.params[-1]: i for i, v in enumerate(values) if v.op == "constant"}
        buffers = dict.fromkeys(v for step in lowered for v in step.buffers)
        # operands first: the ids of what lowering makes go down
        made = sorted([v for v in buffers if v not in position], key=lambda v: -v.id)
        for v in made:
            position[v] = len(position)
        fresh = [
            _Fresh(
                *(v.op, v.kind, tuple([position.get(x, -1) for x in v.inputs])),
                *(v.params, len(v.shape), v.dtype),
            )
            for v in made
        ]
        steps = []
        numbers: list[Any] = []
        for step in lowered:
            kernel_text(step.kernel)  # guards whatever went into the code
            scalars = [s for s in step.scalars if s.__class__ is not tuple]
            numbers += [step.grid, *step.scratch, *scalars]
            parts = [
                (constants[s[0]], s[1]) if s.__class__ is tuple else None for s in step.scalars
            ]
            used = tuple([position[v] for v in step.buffers])
            steps.append(Step(step.kernel, used, tuple(parts), len(step.scratch)))
        for v in made:
            numbers += v.shape
        return Template(steps, fresh, recorder.function(numbers))

    @functools.cached_property
    def shape(self) -> Any:
        """What a schedule depends on, besides sizes: who reads and writes which values."""
        steps = []
        for kernel, buffers, _, scratch in self.steps:
            access = tuple([b.access for b in kernel.buffers[: len(buffers)]])
            steps.append((buffers, access, scratch))
        return tuple(steps), tuple([x.dtype.itemsize for x in self.fresh])

    def numbers(self, sizes: Sequence[int]) -> Numbers | None:
        """All numbers of the kernels for these sizes; None where lowering decides otherwise."""
        try:
            found: Numbers | None = self.function(*sizes)
        except ZeroDivisionError:  # ahead of the guard that excludes it
            return None
        return found

    def arguments(self, numbers: Numbers) -> tuple[list[StepArguments], list[Shape]]:
        """What the kernels are given, and the shapes of the intermediates."""
        out = []
        at = 0
        for kernel, _, parts, scratch in self.steps:
            end = at + 1 + scratch
            scalars: list[Any] = []
            grid, *sizes = numbers[at:end]
            at = end + parts.count(None)
            if at - end == len(parts):
                scalars += numbers[end:at]
            else:
                own = iter(numbers[end:at])
                scalars += [next(own) if part is None else part for part in parts]
            out.append(StepArguments(kernel, grid, sizes, scalars))
        shapes = []
        for _, _, _, _, rank, _ in self.fresh:
            shapes.append(numbers[at : at + rank])
            at += rank
        return out, shapes

    def instantiate(self, numbers: Numbers, values: list[Value]) -> Kernels:
        """The kernels with these numbers, on these values."""
        arguments, shapes = self.arguments(numbers)
        constants = {i: v.params[-1] for i, v in enumerate(values) if v.op == "constant"}
        known = list(values)
        for (op, kind, inputs, params, _, dtype), shape in zip(self.fresh, shapes, strict=True):
            operands = tuple([known[i] for i in inputs if i >= 0])
            known.append(Value.fresh(op, kind, operands, params, shape, dtype))
        return [
            LoweredKernel(
                kernel,
                [known[i] for i in step.buffers],
                with_constants(scalars, constants),
                grid,
                scratch,
            )
            for (kernel, grid, scratch, scalars), step in zip(arguments, self.steps, strict=True)
        ]


def with_constants(scalars: list[Any], constants: dict[int, int]) -> list[Any]:
    """Scalars of a kernel, with the plan's numbers of the constants among a group's values."""
    return [(constants[s[0]], s[1]) if s.__class__ is tuple else s for s in scalars]


def with_values(steps: Kernels, new: Mapping) -> Kernels:
    """The same kernels on other values."""
    constants = {v.params[-1]: w.params[-1] for v, w in new.items() if v.op == "constant"}
    return [
        LoweredKernel(
            step.kernel,
            [new[v] for v in step.buffers],
            [(constants[s[0]], *s[1:]) if s.__class__ is tuple else s for s in step.scalars],
            step.grid,
            list(step.scratch),
        )
        for step in steps
    ]


class Sizes:
    """Numbers the sizes of a group in the order in which they are met."""

    def __init__(self) -> None:
        self.number: dict[int, int] = {}

    def pattern(self, sizes: Any) -> Any:
        """Sizes by number; -1, 0 and 1 are themselves, as lowering tells them from the others."""
        if sizes.__class__ is tuple:
            return tuple([self.pattern(n) for n in sizes])
        if sizes.__class__ is not int or -1 <= sizes <= 1:
            return sizes
        return f"s{self.number.setdefault(sizes, len(self.number))}"


_templates: LruTable[Any, list[Template]] = LruTable(_MAX_STRUCTURES)
_UNSUPPORTED: list[Template] = []  # of structures that are lowered for one size
on_clear_plans.append(_templates.clear)


def is_fixed(kind: str, runtime: Runtime[Any]) -> bool:
    """Groups of this kind are lowered for one size."""
    return kind in _FIXED_KINDS or runtime.target.simt


def lower(
    group: FusionGroup, layouts: Layouts, values: list[Value], runtime: Runtime[Any]
) -> Kernels:
    """The kernels of a group, by a template where there is one. `values` are its members and what
    they are computed from, in order."""
    fixed, target = is_fixed(group.kind, runtime), runtime.target
    if fixed and not (group.kind in GEMM_KINDS and autotune.choices.active):
        return _lower_fixed(group, layouts, values, _target(group, runtime))
    numbering = Sizes()
    structure = structure_of(group, layouts, values, numbering)
    sizes = list(numbering.number)
    chosen = tuned_target(group, structure, sizes, runtime)
    if chosen is None:
        key = stored_templates.digest("tuning", structure, sizes, target)
        assert key is not None
        found = None if fixed else find(structure, sizes, runtime, target)
        known = None if found is None else found[0].instantiate(found[1], values)
        chosen = autotune.measured(group, key, layouts, runtime, known)
    if fixed:
        return _lower_fixed(group, layouts, values, chosen)
    found = find(structure, sizes, runtime, chosen)
    if found is not None:
        return found[0].instantiate(found[1], values)
    others = _templates.setdefault(_key(structure, runtime, chosen), list)
    if others is _UNSUPPORTED or len(others) >= _MAX_TEMPLATES:
        return lower_group(group, layouts, chosen)
    made = _record(group, layouts, values, sizes, chosen)
    if made is None:
        _templates[_key(structure, runtime, chosen)] = _UNSUPPORTED
        return lower_group(group, layouts, chosen)
    stored_templates.store(stored_templates.name(structure, sizes, chosen), made)
    others.append(made)
    numbers = made.numbers(sizes)
    assert numbers is not None, "a template does not serve the sizes it was recorded for"
    return made.instantiate(numbers, values)


def _lower_fixed(
    group: FusionGroup, layouts: Layouts, values: list[Value], target: Target
) -> Kernels:
    """The kernels of a group for its own sizes; on GPUs, where lowering takes half of a first step,
    as another process has stored them."""
    if not target.simt:
        return lower_group(group, layouts, target)
    numbering = Sizes()
    structure = structure_of(group, layouts, values, numbering)
    name = stored_templates.name(structure, list(numbering.number), target)
    known: Template | None = stored_templates.load(name)
    numbers = None if known is None else known.numbers(())
    if known is not None and numbers is not None:
        return known.instantiate(numbers, values)
    steps = lower_group(group, layouts, target)
    if name is not None and all(step.kernel.vendor is None for step in steps):
        made = Template.of(steps, values, Recorder(()))
        if all(map(_is_made_anew, made.fresh)):
            stored_templates.store(name, made)
    return steps


def tuned_target(
    group: FusionGroup, structure: Any, sizes: list[int], runtime: Runtime[Any]
) -> Target | None:
    """The target that a group of a structure and sizes is lowered for: that of the runtime, or one
    that was measured to be better; None where it is to be measured first."""
    if group.kind not in GEMM_KINDS or not autotune.choices.active:
        return _target(group, runtime)
    key = stored_templates.digest("tuning", structure, sizes, runtime.target)
    return autotune.target_of(group, key, runtime.target)


def _target(group: FusionGroup, runtime: Runtime[Any]) -> Target:
    """The target that a group is lowered for where nothing is measured."""
    target = runtime.target
    return target if group.kind in GEMM_KINDS else autotune.target_for_runs(target)


def find(
    structure: Any, sizes: list[int], runtime: Runtime[Any], target: Target
) -> tuple[Template, Numbers] | None:
    """The template of a structure, lowered for a target, that serves these sizes, in memory or on
    disk, and the numbers that it gives; None where there is none yet."""
    key = _key(structure, runtime, target)
    known = _templates.get(key)
    for template in known or ():
        numbers = template.numbers(sizes)
        if numbers is not None:
            return template, numbers
    if known is _UNSUPPORTED or (known is not None and len(known) >= _MAX_TEMPLATES):
        return None
    made: Template | None = stored_templates.load(stored_templates.name(structure, sizes, target))
    numbers = None if made is None else made.numbers(sizes)
    if made is None or numbers is None:
        return None
    _templates.setdefault(key, list).append(made)
    return made, numbers


def _key(structure: Any, runtime: Runtime[Any], target: Target) -> Any:
    return id(runtime), target, structure


def structure_of(group: FusionGroup, layouts: Layouts, values: list[Value], sizes: Any) -> Any:
    """Equal for groups that differ in the identity of values and constants, and in sizes, whose
    pattern `sizes` gives."""
    members = set(group.members)
    number = {v: i for i, v in enumerate(values)}
    parts = []
    for v in values:
        layout = layouts.get(v)
        params: Any = None
        inputs = None
        if v in members or layout is None:
            inputs = tuple([number[x] for x in v.inputs])
            if v.op == "constant":
                params = v.params[:-1]
            else:
                params = sizes.pattern(v.params) if v.op in SIZED_OPS else v.params
        strides = None if layout is None else sizes.pattern(layout)
        part = (v.op, v.kind, params, sizes.pattern(v.shape), v.dtype, strides, inputs)
        parts.append((*part, "captured") if v in group.captured else part)
    stored = tuple([(number[v], v in group.stored) for v in group.members])
    space = sizes.pattern(group.space)
    own = (group.kind, space, group.axes, group.low_memory, stored, tuple(parts))
    return kernel_choice_key(), own


def _record(
    group: FusionGroup, layouts: Layouts, values: list[Value], sizes: list[int], target: Target
) -> Template | None:
    """Lower a group with symbolic sizes; None where that is not possible."""
    recorder = Recorder(sizes)
    symbols = dict(zip(sizes, recorder.symbols, strict=True))

    def symbolic(sizes: Any) -> Any:
        if sizes.__class__ is tuple:
            return tuple([symbolic(n) for n in sizes])
        return symbols.get(sizes, sizes) if sizes.__class__ is int else sizes

    members = set(group.members)
    new: Mapping = {}
    for v in values:
        read = v not in members and v in layouts
        params = symbolic(v.params) if v.op in SIZED_OPS and not read else v.params
        inputs = () if read else tuple([new[x] for x in v.inputs])
        new[v] = Value(v.id, v.op, v.kind, inputs, params, symbolic(v.shape), v.dtype)
    copy = group.on(new, symbolic(group.space))
    own_layouts = {new[v]: symbolic(layouts[v]) for v in values if v in layouts}
    steps = lower_group(copy, own_layouts, target)
    if any(step.kernel.vendor is not None for step in steps):
        return None
    template = Template.of(steps, list(new.values()), recorder)
    return template if all(map(_is_made_anew, template.fresh)) else None


def _is_made_anew(fresh: _Fresh) -> bool:
    """An intermediate that a template can make: of operands in memory, where it may be recomputed
    from them, and without symbolic sizes."""
    recomputed = fresh.kind == "elementwise" and -1 in fresh.inputs
    return not recomputed and _is_simple(fresh.params)


def _is_simple(params: Any) -> bool:
    """Parameters without symbolic sizes."""
    if params.__class__ is tuple:
        return all(map(_is_simple, params))
    return params.__class__ in _SIMPLE
