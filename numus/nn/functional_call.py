"""A module as a function of its parameters: for `nm.grad`, `nm.vmap` and their kin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numus.functions.shape.concatenation import stack
from numus.nn.module import Module, member
from numus.tensor import Tensor

__all__ = ["functional_call", "stack_module_state"]


def stack_module_state(
    models: Sequence[Module],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and buffers of models of one kind, stacked by name: an ensemble for `nm.vmap`.

    >>> from numus import nn
    >>> params, buffers = nn.stack_module_state([nn.Linear(2, 1) for _ in range(5)])
    >>> params["weight"].shape, buffers
    ((5, 1, 2), {})
    """
    if not models or len({type(m) for m in models}) > 1:
        raise ValueError("stack_module_state: takes models, all of one class")
    named = [dict(m.named_parameters()) for m in models]
    params = {name: stack([m[name].detach() for m in named]) for name in named[0]}
    for name, tensor in params.items():
        tensor.requires_grad = named[0][name].requires_grad
    held = [dict(m.named_buffers()) for m in models]
    return params, {name: stack([m[name] for m in held]) for name in held[0]}


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Tensor],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Call a module with other tensors in place of parameters and buffers; it is left unchanged.

    >>> from numus import nn
    >>> layer = nn.Linear(2, 1)
    >>> def loss(params, x):
    ...     return nn.functional_call(layer, params, x).sum()
    >>> nm.grad(loss)(dict(layer.named_parameters()), nm.ones((3, 2)))["weight"].tolist()
    [[3.0, 3.0]]
    """
    owners = owners_of(module)
    unknown = [name for name in parameters_and_buffers if name not in owners]
    if unknown:
        raise KeyError(f"functional_call: {type(module).__name__} has no {', '.join(unknown)}")
    replaced: list[tuple[Any, Any, Any]] = []
    try:
        for name, tensor in parameters_and_buffers.items():
            for holder, key in owners[name]:
                replaced.append((holder, key, holder[key]))
                holder[key] = tensor
        given = args if isinstance(args, tuple) else (args,)
        return module(*given, **(kwargs or {}))
    finally:
        for holder, key, before in reversed(replaced):
            holder[key] = before


def owners_of(module: Module) -> dict[str, list[tuple[Any, Any]]]:
    """The namespaces and keys of each parameter and buffer; tied ones have several."""
    named: list[tuple[str, Tensor]] = list(module.named_parameters(remove_duplicate=False))
    named += module.named_buffers(remove_duplicate=False)
    by_tensor: dict[int, list[tuple[Any, Any]]] = {}
    for name, tensor in named:
        owner: Any = module
        *path, last = name.split(".")
        for part in path:
            owner = member(owner, part, name)
        namespace = owner.__dict__ if isinstance(owner, Module) else owner
        key = int(last) if isinstance(namespace, list) else last
        by_tensor.setdefault(id(tensor), []).append((namespace, key))
    return {name: by_tensor[id(tensor)] for name, tensor in named}
