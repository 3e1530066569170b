"""Vision Transformer (Dosovitskiy et al. 2021): patches of an image as the tokens of an encoder."""

from __future__ import annotations

import functools
import math
from typing import Any

import numus as nm
from numus import nn
from numus.errors import ShapeError
from numus.models.blocks import MLP, Renamed
from numus.models.registry import factory
from numus.nn import init
from numus.tensor import Tensor

__all__ = ["VisionTransformer", "vit_b_16", "vit_b_32", "vit_h_14", "vit_l_16", "vit_l_32"]

_norm = functools.partial(nn.LayerNorm, eps=1e-6)


class EncoderBlock(nn.Module):
    """Attention and an MLP, each after its norm and added to its input."""

    def __init__(
        self, heads: int, width: int, mlp_dim: int, dropout: float, attention_dropout: float
    ) -> None:
        self.ln_1 = _norm(width)
        self.self_attention = nn.MultiheadAttention(
            width, heads, attention_dropout, batch_first=True
        )
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = _norm(width)
        self.mlp = MLP(width, (mlp_dim, width), dropout=dropout)
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    init.normal_(layer.bias, std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        attended, _ = self.self_attention(self.ln_1(x), need_weights=False)
        x = x + self.dropout(attended)
        return x + self.mlp(self.ln_2(x))


class Encoder(nn.Module):
    """Positions added to tokens, and blocks one after the other."""

    def __init__(self, length: int, layers: int, width: int, dropout: float, *block: Any) -> None:
        self.pos_embedding = nn.Parameter(nm.random.normal((1, length, width), 0.0, 0.02))
        self.dropout = nn.Dropout(dropout)
        names = (f"encoder_layer_{i}" for i in range(layers))
        self.layers = nn.Sequential({name: EncoderBlock(*block) for name in names})
        self.ln = _norm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.ln(self.layers(self.dropout(x + self.pos_embedding)))


class VisionTransformer(Renamed):
    """A vision transformer that classifies by a token of its own.

    >>> model = nm.models.VisionTransformer(16, 8, 1, 2, 12, 24, num_classes=5)
    >>> model.encoder.pos_embedding.shape
    (1, 5, 12)

    Args:
        image_size, patch_size: the extents of images and of their patches, in pixels.
        num_layers: how many blocks there are.
        num_heads: how many heads each attention has.
        hidden_dim: the size of a token.
        mlp_dim: the width of the MLPs' hidden layers.
        dropout, attention_dropout: after each branch, and of attention's weights.
        num_classes: how many scores there are.
        representation_size: the width of one more layer before the scores; None: there is none.
        in_channels: of the images.
    """

    # names of weights stored when MLPs had named layers
    old_names = ((r"mlp\.linear_1\.", "mlp.0."), (r"mlp\.linear_2\.", "mlp.3."))

    def __init__(
        self,
        image_size: int,
        patch_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        mlp_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        num_classes: int = 1000,
        representation_size: int | None = None,
        *,
        in_channels: int = 3,
    ) -> None:
        if image_size % patch_size:
            raise ValueError(
                f"VisionTransformer: image_size={image_size} must be a multiple of "
                f"patch_size={patch_size}"
            )
        self.image_size = image_size
        self.conv_proj = nn.Conv2d(in_channels, hidden_dim, patch_size, patch_size)
        self.class_token = nn.Parameter(nm.zeros((1, 1, hidden_dim)))
        length = (image_size // patch_size) ** 2 + 1
        block = (num_heads, hidden_dim, mlp_dim, dropout, attention_dropout)
        self.encoder = Encoder(length, num_layers, hidden_dim, dropout, *block)
        heads: dict[str, nn.Module] = {}
        if representation_size is not None:
            heads["pre_logits"] = nn.Linear(hidden_dim, representation_size)
            heads["act"] = nn.Tanh()
        last = nn.Linear(representation_size or hidden_dim, num_classes)
        self.heads = nn.Sequential(heads | {"head": last})
        for layer in (self.conv_proj, heads.get("pre_logits")):
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                init.trunc_normal_(layer.weight, std=math.sqrt(1 / init.fans(layer.weight)[0]))
        for parameter in (last.weight, last.bias, self.conv_proj.bias):
            if parameter is not None:
                init.zeros_(parameter)

    def tokens(self, x: Tensor) -> Tensor:
        """The encoder's output for images: the token of the whole, then one for each patch."""
        if x.shape[-2:] != (self.image_size,) * 2:
            raise ShapeError(
                f"VisionTransformer: takes images of {self.image_size} × {self.image_size} pixels, "
                f"not shape {x.shape}; build it with another image_size"
            )
        patches = self.conv_proj(x).reshape((x.shape[0], self.class_token.shape[-1], -1))
        whole = nm.broadcast_to(self.class_token, (x.shape[0], 1, self.class_token.shape[-1]))
        return self.encoder(nm.concat([whole, patches.mT], axis=1))

    def forward(self, x: Tensor) -> Tensor:
        return self.heads(self.tokens(x)[:, 0])


def _build(patch: int, layers: int, heads: int, width: int, options: Any) -> VisionTransformer:
    size = options.pop("image_size", 224)
    return VisionTransformer(size, patch, layers, heads, width, 4 * width, **options)


@factory
def vit_b_16(**options: Any) -> VisionTransformer:
    """ViT-B/16 of 224² images (`image_size`); options are those of `VisionTransformer`."""
    return _build(16, 12, 12, 768, options)


@factory
def vit_b_32(**options: Any) -> VisionTransformer:
    """ViT-B/32 of 224² images (`image_size`); options are those of `VisionTransformer`."""
    return _build(32, 12, 12, 768, options)


@factory
def vit_l_16(**options: Any) -> VisionTransformer:
    """ViT-L/16 of 224² images (`image_size`); options are those of `VisionTransformer`."""
    return _build(16, 24, 16, 1024, options)


@factory
def vit_l_32(**options: Any) -> VisionTransformer:
    """ViT-L/32 of 224² images (`image_size`); options are those of `VisionTransformer`."""
    return _build(32, 24, 16, 1024, options)


@factory
def vit_h_14(**options: Any) -> VisionTransformer:
    """ViT-H/14 of 224² images (`image_size`); options are those of `VisionTransformer`."""
    return _build(14, 32, 16, 1280, options)
