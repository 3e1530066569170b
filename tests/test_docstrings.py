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


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs={"nm": nm})
    assert result.failed == 0
