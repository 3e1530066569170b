"""When things run: evaluation on request, and waiting for devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numus.evaluation.evaluate import check_known, evaluate
from numus.graph import active_hooks
from numus.runtime.devices import Device, device
from numus.tensor import Tensor
from numus.transforms import tree

__all__ = ["eval", "synchronize"]


def eval(*values: Any) -> None:
    """Compute pending tensors now, together: what they share is computed once.

    Values are computed by themselves when they are needed; this is for timing and control.

    Args:
        values: tensors, or containers of them (lists, dictionaries, sets, dataclasses, quantised
            tensors and whatever else `nm.tree` knows, nested as you like), or objects with a
            `parameters()` method; whatever is not a tensor is passed over.

    >>> x = nm.ones(3) + 1
    >>> nm.eval(x)
    """
    if len(values) == 1 and values[0].__class__ is Tensor:
        node = values[0]._node
        if node.abstract or active_hooks:
            check_known(node, "nm.eval()")
        if node.view is None:
            evaluate((node,))
        return
    found: list[Tensor] = []
    stack = list(values)
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            check_known(item._node, "nm.eval()")
            found.append(item)
        elif isinstance(item, Mapping):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(item)
        elif hasattr(item, "parameters"):
            stack.extend(item.parameters())
        else:
            stack.extend(tree.entries(item) or ())
    evaluate([x._node for x in found])


def synchronize(on: Device | str | None = None) -> None:
    """Wait until a device has done all that was asked of it, and raise what went wrong there."""
    device(on).runtime.synchronize()
