"""`numus launch`: a script as several ranks of one job on this machine.

Ranks get torchrun's variables, by which `nm.distributed.init()` joins them. Their output comes line
by line with the rank in front. When one ends badly, the others have some seconds to say why they
end too; then all are ended, and started again where restarts are left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

_POLL_S = 0.05
_KILL_AFTER_S = 3.0  # between asking to end and ending


def run(
    ranks: int,
    script: Path,
    arguments: list[str],
    log_dir: Path | None,
    grace: float,
    restarts: int,
    min_ranks: int | None = None,
) -> None:
    """Run the job; exits with the code of the first rank that ended badly."""
    command = [sys.executable, str(script), *arguments]
    sys.exit(run_command(ranks, command, log_dir, grace, restarts, min_ranks))


def run_command(
    ranks: int,
    command: list[str],
    log_dir: Path | None = None,
    grace: float = 10.0,
    restarts: int = 0,
    min_ranks: int | None = None,
) -> int:
    """Run a command as several ranks; the exit code of the first rank that ended badly.

    With `min_ranks`, each restart has a rank less than the attempt before, down to that number: the
    script goes on from a checkpoint that any number of ranks can load.
    """
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)
    for attempt in range(restarts + 1):
        code = _Job(ranks, command, log_dir, attempt).run(grace)
        if code in (0, 128 + signal.SIGINT):
            break
        if attempt < restarts:
            ranks = ranks if min_ranks is None else max(min(min_ranks, ranks), ranks - 1)
            _say(f"starting again ({attempt + 1} of {restarts}) with {_counted(ranks)}")
    return code


def _counted(ranks: int) -> str:
    return f"{ranks} rank{'s' * (ranks != 1)}"


def _say(text: str) -> None:
    print(f"numus launch: {text}", file=sys.stderr, flush=True)


class _Job:
    """The processes of one attempt."""

    def __init__(self, ranks: int, command: list[str], log_dir: Path | None, attempt: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        threads = str(max(1, (os.cpu_count() or 1) // ranks))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        shared |= {"LOCAL_WORLD_SIZE": str(ranks), "NUMUS_RESTART": str(attempt)}
        self._processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self._logs: list[IO[str]] = []
        for rank in range(ranks):
            own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONUNBUFFERED": "1"}
            process = subprocess.Popen(
                command,
                env={"NUMUS_NUM_THREADS": threads, **os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            log = None
            if log_dir is not None:
                log = (log_dir / f"rank-{rank}.log").open("a" if attempt else "w")
                self._logs.append(log)
            reader = threading.Thread(
                target=_forward, args=(process.stdout, rank, len(str(ranks - 1)), log), daemon=True
            )
            reader.start()
            self._processes.append(process)
            self._readers.append(reader)

    def run(self, grace: float) -> int:
        """Wait for the ranks; the exit code of the job."""
        try:
            return self._watch(grace)
        except KeyboardInterrupt:
            _say("interrupted: ending all ranks")
            self._end(signal.SIGINT)
            return 128 + signal.SIGINT
        finally:
            self._end(signal.SIGTERM)
            for reader in self._readers:
                reader.join(timeout=2)
            for log in self._logs:
                log.close()

    def _watch(self, grace: float) -> int:
        first: tuple[int, int] | None = None
        until = 0.0
        while True:
            codes = [p.poll() for p in self._processes]
            if first is None:
                failed = [(r, c) for r, c in enumerate(codes) if c]
                if failed:
                    first = failed[0]
                    until = time.monotonic() + grace
                    _say(f"rank {first[0]} ended {_how(first[1])}")
            if all(c is not None for c in codes):
                return 0 if first is None else _exit_code(first[1])
            if first is not None and time.monotonic() > until:
                left = ", ".join(str(r) for r, c in enumerate(codes) if c is None)
                _say(f"ending the ranks that are left: {left}")
                return _exit_code(first[1])
            time.sleep(_POLL_S)

    def _end(self, how: signal.Signals) -> None:
        """End what still runs: asked first, then killed."""
        for process in self._processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(how)
        until = time.monotonic() + _KILL_AFTER_S
        while any(p.poll() is None for p in self._processes) and time.monotonic() < until:
            time.sleep(_POLL_S)
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def _forward(source: Any, rank: int, width: int, log: IO[str] | None) -> None:
    """Copy the output of a rank, line by line."""
    for line in source:
        sys.stdout.write(f"[{rank:>{width}}] {line.rstrip(chr(10))}\n")
        sys.stdout.flush()
        if log is not None:
            log.write(line)
            log.flush()
    source.close()


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"by signal {-code}"


def _exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code
