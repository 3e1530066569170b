"""Jobs on a Ray cluster of two local nodes."""

import os
import signal

import jobs
import numpy as np
import pytest

pytest.importorskip("ray")
jobs.require_mpich()
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with two places each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
        try:
            made.add_node(num_cpus=2)
            ray.init(address=made.address, log_to_driver=False)
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_dies_is_started_again(tmp_path, cluster):
    from numus.distributed import ray as on_ray

    def work(folder):
        import numus as nm

        dist = nm.distributed
        nm.random.seed(0)
        model = dist.FSDP(nm.nn.Linear(3, 2))
        optimizer = nm.optim.AdamW(model.parameters(), lr=0.1)
        begin = 0
        if dist.checkpoint_exists(folder):
            begin = dist.load_checkpoint(folder, model=model, optimizer=optimizer)["step"]
        for step in range(begin, 6):
            if step == 3 and os.environ["NUMUS_RESTART"] == "0" and dist.rank() == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            (model(nm.full((1, 3), dist.rank() + 1.0)) ** 2).sum().backward()
            optimizer.step()
            dist.save_checkpoint(folder, model=model, optimizer=optimizer, step=step + 1)
        return begin, dist.rank(), model.state_dict()["weight"].tolist()

    found = on_ray.run(work, str(tmp_path), num_workers=4, max_restarts=1, timeout=60)
    assert [entry[:2] for entry in found] == [(3, rank) for rank in range(4)]
    assert len({str(entry[2]) for entry in found}) == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("inner", ["ddp", "fsdp"])
def test_a_trainer_on_the_cluster(tmp_path, cluster, inner):
    """A worker is killed in the second epoch: the training ends as that of this process."""
    import numus as nm
    from numus import nn, optim

    class Killer(optim.Callback):
        def on_epoch_begin(self, trainer):
            dies = nm.distributed.world_size() > 1 and nm.distributed.rank() == 3
            if dies and trainer.epoch == 1 and os.environ.get("NUMUS_RESTART") == "0":
                os.kill(os.getpid(), signal.SIGKILL)

    def trained(strategy, folder):
        nm.random.seed(1)
        model = nn.Linear(3, 2)
        x = nm.random.normal((16, 3), key=nm.random.key(2))
        loader = nm.data.DataLoader(
            nm.data.TensorDataset(x, x[:, :2]), 8, shuffle=True, key=nm.random.key(3)
        )
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        trainer = optim.Trainer(optimizer, model, nn.mse_loss, strategy=strategy)
        trainer.fit(loader, 3, folder=folder, callbacks=[Killer()], progress=False)
        return model.weight.numpy(), trainer.history

    strategy = nm.distributed.RayStrategy(4, inner=inner, max_restarts=1, timeout=60)
    weights, history = trained(strategy, tmp_path / "ray")
    want, records = trained(None, tmp_path / "alone")
    np.testing.assert_allclose(weights, want, atol=1e-5)
    assert [r["epoch"] for r in history] == [1, 2, 3]
    np.testing.assert_allclose(
        [r["loss"] for r in history], [r["loss"] for r in records], rtol=1e-4
    )
