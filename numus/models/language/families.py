"""Families of language models, and CLIP, by the `model_type` of a configuration."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["FAMILIES", "Family", "family_of"]


class Family(NamedTuple):
    """A module of `numus.models`, its configuration, and the class of its models."""

    module: str
    config: str
    model: str

    def load(self) -> tuple[Any, Any]:
        """The class of the configuration, and what makes a model of one."""
        module = importlib.import_module(f"numus.models.{self.module}")
        model = getattr(module, self.model)
        return getattr(module, self.config), getattr(model, "from_config", model)


_GEMMA = Family("language.gemma", "GemmaConfig", "GemmaForCausalLM")
_LLAMA = Family("language.llama", "LlamaConfig", "LlamaForCausalLM")
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _LLAMA),
    **dict.fromkeys(
        ("gemma", "gemma2", "gemma3_text"),
        Family("language.gemma", "GemmaConfig", "GemmaForCausalLM"),
    ),
    "mixtral": Family("language.mixtral", "MixtralConfig", "MixtralForCausalLM"),
    "bert": Family("language.bert", "BertConfig", "BertForMaskedLM"),
    "roberta": Family("language.bert", "BertConfig", "RobertaForMaskedLM"),
    "t5": Family("language.t5", "T5Config", "T5ForConditionalGeneration"),
    "whisper": Family("language.whisper", "WhisperConfig", "WhisperForConditionalGeneration"),
    "clip": Family("vision.clip", "CLIPConfig", "CLIP"),
    "gpt2": Family("language.gpt2", "GPT2Config", "GPT2LMHeadModel"),
}


def family_of(config: Mapping[str, Any], where: str) -> Family:
    """The family of a `config.json`."""
    kind = config.get("model_type")
    architectures = config.get("architectures") or []
    family = FAMILIES.get(str(kind))
    problems = []
    if family is None:
        problems.append(f"model_type is {kind!r}; there are {', '.join(sorted(FAMILIES))}")
    elif architectures and not any(name.endswith(_ENDINGS) for name in architectures):
        problems.append(
            f"architectures are {', '.join(map(str, architectures))}; models of {kind} are "
            f"{family.model}"
        )
    if problems:
        raise ValueError(f"{where}: an unknown architecture: {'; '.join(problems)}")
    assert family is not None
    return family


# What scores tokens; heads for other tasks have other parameters. A bare `…Model` lacks its head,
# which is tied to the embeddings or an error that lists it.
_ENDINGS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "Model")
