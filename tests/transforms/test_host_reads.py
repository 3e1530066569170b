"""Host reads inside differentiated functions: errors, except where there is no derivative."""

import copy
import math
import pickle

import numpy as np
import pytest

import numus as nm
from numus.errors import GradientError

READS = {
    "numpy()": lambda x: nm.asarray(np.sin(x.numpy())),
    "numpy.asarray()": lambda x: nm.asarray(np.sin(np.asarray(x))),
    "item()": lambda x: nm.asarray(math.sin(x.item())),
    "float()": lambda x: nm.asarray(math.sin(x)),
    "complex()": lambda x: nm.asarray(abs(complex(x))),
    "tolist()": lambda x: nm.asarray(x.tolist()),
    "DLPack": lambda x: nm.asarray(np.from_dlpack(x)),
    "deepcopy()": lambda x: copy.deepcopy(x),
    "pickling": lambda x: pickle.loads(pickle.dumps(x)),
}
TRANSFORMS = {
    "grad": lambda f, x: nm.grad(f)(x),
    "value_and_grad": lambda f, x: nm.value_and_grad(f)(x),
    "vjp": lambda f, x: nm.vjp(f, x),
    "jvp": lambda f, x: nm.jvp(f, (x,), (x,)),
    "linearize": lambda f, x: nm.linearize(f, x),
    "jacrev": lambda f, x: nm.jacrev(f)(x),
    "jacfwd": lambda f, x: nm.jacfwd(f)(x),
    "hessian": lambda f, x: nm.hessian(f)(x),
}


def test_ufuncs_of_numpy_are_differentiated():
    """They are numus's own functions of tensors."""
    x = nm.asarray(1.0)
    assert nm.grad(lambda x: np.sin(x * 2.0))(x).item() == pytest.approx(2 * math.cos(2.0))


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reads_raise(read):
    with pytest.raises(GradientError, match=r"detach\(\)"):
        nm.grad(lambda x: read(x * 2.0))(nm.asarray(1.0))
    with pytest.raises(GradientError, match=r"detach\(\)"):
        nm.grad(read)(nm.asarray(1.0))  # the argument itself


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_every_transformation(transform):
    with pytest.raises(GradientError, match=r"float\(\)"):
        transform(lambda x: nm.asarray(math.sin(x)) + x, nm.asarray(1.0))


def test_detached_reads_and_those_without_derivative():
    seen = []

    def f(x):
        y = x * x
        seen.append(y.detach().item())
        with nm.no_grad():
            seen.append((x + 1.0).item())
            seen.append(x.item())
        seen.extend((f"{y:.1f}", repr(y), str(y), int(y)))
        return y * 2.0 if y > 3.0 else y

    assert nm.grad(f)(nm.asarray(2.0)).item() == 8.0
    assert seen[:4] == [4.0, 3.0, 2.0, "4.0"]
    assert seen[-1] == 4


def test_other_tensors_are_read():
    """Constants, integers, and parameters of another tape."""
    w = nm.asarray(3.0, requires_grad=True)
    place = nm.asarray([0, 1])

    def f(x):
        assert (w * 1.0).item() == 3.0
        assert nm.argmax(x).item() == 1
        assert place.tolist() == [0, 1]
        return (x * w.item()).sum()

    assert nm.grad(f)(nm.asarray([1.0, 2.0])).tolist() == [3.0, 3.0]


def test_outer_variables():
    """A value of the outer function may not be read in the inner one either."""

    def outer(x):
        return nm.grad(lambda y: y * float(x))(nm.asarray(1.0))

    with pytest.raises(GradientError, match="grad"):
        nm.grad(outer)(nm.asarray(2.0))
    assert nm.grad(lambda y: y * float(nm.asarray(2.0)))(nm.asarray(1.0)).item() == 2.0


def test_eager_tensors_are_read_as_before():
    x = nm.asarray([1.0, 2.0], requires_grad=True)
    y = (x * x).sum()
    assert y.item() == float(y) == 5.0
    np.testing.assert_array_equal(x.numpy(), np.asarray(x))
    y.backward()
    assert x.grad.tolist() == [2.0, 4.0]
    with pytest.raises(GradientError):
        nm.grad(lambda x: nm.asarray(float(x)))(nm.asarray(1.0))
    assert y.item() == 5.0  # after an error nothing stays open


def test_forward_rules_may_call_numpy():
    """A custom_vjp brings its derivative along; its second one is not NumPy's to lose."""

    @nm.custom_vjp
    def sine(x):
        return nm.asarray(np.sin(x.detach().numpy()))

    sine.defvjp(
        lambda x: (nm.asarray(np.sin(x.numpy())), nm.asarray(np.cos(x.numpy()))),
        lambda slope, g: (g * slope,),
    )
    at = nm.asarray(np.float64(0.5))
    assert nm.grad(sine)(at).item() == pytest.approx(math.cos(0.5))
    with pytest.raises(GradientError, match=r"numpy\(\)"):
        nm.grad(nm.grad(sine))(at)
