"""Jobs on a Ray cluster: Ray places the processes, MPI and NCCL carry bytes."""

from __future__ import annotations

import importlib
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numus.distributed.groups import finalize, init
from numus.errors import DistributedError

__all__ = ["run"]


class _Worker:
    """One rank, in a process of its own."""

    def place(self) -> tuple[str, str, int]:
        """The node it is on, its address, and a port that is free there."""
        import ray

        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
        context = ray.get_runtime_context()
        return context.get_node_id(), ray.util.get_node_ip_address(), port

    def run(
        self, variables: Mapping[str, str], timeout: float, function: Any, args: Sequence[Any]
    ) -> Any:
        """Join the others, and call the function."""
        os.environ.update(variables)
        init(timeout=timeout)
        result = function(*args)
        finalize()
        return result


def run(
    function: Callable[..., Any],
    *args: Any,
    num_workers: int,
    resources: Mapping[str, float] | None = None,
    max_restarts: int = 0,
    timeout: float = 600.0,
) -> list[Any]:
    """Call a function on several workers of a Ray cluster, which are the ranks of one world; gives
    their results by rank.

    `ray.init()` is called before it where the cluster is not the default one. When a worker dies,
    all are ended, and the function is called again on new ones: it goes on from its last
    checkpoint (`NUMUS_RESTART` in the environment counts).

    Args:
        resources: of each worker, as `{"CPU": 2, "GPU": 1}`; one CPU by default.
        max_restarts: how often to start again.
        timeout: seconds that ranks wait for each other.
    """
    try:
        ray: Any = importlib.import_module("ray")  # its types do not know what it adds to classes
    except ImportError as error:
        raise DistributedError(
            "nm.distributed.ray needs Ray: pip install 'numus[ray,mpi]'"
        ) from error
    if num_workers < 1:
        raise ValueError(f"ray.run: num_workers has to be at least 1, not {num_workers}")
    if not ray.is_initialized():
        ray.init()
    given = dict(resources or {"CPU": 1})
    options: dict[str, Any] = {"num_cpus": given.pop("CPU", 1), "num_gpus": given.pop("GPU", 0)}
    actor = ray.remote(**options, resources=given or None)(_Worker)
    for attempt in range(max_restarts + 1):
        workers = [actor.remote() for _ in range(num_workers)]
        try:
            places = ray.get([w.place.remote() for w in workers])
            started = [
                w.run.remote(variables, timeout, function, args)
                for w, variables in zip(workers, _variables(places, attempt), strict=True)
            ]
            found: list[Any] = ray.get(started)
            return found
        except (ray.exceptions.RayActorError, ray.exceptions.RayTaskError) as error:
            if attempt == max_restarts:
                raise DistributedError(
                    f"ray.run: a worker of {num_workers} failed (attempt {attempt + 1} of "
                    f"{max_restarts + 1}): {error}"
                ) from error
        finally:
            for worker in workers:
                ray.kill(worker)
    raise AssertionError("the last attempt returns or raises")


def _variables(places: Sequence[tuple[str, str, int]], attempt: int) -> list[dict[str, str]]:
    """torchrun's variables of each rank."""
    _, address, port = places[0]
    shared = {"MASTER_ADDR": address, "MASTER_PORT": str(port), "WORLD_SIZE": str(len(places))}
    seen: Counter[str] = Counter()
    found = []
    for rank, (node, _, _) in enumerate(places):
        own = {"RANK": str(rank), "LOCAL_RANK": str(seen[node]), "NUMUS_RESTART": str(attempt)}
        seen[node] += 1
        found.append({**shared, **own})
    return found
