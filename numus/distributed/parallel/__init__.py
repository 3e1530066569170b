"""Ways of dividing a model among ranks: tensor, pipeline, context and expert parallelism.

They compose on the axes of an `nm.Mesh`; see docs/distributed_parallel.md.
"""

from numus.distributed.parallel.experts import *  # noqa: F403
from numus.distributed.parallel.gradients import *  # noqa: F403
from numus.distributed.parallel.language import *  # noqa: F403
from numus.distributed.parallel.linear import *  # noqa: F403
from numus.distributed.parallel.pipeline import *  # noqa: F403
from numus.distributed.parallel.plans import *  # noqa: F403
from numus.distributed.parallel.regions import *  # noqa: F403
from numus.distributed.parallel.ring import *  # noqa: F403
from numus.distributed.parallel.schedule import *  # noqa: F403
from numus.distributed.parallel.shards import *  # noqa: F403
from numus.distributed.parallel.vocabulary import *  # noqa: F403
