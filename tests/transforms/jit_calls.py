"""What tests of nm.jit share."""

import numpy as np

import numus as nm


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [nm.asarray(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


def counted(f):
    """A function that tells how often Python has run it."""

    def wrapper(*args, **kwargs):
        wrapper.count += 1
        return f(*args, **kwargs)

    wrapper.count = 0
    return wrapper


def leaf(values):
    return nm.asarray(values, requires_grad=True)
