"""Hooks around a module's `forward` and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numus as nm
from numus.tensor import Tensor
from numus.transforms import tree


class Hooks:
    """The hooks of one module, in the order in which they were registered."""

    def __init__(self) -> None:
        self.before: dict[int, Callable[..., Any]] = {}
        self.after: dict[int, Callable[..., Any]] = {}
        self.backward_before: dict[int, Callable[..., Any]] = {}
        self.backward_after: dict[int, Callable[..., Any]] = {}

    def add(self, when: str, hook: Callable[..., Any]) -> nm.RemovableHandle:
        return nm.RemovableHandle(getattr(self, when), hook)

    def call(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `forward` with all hooks."""
        for hook in tuple(self.before.values()):
            args = _replaced(args, hook(module, args))
        watched = self.backward_before or self.backward_after
        seen: list[Any] = []  # the gradients of the outputs, once they are known
        if watched:
            args = _watched(args, lambda grads: self._leaving(module, grads, seen))
        output = module.forward(*args, **kwargs)
        for hook in tuple(self.after.values()):
            answer = hook(module, args, output)
            output = output if answer is None else answer
        if watched:
            output = _watched(output, lambda grads: self._entering(module, grads, seen))
        return output

    def _entering(self, module: Any, grads: tuple[Any, ...], seen: list[Any]) -> tuple[Any, ...]:
        for hook in tuple(self.backward_before.values()):
            grads = _replaced(grads, hook(module, grads))
        seen[:] = [grads]
        return grads

    def _leaving(self, module: Any, grads: tuple[Any, ...], seen: list[Any]) -> tuple[Any, ...]:
        for hook in tuple(self.backward_after.values()):
            grads = _replaced(grads, hook(module, grads, seen[0]))
        return grads


def _replaced(before: tuple[Any, ...], answer: Any) -> tuple[Any, ...]:
    if answer is None:
        return before
    return answer if isinstance(answer, tuple) else (answer,)


def _watched(values: Any, tell: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Any:
    """Identity whose backward pass calls `tell` with the gradients of the tensors."""
    leaves, structure = tree.flatten(values)
    at = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.dtype.is_inexact]
    if not at:
        return values

    @nm.custom_vjp
    def same(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tensors

    same.defvjp(lambda *tensors: (tensors, None), lambda _, grads: tell(tuple(grads)))
    for i, tensor in zip(at, same(*(leaves[i] for i in at)), strict=True):
        leaves[i] = tensor
    return tree.unflatten(structure, leaves)
