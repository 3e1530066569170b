"""Gradient hooks, called while `backward()` runs: on one tensor, or on every leaf."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from numus.errors import GradientError
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.tensor import GradSlot, Tensor, method

__all__ = ["BackwardHook", "RemovableHandle", "register_backward_hook"]

_next_key = itertools.count().__next__


class RemovableHandle:
    """A registered hook. Remove it by `remove()`, or use the handle as a context manager."""

    def __init__(self, hooks: dict[int, Any], hook: Any) -> None:
        self._hooks = hooks
        self._key = _next_key()
        hooks[self._key] = hook

    def remove(self) -> None:
        """Call the hook no more."""
        self._hooks.pop(self._key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _slot(x: Tensor, what: str) -> GradSlot:
    node = x._node
    if not node.tracked:
        raise GradientError(f"{what}: this tensor does not require gradients")
    if node.grad_slot is None:
        node.grad_slot = GradSlot(leaf=False, owner=x)
    return node.grad_slot


# -- on one tensor --------------------------------------------------------------------------------


@method("register_hook")
def register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call `hook(gradient)` when this tensor's gradient is known; its result replaces it.

    It belongs to the current value of the tensor: in-place changes drop it, except on leaves.
    """
    return RemovableHandle(_slot(self, "register_hook").hooks, hook)


@method("register_post_accumulate_grad_hook")
def register_post_accumulate_grad_hook(
    self: Tensor, hook: Callable[[Tensor], None]
) -> RemovableHandle:
    """Call `hook(tensor)` after `backward()` has added to the `.grad` of this leaf."""
    if not self.is_leaf:
        raise GradientError("register_post_accumulate_grad_hook: only leaves accumulate gradients")
    return RemovableHandle(_slot(self, "register_post_accumulate_grad_hook").later_hooks, hook)


@method("retain_grad")
def retain_grad(self: Tensor) -> None:
    """Let `backward()` keep the gradient of this computed tensor in `.grad` as well."""
    _slot(self, "retain_grad").retains = True


@method("requires_grad_")
def requires_grad_(self: Tensor, requires_grad: bool = True) -> Tensor:
    """Set `requires_grad` and return the tensor."""
    self.requires_grad = requires_grad
    return self


# -- on every leaf --------------------------------------------------------------------------------


class BackwardHook:
    """Called for every leaf whose gradient is complete, while `backward()` still works on others.

    Subclass it and `register_backward_hook` it: to average gradients between processes, say.
    """

    def on_leaf_grad_ready(self, leaf: Tensor, grad: Tensor) -> Tensor | None:
        """`grad` is what this `backward()` adds to `leaf.grad`; return another to add instead."""
        raise NotImplementedError


_leaf_hooks: dict[int, BackwardHook] = {}


def register_backward_hook(hook: BackwardHook) -> RemovableHandle:
    """Call a hook for every leaf's gradient, in every `backward()` from now on."""
    if not callable(getattr(hook, "on_leaf_grad_ready", None)):
        raise TypeError(f"register_backward_hook: takes a BackwardHook, not {type(hook).__name__}")
    return RemovableHandle(_leaf_hooks, hook)


# -- called by reverse mode -----------------------------------------------------------------------


def run(node: Node, g: Node) -> Node:
    """The gradient after the hooks of a node's tensor."""
    for hook in tuple(node.grad_slot.hooks.values()):
        g = _replaced(g, hook(Tensor(g)), "a hook")
    return g


def deliver(node: Node, g: Node) -> None:
    """Add a complete gradient to its `.grad`, and call hooks."""
    slot: GradSlot = node.grad_slot
    owner = slot.owner()
    owner = Tensor(node) if owner is None else owner
    if slot.leaf:
        for leaf_hook in tuple(_leaf_hooks.values()):
            g = _replaced(g, leaf_hook.on_leaf_grad_ready(owner, Tensor(g)), "a BackwardHook")
    slot.grad = Tensor(g if slot.grad is None else ew.add(slot.grad._node, g))
    for hook in tuple(slot.later_hooks.values()):
        hook(owner)


def _replaced(g: Node, answer: Any, who: str) -> Node:
    if answer is None:
        return g
    if not isinstance(answer, Tensor) or answer.shape != g.shape or answer.dtype is not g.dtype:
        raise GradientError(
            f"{who} answered {answer!r} for a gradient of {g.type_text}; it must return a tensor "
            "of the same shape and dtype, or None"
        )
    return answer._node
