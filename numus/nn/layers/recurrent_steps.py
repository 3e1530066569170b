"""Steps of RNN, LSTM and GRU, and the loops over them: of a layer, and of all layers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numus as nm
from numus.functions.autocast import lowers
from numus.functions.template_cache import templated
from numus.nn import functional as F
from numus.tensor import Tensor

State = tuple[Tensor, ...]  # the hidden state, and for an LSTM its memory


# -- one step -------------------------------------------------------------------------------------


def _tanh_step(x: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    return (nm.tanh(x + F.linear(state[0], w, b)),)


def _relu_step(x: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    return (nm.relu(x + F.linear(state[0], w, b)),)


def _lstm_step(x: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    h, c = state
    enter, forget, new, leave = nm.split(x + F.linear(h, w, b), 4, axis=-1)
    c = nm.sigmoid(forget) * c + nm.sigmoid(enter) * nm.tanh(new)
    return nm.sigmoid(leave) * nm.tanh(c), c


def _gru_step(x: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    (h,) = state
    reset_x, keep_x, new_x = nm.split(x, 3, axis=-1)
    reset_h, keep_h, new_h = nm.split(F.linear(h, w, b), 3, axis=-1)
    reset, keep = nm.sigmoid(reset_x + reset_h), nm.sigmoid(keep_x + keep_h)
    new = nm.tanh(new_x + reset * new_h)
    return (new + keep * (h - new),)


STEPS = {"tanh": _tanh_step, "relu": _relu_step, "LSTM": _lstm_step, "GRU": _gru_step}


# -- all steps ------------------------------------------------------------------------------------


def _all_steps(
    one: Callable[..., State],
    x: Tensor,
    mask: Tensor | None,
    project: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    w: Tensor,
    b: Tensor | None,
    *first: Tensor,
) -> State:
    """The outputs of all steps and the last state."""
    inputs = F.linear(x, weight, bias)

    def step(before: State, row: Any) -> tuple[State, Tensor]:
        state = one(row[0], before, w, b)
        if project is not None:
            state = (F.linear(state[0], project), *state[1:])
        if mask is not None:
            state = tuple(map(nm.where, (row[1],) * len(state), state, before))
        return state, state[0]

    rows = (inputs,) if mask is None else (inputs, mask)
    state: State = first
    if inputs.device.on_host:  # the step is compiled once, whatever the length
        state, outputs = nm.scan(step, state, rows)
        return outputs, *state
    steps = []  # a device is told all launches at once
    for row in zip(*map(nm.unstack, rows), strict=True):
        state, out = step(state, row)
        steps.append(out)
    return nm.stack(steps), *state


# traced once for operands of one kind
_ALL_STEPS = {kind: templated(functools.partial(_all_steps, step)) for kind, step in STEPS.items()}


@lowers
def lowered(x: Tensor) -> Tensor:
    """A state in the narrow float of an autocast around it, as products give the others."""
    return x


PARAMETERS = ("weight_ih", "bias_ih", "weight_hh", "bias_hh", "weight_hr")


@templated
def all_layers(
    kind: str,
    directions: int,
    batch_first: bool,
    drop: Callable[[Tensor], Tensor] | None,
    sizes: tuple[int, ...],
    x: Tensor,
    mask: Tensor | None,
    *operands: Any,
) -> State:
    """The outputs of the last layer, and the last states of all.

    Operands are the parameters of every layer and direction, and then the first states of all of
    them, tensors of these `sizes`; None are zeros. `mask` marks the steps of every sequence.
    """
    x = nm.swapaxes(x, 0, 1) if batch_first else x
    count = (len(operands) - len(sizes)) // len(PARAMETERS)
    zeros = functools.partial(nm.zeros, dtype=x.dtype, device=x.device)
    given = zip(operands[count * len(PARAMETERS) :], sizes, strict=True)
    firsts = [zeros((count, x.shape[1], n)) if h is None else h for h, n in given]
    states = list(zip(*(nm.unstack(lowered(h)) for h in firsts), strict=True))

    def one(at: int, x: Tensor, mask: Tensor | None) -> tuple[Tensor, State]:
        """A layer in one direction."""
        w, b, u, c, project = operands[at * len(PARAMETERS) :][: len(PARAMETERS)]
        out, *state = _ALL_STEPS[kind](x, mask, project, w, b, u, c, *states[at])
        return out, tuple(state)

    backwards = nm.flip(mask, axis=0) if directions > 1 and mask is not None else None
    last: list[State] = []
    for at in range(0, count, directions):
        if at and drop is not None:
            x = drop(x)
        out, state = one(at, x, mask)
        last.append(state)
        if directions > 1:
            back, state = one(at + 1, nm.flip(x, axis=0), backwards)
            last.append(state)
            out = nm.concat([out, nm.flip(back, axis=0)], axis=-1)
        x = out
    finals = [nm.stack(list(parts)) for parts in zip(*last, strict=True)]
    return nm.swapaxes(x, 0, 1) if batch_first else x, *finals
