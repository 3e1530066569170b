"""Templates of lowered groups: kernels that serve every size for which lowering decides the same.

A new size of a known structure costs an evaluation of the recorded arithmetic and its guards
instead of a lowering. Templates are kept for the life of the process, by structure: operations,
dtypes, parameters, and which sizes are equal.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.hooks import on_clear_plans
from numus.compiler.lower import autotune
from numus.compiler.lower.emitter import Kernels, LoweredKernel
from numus.ir import kernel_text
from numus.ir.symbolic_size import Recorder
from numus.kernels.vendor.registry import kernel_choice_key
from numus.runtime.contract import Runtime

_MAX_STRUCTURES = 256
_MAX_TEMPLATES = 24  # of one structure
_SIZED_OPS = ("reshape", "broadcast", "slice", "pad", "extent")  # whose parameters are sizes
_FIXED_KINDS = ("factor", "fft", "spectral")  # whose lowering is made for one size
_SIMPLE = (int, float, str, bool, type(None))

Mapping = dict[Value, Value]


class Template:
    """The kernels of a group, with numbers that follow from sizes."""

    def __init__(self, steps: Kernels, values: list[Value], recorder: Recorder) -> None:
        self.values = values
        self.steps = steps
        known = set(values)
        fresh = dict.fromkeys(v for step in steps for v in step.buffers if v not in known)
        self.fresh = list(fresh)  # intermediates that lowering made
        for step in steps:
            kernel_text(step.kernel)  # guards whatever went into the code
        numbers: list[Any] = []
        for step in steps:
            scalars = [s for s in step.scalars if s.__class__ is not tuple]
            numbers += [step.grid, *step.scratch, *scalars]
        for v in self.fresh:
            numbers += v.shape
        self.function = recorder.function(numbers)

    def instantiate(self, sizes: list[int], values: list[Value]) -> Kernels | None:
        """The kernels for these sizes, on these values; None where lowering decides otherwise."""
        try:
            found = self.function(*sizes)
        except ZeroDivisionError:  # ahead of the guard that excludes it
            return None
        if found is None:
            return None
        numbers = iter(found)
        filled = [self._fill(step, numbers) for step in self.steps]
        new: Mapping = dict(zip(self.values, values, strict=True))
        for v in self.fresh:
            shape: Any = tuple([next(numbers) for _ in v.shape])
            inputs = tuple([new.get(x, x) for x in v.inputs])
            new[v] = Value.fresh(v.op, v.kind, inputs, v.params, shape, v.dtype)
        return with_values(filled, new)

    @staticmethod
    def _fill(step: LoweredKernel, numbers: Any) -> LoweredKernel:
        grid = next(numbers)
        scratch = [next(numbers) for _ in step.scratch]
        scalars = [s if s.__class__ is tuple else next(numbers) for s in step.scalars]
        return LoweredKernel(step.kernel, step.buffers, scalars, grid, scratch)


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
    fixed = group.kind in _FIXED_KINDS
    if fixed or runtime.target.simt or autotune.choices.measuring or autotune.choices.known:
        return autotune.lower(group, layouts, runtime)
    numbering = _Sizes()
    key = (
        id(runtime),
        runtime.target,
        kernel_choice_key(),
        _key(group, layouts, values, numbering),
    )
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
    made = _record(group, layouts, values, sizes, runtime)
    if made is None:
        _templates[key] = None
        return autotune.lower(group, layouts, runtime)
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
                params = sizes.pattern(v.params) if v.op in _SIZED_OPS else v.params
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
        params = symbolic(v.params) if v.op in _SIZED_OPS and not read else v.params
        inputs = () if read else tuple([new[x] for x in v.inputs])
        new[v] = Value(v.id, v.op, v.kind, inputs, params, symbolic(v.shape), v.dtype)
    copy = FusionGroup.__new__(FusionGroup)
    copy.members = [new[v] for v in group.members]
    copy.position, copy.kind, copy.axes = group.position, group.kind, group.axes
    copy.low_memory, copy.space = group.low_memory, symbolic(group.space)
    copy.stored = {new[v] for v in group.stored}
    own_layouts = {new[v]: symbolic(layouts[v]) for v in values if v in layouts}
    steps = autotune.lower(copy, own_layouts, runtime)
    if any(step.kernel.vendor is not None for step in steps):
        return None
    template = Template(steps, list(new.values()), recorder)
    return template if all(_is_simple(v.params) for v in template.fresh) else None


def _is_simple(params: Any) -> bool:
    """Parameters without symbolic sizes."""
    if params.__class__ is tuple:
        return all(map(_is_simple, params))
    return params.__class__ in _SIMPLE
