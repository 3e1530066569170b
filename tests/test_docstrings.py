"""The examples in docstrings give what they say."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import numus as nm

PACKAGES = (
    "numus.functions",
    *(f"numus.functions.{room}" for room in "creation elementwise indexing interop linear".split()),
    *(f"numus.functions.{room}" for room in "methods numeric ordering reduction shape".split()),
    "numus.functions.layers",
    "numus.transforms",
    "numus.transforms.control",
    "numus.transforms.jit",
    "numus.random",
    "numus.fft",
    "numus.signal",
    "numus.linalg",
    "numus.stats",
    "numus.distance",
    "numus.distributions",
    "numus.distributions.kl",
    "numus.distributions.transforms",
    "numus.polynomial",
    "numus.integrate",
    "numus.optimize",
    "numus.special",
    "numus.nn",
    "numus.nn.functional",
    "numus.nn.utils",
    "numus.optim",
    "numus.optim.lr_scheduler",
    "numus.optim.training",
    "numus.distributed.fsdp",
    "numus.distributed.checkpoint",
    "numus.data",
    "numus.distributed.parallel",
    "numus.models",
    "numus.models.vision",
    "numus.models.diffusion",
    "numus.models.language",
    "numus.models.generation",
    "numus.vision",
    "numus.vision.datasets",
    "numus.metrics",
    "numus.text",
)
MODULES = ["numus"] + [
    found.name
    for package in PACKAGES
    for found in pkgutil.iter_modules(importlib.import_module(package).__path__, package + ".")
]


class Anywhere(doctest.OutputChecker):
    """Examples are written for the CPU, which tensors do not name when they are printed."""

    def check_output(self, want, got, optionflags):
        return super().check_output(want, got.replace(f", device={DEVICE!r}", ""), optionflags)


DEVICE = nm.device().name


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(name)
    names = {"nm": nm}
    runner, finder = doctest.DocTestRunner(checker=Anywhere()), doctest.DocTestFinder()
    for example in finder.find(module, name, extraglobs=names):
        runner.run(example)
    for public in getattr(module, "__all__", ()):
        made = getattr(module, public)  # what a decorator made, doctest takes for somebody else's
        if getattr(made, "__globals__", vars(module)) is vars(module):
            continue
        if made.__module__ == name and made.__doc__:
            for example in finder.find(made, public, False, vars(module) | names):
                runner.run(example)
    assert runner.failures == 0


PUBLIC = "numus numus.random numus.fft numus.linalg numus.kernels numus.nn numus.nn.functional"
PUBLIC += " numus.signal numus.signal.windows numus.distributions"
PUBLIC += " numus.vision numus.vision.datasets numus.metrics numus.text"
PUBLIC += " numus.nn.init numus.nn.utils numus.optim numus.optim.lr_scheduler numus.data"
PUBLIC += " numus.models"


@pytest.mark.parametrize("name", PUBLIC.split())
def test_whatever_is_public_says_what_it_is(name):
    module = importlib.import_module(name)
    things = {n: getattr(module, n) for n in getattr(module, "__all__", dir(module)) if n[0] != "_"}
    classes = {n: x for n, x in things.items() if inspect.isclass(x)}
    for owner, made in classes.items():
        things |= {f"{owner}.{n}": getattr(made, n) for n in dir(made) if n[0] != "_"}
    silent = [n for n, x in things.items() if callable(x) and not inspect.getdoc(x)]
    assert not silent
