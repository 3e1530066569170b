"""Mesh: the ranks of the world on a grid with named axes, and the groups along its axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from numus.distributed.groups import Group, split, world
from numus.errors import DistributedError

__all__ = ["Mesh"]


class Mesh:
    """All ranks on a grid, row by row: neighbours along the last axis have neighbouring ranks.

    Each axis has an extent, and one of them may be -1: what is left. All ranks make the same mesh.

    >>> mesh = nm.Mesh(data=-1, tensor=1)
    >>> mesh.shape
    {'data': 1, 'tensor': 1}
    >>> mesh.group("data")
    Group(data of the mesh data=1, tensor=1, rank 0 of 1)
    """

    def __init__(self, **axes: int) -> None:
        whole = world()
        if not axes:
            raise ValueError("Mesh: takes axes by name, as in Mesh(data=2, tensor=4)")
        self.shape = {name: int(n) for name, n in axes.items()}
        open_axes = [name for name, n in self.shape.items() if n == -1]
        known = math.prod(n for n in self.shape.values() if n != -1)
        if len(open_axes) > 1 or any(n < 1 and n != -1 for n in self.shape.values()):
            raise ValueError(f"Mesh: {self}: extents are at least 1, and at most one is -1")
        if open_axes and whole.size % known == 0:
            self.shape[open_axes[0]] = whole.size // known
        if math.prod(self.shape.values()) != whole.size:
            raise DistributedError(
                f"Mesh: {self} has places for {math.prod(map(abs, self.shape.values()))} ranks, "
                f"but the world has {whole.size}; start as many processes, or choose axes "
                "that divide the world (one of them may be -1: what is left)"
            )
        self._groups: dict[tuple[str, ...], Group] = {}
        self._coordinates: dict[str, int] = {}
        rest = whole.rank
        for name in reversed(self.shape):
            rest, self._coordinates[name] = divmod(rest, self.shape[name])
        for name in self.shape:  # now, while all ranks are here
            self._groups[(name,)] = self._split((name,))

    def __str__(self) -> str:
        return ", ".join(f"{name}={n}" for name, n in self.shape.items())

    def __repr__(self) -> str:
        return f"Mesh({self})"

    @property
    def axis_names(self) -> tuple[str, ...]:
        """The names of the axes, in order."""
        return tuple(self.shape)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self.shape.values())

    def coordinate(self, axis: str) -> int:
        """Where this rank is along an axis.

        >>> nm.Mesh(data=1).coordinate("data")
        0
        """
        (name,) = self._names(axis)
        return self._coordinates[name]

    def group(self, axes: str | Sequence[str]) -> Group:
        """The ranks that differ from this one along these axes only. Where there are several axes,
        all ranks call it the first time."""
        names = self._names(axes)
        found = self._groups.get(names)
        if found is None:
            found = self._groups[names] = self._split(names)
        return found

    def _names(self, axes: str | Sequence[str]) -> tuple[str, ...]:
        given = (axes,) if isinstance(axes, str) else tuple(axes)
        for name in given:
            if name not in self.shape:
                raise ValueError(f"Mesh: {name!r} must be one of its axes: {', '.join(self.shape)}")
        return tuple(name for name in self.shape if name in given)

    def _split(self, names: tuple[str, ...]) -> Group:
        color = key = 0
        for name, n in self.shape.items():
            at = self._coordinates[name]
            if name in names:
                key = key * n + at
            else:
                color = color * n + at
        return split(color, key, f"{' and '.join(names)} of the mesh {self}")
