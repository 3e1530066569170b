"""Lowering templates of the groups of a fused graph with symbolic sizes.

Which template serves a group depends on the pattern of its sizes: which of them are equal, and
which are -1, 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numus.compiler.fused_graph import FusedGraph
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import GEMM_KINDS, Layouts, Value
from numus.compiler.lower import autotune, templates
from numus.compiler.lower.templates import Numbers, Template
from numus.ir.symbolic_size import SymbolicSize
from numus.runtime.contract import Runtime
from numus.target import Target

Positions = Mapping[str, int]  # of symbolic sizes among the numbers of a fused graph


class _Expressions:
    """Collects the sizes of a group in the order in which they are met."""

    def __init__(self) -> None:
        self.met: dict[Any, None] = {}

    def pattern(self, sizes: Any) -> Any:
        if sizes.__class__ is tuple:
            for n in sizes:
                self.pattern(n)
        elif sizes.__class__ is SymbolicSize:
            self.met[sizes.name] = None
        elif sizes.__class__ is int:
            self.met[sizes] = None
        return sizes


class _Labels:
    """The pattern of a group's sizes, as `templates.Sizes` gives it for numbers."""

    def __init__(self, labels: dict[Any, Any]) -> None:
        self._labels = labels

    def pattern(self, sizes: Any) -> Any:
        if sizes.__class__ is tuple:
            return tuple([self.pattern(n) for n in sizes])
        if sizes.__class__ is SymbolicSize:
            return self._labels[sizes.name]
        return self._labels[sizes] if sizes.__class__ is int else sizes


class GroupTemplates:
    """Lowering templates of a group of symbolic sizes.

    Attributes:
        known: templates by the pattern of the sizes and the target, latest first.
    """

    def __init__(self, fused: FusedGraph, number: int, position: Positions) -> None:
        group, layouts, values = self._given(fused, number)
        self._number, self.kind = number, group.kind
        sizes = _Expressions()
        templates.structure_of(group, layouts, values, sizes)
        self._met = list(sizes.met)
        self._position = [position.get(x) if x.__class__ is str else None for x in self._met]
        self.known: dict[Any, list[Template]] = {}

    @staticmethod
    def _given(fused: FusedGraph, number: int) -> tuple[FusionGroup, Layouts, list[Value]]:
        group = fused.groups[number]
        return group, fused.layouts, fused.equal_groups[group][1]

    def find(
        self, fused: Callable[[], FusedGraph], numbers: Numbers, runtime: Runtime[Any]
    ) -> tuple[Template, Numbers] | None:
        """The template that serves the fused graph with these numbers, and what it gives."""
        if templates.is_fixed(self.kind, runtime):
            return None
        order: dict[int, int] = {}  # sizes, numbered as they are met
        labels = []
        for x, at in zip(self._met, self._position, strict=True):
            n = x if at is None else numbers[at]
            labels.append(n if -1 <= n <= 1 else 2 + order.setdefault(n, len(order)))
        pattern = tuple(labels)
        sizes = list(order)
        target: Target = runtime.target
        structure: Any = None
        if self.kind in GEMM_KINDS and autotune.choices.active:
            structure = self._structure(fused(), pattern)
            group = self._given(fused(), self._number)[0]
            chosen = templates.tuned_target(group, structure, sizes, runtime)
            if chosen is None:
                return None
            target = chosen
        known = self.known.setdefault((pattern, target is runtime.target or target), [])
        for i, template in enumerate(known):
            found = template.numbers(sizes)
            if found is not None:
                if i:  # the next size is likely to have it too
                    known.insert(0, known.pop(i))
                return template, found
        structure = structure or self._structure(fused(), pattern)
        other = templates.find(structure, sizes, runtime, target)
        if other is not None:
            known.insert(0, other[0])
        return other

    def _structure(self, fused: FusedGraph, pattern: tuple[int, ...]) -> Any:
        names = [n if n < 2 else f"s{n - 2}" for n in pattern]
        given = _Labels(dict(zip(self._met, names, strict=True)))
        return templates.structure_of(*self._given(fused, self._number), given)
