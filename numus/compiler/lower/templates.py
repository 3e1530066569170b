"""Templates of lowered groups: kernels that serve every size for which lowering decides the same.

A new size of a known structure costs an evaluation of the recorded arithmetic and its guards
instead of a lowering. Templates are kept for the life of the process, by structure: operations,
dtypes, parameters, and which sizes are equal.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Any, NamedTuple

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import GEMM_KINDS, SIZED_OPS, Layouts, Value
from numus.compiler.hooks import on_clear_plans
from numus.compiler.lower import autotune, stored_templates
from numus.compiler.lower.emitter import Kernels, LoweredKernel
from numus.dtypes import DType
from numus.ir import Kernel, kernel_text
from numus.ir.stored_kernel import pack_kernel, unpack_kernel
from numus.ir.symbolic_size import Recorder, pack_function, unpack_function
from numus.kernels.vendor.registry import kernel_choice_key
from numus.runtime.contract import Runtime

_MAX_STRUCTURES = 256
_MAX_TEMPLATES = 24  # of one structure
_FIXED_KINDS = ("factor", "fft", "spectral")  # whose lowering is made for one size
_SIMPLE = (int, float, str, bool, type(None))

Mapping = dict[Value, Value]


class Step(NamedTuple):
    """A kernel of a template. Values have numbers: those of the group, then intermediates."""

    kernel: Kernel
    buffers: tuple[int, ...]
    scalars: tuple[tuple[int, str] | None, ...]  # a constant and its part; None for numbers
    scratch: int  # the number of scratch buffers


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

    def __init__(self, steps: list[Step], fresh: list[_Fresh], function: Any) -> None:
        self.steps, self.fresh, self.function = steps, fresh, function

    def __reduce__(self) -> Any:
        steps = [(pack_kernel(kernel), *rest) for kernel, *rest in self.steps]
        return _unpacked, (steps, self.fresh, pack_function(self.function))

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

    def instantiate(self, sizes: list[int], values: list[Value]) -> Kernels | None:
        """The kernels for these sizes, on these values; None where lowering decides otherwise."""
        try:
            found = self.function(*sizes)
        except ZeroDivisionError:  # ahead of the guard that excludes it
            return None
        if found is None:
            return None
        numbers = iter(found)
        out = []
        for kernel, _, parts, scratch in self.steps:
            grid, *sizes_of_scratch = islice(numbers, 1 + scratch)
            scalars = [
                next(numbers) if part is None else (values[part[0]].params[-1], part[1])
                for part in parts
            ]
            out.append(LoweredKernel(kernel, [], scalars, grid, sizes_of_scratch))
        known = list(values)
        for op, kind, inputs, params, rank, dtype in self.fresh:
            operands = tuple([known[i] for i in inputs if i >= 0])
            shape: Any = tuple(islice(numbers, rank))
            known.append(Value.fresh(op, kind, operands, params, shape, dtype))
        for lowered, step in zip(out, self.steps, strict=True):
            lowered.buffers = [known[i] for i in step.buffers]
        return out


def _unpacked(steps: list[Any], fresh: list[_Fresh], function: Any) -> Template:
    """A template from disk."""
    own = [Step(unpack_kernel(kernel), *rest) for kernel, *rest in steps]
    return Template(own, fresh, unpack_function(function))


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


class _Sizes:
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


_templates: OrderedDict[Any, list[Template] | None] = OrderedDict()
on_clear_plans.append(_templates.clear)


def lower(
    group: FusionGroup, layouts: Layouts, values: list[Value], runtime: Runtime[Any]
) -> Kernels:
    """The kernels of a group, by a template where there is one. `values` are its members and what
    they are computed from, in order."""
    fixed = group.kind in _FIXED_KINDS or (group.kind in GEMM_KINDS and autotune.choices.active)
    if fixed or runtime.target.simt:
        return autotune.lower(group, layouts, runtime)
    numbering = _Sizes()
    structure = (kernel_choice_key(), _key(group, layouts, values, numbering))
    key = (id(runtime), runtime.target, structure)
    sizes = list(numbering.number)
    known = _templates.get(key, ())
    if known != ():
        _templates.move_to_end(key)
    if known is None:
        return autotune.lower(group, layouts, runtime)
    for template in known:
        steps = template.instantiate(sizes, values)
        if steps is not None:
            return steps
    if len(known) >= _MAX_TEMPLATES:
        return autotune.lower(group, layouts, runtime)
    name = stored_templates.name(structure, sizes, runtime.target)
    made: Template | None = stored_templates.load(name)
    if made is None or made.function(*sizes) is None:
        made = _record(group, layouts, values, sizes, runtime)
        if made is None:
            _templates[key] = None
            return autotune.lower(group, layouts, runtime)
        stored_templates.store(name, made)
    _templates[key] = [*known, made]
    if len(_templates) > _MAX_STRUCTURES:
        _templates.popitem(last=False)
    steps = made.instantiate(sizes, values)
    assert steps is not None, "a template does not serve the sizes it was recorded for"
    return steps


def _key(group: FusionGroup, layouts: Layouts, values: list[Value], sizes: _Sizes) -> Any:
    """Equal for groups that differ in the identity of values and constants, and in sizes."""
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
        parts.append((v.op, v.kind, params, sizes.pattern(v.shape), v.dtype, strides, inputs))
    stored = tuple([(number[v], v in group.stored) for v in group.members])
    space = sizes.pattern(group.space)
    return (group.kind, space, group.axes, group.low_memory, stored, tuple(parts))


def _record(
    group: FusionGroup, layouts: Layouts, values: list[Value], sizes: list[int], runtime: Any
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
    steps = autotune.lower(copy, own_layouts, runtime)
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
