"""Plans of training steps: what is traced, the machine model, layouts, and measured memory."""

import json

import jobs
import pytest

from numus.cli import main
from numus.cli.config import ConfigError
from numus.cli.plan import parse_mesh, read
from numus.distributed import planning
from numus.distributed.planning.trace import trace_step
from numus.errors import DistributedError

SIZES = planning.Transformer(64, 32, 2, 2, length=16, batch=8)
H100 = planning.MACHINES["h100"]


def test_traced_step():
    traced = trace_step(SIZES, 1, 2, 2, 2)  # two ranks along each of two axes
    width, hidden = 32, 128
    block = 4 * width + (3 * width // 2) * (width + 1) + width * (width // 2 + 1)
    block += hidden // 2 * (width + 1) + width * (hidden // 2 + 1)
    ends = 32 * width + 16 * width + 2 * width + 32 * (width + 1)
    assert traced.parameters == traced.gradients == 4 * (block + ends)
    assert traced.ends == 4 * ends
    assert 2 * traced.parameters <= traced.optimizer < 2.5 * traced.parameters
    kinds = {(s.axis, s.kind, s.nbytes): n for s, n in traced.sent}
    activations = 2 * 16 * width * 4
    # two sums of a block and that of the words, forwards; of the blocks, backwards
    assert kinds["tensor", "all_reduce", activations] >= 5
    assert kinds["data", "all_reduce", traced.gradients] == 1
    flops = sum(k.flops for k in traced.kernels)
    assert 6 * 2 * 16 * block < flops < 12 * 2 * 16 * (block + ends)


def test_machine_model():
    inside = H100.collective_seconds("all_reduce", 1e9, 8, 1)
    assert inside == pytest.approx(2 * 7 / 8 / 370, rel=1e-2)
    across = H100.collective_seconds("all_gather", 1e9, 4, 8)
    assert across == pytest.approx(3 / 4 / 42, rel=1e-2)
    both = H100.collective_seconds("all_gather", 1e9, 16, 1)  # within nodes, then between them
    assert both == pytest.approx(7 / 8 / 370 + 1 / 2 / 8 / 42, rel=1e-2)
    assert H100.kernel_seconds(2e12, 8, "bfloat16") == 2e12 / 500e12
    assert H100.kernel_seconds(8, 2600e9, "bfloat16") == 1.0


def test_estimates():
    one = planning.estimate(SIZES, planning.Layout(microbatch=8), H100)
    shared = planning.estimate(SIZES, planning.Layout(shard=4, microbatch=2), H100)
    assert shared.memory.parameters == one.memory.parameters / 4
    assert [t.kind for t in shared.traffic] == ["all_gather", "reduce_scatter"]
    stages = planning.estimate(SIZES, planning.Layout(pipe=2, microbatch=1), H100)
    assert stages.memory.parameters < one.memory.parameters
    (sends,) = stages.traffic
    of_one = (stages.compute_seconds + sends.seconds) / 8  # microbatches
    assert stages.bubble_seconds == pytest.approx(of_one)
    with pytest.raises(DistributedError, match="2 layers are not to be divided into 3 stages"):
        planning.estimate(SIZES, planning.Layout(pipe=3), H100)


def test_command(tmp_path, capsys):
    path = tmp_path / "model.toml"
    sizes = "vocabulary = 64\nwidth = 32\nlayers = 2\nheads = 2\nlength = 16\n"
    path.write_text(f"[model]\n{sizes}[training]\nbatch = 8\n")
    assert read(path) == SIZES
    main(["plan", str(path), "--mesh", "data=8", "--machine", "a100"])
    out = capsys.readouterr().out
    assert "data=8, microbatch 1 on 8 × a100" in out
    assert "data    all_reduce" in out
    assert "network 21 GB/s" in out
    with pytest.raises(SystemExit):
        main(["plan", str(path), "--gpus", "3", "--mesh", "data=8"])
    assert "the mesh data=8 has 8 ranks, not --gpus 3" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="did you mean 'tensor'"):
        parse_mesh("tensors=2", 1)
    path.write_text(f"[model]\n{sizes}[training]\nbatch = 2\n".replace("s = 2", "s = 1"))
    with pytest.raises(SystemExit):
        main(["plan", str(path), "--memory", "0.00001", "--search", "--gpus", "2"])
    assert "no layout of 2 ranks fits" in capsys.readouterr().err


CONFIGURATIONS = [
    *((1, (128, 4, 64, 8, 0)), (1, (128, 4, 64, 32, 0)), (1, (128, 4, 64, 32, 1))),
    *((1, (256, 2, 128, 8, 0)), (2, (128, 4, 64, 16, 0))),
]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "sizes"), CONFIGURATIONS)
def test_planned_memory_is_measured(ranks, sizes):
    if ranks > 1:
        jobs.require_mpich()
    for output in jobs.run(ranks, "rank_memory.py", *sizes):
        found = json.loads(output.splitlines()[-1])
        assert abs(found["planned"] / found["measured"] - 1) < 0.1, found
