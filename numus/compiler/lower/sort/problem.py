"""The problems that sort and top-k schedules solve."""

from __future__ import annotations

from dataclasses import dataclass

from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import is_argsort, num_rows
from numus.compiler.lower.schedule import Problem
from numus.dtypes import DType
from numus.kernels.sort.keys import key_dtype


@dataclass(frozen=True)
class SortProblem(Problem):
    """A sort, argsort or top-k of the rows along an axis: a group of one value."""

    @property
    def val(self) -> Value:
        return self.group.members[0]

    @property
    def source(self) -> Value:
        return self.val.inputs[0]

    @property
    def axis(self) -> int:
        return int(self.val.params[0])

    @property
    def length(self) -> int:
        return self.source.shape[self.axis]

    @property
    def rows(self) -> int:
        return num_rows(self.source.shape, self.axis)

    @property
    def argsort(self) -> bool:
        return is_argsort(self.val)

    @property
    def key(self) -> DType:
        return key_dtype(self.source.dtype)


class TopkProblem(SortProblem):
    @property
    def count(self) -> int:
        """k."""
        return int(self.val.params[1])

    @property
    def descending(self) -> bool:
        return bool(self.val.params[2])
