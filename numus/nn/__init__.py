"""Neural networks: modules, layers and losses, with PyTorch's names, layouts and defaults.

Written with numus's public functions alone; `nn.functional` holds what has no parameters.
"""

# ruff: noqa: F401, F403
from numus.nn import functional, init, utils
from numus.nn import summary as _summary  # binds Module.summary
from numus.nn.activations import *
from numus.nn.adaptive import *
from numus.nn.attention import *
from numus.nn.containers import *
from numus.nn.conv import *
from numus.nn.dropout import *
from numus.nn.embedding import *
from numus.nn.functional import *
from numus.nn.functional_call import *
from numus.nn.lazy import *
from numus.nn.linear import *
from numus.nn.losses import *
from numus.nn.module import *
from numus.nn.norm import *
from numus.nn.padding import *
from numus.nn.parameter import *
from numus.nn.pooling import *
from numus.nn.quantized import *
from numus.nn.recurrent import *
from numus.nn.resizing import *
from numus.nn.saving import *
from numus.nn.transformer import *
