"""Groups that are alike are lowered once: those of the layers of a model, mostly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value, walk
from numus.compiler.lower import autotune
from numus.compiler.lower.emitter import LoweredKernel
from numus.runtime.contract import Runtime
from numus.shapes import Shape

Job = list[LoweredKernel]


class Lowering:
    """Lowers the groups of one program. A group like one before gets the same kernels, which take
    its own values and constants.
    """

    def __init__(self, layouts: dict[Value, Shape], runtime: Runtime[Any]) -> None:
        self._layouts = layouts
        self._runtime = runtime
        self._known: dict[Any, tuple[list[Value], Job]] = {}

    def __call__(self, group: FusionGroup) -> Job:
        inside = set(group.members)
        found = walk(group.members, lambda v: v in inside or v not in self._layouts)
        values = sorted(found, key=lambda v: v.id)
        key = self._key(group, inside, values)
        like = self._known.get(key)
        if like is None:
            job = autotune.lower(group, self._layouts, self._runtime)
            self._known[key] = values, job
            return job
        before, job = like
        return _with_values(job, dict(zip(before, values, strict=True)))

    def _key(self, group: FusionGroup, inside: set[Value], values: list[Value]) -> Any:
        """Equal for groups that differ in nothing but which values and constants they are about."""
        number = {v: i for i, v in enumerate(values)}
        parts = []
        for v in values:
            layout = self._layouts.get(v)
            if v.op in _NUMBERED:
                params = v.params[: -1 if v.op == "constant" else 0]
            else:
                params = v.params
            read = v not in inside and layout is not None
            inputs = None if read else tuple([number[x] for x in v.inputs])
            parts.append((v.op, v.kind, None if read else params, v.shape, v.dtype, layout, inputs))
        members = tuple([(number[v], v in group.stored) for v in group.members])
        return (group.kind, group.space, group.axes, group.low_memory, members, tuple(parts))


_NUMBERED = ("leaf", "constant")  # their parameters tell which of the program's they are


def _with_values(job: Job, now: dict[Value, Value]) -> Job:
    """The same kernels on other values. What lies between them is not the graph's, but the job's
    own: it gets new ones.
    """
    constants = {v.params[-1]: w.params[-1] for v, w in now.items() if v.op == "constant"}
    for v in [v for step in job for v in step.buffers]:
        if v not in now:
            now[v] = Value(v.id, v.op, v.kind, v.inputs, v.params, v.shape, v.dtype)
    return [
        replace(
            step,
            buffers=[now[v] for v in step.buffers],
            scalars=[
                (constants[s[0]], *s[1:]) if s.__class__ is tuple else s for s in step.scalars
            ],
        )
        for step in job
    ]
