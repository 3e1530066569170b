"""The functions that are loaded at the start, under one name, for those that are composed of them.

>>> from numus.functions import api
>>> api.sum(api.arange(4)).item()
6
"""

# ruff: noqa: F403
from numus.functions.creation.conversion import *
from numus.functions.creation.creation import *
from numus.functions.creation.dtype_functions import *
from numus.functions.elementwise.arithmetic import *
from numus.functions.elementwise.comparison import *
from numus.functions.elementwise.transcendental import *
from numus.functions.indexing.gather_scatter import *
from numus.functions.indexing.indexing import *
from numus.functions.indexing.searching import *
from numus.functions.linear.einsum import *
from numus.functions.linear.matmul import *
from numus.functions.ordering.sets import *
from numus.functions.ordering.sorting import *
from numus.functions.reduction.cumulative import *
from numus.functions.reduction.histograms import *
from numus.functions.reduction.reductions import *
from numus.functions.reduction.statistics import *
from numus.functions.shape.concatenation import *
from numus.functions.shape.manipulation import *
from numus.functions.shape.splitting import *
from numus.functions.shape.tiling import *
