"""More that is compared with PyTorch: modules that are put together from several."""

from typing import Any

from torch_cases import Values, module, x


def _packed(kind: str, **options: Any) -> Any:
    """A recurrent layer over sequences of several lengths."""

    def build(t: Any) -> Any:
        pack, pad = t.utils.rnn.pack_padded_sequence, t.utils.rnn.pad_packed_sequence

        class Packed(t.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rnn = getattr(t, kind)(3, 4, batch_first=True, **options)

            def forward(self, x: Any, *state: Any) -> Any:
                packed = pack(x, [2, 5, 1, 4], batch_first=True, enforce_sorted=False)
                out, last = self.rnn(packed, *state)
                return pad(out, batch_first=True)[0], last

        return Packed()

    return build


def _probabilities(t: Any) -> Any:
    class Probabilities(t.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = t.AdaptiveLogSoftmaxWithLoss(12, 20, [4, 9], 2.0, head_bias=True)

        def forward(self, x: Any) -> Any:
            return self.inner.log_prob(x)

    return Probabilities()


BUILT = {
    "WeightNormed": lambda t: t.utils.parametrizations.weight_norm(t.Linear(3, 4)),
    "WeightNormedWhole": lambda t: t.utils.parametrizations.weight_norm(
        t.Conv2d(2, 3, 3), dim=None
    ),
    "WeightNormedLast": lambda t: t.utils.parametrizations.weight_norm(t.Conv1d(2, 3, 3), dim=1),
    "SpectralNormed": lambda t: t.utils.parametrizations.spectral_norm(t.Linear(3, 4)),
    "SpectralNormedTranspose": lambda t: t.utils.parametrizations.spectral_norm(
        t.ConvTranspose2d(2, 3, 3), n_power_iterations=3
    ),
    "BothNormed": lambda t: t.utils.parametrizations.weight_norm(
        t.utils.parametrizations.spectral_norm(t.Linear(3, 4)), "bias", None
    ),
    "PackedRNN": _packed("RNN"),
    "PackedGRU": _packed("GRU", num_layers=2),
    "PackedLSTM": _packed("LSTM", num_layers=2, bidirectional=True),
    "PackedProjected": _packed("LSTM", proj_size=2, bidirectional=True),
    "Probabilities": _probabilities,
}

_S = x(4, 5, 3)
_MANY = Values([0, 3, 5, 8, 9, 15, 20, 29, 2])  # of every cluster
CASES_BUILT = [
    module("WeightNorm", "WeightNormed", x(5, 3)),
    module("WeightNorm-whole", "WeightNormedWhole", x(2, 2, 5, 4)),
    module("WeightNorm-last", "WeightNormedLast", x(2, 2, 5)),
    module("SpectralNorm", "SpectralNormed", x(5, 3)),
    module("SpectralNorm-use", "SpectralNormed", x(5, 3), train=False),
    module("SpectralNorm-thrice", "SpectralNormed", x(5, 3), calls=3),
    module("SpectralNorm-transpose", "SpectralNormedTranspose", x(2, 2, 4, 3)),
    module("BothNorms", "BothNormed", x(5, 3)),
    module("Packed-RNN", "PackedRNN", _S),
    module("Packed-RNN-state", "PackedRNN", _S, x(1, 4, 4)),
    module("Packed-GRU", "PackedGRU", _S),
    module("Packed-LSTM", "PackedLSTM", _S),
    module("Packed-LSTM-state", "PackedLSTM", _S, (x(4, 4, 4), x(4, 4, 4))),
    module("Packed-LSTM-projected", "PackedProjected", _S),
    module(
        *("AdaptiveLogSoftmax", "AdaptiveLogSoftmaxWithLoss", x(9, 16), _MANY),
        args=(16, 30, [4, 9, 20], 2.0),
    ),
    module(
        *("AdaptiveLogSoftmax-bias", "AdaptiveLogSoftmaxWithLoss", x(9, 16), _MANY),
        args=(16, 30, [10]),
        head_bias=True,
    ),
    module("AdaptiveLogSoftmax-one", "AdaptiveLogSoftmaxWithLoss", x(16), Values(7),
           args=(16, 30, [4], 2.0)),
    module("AdaptiveLogSoftmax-probabilities", "Probabilities", x(4, 12)),
    module("LPPool1d-ceil", "LPPool1d", x(2, 3, 8, low=0.1), args=(2, 3, 2), ceil_mode=True),
    module("LPPool2d-ceil", "LPPool2d", x(2, 2, 7, 6, low=0.1), args=(3, 4, 3), ceil_mode=True),
    module("LPPool2d-inf", "LPPool2d", x(2, 2, 7, 6), args=(float("inf"), 2)),
    module("LPPool1d-least", "LPPool1d", x(2, 3, 9), args=(-float("inf"), 3), ceil_mode=True),
]  # fmt: skip
