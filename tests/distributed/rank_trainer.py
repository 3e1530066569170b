"""`Trainer` with strategies against one process; checks that every rank runs."""

import sys
from pathlib import Path

import numpy as np
import rank_resuming as job

import numus as nm
from numus import nn, optim

dist = nm.distributed


def trainer(strategy, **options):
    nm.random.seed(5)
    model = job.Net()
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    return optim.Trainer(
        optimizer,
        model,
        nn.mse_loss,
        metrics={"error": lambda outputs, y: nm.abs(outputs - y).mean()},
        max_grad_norm=0.5,
        strategy=strategy,
        **options,
    )


def loaders():
    key = nm.random.key(4)
    return (
        nm.data.DataLoader(job.Rows(), 12, shuffle=True, key=key),
        nm.data.DataLoader(job.Rows(), 30),
    )


def weights(trainer):
    state = trainer.model.state_dict()
    return {n.removeprefix("module."): x.numpy().copy() for n, x in state.items()}


def trained(strategy, folder=None, epochs=(2,), **options):
    """The weights and records of a training; of several numbers of epochs, each goes on from the
    checkpoint of the one before."""
    for end in epochs:
        made = trainer(strategy, **options)
        train, validation = loaders()
        how = {"validation": validation, "folder": folder, "progress": False}
        history = made.fit(train, end, **how)
    return weights(made), history


def check_strategies(folder):
    want, records = trained(None)
    for name, accumulate in (("ddp", 1), ("fsdp", 1)):
        got, history = trained(name, Path(folder) / name, (1, 2), accumulate=accumulate)
        for key in want:
            np.testing.assert_allclose(got[key], want[key], atol=1e-5)
        for one, other in zip(records, history, strict=True):
            for key in ("loss", "error", "val_loss", "val_error", "step"):
                np.testing.assert_allclose(other[key], one[key], rtol=1e-4)
    dist.barrier()
    lines = (Path(folder) / "fsdp" / "steps.jsonl").read_text().splitlines()
    assert len(lines) == 10  # written by one rank alone


def main():
    dist.init(timeout=60)
    check_strategies(sys.argv[1])
    print(f"rank {dist.rank()}: all right", flush=True)


if __name__ == "__main__":
    main()
