"""More of what is compared with PyTorch: arguments that are seldom given, and together."""

from itertools import product

import numpy as np
from torch_cases import Values, function, i, module, rows, sign, x

_REDUCTIONS = ("mean", "sum", "none")
_P1, _P2, _P3 = x(2, 2, 7), x(1, 2, 5, 6), x(1, 1, 4, 3, 5)

WINDOWS = [
    *(
        module(
            *(f"Conv1d-{mode}-{stride}", "Conv1d", x(1, 2, 7)),
            args=(2, 2, 3),
            stride=stride,
            padding=2,
            dilation=2,
            groups=2,
            padding_mode=mode,
        )
        for mode, stride in product(("zeros", "reflect", "replicate", "circular"), (1, 2))
    ),
    *(
        module(
            *(f"Conv2d-same-{mode}", "Conv2d", x(1, 2, 5, 4)),
            args=(2, 2, (3, 2)),
            padding="same",
            dilation=(1, 2),
            padding_mode=mode,
        )
        for mode in ("zeros", "reflect", "replicate", "circular")
    ),
    module("Conv3d-all", "Conv3d", x(1, 2, 4, 5, 3), args=(2, 4, (2, 3, 1), (1, 2, 1), 1, 1, 2)),
    *(
        module(
            *(f"ConvTranspose{rank}d-{stride}{dilation}", f"ConvTranspose{rank}d"),
            x(1, 4, *(3, 4, 2)[:rank]),
            args=(4, 2, 3),
            stride=stride,
            padding=1,
            output_padding=1,
            dilation=dilation,
            groups=2,
            padding_mode="zeros",
        )
        for rank, stride, dilation in ((1, 2, 1), (1, 1, 2), (2, 3, 2), (3, 2, 1))
    ),
    *(
        module(
            *(f"MaxPool{rank}d-{padding}{dilation}{indices}", f"MaxPool{rank}d", data),
            args=(2,),
            padding=padding,
            dilation=dilation,
            ceil_mode=True,
            return_indices=indices,
        )
        for (rank, data), padding, dilation, indices in product(
            ((1, _P1), (2, _P2), (3, _P3)), (0, 1), (1, 2), (False, True)
        )
    ),
    *(
        module(
            *(f"AvgPool{rank}d-{stride}{padding}{counted}", f"AvgPool{rank}d", data),
            args=(3 if rank < 3 else 2,),
            stride=stride,
            padding=padding,
            ceil_mode=True,
            count_include_pad=counted,
        )
        for (rank, data), stride, padding, counted in product(
            ((1, _P1), (2, _P2), (3, _P3)), (1, 2), (0, 1), (False, True)
        )
    ),
    *(
        module(
            *(f"LPPool{rank}d-{ceil}", f"LPPool{rank}d", x(1, 2, *shape, low=0.1)),
            args=(3.0, 2),
            ceil_mode=ceil,
        )
        for (rank, shape), ceil in product(((1, (7,)), (2, (5, 4)), (3, (3, 4, 5))), (False, True))
    ),
    module("AdaptiveAvgPool3d", "AdaptiveAvgPool3d", _P3, args=((3, 2, None),)),
    module("AdaptiveMaxPool3d", "AdaptiveMaxPool3d", _P3, args=((3, 2, None),)),
    module("AdaptiveMaxPool2d-at", "AdaptiveMaxPool2d", _P2, args=(3,), return_indices=True),
]

RESIZING = [
    *(
        function(
            f"interpolate-{mode}-{corners}-{k}", "interpolate", data, mode=mode, **size, **given
        )
        for (mode, data), (corners, given), (k, size) in product(
            (("linear", _P1), ("bilinear", _P2), ("bicubic", _P2), ("trilinear", _P3)),
            (("corners", {"align_corners": True}), ("edges", {})),
            (
                ("size", {"size": 4}),
                ("factor", {"scale_factor": 1.7}),
                ("again", {"scale_factor": 0.6, "recompute_scale_factor": True}),
            ),
        )
    ),
    *(
        function(f"interpolate-{mode}", "interpolate", _P2, mode=mode, scale_factor=1.7)
        for mode in ("nearest", "nearest-exact", "area")
    ),
    function(
        "interpolate-smoothed", "interpolate", _P2, mode="bicubic", size=(3, 4), antialias=True
    ),
    *(
        function(
            *(f"grid_sample-{mode}-{margin}-{corners}", "grid_sample", _P2, x(1, 3, 2, 2)),
            mode=mode,
            padding_mode=margin,
            align_corners=corners,
        )
        for mode, margin, corners in product(
            ("bilinear", "bicubic"), ("zeros", "border", "reflection"), (False, True)
        )
    ),
    *(
        function(f"affine_grid-{len(size)}-{c}", "affine_grid", theta, size=size, align_corners=c)
        for (theta, size), c in product(
            ((x(2, 2, 3), (2, 1, 3, 4)), (x(1, 3, 4), (1, 1, 2, 3, 1))), (False, True)
        )
    ),
]

NORMS = [
    *(
        module(
            *(f"{call}-{momentum}{affine}{tracked}{train}", call, data),
            args=(3,),
            momentum=momentum,
            affine=affine,
            track_running_stats=tracked,
            train=train,
            calls=2,
        )
        for (call, data), momentum, affine, tracked, train in product(
            (("BatchNorm2d", x(2, 3, 2, 2)), ("InstanceNorm1d", x(2, 3, 4))),
            (0.7, None),
            (False, True),
            (False, True),
            (False, True),
        )
    ),
    module("BatchNorm1d-unshifted", "BatchNorm1d", x(4, 3), args=(3,), bias=False),
    module("GroupNorm-unshifted", "GroupNorm", x(2, 4, 3), args=(2, 4), bias=False),
    module("LayerNorm-unshifted", "LayerNorm", x(2, 3, 4), args=((3, 4),), bias=False, eps=0.01),
    module("Embedding-longest", "Embedding", i(3, 2, high=5), args=(5, 3), max_norm=0.4),
    module("Embedding-longest-1", "Embedding", i(4, high=5), args=(5, 3, None, 0.5, 1.0)),
    module("Embedding-often", "Embedding", i(9, high=5), args=(5, 3, 1), scale_grad_by_freq=True),
    module("EmbeddingBag-longest", "EmbeddingBag", i(3, 2, high=5), args=(5, 3, 0.4)),
    function("pdist", "pdist", x(4, 3)),
    function("pdist-1", "pdist", x(4, 3), p=1.0),
    *(function(f"softmax-{n}", "softmax", x(*(2, 3)[:n])) for n in (1, 2)),
]

LOSSES = [
    *(
        module(
            *(f"CrossEntropy-{r}-{ignored}-{smooth}-{weighted}-{len(shape)}", "CrossEntropyLoss"),
            *(x(*shape), i(shape[0], *shape[2:], high=3)),
            reduction=r,
            ignore_index=ignored,
            label_smoothing=smooth,
            **({"weight": x(3, low=0.2)} if weighted else {}),
        )
        for r, ignored, smooth, weighted, shape in product(
            _REDUCTIONS, (-100, 1), (0.0, 0.2), (False, True), ((4, 3), (2, 3, 2, 2))
        )
    ),
    *(
        module(
            *(f"CrossEntropy-shares-{r}-{smooth}", "CrossEntropyLoss", x(2, 3, 2), rows(2, 3, 2)),
            reduction=r,
            label_smoothing=smooth,
        )
        for r, smooth in product(_REDUCTIONS, (0.0, 0.2))
    ),
    *(
        module(f"CrossEntropy-nothing-{r}", "CrossEntropyLoss", x(2, 3), Values([-100, -100]),
               reduction=r)
        for r in _REDUCTIONS
    ),
    *(
        module(f"NLLLoss-{r}", "NLLLoss", x(2, 3, 2), i(2, 2, high=3), ignore_index=1,
               weight=x(3, low=0.2), reduction=r)
        for r in _REDUCTIONS
    ),
    *(
        module(
            *(f"TripletMarginLoss-{p}-{swap}-{r}", "TripletMarginLoss", x(3, 2), x(3, 2), x(3, 2)),
            p=p,
            swap=swap,
            margin=0.7,
            reduction=r,
        )
        for p, swap, r in product((1.0, 2.0, 3.0), (False, True), _REDUCTIONS)
    ),
    *(
        module(
            *(f"MultiMarginLoss-{p}-{r}", "MultiMarginLoss", x(3, 4), i(3, high=4)),
            p=p,
            margin=0.6,
            weight=x(4, low=0.2),
            reduction=r,
        )
        for p, r in product((1, 2), _REDUCTIONS)
    ),
    *(
        module(
            *(f"GaussianNLLLoss-{full}-{r}", "GaussianNLLLoss"),
            *(x(3, 2), x(3, 2), x(3, 1, low=0.1)),
            full=full,
            eps=0.5,
            reduction=r,
        )
        for full, r in product((False, True), _REDUCTIONS)
    ),
    *(
        module(
            *(f"BCEWithLogits-{r}", "BCEWithLogitsLoss", x(2, 3, low=-30, high=30)),
            x(2, 3, low=0, high=1),
            pos_weight=x(3, low=0.2, high=3),
            weight=x(2, 1, low=0.1),
            reduction=r,
        )
        for r in _REDUCTIONS
    ),
    module("BCELoss-ends", "BCELoss", Values(np.float32([0, 1, 0, 1]), constant=False),
           Values(np.float32([0, 1, 1, 0]))),
    *(
        module(f"KLDiv-log-{r}", "KLDivLoss", x(2, 3), x(2, 3), log_target=True, reduction=r)
        for r in (*_REDUCTIONS, "batchmean")
    ),
    *(
        function(f"{call}-weights-{r}", call, x(2, 3), x(2, 3), weight=x(2, 3, low=0.1),
                 reduction=r)
        for call, r in product(("mse_loss", "l1_loss", "huber_loss"), _REDUCTIONS)
    ),
    *(
        module(f"CosineEmbedding-{r}", "CosineEmbeddingLoss", x(3, 2), x(3, 2), sign(3),
               margin=-0.2, reduction=r)
        for r in _REDUCTIONS
    ),
]  # fmt: skip

RECURRENT = [
    *(
        module(
            *(f"{call}-{layers}{first}{both}", call, x(3, 2, 2)),
            args=(2, 3, layers),
            batch_first=first,
            bidirectional=both,
            dropout=0.5,
            train=False,
        )
        for call, layers, first, both in product(
            ("RNN", "GRU", "LSTM"), (1, 2), (False, True), (False, True)
        )
        if (layers, first) != (1, False)
    ),
    module("LSTM-projected-all", "LSTM", x(2, 3, 2), (x(4, 2, 2), x(4, 2, 3)), args=(2, 3, 2),
           proj_size=2, bidirectional=True, batch_first=True),
    module("GRU-single", "GRU", x(3, 2), x(2, 3), args=(2, 3), bidirectional=True, bias=False),
]  # fmt: skip

_LATER = Values(np.triu(np.ones((3, 3), bool), 1))
_PADDED = Values([[False, True, False], [False, False, True]])
ATTENTION = [
    *(
        module(
            *(f"MHA-{first}{bias}{extra}-{k}", "MultiheadAttention"),
            *((x(2, 3, 4),) * 3 if first else (x(3, 2, 4),) * 3),
            args=(4, 2),
            batch_first=first,
            bias=bias,
            add_bias_kv=extra,
            add_zero_attn=extra,
            given=given,
        )
        for first, bias, extra, (k, given) in product(
            (False, True),
            (False, True),
            (False, True),
            (
                ("heads", {"attn_mask": _LATER, "average_attn_weights": False}),
                ("alone", {"key_padding_mask": _PADDED, "need_weights": False}),
            ),
        )
    ),
    *(
        module(
            *(f"EncoderLayer-{first}{bias}{kind}", "TransformerEncoderLayer", x(3, 2, 4)),
            args=(4, 2, 6, 0.0),
            norm_first=first,
            bias=bias,
            activation=kind,
            layer_norm_eps=0.01,
            given={"src_mask": _LATER, "is_causal": True},
        )
        for first, bias, kind in product((False, True), (False, True), ("relu", "gelu"))
    ),
]

EDGES = [*WINDOWS, *RESIZING, *NORMS, *LOSSES, *RECURRENT, *ATTENTION]
