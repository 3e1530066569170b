"""Recurrent layers: RNN, LSTM and GRU, several layers deep, in one direction or both.

The inputs of all steps are multiplied by their weights at once; a step then costs one product of
the state. On the host the steps are a loop (`nm.scan`), whose body is compiled once. Names and
layouts of parameters are PyTorch's (`weight_ih_l0`, `weight_hh_l0_reverse` …).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.nn import functional as F
from numus.nn import init
from numus.nn.layers.recurrent_steps import PARAMETERS, STEPS, State, all_layers, lowered
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.nn.utils.rnn import PackedSequence
from numus.tensor import Tensor

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]


class _RNNKind:
    _gates = 1  # vectors of the hidden size that the products of a step give
    nonlinearity: str

    def _set_nonlinearity(self, nonlinearity: str) -> None:
        if nonlinearity not in ("tanh", "relu"):
            kind = type(self).__name__
            raise ValueError(f'{kind}: nonlinearity is "tanh" or "relu", not {nonlinearity!r}')
        self.nonlinearity = nonlinearity

    @property
    def _kind(self) -> str:
        return self.nonlinearity


class _LSTMKind:
    _gates = 4

    @property
    def _kind(self) -> str:
        return "LSTM"


class _GRUKind:
    _gates = 3

    @property
    def _kind(self) -> str:
        return "GRU"


# -- layers ---------------------------------------------------------------------------------------


class _Recurrent(Module):
    """Parameters, layers, directions, and the loop over time of RNN, LSTM and GRU."""

    _gates: int

    @property
    def _kind(self) -> str:
        """The name of a step."""
        raise NotImplementedError

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if hidden_size < 1 or num_layers < 1:
            raise ValueError(
                f"{type(self).__name__}: hidden_size {hidden_size} and num_layers {num_layers} "
                "must be at least 1"
            )
        if not 0 <= proj_size < hidden_size:
            raise ValueError(
                f"{type(self).__name__}: proj_size {proj_size} must be less than hidden_size "
                f"{hidden_size}"
            )
        if not 0 <= dropout <= 1:
            raise ValueError(f"{type(self).__name__}: dropout={dropout} must be between 0 and 1")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self._options = {"dtype": dtype or nm.float32, "device": device}
        given = proj_size or hidden_size  # the size of what a step gives to the next
        for suffix, layer in self._suffixes():
            width = input_size if layer == 0 else given * (1 + bidirectional)
            self._add(f"weight_ih{suffix}", self._gates * hidden_size, width)
            self._add(f"weight_hh{suffix}", self._gates * hidden_size, given)
            for name in ("bias_ih", "bias_hh"):
                if bias:
                    self._add(name + suffix, self._gates * hidden_size)
                else:
                    setattr(self, name + suffix, None)
            if proj_size:
                self._add(f"weight_hr{suffix}", proj_size, hidden_size)
        self.reset_parameters()

    def _add(self, name: str, *shape: int) -> None:
        setattr(self, name, Parameter(nm.empty(shape, **self._options)))

    def _suffixes(self) -> list[tuple[str, int]]:
        ends = ("", "_reverse")[: 1 + self.bidirectional]
        return [(f"_l{layer}{end}", layer) for layer in range(self.num_layers) for end in ends]

    def reset_parameters(self) -> None:
        """Draw first values: uniform, within one over the root of the hidden size."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def _sizes(self) -> dict[str, int]:
        """The tensors of a state and their sizes."""
        return {"hx": self.hidden_size}

    def _states(self, given: Any, batch: int) -> list[Tensor | None]:
        """The states of all layers and directions at the beginning; None are zeros."""
        sizes = self._sizes()
        if given is None:
            return [None] * len(sizes)
        given = (given,) if len(sizes) == 1 else given
        parts: list[Tensor | None] = []
        for h, (name, size) in zip(map(nm.asarray, given), sizes.items(), strict=True):
            part = h[:, None] if h.ndim == 2 else h
            shape = (self.num_layers * (1 + self.bidirectional), batch, size)
            if part.shape != shape:
                raise ShapeError(
                    f"{type(self).__name__}: {name} of shape {part.shape}, not {shape}"
                )
            parts.append(part)
        return parts

    def _run(self, x: Any, given: Any) -> tuple[Any, list[Tensor]]:
        if isinstance(x, PackedSequence):
            return self._run_packed(x, given)
        x = nm.asarray(x)
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: takes (length, batch, {self.input_size}) or (length, "
                f"{self.input_size}), not shape {x.shape}"
            )
        single = x.ndim == 2
        x = x[:, None] if single else x
        batch_first = self.batch_first and not single
        if x.shape[batch_first] == 0:
            raise ShapeError(f"{type(self).__name__}: there are no steps in shape {x.shape}")
        x, finals = self._layers(x, given, None, batch_first)
        return (x[:, 0], [f[:, 0] for f in finals]) if single else (x, finals)

    def _run_packed(self, x: PackedSequence, given: Any) -> tuple[PackedSequence, list[Tensor]]:
        """Sequences of several lengths; states are in the caller's order."""
        padded = x.padded()
        if padded.ndim != 3 or padded.shape[-1] != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: takes packed elements of size {self.input_size}, not "
                f"shape {x.data.shape}"
            )
        if given is not None and x.sorted_indices is not None:
            given = nm.tree.map(lambda h: nm.take(h, x.sorted_indices, axis=1), given)
        counts = nm.arange(padded.shape[1], device=padded.device)
        mask = (x.batch_sizes.to(padded.device)[:, None] > counts)[..., None]
        out, finals = self._layers(padded, given, mask)
        if x.unsorted_indices is not None:
            finals = [nm.take(f, x.unsorted_indices, axis=1) for f in finals]
        return x.packed(out), finals

    def _layers(
        self, x: Tensor, given: Any, mask: Tensor | None, batch_first: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """All layers, in one direction or both: outputs of the last, and last states of all."""
        drop = None
        if self.num_layers > 1 and self.dropout and self.training:
            drop = functools.partial(F.dropout, p=self.dropout)
        names = [name + suffix for suffix, _ in self._suffixes() for name in PARAMETERS]
        states = self._states(given, x.shape[not batch_first])
        parameters = [getattr(self, name, None) for name in names]
        how = 1 + self.bidirectional, batch_first, drop, tuple(self._sizes().values())
        out, *finals = all_layers(self._kind, *how, x, mask, *parameters, *states)
        return out, finals

    def extra_repr(self) -> str:
        shown = f"{self.input_size}, {self.hidden_size}"
        defaults = {"num_layers": 1, "dropout": 0.0, "proj_size": 0}
        defaults |= {"batch_first": False, "bidirectional": False}
        for name, default in defaults.items():
            if getattr(self, name) != default:
                shown += f", {name}={getattr(self, name)}"
        return shown


class _OneState(_Recurrent):
    """RNN and GRU: the hidden state is all there is."""

    def forward(self, x: Any, hx: Any = None) -> tuple[Any, Tensor]:
        """The outputs of all steps (packed if `x` is), and the last states of all layers."""
        out, (last,) = self._run(x, hx)
        return out, last


class RNN(_RNNKind, _OneState):
    """h = tanh(x W + h U + b) at every step.

    >>> from numus import nn
    >>> out, h = nn.RNN(3, 5, num_layers=2)(nm.ones((7, 2, 3)))
    >>> out.shape, h.shape
    ((7, 2, 5), (2, 2, 5))

    Args:
        input_size, hidden_size: of what a step is given, and of the state.
        num_layers: how many there are, each given what the one below gave.
        nonlinearity: "tanh" or "relu".
        batch_first: whether inputs are (batch, length, size), not (length, batch, size).
        dropout: between layers, in training.
        bidirectional: a second one goes backwards, and their outputs are concatenated.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        self._set_nonlinearity(nonlinearity)
        sizes = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        super().__init__(*sizes, device=device, dtype=dtype)


class GRU(_GRUKind, _OneState):
    """Gated recurrent units: how much of the state is kept, and how much the new one sees of it.

    >>> from numus import nn
    >>> out, h = nn.GRU(3, 5, batch_first=True)(nm.ones((2, 7, 3)))
    >>> out.shape, h.shape
    ((2, 7, 5), (1, 2, 5))

    Arguments as of `RNN`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        sizes = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        super().__init__(*sizes, device=device, dtype=dtype)


class LSTM(_LSTMKind, _Recurrent):
    """Long short-term memory: a state, and a memory behind gates.

    >>> from numus import nn
    >>> out, (h, c) = nn.LSTM(3, 5)(nm.ones((7, 2, 3)))
    >>> out.shape, h.shape, c.shape
    ((7, 2, 5), (1, 2, 5), (1, 2, 5))

    Args:
        proj_size: project the state to this size before it is given on. Other arguments as of
            `RNN`.
    """

    def _sizes(self) -> dict[str, int]:
        return {"h_0": self.proj_size or self.hidden_size, "c_0": self.hidden_size}

    def forward(self, x: Any, hx: Any = None) -> tuple[Any, tuple[Tensor, Tensor]]:
        """The outputs of all steps (packed if `x` is), and the last (h, c) of all layers."""
        out, (h, c) = self._run(x, hx)
        return out, (h, c)


# -- cells ----------------------------------------------------------------------------------------


class _Cell(Module):
    _gates: int

    @property
    def _kind(self) -> str:
        """The name of a step."""
        raise NotImplementedError

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        self.input_size = input_size
        self.hidden_size = hidden_size
        options = {"dtype": dtype or nm.float32, "device": device}
        rows = self._gates * hidden_size
        self.weight_ih = Parameter(nm.empty((rows, input_size), **options))
        self.weight_hh = Parameter(nm.empty((rows, hidden_size), **options))
        self.bias_ih = Parameter(nm.empty((rows,), **options)) if bias else None
        self.bias_hh = Parameter(nm.empty((rows,), **options)) if bias else None
        bound = 1 / math.sqrt(hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def _run(self, x: Any, states: Any) -> State:
        """One step; `states` that are None are zeros."""
        state = tuple(lowered(self._zeros(x) if h is None else h) for h in states)
        inputs = F.linear(nm.asarray(x), self.weight_ih, self.bias_ih)
        return STEPS[self._kind](inputs, state, self.weight_hh, self.bias_hh)

    def _zeros(self, x: Any) -> Tensor:
        shape = (*x.shape[:-1], self.hidden_size)
        return nm.zeros(shape, dtype=x.dtype, device=x.device)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"


class _OneStateCell(_Cell):
    def forward(self, x: Any, hx: Any = None) -> Tensor:
        return self._run(x, (hx,))[0]


class RNNCell(_RNNKind, _OneStateCell):
    """One step of an RNN."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        self._set_nonlinearity(nonlinearity)
        super().__init__(input_size, hidden_size, bias, device, dtype)


class GRUCell(_GRUKind, _OneStateCell):
    """One step of a GRU."""


class LSTMCell(_LSTMKind, _Cell):
    """One step of an LSTM."""

    def forward(self, x: Any, hx: Any = None) -> tuple[Tensor, Tensor]:
        h, c = self._run(x, (None, None) if hx is None else hx)
        return h, c
