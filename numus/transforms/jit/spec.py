"""The specification of a traced function: program, guards, outputs and effects.

Made by `traced`, run by `executable`, compiled to a fast call by `fast_path`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numus import aliases
from numus.dtypes import DType
from numus.errors import TracingError
from numus.graph import Node
from numus.primitives.source import placeholder
from numus.runtime.devices import Device
from numus.shapes import Shape
from numus.tensor import Tensor, detached
from numus.transforms import tree
from numus.transforms.jit.inputs import ArgumentRef, GradientRef, HandleRef, InputRef, TracedInput
from numus.transforms.jit.program import Program
from numus.transforms.jit.scalars import Scalar
from numus.transforms.jit.tracing import TraceBailout
from numus.transforms.jit.variables import ABSENT, Change, Precondition, VariableRef

Values = Sequence[Any]  # leaves of a call's arguments, or the Python numbers among them
# A leaf of the result: an output of the program, or a function of (leaves, numbers) of the call.
Result = int | Callable[[Values, Values], Any]


class ConstantResult:
    """A leaf of the result that is not a tensor."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, leaves: Values, numbers: Values) -> Any:
        return self.value


# -- effects --------------------------------------------------------------------------------------


class Binding(NamedTuple):
    """A tensor that is bound to an output after the call."""

    target: InputRef
    output: int
    is_leaf: bool


class VariableWrite:
    """A variable that each call assigns, and how its value is made."""

    def __init__(
        self, change: Change, results: list[Result], leaves: list[bool], structure: tree.Structure
    ) -> None:
        self._namespace, self._key = change.namespace, change.key
        self._deletes = change.after is ABSENT
        self.results, self._requires_grad, self._structure = results, leaves, structure

    def value(self, leaves: Values, numbers: Values, made: dict[int, Tensor]) -> Any:
        """The value after a call."""
        found = [made[x] if isinstance(x, int) else x(leaves, numbers) for x in self.results]
        found = [
            Tensor(detached(x._node, sees_writes=False)).requires_grad_() if leaf else x
            for x, leaf in zip(found, self._requires_grad, strict=True)
        ]
        return tree.unflatten(self._structure, found)

    def write(self, value: Any) -> None:
        if not self._deletes:
            self._namespace.put(self._key, value)
        elif self._namespace.get(self._key) is not ABSENT:
            self._namespace.drop(self._key)


@dataclass(slots=True)
class Effects:
    """Side effects of a call."""

    bindings: list[Binding]
    grads: list[tuple[GradientRef, int | InputRef | None]]  # an output, another tensor, or none
    donated: list[int]  # arguments that give up their memory
    variables: list[VariableWrite]
    # inputs and the outputs that replace them, by number, with the binding
    in_place: dict[tuple[int, int], int]

    def __bool__(self) -> bool:
        return bool(self.bindings or self.grads or self.donated or self.variables)


class Donated:
    """The `abstract` of a donated tensor's node: using it is an error."""

    word = "donated"

    def __init__(self, name: str) -> None:
        self._name = name

    def check_open(self) -> None:
        raise TracingError(
            f"this tensor was donated to {self._name}, which has written its results to its "
            "memory; leave the argument out of `donate`, or use the result"
        )

    def node(self, given: Node) -> Node:
        """The node of a donated tensor."""
        out = placeholder(given.shape, given.dtype, given.device, self._name)
        out.abstract = self
        return out


# -- guards ---------------------------------------------------------------------------------------


def alias_pattern(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """For each tensor the first that is the same object."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(x), i) for i, x in enumerate(tensors))


class CapturedTensors:
    """Captured tensors, for alias checks."""

    def __init__(self, refs: Iterable[InputRef]) -> None:
        refs = list(refs)
        # by their ids, which others may get after them
        self._handles = {id(r.find(())): r for r in refs if isinstance(r, HandleRef)}
        variables = [r for r in refs if isinstance(r, VariableRef)]
        self._readers = [r.reader for r in variables if r.reader is not None]
        self._in_containers = [r for r in variables if r.reader is None]

    def __bool__(self) -> bool:
        return bool(self._handles or self._readers or self._in_containers)

    def has_any(self, tensors: Sequence[Tensor], leaves: Sequence[Any]) -> bool:
        wanted = {id(x): x for x in tensors}
        for key in wanted.keys() & self._handles.keys():
            if self._handles[key].find(leaves) is wanted[key]:
                return True
        return any(id(read()) in wanted for read in self._readers) or any(
            id(r.find(leaves)) in wanted for r in self._in_containers
        )


@dataclass(slots=True)
class Guards:
    """Conditions of a call beyond the properties of its inputs."""

    grads: list[tuple[GradientRef, bool]]  # gradients read, and whether there was none
    several_refs: list[TracedInput]  # inputs that several references must agree on
    preconditions: list[Precondition]
    flags: list[tuple[Callable[[], Any], Any]]  # variables such as `training`, and their values
    shared: list[tuple[Callable[[], Any], Callable[[], Any]]]  # variables that hold one tensor
    arguments: list[int]  # leaves that are tensors
    aliases: tuple[int, ...] | None  # their alias pattern, where it matters
    changed: CapturedTensors  # captured tensors that the call changes
    changed_arguments: list[int]
    captured: CapturedTensors

    def __bool__(self) -> bool:
        lists = self.grads, self.several_refs, self.aliases, self.preconditions, self.shared
        return any(lists) or bool(self.flags or (self.changed and self.arguments))

    def hold(self, leaves: Sequence[Any]) -> bool:
        """True if the conditions of the trace hold for the arguments of a call."""
        for ref, was_none in self.grads:
            slot = ref.slot(leaves)
            if slot is None or (slot._grad is None) != was_none:
                return False
        if any(source.find(leaves) is None for source in self.several_refs):
            return False
        if not all(condition.holds() for condition in self.preconditions):
            return False
        for read, flag in self.flags:
            if read() is not flag:
                return False
        for read, known in self.shared:
            if read() is not known():
                return False
        if self._has_aliases(leaves):
            raise TraceBailout
        if self.aliases is not None:
            if alias_pattern([leaves[i] for i in self.arguments]) != self.aliases:
                return False
            if self.captured.has_any([leaves[i] for i in self.changed_arguments], leaves):
                raise TraceBailout  # it is changed, and captured as well
        if self.changed and self.changed.has_any([leaves[i] for i in self.arguments], leaves):
            raise TraceBailout
        return True

    def _has_aliases(self, leaves: Sequence[Any]) -> bool:
        """True if a tensor that is changed and another tensor of the call are views of one another,
        which the trace does not know of arguments."""
        aliased = [i for i in self.arguments if leaves[i]._alias is not None]
        if not aliased or not (self.changed or self.changed_arguments):
            return False
        arguments = {id(leaves[i]) for i in self.arguments}
        for i in aliased:
            others: list[Any] = aliases.others(leaves[i])
            if i in self.changed_arguments and (
                any(id(x) in arguments for x in others) or self.captured.has_any(others, leaves)
            ):
                return True
            if self.changed.has_any(others, leaves):
                return True
        return False


# -- the whole ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Spec:
    """A function traced for one structure of its arguments."""

    name: str
    program: Program
    inputs: list[TracedInput]
    numbers: list[tuple[int, type]]  # leaves that are Python numbers, and their types
    scalars: list[tuple[Scalar, DType]]
    generators: list[Any]  # of random keys
    results: list[Result]
    structure: tree.Structure
    output_types: list[tuple[Shape, DType, Device | None]]
    guards: Guards
    effects: Effects

    def visible_outputs(self) -> list[int]:
        """Outputs that become tensors."""
        found = [*self.results, *(new for _, new in self.effects.grads)]
        found += [x for write in self.effects.variables for x in write.results]
        return sorted({x for x in found if isinstance(x, int)})

    def is_dead(self) -> bool:
        """True if a captured tensor is gone, so that it can never run again."""
        return any(
            isinstance(r, HandleRef) and r.find(()) is None for x in self.inputs for r in x.refs
        )


class InputGuard(NamedTuple):
    """An input of an executable: an argument, a reader or a reference, and required properties."""

    argument: int | None
    reader: Any
    ref: InputRef
    shape: Shape
    dtype: DType
    device: Device | None
    strides: Shape
    tracked: bool

    @classmethod
    def of(cls, ref: InputRef, node: Node) -> InputGuard:
        assert node.view is not None
        index = ref.index if isinstance(ref, ArgumentRef) else None
        return cls(
            *(index, ref.reader, ref, node.shape, node.dtype, node.device),
            *(node.view.strides, node.tracked),
        )


@dataclass(slots=True)
class Specialization:
    """A spec for inputs of one layout and the modes of the moment."""

    spec: Spec
    arity: int  # leaves of the arguments
    inputs: list[InputGuard]
    mode: tuple[Any, ...]  # grad, autocast, default device
    run: Any
    output_types: list[tuple[Shape, DType, Device]]
    # outputs that may be written to an input's memory: block, input, binding, bytes
    donations: list[tuple[int, InputRef, int | None, int]]
