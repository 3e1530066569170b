"""numus: arrays, gradients and kernels in one small library."""

from numus.dtypes import (  # noqa: F401
    DType,
    bfloat16,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from numus.dtypes import bool_ as bool  # noqa: F401
from numus.tensor import Tensor  # noqa: F401
from numus.transforms import *  # noqa: F403
from numus import autograd  # noqa: F401
from numus.functions.indexing import *  # noqa: F403
from numus.functions.manipulation import *  # noqa: F403
from numus.functions.parts import *  # noqa: F403
from numus.functions.joining import *  # noqa: F403
from numus.functions.repeating import *  # noqa: F403
from numus.functions.gathering import *  # noqa: F403
from numus.functions.reductions import *  # noqa: F403
from numus.functions.statistics import *  # noqa: F403
from numus.functions.normalisation import *  # noqa: F403
from numus.functions.cumulative import *  # noqa: F403
from numus.functions.contraction import *  # noqa: F403
from numus.functions.einsum import *  # noqa: F403
from numus import random  # noqa: F401
