"""Routines of LAPACK as a primitive: whole factorisations by a vendor's library.

linalg makes one where a library is chosen (`kernels/vendor/lapack.py`). It is the library's then,
whatever is preferred when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numus.dispatch.apply import apply
from numus.graph import Array, Node, Nodes
from numus.primitives.base import nondifferentiable
from numus.primitives.broadcast import batch_all
from numus.primitives.views import reshape
from numus.runtime.devices import device
from numus.runtime.lapack_routines import described, result_length


def _reference(node: Node, *arrays: Array) -> Array:
    """By the CPU's library: there is no other."""
    from numus.runtime.cpu import lapack  # imported late: it loads SciPy

    name, option = node.params
    out = np.empty(node.shape, node.dtype.np)
    given = [np.ascontiguousarray(x) for x in arrays]
    lapack.run(device("cpu").runtime, described(name, option, *node.inputs), [*given, out])
    return out


def _batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    whole = batch_all(inputs, batched, size)
    stacks = [reshape(x, (size * x.shape[1], *x.shape[2:])) for x in whole]
    return reshape(routine(*node.params, *stacks), (size, *node.shape))


_routine = nondifferentiable("lapack", "factor", _reference, _batch)


def routine(name: str, option: int | str, *xs: Node) -> Node:
    """The packed results (batch, length) of stacks of matrices, as `lapack_routines` describes."""
    length = result_length(described(name, option, *xs), xs[0].dtype)
    return apply(_routine, xs, (name, option), (xs[0].shape[0], length), xs[0].dtype)
