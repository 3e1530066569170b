"""`torch.random`: the random numbers of this process."""

from numus.random import get_state as get_rng_state
from numus.random import set_state as set_rng_state
from numus.torch._creation import default_generator, initial_seed, manual_seed, seed

__all__ = [
    "default_generator", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state",
]  # fmt: skip
