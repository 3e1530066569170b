"""A sharded training that goes on from its last checkpoint, and that can be made to fail.

Variables of the environment: KILL, as "rank@step" for each attempt ("1@3,0@7"); COMMIT, the step
whose checkpoint the first rank does not live to commit, in the second attempt.
"""

import os
import signal
import sys
import time

import numpy as np
import tiny_gpt as tiny

import numus as nm
from numus import nn, optim
from numus.distributed.checkpoint import saving

dist = nm.distributed
EXAMPLES, BATCH = 60, 12  # of all ranks


class Rows(nm.data.Dataset):
    def __init__(self):
        rng = np.random.default_rng(7)
        self.x, self.y = rng.normal(size=(2, EXAMPLES, 4)).astype("f4")

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Net(nn.Module):
    def __init__(self):
        self.layers = [nn.Linear(4, 7), nn.Linear(7, 4)]
        self.register_buffer("steps", nm.zeros(1))

    def forward(self, x):
        return self.layers[1](nm.tanh(self.layers[0](x)))


def parts(sharded=True):
    """The parts of a training; the loader gives this rank's share of each batch."""
    nm.random.seed(5)
    net = Net()
    model = dist.FSDP(net) if sharded else dist.DistributedDataParallel(net)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    schedule = optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    n, me = dist.world_size(), dist.rank()
    sampler = nm.data.DistributedSampler(Rows(), n, me)
    loader = nm.data.DataLoader(Rows(), BATCH // n, sampler=sampler)
    return {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}


def train(parts, step, end, folder=None, every=2, noise=0.0, slowly=0.0):
    """Train from a step to another, with a checkpoint every so often."""
    attempt = int(os.environ.get("NUMUS_RESTART", 0)) if folder is not None else 1000
    kills = [k.split("@") for k in os.environ.get("KILL", "").split(",") if k]
    while step < end:
        for x, y in parts["loader"]:
            if attempt < len(kills) and kills[attempt] == [str(dist.rank()), str(step)]:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(slowly)
            parts["optimizer"].zero_grad()
            x = x + noise * nm.random.normal(x.shape)
            ((parts["model"](x) - y) ** 2).mean().backward()
            parts["optimizer"].step()
            parts["schedule"].step()
            parts["model"].module.steps.assign(parts["model"].module.steps + 1)
            step += 1
            if folder is not None and step % every == 0:
                if attempt == 1 and os.environ.get("COMMIT") == str(step):
                    die_at_commit()
                dist.save_checkpoint(folder, **parts, step=step)
            if step == end:
                break
    return whole_state(parts)


def die_at_commit():
    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    saving.atomically = die  # which only the first rank calls


def whole_state(parts):
    """The weights, and the optimiser's state of the whole model."""
    model = parts["model"]
    return {n.removeprefix("module."): x for n, x in model.state_dict().items()}


def main(folder, end, noise=0.0, slowly=0.0):
    dist.init(timeout=60)
    mine = parts()
    begin = 0
    if dist.checkpoint_exists(folder):
        begin = dist.load_checkpoint(folder, **mine)["step"]
    print(f"rank {dist.rank()} goes on from step {begin}", flush=True)
    state = train(mine, begin, end, folder, noise=noise, slowly=slowly)
    print("bits", tiny.digest(state), flush=True)
    if noise:  # what they are without any failure
        print("undisturbed", tiny.digest(train(parts(), 0, end, noise=noise)), flush=True)
    if dist.rank() == 0:
        nn.save_safetensors(state, os.path.join(folder, "weights", "end.safetensors"))


if __name__ == "__main__":
    os.makedirs(os.path.join(sys.argv[1], "weights"), exist_ok=True)
    main(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:]))
