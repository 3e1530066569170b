"""Module: the base class of layers, which finds parameters, buffers and modules by attribute.

There is no registration. Whatever parameter or module is an attribute, or an entry of a list, tuple
or dict that is one, is found when it is asked for, in the order in which it was set; buffers alone
have to be named (`register_buffer`), because a tensor may be an attribute for other reasons. Names
are PyTorch's: `layers.0.weight`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, Self, TypeVar

import numus as nm
from numus.functions.indexing.indexing import cast_value
from numus.functions.interop.namespace_info import destination
from numus.nn._hooks import Hooks
from numus.nn.parameter import Parameter, replace
from numus.tensor import Tensor, snapshot

__all__ = ["IncompatibleKeys", "Module"]

M = TypeVar("M", bound="Module")
T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class _Forward(Protocol[P, R]):
    """A module with a `forward` of these arguments and this result."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


class IncompatibleKeys(NamedTuple):
    """The names that only the module has, and those that only the state dict has."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """The base of layers and models: define `forward`, set parameters and modules as attributes.

    >>> from numus import nn
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         self.first = nn.Linear(4, 8)
    ...         self.second = nn.Linear(8, 1)
    ...     def forward(self, x):
    ...         return self.second(self.first(x).relu())
    >>> Net()(nm.ones((2, 4))).shape
    (2, 1)
    >>> [name for name, _ in Net().named_parameters()]
    ['first.weight', 'first.bias', 'second.weight', 'second.bias']
    """

    training: bool
    _buffers: dict[str, bool]  # name → whether the state dict holds it
    _hooks: Hooks | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # here, not in __init__: a subclass may leave out super().__init__()
        self = super().__new__(cls)
        self.__dict__.update(training=True, _buffers={}, _hooks=None)
        return self

    if TYPE_CHECKING:  # arguments and result of a call are those of the subclass's `forward`
        forward: Callable[..., Any]

        def __call__(self: _Forward[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...

    else:

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            """The computation of the module; subclasses define it."""
            raise NotImplementedError(f"{type(self).__name__} does not define forward()")

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if self._hooks is None:
                return self.forward(*args, **kwargs)
            return self._hooks.call(self, args, kwargs)

    def __setattr__(self, name: str, given: Any) -> None:
        value = self.__dict__.get(name)
        if isinstance(value, Parameter) and not (given is None or isinstance(given, Parameter)):
            raise TypeError(
                f"{type(self).__name__}.{name} is a parameter and cannot become a "
                f"{type(given).__name__}; change its values with {name}.assign(values), or set an "
                "nn.Parameter or None"
            )
        self.__dict__[name] = given

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._buffers.pop(name, None)

    # -- what it holds ----------------------------------------------------------------------------

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Hold a tensor that moves, is saved and loaded with the module, but is not learned.

        Args:
            persistent: whether the state dict holds it.
        """
        if tensor is not None and not isinstance(tensor, Tensor):
            tensor = nm.asarray(tensor)
        self._buffers[name] = persistent
        setattr(self, name, tensor)

    def register_parameter(self, name: str, parameter: Parameter | None) -> None:
        """Set a parameter by name; the same as setting the attribute."""
        if parameter is not None and not isinstance(parameter, Parameter):
            raise TypeError(
                f"register_parameter: {name!r} takes an nn.Parameter or None, not "
                f"{type(parameter).__name__}"
            )
        setattr(self, name, parameter)

    def register_module(self, name: str, module: Module | None) -> None:
        """Set a module by name; the same as setting the attribute."""
        setattr(self, name, module)

    add_module = register_module

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        """Every attribute with its name; the entries of lists, tuples and dicts have their own."""
        for name, value in self.__dict__.items():
            if name in ("_buffers", "_hooks"):
                continue
            yield from _entries(name, value)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules that are attributes of this one, each once."""
        seen: set[int] = set()
        for name, value in self._attributes():
            if isinstance(value, Module) and id(value) not in seen:
                seen.add(id(value))
                yield name, value

    def children(self) -> Iterator[Module]:
        """The modules that are attributes of this one."""
        return (module for _, module in self.named_children())

    def named_modules(
        self, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """This module and all below it by name; duplicates are left out by default."""
        seen: set[int] = set()
        stack: list[tuple[str, Module]] = [(prefix, self)]
        while stack:
            name, module = stack.pop()
            if remove_duplicate and id(module) in seen:
                continue
            seen.add(id(module))
            yield name, module
            below = [(n, m) for n, m in module._attributes() if isinstance(m, Module)]
            stack.extend((f"{name}.{n}" if name else n, m) for n, m in reversed(below))

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def _members(
        self,
        own: Callable[[Module], Iterable[tuple[str, Any]]],
        start: str,
        recurse: bool,
        unique: bool,
    ) -> Iterator[tuple[str, Any]]:
        """The tensors that `own` finds in this module and those below, by name."""
        seen: set[int] = set()
        modules = self.named_modules(start, unique) if recurse else [(start, self)]
        for prefix, module in modules:
            for name, value in own(module):
                if unique and id(value) in seen:
                    continue
                seen.add(id(value))
                yield (f"{prefix}.{name}" if prefix else name), value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """The parameters by name; duplicates are left out by default."""
        return self._members(_own_parameters, prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters, each once."""
        return (p for _, p in self.named_parameters("", recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """The buffers by name; duplicates are left out by default."""
        return self._members(_own_buffers, prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers."""
        return (b for _, b in self.named_buffers("", recurse))

    def get_submodule(self, target: str) -> Module:
        """The module of a name such as "layers.0.attention"."""
        found: Any = self
        for part in filter(None, target.split(".")):
            found = member(found, part, target)
        if not isinstance(found, Module):
            raise AttributeError(f"{target!r} is not a module of {type(self).__name__}")
        return found

    def get_parameter(self, target: str) -> Parameter:
        """The parameter of a name such as "layers.0.weight"."""
        return self._found("parameter", self.named_parameters(remove_duplicate=False), target)

    def get_buffer(self, target: str) -> Tensor:
        """The buffer of a name such as "layers.0.running_mean"."""
        return self._found("buffer", self.named_buffers(remove_duplicate=False), target)

    def _found(self, kind: str, named: Iterator[tuple[str, T]], target: str) -> T:
        for name, tensor in named:
            if name == target:
                return tensor
        raise AttributeError(f"{type(self).__name__} has no {kind} {target!r}")

    def set_submodule(self, target: str, module: Module) -> None:
        """Put another module in the place of a name such as "layers.0.attention"."""
        *path, last = target.split(".")
        holder: Any = self
        for part in path:
            holder = member(holder, part, target)
        member(holder, last, target)
        if isinstance(holder, Module):
            setattr(holder, last, module)
        else:
            holder[int(last) if isinstance(holder, list) else last] = module

    def num_parameters(self, trainable_only: bool = False) -> int:
        """The number of elements of all parameters; tied parameters count once."""
        return sum(p.size for p in self.parameters() if p.requires_grad or not trainable_only)

    # -- saving and loading -----------------------------------------------------------------------

    def state_dict(self, prefix: str = "", *, keep_vars: bool = False) -> dict[str, Tensor]:
        """Parameters and persistent buffers by name, without history: the values of this moment.

        Args:
            prefix: put before every name.
            keep_vars: give the parameters themselves instead.
        """
        state = ((prefix + name, tensor) for name, tensor in _state_of(self))
        return {name: tensor if keep_vars else snapshot(tensor) for name, tensor in state}

    def load_state_dict(
        self, state: Mapping[str, Any], strict: bool = True, *, prefix: str = ""
    ) -> IncompatibleKeys:
        """Take the values of a state dict, by name; tensors, NumPy arrays and PyTorch's will do.

        Nothing is changed unless everything fits.

        Args:
            strict: whether a name that only one side has is an error.
        """
        return self._prepare_state(state, strict, prefix)()

    def _prepare_state(
        self, state: Mapping[str, Any], strict: bool = True, prefix: str = ""
    ) -> Callable[[], IncompatibleKeys]:
        """Check a state dict; gives the function that takes it."""
        if not isinstance(state, Mapping):
            raise TypeError(
                f"load_state_dict: takes a mapping of names to values, not {type(state).__name__}"
            )
        given = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
        lazy = any(hasattr(m, "has_uninitialized_params") for m in self.modules())
        own = dict(_state_of(self._completed_copy(given) if lazy else self))
        missing = [name for name in own if name not in given]
        unexpected = [name for name in given if name not in own]
        lists = {"missing": missing, "unexpected": unexpected} if strict else {}
        problems = [f"{kind}: {', '.join(names)}" for kind, names in lists.items() if names]
        common = [name for name in own if name in given]
        for name in common:
            shape = getattr(given[name], "shape", None)
            if shape is None:
                problems.append(f"{name}: a {type(given[name]).__name__} is no tensor")
            elif tuple(shape) != own[name].shape:
                problems.append(f"{name}: shape {tuple(shape)} does not fit {own[name].shape}")
        if problems:
            head = f"load_state_dict: the state does not fit {type(self).__name__}:"
            raise ValueError("\n  ".join([head, *problems]))
        values = {name: _tensor(given[name]) for name in common}
        for name, value in values.items():
            cast_value(value, own[name]._node, "load_state_dict")  # an unfit dtype raises

        def commit() -> IncompatibleKeys:
            if lazy:
                self._complete_from(given)
            tensors = dict(_state_of(self)) if lazy else own
            with nm.no_grad():
                for name, value in values.items():
                    tensors[name].assign(value.to(tensors[name].device))
            return IncompatibleKeys(missing, unexpected)

        return commit

    def _completed_copy(self: M, given: Mapping[str, Any]) -> M:
        """A copy whose lazy layers have learned from a state dict, without drawing numbers."""
        generator = nm.random.get_state()
        try:
            found = copy.deepcopy(self)
            found._complete_from(given)
        finally:
            nm.random.set_state(generator)
        return found

    def _complete_from(self, given: Mapping[str, Any]) -> None:
        """Let lazy layers learn from a state dict how many inputs they have."""
        for name, module in list(self.named_modules()):
            if hasattr(module, "has_uninitialized_params"):
                start = f"{name}." if name else ""
                own = {
                    n: v.shape
                    for n, v in given.items()
                    if hasattr(v, "shape") and n.startswith(start)
                }
                size = module._of_state({n.removeprefix(start): x for n, x in own.items()})
                if size is not None:
                    module.complete(size)

    # -- changing everything ----------------------------------------------------------------------

    def train(self: M, mode: bool = True) -> M:
        """Switch to training (dropout drops, batch norm uses the batch) or, with False, to use."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: M) -> M:
        """Switch from training to use."""
        return self.train(False)

    def to(self: M, *args: Any, dtype: Any = None, device: Any = None) -> M:
        """Parameters and buffers in another dtype (floats only), on another device, or both."""
        dtype, device = destination(args, dtype, device)
        if dtype is not None and not dtype.is_floating:
            raise TypeError(f"{type(self).__name__}.to: parameters are floats, not {dtype.name}")
        for value in itertools.chain(self.parameters(), self.buffers()):
            wanted = dtype if value.dtype.is_floating else None
            replace(value, value.detach().to(dtype=wanted, device=device))
        return self

    def to_gpu(self: M) -> M:
        """Parameters and buffers on the best GPU there is; where there is none, as they are."""
        for value in itertools.chain(self.parameters(), self.buffers()):
            replace(value, value.detach().to_gpu())
        return self

    def cpu(self: M) -> M:
        """Parameters and buffers on the CPU."""
        return self.to("cpu")

    def cuda(self: M, device: int = 0) -> M:
        """Parameters and buffers on an NVIDIA GPU; `to_gpu` takes whichever there is."""
        return self.to(f"cuda:{device}" if device else "cuda")

    def float(self: M) -> M:
        """Parameters and buffers in float32."""
        return self.to(nm.float32)

    def double(self: M) -> M:
        """Parameters and buffers in float64."""
        return self.to(nm.float64)

    def half(self: M) -> M:
        """Parameters and buffers in float16."""
        return self.to(nm.float16)

    def bfloat16(self: M) -> M:
        """Parameters and buffers in bfloat16."""
        return self.to(nm.bfloat16)

    def apply(self: M, function: Callable[[Module], Any]) -> M:
        """Call a function with every module, the innermost first."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Let all parameters take part in gradients, or none."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters."""
        for parameter in self.parameters():
            if set_to_none:
                parameter.grad = None  # whether there is one or not: a traced step serves both
            elif parameter.grad is not None:
                parameter.grad = nm.zeros_like(parameter.grad)

    # -- hooks ------------------------------------------------------------------------------------

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> nm.RemovableHandle:
        """Call `hook(module, args)` before `forward`; what it returns replaces the arguments."""
        return self._hooked().add("before", hook)

    def register_forward_hook(self, hook: Callable[..., Any]) -> nm.RemovableHandle:
        """Call `hook(module, args, output)` after `forward`; what it returns is the output."""
        return self._hooked().add("after", hook)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any]) -> nm.RemovableHandle:
        """Call `hook(module, grad_output)` before gradients go through the module."""
        return self._hooked().add("backward_before", hook)

    def register_full_backward_hook(self, hook: Callable[..., Any]) -> nm.RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` when gradients went through the module."""
        return self._hooked().add("backward_after", hook)

    def _hooked(self) -> Hooks:
        if self._hooks is None:
            self._hooks = Hooks()
        return self._hooks

    # -- looks ------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """The text between the parentheses of `repr`, before the submodules."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        children = ((n, repr(m)) for n, m in self._attributes() if isinstance(m, Module))
        lines = [f"({name}): " + text.replace("\n", "\n  ") for name, text in children]
        if not lines:
            return f"{type(self).__name__}({extra})"
        body = "\n  ".join(([extra] if extra else []) + lines)
        return f"{type(self).__name__}(\n  {body}\n)"

    def _repr_html_(self) -> str:
        """The layers and the number of parameters, in notebooks."""
        from numus.functions.interop import html

        count = sum(p.size for p in self.parameters())
        return html.text(f"{type(self).__name__}: {count:,} parameters", repr(self))

    summary: Callable[..., str]  # a table of the modules; `nn/summary.py` binds it


# -- what a module holds --------------------------------------------------------------------------


def _entries(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """An attribute, or the entries of a container of parameters and modules."""
    if isinstance(value, (Module, Tensor)):
        yield name, value
    elif isinstance(value, (list, tuple, dict)):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(entry, (Module, Parameter, list, tuple, dict)):
                yield from _entries(f"{name}.{key}", entry)


def _own_parameters(module: Module) -> Iterator[tuple[str, Parameter]]:
    return ((n, p) for n, p in module._attributes() if isinstance(p, Parameter))


def _own_buffers(module: Module) -> Iterator[tuple[str, Tensor]]:
    found = ((name, module.__dict__.get(name)) for name in module._buffers)
    return ((name, buffer) for name, buffer in found if buffer is not None)


def _state_of(module: Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers by every name they have."""

    def own(inner: Module) -> Iterator[tuple[str, Tensor]]:
        yield from _own_parameters(inner)
        yield from ((n, b) for n, b in _own_buffers(inner) if inner._buffers[n])

    return module._members(own, "", recurse=True, unique=False)


def member(value: Any, part: str, target: str) -> Any:
    """One step of a dotted name."""
    if isinstance(value, (list, tuple)) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    if isinstance(value, dict) and part in value:
        return value[part]
    found = getattr(value, "__dict__", {}).get(part)
    if found is None:
        raise AttributeError(f"{type(value).__name__} has no {part!r}, looking for {target!r}")
    return found


def _tensor(values: Any) -> Tensor:
    """Values of NumPy, PyTorch (which may want gradients) or numus, detached."""
    return nm.asarray(values.detach() if hasattr(values, "detach") else values)
