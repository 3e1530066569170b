"""Datasets that loaders give to processes: those import this module, and nothing of the tests."""

import os
import threading

import numpy as np

import numus as nm
from numus import data


class Squares(data.Dataset):
    def __init__(self, count=10, bad=None):
        self.count = count
        self.bad = bad

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if i == self.bad:
            raise LookupError(f"example {i} is missing")
        return {"x": np.full(2, i * i, np.float32), "i": i}


def die(_):
    os._exit(3)


released = threading.Event()


class Stuck(Squares):
    """Examples of which most do not come until they are released."""

    def __getitem__(self, i):
        if i >= 4:
            released.wait(1000)
        return i


class Pages(data.Dataset):
    """Arrays that are large enough to be shared with a process."""

    def __len__(self):
        return 24

    def __getitem__(self, i):
        return {"x": np.full(5000, i, np.int16), "t": nm.full((3000,), i), "i": i}
