"""The problem that scan schedules solve."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import num_rows
from numus.compiler.lower.schedule import Problem
from numus.dtypes import DType


@dataclass(frozen=True)
class ScanProblem(Problem):
    """A scan, the first member of its group, and elementwise consumers of it (CPU only)."""

    @property
    def val(self) -> Value:
        return self.group.members[0]

    @property
    def op(self) -> str:
        return str(self.val.params[0])

    @property
    def axis(self) -> int:
        return int(self.val.params[1])

    @property
    def length(self) -> int:
        return self.val.shape[self.axis]

    @property
    def rows(self) -> int:
        return num_rows(self.val.shape, self.axis)

    @property
    def real(self) -> DType:
        """The accumulator's dtype."""
        return dt.compute_dtype(dt.real_of(self.val.dtype))

    @property
    def components(self) -> int:
        """Real numbers per element."""
        return 2 if self.val.dtype.is_complex else 1
