"""Generation of texts: caches, sampling, beam search, speculative decoding."""

from numus.models.generation.generate import generate
from numus.models.generation.sampling import Sampler

__all__ = ["Sampler", "generate"]
