"""What is compared with PyTorch: calls by name, with the same drawn numbers on both sides.

`tests/fixtures/make_torch_fixtures.py` runs them with PyTorch and stores outputs and gradients;
`test_against_torch.py` runs them with numus. Inputs and weights are drawn anew from the case's
name, so they need not be stored.
"""

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Spec:
    """An array to draw."""

    shape: tuple[int, ...]
    low: float = -1.5
    high: float = 1.5
    kind: str = "float"  # float, int, bool, sign (1 and -1), rows (sum to one)
    constant: bool = False  # not differentiated


def x(*shape: int, low: float = -1.5, high: float = 1.5, constant: bool = False) -> Spec:
    return Spec(shape, low, high, constant=constant)


def i(*shape: int, high: int, low: int = 0) -> Spec:
    return Spec(shape, low, high, "int")


def rows(*shape: int) -> Spec:
    return Spec(shape, 0.1, 1.0, "rows", constant=True)


def sign(*shape: int) -> Spec:
    return Spec(shape, kind="sign")


@dataclass(frozen=True)
class Values:
    """An array given as it is."""

    values: Any
    constant: bool = True
    kind: str = "float"


@dataclass(frozen=True)
class Case:
    name: str  # of the case, unique
    call: str  # in torch.nn or torch.nn.functional, and in numus
    inputs: tuple[Any, ...]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    train: bool = True
    given: dict[str, Any] = field(default_factory=dict)  # to forward, by name
    calls: int = 1  # how often a module is called before what it gives is compared

    @property
    def is_module(self) -> bool:
        return self.call[0].isupper()

    @property
    def given_arrays(self) -> set[str]:
        """Options that are arrays, such as weights of classes: not drawn as parameters are."""
        return {k for k, v in self.kwargs.items() if isinstance(v, (Spec, Values))}


def draw(spec: Any, rng: np.random.Generator) -> Any:
    """An array from a spec; anything else as it is."""
    if isinstance(spec, Values):
        return np.asarray(spec.values)
    if not isinstance(spec, Spec):
        return spec
    unit = rng.random(spec.shape)
    if spec.kind == "int":
        return np.floor(spec.low + unit * (spec.high - spec.low)).astype(np.int64)
    if spec.kind == "bool":
        return unit < 0.5
    if spec.kind == "sign":
        return np.where(unit < 0.5, -1.0, 1.0).astype(np.float32)
    drawn = spec.low + unit * (spec.high - spec.low)
    if spec.kind == "rows":
        drawn = drawn / drawn.sum(axis=min(1, drawn.ndim - 1), keepdims=True)
    return drawn.astype(np.float32)


def generator(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def draw_state(name: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Values for parameters and buffers, each from its own name: their order does not matter."""
    out = {}
    for key, shape in shapes.items():
        rng = generator(f"{name}/{key}")
        positive = key.endswith(("running_var",))
        low, high = (0.5, 1.5) if positive else (-0.5, 0.5)
        out[key] = (low + rng.random(shape) * (high - low)).astype(np.float32)
    return out


def module(name: str, call: str, *inputs: Any, args: tuple = (), **options: Any) -> Case:
    train = options.pop("train", True)
    given = options.pop("given", {})
    calls = options.pop("calls", 1)
    return Case(name, call, inputs, args, options, train, given, calls)


# -- activations ----------------------------------------------------------------------------------

_A = (x(3, 8, low=-7, high=7),)
ACTIVATIONS = [
    module(f"act-{call}", call, *_A)
    for call in (
        "ReLU ReLU6 LeakyReLU ELU SELU CELU GELU SiLU Mish Sigmoid Tanh Softplus Softsign "
        "LogSigmoid Tanhshrink Hardtanh Hardsigmoid Hardswish Hardshrink Softshrink"
    ).split()
] + [
    module("act-LeakyReLU-slope", "LeakyReLU", *_A, args=(0.2,)),
    module("act-ELU-alpha", "ELU", *_A, alpha=0.7),
    module("act-CELU-alpha", "CELU", *_A, alpha=0.7),
    module("act-GELU-tanh", "GELU", *_A, approximate="tanh"),
    module("act-Softplus-beta", "Softplus", *_A, beta=3.0, threshold=5.0),
    module("act-Hardtanh-bounds", "Hardtanh", *_A, min_val=-2.0, max_val=0.5),
    module("act-Hardshrink-lambd", "Hardshrink", *_A, lambd=1.5),
    module("act-Threshold", "Threshold", *_A, args=(0.3, -1.0)),
    module("act-GLU", "GLU", x(3, 8)),
    module("act-GLU-dim", "GLU", x(4, 3), dim=0),
    module("act-Softmax", "Softmax", x(3, 8), dim=1),
    module("act-Softmin", "Softmin", x(3, 8), dim=0),
    module("act-LogSoftmax", "LogSoftmax", x(3, 8), dim=-1),
    module("act-Softmax2d", "Softmax2d", x(2, 3, 2, 2)),
    module("act-RReLU-eval", "RReLU", *_A, train=False),
    module("act-PReLU", "PReLU", *_A),
    module("act-PReLU-channels", "PReLU", x(2, 3, 4), num_parameters=3),
]

# -- layers ---------------------------------------------------------------------------------------

LAYERS = [
    module("Linear", "Linear", x(5, 3), args=(3, 4)),
    module("Linear-nobias", "Linear", x(2, 5, 3), args=(3, 4), bias=False),
    module("Linear-vector", "Linear", x(3), args=(3, 4)),
    module("Bilinear", "Bilinear", x(5, 3), x(5, 2), args=(3, 2, 4)),
    module("Identity", "Identity", x(2, 3)),
    module("Flatten", "Flatten", x(2, 3, 4, 2), args=(1, 2)),
    module("Unflatten", "Unflatten", x(2, 12), args=(1, (3, 4))),
    module("Embedding", "Embedding", i(4, 3, high=7), args=(7, 5)),
    module("Embedding-padding", "Embedding", i(4, 6, high=4), args=(4, 5), padding_idx=2),
    module("LayerNorm", "LayerNorm", x(4, 6), args=(6,)),
    module("LayerNorm-two", "LayerNorm", x(2, 3, 4), args=((3, 4),), eps=1e-3),
    module("LayerNorm-nobias", "LayerNorm", x(4, 6), args=(6,), bias=False),
    module("LayerNorm-plain", "LayerNorm", x(4, 6), args=(6,), elementwise_affine=False),
    module("RMSNorm", "RMSNorm", x(4, 6), args=(6,)),
    module("RMSNorm-eps", "RMSNorm", x(2, 3, 4), args=((3, 4),), eps=1e-2),
    module("GroupNorm", "GroupNorm", x(2, 6, 3), args=(3, 6)),
    module("GroupNorm-2d", "GroupNorm", x(2, 4, 3, 2), args=(2, 4), affine=False),
    module("BatchNorm1d", "BatchNorm1d", x(5, 3), args=(3,), calls=2),
    module("BatchNorm1d-length", "BatchNorm1d", x(5, 3, 4), args=(3,), momentum=0.3),
    module("BatchNorm1d-cumulative", "BatchNorm1d", x(5, 3), args=(3,), momentum=None, calls=3),
    module("BatchNorm2d", "BatchNorm2d", x(2, 3, 4, 2), args=(3,)),
    module("BatchNorm2d-eval", "BatchNorm2d", x(2, 3, 4, 2), args=(3,), train=False),
    module("BatchNorm2d-plain", "BatchNorm2d", x(2, 3, 4, 2), args=(3,), affine=False),
    module(
        *("BatchNorm2d-untracked", "BatchNorm2d", x(2, 3, 4, 2)),
        args=(3,),
        track_running_stats=False,
        train=False,
    ),
    module("BatchNorm3d", "BatchNorm3d", x(2, 3, 2, 2, 2), args=(3,)),
    module("InstanceNorm1d", "InstanceNorm1d", x(2, 3, 4), args=(3,)),
    module("InstanceNorm2d", "InstanceNorm2d", x(2, 3, 4, 2), args=(3,), affine=True),
    module(
        *("InstanceNorm2d-tracked", "InstanceNorm2d", x(2, 3, 4, 2)),
        args=(3,),
        track_running_stats=True,
        calls=2,
    ),
    module("InstanceNorm2d-single", "InstanceNorm2d", x(3, 4, 2), args=(3,)),
    module("InstanceNorm3d", "InstanceNorm3d", x(2, 3, 2, 2, 2), args=(3,)),
    module("LocalResponseNorm", "LocalResponseNorm", x(2, 6, 3), args=(3,), alpha=0.5),
    module("LocalResponseNorm-even", "LocalResponseNorm", x(2, 5, 3), args=(4,), alpha=0.5),
    module("Dropout-eval", "Dropout", x(2, 3), train=False),
    module("CosineSimilarity", "CosineSimilarity", x(4, 6), x(4, 6)),
    module("PairwiseDistance", "PairwiseDistance", x(4, 6), x(4, 6)),
]


def function(name: str, call: str, *inputs: Any, **kwargs: Any) -> Case:
    return Case(name, call, inputs, (), kwargs)


FUNCTIONS = [
    function("normalize", "normalize", x(4, 6)),
    function("normalize-1", "normalize", x(4, 6), p=1.0, dim=0),
    function("pad-constant", "pad", x(2, 3, 4), pad=(1, 2, 0, 1), value=0.5),
    function("pad-negative", "pad", x(2, 3, 4), pad=(-1, 2)),
    function("pad-reflect", "pad", x(1, 2, 3, 4), pad=(1, 2, 2, 1), mode="reflect"),
    function("pad-replicate", "pad", x(1, 2, 3, 4), pad=(1, 2, 2, 1), mode="replicate"),
    function("pad-circular", "pad", x(1, 2, 3, 4), pad=(1, 2, 2, 1), mode="circular"),
]

# -- losses ---------------------------------------------------------------------------------------

_REDUCTIONS = ("mean", "sum", "none")
LOSSES = [
    module(f"{call}-{reduction}", call, x(4, 3), x(4, 3), reduction=reduction)
    for call in ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss")
    for reduction in _REDUCTIONS
]
LOSSES += [
    module("SmoothL1Loss-beta", "SmoothL1Loss", x(4, 3), x(4, 3), beta=0.4),
    module("SmoothL1Loss-zero", "SmoothL1Loss", x(4, 3), x(4, 3), beta=0.0),
    module("HuberLoss-delta", "HuberLoss", x(4, 3), x(4, 3), delta=0.4),
    module("PoissonNLLLoss", "PoissonNLLLoss", x(4, 3), x(4, 3, low=0, high=4, constant=True)),
    module(
        *("PoissonNLLLoss-full", "PoissonNLLLoss", x(4, 3, low=0.2)),
        *(x(4, 3, low=0, high=4, constant=True),),
        log_input=False,
        full=True,
    ),
    module("GaussianNLLLoss", "GaussianNLLLoss", x(4, 3), x(4, 3), x(4, 3, low=0.3)),
    module(
        "GaussianNLLLoss-full", "GaussianNLLLoss", x(4, 3), x(4, 3), x(4, 1, low=0.3), full=True
    ),
    *(
        module(f"CrossEntropy-{r}", "CrossEntropyLoss", x(5, 4), i(5, high=4), reduction=r)
        for r in _REDUCTIONS
    ),
    *(
        module(
            *(f"CrossEntropy-all-{r}", "CrossEntropyLoss", x(5, 4), Values([0, 3, -100, 1, 2])),
            weight=x(4, low=0.2, high=2.0),
            label_smoothing=0.1,
            reduction=r,
        )
        for r in _REDUCTIONS
    ),
    module("CrossEntropy-single", "CrossEntropyLoss", x(4), Values(2)),
    module("CrossEntropy-maps", "CrossEntropyLoss", x(2, 4, 3, 2), i(2, 3, 2, high=4)),
    module("CrossEntropy-ignore", "CrossEntropyLoss", x(5, 4), i(5, high=4), ignore_index=1),
    module("CrossEntropy-probabilities", "CrossEntropyLoss", x(5, 4), rows(5, 4)),
    *(
        module(
            *(f"CrossEntropy-probabilities-{r}", "CrossEntropyLoss", x(2, 4, 3), rows(2, 4, 3)),
            weight=x(4, low=0.2, high=2.0),
            label_smoothing=0.2,
            reduction=r,
        )
        for r in _REDUCTIONS
    ),
    module("NLLLoss", "NLLLoss", x(5, 4), i(5, high=4), weight=x(4, low=0.2, high=2.0)),
    module("NLLLoss-maps", "NLLLoss", x(2, 4, 3), i(2, 3, high=4), ignore_index=2),
    module("BCELoss", "BCELoss", x(4, 3, low=0.05, high=0.95), x(4, 3, low=0, high=1)),
    module(
        *("BCELoss-weight", "BCELoss", x(4, 3, low=0.05, high=0.95)),
        *(x(4, 3, low=0, high=1, constant=True),),
        weight=x(4, 3, low=0.1),
        reduction="sum",
    ),
    module(
        "BCEWithLogitsLoss", "BCEWithLogitsLoss", x(4, 3, low=-9, high=9), x(4, 3, low=0, high=1)
    ),
    module(
        *("BCEWithLogitsLoss-weights", "BCEWithLogitsLoss", x(4, 3)),
        *(x(4, 3, low=0, high=1, constant=True),),
        weight=x(4, 1, low=0.1),
        pos_weight=x(3, low=0.1, high=3),
        reduction="none",
    ),
    *(
        module(f"KLDiv-{r}", "KLDivLoss", x(4, 3, low=-3, high=-0.1), rows(4, 3), reduction=r)
        for r in (*_REDUCTIONS, "batchmean")
    ),
    module("KLDiv-log", "KLDivLoss", x(4, 3), x(4, 3), log_target=True, reduction="sum"),
    module("KLDiv-zero", "KLDivLoss", x(3), Values(np.float32([0.5, 0.0, 0.5]))),
    module("SoftMarginLoss", "SoftMarginLoss", x(4, 3), sign(4, 3)),
    module("MultiMarginLoss", "MultiMarginLoss", x(4, 3), i(4, high=3)),
    module(
        *("MultiMarginLoss-2", "MultiMarginLoss", x(4, 3), i(4, high=3)),
        p=2,
        margin=0.7,
        weight=x(3, low=0.2),
    ),
    module(
        *("MultiLabelMarginLoss", "MultiLabelMarginLoss", x(2, 4)),
        Values([[3, 0, -1, 1], [1, -1, -1, -1]]),
    ),
    module("MultiLabelSoftMarginLoss", "MultiLabelSoftMarginLoss", x(4, 3), x(4, 3, low=0, high=1)),
    module("CosineEmbeddingLoss", "CosineEmbeddingLoss", x(4, 3), x(4, 3), sign(4), margin=0.2),
    module("MarginRankingLoss", "MarginRankingLoss", x(6), x(6), sign(6), margin=0.2),
    module("HingeEmbeddingLoss", "HingeEmbeddingLoss", x(6), sign(6)),
    module("TripletMarginLoss", "TripletMarginLoss", x(4, 3), x(4, 3), x(4, 3)),
    module(
        "TripletMarginLoss-swap", "TripletMarginLoss", x(4, 3), x(4, 3), x(4, 3), swap=True, p=1
    ),
]

# -- convolutions ---------------------------------------------------------------------------------

CONVOLUTIONS = [
    module("Conv1d", "Conv1d", x(2, 3, 9), args=(3, 4, 3)),
    module("Conv1d-all", "Conv1d", x(2, 4, 9), args=(4, 6, 3, 2, 1, 2, 2), bias=False),
    module("Conv1d-single", "Conv1d", x(3, 9), args=(3, 4, 3)),
    module("Conv2d", "Conv2d", x(2, 3, 6, 5), args=(3, 4, 3), padding=1),
    module("Conv2d-all", "Conv2d", x(2, 4, 7, 8), args=(4, 4, (3, 2), (2, 1), (1, 2), (1, 2), 2)),
    module("Conv2d-same", "Conv2d", x(2, 2, 5, 5), args=(2, 3, 4), padding="same"),
    module("Conv2d-depthwise", "Conv2d", x(2, 4, 5, 5), args=(4, 4, 3), groups=4),
    *(
        module(
            *(f"Conv2d-{mode}", "Conv2d", x(1, 2, 5, 4)),
            args=(2, 3, 3),
            padding=(1, 2),
            padding_mode=mode,
        )
        for mode in ("reflect", "replicate", "circular")
    ),
    module("Conv3d", "Conv3d", x(1, 2, 4, 5, 3), args=(2, 3, 2), padding=1),
    module("ConvTranspose1d", "ConvTranspose1d", x(2, 3, 5), args=(3, 4, 3, 2)),
    module(
        *("ConvTranspose2d", "ConvTranspose2d", x(2, 4, 4, 3)),
        args=(4, 6, (3, 2), 2, 1),
        output_padding=1,
        groups=2,
    ),
    module(
        *("ConvTranspose2d-size", "ConvTranspose2d", x(1, 2, 3, 3)),
        args=(2, 2, 3, 2),
        given={"output_size": (8, 7)},
    ),
    module("ConvTranspose3d", "ConvTranspose3d", x(1, 2, 3, 2, 3), args=(2, 3, 2, 2)),
]

# -- recurrent layers -----------------------------------------------------------------------------

RECURRENT = [
    module("RNN", "RNN", x(4, 2, 3), args=(3, 5)),
    module("RNN-relu", "RNN", x(2, 4, 3), args=(3, 5), nonlinearity="relu", batch_first=True),
    module("GRU", "GRU", x(4, 2, 3), args=(3, 5)),
    module("GRU-state", "GRU", x(3, 2, 3), x(4, 2, 4), args=(3, 4, 2), bidirectional=True),
    module("LSTM", "LSTM", x(4, 2, 3), args=(3, 5)),
    module(
        *("LSTM-all", "LSTM", x(2, 4, 3), (x(4, 2, 4), x(4, 2, 4))),
        args=(3, 4, 2),
        bidirectional=True,
        batch_first=True,
    ),
    module("LSTM-projected", "LSTM", x(4, 2, 3), args=(3, 5), proj_size=2, num_layers=2),
    module("LSTM-single", "LSTM", x(4, 3), args=(3, 5), bias=False),
    module("RNNCell", "RNNCell", x(2, 3), x(2, 4), args=(3, 4)),
    module("GRUCell", "GRUCell", x(2, 3), x(2, 4), args=(3, 4)),
    module("LSTMCell", "LSTMCell", x(2, 3), (x(2, 4), x(2, 4)), args=(3, 4)),
    module("LSTMCell-start", "LSTMCell", x(2, 3), args=(3, 4)),
]

# -- attention ------------------------------------------------------------------------------------

_PADDING = Values([[False, False, True, False], [False, False, False, True]])
_MASK = Values(
    [[False, True, False, False], [False, False, False, True], [True, False, False, False]]
)
ATTENTION = [
    module("MHA", "MultiheadAttention", x(3, 2, 4), x(4, 2, 4), x(4, 2, 4), args=(4, 2)),
    module(
        *("MHA-masks", "MultiheadAttention", x(2, 3, 4), x(2, 4, 4), x(2, 4, 4)),
        args=(4, 2),
        batch_first=True,
        given={"key_padding_mask": _PADDING, "attn_mask": _MASK, "average_attn_weights": False},
    ),
    module(
        *("MHA-float-masks", "MultiheadAttention", x(2, 3, 4), x(2, 4, 4), x(2, 4, 4)),
        args=(4, 2),
        batch_first=True,
        given={"attn_mask": x(4, 3, 4, constant=True)},
    ),
    module(
        *("MHA-sizes", "MultiheadAttention", x(3, 2, 4), x(4, 2, 6), x(4, 2, 5)),
        args=(4, 2),
        kdim=6,
        vdim=5,
        given={"need_weights": False},
    ),
    module(
        *("MHA-extra", "MultiheadAttention", x(3, 2, 4), x(4, 2, 4), x(4, 2, 4)),
        args=(4, 2),
        add_bias_kv=True,
        add_zero_attn=True,
        given={"key_padding_mask": _PADDING},
    ),
    module("MHA-single", "MultiheadAttention", x(3, 4), x(4, 4), x(4, 4), args=(4, 2), bias=False),
    module("EncoderLayer", "TransformerEncoderLayer", x(3, 2, 4), args=(4, 2, 8, 0.0)),
    module(
        *("EncoderLayer-first", "TransformerEncoderLayer", x(2, 4, 4)),
        args=(4, 2, 8, 0.0, "gelu"),
        norm_first=True,
        batch_first=True,
        given={"src_key_padding_mask": _PADDING},
    ),
    module("DecoderLayer", "TransformerDecoderLayer", x(3, 2, 4), x(4, 2, 4), args=(4, 2, 8, 0.0)),
    module(
        *("DecoderLayer-first", "TransformerDecoderLayer", x(2, 3, 4), x(2, 4, 4)),
        args=(4, 2, 8, 0.0),
        norm_first=True,
        batch_first=True,
        given={"memory_mask": _MASK, "memory_key_padding_mask": _PADDING},
    ),
    module(
        *("Transformer", "Transformer", x(4, 2, 4), x(3, 2, 4)),
        args=(4, 2, 1, 2, 8, 0.0),
        given={"tgt_mask": Values(np.triu(np.ones((3, 3), bool), 1))},
    ),
]

# -- poolings and sizes ---------------------------------------------------------------------------

_P1, _P2, _P3 = x(2, 3, 9), x(2, 2, 7, 6), x(1, 2, 4, 5, 4)
POOLINGS = [
    module("MaxPool1d", "MaxPool1d", _P1, args=(3, 2, 1)),
    module("MaxPool2d", "MaxPool2d", _P2, args=(2,)),
    module("MaxPool2d-all", "MaxPool2d", _P2, args=((3, 2), (2, 1), 1, 1), ceil_mode=True),
    module("MaxPool3d", "MaxPool3d", _P3, args=(2,)),
    module("AvgPool1d", "AvgPool1d", _P1, args=(3,)),
    module("AvgPool2d", "AvgPool2d", _P2, args=(3, 2, 1), count_include_pad=False),
    module("AvgPool2d-divisor", "AvgPool2d", _P2, args=(2,), divisor_override=3),
    module("AvgPool3d", "AvgPool3d", _P3, args=(2,)),
    module("LPPool1d", "LPPool1d", x(2, 3, 9, low=0.1), args=(2, 3)),
    module("LPPool2d", "LPPool2d", x(2, 2, 7, 6, low=0.1), args=(3, 2)),
    module("AdaptiveAvgPool1d", "AdaptiveAvgPool1d", _P1, args=(4,)),
    module("AdaptiveAvgPool2d", "AdaptiveAvgPool2d", _P2, args=((3, None),)),
    module("AdaptiveMaxPool1d", "AdaptiveMaxPool1d", _P1, args=(4,)),
    module("AdaptiveMaxPool2d", "AdaptiveMaxPool2d", _P2, args=((3, 4),)),
    module("Upsample", "Upsample", _P2, scale_factor=2),
    module("Upsample-bilinear", "Upsample", _P2, size=(5, 9), mode="bilinear"),
    module("UpsamplingBilinear2d", "UpsamplingBilinear2d", _P2, scale_factor=2),
    module("PixelShuffle", "PixelShuffle", x(1, 8, 3, 2), args=(2,)),
    module("PixelUnshuffle", "PixelUnshuffle", x(1, 2, 4, 6), args=(2,)),
    module("Unfold", "Unfold", _P2, args=((2, 3),), padding=1),
    module("Fold", "Fold", x(1, 8, 12), args=((4, 5), 2)),
]

_O = Values([0, 2, 2, 5])
PADDINGS = [
    module("ZeroPad2d", "ZeroPad2d", _P2, args=((1, 2, 0, 3),)),
    module("ZeroPad2d-less", "ZeroPad2d", _P2, args=((-1, 2, 0, -2),)),
    module("ConstantPad1d", "ConstantPad1d", _P1, args=(2, 1.5)),
    module("ConstantPad3d", "ConstantPad3d", x(1, 2, 3, 2, 4), args=(1, -0.5)),
    module("ReflectionPad1d", "ReflectionPad1d", _P1, args=((3, 1),)),
    module("ReflectionPad2d", "ReflectionPad2d", _P2, args=(2,)),
    module("ReplicationPad2d", "ReplicationPad2d", _P2, args=((3, 0, 1, 2),)),
    module("ReplicationPad3d", "ReplicationPad3d", x(1, 2, 3, 2, 4), args=(2,)),
    module("CircularPad1d", "CircularPad1d", _P1, args=((2, 3),)),
    module("CircularPad2d", "CircularPad2d", _P2, args=(1,)),
    module("ChannelShuffle", "ChannelShuffle", x(2, 6, 3, 2), args=(3,)),
]
BAGS = [
    module("EmbeddingBag", "EmbeddingBag", i(4, 3, high=7), args=(7, 5)),
    module("EmbeddingBag-sum", "EmbeddingBag", i(9, high=7), _O, args=(7, 5), mode="sum"),
    module("EmbeddingBag-max", "EmbeddingBag", i(9, high=7), _O, args=(7, 5), mode="max"),
    module("EmbeddingBag-mean", "EmbeddingBag", i(9, high=7), _O, args=(7, 5), padding_idx=2),
    module(
        *("EmbeddingBag-last", "EmbeddingBag", i(9, high=7), Values([0, 4, 9])),
        args=(7, 5),
        mode="sum",
        include_last_offset=True,
    ),
    module(
        *("EmbeddingBag-weights", "EmbeddingBag", i(4, 3, high=7)),
        args=(7, 5),
        mode="sum",
        given={"per_sample_weights": x(4, 3)},
    ),
]

CASES = [
    *(*ACTIVATIONS, *LAYERS, *FUNCTIONS, *LOSSES, *CONVOLUTIONS, *RECURRENT, *ATTENTION),
    *(*POOLINGS, *PADDINGS, *BAGS),
]

# -- connectionist temporal classification: targets, lengths of inputs and targets, options --------

CTC_SCORES = x(6, 3, 5)  # (frames, batch, classes)
_ROWS = [[1, 2, 2, 1], [3, 1, 1, 1], [4, 1, 1, 1]]
CTC = {
    "ctc-mean": (_ROWS, [6, 5, 6], [3, 2, 1], {}),
    "ctc-none": (_ROWS, [6, 5, 3], [3, 2, 1], {"reduction": "none"}),
    "ctc-flat": ([1, 2, 2, 3, 1, 4], [6, 5, 6], [3, 2, 1], {"reduction": "sum"}),
    "ctc-blank": ([[0, 1, 0], [2, 2, 2], [1, 0, 3]], [6, 6, 6], [3, 2, 3], {"blank": 4}),
    "ctc-short": (_ROWS, [6, 1, 6], [3, 2, 1], {"zero_infinity": True}),
}
