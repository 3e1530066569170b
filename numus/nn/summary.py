"""A model as a table: what it is made of, the shapes that flow through it, how much there is."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.nn.module import Module
from numus.tensor import Tensor


def summary(model: Module, *args: Any, **kwargs: Any) -> str:
    """The modules of a model with their parameters; given inputs, also the shapes they give.

    >>> from numus import nn
    >>> print(summary(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nm.ones((2, 3))))
    name  module      output  parameters
    ----  ----------  ------  ----------
          Sequential  (2, 4)          16
    0     Linear      (2, 4)          16
    1     ReLU        (2, 4)           0
    16 parameters (16 trainable), 64 bytes
    """
    shapes = _shapes(model, args, kwargs) if args or kwargs else {}
    rows = [("name", "module", "output", "parameters")]
    for name, module in model.named_modules():
        count = f"{module.num_parameters():,}"
        rows.append((name, type(module).__name__, shapes.get(id(module), ""), count))
    if not shapes:
        rows = [(a, b, d) for a, b, _, d in rows]  # type: ignore[misc]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, tuple("-" * w for w in widths))  # type: ignore[arg-type]
    lines = [
        "  ".join([*map(str.ljust, row[:-1], widths), row[-1].rjust(widths[-1])]) for row in rows
    ]
    total, learned = model.num_parameters(), model.num_parameters(trainable_only=True)
    size = sum(x.nbytes for x in (*model.parameters(), *model.buffers()))
    return "\n".join([*lines, f"{total:,} parameters ({learned:,} trainable), {size:,} bytes"])


def _shapes(model: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, str]:
    """The output shapes of every module in one pass without gradients."""
    found: dict[int, str] = {}

    def note(module: Module, _: Any, output: Any) -> None:
        tensors = [x for x in nm.tree.leaves(output) if isinstance(x, Tensor)]
        found[id(module)] = ", ".join(str(x.shape) for x in tensors)

    modes = [(module, module.training) for module in model.modules()]
    handles = [module.register_forward_hook(note) for module, _ in modes]
    try:
        with nm.no_grad():
            model.eval()(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes:
            module.training = training
    return found


Module.summary = summary
