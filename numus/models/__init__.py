"""Models: vision, diffusion and language, with the parameter names of torchvision and transformers.

Each family is a module, imported when one of its names is first asked for (docs/models.md).
"""

import importlib
from typing import Any

from numus.models import registry
from numus.models.registry import create, list_models

# Modules and their public names besides the factories of `registry.FACTORIES`.
_CLASSES: dict[str, str] = {
    "vision.resnet": "BasicBlock Bottleneck ResNet",
    "vision.convnext": "ConvNeXt",
    "vision.mobilenet": "InvertedResidual MobileNetV3",
    "vision.efficientnet": "EfficientNet MBConv",
    "vision.vgg": "VGG",
    "vision.densenet": "DenseNet",
    "vision.vit": "VisionTransformer",
    "vision.swin": "SwinTransformer",
    "vision.clip": "CLIP CLIPConfig CLIPOutput CLIPTower clip_loss",
    "diffusion.unet": "UNet",
    "diffusion.vae": "VAE VAEOutput vae_loss",
    "diffusion.samplers": "Diffusion FlowMatching",
    "finetuning": "finetune layerwise_rates lora_ merge_lora_",
    "language.base": "CausalLM EncoderDecoder",
    "language.llama": "LlamaConfig LlamaForCausalLM",
    "language.gpt2": "GPT2Config GPT2LMHeadModel",
    "language.gemma": "GemmaConfig GemmaForCausalLM",
    "language.mixtral": "MixtralConfig MixtralForCausalLM",
    "language.bert": "BertConfig BertForMaskedLM RobertaForMaskedLM",
    "language.t5": "T5Config T5ForConditionalGeneration",
    "language.whisper": "WhisperConfig WhisperForConditionalGeneration",
    "loading": "from_config load save",
    "tokenizers": "Tokenizer load_tokenizer",
    "generation": "Sampler generate",
}
_LAZY = {
    name: module
    for table in (registry.FACTORIES, _CLASSES)
    for module, names in table.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'numus.models' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"numus.models.{_LAZY[name]}"), name)
    globals()[name] = found
    return found


__all__ = ["create", "list_models", *_LAZY]
