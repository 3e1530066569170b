"""Layers whose weights have few bits, their training, and models that are made of them."""

# ruff: noqa: F403
from numus.nn.quantized.cache import *
from numus.nn.quantized.folding import *
from numus.nn.quantized.huggingface import *
from numus.nn.quantized.layers import *
from numus.nn.quantized.lora import *
from numus.nn.quantized.training import *
