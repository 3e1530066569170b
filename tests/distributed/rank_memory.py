"""Peak memory of a training step on this rank, measured and planned: prints both, in bytes.

`python rank_memory.py WIDTH LAYERS LENGTH BATCH CHECKPOINTING`, with the batch of one rank.
"""

import json
import sys

import numus as nm
from numus.distributed import planning
from numus.distributed.planning.recording import PlannedGroup
from numus.distributed.planning.trace import _step
from numus.distributed.planning.transformer import Model

dist = nm.distributed


def measured(sizes, batch):
    """The peak of the memory pool, which keeps what tensors, kernels and collectives take."""
    alone = PlannedGroup("tensor", 1)
    model = Model(sizes, sizes.layers, alone)
    wrapped = dist.DistributedDataParallel(model) if dist.world_size() > 1 else model
    step = _step(sizes, wrapped, sizes.new_optimizer(model.parameters()), alone)
    x, y = (nm.zeros((batch, sizes.length), dtype="int64") for _ in range(2))
    for _ in range(3):
        nm.eval(step(x, y))
    return nm.memory_stats("cpu")["peak"]


def main():
    width, layers, length, batch = map(int, sys.argv[1:5])
    n = dist.init().size
    sizes = planning.Transformer(
        *(64, width, layers, 4, length), batch=n * batch, checkpointing=sys.argv[5] == "1"
    )
    peak = measured(sizes, batch)
    layout = planning.Layout(data=n, microbatch=batch)
    found = planning.estimate(sizes, layout, planning.MACHINES["cpu"])
    print(json.dumps({"measured": peak, "planned": found.memory.total}), flush=True)


if __name__ == "__main__":
    main()
