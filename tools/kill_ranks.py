"""Kill a random rank of a training again and again, and see that it ends as if nothing had been.

Each time, the other ranks have to end with an error that names the one that was killed within ten
seconds; the next start goes on from the last checkpoint. At the end, the weights have to be those
of a training that nobody disturbed, bit for bit.

    python -m tools.kill_ranks --kills 30 --ranks 2
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "distributed" / "rank_resuming.py"
LIMIT_S = 10.0  # for the others to end
STEPS_PER_KILL = 4


class Job:
    """The ranks of one attempt, and what they say."""

    def __init__(self, ranks: int, folder: Path, steps: int, pause: float) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        shared |= {"NUMUS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, str(SCRIPT), str(folder), str(steps), "0.1", str(pause)]
        self.output = [""] * ranks
        self.processes = []
        self._readers = []
        for rank in range(ranks):
            own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = subprocess.Popen(
                command,
                env={**os.environ, **own},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            reader = threading.Thread(target=self._read, args=(rank, process), daemon=True)
            reader.start()
            self.processes.append(process)
            self._readers.append(reader)

    def _read(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.output[rank] += line

    def begun(self) -> list[int]:
        """The steps from which ranks have gone on, once all of them have."""
        while not all("goes on from step" in text for text in self.output):
            if any(p.poll() is not None for p in self.processes):
                raise SystemExit("a rank ended before it began:\n" + "\n".join(self.output))
            time.sleep(0.01)
        return [int(re.findall(r"from step (\d+)", text)[0]) for text in self.output]

    def finish(self, seconds: float) -> None:
        """Wait until all ranks have ended."""
        until = time.monotonic() + seconds
        for process, reader in zip(self.processes, self._readers, strict=True):
            process.wait(max(0.0, until - time.monotonic()))
            reader.join(5)

    def saved(self, folder: Path, count: int) -> None:
        """Wait until some more checkpoints are there, or the training is over."""
        index = folder / "checkpoint.safetensors.index.json"
        last = index.stat().st_ino if index.exists() else 0
        while count and all(p.poll() is None for p in self.processes):
            now = index.stat().st_ino if index.exists() else 0
            count -= now != last
            last = now
            time.sleep(0.001)

    def said(self, what: str) -> set[str]:
        """The numbers that ranks have printed after a word."""
        return set(re.findall(rf"^{what} (\w+)", "\n".join(self.output), re.MULTILINE))


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill a random rank of a training repeatedly.")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    steps = STEPS_PER_KILL * options.kills + 8
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        slowest = 0.0
        resumed = []
        for number in range(options.kills):
            job = Job(options.ranks, folder / "killed", steps, 0.05)
            resumed.append(max(job.begun()))
            job.saved(folder / "killed", draw.randrange(1, 3))
            time.sleep(draw.uniform(0.0, 0.1))
            victim = draw.randrange(options.ranks)
            if job.processes[victim].poll() is not None:
                break  # the training has ended
            job.processes[victim].send_signal(signal.SIGKILL)
            killed = time.monotonic()
            job.finish(60)
            took = time.monotonic() - killed
            slowest = max(slowest, took)
            for rank, text in enumerate(job.output):
                if rank != victim:
                    assert f"rank {victim} has ended" in text or "DistributedError: rank" in text
            assert took < LIMIT_S, f"the others took {took:.1f} s"
            print(
                f"kill {number + 1}: rank {victim}, begun at step {resumed[-1]}, {took:.2f} s",
                flush=True,
            )
        last = Job(options.ranks, folder / "killed", steps, 0.0)
        last.finish(600)
        assert len(last.said("bits")) == 1, "\n".join(last.output)
        assert last.said("bits") == last.said("undisturbed"), "other weights at the end"
        print(
            f"{len(resumed)} kills of {options.ranks} ranks: the others ended within "
            f"{slowest:.2f} s, starts went on from steps {resumed}, the same bits at the end"
        )


if __name__ == "__main__":
    main()
