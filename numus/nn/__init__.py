"""Neural networks: modules, layers and losses, with PyTorch's names, layouts and defaults.

Written with numus's public functions alone; `nn.functional` holds what has no parameters.
"""

# ruff: noqa: F401, F403
from numus.nn import functional, init, utils
from numus.nn import summary as _summary  # binds Module.summary
from numus.nn.functional import *
from numus.nn.functional_call import *
from numus.nn.layers.activations import *
from numus.nn.layers.adaptive import *
from numus.nn.layers.attention import *
from numus.nn.layers.containers import *
from numus.nn.layers.conv import *
from numus.nn.layers.dropout import *
from numus.nn.layers.embedding import *
from numus.nn.layers.lazy import *
from numus.nn.layers.linear import *
from numus.nn.layers.norm import *
from numus.nn.layers.padding import *
from numus.nn.layers.pooling import *
from numus.nn.layers.recurrent import *
from numus.nn.layers.resizing import *
from numus.nn.layers.transformer import *
from numus.nn.losses import *
from numus.nn.module import *
from numus.nn.parameter import *
from numus.nn.quantized import *
from numus.nn.saving import *
