"""Image models that numus and torchvision (or transformers) both build, and weights for either.

A case has a function of `numus.models` and one of torchvision's `models` module; small ones go
through the same classes as the models of full size.
"""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np


def generator(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def draw_state(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Weights by their names, of sizes with which activations neither vanish nor explode."""
    out = {}
    for name, shape in shapes.items():
        rng = generator(name)
        unit = rng.random(shape, np.float32) * 2 - 1
        if name.endswith("running_var"):
            values = 1 + 0.5 * unit
        elif name.endswith(("layer_scale", "logit_scale")):
            values = 1 + 0.2 * unit
        elif len(shape) >= 2 and "embedding" not in name and "table" not in name:
            values = unit * np.float32(np.sqrt(3 / np.prod(shape[1:])))
        elif len(shape) == 1 and name.endswith("weight"):
            values = 1 + 0.3 * unit
        else:
            values = 0.3 * unit
        out[name] = values.astype(np.float32)
    return out


@dataclass
class Case:
    """How both sides build a model, and the shape of its images."""

    ours: Any
    theirs: Any
    shape: tuple[int, ...] = (2, 3, 32, 32)
    slow: bool = False
    train: bool = True
    tokens: tuple[int, ...] | None = None
    seed: int | None = None

    def images(self) -> np.ndarray:
        numbered = self.seed is not None
        drawn = np.random.default_rng(self.seed) if numbered else generator(str(self.shape))
        return drawn.standard_normal(self.shape, np.float32)

    def texts(self) -> np.ndarray | None:
        """Token numbers that end with the largest one, and padding after it."""
        if self.tokens is None:
            return None
        rows = generator("tokens").integers(3, 18, self.tokens)
        for i, row in enumerate(rows):
            row[self.tokens[1] - 1 - i :] = 19
        return rows


def named(name: str, shape: tuple[int, ...], seed: int | None = None, **options: Any) -> Case:
    """A model of full size."""
    build = lambda models: getattr(models, name)(num_classes=7, **options)
    return Case(build, build, shape, slow=True, train=False, seed=seed)


def _vgg(torchvision: Any, widths: list[Any], batch_norm: bool) -> Any:
    from torch import nn

    layers = torchvision.vgg.make_layers(widths, batch_norm)
    model = torchvision.VGG(layers, num_classes=7, init_weights=False, dropout=0.0)
    sizes = ((widths[-2] * 49, 12), (12, 12), (12, 7))
    for at, (n, m) in zip((0, 3, 6), sizes, strict=True):
        model.classifier[at] = nn.Linear(n, m)
    return model


def _mobilenet(torchvision: Any) -> Any:
    block = torchvision.mobilenetv3.InvertedResidualConfig
    rows = [
        block(8, 3, 8, 8, True, "RE", 2, 1, 1.0),
        block(8, 5, 24, 16, False, "HS", 2, 1, 1.0),
        block(16, 5, 32, 16, True, "HS", 1, 1, 1.0),
        block(16, 3, 32, 16, True, "HS", 2, 2, 1.0),
    ]
    return torchvision.MobileNetV3(rows, 16, num_classes=7, dropout=0.0)


def _our_mobilenet(models: Any) -> Any:
    rows = [
        models.InvertedResidual(3, 8, 8, True, False, 2),
        models.InvertedResidual(5, 24, 16, False, True, 2),
        models.InvertedResidual(5, 32, 16, True, True, 1),
        models.InvertedResidual(3, 32, 16, True, True, 2, 2),
    ]
    return models.MobileNetV3(rows, 8, 16, num_classes=7, dropout=0.0)


def _efficientnet(torchvision: Any) -> Any:
    fused, deep = torchvision.efficientnet.FusedMBConvConfig, torchvision.efficientnet.MBConvConfig
    rows = [fused(1, 3, 1, 8, 8, 1), fused(4, 3, 2, 8, 16, 2), deep(4, 5, 2, 16, 24, 2)]
    rows.append(deep(1, 3, 1, 24, 24, 1))
    return torchvision.EfficientNet(rows, 0.0, 0.0, num_classes=7)


def _our_efficientnet(models: Any) -> Any:
    rows = [
        models.MBConv(1, 3, 1, 8, 8, 1, fused=True),
        models.MBConv(4, 3, 2, 8, 16, 2, fused=True),
        models.MBConv(4, 5, 2, 16, 24, 2),
        models.MBConv(1, 3, 1, 24, 24, 1),
    ]
    return models.EfficientNet(rows, 0.0, 0.0, num_classes=7)


def _convnext(torchvision: Any) -> Any:
    block = torchvision.convnext.CNBlockConfig
    return torchvision.ConvNeXt([block(8, 12, 1), block(12, None, 2)], num_classes=7)


def _swin(torchvision: Any, version: int) -> Any:
    swin = torchvision.swin_transformer
    options: dict[str, Any] = {"stochastic_depth_prob": 0.0, "num_classes": 7}
    if version == 2:
        options |= {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
    return torchvision.SwinTransformer([2, 2], 8, [2, 2], [2, 4], [4, 4], **options)


CLIP_TEXT = {
    **{"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "vocab_size": 20, "max_position_embeddings": 9},
    **{"eos_token_id": 19},
}
CLIP_VISION = {
    **{"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2},
    **{"num_attention_heads": 3, "image_size": 16, "patch_size": 8, "hidden_act": "gelu"},
}


def _clip(torchvision: Any) -> Any:
    from transformers import CLIPConfig, CLIPModel

    return CLIPModel(CLIPConfig(text_config=CLIP_TEXT, vision_config=CLIP_VISION, projection_dim=6))


def _our_clip(models: Any) -> Any:
    config = {"text_config": CLIP_TEXT, "vision_config": CLIP_VISION, "projection_dim": 6}
    return models.CLIP.from_config(config)


CASES = {
    "resnet": Case(
        lambda m: m.ResNet(m.BasicBlock, (1, 2, 1, 1), num_classes=7),
        lambda t: t.ResNet(t.resnet.BasicBlock, [1, 2, 1, 1], num_classes=7),
        (2, 3, 36, 36),
    ),
    "resnext": Case(
        lambda m: m.ResNet(
            *(m.Bottleneck, (1, 1, 1, 2), 7, False, 2, 4, (False, False, True)),
        ),
        lambda t: t.ResNet(
            *(t.resnet.Bottleneck, [1, 1, 1, 2], 7, False, 2, 4, [False, False, True]),
        ),
    ),
    "convnext": Case(lambda m: m.ConvNeXt((8, 12), (1, 2), num_classes=7), _convnext),
    "mobilenet_v3": Case(_our_mobilenet, _mobilenet),
    "efficientnet": Case(_our_efficientnet, _efficientnet),
    "vgg": Case(
        lambda m: m.VGG([(6,), (8, 8)], False, 7, 0.0, hidden=12),
        lambda t: _vgg(t, [6, "M", 8, 8, "M"], False),
        (2, 3, 20, 20),
    ),
    "vgg_bn": Case(
        lambda m: m.VGG([(6,), (8,)], True, 7, 0.0, hidden=12),
        lambda t: _vgg(t, [6, "M", 8, "M"], True),
        (2, 3, 36, 36),
    ),
    "densenet": Case(
        lambda m: m.DenseNet(4, (2, 1), 8, num_classes=7),
        lambda t: t.DenseNet(4, (2, 1), 8, num_classes=7),
    ),
    "vit": Case(
        lambda m: m.VisionTransformer(16, 8, 2, 2, 12, 20, num_classes=7, representation_size=6),
        lambda t: t.VisionTransformer(16, 8, 2, 2, 12, 20, num_classes=7, representation_size=6),
        (2, 3, 16, 16),
    ),
    "swin": Case(
        lambda m: m.SwinTransformer(
            2, 8, (2, 2), (2, 4), 4, num_classes=7, stochastic_depth_prob=0
        ),
        lambda t: _swin(t, 1),
        (2, 3, 22, 18),
    ),
    "swin_v2": Case(
        lambda m: m.SwinTransformer(
            *(2, 8, (2, 2), (2, 4), 4), num_classes=7, stochastic_depth_prob=0, version=2
        ),
        lambda t: _swin(t, 2),
        (2, 3, 22, 18),
    ),
    "clip": Case(_our_clip, _clip, (2, 3, 16, 16), tokens=(3, 9)),
    # full size, in evaluation: batch norms of so few pixels would magnify rounding
    "resnet18": named("resnet18", (2, 3, 64, 64)),
    # an image at which no rectifier's argument is within 2e-5 of zero: rounding flips none
    "resnet50": named("resnet50", (1, 3, 32, 32), seed=6),
    "resnext50_32x4d": named("resnext50_32x4d", (1, 3, 64, 64)),
    "wide_resnet50_2": named("wide_resnet50_2", (1, 3, 64, 64)),
    "resnet152": named("resnet152", (1, 3, 32, 32)),
    "convnext_tiny": named("convnext_tiny", (1, 3, 64, 64)),
    "mobilenet_v3_large": named("mobilenet_v3_large", (2, 3, 64, 64), dropout=0.0),
    "mobilenet_v3_small": named("mobilenet_v3_small", (2, 3, 64, 64), dropout=0.0),
    "efficientnet_b0": named("efficientnet_b0", (2, 3, 64, 64)),
    "efficientnet_b5": named("efficientnet_b5", (1, 3, 64, 64)),
    "efficientnet_v2_s": named("efficientnet_v2_s", (1, 3, 64, 64)),
    "vgg11_bn": named("vgg11_bn", (1, 3, 64, 64), dropout=0.0),
    "vgg16": named("vgg16", (1, 3, 64, 64), dropout=0.0),
    "densenet121": named("densenet121", (2, 3, 64, 64)),
    "vit_b_16": named("vit_b_16", (1, 3, 64, 64), image_size=64),
    "swin_t": named("swin_t", (1, 3, 96, 64)),
    "swin_v2_t": named("swin_v2_t", (1, 3, 96, 64)),
}


def scores(output: Any) -> Any:
    """The scores among a model's outputs: CLIP has several."""
    return output.logits_per_image if hasattr(output, "logits_per_image") else output


def weighted(values: np.ndarray) -> np.ndarray:
    """Weights of which none is zero and no two are alike."""
    return np.cos(np.arange(values.size, dtype=np.float32)).reshape(values.shape)


def digest(gradient: np.ndarray) -> tuple[float, float]:
    """A weighted sum of a gradient, and its length."""
    wide = gradient.astype(np.float64)
    return float((wide * weighted(gradient)).sum()), float(np.sqrt((wide**2).sum()))
