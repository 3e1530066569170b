"""The registry of models: which names there are, and the module of each one's factory.

Modules are imported when a name of theirs is first asked for. A factory is a function marked by
`factory`; it takes `key=`, from which all of the model's weights are drawn.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numus as nm
from numus.errors import ShapeError
from numus.nn import Module

__all__ = ["create", "list_models"]

M = TypeVar("M")

# Modules of numus.models, and the factories in each.
FACTORIES: dict[str, str] = {
    "vision.resnet": """
        resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d resnext101_32x8d
        resnext101_64x4d wide_resnet50_2 wide_resnet101_2
    """,
    "vision.convnext": "convnext_tiny convnext_small convnext_base convnext_large",
    "vision.mobilenet": "mobilenet_v3_large mobilenet_v3_small",
    "vision.efficientnet": """
        efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4
        efficientnet_b5 efficientnet_b6 efficientnet_b7 efficientnet_v2_s efficientnet_v2_m
        efficientnet_v2_l
    """,
    "vision.vgg": "vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn",
    "vision.densenet": "densenet121 densenet161 densenet169 densenet201",
    "vision.vit": "vit_b_16 vit_b_32 vit_l_16 vit_l_32 vit_h_14",
    "vision.swin": "swin_t swin_s swin_b swin_v2_t swin_v2_s swin_v2_b",
    "diffusion.unet": "unet_ddpm unet_segmentation",
    "diffusion.vae": "vae_f8",
    "vision.clip": "clip_vit_base_patch32 clip_vit_base_patch16 clip_vit_large_patch14",
}


@functools.cache
def _modules() -> dict[str, str]:
    """The module of each factory."""
    return {name: module for module, names in FACTORIES.items() for name in names.split()}


def create(name: str, **options: Any) -> Module:
    """The model of a name, with random weights.

    >>> model = nm.models.create("resnet18", num_classes=10, key=nm.random.key(0))
    >>> model.fc
    Linear(in_features=512, out_features=10, bias=True)

    Args:
        name: one of `list_models()`.
        options: what the model's factory takes, and `key`, from which weights are drawn.
    """
    module = _modules().get(name)
    if module is None:
        import difflib

        near = difflib.get_close_matches(name, _modules(), cutoff=0.4)
        hint = f"; near it: {', '.join(near)}" if near else ""
        raise ValueError(f"create: there is no model {name!r}{hint}; see nm.models.list_models()")
    made: Module = getattr(importlib.import_module(f"numus.models.{module}"), name)(**options)
    return made


def list_models(start: str = "") -> list[str]:
    """The names of all models, or of those that begin with `start`.

    >>> nm.models.list_models("resnet1")
    ['resnet101', 'resnet152', 'resnet18']
    """
    return sorted(name for name in _modules() if name.startswith(start))


def factory(function: Callable[..., M]) -> Callable[..., M]:
    """Let a function that builds a model take `key=`: its weights are drawn from it alone."""

    @functools.wraps(function)
    def build(*args: Any, key: Any = None, **options: Any) -> M:
        with drawn_from(key):
            return function(*args, **options)

    return build


@contextmanager
def drawn_from(key: Any) -> Iterator[None]:
    """Let the generator start at a key and go on afterwards where it was; None: as it is."""
    if key is None:
        yield
        return
    words = nm.asarray(key)
    if words.shape != (2,):
        raise ShapeError(
            f"models: key has shape (2,), not {words.shape}; make one with nm.random.key(seed)"
        )
    before = nm.random.get_state()
    nm.random.set_state((*words.tolist(), 0))
    try:
        yield
    finally:
        nm.random.set_state(before)
