"""The examples in docstrings give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import numus as nm

PACKAGES = (
    "numus.functions",
    "numus.transforms",
    "numus.nn",
    "numus.nn.functional",
    "numus.nn.utils",
    "numus.optim",
    "numus.optim.lr_scheduler",
    "numus.optim.training",
    "numus.data",
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
