"""Attention."""

import math

import numpy as np

from ops.row import case, op, x

MASK = np.random.default_rng(3).random((5, 7)) < 0.5
MASK[2] = False  # a query that looks at no key
MASK[3] = True


def attention(
    q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    if enable_gqa:
        k, v = (np.repeat(t, q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    size = q.shape[-1]
    scores = q @ np.swapaxes(k, -1, -2) * (scale or (1 / math.sqrt(size) if size else 1))
    if attn_mask is not None and attn_mask.dtype == bool:
        scores = np.where(attn_mask, scores, -np.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    top = np.max(scores, -1, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1, total) @ v


ROWS = [
    op(
        "scaled_dot_product_attention",
        attention,
        case(x(2, 3, 4), x(2, 5, 4), x(2, 5, 6)),
        case(x(1, 2, 5, 3), x(2, 2, 5, 3), x(2, 2, 5, 3), is_causal=True),
        case(x(2, 5, 3), x(2, 7, 3), x(1, 7, 2), attn_mask=MASK, scale=0.3),
        case(x(2, 4, 3, 2), x(2, 2, 4, 2), x(2, 1, 4, 3), x(2, 1, 3, 4), enable_gqa=True),
        case(x(3, 2), x(0, 2), x(0, 4)),
        case(x(0, 2), x(3, 2), x(3, 4)),
        case(x(3, 0), x(2, 0), x(2, 1)),
        values=[
            case(x(2, 70, 33), x(2, 150, 33), x(2, 150, 20)),
            case(x(3, 75, 9), x(3, 75, 9), x(3, 75, 40), is_causal=True),
            case(x(1, 3, 130, 16), x(2, 1, 40, 16), x(1, 3, 40, 17), is_causal=True),
            case(x(65, 16), x(300, 16), x(300, 16), x(1, 300)),
        ],
        ulps=64,
        relative=False,
    ),
]
