"""Plans of a known structure for other sizes.

Loops over growing lengths evaluate one structure in ever new sizes. Where a structure comes in a
second size, its fusion is recorded on symbols for the sizes that differ; a third size evaluates the
recording instead of fusing again. Guards hold wherever fusing would decide the same, so a plan
depends on its own sizes alone, not on those that came before. When the process ends, templates are
stored for the next one: all that a structure needs is in one file.
"""

from __future__ import annotations

import atexit
import functools
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from numus.compiler.fused_graph import FusedGraph
from numus.compiler.graph.signature import GraphSignature
from numus.compiler.group_templates import GroupTemplates
from numus.compiler.hooks import on_clear_plans
from numus.compiler.launch_plan import LaunchPlan, ScheduledPlan
from numus.compiler.lower import stored_templates, templates
from numus.compiler.schedule_template import Lowered, ScheduleTemplate
from numus.ir.symbolic_size import Recorder, pack_function, unpack_function
from numus.kernels.vendor.registry import kernel_choice_key
from numus.lru import LruTable
from numus.runtime.contract import Runtime
from numus.target import Target

_MAX_STRUCTURES = 64
_MAX_TEMPLATES = 16  # of one structure
_MAX_VALUES = 1 << 15  # of all templates together, about 30 MB
_MAX_SCHEDULES = 8  # of one template
_MAX_SEEN = 4  # sizes of a structure that tell which of its numbers vary
_MIN_STORED_PARTS = 200  # of a skeleton, of some 40 nodes; smaller ones are fused in no time

Numbers = tuple[int, ...]


class _Template:
    """A recorded fusion: the numbers it is made for, and those that may vary."""

    def __init__(
        self, graph: GraphSignature, roots: Sequence[Any], target: Any, seen: Sequence[Numbers]
    ) -> None:
        numbers = seen[-1]
        columns = list(zip(*seen, strict=True))
        positions: dict[Any, list[int]] = {}  # numbers that were equal in all sizes share a symbol
        for i, column in enumerate(columns):
            if column.count(column[0]) < len(column):
                positions.setdefault(column, []).append(i)
        self._positions = list(positions.values())
        symbol_of = {i: s for s, found in enumerate(self._positions) for i in found}
        fixed = [i for i in range(len(numbers)) if i not in symbol_of]
        self._fixed = fixed, [numbers[i] for i in fixed]
        recorder = Recorder([numbers[found[0]] for found in self._positions], interned=True)
        sizes = [
            recorder.symbols[symbol_of[i]] if i in symbol_of else n for i, n in enumerate(numbers)
        ]
        self._stored_fused = b""
        self.fused = fused = FusedGraph(graph, roots, target, sizes=iter(sizes))
        self.size = len(fused.values())
        found = fused.numbers()
        self.position = {n.name: i for i, n in enumerate(found)}
        self._function = recorder.function(found)
        self.schedules: dict[Any, ScheduleTemplate] = {}  # by the shapes of lowered groups
        # for the first of those that are equal, by number
        self.groups = {
            i: GroupTemplates(fused, i, self.position)
            for i, (first, _) in enumerate(fused.equal_groups.values())
            if i == first
        }

    def __getstate__(self) -> Any:
        fused = self._stored_fused or pickle.dumps(self.fused, pickle.HIGHEST_PROTOCOL)
        function = pack_function(self._function)
        names = ("_positions", "_fixed", "size", "position", "schedules", "groups")
        return {n: getattr(self, n) for n in names} | {"_stored_fused": fused}, function

    def __setstate__(self, state: Any) -> None:
        given, function = state
        self.__dict__.update(given)
        self._function = unpack_function(function)

    @functools.cached_property
    def fused(self) -> FusedGraph:
        """The fused graph, with symbolic sizes."""
        found: FusedGraph = pickle.loads(self._stored_fused)
        return found

    @functools.cached_property
    def _fixed_numbers(self) -> tuple[Callable[[Numbers], Any], Any]:
        """A function that gets the numbers that may not vary, and what they have to be."""
        positions, numbers = self._fixed
        if len(positions) < 2:  # `itemgetter` of one position gives no tuple
            return (lambda given: [given[i] for i in positions]), numbers
        return itemgetter(*positions), tuple(numbers)

    @property
    def extent(self) -> int:
        """How much there is to store; it only grows."""
        known = [len(found) for group in self.groups.values() for found in group.known.values()]
        return 1 + len(self.schedules) + sum(known)

    def match(self, numbers: Numbers) -> Match | None:
        """The template with these numbers; None where fusing would decide otherwise."""
        get, fixed = self._fixed_numbers
        if get(numbers) != fixed:
            return None
        values = []
        for first, *others in self._positions:
            n = numbers[first]
            for i in others:
                if numbers[i] != n:
                    return None
            values.append(n)
        try:
            found: Any = self._function(*values)
        except ZeroDivisionError:  # ahead of the guard that excludes it
            return None
        return None if found is None else Match(self, found)


class Match:
    """A template with the numbers of a graph."""

    def __init__(self, template: _Template, numbers: Numbers) -> None:
        self._template, self._numbers = template, numbers

    @functools.cached_property
    def fused(self) -> FusedGraph:
        """The fused graph of these numbers."""
        numbers, position = self._numbers, self._template.position
        return self._template.fused.with_numbers(lambda x: numbers[position[x.name]])

    def _lowered(self, runtime: Runtime[Any]) -> Lowered | None:
        """Templates of all groups, new ones where lowering decides otherwise than before; None
        where one is not possible."""
        out: Lowered = {}
        template = self._template
        for i, group in template.groups.items():
            found = group.find(lambda: template.fused, self._numbers, runtime)
            if found is None and not templates.is_fixed(group.kind, runtime):
                fused = self.fused
                own = fused.groups[i]
                if any(v.size == 0 for v in own.members):  # plans leave such groups out
                    return None
                templates.lower(own, fused.memory_layouts(), fused.equal_groups[own][1], runtime)
                found = group.find(lambda: template.fused, self._numbers, runtime)
            if found is None:
                return None
            out[i] = found
        return out

    def resized_plan(self, runtime: Runtime[Any]) -> LaunchPlan | None:
        """The plan, by the schedule of another size; None where there is none that serves."""
        schedules = self._template.schedules
        lowered = self._lowered(runtime) if schedules else None
        if lowered is None:
            return None
        schedule = schedules.get(_shapes(lowered))
        return None if schedule is None else schedule.plan(self._numbers, lowered, runtime)

    def keep_schedule(self, plan: ScheduledPlan, runtime: Runtime[Any]) -> None:
        """Keep the schedule of a plan for other sizes."""
        template = self._template
        if not ScheduleTemplate.supports(plan) or len(template.schedules) >= _MAX_SCHEDULES:
            return
        lowered = self._lowered(runtime)
        if lowered is not None and _shapes(lowered) not in template.schedules:
            made = ScheduleTemplate(plan, template.fused, template.position, lowered)
            template.schedules[_shapes(lowered)] = made


def _shapes(lowered: Lowered) -> Any:
    return tuple([template.shape for template, _ in lowered.values()])


class Structure:
    """The sizes in which a structure came, last ones, and its templates."""

    def __init__(self, skeleton: Any, target: Target) -> None:
        self.seen: list[Numbers] = []
        self.templates: list[_Template] = []
        self._name: str | None = None
        if len(skeleton) > _MIN_STORED_PARTS:
            self._name = stored_templates.name(("plan", kernel_choice_key(), skeleton), [], target)
        for template in stored_templates.load(self._name) or ():
            _keep(self, template)
        self._stored_extent = self._extent

    @property
    def _extent(self) -> int:
        return sum([template.extent for template in self.templates])

    def store(self) -> None:
        """Store the templates, where there are new ones."""
        if self._name is not None and self._extent > self._stored_extent:
            self._stored_extent = self._extent
            stored_templates.store(self._name, self.templates)

    def match(self, numbers: Numbers) -> Match | None:
        """The template that serves these numbers; None where there is none yet."""
        for template in reversed(self.templates):
            found = template.match(numbers)
            if found is not None:
                return found
        return None

    def record(self, graph: GraphSignature, roots: Sequence[Any], target: Target) -> Match | None:
        """A new template, for a graph's numbers; None while it is not known which of them vary,
        and where the first sizes are not stored."""
        seen = self.seen = [*self.seen[1 - _MAX_SEEN :], graph.numbers]
        varying = [column[-1] for column in zip(*seen, strict=True) if len(set(column)) > 1]
        if len(self.templates) >= _MAX_TEMPLATES:
            return None
        if not varying or min(varying) < 2:
            if self.templates or self._name is None:
                return None
            seen = seen[-1:]
        made = _Template(graph, roots, target, seen)
        _keep(self, made)
        found = made.match(graph.numbers)
        assert found is not None, "a template does not serve the sizes it was recorded for"
        return found


_structures: LruTable[Any, Structure] = LruTable(_MAX_STRUCTURES)
_made: deque[tuple[Structure, _Template]] = deque()  # in order
on_clear_plans += [_structures.clear, _made.clear]


def _keep(structure: Structure, template: _Template) -> None:
    """Add a template, and drop the oldest ones where there are too many."""
    structure.templates = [*structure.templates, template]
    _made.append((structure, template))
    total = sum(made.size for _, made in _made)
    while total > _MAX_VALUES and len(_made) > 1:
        owner, oldest = _made.popleft()
        owner.templates = [x for x in owner.templates if x is not oldest]
        total -= oldest.size


def structure_of(device: Any, graph: GraphSignature) -> Structure:
    key = (device.name, kernel_choice_key(), graph.skeleton)
    target = device.runtime.target
    return _structures.setdefault(key, lambda: Structure(graph.skeleton.parts, target))


@atexit.register
def store_all() -> None:
    """Store the templates of all structures."""
    for structure in _structures.values():
        structure.store()
    stored_templates.flush()
