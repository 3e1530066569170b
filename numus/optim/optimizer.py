"""Optimizer: groups of parameters, the state kept for each, and one step over all of them.

A step is a composition of tensor operations that re-binds parameters and state in index, with no
Python condition on values. Numbers that may differ between steps (learning rates, the count of
steps and what follows from them) are tensors without axes, so a step that was traced by `nm.jit`
sees what a scheduler has set since.

Parameters in narrow floats are kept by the optimiser in float32 as well ("master" in their state):
small updates would be lost in their few digits.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import numpy as np

import numus as nm
from numus.dtypes import DType, compute_dtype
from numus.nn import UninitializedParameter
from numus.nn.state import require
from numus.tensor import Tensor, snapshot

__all__ = ["Optimizer", "ParamGroup"]

State = dict[str, Tensor]
Numbers = Any  # tensors without axes, as attributes


class ParamGroup(dict[str, Any]):
    """Parameters that share hyperparameters; values that are set reach traced steps, too."""

    def __init__(self, entries: Mapping[str, Any], numbers: Callable[[Any], Mapping[str, float]]):
        super().__init__(entries)
        self._of = numbers
        self._tensors: dict[Any, SimpleNamespace] = {}
        for p in self["params"]:
            self.numbers(p)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        known = self._of(self)
        for cached in self._tensors.values():
            for key, number in known.items():
                if cached.known[key] != number:
                    cached.known[key] = number
                    tensor = getattr(cached, key)
                    # bound, not copied: nobody else has it, and nothing is left to be computed
                    tensor.rebind(_number(number, cached.dtype, tensor.device)._node, name)

    def numbers(self, p: Tensor) -> Numbers:
        """The group's numbers as tensors that can be combined with this parameter."""
        dtype = compute_dtype(p.dtype)
        key = p.device, dtype
        if key not in self._tensors:
            known = dict(self._of(self))
            tensors = {name: _number(x, dtype, p.device) for name, x in known.items()}
            self._tensors[key] = SimpleNamespace(known=known, dtype=dtype, **tensors)
        return self._tensors[key]


def _number(x: float, dtype: DType, device: Any) -> Tensor:
    """A realised tensor, not a constant: its value is not part of a traced program."""
    return nm.asarray(np.asarray(x, dtype.np), device=device)


class Optimizer:
    """The base of optimisers: define `_state` and `_update` (and `_numbers`)."""

    _not_negative: ClassVar[tuple[str, ...]] = ()  # hyperparameters that are checked
    _reads: ClassVar[tuple[str, ...]] = ("lr",)  # hyperparameters that a step uses as they are

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        for name, value in defaults.items():
            if isinstance(value, str) and (name in self._not_negative or name in self._reads):
                raise TypeError(
                    f"{type(self).__name__}: {name} is the text {value!r}, not a number; give "
                    f"float({name}) (a YAML file needs 1.0e-3, with a point)"
                )
        for name in self._not_negative:
            check(type(self).__name__, **{name: (defaults[name], defaults[name] >= 0)})
        self.defaults = defaults
        self.state: dict[Tensor, State] = {}
        self.param_groups: list[ParamGroup] = []
        if hasattr(params, "parameters"):
            params = params.parameters()
        if isinstance(params, Tensor) or not isinstance(params, Iterable):
            raise TypeError(
                f"{type(self).__name__}: takes a module, or its parameters in a list, not "
                f"{type(params).__name__}"
            )
        given = list(params)
        if not given:
            raise ValueError(f"{type(self).__name__}: there are no parameters to optimise")
        if not isinstance(given[0], Mapping):
            given = [{"params": given}]
        for group in given:
            self.add_param_group(group)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: groups as plain dicts; their tensors of numbers are made anew."""
        return {**self.__dict__, "param_groups": [dict(group) for group in self.param_groups]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        groups: list[dict[str, Any]] = state["param_groups"]
        self.param_groups = [ParamGroup(group, self._numbers) for group in groups]

    # -- what an optimiser defines ----------------------------------------------------------------

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        """The numbers that a step uses, from the hyperparameters of a group."""
        return {name: group[name] for name in self._reads}

    def _derived(self, n: Numbers, step: Tensor | None) -> Mapping[str, Tensor]:
        """Numbers derived from those and the count of steps, shared by all parameters."""
        return {}

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        """The initial state of a parameter, given in the dtype it is computed in."""
        return {}

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        """The parameter's new value from its gradient; state is re-bound with `assign`."""
        raise NotImplementedError(f"{type(self).__name__} does not define an update")

    # -- groups -----------------------------------------------------------------------------------

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Optimise more parameters, with hyperparameters of their own where they are given."""
        if "params" not in group:
            raise ValueError(
                f"{type(self).__name__}: a group names its parameters as 'params'; this one has "
                f"{', '.join(map(repr, group))}"
            )
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        known = {id(p) for g in self.param_groups for p in g["params"]}
        for p in params:
            if not isinstance(p, Tensor) or not p.is_leaf or not p.dtype.is_floating:
                raise TypeError(
                    f"{type(self).__name__}: optimises leaf tensors of a float dtype, not "
                    f"{p.dtype.name if isinstance(p, Tensor) else type(p).__name__}"
                )
            if isinstance(p, UninitializedParameter):
                raise ValueError(
                    f"{type(self).__name__}: a parameter has no shape yet; call the model once, so "
                    "that its lazy layers know theirs"
                )
            if id(p) in known:
                raise ValueError(f"{type(self).__name__}: a parameter appears in two groups")
            known.add(id(p))
        unknown = set(group) - set(self.defaults) - {"params", *_EXTRA}
        if unknown:
            raise TypeError(f"{type(self).__name__}: no such options: {', '.join(sorted(unknown))}")
        made = ParamGroup({**self.defaults, **group, "params": params}, self._numbers)
        self.param_groups = [*self.param_groups, made]  # another list: programs look at which
        self.state.update(self._initial(made))
        # the first step is then the same program as those that follow
        states = [x for p in params for x in self.state[p].values()]
        for x in states:  # equal ones of one evaluation share memory, where no step may write
            if x.nbytes >= _OWN_MEMORY_BYTES:
                evaluate_all((x,))
        evaluate_all((*params, *states))

    def _initial(self, group: ParamGroup) -> dict[Tensor, State]:
        """State at the beginning; parameters that go in step share one count of steps."""
        counts: dict[Any, Tensor] = {}
        found: dict[Tensor, State] = {}
        for p in group["params"]:
            wide = p.detach().astype(compute_dtype(p.dtype), copy=False)
            state = {name: _own(x) for name, x in self._state(wide, group).items()}
            if "step" in state:
                state["step"] = counts.setdefault(p.device, state["step"])
            if wide.dtype is not p.dtype:
                state["master"] = _own(wide)
            found[p] = state
        return found

    # -- steps ------------------------------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters."""
        for p in self._parameters():
            if set_to_none:
                p.grad = None  # whether there is one or not: a traced step serves both
            elif p.grad is not None:
                p.grad = nm.zeros_like(p.grad)

    def _parameters(self) -> Iterator[Tensor]:
        return (p for group in self.param_groups for p in group["params"])

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Change every parameter that has a gradient.

        Args:
            closure: computes the loss and its gradients anew, and gives the loss back.
        """
        loss = None
        if closure is not None:
            with nm.enable_grad():
                loss = closure()
        evaluate_all(self._change_all())
        return loss

    def step_unless(self, bad: Tensor) -> None:
        """A step that leaves everything as it was where `bad`, a tensor without axes, holds."""
        if type(self).step is not Optimizer.step:
            raise TypeError(f"{type(self).__name__}: a step that looks at values cannot be undone")
        changing = [p for p in self._parameters() if p.grad is not None]
        tensors = [x for p in changing for x in (p, *self.state[p].values())]
        before = [(x, _own(x)) for x in {id(x): x for x in tensors}.values()]
        self._change_all()
        with nm.no_grad():
            for x, old in before:
                x.assign(nm.where(bad.to(x.device), old, x))
        evaluate_all(x for x, _ in before)

    def _change_all(self) -> list[Tensor]:
        """Change every parameter that has a gradient; gives all that is new."""
        with nm.no_grad():
            changed = [p for p in self._parameters() if p.grad is not None]
            self._advance(changed)
            shared: dict[Any, Numbers] = {}
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        self._change(p, p.grad, group, self._shared(p, group, shared))
        return [x for p in changed for x in (p, *self.state[p].values())]

    def _shared(self, p: Tensor, group: ParamGroup, known: dict[Any, Numbers]) -> Numbers:
        """The numbers for a parameter, and what follows from them, computed once for all."""
        n, step = group.numbers(p), self.state[p].get("step")
        key = id(n), id(step)
        if key not in known:
            known[key] = SimpleNamespace(**vars(n), **self._derived(n, step))
        return known[key]

    def _change(self, p: Tensor, gradient: Tensor, group: ParamGroup, n: Numbers) -> None:
        state = self.state[p]
        wide = state.get("master", p)
        g = gradient.astype(wide.dtype, copy=False)
        if group.get("maximize"):
            g = -g
        wide.assign(self._update(wide, g, state, group, n))
        if wide is not p:
            p.assign(wide)

    def _advance(self, changed: list[Tensor]) -> None:
        """Count a step for parameters that take part in it; others are left behind from now on."""
        steps = [self.state[p]["step"] for p in changed if "step" in self.state[p]]
        counts = {id(count): count for count in steps}
        taking_part = {id(p) for p in changed}
        behind: dict[int, Tensor] = {}
        for p, state in self.state.items():
            count = state.get("step")
            if count is not None and id(count) in counts and id(p) not in taking_part:
                state["step"] = behind.setdefault(id(count), count.clone())
        for count in counts.values():
            count += 1

    # -- saving and loading -----------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """State and hyperparameters; parameters are numbered in the order of their groups."""
        index = {id(p): i for i, p in enumerate(self._parameters())}
        groups = [{**g, "params": [index[id(p)] for p in g["params"]]} for g in self.param_groups]
        known = {index[id(p)]: tensors for p, tensors in self.state.items() if tensors}
        state = {
            i: {name: snapshot(x) for name, x in tensors.items()} for i, tensors in known.items()
        }
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave, here or in PyTorch; nothing changes unless all fits."""
        self._prepare_state(state_dict)()

    def _prepare_state(self, state_dict: Mapping[str, Any]) -> Callable[[], None]:
        """Check a state; gives the function that takes it."""
        require(self, state_dict, "param_groups", "state")
        groups, given = state_dict["param_groups"], state_dict["state"]
        for saved in groups:
            require(self, saved, "params")
        sizes = [len(g["params"]) for g in groups]
        own = [len(g["params"]) for g in self.param_groups]
        if sizes != own:
            raise ValueError(
                f"{type(self).__name__}.load_state_dict: groups of {sizes} parameters do not fit "
                f"groups of {own}"
            )
        require(self, given)
        commits = [
            self._prepare_group(group, saved, given)
            for group, saved in zip(self.param_groups, groups, strict=True)
        ]

        def commit() -> None:
            for change in commits:
                change()

        return commit

    def _prepare_group(
        self, group: ParamGroup, saved: Mapping[str, Any], given: Mapping[Any, Any]
    ) -> Callable[[], None]:
        options = {k: v for k, v in saved.items() if k in self.defaults or k in _EXTRA}
        for name in self._not_negative:
            if name in options:
                check(type(self).__name__, **{name: (options[name], options[name] >= 0)})
        state = self._initial(ParamGroup({**group, **options}, self._numbers))
        counts: dict[Any, Tensor] = {}
        new: list[Tensor] = []  # parameters that nothing was saved of
        of_weights: list[Tensor] = []  # those whose master copies were not
        for p, number in zip(group["params"], saved["params"], strict=True):
            entries = given.get(number, given.get(str(number), {}))
            require(self, entries)
            if not entries:
                new.append(p)
            elif "master" in state[p] and entries.get("master") is None:
                of_weights.append(p)
            if entries:
                self._load(p, state[p], entries, counts)

        def commit() -> None:
            for name, value in options.items():
                group[name] = value
            fresh = self._initial(group) if new else {}
            state.update((p, fresh[p]) for p in new)
            for p in of_weights:  # which may have been loaded meanwhile
                state[p]["master"] = _own(p.detach().astype(compute_dtype(p.dtype)))
            self.state.update(state)

        return commit

    def _load(
        self, p: Tensor, state: State, entries: Mapping[str, Any], counts: dict[Any, Tensor]
    ) -> None:
        what = f"{type(self).__name__}.load_state_dict:"
        for name, tensor in state.items():
            value = entries.get(name)
            if value is None:
                if name == "step":
                    state[name] = _own(nm.ones_like(tensor))
                elif name != "master":
                    raise ValueError(f"{what} there is no {name}")
                continue
            values = nm.asarray(value.detach() if hasattr(value, "detach") else value)
            if values.shape != tensor.shape:
                raise ValueError(
                    f"{what} {name} of shape {values.shape} does not fit {tensor.shape}"
                )
            values = values.astype(tensor.dtype).to(p.device)
            if name == "step":
                same = (p.device, values.item())
                state[name] = counts.setdefault(same, _own(values))
            else:
                tensor.assign(values)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"  group {i}: {len(group['params'])} parameters")
            lines += [f"    {k}: {v}" for k, v in group.items() if k != "params"]
        return "\n".join([*lines, ")"])


_OWN_MEMORY_BYTES = 1 << 20  # of a state that is evaluated by itself
_EXTRA = ("initial_lr", "max_lr", "min_lr", "name", "swa_lr")  # what schedulers keep in groups


def _own(x: Tensor) -> Tensor:
    """A tensor that is nobody else's."""
    return x.detach().clone()


def evaluate_all(tensors: Iterable[Tensor]) -> None:
    """Compute what a step has changed, unless it is being traced: nothing older is kept alive."""
    found = list(tensors)
    if not any(x._node.abstract for x in found):
        nm.eval(found)


def count_of_steps(p: Tensor) -> Tensor:
    """The count of steps at the beginning; whole numbers are exact in float32 up to 2^24."""
    return nm.zeros((), dtype=nm.float32, device=p.device)


def zeros_and_step(p: Tensor, *names: str) -> State:
    """State that begins as zeros, and the count of steps."""
    return {"step": count_of_steps(p), **{name: nm.zeros_like(p) for name in names}}


def decayed(p: Tensor, g: Tensor, group: Mapping[str, Any], n: Numbers) -> Tensor:
    """The gradient with that of weight_decay / 2 * |p|² added."""
    return g + p * n.weight_decay if group["weight_decay"] else g


Made = TypeVar("Made", bound=type)


def takes_hints(made: Made) -> Made:
    """Accept PyTorch's hints (foreach, fused, …): every step is fused and can be traced."""
    init: Any = made.__init__  # type: ignore[misc]

    @functools.wraps(init)
    def run(
        self: Any,
        *args: Any,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        **options: Any,
    ) -> None:
        if differentiable:
            raise ValueError(
                f"{made.__name__}: steps are not recorded; write one with nm.grad instead"
            )
        init(self, *args, **options)

    hints = list(inspect.signature(run, follow_wrapped=False).parameters.values())[2:-1]
    own = inspect.signature(init)
    both = [*own.parameters.values(), *hints]
    run.__signature__ = own.replace(parameters=both)  # type: ignore[attr-defined]
    made.__init__ = run  # type: ignore[misc]
    return made


def check(name: str, **numbers: tuple[float, bool]) -> None:
    """Refuse hyperparameters that are outside their range."""
    for key, (value, right) in numbers.items():
        if not right:
            raise ValueError(f"{name}: {key} cannot be {value}")
