"""Primitives that have no inputs: constants, counters, realised values, placeholders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from numus.dispatch.node_ops import new_node
from numus.dtypes import DType
from numus.errors import TracingError
from numus.graph import Array, Node, View
from numus.primitives.base import nondifferentiable
from numus.runtime.devices import Device
from numus.shapes import Shape

if TYPE_CHECKING:
    from numus.runtime.pycall.builder import BytecodeBuilder


def _leaf_batch(node: Node, *_: Any) -> Node:
    return node


_constant = nondifferentiable(
    "constant", "source", lambda node: np.asarray(node.params).astype(node.dtype.np), _leaf_batch
)


def constant(value: Any, dtype: DType) -> Node:
    """A scalar known on the host. Its value is an argument of kernels, not part of their code."""
    return Node(_constant, (), value, (), dtype, None)


def new_constant(code: BytecodeBuilder, number: int, dtype: int) -> int:
    """`constant` in bytecode."""
    members = {"prim": _constant, "inputs": (), "shape": (), "device": None, "tracked": False}
    registers = {"params": number, "dtype": dtype}
    return new_node(code, {**members, "depth": 0, "retained_bytes": 0}, registers)


_iota = nondifferentiable(
    "iota", "source", lambda node: np.arange(node.shape[0], dtype=node.dtype.np), _leaf_batch
)


def iota(count: int, dtype: DType, device: Device | None) -> Node:
    """0, 1, 2, … count - 1, computed where it is used. Integer dtypes."""
    return Node(_iota, (), None, (count,), dtype, device)


def _value_reference(node: Node) -> Array:
    raise AssertionError("a realised node is read, not computed")


VALUE = nondifferentiable("value", "source", _value_reference, _leaf_batch)


def value(view: View, shape: Shape, dtype: DType, device: Device | None) -> Node:
    """A realised node."""
    node = Node(VALUE, (), None, shape, dtype, device)
    node.view = view
    return node


# A value that does not change and is held by a cache: graph templates take it as it is.
TABLE = nondifferentiable("table", "source", _value_reference, _leaf_batch)


def forget(node: Node) -> None:
    """Turn an evaluated node into a plain value, dropping its inputs."""
    node.prim, node.inputs, node.params = VALUE, (), None
    node.depth = node.retained_bytes = 0


def write_forget(code: BytecodeBuilder, node: int) -> None:
    """`forget` in bytecode."""
    members = {"prim": VALUE, "inputs": (), "params": None, "depth": 0, "retained_bytes": 0}
    for name, thing in members.items():
        code.set_const(node, Node, name, thing)


def _placeholder_reference(node: Node) -> Array:
    raise TracingError(
        f"the value of a traced {node.dtype.name}{list(node.shape)} tensor is not known inside "
        f"{node.params}; use nm.where instead of a Python condition, or move the read outside"
    )


_placeholder = nondifferentiable("placeholder", "source", _placeholder_reference, _leaf_batch)


def placeholder(shape: Shape, dtype: DType, device: Device | None, owner: str) -> Node:
    """An input of a traced function: a shape and a dtype without a value."""
    node = Node(_placeholder, (), owner, shape, dtype, device)
    node.abstract = True
    return node
