"""Ways in which a job fails: `python rank_failures.py WAY`."""

import os
import signal
import sys
import time

import numus as nm

dist = nm.distributed


def main(way):
    dist.init(timeout=1.5 if way == "hangs" else 30)
    me = dist.rank()
    dist.all_reduce(nm.ones(3))
    if way == "shape":
        dist.all_reduce(nm.ones(3 + (me == 1)))
    elif way == "dtype":
        dist.all_reduce(nm.ones(100_000, dtype="float64" if me == 1 else "float32"))
    elif way == "call":
        (dist.all_gather if me == 1 else dist.all_reduce)(nm.ones(3))
    elif way == "message":
        _ = dist.recv(nm.ones(3), 0) if me == 1 else dist.send(nm.ones(4), 1)
    elif way == "raises":
        if me == 1:
            raise ValueError("the data are gone")
        dist.all_reduce(nm.ones(3))
    elif way == "hangs":
        if me == 1:
            time.sleep(6)
            os._exit(0)
        dist.broadcast(nm.ones(3))
    elif way == "killed":
        for i in range(10_000):
            if me == 1 and i == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(nm.ones(1_000_000))
    raise AssertionError("nothing happened")


if __name__ == "__main__":
    main(sys.argv[1])
