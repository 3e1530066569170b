"""Tests of kernels start a build of their own, for each target that this machine can execute."""

from __future__ import annotations

import llvm_harness as harness
import pytest

from numus import ir


@pytest.fixture(autouse=True)
def _fresh():
    ir.new_build()


@pytest.fixture(params=list(harness.ALL_TARGETS))
def target(request):
    return harness.ALL_TARGETS[request.param]
