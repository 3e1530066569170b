"""Language models: what decoders have in common, and how they are called.

A decoder gives hidden states for tokens in a `Pass`, and its head scores of the next token. The
same two methods serve a forward pass over whole texts and generation with a cache.
"""

from __future__ import annotations

import importlib
import itertools
from dataclasses import dataclass
from typing import Any, Self

import numus as nm
from numus import nn
from numus.errors import ShapeError
from numus.models.language.attention import Pass
from numus.models.language.config import Config
from numus.tensor import Tensor

__all__ = ["CacheSpec", "CausalLM", "Decoder", "EncoderDecoder", "key_mask", "token_ids"]


@dataclass(frozen=True)
class CacheSpec:
    """What a layer keeps of each token: heads of keys and values, and how many tokens at most."""

    heads: int
    size: int
    window: int | None = None


def token_ids(given: Any, name: str, vocabulary: int, device: Any = None) -> Tensor:
    """Token ids (rows, length) as a tensor; a single text becomes one row."""
    ids = nm.asarray(given, device=device)
    if ids.ndim == 1:
        ids = ids[None]
    if ids.ndim != 2 or ids.dtype.kind not in ("int", "uint"):
        raise ShapeError(
            f"{name}: takes token ids (rows, length) of integers below {vocabulary}, not "
            f"{ids.dtype.name} of shape {ids.shape}"
        )
    return ids


class Decoder(nn.Module):
    """A model that scores the next token."""

    config: Config

    def hidden(self, tokens: Tensor, seen: Pass) -> Tensor:
        """Hidden states (rows, length, width) after the last norm."""
        raise NotImplementedError(f"{type(self).__name__} does not define hidden()")

    def head(self, hidden: Tensor) -> Tensor:
        """Scores of tokens from hidden states."""
        raise NotImplementedError(f"{type(self).__name__} does not define head()")

    def cache_specs(self) -> list[CacheSpec]:
        """What each layer caches."""
        raise NotImplementedError(f"{type(self).__name__} does not define cache_specs()")

    @property
    def max_length(self) -> int | None:
        """The longest text that there are positions for; None: any."""
        return None

    @property
    def whole_prompts(self) -> bool:
        """True if a prompt cannot be read in chunks: positions depend on its whole length."""
        return False

    @property
    def device(self) -> Any:
        """Where the parameters are."""
        return next(itertools.chain(self.parameters(), self.buffers())).device

    @property
    def dtype(self) -> Any:
        """Of hidden states."""
        floats = (x.dtype for x in self.parameters() if x.dtype.is_floating)
        return next(floats, nm.float32)

    def generate(self, *args: Any, **options: Any) -> Any:
        """Continue texts; see `nm.models.generate`."""
        # imported by name: generation stands on this module
        generation = importlib.import_module("numus.models.generation")
        return generation.generate(self, *args, **options)


class CausalLM(Decoder):
    """A decoder of texts alone: `logits = model(input_ids)`."""

    conv1d_layers: tuple[str, ...] = ()  # last names of linear layers that are stored transposed

    def recompute_blocks_(self, on: bool = True) -> Self:
        """Let backward compute the values inside of each block again, instead of keeping them."""
        for module in self.modules():
            if hasattr(module, "recompute"):
                module.recompute = on
        return self

    def forward(
        self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None
    ) -> Tensor:
        """Scores (rows, length, vocabulary) of the token after each.

        Args:
            attention_mask: (rows, length), zero or false for padding.
            position_ids: (rows, length); 0, 1, 2 … if left out.
        """
        name = type(self).__name__
        tokens = token_ids(input_ids, name, self.config.vocab_size, self.device)
        if position_ids is None:
            positions = nm.arange(tokens.shape[1], device=tokens.device)[None]
        else:
            positions = token_ids(position_ids, name, self.config.vocab_size, tokens.device)
        mask = key_mask(attention_mask, tokens, name)
        return self.head(self.hidden(tokens, Pass(positions, mask)))


def key_mask(given: Any, tokens: Tensor, name: str) -> Tensor | None:
    """A mask of tokens as booleans."""
    if given is None:
        return None
    mask = nm.asarray(given, device=tokens.device)
    if mask.shape != tokens.shape:
        raise ShapeError(
            f"{name}: attention_mask of shape {mask.shape} for tokens of shape {tokens.shape}"
        )
    return mask != 0 if mask.dtype is not nm.bool else mask


class EncoderDecoder(Decoder):
    """A decoder that looks at an encoder's states: `logits = model(inputs, decoder_input_ids)`."""

    def encode(self, inputs: Any, mask: Tensor | None = None) -> Tensor:
        """Hidden states of the encoder, (rows, length, width)."""
        raise NotImplementedError(f"{type(self).__name__} does not define encode()")

    def memory(self, states: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the encoder's states, for each layer of the decoder."""
        raise NotImplementedError(f"{type(self).__name__} does not define memory()")

    def input_mask(self, inputs: Any, mask: Any) -> Tensor | None:
        """Which of the encoder's inputs count."""
        if mask is not None:
            raise ValueError(f"{type(self).__name__}: its encoder takes no attention_mask")
        return None

    def forward(
        self,
        inputs: Any,
        decoder_input_ids: Any,
        attention_mask: Any = None,
        decoder_attention_mask: Any = None,
    ) -> Tensor:
        """Scores (rows, length, vocabulary) of the token after each of the decoder's.

        Args:
            attention_mask: of the encoder's inputs, zero for padding.
            decoder_attention_mask: of the decoder's tokens.
        """
        name = type(self).__name__
        tokens = token_ids(decoder_input_ids, name, self.config.vocab_size, self.device)
        kept = self.input_mask(inputs, attention_mask)
        memory = self.memory(self.encode(inputs, kept))
        positions = nm.arange(tokens.shape[1], device=tokens.device)[None]
        mask = key_mask(decoder_attention_mask, tokens, name)
        seen = Pass(positions, mask, memory=memory, memory_mask=kept)
        return self.head(self.hidden(tokens, seen))

    def encode_prompts(
        self, inputs: Any, mask: Any, pad: int, decoder_input_ids: Any = None
    ) -> tuple[Any, list[tuple[Tensor, Tensor]], Tensor | None]:
        """What generation starts from: the decoder's tokens, and the encoder's keys and values."""
        if isinstance(inputs, list | tuple) and mask is None and len({len(r) for r in inputs}) > 1:
            longest = max(len(row) for row in inputs)
            mask = [[1] * len(row) + [0] * (longest - len(row)) for row in inputs]
            inputs = [[*row, *[pad] * (longest - len(row))] for row in inputs]
        kept = self.input_mask(inputs, mask)
        states = self.encode(inputs, kept)
        memory = self.memory(states)
        nm.eval(*(x for pair in memory for x in pair))
        start: Any = decoder_input_ids
        if start is None:
            begin = getattr(self.config, "decoder_start_token_id", None)
            if begin is None:
                raise ValueError("generate: the configuration has no decoder_start_token_id")
            start = [[begin]] * states.shape[0]
        return start, memory, kept
