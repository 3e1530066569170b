"""CLIP (Radford et al. 2021): a text and an image encoder whose outputs are compared by cosine.

Parameters have the names of transformers' `CLIPModel`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

import numus as nm
from numus import nn
from numus.errors import ShapeError
from numus.models.blocks import Renamed
from numus.models.language.config import Config, known_fields
from numus.models.registry import factory
from numus.nn import functional as F
from numus.nn import init
from numus.tensor import Tensor

__all__ = [
    "CLIP", "CLIPConfig", "CLIPOutput", "CLIPTower", "clip_loss", "clip_vit_base_patch16",
    "clip_vit_base_patch32", "clip_vit_large_patch14",
]  # fmt: skip


def _quick_gelu(x: Tensor) -> Tensor:
    return x * nm.sigmoid(1.702 * x)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"quick_gelu": _quick_gelu, "gelu": F.gelu}


@dataclass(frozen=True)
class CLIPTower:
    """The sizes of one of the two encoders; names are those of transformers' configurations."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    attention_dropout: float = 0.0
    # of texts
    vocab_size: int = 49408
    max_position_embeddings: int = 77
    eos_token_id: int = 49407
    # of images
    image_size: int = 224
    patch_size: int = 32
    num_channels: int = 3

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CLIPTower:
        """The part `text_config` or `vision_config` of a config.json; other entries are unused."""
        return cls(**known_fields(cls, config))

    def __post_init__(self) -> None:
        counts = [f.name for f in fields(self) if f.type == "int" and f.name != "eos_token_id"]
        faults = [f"{n} is {getattr(self, n)}, which should be positive" for n in counts]
        faults = [x for x, n in zip(faults, counts, strict=True) if getattr(self, n) < 1]
        if not faults and self.hidden_size % self.num_attention_heads:
            faults = [f"hidden_size {self.hidden_size} is no multiple of the heads' number"]
        if self.hidden_act not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            faults.append(f"hidden_act {self.hidden_act!r} must be one of {known}")
        if faults:
            raise ValueError(f"CLIPTower: {'; '.join(faults)}")


# What configurations leave out.
_DEFAULTS = {
    "text_config": {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8},
    "vision_config": {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
}


@dataclass(frozen=True, kw_only=True)
class CLIPConfig(Config):
    """The fields of CLIP's config.json, of which each encoder has its own."""

    model_type: str = "clip"
    text_config: Any = field(default_factory=dict)
    vision_config: Any = field(default_factory=dict)
    projection_dim: int = 512
    logit_scale_init_value: float = math.log(1 / 0.07)

    def __post_init__(self) -> None:
        faults = []
        for name in ("text_config", "vision_config"):
            try:
                self._tower(name)
            except ValueError as fault:
                faults.append(str(fault))
        if faults:
            raise ValueError(f"CLIPConfig: {'; '.join(faults)}")

    def _tower(self, name: str) -> CLIPTower:
        given = getattr(self, name)
        if not isinstance(given, Mapping):
            raise ValueError(f"{name} is {given!r}, which should be a dict of sizes")
        try:
            return CLIPTower.from_config({"num_hidden_layers": 12, **_DEFAULTS[name], **given})
        except ValueError as fault:
            raise ValueError(f"{name}: {fault}") from None

    @property
    def towers(self) -> tuple[CLIPTower, CLIPTower]:
        """The sizes of the encoders of texts and of images."""
        return self._tower("text_config"), self._tower("vision_config")


class CLIPOutput(NamedTuple):
    """Scores of every image with every text, their transpose, and the features compared."""

    logits_per_image: Tensor
    logits_per_text: Tensor
    text_embeds: Tensor
    image_embeds: Tensor


class Attention(nn.Module):
    """Attention by several heads, with a projection each for queries, keys and values."""

    def __init__(self, tower: CLIPTower) -> None:
        width = tower.hidden_size
        self.heads, self.dropout = tower.num_attention_heads, tower.attention_dropout
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        n, length, width = x.shape
        heads = (n, length, self.heads, width // self.heads)
        parts = (layer(x).reshape(heads) for layer in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (part.swapaxes(1, 2) for part in parts)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
        return self.out_proj(y.swapaxes(1, 2).reshape(x.shape))


class MLP(nn.Module):
    """Two linear maps with an activation between them."""

    def __init__(self, tower: CLIPTower) -> None:
        self.activation = tower.hidden_act
        self.fc1 = nn.Linear(tower.hidden_size, tower.intermediate_size)
        self.fc2 = nn.Linear(tower.intermediate_size, tower.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(_ACTIVATIONS[self.activation](self.fc1(x)))


class EncoderLayer(nn.Module):
    """Attention and an MLP, each after its norm and added to its input."""

    def __init__(self, tower: CLIPTower) -> None:
        self.self_attn = Attention(tower)
        self.layer_norm1 = nn.LayerNorm(tower.hidden_size, tower.layer_norm_eps)
        self.mlp = MLP(tower)
        self.layer_norm2 = nn.LayerNorm(tower.hidden_size, tower.layer_norm_eps)

    def forward(self, x: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x), mask, causal)
        return x + self.mlp(self.layer_norm2(x))


class Encoder(nn.Module):
    """Layers one after the other."""

    def __init__(self, tower: CLIPTower) -> None:
        self.layers = nn.ModuleList(EncoderLayer(tower) for _ in range(tower.num_hidden_layers))

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask, causal)
        return x


class TextEmbeddings(nn.Module):
    """Vectors of tokens and of their positions."""

    def __init__(self, tower: CLIPTower) -> None:
        self.token_embedding = nn.Embedding(tower.vocab_size, tower.hidden_size)
        self.position_embedding = nn.Embedding(tower.max_position_embeddings, tower.hidden_size)

    def forward(self, tokens: Tensor) -> Tensor:
        room = self.position_embedding.weight.shape[0]
        if tokens.shape[-1] > room:
            raise ShapeError(f"CLIP: a text of {tokens.shape[-1]} tokens, where {room} is the most")
        return self.token_embedding(tokens) + self.position_embedding.weight[: tokens.shape[-1]]


class TextModel(nn.Module):
    """The text encoder: what the layers give at the token that ends each text."""

    def __init__(self, tower: CLIPTower) -> None:
        self.embeddings = TextEmbeddings(tower)
        self.encoder = Encoder(tower)
        self.final_layer_norm = nn.LayerNorm(tower.hidden_size, tower.layer_norm_eps)
        self.eos_token_id = tower.eos_token_id

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embeddings(tokens)
        mask = None
        if attention_mask is not None:
            length = tokens.shape[-1]
            counts = nm.asarray(attention_mask).astype(nm.bool)[:, None, None, :]
            mask = counts & F.causal_mask(length, length, device=x.device)
        x = self.final_layer_norm(self.encoder(x, mask, mask is None))
        # configurations of 2021 name token 2, and texts end with the largest token there is
        ends = tokens if self.eos_token_id == 2 else (tokens == self.eos_token_id).astype(nm.int32)
        return x[nm.arange(x.shape[0], device=x.device), nm.argmax(ends, axis=-1)]


class VisionEmbeddings(nn.Module):
    """Vectors of patches, behind one of the whole, and of their positions."""

    def __init__(self, tower: CLIPTower) -> None:
        width, patch = tower.hidden_size, tower.patch_size
        self.image_size = tower.image_size
        self.class_embedding = nn.Parameter(nm.random.normal((width,)))
        self.patch_embedding = nn.Conv2d(tower.num_channels, width, patch, patch, bias=False)
        self.position_embedding = nn.Embedding((tower.image_size // patch) ** 2 + 1, width)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-2:] != (self.image_size,) * 2:
            size = self.image_size
            raise ShapeError(f"CLIP: takes images of {size} × {size} pixels, not {images.shape}")
        width = self.class_embedding.shape[0]
        patches = self.patch_embedding(images).reshape((images.shape[0], width, -1)).mT
        whole = nm.broadcast_to(self.class_embedding, (images.shape[0], 1, width))
        return nm.concat([whole, patches], axis=1) + self.position_embedding.weight


class VisionModel(nn.Module):
    """The image encoder: what the layers give for the whole."""

    def __init__(self, tower: CLIPTower) -> None:
        self.embeddings = VisionEmbeddings(tower)
        self.pre_layrnorm = nn.LayerNorm(tower.hidden_size, tower.layer_norm_eps)  # sic
        self.encoder = Encoder(tower)
        self.post_layernorm = nn.LayerNorm(tower.hidden_size, tower.layer_norm_eps)

    def forward(self, images: Tensor) -> Tensor:
        x = self.encoder(self.pre_layrnorm(self.embeddings(images)))
        return self.post_layernorm(x[:, 0])


class CLIP(Renamed):
    """Texts and images in one space.

    >>> text = nm.models.CLIPTower(8, 16, 1, 2, vocab_size=20, eos_token_id=19)
    >>> vision = nm.models.CLIPTower(12, 24, 1, 2, image_size=8, patch_size=4)
    >>> model = nm.models.CLIP(text, vision, projection_dim=6).eval()
    >>> model(nm.asarray([[3, 5, 19]]), nm.zeros((2, 3, 8, 8))).logits_per_image.shape
    (2, 1)

    Args:
        text, vision: the sizes of both encoders.
        projection_dim: how many features are compared.
        logit_scale_init_value: the logarithm of what cosines are multiplied by, at first.
    """

    old_names = ((r".*\.position_ids$", ""),)  # once stored with the weights, but no weights
    architecture = "CLIPModel"  # in a config.json
    config: CLIPConfig

    def __init__(
        self,
        text: CLIPTower,
        vision: CLIPTower,
        projection_dim: int = 512,
        logit_scale_init_value: float = math.log(1 / 0.07),
    ) -> None:
        self.logit_scale = nn.Parameter(nm.asarray(logit_scale_init_value, dtype=nm.float32))
        self.text_model = TextModel(text)
        self.vision_model = VisionModel(vision)
        self.visual_projection = nn.Linear(vision.hidden_size, projection_dim, bias=False)
        self.text_projection = nn.Linear(text.hidden_size, projection_dim, bias=False)
        self._reset(text, vision)
        self.config = CLIPConfig(
            vocab_size=text.vocab_size,
            text_config=asdict(text),
            vision_config=asdict(vision),
            projection_dim=projection_dim,
            logit_scale_init_value=logit_scale_init_value,
        )

    def _reset(self, text: CLIPTower, vision: CLIPTower) -> None:
        """Draw first values: smaller ones where more layers add theirs to the same sum."""
        for tower, part in ((text, self.text_model), (vision, self.vision_model)):
            width = tower.hidden_size
            deep = width**-0.5 * (2 * tower.num_hidden_layers) ** -0.5
            for module in part.modules():
                if isinstance(module, nn.Embedding):
                    init.normal_(module.weight, std=0.02)
                elif isinstance(module, Attention):
                    for layer in (module.q_proj, module.k_proj, module.v_proj):
                        init.normal_(layer.weight, std=deep)
                    init.normal_(module.out_proj.weight, std=width**-0.5)
                elif isinstance(module, MLP):
                    init.normal_(module.fc1.weight, std=(2 * width) ** -0.5)
                    init.normal_(module.fc2.weight, std=deep)
            for module in part.modules():
                if isinstance(module, nn.Linear) and module.bias is not None:
                    init.zeros_(module.bias)
        embeddings = self.vision_model.embeddings
        init.normal_(embeddings.class_embedding, std=vision.hidden_size**-0.5)
        init.normal_(embeddings.patch_embedding.weight, std=0.02)
        init.normal_(self.text_projection.weight, std=text.hidden_size**-0.5)
        init.normal_(self.visual_projection.weight, std=vision.hidden_size**-0.5)

    @classmethod
    def from_config(cls, config: CLIPConfig | Mapping[str, Any]) -> CLIP:
        """The model of a config.json of transformers, with random weights."""
        given = config if isinstance(config, CLIPConfig) else CLIPConfig.from_dict(config)
        model = cls(*given.towers, given.projection_dim, given.logit_scale_init_value)
        model.config = given
        return model

    def get_text_features(self, input_ids: Any, attention_mask: Any = None) -> Tensor:
        """The features of texts (batch, tokens), before they are normalised."""
        return self.text_projection(self.text_model(nm.asarray(input_ids), attention_mask))

    def get_image_features(self, pixel_values: Any) -> Tensor:
        """The features of images (batch, channels, height, width), before they are normalised."""
        return self.visual_projection(self.vision_model(nm.asarray(pixel_values)))

    def forward(self, input_ids: Any, pixel_values: Any, attention_mask: Any = None) -> CLIPOutput:
        texts = F.normalize(self.get_text_features(input_ids, attention_mask), dim=-1)
        images = F.normalize(self.get_image_features(pixel_values), dim=-1)
        scores = nm.exp(self.logit_scale) * (texts @ images.mT)
        return CLIPOutput(scores.mT, scores, texts, images)


def clip_loss(output: CLIPOutput) -> Tensor:
    """The contrastive loss of pairs: image i goes with text i."""
    own = nm.arange(output.logits_per_text.shape[0], device=output.logits_per_text.device)
    by_text = F.cross_entropy(output.logits_per_text, own)
    return (by_text + F.cross_entropy(output.logits_per_image, own)) / 2


@factory
def clip_vit_base_patch32() -> CLIP:
    """CLIP with ViT-B/32."""
    return CLIP(CLIPTower(512, 2048, 12, 8), CLIPTower(768, 3072, 12, 12, patch_size=32))


@factory
def clip_vit_base_patch16() -> CLIP:
    """CLIP with ViT-B/16."""
    return CLIP(CLIPTower(512, 2048, 12, 8), CLIPTower(768, 3072, 12, 12, patch_size=16))


@factory
def clip_vit_large_patch14() -> CLIP:
    """CLIP with ViT-L/14."""
    return CLIP(CLIPTower(768, 3072, 12, 12), CLIPTower(1024, 4096, 24, 16, patch_size=14), 768)
