"""Tensor, pipeline, context and expert parallelism on 2 and 4 ranks, against one process."""

import jobs
import pytest

jobs.require_mpich()

TRAINED = ("tensor", "sequence", "gpipe", "1f1b", "interleaved", "context", "experts")
MESHES = ("data_tensor", "pipe_meshes", "context_meshes", "data_expert")


def test_layers_on_two_ranks():
    jobs.run(2, "rank_layers.py", "messages", "errors", "regions", seconds=200)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_layers(size):
    jobs.run(size, "rank_layers.py", "--all", seconds=280)


@pytest.mark.slow
@pytest.mark.parametrize("way", TRAINED)
@pytest.mark.parametrize("size", [2, 4])
def test_training_equals_one_process(size, way):
    jobs.run(size, "rank_parallel.py", way, "--steps", 20, seconds=280)


@pytest.mark.slow
@pytest.mark.parametrize("way", MESHES)
def test_training_on_meshes_of_two_by_two(way):
    jobs.run(4, "rank_parallel.py", way, "--steps", 20, seconds=280)


@pytest.mark.slow
def test_the_same_bits_from_run_to_run():
    lines = []
    for _ in range(2):
        outputs = jobs.run(2, "rank_parallel.py", "tensor", "1f1b", "--steps", 3, seconds=280)
        lines.append([line for line in outputs[0].splitlines() if "bits" in line])
    assert lines[0]
    assert lines[0] == lines[1]
