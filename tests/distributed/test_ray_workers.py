"""Jobs on a Ray cluster of two local nodes."""

import os
import signal

import jobs
import pytest

pytest.importorskip("ray")
jobs.require_mpich()
pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_dies_is_started_again(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.cluster_utils import Cluster

    from numus.distributed import ray as on_ray

    def work(folder):
        import numus as nm

        dist = nm.distributed
        mark = os.path.join(folder, "step")
        begin = 0
        if os.path.exists(mark):
            with open(mark) as file:
                begin = int(file.read())
        total = nm.zeros(2)
        for step in range(begin, 6):
            if step == 3 and os.environ["NUMUS_RESTART"] == "0" and dist.rank() == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            total = dist.all_reduce(nm.full((2,), float(dist.rank())))
            dist.barrier()
            if dist.rank() == 0:
                with open(mark, "w") as file:
                    file.write(str(step + 1))
        return begin, dist.rank(), total.tolist()

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        cluster.add_node(num_cpus=2)
        ray.init(address=cluster.address, log_to_driver=False)
        found = on_ray.run(work, str(tmp_path), num_workers=4, max_restarts=1, timeout=60)
        assert found == [(3, rank, [6.0, 6.0]) for rank in range(4)]
    finally:
        ray.shutdown()
        cluster.shutdown()
